"""Wall clocks: from the time that a clock on a wall shows to the instant, through daylight saving.

Comes from:  the schedules that speak of times of the day.
Goes to:     ``zoneinfo``, or whatever the time zone is.
Thread:      any; nothing here changes.

A wall-clock time comes twice when the clock is set back: the first time counts. It does not come when the
clock is set forward: the first instant after the gap stands for it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
FARTHEST = timedelta(hours=26)
"""How far a clock has ever been moved at once: a day, where the date line was crossed."""


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant, in UTC, at which a clock in *zone* shows *wall* (naive) or later.

    Later times of the clock have later instants, or the same one.
    """
    if zone is UTC:
        return wall.replace(tzinfo=UTC, fold=0)
    early, late = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    first = early.astimezone(UTC)
    if early.utcoffset() == late.utcoffset() or shown(first, zone) == wall:
        return first
    # In a gap: its end is between the two that the offsets before and after it lead to.
    before, after = late.astimezone(UTC), first
    while after - before > SECOND:
        middle = before + ((after - before) / 2 // SECOND) * SECOND
        if middle in (before, after):
            break
        if shown(middle, zone) < wall:
            before = middle
        else:
            after = middle
    return after


def wall_before(instant: datetime, zone: tzinfo) -> datetime:
    """Return the first full second on the wall (naive) whose instant, as instant_of() has it, is *instant* or
    later: a time on the wall is before it exactly when its instant is before *instant*."""
    wall = shown(instant, zone)
    early = wall.replace(microsecond=0)
    if is_steady(instant - FARTHEST, instant + FARTHEST, zone):
        return early if wall == early else early + SECOND
    early, late = early - FARTHEST, early + FARTHEST
    while late - early > SECOND:
        middle = early + ((late - early) / 2 // SECOND) * SECOND
        if instant_of(middle, zone) < instant:
            early = middle
        else:
            late = middle
    return late


def shown(instant: datetime, zone: tzinfo) -> datetime:
    """Return what a clock in *zone* shows at *instant*, naive."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def is_steady(start: datetime, end: datetime, zone: tzinfo) -> bool:
    """Tell whether the clock in *zone* is not moved between the instants, which are near to each other."""
    return start.astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset()


def is_plain(wall: datetime, zone: tzinfo) -> bool:
    """Tell whether *wall* (naive) comes exactly once."""
    early, late = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    return early.utcoffset() == late.utcoffset()
