"""Cached results: tasks and groups in Django's cache, in place of the database.

Comes from:  ``endings.py``, which puts tasks there; ``fetching.py``, which looks for them.
Goes to:     the cache that ``Q_CLUSTER['cache']`` names.
Thread:      any.

A task is there under its id; its name leads to the id. A group is a counter and a key for each of its
members. No backend of Django's can add to a list in one step, but each can add a key that must not be there:
that is the lock of the counter. The one that keeps files cannot do that in one step either: a file is locked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.files import locks
from django.core.signing import BadSignature

from qworker.django.conf import conf
from qworker.django.models import Task
from qworker.django.packages import Package
from qworker.django.running import values_of
from qworker.django.signing import SignedPackage

LOCK_SECONDS = 10.0
"""After so long a lock is nobody's any more: who held it has died."""


def store() -> Any:
    """Return the cache."""
    return caches[conf.cache]


def keeps_parts() -> bool:
    """Tell whether other processes see what is in the cache, and whether it keeps it: some of Django's throw
    entries away where there are more than a few hundred."""
    return not isinstance(store(), LocMemCache | DummyCache | FileBasedCache | DatabaseCache)


def key(name: str, *more: object) -> str:
    """Return the key of a task or group *name* of this cluster."""
    return ":".join(map(str, ("django_q", conf.prefix, name, *more)))


def seconds_of(cached: Any) -> float | None:
    """Return for how many seconds the option *cached* keeps a result; None for ever."""
    return None if cached is True else float(cached)


def put(package: Package) -> int:
    """Keep *package*, whose end is noted; return which member of its group it is, from 1 on, 0 without a
    group."""
    seconds, identity, group = seconds_of(package["cached"]), package["id"], package.get("group")
    values = {key(identity): SignedPackage.dumps(values_of(package))}
    if not package.get("iter_count"):  # nobody looks for a part of an iterable
        values[_by_name(package["name"])] = identity
    store().set_many(values, seconds)
    return 0 if not group else _join(group, identity, package["name"], seconds)


def _by_name(name: str) -> str:
    return key("name", name)


def _join(group: str, task_id: str, name: str, seconds: float | None) -> int:
    with _locked(group):
        if task_id in member_ids(group):  # it ran before, and was cut short
            return 0
        number = int(store().get(key(group, "count")) or 0) + 1
        store().set(key(group, "member", number), f"{task_id} {name}", seconds)
        store().set(key(group, "count"), number, seconds)
    return number


@contextmanager
def _locked(group: str) -> Iterator[None]:
    if isinstance(store(), FileBasedCache):
        with _locked_file(Path(settings.CACHES[conf.cache]["LOCATION"])):
            yield
        return
    lock = key(group, "lock")
    until = time.monotonic() + LOCK_SECONDS
    while not store().add(lock, 1, LOCK_SECONDS) and time.monotonic() < until:
        time.sleep(random.uniform(0.001, 0.005))
    try:
        yield
    finally:
        store().delete(lock)


@contextmanager
def _locked_file(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "qworker.lock").open("a") as file:
        locks.lock(file, locks.LOCK_EX)  # it goes with the file, and with the process
        yield


def task(task_id: str) -> Task | None:
    """Return the task that is kept under its id or name; None when there is none."""
    by_id, by_name = key(task_id), _by_name(task_id)
    found = store().get_many([by_id, by_name])
    text = found.get(by_id)
    if text is None and by_name in found:
        text = store().get(key(found[by_name]))
    return None if text is None else _task_of(text)


def _task_of(text: str) -> Task | None:
    try:
        return Task(**SignedPackage.loads(text))
    except BadSignature:
        return None


def member_ids(group: str) -> list[str]:
    """Return the ids of the members of *group* that are kept, in the order in which they came."""
    return [identity for identity, _ in _members(group)]


def _members(group: str) -> list[tuple[str, str]]:
    """The ids of the members of *group*, each with the name of its task."""
    keys = _places(group)
    found = store().get_many(keys)
    parts = (found[each].partition(" ") for each in keys if each in found)
    return [(identity, name) for identity, _, name in parts]


def _places(group: str) -> list[str]:
    count = int(store().get(key(group, "count")) or 0)
    return [key(group, "member", number) for number in range(1, count + 1)]


def members(group: str) -> list[Task]:
    """Return the tasks of *group* that are kept."""
    keys = [key(task_id) for task_id in member_ids(group)]
    found = store().get_many(keys)
    tasks = (_task_of(found[each]) for each in keys if each in found)
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
    found, keys = _members(group), _places(group)
    if tasks:
        keys += [each for identity, name in found for each in (key(identity), _by_name(name))]
    store().delete_many([*keys, key(group, "count")])
    return len(found)
