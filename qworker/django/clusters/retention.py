"""Retention: of the tasks that succeeded, the newest are kept.

Comes from:  the worker of a cluster, which has one.
Goes to:     the table of ``Task``; what iterables wait with is seen to by ``execution/parts.py``.
Thread:      retention.

``save_limit`` is the number that stays, of all or of each group, name or function. A few more may exist for a
moment: they are deleted together, once a second, and not one by one. Counting each group reads the whole
table. So all are counted when a cluster starts and once an hour; between these, only those with tasks that
have ended since the last look, by an index.
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
"""Seconds between two full counts: clocks may differ, and a result may be stored late."""
LATE = timedelta(seconds=10)
"""After its end, a task is in the table within that time, or is counted with everything."""
COUNTED_AT_ONCE = 500
"""Groups that are counted in one statement."""
SHARE = 0.03
"""The share of time that may be spent counting, where a count takes long."""
MOST = 1000
"""Tasks that are deleted in one step."""


class Retention(ThreadComponent):
    """Deletes successes beyond the limit. on_crash: as a ThreadComponent's."""

    name = "retention"

    def __init__(self, app: QWorker, on_crash: Callable[[str, BaseException], None]) -> None:
        super().__init__(app.clock, on_crash)
        self._clock = app.clock
        self._tidy_at = self._count_at = 0.0  # this thread
        self._seen: datetime | None = None  # this thread: the end of the latest task that was counted

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
            logger.warning("nothing that is old is deleted for now: %s", error)
            return LOOK_SECONDS * 10
        return rest_after(self._clock.monotonic() - began, deleted)

    def _look(self, now: float) -> int:
        since = None if now >= self._count_at else self._seen
        began = timezone.now()
        deleted = sweep(since)
        if deleted < MOST:  # nothing is left over
            self._seen = began - LATE
            if since is None:
                self._count_at = now + COUNT_SECONDS
        return deleted

    def quiet(self) -> None:
        """Nothing is taken, and nothing has to end."""

    def closed(self) -> None:
        close_old_connections()


def rest_after(seconds: float, deleted: int) -> float:
    """Return the pause after a count of so many *seconds*: one of each group reads a whole table."""
    return max(0.0 if deleted >= MOST else LOOK_SECONDS, seconds / SHARE)


def sweep(since: datetime | None = None, most: int = MOST) -> int:
    """Delete successes beyond ``save_limit``, about so many of each kind; return how many.

    since: look only at groups, names or functions with a task that has ended since then; None: at all.
    """
    limit, field = conf.save_limit, conf.save_limit_per
    if limit <= 0:
        return 0
    if not field:
        return _beyond(Success.objects.all(), limit, most)
    # Not success=True: without statistics, SQLite reads all successes by their index, not a group by its own.
    successes = Task.objects.exclude(success=False)
    number = Count("id", filter=Q(success=True))
    counted = Task.objects.order_by().values(field).annotate(number=number).filter(number__gt=limit)
    if since is None:
        full = [each[field] for each in counted[:most]]
    else:
        ended = Success.objects.filter(stopped__gte=since).order_by().values_list(field, flat=True)
        recent = set(ended.iterator())  # SQLite would do DISTINCT by another index
        full = [None] if None in recent else []  # which IN does not find
        named = [each for each in recent if each is not None]
        for portion in portions(named, COUNTED_AT_ONCE):
            full += [each[field] for each in counted.filter(**{f"{field}__in": portion})]
    return sum(_beyond(successes.filter(**_same(field, each)), limit, most) for each in full)


def _same(field: str, value: Any) -> dict[str, Any]:
    return {f"{field}__isnull": True} if value is None else {field: value}


def _beyond(tasks: Any, limit: int, most: int) -> int:
    """Delete the *tasks* beyond the newest *limit*, up to *most*, and those that ended at the same time as
    the last of these. Only the ends of the portion are read here: a busy cluster has more important work."""
    ends = tasks.order_by("-stopped", "-id").values_list("stopped", "id")
    newest, oldest = ends[limit:].first(), ends[limit + most - 1 :].first()
    if newest is None:
        return 0
    gone = tasks.filter(stopped__lte=newest[0]).exclude(stopped=newest[0], id__gt=newest[1])
    if oldest is not None:
        gone = gone.filter(stopped__gte=oldest[0])
    return int(gone.order_by()._raw_delete(tasks.db) or 0)
