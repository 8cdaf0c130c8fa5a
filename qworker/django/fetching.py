"""Fetching: tasks and groups that have ended, from the database or the cache; and waiting for them.

Comes from:  ``tasks.py``.
Goes to:     the model ``Task``, or the cache.
Thread:      any.

After a first few looks that come sooner, two are made each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from qworker.django import cached as cache
from qworker.django.conf import conf
from qworker.django.models import Task

T = TypeVar("T")

FOREVER = -1
LOOK_SECONDS = 0.5
SOON = (0.05, 0.15, 0.3)
"""Seconds between the first looks."""


def wait_for(look: Callable[[], T], wait: int, is_there: Callable[[T], bool]) -> T:
    """Return what *look* finds; look again until *is_there* says so, or *wait* milliseconds have passed.

    wait: 0 looks once; FOREVER waits for ever. What is found in the end is returned, there or not.
    """
    found = look()
    if wait == 0 or is_there(found):
        return found
    until = None if wait == FOREVER else time.monotonic() + wait / 1000
    for pause in _pauses(until):
        pause()
        found = look()
        if is_there(found):
            break
    return found


def _pauses(until: float | None) -> Iterator[Callable[[], None]]:
    """What pauses before each look, until the time is over. The last look is at its end."""
    number = 0
    while until is None or time.monotonic() < until:
        seconds = SOON[number] if number < len(SOON) else LOOK_SECONDS
        if until is not None:
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        number += 1
        yield lambda seconds=seconds: time.sleep(seconds)  # type: ignore[misc]


def task(task_id: str, wait: int = 0, cached: Any = None) -> Task | None:
    """Return the task with the id or name *task_id*; None when it has not ended, or is not kept."""
    if _is_cached(cached):
        return wait_for(lambda: cache.task(task_id), wait, lambda found: found is not None)
    return wait_for(lambda: Task.get_task(task_id), wait, lambda found: found is not None)


def members(
    group_id: str, failures: bool = True, wait: int = 0, count: int | None = None, cached: Any = None
) -> Any:
    """Return the tasks of a group: of the database as a queryset, of the cache as a list.

    count: wait until so many have ended, well or not; without it, until there is something to return. None
    when there is nothing in the cache.
    """

    def ended() -> int:
        number = size(group_id, cached=cached) or 0
        if number and not (failures or count):
            number -= size(group_id, True, cached) or 0
        return number

    if wait or count:
        wait_for(ended, wait or FOREVER, lambda number: number >= (count or 1))
    if not _is_cached(cached):
        return Task.get_task_group(group_id, failures)
    return [each for each in cache.members(group_id) if failures or each.success] or None


def results(
    group_id: str, failures: bool = False, wait: int = 0, count: int | None = None, cached: Any = None
) -> list[Any] | None:
    """Return what the tasks of a group have returned; as members()."""
    found = members(group_id, failures, wait, count, cached)
    if found is None:
        return None
    if isinstance(found, list):
        return [each.result for each in found]
    return list(found.values_list("result", flat=True))


def size(group_id: str, failures: bool = False, cached: Any = None) -> int | None:
    """Return how many tasks of a group have ended; failures: how many of them have failed. None for no group
    in the cache."""
    if not _is_cached(cached):
        return int(Task.get_group_count(group_id, failures))
    if not failures:
        return len(cache.member_ids(group_id)) or None
    found = cache.members(group_id)
    return len([each for each in found if not each.success]) if found else None


def delete_group(group_id: str, tasks: bool = False, cached: Any = None) -> int:
    """Take the label of a group from its tasks, or delete them, too; return how many these were."""
    if _is_cached(cached):
        return cache.delete_group(group_id, tasks)
    deleted = Task.delete_group(group_id, tasks)
    return int(deleted[0] if isinstance(deleted, tuple) else deleted)


def _is_cached(cached: Any) -> bool:
    return bool(conf.cached if cached is None else cached)
