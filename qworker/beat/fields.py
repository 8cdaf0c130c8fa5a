"""The fields of a crontab: convert text, numbers or names to matching numbers.

Comes from:  ``crontab.py``; fields in the notation of Celery and cron.
Goes to:     ``crontab.py``; ``read()`` returns a set.
Thread:      any; everything is immutable.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from qworker.errors import InvalidSchedule

FieldValue: TypeAlias = str | int | Iterable[str | int]
"""The forms of a field: ``"*/15"``, ``7``, ``"mon-fri"``, ``[0, "30"]``."""


class Field(NamedTuple):
    """names: words for the numbers, starting at the lowest; three letters are enough. alias: another number
    for the lowest."""

    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()
    alias: int | None = None


WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY_OF_MONTH = Field("day_of_month", 1, 31)
MONTH_OF_YEAR = Field("month_of_year", 1, 12, MONTHS)
DAY_OF_WEEK = Field("day_of_week", 0, 6, WEEKDAYS, alias=7)

MOST = 1000
"""Maximum characters of a field, or parts of a list."""
_PART = re.compile(
    r"(?P<first>\*|[0-9]{1,4}|[a-z]+)(?:-(?P<last>[0-9]{1,4}|[a-z]+))?(?:/(?P<step>[0-9]{1,4}))?"
)


def read(field: Field, value: FieldValue) -> frozenset[int]:
    """Return the numbers that match *value*. Raises InvalidSchedule, which lists valid forms."""
    if isinstance(value, str):
        return _read_text(field, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _read_text(field, str(value))
    found: set[int] = set()
    try:
        for count, each in enumerate(iter(value)):  # type: ignore[arg-type]
            if count > MOST or not isinstance(each, str | int):
                raise _wrong(field, value)
            found |= read(field, each)
    except TypeError:
        raise _wrong(field, value) from None
    if not found:
        raise _wrong(field, value)
    return frozenset(found)


@lru_cache(1000)  # thousands of entries share a few sets
def _read_text(field: Field, value: str) -> frozenset[int]:
    if len(value) > MOST:
        raise _wrong(field, value)
    parts = (_read_part(field, part.strip().lower(), value) for part in value.split(","))
    return frozenset().union(*parts)


@lru_cache(1000)
def in_order(numbers: frozenset[int]) -> tuple[int, ...]:
    """Return *numbers* sorted."""
    return tuple(sorted(numbers))


def starts_with_star(value: FieldValue) -> bool:
    """Return whether *value* starts with ``*``, and so describes an interval rather than a time."""
    return isinstance(value, str) and value.strip().startswith("*")


def _read_part(field: Field, part: str, value: object) -> frozenset[int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise _wrong(field, value)
    first, last, step = found["first"], found["last"], int(found["step"] or 1)
    if step == 0 or (first == "*" and last) or (found["step"] and first != "*" and not last):
        raise _wrong(field, value)
    every = range(field.lowest, field.highest + 1)
    if first == "*":
        return frozenset(every[::step])
    start = _number(field, first, value)
    if last is None:
        return frozenset({start})
    end = _number(field, last, value, is_end=True)
    if start <= end:
        numbers = [*range(start, end + 1)]
    else:  # such as "fri-mon"
        numbers = [*range(start, field.highest + 1), *range(field.lowest, end + 1)]
    return frozenset(field.lowest if number == field.alias else number for number in numbers[::step])


def _number(field: Field, text: str, value: object, is_end: bool = False) -> int:
    """Return the number for *text*, a number or name. is_end: keep the alias, so that "5-7" works."""
    if text.isdecimal():
        number = int(text)
        if number == field.alias:
            return number if is_end else field.lowest
        if field.lowest <= number <= field.highest:
            return number
    elif len(text) >= 3:
        for place, name in enumerate(field.names):
            if name.startswith(text):
                return field.lowest + place
    raise _wrong(field, value)


def _wrong(field: Field, value: object) -> InvalidSchedule:
    names = f" or names as {field.names[1][:3]!r}," if field.names else ""
    lowest, highest = field.lowest, field.highest
    return InvalidSchedule(
        f"{field.name}={value!r:.200} is not valid: use numbers from {lowest} to {highest},{names} ranges as "
        f"'{lowest}-{highest}', steps as '*/2' or '{lowest}-{highest}/2', and lists of these with commas"
    )
