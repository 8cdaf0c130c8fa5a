"""tasks: the functions that projects call.

Comes from:  the code of projects.
Goes to:     ``execution/calls.py``, ``several.py``, ``waiting/fetching.py``; schedules to their model.
Thread:      any; names that begin with ``a`` are for coroutines.

The names are Django-Q's. ``wait`` is in milliseconds: 0 looks once, -1 waits without limit.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, connections, router, transaction
from django.utils import timezone

from qworker.django.brokers import Broker, get_broker
from qworker.django.conf import conf
from qworker.django.execution import cached as cache
from qworker.django.execution.calls import async_task
from qworker.django.function_names import function_name
from qworker.django.models import Part, Schedule, Task
from qworker.django.models.task import ID_LENGTH
from qworker.django.several import Chain, Iter, async_chain, async_iter
from qworker.django.waiting import fetching
from qworker.django.waiting.fetching import (
    afetch,
    afetch_group,
    count_group,
    count_group_cached,
    delete_group,
    delete_group_cached,
    fetch,
    fetch_cached,
    fetch_group,
    fetch_group_cached,
    result_cached,
    result_group_cached,
)

MOST_ATTEMPTS = 10
"""Attempts to create a schedule while other processes do."""


def result(task_id: str, wait: int = 0, cached: Any = None) -> Any:
    """Return the result of the task with this id or name, or its error as text; None if it has not ended, or
    was not stored."""
    found = fetch(task_id, wait, cached)
    return None if found is None else found.result


def result_group(
    group_id: str, failures: bool = False, wait: int = 0, count: int | None = None, cached: Any = None
) -> list[Any] | None:
    """Return the results of a group; None if there are none.

    failures: include the errors of failed tasks. count: wait until this many have ended, without limit if
    *wait* is 0.
    """
    return fetching.results(group_id, failures, wait, count, cached) or None


async def aresult(task_id: str, wait: int = 0, cached: Any = None) -> Any:
    """Like result(), without blocking the event loop."""
    found = await afetch(task_id, wait, cached)
    return None if found is None else found.result


async def aresult_group(
    group_id: str, failures: bool = False, wait: int = 0, count: int | None = None, cached: Any = None
) -> list[Any] | None:
    """Like result_group(), without blocking the event loop."""
    return await fetching.aresults(group_id, failures, wait, count, cached) or None


def delete_cached(task_id: str, broker: Broker | None = None) -> bool:
    """Delete a task from the cache; return whether it was there."""
    return cache.delete(task_id)


def queue_size(broker: Broker | None = None) -> int:
    """Return how many packages wait in the broker, without those that run."""
    return (broker or get_broker()).queue_size()


def schedule(func: str, *args: Any, **kwargs: Any) -> Schedule:
    """Have a cluster call *func*, a dotted path, at set times; return the schedule.

    - name (text): a unique name.
    - hook (text): the dotted path of a function that is called with each task.
    - schedule_type: one of ``Schedule.TYPE``; ONCE by default.
    - minutes (number): for the type MINUTES; 1 by default.
    - cron (text): for the type CRON, which requires it.
    - repeats (number): how many times; -1 for no limit, 0 for never.
    - next_run (datetime): when it is first due; now by default.
    - cluster (text): the name of the cluster. intended_date_kwarg (text): the keyword argument for the due
      time.
    - q_options (dict): options of async_task(), which may also be keywords.

    Raises IntegrityError for a name in use, ValidationError for invalid values.
    """
    given = {name: kwargs.pop(name) for name in _FIELDS if name in kwargs}
    first = given.pop("next_run", None)
    if first is not None:
        given["next_run"] = getattr(first, "datetime", first)  # Arrow objects have this attribute
    if not kwargs.get("q_options", True):
        del kwargs["q_options"]
    made = Schedule(func=func and function_name(func), args=args, kwargs=kwargs, **given)
    if made.hook is not None:
        made.hook = function_name(made.hook)
    made.full_clean()
    for field, kind in (("minutes", Schedule.MINUTES), ("cron", Schedule.CRON)):
        if given.get(field) is not None and made.schedule_type != kind:
            warnings.warn(
                f"{field}={given[field]!r} has no effect on a schedule of the type {made.schedule_type!r}: "
                f"use schedule_type={kind!r}, or remove {field}",
                UserWarning,
                stacklevel=2,
            )
    # The server may abort one of several transactions that wait for the same name. The caller's own
    # transaction cannot be retried here.
    attempts = 1 if connections[router.db_for_write(Schedule)].in_atomic_block else MOST_ATTEMPTS
    for attempt in range(1, attempts + 1):
        try:
            with _turn_of(given.get("name")):
                made.save()
            break
        except OperationalError:
            if attempt == attempts:
                raise
    return made


@contextmanager
def _turn_of(name: str | None) -> Iterator[None]:
    """Keep other processes from making a schedule with this name. Raises IntegrityError if it exists.

    A unique constraint would reject tables of django-q2 that have a name twice, and changes in the admin.
    Instead a row locks the name: another transaction that writes it waits until ours ends; at REPEATABLE READ
    the server then aborts it, since it could not see our schedule. ``execution/parts.py`` deletes the row
    later.
    """
    if not name:
        yield
        return
    alias, now = router.db_for_write(Schedule), timezone.now()
    key = hashlib.sha256(f"schedule {name}".encode()).hexdigest()[:ID_LENGTH]
    with transaction.atomic(alias):
        turn = Part(pk=key, whole=key, started=now, changed=now, row=b"")
        targets = connections[alias].features.supports_update_conflicts_with_target
        # Not a plain INSERT: on MySQL, waiting transactions would share a lock and then deadlock.
        Part.objects.using(alias).bulk_create(
            [turn],
            update_conflicts=True,
            update_fields=["changed"],
            unique_fields=["id"] if targets else None,
        )
        there = Schedule.objects.using(alias).filter(name=name)
        if connections[alias].vendor == "mysql":  # a plain read uses the snapshot of the caller's first read
            there = there.select_for_update()
        if there.values_list("pk", flat=True)[:1]:
            raise IntegrityError(f"a schedule with the name {name!r} already exists")
        yield


def _option(name: str, meaning: str) -> Any:
    """Return a property of AsyncTask for an option of its call."""

    def read(task: AsyncTask) -> Any:
        return task._options().get(name, conf.cached if name == "cached" else None)

    def write(task: AsyncTask, value: Any) -> None:
        task._options()[name] = value
        task.started = False

    return property(read, write, doc=meaning)


class AsyncTask:
    """A call to make later: change its attributes, then run() it.

    After a change, results are unavailable until the next run. started: whether it was run with its current
    attributes.
    """

    broker = _option("broker", "A Broker to use; None for the cluster's.")
    sync = _option("sync", "Whether it runs here and now; None: as in the settings.")
    save = _option("save", "Whether a success is stored; None: as in the settings.")
    hook = _option("hook", "The function that is called with its task when it has ended; None for none.")
    group = _option("group", "The group of its result; None for none.")
    cached = _option("cached", "True or seconds: keep its result in the cache; else the database does.")

    def __init__(self, func: str | Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.id = ""
        self.started = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("func", "args", "kwargs"):
            self.started = False

    def _options(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kwargs.get("q_options", self.kwargs)
        return found

    def run(self) -> str:
        """Enqueue it; return its id."""
        self.id = async_task(self.func, *self.args, **self.kwargs)
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> Any:
        """Return its result; None until it has ended."""
        return result(self.id, wait, self.cached) if self.started else None

    def fetch(self, wait: int = 0) -> Task | None:
        """Return its task; None until it has ended."""
        return fetch(self.id, wait, self.cached) if self.started else None

    def result_group(self, failures: bool = False, wait: int = 0, count: int | None = None) -> Any:
        """Return the results of its group; like result_group()."""
        if not (self.started and self.group):
            return None
        return result_group(self.group, failures, wait, count, self.cached)

    def fetch_group(self, failures: bool = True, wait: int = 0, count: int | None = None) -> Any:
        """Return the tasks of its group; like fetch_group()."""
        if not (self.started and self.group):
            return None
        return fetch_group(self.group, failures, wait, count, self.cached)


Async = AsyncTask
"""Its name before Python 3.7."""

aasync_task = sync_to_async(async_task)
"""async_task() for coroutines."""
acount_group = sync_to_async(count_group)
"""count_group() for coroutines."""
adelete_group = sync_to_async(delete_group)
"""delete_group() for coroutines."""
adelete_cached = sync_to_async(delete_cached)
"""delete_cached() for coroutines."""
aqueue_size = sync_to_async(queue_size)
"""queue_size() for coroutines."""
aasync_iter = sync_to_async(async_iter)
"""async_iter() for coroutines."""
aasync_chain = sync_to_async(async_chain)
"""async_chain() for coroutines."""
aschedule = sync_to_async(schedule)
"""schedule() for coroutines."""

_FIELDS = (
    "name", "hook", "schedule_type", "minutes", "repeats", "next_run", "cron", "cluster",
    "intended_date_kwarg",
)  # fmt: skip
"""Keywords of schedule() that are fields of the model."""

__all__ = [
    "Async",
    "AsyncTask",
    "Chain",
    "Iter",
    "aasync_chain",
    "aasync_iter",
    "aasync_task",
    "acount_group",
    "adelete_cached",
    "adelete_group",
    "afetch",
    "afetch_group",
    "aqueue_size",
    "aresult",
    "aresult_group",
    "aschedule",
    "async_chain",
    "async_iter",
    "async_task",
    "count_group",
    "count_group_cached",
    "delete_cached",
    "delete_group",
    "delete_group_cached",
    "fetch",
    "fetch_cached",
    "fetch_group",
    "fetch_group_cached",
    "queue_size",
    "result",
    "result_cached",
    "result_group",
    "result_group_cached",
    "schedule",
]
