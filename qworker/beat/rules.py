"""rrule: calendar rules in the notation of RFC 5545.

Comes from:  code and settings; as text from the store and the command line.
Goes to:     dateutil, which computes with local times; ``wall_clock`` converts them to instants.
Thread:      any; a rule is immutable.

For each query, dateutil counts from the start of a rule, up to the year 9999 if nothing matches. So a rule is
queried from a start near the requested time, and the horizon limits its steps. A rule may lose its last times
that way, but it does not block the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from math import gcd
from typing import Any

from qworker.beat.schedule import Schedule, aware
from qworker.beat.wall_clock import instant_of, wall_before
from qworker.errors import InvalidSchedule

YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
"""dateutil's numbers for frequencies. dateutil itself is imported by the first rule."""
MICROSECOND = timedelta(microseconds=1)
MOST_CHARACTERS = 4000
MOST_RULES = 4
"""Maximum rules in one text: it may take a third of a second to find out that a rule never matches."""
MOST_COUNTED = 10_000
"""Maximum COUNT of a rule, because all times from its start must be examined."""
MOST_TIMES = 50_000
"""Maximum times in one year, month, week, day or hour (the rule's frequency); all may be examined."""
MOST_POSITIONS = 60
"""Maximum values of BYSETPOS: dateutil makes a list for each at each step."""
STEPS = {
    YEARLY: timedelta(days=365),
    MONTHLY: timedelta(days=28),
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}
"""Minimum duration of a step for INTERVAL=1."""
SETS = {YEARLY: "year", MONTHLY: "month", WEEKLY: "week", DAILY: "day", HOURLY: "hour"}
"""The set that BYSETPOS chooses from."""
HORIZONS = {
    HOURLY: timedelta(days=5 * 366),
    MINUTELY: timedelta(days=1),
    SECONDLY: timedelta(days=1),
}
FAR = timedelta(days=60 * 366)
CALENDAR = datetime.max - datetime.min
FINE = (MINUTELY, SECONDLY)


class rrule(Schedule):
    """A rule of RFC 5545: ``rrule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0", start=...)``.

    - rule (text): one RRULE; or several lines, with DTSTART, RDATE, EXDATE and up to four RRULEs.
    - start (datetime): its DTSTART, if the text has none. None: midnight of 1 January 2020. Naive: a local
      time.
    - tz: the time zone of local times; None: that of DTSTART, or else of the argument of next().

    A time skipped by daylight saving comes at the end of the gap; a repeated one counts once. Raises
    InvalidSchedule for an invalid rule, and for one without a time within its horizon: 60 years (5 for
    FREQ=HOURLY), or two intervals if these are longer.
    """

    __module__ = "qworker.beat"

    def __init__(self, rule: str, start: datetime | None = None, *, tz: tzinfo | str | None = None) -> None:
        super().__init__(tz)
        if not isinstance(rule, str):
            rule = str(rule)
        if len(rule) > MOST_CHARACTERS:
            raise InvalidSchedule(
                f"a rule of {len(rule):,} characters is too long: {MOST_CHARACTERS:,} at most"
            )
        self.text = rule.strip()
        self.start = start or datetime(2020, 1, 1)
        from dateutil.rrule import rrulestr

        try:
            found: Any = rrulestr(self.text, dtstart=self.start, forceset=True)
        except Exception as error:
            why = error if "=" in self.text else "it contains no NAME=VALUE"
            raise InvalidSchedule(
                f"{rule!r:.200} is not an RFC 5545 rule, such as 'FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9': {why}"
            ) from error
        if len(found._rrule) > MOST_RULES:
            raise InvalidSchedule(
                f"{len(found._rrule)} rules are too many for one schedule: {MOST_RULES} at most"
            )
        self._rules = [_Rule(each) for each in found._rrule]
        self._except = frozenset(map(_naive, found._exdate))
        self._dates = sorted({_naive(each) for each in found._rdate} - self._except)
        if found._exrule:
            raise InvalidSchedule("EXRULE is not supported, because RFC 5545 deprecates it: use EXDATE")
        self._home = next((each.start.tzinfo for each in self._rules if each.start.tzinfo), None)
        if self._first(datetime.min) is None:
            raise InvalidSchedule(
                f"the rule {rule!r:.200} never matches: no time in the 60 years from its start (5 for "
                "FREQ=HOURLY) satisfies all of its parts"
            )

    def zone(self, instant: datetime) -> tzinfo:
        aware(instant)
        return self.tz or self._home or instant.tzinfo or UTC

    def next(self, after: datetime) -> datetime | None:
        zone = self.zone(after)
        # In UTC: adding to an ambiguous local time would return its first occurrence.
        wall = self._first(wall_before(after.astimezone(UTC) + MICROSECOND, zone) - MICROSECOND)
        return None if wall is None else self._instant(wall, zone, after)

    def previous(self, before: datetime) -> datetime | None:
        zone = self.zone(before)
        wall = self._last(wall_before(before, zone))
        return None if wall is None else self._instant(wall, zone, before)

    def _instant(self, wall: datetime, zone: tzinfo, asked: datetime) -> datetime:
        return instant_of(wall, zone).astimezone(asked.tzinfo if self.tz is None else zone)

    def _first(self, after: datetime) -> datetime | None:
        """Return the first local time after *after* (naive)."""
        times = [each.first(after, self._except) for each in self._rules]
        times += [each for each in self._dates if each > after]
        return min((each for each in times if each is not None), default=None)

    def _last(self, before: datetime) -> datetime | None:
        times = [each.last(before, self._except) for each in self._rules]
        times += [each for each in self._dates if each < before]
        return max((each for each in times if each is not None), default=None)

    def words(self) -> str:
        return f"by the rule {self.text}".replace("\n", " ")

    def _identity(self) -> tuple[Any, ...]:
        return (self.text, self.start)

    def __repr__(self) -> str:
        return f"<rrule: {self.text!r:.200}>"

    def __reduce__(self) -> Any:
        return _again, (self.text, self.start, self.tz)


class _Rule:
    """One rule, in naive local times."""

    def __init__(self, rule: Any) -> None:
        self.start: datetime = rule._dtstart
        self._frequency, self._interval = rule._freq, rule._interval
        _check(rule)
        until = rule._until and (
            rule._until.astimezone(self.start.tzinfo) if self.start.tzinfo else rule._until
        )
        self._rule = rule.replace(dtstart=_naive(self.start), until=until and _naive(until), count=None)
        self._step: timedelta = STEPS[self._frequency] * self._interval
        self._horizon = max(HORIZONS.get(self._frequency, FAR), 2 * self._step)
        self._counted: list[datetime] | None = None
        if rule._count is not None:
            if self._frequency in FINE:  # one time per step
                self._horizon = max(self._horizon, rule._count * self._step)
            begin = _naive(self.start)
            self._counted = list(islice(self._walk(begin, _plus(begin, self._horizon)), rule._count))

    def _walk(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the rule's times, from shortly before *begin* to *end*."""
        start = self._beginning(begin)
        until = min(end, self._rule._until) if self._rule._until else end
        rule = self._rule.replace(dtstart=start, until=until)
        # Three more: the first and the last step may be incomplete, and a week may begin before the rule.
        rule._interval = _Interval(self._interval, max(0, (until - start) // self._step) + 3)
        try:
            yield from rule
        except (_Ended, ValueError):  # dateutil raises ValueError for the days after the year 9999
            return

    def _beginning(self, begin: datetime) -> datetime:
        """Return an equivalent start of the rule for times from *begin* on."""
        start: datetime = self._rule._dtstart
        if begin <= start:
            return start
        if self._frequency not in (YEARLY, MONTHLY):
            # Two steps earlier, because a rule includes the whole week of its start.
            return start + max(0, (begin - start) // self._step - 2) * self._step
        years = self._interval // (gcd(self._interval, 12) if self._frequency == MONTHLY else 1)
        for turns in range((begin.year - start.year) // years - 1, 0, -1):
            try:
                moved: datetime = start.replace(year=start.year + turns * years)
            except ValueError:  # 29 February
                continue
            return moved
        return start

    def first(self, after: datetime, excepted: Collection[datetime]) -> datetime | None:
        end = _plus(max(after, self._rule._dtstart), self._horizon)
        times = self._walk(after, end) if self._counted is None else self._counted
        return next((each for each in times if each > after and each not in excepted), None)

    def last(self, before: datetime, excepted: Collection[datetime]) -> datetime | None:
        width = max(self._step, timedelta(minutes=5))
        while True:
            begin = max(self._rule._dtstart, _plus(before, -width))
            times = self._walk(begin, before) if self._counted is None else self._counted
            found = None
            for each in times:
                if each >= before:
                    break
                if each not in excepted:
                    found = each
            if found is not None or begin == self._rule._dtstart or width > self._horizon:
                return found
            width *= 8


class _Ended(Exception):
    """A walk has reached its end."""


class _Interval(int):
    """An INTERVAL that ends a walk after *steps* additions. dateutil adds it at each step (for weeks, seven
    times it), but only checks the end of the rule when it has found a time."""

    _left: int

    def __new__(cls, value: int, steps: int) -> _Interval:
        made = super().__new__(cls, value)
        made._left = steps
        return made

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Ended

    def __radd__(self, other: int) -> int:
        self._count()
        return other + int(self)

    def __mul__(self, other: int) -> int:
        self._count()
        return int(self) * other


def _check(rule: Any) -> None:
    """Raise InvalidSchedule for a rule that is impossible or too expensive."""
    if rule._interval < 1:
        raise InvalidSchedule(f"INTERVAL={rule._interval} is not valid: use a number of 1 or more")
    if rule._interval > CALENDAR // STEPS[rule._freq]:
        raise InvalidSchedule(f"INTERVAL={rule._interval:,} is too large: the calendar ends in the year 9999")
    if rule._count is not None and rule._count > MOST_COUNTED:
        raise InvalidSchedule(f"COUNT={rule._count:,} is too large: {MOST_COUNTED:,} at most")
    given = rule._original_rule
    if rule._freq in FINE:
        if any(value for name, value in given.items() if name.startswith("by")):
            raise InvalidSchedule(
                "BY… is not supported with FREQ=MINUTELY or SECONDLY: use FREQ=DAILY;BYHOUR=…;BYMINUTE=…"
            )
        return
    if rule._byweekday and rule._bynweekday:  # dateutil only finds days that match both
        raise InvalidSchedule(
            "BYDAY takes days with a number, such as 1TU, or without one, such as MO, but not both: write "
            "two rules, each on its own line and prefixed with RRULE:"
        )
    name, times = SETS[rule._freq], _days(rule) * len(rule._byminute) * len(rule._bysecond)
    if rule._freq != HOURLY:
        times *= len(rule._byhour)
    if times > MOST_TIMES:
        raise InvalidSchedule(
            f"{times:,} times in one {name} are too many for a rule: {MOST_TIMES:,} at most"
        )
    positions = rule._bysetpos or ()
    if len(positions) > MOST_POSITIONS:
        raise InvalidSchedule(f"{len(positions)} values of BYSETPOS are too many: {MOST_POSITIONS} at most")
    if positions and min(map(abs, positions)) > times:
        raise InvalidSchedule(
            f"BYSETPOS={','.join(map(str, positions))} never matches: it chooses from the times in one "
            f"{name}, of which this rule has {times:,} at most"
        )


def _days(rule: Any) -> int:
    """Return the maximum number of days in one step of *rule*."""
    if rule._freq >= DAILY:
        return 1
    if rule._freq == WEEKLY:
        return len(rule._byweekday or range(7))
    months = 1 if rule._freq == MONTHLY else len(rule._bymonth or range(12))
    return months * (len(rule._bymonthday) + len(rule._bynmonthday) or 31)


def _naive(instant: datetime) -> datetime:
    return instant.replace(tzinfo=None)


def _plus(instant: datetime, delta: timedelta) -> datetime:
    try:
        return instant + delta
    except OverflowError:
        return datetime.max if delta > timedelta(0) else datetime.min


def _again(text: str, start: datetime, tz: tzinfo | None) -> rrule:
    return rrule(text, start, tz=tz)
