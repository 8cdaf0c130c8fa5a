"""crontab: schedules in the notation of cron and Celery.

Comes from:  code and settings; as text from the store and the command line.
Goes to:     ``fields`` and ``wall_clock``.
Thread:      any; a crontab is immutable.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from sys import intern
from typing import Any

from qworker.beat import words
from qworker.beat.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH_OF_YEAR,
    FieldValue,
    in_order,
    read,
    starts_with_star,
)
from qworker.beat.schedule import Schedule
from qworker.beat.wall_clock import DAY, FARTHEST, SECOND, instant_of, is_plain, is_steady, shown
from qworker.beat.wall_clock import MINUTE as ONE_MINUTE
from qworker.errors import InvalidSchedule

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LONGEST_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MINUTES_NEAR_A_MOVE = 2 * 24 * 60 + 4 * 60
LAST_DAY = date(9999, 12, 30)
FIRST_DAY = date(1, 1, 2)
"""Near the limits of datetime, time zones cannot be computed."""
_IN_TEXT = tuple(field.name for field in (MINUTE, HOUR, DAY_OF_MONTH, MONTH_OF_YEAR, DAY_OF_WEEK))
MOST_REMEMBERED = 100
_LATELY: dict[tuple[Any, ...], datetime | None] = {}
"""Recent results. No lock: each access is a single operation of the dict."""


class crontab(Schedule):
    """The minutes whose fields match, such as ``crontab(minute=0, hour="*/3")``.

    - minute, hour, day_of_week, day_of_month, month_of_year: a number, text such as ``"*/15"``, ``"mon-fri"``
      or ``"1,15"``, or a list of these. Sunday is 0 or 7. The positional order is Celery's, not that of
      cron's text.
    - tz: the time zone of the fields; None: that of the argument of next(), which is the setting ``timezone``
      for entries.
    - either (bool): if both day fields are restricted, one match is enough, as in cron; otherwise both must
      match, as in Celery.

    Daylight saving is handled as in cron. If the minute or hour starts with ``*``, the crontab follows the
    local clock: repeated times count twice, skipped times not at all. Other times count once a day: at their
    first occurrence, or at the end of the gap if they are skipped.

    Raises InvalidSchedule for invalid fields and for impossible dates, such as 30 February.
    """

    __module__ = "qworker.beat"

    def __init__(
        self,
        minute: FieldValue = "*",
        hour: FieldValue = "*",
        day_of_week: FieldValue = "*",
        day_of_month: FieldValue = "*",
        month_of_year: FieldValue = "*",
        *,
        tz: tzinfo | str | None = None,
        either: bool = False,
    ) -> None:
        super().__init__(tz)
        self.minute, self.hour = read(MINUTE, minute), read(HOUR, hour)
        self.day_of_month, self.month_of_year = (
            read(DAY_OF_MONTH, day_of_month),
            read(MONTH_OF_YEAR, month_of_year),
        )
        self.day_of_week = read(DAY_OF_WEEK, day_of_week)
        self.either = either and not starts_with_star(day_of_month) and not starts_with_star(day_of_week)
        # Thousands of entries share a few texts.
        self._given = tuple(
            intern(
                ",".join(map(str, value)) if not isinstance(value, str | int) else str(value).strip().lower()
            )
            for value in (minute, hour, day_of_month, month_of_year, day_of_week)
        )
        self._follows = (
            starts_with_star(minute)
            or starts_with_star(hour)
            or len(self.minute) == 60
            or len(self.hour) == 24
        )
        self._minutes, self._hours = in_order(self.minute), in_order(self.hour)
        longest = max(map(LONGEST_MONTH.__getitem__, self.month_of_year))
        if not self.either and in_order(self.day_of_month)[0] > longest:
            raise InvalidSchedule(f"crontab {self.text!r} never matches: none of its months has such a day")

    @classmethod
    def from_text(cls, text: str, tz: tzinfo | str | None = None) -> crontab:
        """Read ``"0 4 * * mon-fri"`` or ``"@daily"`` like cron: one matching day field is enough."""
        if not isinstance(text, str):
            raise InvalidSchedule(f"a crontab is a string such as '0 4 * * mon-fri', not {text!r:.200}")
        fields = SHORTHANDS.get(text.strip().lower(), text).split()
        if len(fields) != 5:
            raise InvalidSchedule(
                f"{text!r:.200} is not a crontab: use five fields (minute, hour, day of the month, month, "
                f"day of the week), such as '0 4 * * mon-fri', or one of {', '.join(SHORTHANDS)}"
            )
        return _again(tuple(fields), tz, True, cls)

    @classmethod
    def from_string(cls, crontab: str, tz: tzinfo | str | None = None) -> crontab:
        """Read five fields like Celery: both day fields must match."""
        found = cls.from_text(crontab, tz)
        return _again(found._given, tz, False, cls)

    @property
    def text(self) -> str:
        """The five fields as they were written."""
        return " ".join(self._given)

    # -- when --

    def next(self, after: datetime) -> datetime | None:
        return self._found(after, self._next_following if self._follows else self._next_of_the_day)

    def previous(self, before: datetime) -> datetime | None:
        return self._found(before, self._previous_following if self._follows else self._previous_of_the_day)

    def _found(self, asked: datetime, find: Callable[[datetime, tzinfo], datetime | None]) -> datetime | None:
        """Return *find* applied to *asked*; None at the limits of the calendar. Cached, because many entries
        have the same crontab."""
        zone = self.zone(asked)
        try:
            instant = asked.astimezone(UTC)
            key = (self._given, self.either, zone, instant, find.__name__)
            known = _LATELY.get(key)
            if known is not None:
                return known
            found = find(instant, zone)
            found = None if found is None else found.astimezone(zone)
            if len(_LATELY) >= MOST_REMEMBERED:
                _LATELY.clear()
            _LATELY[key] = found
            return found
        except OverflowError:  # at a limit of the calendar
            return None

    def _next_of_the_day(self, after: datetime, zone: tzinfo) -> datetime | None:
        for wall in self._walls_from(shown(after, zone)):
            if (found := instant_of(wall, zone)) > after:
                return found
        return None

    def _previous_of_the_day(self, before: datetime, zone: tzinfo) -> datetime | None:
        latest = shown(before, zone)
        if not is_steady(before - FARTHEST, before, zone):
            latest += FARTHEST  # the clock was set back: a later local time may be earlier
        for wall in self._walls_until(latest):
            if (found := instant_of(wall, zone)) < before:
                return found
        return None

    def _next_following(self, after: datetime, zone: tzinfo) -> datetime | None:
        while True:
            if is_steady(after, after + FARTHEST, zone):
                wall = next(self._walls_from(shown(after, zone) + timedelta(microseconds=1)), None)
                if wall is None:
                    return None
                if is_plain(wall, zone):
                    return wall.replace(tzinfo=zone).astimezone(UTC)
                # Near a clock change: go minute by minute.
                after = max(after, wall.replace(tzinfo=zone).astimezone(UTC) - DAY)
            instant = after.replace(microsecond=0)
            for _ in range(MINUTES_NEAR_A_MOVE):
                instant += timedelta(seconds=60 - shown(instant, zone).second)
                if self._matches(shown(instant, zone)):
                    return instant
            after = instant

    def _previous_following(self, before: datetime, zone: tzinfo) -> datetime | None:
        while True:
            if is_steady(before - FARTHEST, before, zone):
                wall = next(self._walls_until(shown(before, zone) - timedelta(microseconds=1)), None)
                if wall is None:
                    return None
                if is_plain(wall, zone):
                    return wall.replace(tzinfo=zone).astimezone(UTC)
                before = min(before, wall.replace(tzinfo=zone, fold=1).astimezone(UTC) + DAY)
            instant = before if not before.microsecond else before.replace(microsecond=0) + SECOND
            for _ in range(MINUTES_NEAR_A_MOVE):
                instant -= timedelta(seconds=shown(instant, zone).second or 60)
                if self._matches(shown(instant, zone)):
                    return instant
            before = instant

    # -- local times --

    def _matches(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minute
            and wall.hour in self.hour
            and wall.day in self._days(wall.year, wall.month)
            and wall.second == 0
        )

    def _walls_from(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times from *wall* (naive) on."""
        if wall.second or wall.microsecond:
            wall = wall.replace(second=0, microsecond=0) + ONE_MINUTE
        today = wall.date()
        for day in self._days_from(today):
            for hour in self._hours:
                if day == today and hour < wall.hour:
                    continue
                is_first = day == today and hour == wall.hour
                for minute in self._minutes[bisect_left(self._minutes, wall.minute) if is_first else 0 :]:
                    yield datetime(day.year, day.month, day.day, hour, minute)

    def _walls_until(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times from *wall* (naive) backwards."""
        today = wall.date()
        for day in self._days_until(today):
            for hour in reversed(self._hours):
                if day == today and hour > wall.hour:
                    continue
                is_last = day == today and hour == wall.hour
                minutes = self._minutes[: bisect_right(self._minutes, wall.minute) if is_last else None]
                for minute in reversed(minutes):
                    yield datetime(day.year, day.month, day.day, hour, minute)

    def _days_from(self, day: date) -> Iterator[date]:
        year, month = day.year, day.month
        while (year, month) <= (LAST_DAY.year, LAST_DAY.month):
            if month in self.month_of_year:
                for number in self._days(year, month):
                    if FIRST_DAY <= (found := date(year, month, number)) <= LAST_DAY and found >= day:
                        yield found
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def _days_until(self, day: date) -> Iterator[date]:
        year, month = day.year, day.month
        while (year, month) >= (FIRST_DAY.year, FIRST_DAY.month):
            for number in reversed(self._days(year, month)):
                if FIRST_DAY <= (found := date(year, month, number)) <= day:
                    yield found
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        """Return the matching days of a month."""
        if month not in self.month_of_year:
            return ()
        return _days_of(year, month, self.day_of_month, self.day_of_week, self.either)

    # -- descriptions --

    def words(self) -> str:
        return words.of_crontab(self._given, self.either)

    def _identity(self) -> tuple[Any, ...]:
        return (self.minute, self.hour, self.day_of_month, self.month_of_year, self.day_of_week, self.either)

    def __repr__(self) -> str:
        return f"<crontab: {self.text} (m/h/dM/MY/d)>"

    def __reduce__(self) -> Any:
        return _again, (self._given, self.tz, self.either)


def _again(
    given: Sequence[str], tz: tzinfo | str | None, either: bool, kind: type[crontab] = crontab
) -> crontab:
    """Return the crontab of five fields in cron's order, which differs from that of crontab()."""
    return kind(**dict(zip(_IN_TEXT, given, strict=True)), tz=tz, either=either)


@lru_cache(4096)
def _days_of(
    year: int, month: int, of_month: frozenset[int], of_week: frozenset[int], either: bool
) -> tuple[int, ...]:
    first, count = calendar.monthrange(year, month)  # Monday is 0
    found = []
    for day in range(1, count + 1):
        on_week = (first + day) % 7 in of_week  # Sunday is 0
        if (on_week or day in of_month) if either else (on_week and day in of_month):
            found.append(day)
    return tuple(found)
