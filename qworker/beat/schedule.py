"""Schedule: what says when something is due.

Comes from:  people; any object with these methods is one.
Goes to:     ``entry.py``, which asks it when its task is due next.
Thread:      any; a schedule does not change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from qworker.errors import InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule:
    """When something is due. Subclasses say next(), previous() and words().

    tz: the time zone whose clocks count, or its name; None: that of the instants that are asked with.
    """

    def __init__(self, tz: tzinfo | str | None = None) -> None:
        self.tz = zone_of(tz)

    def next(self, after: datetime) -> datetime | None:
        """Return the first instant later than *after* (aware) at which it is due; None when there is none."""
        raise NotImplementedError

    def previous(self, before: datetime) -> datetime | None:
        """Return the last instant earlier than *before* (aware) at which it is due; None when there is
        none."""
        raise NotImplementedError

    def words(self) -> str:
        """Say in words when it is due, as "every day at 04:00"."""
        return repr(self)

    def zone(self, instant: datetime) -> tzinfo:
        """The time zone that counts for *instant*. Raises ValueError when it is naive."""
        aware(instant)
        return self.tz or instant.tzinfo or UTC

    def _identity(self) -> tuple[Any, ...]:
        """What makes two schedules of one class the same."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Schedule)
        return self._identity() == other._identity() and name_of(self.tz) == name_of(other.tz)

    def __hash__(self) -> int:
        return hash(self._identity())


def aware(instant: datetime) -> datetime:
    """Return *instant*; raises ValueError when it has no time zone."""
    if instant.utcoffset() is None:
        raise ValueError(f"{instant!r} has no time zone: give it one, as datetime.now(UTC) has")
    return instant


def since_1970(instant: datetime) -> timedelta:
    """Return when *instant* (aware) is, to be compared: of two in the same time zone Python compares what its
    clock shows, which is another order in an hour that comes twice."""
    return instant - EPOCH


def zone_of(value: tzinfo | str | None) -> tzinfo | None:
    """Return the time zone that *value* is or names. Raises InvalidSchedule for a name that nobody knows."""
    if value is None or isinstance(value, tzinfo):
        return value
    try:
        return ZoneInfo(value)
    except Exception as error:
        raise InvalidSchedule(
            f"{value!r:.100} is not a time zone: it takes names as 'Europe/Berlin'; where the system has no "
            "time zones, install tzdata"
        ) from error


def name_of(zone: tzinfo | None) -> str | None:
    """Return the name by which zone_of() finds *zone*. Raises InvalidSchedule when it has none."""
    if zone is None or zone is UTC:
        return zone and "UTC"
    key = getattr(zone, "key", None)
    if isinstance(key, str):
        return key
    raise InvalidSchedule(f"{zone!r:.100} has no name: use zoneinfo.ZoneInfo, or the name itself")
