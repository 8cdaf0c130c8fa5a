"""cached: tasks and groups in Django's cache, instead of the database.

Comes from:  ``endings.py``, which stores tasks; ``waiting/fetching.py``, which reads them.
Goes to:     the cache that ``Q_CLUSTER['cache']`` names.
Thread:      any.

A task is stored under its id, and its id under its name. A group has a numbered key for each member, and a
counter with the likely next number. No backend of Django can append to a list atomically, but add() fails for
an existing key: so each number has one member, and a member that is stored again finds its number. The
file-based backend cannot add atomically, so a file is locked.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.filebased import FileBasedCache
from django.core.files import locks

from qworker.django.conf import conf, logger
from qworker.django.execution.running import values_of
from qworker.django.models import Task
from qworker.django.signing import BadSignature, SignedPackage
from qworker.django.transports.packages import Package
from qworker.errors import BackendError
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr, storable

UNSHARED = ("LocMemCache", "DummyCache")
"""Class names of caches that are not shared between processes."""
SHORTEST_SECONDS = 1.0
"""Some caches cannot keep values for less than that."""


def store() -> Any:
    """Return the cache."""
    return caches[conf.cache]


def is_shared(alias: str) -> bool:
    """Return whether the cache *alias* is shared between processes."""
    backend = _backend(alias)
    return bool(backend) and not backend.endswith(UNSHARED)


def _backend(alias: str) -> str:
    return str(settings.CACHES.get(alias, {}).get("BACKEND", "")).rpartition(".")[2]


def warn_unshared(here: bool) -> None:
    """Warn the caller if the cache is not shared between processes.

    here: whether the task runs in this process, for which a cache in memory is sufficient.
    """
    alias = conf.cache
    backend = _backend(alias)
    if not backend.endswith(UNSHARED) or (here and backend == "LocMemCache"):
        return
    fault = "stores nothing" if backend == "DummyCache" else "is not shared between processes"
    warnings.warn(
        f"cached results are stored in the cache {alias!r}, a {backend}, which {fault}: result() returns "
        "None. Use a shared cache, such as Django's RedisCache or DatabaseCache, or do not use cached",
        RuntimeWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """Return the number of frames between warn_unshared() and the project's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qworker."):
        level, frame = level + 1, frame.f_back
    return level


def key(name: str, *more: object) -> str:
    """Return the cache key of a task or group *name* of this project."""
    return ":".join(map(str, ("django_q", conf.prefix, name, *more)))


def seconds_of(cached: Any) -> float | None:
    """Return the seconds for which the option *cached* keeps a result; None for no limit."""
    return None if cached is True else max(SHORTEST_SECONDS, float(cached))


def put(package: Package) -> int:
    """Store the ended *package*; return its position in its group, from 1, or 0 without a group. For a member
    that was already stored, return how many there are.

    Raises BackendError if the cache cannot store it.
    """
    seconds, identity, group = seconds_of(package["cached"]), package["id"], package.get("group")
    text = SignedPackage.dumps(values_of(package))
    try:
        _set(key(identity), text, seconds)
        store().set(_by_name(package["name"]), identity, seconds)
        if not group:
            return 0
        with _one_at_a_time():
            return _join(group, identity, package["name"], seconds)
    except Exception as error:
        reraise_interrupt(error)
        raise BackendError(
            f"a result cannot be stored in the cache {conf.cache!r}: {safe_repr(error)}"
        ) from error


def _by_name(name: str) -> str:
    return key("name", name)


def _join(group: str, task_id: str, name: str, seconds: float | None) -> int:
    """Take the first free number of *group*, whose counter may be too low; return it."""
    if not store().add(key(group, "of", task_id), 1, seconds):  # stored before, and perhaps interrupted
        ids = member_ids(group)
        if task_id in ids:
            return len(ids)
    member = f"{task_id} {name}"
    number = int(store().get(key(group, "count")) or 0) + 1
    while not store().add(place := key(group, "member", number), member, seconds):
        there = store().get(place)
        if there is None:  # a locked table ignores add() without an error
            raise BackendError("its table was locked")
        if there == member:
            break
        number += 1
    store().set(key(group, "count"), number, seconds)
    return number


def _set(name: str, text: str, seconds: float | None) -> None:
    """Store *text* and read it back: a cache in a table drops values that it cannot write."""
    store().set(name, text, seconds)
    if store().get(name) != text:
        raise BackendError("the value was not stored")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock Django's file-based cache, the only one whose add() is not atomic."""
    if not isinstance(store(), FileBasedCache):
        yield
        return
    directory = Path(store()._dir)
    directory.mkdir(0o700, parents=True, exist_ok=True)
    with (directory / "qworker.lock").open("a") as file:
        locks.lock(file, locks.LOCK_EX)  # released when the file is closed, or the process ends
        yield


def task(task_id: str) -> Task | None:
    """Return the task with this id or name; None if there is none."""
    if storable(task_id) != task_id:  # not every cache accepts it
        return None
    by_id, by_name = key(task_id), _by_name(task_id)
    found = store().get_many([by_id, by_name])
    text = found.get(by_id)
    if text is None and by_name in found:
        text = store().get(key(found[by_name]))
    return None if text is None else _task_of(text, task_id)


def _task_of(text: str, called: str) -> Task | None:
    """Return the task with the id or name *called* from its stored *text*; None for anything else, such as
    another task or a waiting package, and for text that cannot be unpickled."""
    try:
        found = Task(**SignedPackage.loads(text))
        if str(called) not in (found.id, found.name) or found.stopped is None:
            raise BadSignature(f"it is not the result of the task {called:.100}")
        return found
    except Exception as error:  # noqa: BLE001 - the cache may contain anything
        reraise_interrupt(error)
        logger.warning("a task in the cache %r cannot be read: %s", conf.cache, safe_repr(error))
        return None


def member_ids(group: str) -> list[str]:
    """Return the ids of the stored members of *group*, in the order in which they ended."""
    found = _members(group)
    return [found[number][0] for number in sorted(found)]


def _members(group: str) -> dict[int, tuple[str, str]]:
    """Return the task id and name of each stored member by number, including members after the counter."""
    count = int(store().get(key(group, "count")) or 0)
    keys = {key(group, "member", number): number for number in range(1, count + 1)}
    found = {keys[each]: str(member) for each, member in store().get_many(list(keys)).items()}
    number = count + 1
    while (member := store().get(key(group, "member", number))) is not None:
        found[number] = str(member)
        number += 1
    parts = ((number, member.partition(" ")) for number, member in found.items())
    return {number: (identity, name) for number, (identity, _, name) in parts}


def members(group: str) -> list[Task]:
    """Return the stored tasks of *group*."""
    keys = {key(task_id): task_id for task_id in member_ids(group)}
    found = store().get_many(list(keys))
    tasks = (_task_of(found[each], task_id) for each, task_id in keys.items() if each in found)
    return [each for each in tasks if each is not None]


def delete(task_id: str) -> bool:
    """Delete the task with this id or name; return whether it was there."""
    found = task(task_id)
    if found is None:
        return bool(store().delete(key(task_id)))  # one that cannot be read
    store().delete_many([key(found.pk), _by_name(found.name)])
    return True


def delete_group(group: str, tasks: bool = True) -> int:
    """Delete *group*, and its tasks if *tasks*; return how many members it had."""
    found = _members(group)
    keys = [key(group, "count"), *(key(group, "member", number) for number in found)]
    for identity, name in found.values():
        keys.append(key(group, "of", identity))
        if tasks:
            keys += [key(identity), _by_name(name)]
    store().delete_many(keys)
    return len(found)
