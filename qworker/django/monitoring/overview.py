"""overview: figures for monitors: clusters, waiting and ended tasks.

Comes from:  ``Stat``, the broker, and the tables of ``Task`` and ``Schedule``.
Goes to:     ``monitor.py``, and other displays.
Thread:      any; an EndedCount belongs to one thread.

Rows of ``Task`` are not read: both counts are one query on an index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Avg, Count, DurationField, ExpressionWrapper, F
from django.utils import timezone

from qworker.django.brokers import Broker
from qworker.django.models import Schedule, Success, Task
from qworker.django.status import Stat

DAY_SECONDS = 86400
UNITS = (("second", DAY_SECONDS), ("minute", 1440), ("hour", 24), ("day", 1))
"""Units of the task rate, and their number in a day."""
PATIENCE = 50
"""A count is repeated at the earliest after this many times its duration."""


@dataclass(frozen=True)
class Ended:
    """The number of ended and stored tasks."""

    successes: int = 0
    failures: int = 0


@dataclass(frozen=True)
class Overview:
    """The content of the live monitor.

    - clusters: the live ones.
    - broker (text): its name and version.
    - queued: waiting packages. locked: packages taken and not acknowledged; None if the broker does not know.
    - ended: how many tasks have ended.
    """

    clusters: Sequence[Stat]
    broker: str
    queued: int
    locked: int | None
    ended: Ended


@dataclass(frozen=True)
class Summary:
    """Figures for all clusters.

    - clusters, workers: how many. restarts: how many worker processes were replaced.
    - queued, successes, failures, schedules: how many.
    - per_day: tasks that succeeded in the last 24 hours. average (seconds): their mean time from sending to
      the end; 0 if there are none.
    """

    clusters: int
    workers: int
    restarts: int
    queued: int
    successes: int
    failures: int
    schedules: int
    per_day: int
    average: float

    def rate(self) -> tuple[float, str]:
        """Return the tasks in a unit of time, and the unit: the shortest with at least one task."""
        for unit, in_a_day in UNITS:
            if self.per_day >= in_a_day:
                return self.per_day / in_a_day, unit
        return float(self.per_day), UNITS[-1][0]


class EndedCount:
    """Counts ended tasks for a display that is refreshed each second. Slow counts are reused for a while.
    monotonic: the system's clock, replaced in tests. For one thread."""

    def __init__(
        self, count: Callable[[], Ended] | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count or count_ended
        self._monotonic = monotonic
        self._last = Ended()
        self._again_at = -1.0

    def __call__(self) -> Ended:
        begun = self._monotonic()
        if begun >= self._again_at:
            self._last = self._count()
            ended = self._monotonic()
            self._again_at = ended + PATIENCE * (ended - begun)
        return self._last


def count_ended() -> Ended:
    """Count the ended tasks now."""
    found = dict(Task.objects.order_by().values_list("success").annotate(number=Count("id")))
    return Ended(found.get(True, 0), found.get(False, 0))


def overview(broker: Broker, ended: Callable[[], Ended] = count_ended) -> Overview:
    """Return the current figures. Raises QWorkerError if the broker is not available, Django's DatabaseError
    if the database is not."""
    return Overview(Stat.get_all(broker), broker.info(), broker.queue_size(), broker.lock_size(), ended())


def summary(broker: Broker) -> Summary:
    """Return the current figures. Raises like overview()."""
    clusters, ended = Stat.get_all(broker), count_ended()
    took = ExpressionWrapper(F("stopped") - F("started"), output_field=DurationField())
    recent = (
        Success.objects.order_by()
        .filter(stopped__gte=timezone.now() - timedelta(seconds=DAY_SECONDS))
        .aggregate(number=Count("id"), average=Avg(took))
    )
    average = recent["average"]
    return Summary(
        clusters=len(clusters),
        workers=sum(len(each.workers) for each in clusters),
        restarts=sum(each.reincarnations for each in clusters),
        queued=broker.queue_size(),
        successes=ended.successes,
        failures=ended.failures,
        schedules=Schedule.objects.count(),
        per_day=recent["number"],
        average=0.0 if average is None else average.total_seconds(),
    )
