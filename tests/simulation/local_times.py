"""local_times: when crontabs and rules are due in a time zone, in plain Python from the documentation.

Comes from:  ``due_times`` and ``django_checks``, with an entry's schedule.
Goes to:     the same, with due times.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

Instants = list[float]

_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def _field(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        numbers, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if numbers == "*" else numbers).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def crontab_dues(text: str, zone: str, low: float, high: float) -> Instants:
    """Return the due times of the crontab *text* (no names, at most one day field) in (*low*, *high*]."""
    parts = text.split()
    fields = [_field(part, *ends) for part, ends in zip(parts, _FIELDS, strict=True)]
    weekdays = {day % 7 for day in fields[4]}

    def matches(wall: datetime) -> bool:
        values = (wall.minute, wall.hour, wall.day, wall.month)
        return all(map(set.__contains__, fields, values)) and wall.isoweekday() % 7 in weekdays

    follows = parts[0].startswith("*") or parts[1].startswith("*")
    return wall_dues(matches, (0,), follows, zone, low, high)


def wall_dues(
    matches: Callable[[datetime], bool],
    seconds: Sequence[int],
    follows: bool,
    zone: str,
    low: float,
    high: float,
) -> Instants:
    """Return the times in (*low*, *high*] at *seconds* of local minutes in *zone* that *matches* accepts.
    follows: use each local time as it occurs; else a skipped time is due when the clock continues, and a
    repeated time only once."""
    tz = ZoneInfo(zone)
    found: set[float] = set()
    shown: set[datetime] = set()
    last: datetime | None = None
    for instant in range(int(low // 60) * 60 - 3 * 3600, int(high) + 60, 60):
        wall = datetime.fromtimestamp(instant, UTC).astimezone(tz).replace(tzinfo=None)
        if follows:
            if matches(wall):
                found |= {float(instant + second) for second in seconds}
            continue
        passed = wall if last is None else min(wall, last + timedelta(minutes=1))
        while passed <= wall:
            if matches(passed) and passed not in shown:
                found |= {float(instant + second * (passed == wall)) for second in seconds}
            shown.add(passed)
            passed += timedelta(minutes=1)
        last = wall
    return sorted(each for each in found if low < each <= high)
