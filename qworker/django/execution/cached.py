"""Cached results: tasks and groups in Django's cache, in place of the database.

Comes from:  ``endings.py``, which stores tasks; ``waiting/fetching.py``, which reads them.
Goes to:     the cache that ``Q_CLUSTER['cache']`` names.
Thread:      any.

A task is stored under its id; its name leads to the id. A group is a numbered place for each of its members,
and a counter with the likely next place. No backend of Django's can append to a list atomically, but each can
add a key that must not exist: so only one member takes a place, and a member that comes again, since it was
interrupted, finds its own. The file-based backend cannot add atomically: a file is locked.
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
"""Caches, by the names of their classes, that other processes do not see."""
SHORTEST_SECONDS = 1.0
"""Some caches never keep values for less than that."""


def store() -> Any:
    """Return the cache."""
    return caches[conf.cache]


def is_shared(alias: str) -> bool:
    """Return whether other processes see the content of the cache *alias*."""
    backend = _backend(alias)
    return bool(backend) and not backend.endswith(UNSHARED)


def _backend(alias: str) -> str:
    return str(settings.CACHES.get(alias, {}).get("BACKEND", "")).rpartition(".")[2]


def warn_unshared(here: bool) -> None:
    """Warn the caller when no other process sees the content of the cache.

    here: whether the task runs in this process, whose own memory will do then.
    """
    alias = conf.cache
    backend = _backend(alias)
    if not backend.endswith(UNSHARED) or (here and backend == "LocMemCache"):
        return
    fault = "keeps nothing" if backend == "DummyCache" else "other processes do not see"
    warnings.warn(
        f"cached results go to the cache {alias!r}, a {backend}, which {fault}: result() returns None. "
        "Use a shared cache, such as Django's RedisCache or DatabaseCache, or leave cached out",
        RuntimeWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """Return how many levels above warn_unshared() the project's code is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qworker."):
        level, frame = level + 1, frame.f_back
    return level


def key(name: str, *more: object) -> str:
    """Return the key of a task or group *name* of this cluster."""
    return ":".join(map(str, ("django_q", conf.prefix, name, *more)))


def seconds_of(cached: Any) -> float | None:
    """Return for how many seconds the option *cached* keeps a result; None for no limit."""
    return None if cached is True else max(SHORTEST_SECONDS, float(cached))


def put(package: Package) -> int:
    """Store *package*, which has ended; return its position in its group, from 1 on, 0 without a group. For a
    member that was stored already: how many there are.

    Raises BackendError when the cache does not take it.
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
        raise BackendError(f"the cache {conf.cache!r} does not take a result: {safe_repr(error)}") from error


def _by_name(name: str) -> str:
    return key("name", name)


def _join(group: str, task_id: str, name: str, seconds: float | None) -> int:
    """Take the first free place of *group*. Its counter may be too low."""
    if not store().add(key(group, "of", task_id), 1, seconds):  # it was here before, and perhaps cut short
        ids = member_ids(group)
        if task_id in ids:
            return len(ids)
    member = f"{task_id} {name}"
    number = int(store().get(key(group, "count")) or 0) + 1
    while not store().add(place := key(group, "member", number), member, seconds):
        there = store().get(place)
        if there is None:  # a locked table stores nothing, without an error
            raise BackendError("it was too busy")
        if there == member:
            break
        number += 1
    store().set(key(group, "count"), number, seconds)
    return number


def _set(name: str, text: str, seconds: float | None) -> None:
    """Store *text*, and verify it: a cache in a table drops values that it cannot write."""
    store().set(name, text, seconds)
    if store().get(name) != text:
        raise BackendError("it has not kept the value")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Only Django's file-based cache adds a key in two steps."""
    if not isinstance(store(), FileBasedCache):
        yield
        return
    directory = Path(store()._dir)
    directory.mkdir(0o700, parents=True, exist_ok=True)
    with (directory / "qworker.lock").open("a") as file:
        locks.lock(file, locks.LOCK_EX)  # it goes with the file, and with the process
        yield


def task(task_id: str) -> Task | None:
    """Return the task that is stored under its id or name; None when there is none."""
    if storable(task_id) != task_id:  # not every cache takes it
        return None
    by_id, by_name = key(task_id), _by_name(task_id)
    found = store().get_many([by_id, by_name])
    text = found.get(by_id)
    if text is None and by_name in found:
        text = store().get(key(found[by_name]))
    return None if text is None else _task_of(text, task_id)


def _task_of(text: str, called: str) -> Task | None:
    """Return the task with the id or name *called* from its stored *text*; None for foreign values, such as
    another task or a waiting package, and for values that cannot be unpickled."""
    try:
        found = Task(**SignedPackage.loads(text))
        if str(called) not in (found.id, found.name) or found.stopped is None:
            raise BadSignature(f"it is not the end of the task {called:.100}")
        return found
    except Exception as error:  # noqa: BLE001 - it may be anything, and is no reason to lose the others
        reraise_interrupt(error)
        logger.warning("a task in the cache %r cannot be read: %s", conf.cache, safe_repr(error))
        return None


def member_ids(group: str) -> list[str]:
    """Return the ids of the members of *group* that are kept, in the order in which they came."""
    found = _members(group)
    return [found[number][0] for number in sorted(found)]


def _members(group: str) -> dict[int, tuple[str, str]]:
    """Return the stored members, by their places: those up to the counter, and those after it. For each the
    id, and the name of its task."""
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
    """Return the tasks of *group* that are kept."""
    keys = {key(task_id): task_id for task_id in member_ids(group)}
    found = store().get_many(list(keys))
    tasks = (_task_of(found[each], task_id) for each, task_id in keys.items() if each in found)
    return [each for each in tasks if each is not None]


def delete(task_id: str) -> bool:
    """Forget the task with this id or name; whether it was there."""
    found = task(task_id)
    if found is None:
        return bool(store().delete(key(task_id)))  # one that cannot be read
    store().delete_many([key(found.pk), _by_name(found.name)])
    return True


def delete_group(group: str, tasks: bool = True) -> int:
    """Forget *group*, and its *tasks*; how many these were."""
    found = _members(group)
    keys = [key(group, "count"), *(key(group, "member", number) for number in found)]
    for identity, name in found.values():
        keys.append(key(group, "of", identity))
        if tasks:
            keys += [key(identity), _by_name(name)]
    store().delete_many(keys)
    return len(found)
