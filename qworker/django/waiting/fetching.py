"""fetching: reads ended tasks and groups from the database or the cache, and waits for them.

Comes from:  ``tasks.py``.
Goes to:     the model ``Task``, or the cache; ``watcher.py`` to wait.
Thread:      any; names that begin with ``a`` are for coroutines.

A caller queries once, through its own thread's connection, and is then notified. The cache does not notify,
so it is polled twice a second.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.db import router

from qworker.django.brokers import Broker
from qworker.django.conf import conf, logger
from qworker.django.execution import cached as cache
from qworker.django.models import Task
from qworker.django.transports.databases import is_in_memory
from qworker.django.waiting.watcher import TaskWatcher, group_key, task_key, watcher_of
from qworker.results.awaiting import ended
from qworker.safe_repr import safe_repr, storable


def result_cached(task_id: str, wait: int = 0, broker: Broker | None = None) -> Any:
    """Like result(), in the cache."""
    found = fetch(task_id, wait, True)
    return None if found is None else found.result


def fetch_cached(task_id: str, wait: int = 0, broker: Broker | None = None) -> Task | None:
    """Like fetch(), in the cache."""
    return fetch(task_id, wait, True)


def result_group_cached(
    group_id: str,
    failures: bool = False,
    wait: int = 0,
    count: int | None = None,
    broker: Broker | None = None,
) -> list[Any] | None:
    """Like result_group(), in the cache."""
    return results(group_id, failures, wait, count, True)


def fetch_group_cached(
    group_id: str,
    failures: bool = True,
    wait: int = 0,
    count: int | None = None,
    broker: Broker | None = None,
) -> Any:
    """Like fetch_group(), in the cache."""
    return fetch_group(group_id, failures, wait, count, True)


def count_group_cached(group_id: str, failures: bool = False, broker: Broker | None = None) -> int | None:
    """Like count_group(), in the cache."""
    return count_group(group_id, failures, True)


def delete_group_cached(group_id: str, broker: Broker | None = None) -> int:
    """Like delete_group() with its tasks, in the cache."""
    return delete_group(group_id, True, True)


FOREVER = -1
LOOK_SECONDS = 0.5


class Look(NamedTuple):
    """A query for tasks.

    - look: runs the query. is_there: returns whether its result is complete.
    - key: the key of its notification; "" without notifications.
    - load: reads it by id through the watcher's connection.
    """

    look: Callable[[], Any]
    is_there: Callable[[Any], bool]
    key: str = ""
    load: Callable[[TaskWatcher, Any], Any] | None = None


def found_by(what: Look, wait: int) -> Any:
    """Return the result of *what* once it is complete, or the current one after *wait* milliseconds.

    wait: 0 queries once; FOREVER waits without limit. Raises TypeError if it is not a number.
    """
    _check_wait(wait)
    found = what.look()
    if wait == 0 or what.is_there(found):
        return found
    if where := _watcher(what):
        notifications = where.watcher.wait([what.key], _seconds(wait))
        return _taken(what, where, notifications.get(what.key))
    for pause in _pauses(wait):
        time.sleep(pause)
        found = what.look()
        if what.is_there(found):
            break
    return found


async def afound_by(what: Look, wait: int) -> Any:
    """Like found_by(), without blocking the event loop or occupying a thread."""
    _check_wait(wait)
    look = sync_to_async(what.look)
    found = await look()
    if wait == 0 or what.is_there(found):
        return found
    if where := _watcher(what):
        notification = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_seconds(wait)):
                notification = await ended(where.watcher, what.key)
        return await sync_to_async(_taken)(what, where, notification)
    for pause in _pauses(wait):
        await asyncio.sleep(pause)
        found = await look()
        if what.is_there(found):
            break
    return found


def _check_wait(wait: int) -> None:
    if not isinstance(wait, int | float) or wait != wait:
        raise TypeError(f"wait={safe_repr(wait, 80)} must be a number of milliseconds ({FOREVER}: no limit)")


def _seconds(wait: int) -> float | None:
    return None if wait == FOREVER else wait / 1000


def _pauses(wait: int) -> Iterator[float]:
    """Yield the seconds before each query until the time is over. The last query is at its end."""
    until = None if wait == FOREVER else time.monotonic() + wait / 1000
    while until is None or time.monotonic() < until:
        yield LOOK_SECONDS if until is None else max(0.0, min(LOOK_SECONDS, until - time.monotonic()))


def _watcher(what: Look) -> TaskWatcher | None:
    """Return the watcher for *what*; None if there are no notifications: for the cache, or a database in
    memory."""
    alias = router.db_for_read(Task)
    if not what.key or storable(what.key) != what.key or is_in_memory(alias):
        return None
    return watcher_of(alias, router.db_for_write(Task))


def _taken(what: Look, where: TaskWatcher, notification: Mapping[str, Any] | None) -> Any:
    """Return the current result, after the *notification*, or a timeout if it is None."""
    found = what.look()
    if notification is None or what.load is None or what.is_there(found):
        return found
    return what.load(where, notification["result"])  # the caller's transaction does not see it


# -- queries --


def _task(task_id: str, cached: Any) -> Look:
    if _is_cached(cached):
        return Look(lambda: cache.task(task_id), _is_something)
    return Look(lambda: Task.get_task(task_id), _is_something, task_key(task_id), TaskWatcher.load)


def _is_something(found: Any) -> bool:
    return found is not None


def _members(group_id: str, failures: bool, count: int | None, cached: Any) -> Look:
    most, successes = count or 1, not (failures or count)

    def look() -> int:
        number = count_group(group_id, cached=cached) or 0
        if number and successes:
            number -= count_group(group_id, True, cached) or 0
        return number

    key = "" if _is_cached(cached) else group_key(group_id, most, successes)
    return Look(look, lambda found: found >= most, key)


# -- tasks and groups --


def fetch(task_id: str, wait: int = 0, cached: Any = None) -> Task | None:
    """Return the task with the id or name *task_id*; None if it has not ended, or was not stored."""
    found: Task | None = found_by(_task(task_id, cached), wait)
    _look_at_cache(found, wait, cached)
    return found


async def afetch(task_id: str, wait: int = 0, cached: Any = None) -> Task | None:
    """Like fetch()."""
    found: Task | None = await afound_by(_task(task_id, cached), wait)
    _look_at_cache(found, wait, cached)
    return found


def fetch_group(
    group_id: str, failures: bool = True, wait: int = 0, count: int | None = None, cached: Any = None
) -> Any:
    """Return the tasks of a group: a queryset, or from the cache a list, None if it is empty.

    count: wait until this many have succeeded or failed; without it, until there is a task to return.
    """
    if wait or count:
        what = _members(group_id, failures, count, cached)
        _look_at_limit(what, group_id, wait, count, cached)
        found_by(what, _timeout(wait, count))
    if not _is_cached(cached):
        return Task.get_task_group(group_id, failures)
    found = cache.members(group_id)
    _look_at_cache(found or None, wait, cached)
    return [each for each in found if failures or each.success] or None


async def afetch_group(
    group_id: str, failures: bool = True, wait: int = 0, count: int | None = None, cached: Any = None
) -> Any:
    """Like fetch_group()."""
    if wait or count:
        what = _members(group_id, failures, count, cached)
        await sync_to_async(_look_at_limit)(what, group_id, wait, count, cached)
        await afound_by(what, _timeout(wait, count))
    found = await sync_to_async(fetch_group)(group_id, failures, cached=cached)
    if _is_cached(cached):
        _look_at_cache(found, wait, cached)
    return found


def _look_at_limit(what: Look, group_id: str, wait: int, count: int | None, cached: Any) -> None:
    """Raise ValueError for waiting without limit for more successes than are stored; log a warning for
    waiting with a limit. Does nothing if *what* is already complete."""
    limit = conf.save_limit
    if not count or not count > limit > 0 or conf.save_limit_per not in (None, "group") or _is_cached(cached):
        return
    if what.is_there(what.look()):
        return
    text = (
        f"waiting for {count} tasks of the group {group_id!r}, but save_limit keeps only {limit} successful "
        "tasks: the others are deleted before all have ended"
    )
    if _timeout(wait, count) == FOREVER:
        raise ValueError(
            f"{text}. Increase Q_CLUSTER['save_limit'], use cached=True, or set a limit with wait="
        )
    logger.warning("%s", text)


def _timeout(wait: int, count: int | None) -> int:
    return wait or (FOREVER if count else 0)


def results(
    group_id: str, failures: bool = False, wait: int = 0, count: int | None = None, cached: Any = None
) -> list[Any] | None:
    """Return the results of a group; like fetch_group()."""
    return _results_of(fetch_group(group_id, failures, wait, count, cached))


async def aresults(
    group_id: str, failures: bool = False, wait: int = 0, count: int | None = None, cached: Any = None
) -> list[Any] | None:
    """Like results()."""
    found = await afetch_group(group_id, failures, wait, count, cached)
    return await sync_to_async(_results_of)(found)


def _results_of(found: Any) -> list[Any] | None:
    if found is None or isinstance(found, list):
        return found and [each.result for each in found]
    return list(found.values_list("result", flat=True))


def count_group(group_id: str, failures: bool = False, cached: Any = None) -> int | None:
    """Return how many tasks of a group have ended; None if the cache does not have the group. failures: count
    only failed ones."""
    if not _is_cached(cached):
        return int(Task.get_group_count(group_id, failures))
    if not failures:
        return len(cache.member_ids(group_id)) or None
    found = cache.members(group_id)
    return len([each for each in found if not each.success]) if found else None


def delete_group(group_id: str, tasks: bool = False, cached: Any = None) -> int:
    """Remove a group from its tasks; return how many there were. tasks: delete the tasks, too."""
    if _is_cached(cached):
        return cache.delete_group(group_id, tasks)
    deleted = Task.delete_group(group_id, tasks)
    return int(deleted[0] if isinstance(deleted, tuple) else deleted)


def _look_at_cache(found: Any, wait: int, cached: Any) -> None:
    """Warn a caller that waited without success for a cache that is not shared."""
    if found is None and wait and _is_cached(cached):
        cache.warn_unshared(conf.sync)


def _is_cached(cached: Any) -> bool:
    return bool(conf.cached if cached is None else cached)
