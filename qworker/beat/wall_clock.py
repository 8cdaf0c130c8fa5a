"""Wall clocks: convert local times to instants, with daylight saving.

Comes from:  schedules with times of the day.
Goes to:     ``zoneinfo``, or another implementation of the time zone.
Thread:      any; everything is immutable.

A local time that occurs twice, because the clock is set back, means its first occurrence. A local time that
is skipped, because the clock is set forward, means the first instant after the gap.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
FARTHEST = timedelta(hours=26)
"""The largest change of a clock: a day, where the date line was crossed."""


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant, in UTC, at which a clock in *zone* shows *wall* (naive) or later. It never
    decreases when *wall* increases."""
    if zone is UTC:
        return wall.replace(tzinfo=UTC, fold=0)
    early, late = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    first = early.astimezone(UTC)
    if early.utcoffset() == late.utcoffset() or shown(first, zone) == wall:
        return first
    # In a gap. Its end is between the results for the offsets before and after it.
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
    """Return the first local time (naive, in full seconds) whose instant_of() is not before *instant*."""
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
    """Return the local time in *zone* at *instant*, naive."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def is_steady(start: datetime, end: datetime, zone: tzinfo) -> bool:
    """Return whether the clock in *zone* is not changed between two instants that are close together."""
    return start.astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset()


def is_plain(wall: datetime, zone: tzinfo) -> bool:
    """Return whether *wall* (naive) occurs exactly once."""
    early, late = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    return early.utcoffset() == late.utcoffset()
