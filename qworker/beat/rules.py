"""rrule: the rules of calendars, as RFC 5545 writes them.

Comes from:  people, in code and settings; as text from the store and the command line.
Goes to:     dateutil, which reckons with times on the wall; ``wall_clock`` makes instants of them.
Thread:      any; a rule does not change.

dateutil counts from the beginning of a rule at each question, and on to the year 9999 when nothing matches.
So a rule is asked from a beginning near to what is asked about, and no farther than its horizon.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any

from qworker.beat.schedule import Schedule, aware
from qworker.beat.wall_clock import FARTHEST, instant_of, wall_before
from qworker.errors import InvalidSchedule

YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
"""How dateutil numbers frequencies. It is loaded by the first rule: most programs have none."""
MICROSECOND = timedelta(microseconds=1)
MOST_CHARACTERS = 4000
MOST_RULES = 4
"""In one text. To find that a rule never comes takes up to a second."""
MOST_COUNTED = 10_000
"""Times of a rule with COUNT, which has to be gone through from its beginning."""
STEPS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}
"""By how much a rule's beginning can be moved without a change to what follows."""
HORIZONS = {
    HOURLY: timedelta(days=5 * 366),
    MINUTELY: timedelta(days=1),
    SECONDLY: timedelta(days=1),
}
FAR = timedelta(days=60 * 366)
FINE = (MINUTELY, SECONDLY)
BY_DAY = ("bymonth", "bymonthday", "byyearday", "byweekno", "byweekday", "byeaster")
"""What a rule may say of the days on which it comes."""
FILTERS = (
    *("_bymonth", "_bymonthday", "_bynmonthday", "_byyearday", "_byweekno", "_byweekday", "_bynweekday"),
    *("_byeaster", "_bysetpos"),
)


class rrule(Schedule):
    """A rule of RFC 5545: ``rrule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0", start=...)``.

    - rule (text): one RRULE; or several lines, with DTSTART, RDATE, EXDATE and up to four RRULEs.
    - start (datetime): its DTSTART, where the text has none. None: midnight of 1 January 2020. Naive: a time
      on the wall.
    - tz: the time zone whose clocks count; None: that of DTSTART, or else of the instant that next() is asked
      with.

    A time that is left out when the clock is set forward comes at the end of the gap; one that comes twice
    counts once. Raises InvalidSchedule for what is no rule, and for one that has no time within its horizon
    of 60 years (5 for FREQ=HOURLY).
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
            raise InvalidSchedule(
                f"{rule!r:.200} is no rule of RFC 5545, as 'FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9': {error}"
            ) from error
        if len(found._rrule) > MOST_RULES:
            raise InvalidSchedule(f"{len(found._rrule)} rules in one are too many: {MOST_RULES} at most")
        self._rules = [_Rule(each) for each in found._rrule]
        self._dates, self._except = list(found._rdate), list(found._exdate)
        if found._exrule:
            raise InvalidSchedule("EXRULE is not taken, as RFC 5545 has abolished it: use EXDATE")
        self._home = next((each.start.tzinfo for each in self._rules if each.start.tzinfo), None)
        first = self._rules[0].start if self._rules else self._dates[0] if self._dates else None
        if first is None or self.next(first.replace(tzinfo=first.tzinfo or UTC) - FARTHEST) is None:
            raise InvalidSchedule(f"the rule {rule!r:.200} never comes")

    def zone(self, instant: datetime) -> tzinfo:
        aware(instant)
        return self.tz or self._home or instant.tzinfo or UTC

    def next(self, after: datetime) -> datetime | None:
        zone = self.zone(after)
        wall = self._first(wall_before(after + MICROSECOND, zone) - MICROSECOND)
        return None if wall is None else self._told(wall, zone, after)

    def previous(self, before: datetime) -> datetime | None:
        zone = self.zone(before)
        wall = self._last(wall_before(before, zone))
        return None if wall is None else self._told(wall, zone, before)

    def _told(self, wall: datetime, zone: tzinfo, asked: datetime) -> datetime:
        return instant_of(wall, zone).astimezone(asked.tzinfo if self.tz is None else zone)

    def _first(self, after: datetime) -> datetime | None:
        """The first time on the wall after *after* (naive)."""
        while True:
            times = [each.first(after) for each in self._rules]
            times += [_naive(each) for each in self._dates if _naive(each) > after]
            found = min((each for each in times if each is not None), default=None)
            if found is None or found not in map(_naive, self._except):
                return found
            after = found

    def _last(self, before: datetime) -> datetime | None:
        while True:
            times = [each.last(before) for each in self._rules]
            times += [_naive(each) for each in self._dates if _naive(each) < before]
            found = max((each for each in times if each is not None), default=None)
            if found is None or found not in map(_naive, self._except):
                return found
            before = found

    def words(self) -> str:
        return f"by the rule {self.text}".replace("\n", " ")

    def _identity(self) -> tuple[Any, ...]:
        return (self.text, self.start)

    def __repr__(self) -> str:
        return f"<rrule: {self.text!r:.200}>"

    def __reduce__(self) -> Any:
        return _again, (self.text, self.start, self.tz)


class _Rule:
    """One rule, in naive times on the wall."""

    def __init__(self, rule: Any) -> None:
        self.start: datetime = rule._dtstart
        frequency, given = rule._freq, rule._original_rule
        if rule._interval < 1:
            raise InvalidSchedule(f"INTERVAL={rule._interval} is none: it takes a number from 1 on")
        if frequency in FINE and any(value for name, value in given.items() if name.startswith("by")):
            raise InvalidSchedule(
                "a rule by the minute or second takes no BY…: write FREQ=DAILY;BYHOUR=…;BYMINUTE=…"
            )
        until = rule._until and (
            rule._until.astimezone(self.start.tzinfo) if self.start.tzinfo else rule._until
        )
        self._rule = rule.replace(dtstart=_naive(self.start), until=until and _naive(until))
        self._horizon = HORIZONS.get(frequency, FAR)
        step = STEPS.get(frequency)
        self._step = step and step * rule._interval
        self._counted: list[datetime] | None = None
        if rule._count is not None:
            if rule._count > MOST_COUNTED:
                raise InvalidSchedule(f"COUNT={rule._count:,} is too much: {MOST_COUNTED:,} at most")
            bounded = self._rule.replace(count=None, until=_plus(_naive(self.start), self._horizon))
            self._counted = list(islice(bounded, rule._count))
        elif frequency in STEPS and not _has_days(rule):
            self._counted = []

    def _from(self, begin: datetime, end: datetime) -> Any:
        """The same rule, that begins not long before *begin* and ends by *end*."""
        start = self._rule._dtstart
        if self._step and begin > start:
            # Two steps before: the week of the beginning counts as a whole.
            start += max(0, (begin - start) // self._step - 2) * self._step
        until = min(end, self._rule._until) if self._rule._until else end
        return self._rule.replace(dtstart=start, until=until)

    def first(self, after: datetime) -> datetime | None:
        if self._counted is not None:
            return next((each for each in self._counted if each > after), None)
        begin = max(after, self._rule._dtstart)
        found: datetime | None = self._from(after, _plus(begin, self._horizon)).after(after)
        return found

    def last(self, before: datetime) -> datetime | None:
        if self._counted is not None:
            return next((each for each in reversed(self._counted) if each < before), None)
        width = max(self._step or timedelta(days=32), timedelta(minutes=5))
        while True:
            begin = max(self._rule._dtstart, _plus(before, -width))
            found: datetime | None = self._from(begin, before).before(before)
            if found is not None or begin == self._rule._dtstart or width > self._horizon:
                return found
            width *= 8


def _has_days(rule: Any) -> bool:
    """Whether there is any day for all that *rule* says of days. dateutil goes through a year at a time much
    faster than by the steps of rules that step by the week, the day or the hour."""
    given: dict[str, Any] = {
        name: value for name in BY_DAY if (value := rule._original_rule.get(name)) is not None
    }
    if not given:
        return True
    if "byweekday" in given:
        given["byweekday"] = rule._byweekday  # the number in 1MO is for months and years
    if given.keys() == {"bymonth"}:
        return True
    given |= {"byhour": 0, "byminute": 0, "bysecond": 0}
    midnight = _naive(rule._dtstart).replace(hour=0, minute=0, second=0, microsecond=0)
    by_the_year = type(rule)(YEARLY, midnight, **given)
    return next(iter(by_the_year), None) is not None


def _naive(instant: datetime) -> datetime:
    return instant.replace(tzinfo=None)


def _plus(instant: datetime, delta: timedelta) -> datetime:
    try:
        return instant + delta
    except OverflowError:
        return datetime.max if delta > timedelta(0) else datetime.min


def _again(text: str, start: datetime, tz: tzinfo | None) -> rrule:
    return rrule(text, start, tz=tz)
