"""Schedule: the interface that tells when something is due.

Comes from:  users; any object with these methods is a schedule.
Goes to:     ``entry.py``, which asks for due times.
Thread:      any; a schedule is immutable.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from qworker.errors import InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule:
    """When something is due. Subclasses implement next(), previous() and words().

    tz: the time zone for local times, or its name; None: that of the arguments.
    """

    def __init__(self, tz: tzinfo | str | None = None) -> None:
        self.tz = zone_of(tz)

    def next(self, after: datetime) -> datetime | None:
        """Return the first due instant after *after* (aware); None when there is none."""
        raise NotImplementedError

    def previous(self, before: datetime) -> datetime | None:
        """Return the last due instant before *before* (aware); None when there is none."""
        raise NotImplementedError

    def words(self) -> str:
        """Describe in words when it is due, such as "every day at 04:00"."""
        return repr(self)

    def zone(self, instant: datetime) -> tzinfo:
        """Return the time zone for *instant*. Raises ValueError when it is naive."""
        aware(instant)
        return self.tz or instant.tzinfo or UTC

    def _identity(self) -> tuple[Any, ...]:
        """Return what makes two schedules of one class equal."""
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
        raise ValueError(f"{instant!r} has no time zone: give it one, like datetime.now(UTC)")
    return instant


def since_1970(instant: datetime) -> timedelta:
    """Return *instant* (aware) in a comparable form. Python compares datetimes of the same time zone by local
    time, which is wrong in an hour that occurs twice."""
    return instant - EPOCH


def zone_of(value: tzinfo | str | None) -> tzinfo | None:
    """Return the time zone given by *value*, itself or its name. Raises InvalidSchedule for an unknown
    name."""
    if value is None or isinstance(value, tzinfo):
        return value
    try:
        return ZoneInfo(value)
    except Exception as error:
        raise InvalidSchedule(
            f"{value!r:.100} is not a time zone: use a name such as 'Europe/Berlin'; if the system has no "
            "time zones, install tzdata"
        ) from error


def name_of(zone: tzinfo | None) -> str | None:
    """Return the name of *zone* for zone_of(). Raises InvalidSchedule when it has none."""
    if zone is None or zone is UTC:
        return zone and "UTC"
    key = getattr(zone, "key", None)
    if isinstance(key, str):
        return key
    raise InvalidSchedule(f"{zone!r:.100} has no name: use zoneinfo.ZoneInfo, or the name itself")
