"""The plain kinds of schedules: intervals and single instants.

Comes from:  code and settings.
Goes to:     ``entry.py``.
Thread:      any; a schedule is immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from qworker.beat import words
from qworker.beat.schedule import EPOCH, Schedule, aware, since_1970
from qworker.errors import InvalidSchedule

SHORTEST = timedelta(milliseconds=1)
LONGEST = timedelta(days=366_000)


class schedule(Schedule):
    """At a fixed interval: ``schedule(30)``, ``schedule(timedelta(hours=6))``.

    - run_every: seconds or a timedelta, at least a thousandth of a second.
    - anchor (aware datetime): the start of the intervals. None: for an entry, when it was first seen
      with this schedule; otherwise 1970.
    - relative (bool): as in Celery; True counts the intervals from 1970, so that "every hour" is on the hour.

    Raises InvalidSchedule for an invalid interval.
    """

    __module__ = "qworker.beat"

    def __init__(
        self,
        run_every: float | timedelta,
        relative: bool = False,
        *,
        anchor: datetime | None = None,
    ) -> None:
        super().__init__(None)
        try:
            every = run_every if isinstance(run_every, timedelta) else timedelta(seconds=run_every)
        except (TypeError, ValueError, OverflowError):
            every = timedelta(0)
        if not SHORTEST <= every <= LONGEST or isinstance(run_every, bool):
            shown = f"{run_every}" if isinstance(run_every, timedelta) else run_every
            raise InvalidSchedule(
                f"{shown!r:.100} is not an interval: use seconds above 0, such as 30 or 0.5, or a timedelta"
            )
        self.run_every = every
        self.relative = bool(relative)
        self.anchor = EPOCH if relative else anchor and aware(anchor).astimezone(UTC)

    def anchored(self, anchor: datetime) -> schedule:
        """Return a copy with intervals from *anchor*; itself if it has an anchor."""
        return self if self.anchor else schedule(self.run_every, anchor=anchor)

    def next(self, after: datetime) -> datetime | None:
        zone, anchor = self.zone(after), self.anchor or EPOCH
        count = (after - anchor) // self.run_every + 1
        return _at(
            lambda: (anchor + max(count, 1 if self.anchor else count) * self.run_every).astimezone(zone)
        )

    def previous(self, before: datetime) -> datetime | None:
        zone, anchor = self.zone(before), self.anchor or EPOCH
        count = -((anchor - before) // self.run_every) - 1
        if self.anchor and count < 1:
            return None
        return _at(lambda: (anchor + count * self.run_every).astimezone(zone))

    def words(self) -> str:
        return words.of_interval(self.run_every)

    def _identity(self) -> tuple[Any, ...]:
        return (self.run_every, self.anchor)

    def __repr__(self) -> str:
        return f"<freq: {self.words().removeprefix('every ')}>"


class clocked(Schedule):
    """Once, at an instant: ``clocked(datetime(2027, 1, 1, tzinfo=UTC))``. clocked_time: aware."""

    __module__ = "qworker.beat"

    def __init__(self, clocked_time: datetime) -> None:
        if not isinstance(clocked_time, datetime) or clocked_time.utcoffset() is None:
            raise InvalidSchedule(
                f"{clocked_time!r:.100} is not an instant: use a datetime with a time zone, such as "
                "datetime(2027, 1, 1, tzinfo=UTC)"
            )
        super().__init__(None)
        self.clocked_time = clocked_time

    def next(self, after: datetime) -> datetime | None:
        later = since_1970(self.clocked_time) > since_1970(after)
        return self.clocked_time.astimezone(self.zone(after)) if later else None

    def previous(self, before: datetime) -> datetime | None:
        earlier = since_1970(self.clocked_time) < since_1970(before)
        return self.clocked_time.astimezone(self.zone(before)) if earlier else None

    def words(self) -> str:
        return f"once, at {self.clocked_time:%Y-%m-%d %H:%M:%S%z}"

    def _identity(self) -> tuple[Any, ...]:
        return (self.clocked_time,)

    def __repr__(self) -> str:
        return f"<clocked: {self.clocked_time.isoformat()}>"


def _at(make: Callable[[], datetime]) -> datetime | None:
    try:
        return make()
    except OverflowError:  # after the year 9999
        return None
