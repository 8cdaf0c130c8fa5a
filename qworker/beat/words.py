"""Words: schedules as readable sentences.

Comes from:  ``words()`` of each kind of schedule.
Goes to:     ``qworker beat list``, previews, pages.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from qworker.beat.fields import DAY_OF_WEEK, HOUR, MINUTE, MONTH_OF_YEAR, Field, read

MOST_TIMES = 6
"""Maximum times of the day that are listed one by one."""


def of_crontab(given: tuple[str, ...], either: bool) -> str:
    """Describe a crontab. given: the five fields. either: one matching day field is enough."""
    minute, hour, day_of_month, month, day_of_week = given
    days = []
    if day_of_month != "*":
        days.append(_days_of_the_month(day_of_month))
    if day_of_week != "*":
        days.append(f"on {_joined(_names(DAY_OF_WEEK, day_of_week))}")
    when = (" or " if either else " and ").join(days)
    if len(days) == 2 and not either:
        when = f"{days[0]} if that is {days[1]}"
    parts = [_time(minute, hour), when or ("every day" if "*" not in hour else "")]
    if month != "*":
        parts.append(f"in {_joined(_names(MONTH_OF_YEAR, month))}")
    return " ".join(part for part in parts if part)


def of_interval(every: timedelta) -> str:
    """Return text such as "every 90 seconds" or "every day"."""
    seconds = every.total_seconds()
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % length == 0:
            return _every(int(seconds // length), unit)
    return _every(seconds, "second")


def ordinal(number: int) -> str:
    """Return text such as "1st" or "12th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _every(count: float, unit: str) -> str:
    return f"every {unit}" if count == 1 else f"every {count:g} {unit}s"


def _time(minute: str, hour: str) -> str:
    minutes, hours = sorted(read(MINUTE, minute)), sorted(read(HOUR, hour))
    step, hour_step = _step(minute), _step(hour)
    if hour_step == 1:
        if step is not None:
            return _every(step, "minute")
        if minutes == [0]:
            return "every hour"
        return f"every hour at minute {_joined(map(str, minutes))}"
    if hour_step is not None:
        if minutes == [0]:
            return _every(hour_step, "hour")
        return f"{_in_the_hour(minute, minutes)} of every {ordinal(hour_step)} hour"
    if len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {_joined(f'{h:02}:{m:02}' for h in hours for m in minutes)}"
    return f"{_in_the_hour(minute, minutes)} of the hours {_joined(map(str, hours))}"


def _in_the_hour(minute: str, minutes: list[int]) -> str:
    step = _step(minute)
    return f"at minute {_joined(map(str, minutes))}" if step is None else _every(step, "minute")


def _step(field: str) -> int | None:
    """Return 2 for ``*/2``, 1 for ``*``; None without a star."""
    if not field.startswith("*") or "," in field:
        return None
    return int(field.partition("/")[2] or 1)


def _days_of_the_month(field: str) -> str:
    step = _step(field)
    if step is not None:
        return f"every {ordinal(step)} day of the month"
    numbers = sorted(read(Field("day_of_month", 1, 31), field))
    return f"on the {_joined(map(ordinal, numbers))}"


def _names(field: Field, value: str) -> list[str]:
    return [field.names[number - field.lowest].capitalize() for number in sorted(read(field, value))]


def _joined(parts: Iterable[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
