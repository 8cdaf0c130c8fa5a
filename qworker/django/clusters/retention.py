"""retention: deletes successful tasks beyond the newest ``save_limit``.

Comes from:  the worker of a cluster.
Goes to:     the table of ``Task``; ``execution/parts.py``, for abandoned iterables.
Thread:      retention.

``save_limit`` applies to all tasks, or to each group, name or function. Excess tasks are deleted together,
once a second. Counting every group reads the whole table, so that is done when a cluster starts and once an
hour; in between, only groups with tasks that have ended since are counted, by an index.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, close_old_connections
from django.db.models import Count, Q
from django.utils import timezone

from qworker import QWorker
from qworker.components.component import ThreadComponent
from qworker.django.conf import conf, logger
from qworker.django.execution import connections as task_connections
from qworker.django.execution import parts
from qworker.django.models import Success, Task
from qworker.errors import BackendError
from qworker.transports.portions import portions

LOOK_SECONDS = 1.0
TIDY_SECONDS = 60.0
"""Seconds between two checks for abandoned iterables."""
COUNT_SECONDS = 3600.0
"""Seconds between full counts, which are needed since clocks may differ and results may be stored late."""
LATE = timedelta(seconds=10)
"""How late a task may be stored after its end; the next full count includes later ones."""
COUNTED_AT_ONCE = 500
"""Groups counted in one statement."""
SHARE = 0.03
"""The maximum share of time spent counting."""
MOST = 1000
"""Tasks deleted in one step."""


class Retention(ThreadComponent):
    """Deletes successes beyond the limit. on_crash: as for ThreadComponent."""

    name = "retention"

    def __init__(self, app: QWorker, on_crash: Callable[[str, BaseException], None]) -> None:
        super().__init__(app.clock, on_crash)
        self._clock = app.clock
        self._tidy_at = self._count_at = 0.0  # this thread
        self._seen: datetime | None = None  # this thread: tasks that ended before this are counted

    def step(self, now: float) -> float:
        task_connections.begin()
        began = self._clock.monotonic()
        try:
            if now >= self._tidy_at:
                parts.tidy()
                self._tidy_at = now + TIDY_SECONDS
            if conf.save_limit <= 0:
                return LOOK_SECONDS * 10
            deleted = self._look(now)
        except (Error, BackendError) as error:
            task_connections.drop_broken()
            logger.warning("old results cannot be deleted at the moment: %s", error)
            return LOOK_SECONDS * 10
        return rest_after(self._clock.monotonic() - began, deleted)

    def _look(self, now: float) -> int:
        since = None if now >= self._count_at else self._seen
        began = timezone.now()
        deleted = sweep(since)
        if deleted < MOST:  # nothing remains to be deleted
            self._seen = began - LATE
            if since is None:
                self._count_at = now + COUNT_SECONDS
        return deleted

    def quiet(self) -> None:
        """Do nothing; deleting old results is safe during shutdown."""

    def closed(self) -> None:
        close_old_connections()


def rest_after(seconds: float, deleted: int) -> float:
    """Return the pause after a count that took *seconds*."""
    return max(0.0 if deleted >= MOST else LOOK_SECONDS, seconds / SHARE)


def sweep(since: datetime | None = None, most: int = MOST) -> int:
    """Delete successes beyond ``save_limit``, about *most* of each group; return how many.

    since: check only groups, names or functions with a task that has ended since then; None: check all.
    """
    limit, field = conf.save_limit, conf.save_limit_per
    if limit <= 0:
        return 0
    if not field:
        return _beyond(Success.objects.all(), limit, most)
    # Not success=True: without statistics, SQLite would use the index of all successes, not the group's.
    successes = Task.objects.exclude(success=False)
    number = Count("id", filter=Q(success=True))
    counted = Task.objects.order_by().values(field).annotate(number=number).filter(number__gt=limit)
    if since is None:
        full = [each[field] for each in counted[:most]]
    else:
        ended = Success.objects.filter(stopped__gte=since).order_by().values_list(field, flat=True)
        recent = set(ended.iterator())  # for DISTINCT, SQLite would use another index
        full = [None] if None in recent else []  # IN does not match NULL
        named = [each for each in recent if each is not None]
        for portion in portions(named, COUNTED_AT_ONCE):
            full += [each[field] for each in counted.filter(**{f"{field}__in": portion})]
    return sum(_beyond(successes.filter(**_same(field, each)), limit, most) for each in full)


def _same(field: str, value: Any) -> dict[str, Any]:
    return {f"{field}__isnull": True} if value is None else {field: value}


def _beyond(tasks: Any, limit: int, most: int) -> int:
    """Delete up to *most* of the *tasks* beyond the newest *limit*, and those that ended at the same time as
    the last one. Reads only the first and last row of the portion."""
    ends = tasks.order_by("-stopped", "-id").values_list("stopped", "id")
    newest, oldest = ends[limit:].first(), ends[limit + most - 1 :].first()
    if newest is None:
        return 0
    gone = tasks.filter(stopped__lte=newest[0]).exclude(stopped=newest[0], id__gt=newest[1])
    if oldest is not None:
        gone = gone.filter(stopped__gte=oldest[0])
    return int(gone.order_by()._raw_delete(tasks.db) or 0)
