"""Schedules: intervals, instants, recurrence rules, solar events; and values converted to schedules."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat import Schedule, clocked, crontab, maybe_schedule, rrule, schedule, solar
from qworker.errors import InvalidSchedule

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 1, tzinfo=UTC)


def times(of: Schedule, after: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < count and (instant := of.next(after)) is not None:
        found.append(instant)
        after = instant
    return found


# -- intervals --


@given(
    every=st.timedeltas(timedelta(milliseconds=1), timedelta(days=1000)),
    anchor=st.datetimes(datetime(1990, 1, 1), datetime(2050, 1, 1)),
    after=st.datetimes(datetime(1990, 1, 1), datetime(2050, 1, 1)),
)
def test_interval_counts_from_its_anchor(every: timedelta, anchor: datetime, after: datetime) -> None:
    anchor, after = anchor.replace(tzinfo=UTC), after.replace(tzinfo=UTC)
    counted = schedule(every).anchored(anchor)
    following = counted.next(after)
    assert following is not None
    assert following > after
    assert following > anchor
    assert (following - anchor) % every == timedelta(0)
    assert following - every <= max(after, anchor)
    assert counted.previous(following) == (following - every if following - every > anchor else None)


def test_interval_without_an_anchor_counts_from_the_epoch() -> None:
    assert schedule(3600).next(datetime(2026, 1, 1, 10, 20, tzinfo=UTC)) == datetime(
        2026, 1, 1, 11, tzinfo=UTC
    )
    relative = schedule(timedelta(hours=1), relative=True)
    assert relative.anchored(START + timedelta(minutes=7)) == relative


@pytest.mark.parametrize("value", [0, -1, 0.0001, float("nan"), float("inf"), "5", None, True, 1e300])
def test_invalid_intervals_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidSchedule, match="not an interval"):
        schedule(value)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "every second"), (90, "every 90 seconds"), (0.5, "every 0.5 seconds"), (120, "every 2 minutes"),
     (3600, "every hour"), (172800, "every 2 days")],
)  # fmt: skip
def test_interval_in_words(seconds: float, words: str) -> None:
    assert schedule(seconds).words() == words


# -- once --


def test_clocked_is_due_once() -> None:
    once = clocked(START)
    assert once.next(START - timedelta(seconds=1)) == START
    assert once.next(START) is None
    assert once.previous(START) is None
    assert once.previous(START + timedelta(seconds=1)) == START
    assert once.words() == "once, at 2026-01-01 00:00:00+0000"


@pytest.mark.parametrize("value", [None, "2026-01-01", datetime(2026, 1, 1), 5])
def test_invalid_instants_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidSchedule, match="not an instant"):
        clocked(value)


# -- rules --

RULES = [
    "FREQ=DAILY;BYHOUR=9;BYMINUTE=30;BYSECOND=0",
    "FREQ=DAILY;INTERVAL=3",
    "FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=8",
    "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,SU",
    "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17",
    "FREQ=MONTHLY;BYMONTHDAY=-1",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=YEARLY;BYEASTER=0",
    "FREQ=HOURLY;INTERVAL=5",
    "FREQ=HOURLY;BYDAY=SA;BYHOUR=10,11",
    "FREQ=MINUTELY;INTERVAL=7",
    "FREQ=SECONDLY;INTERVAL=40",
    "FREQ=DAILY;COUNT=10",
    "FREQ=DAILY;UNTIL=20260201T000000",
]
STEPS = {
    "FREQ=MINUTELY;INTERVAL=7": timedelta(minutes=7),
    "FREQ=SECONDLY;INTERVAL=40": timedelta(seconds=40),
}
"""Rules that say the same from any of their instants on. (dateutil goes through all instants.)"""


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("days", [-3, 0, 0.5, 40, 2000])
def test_rules_match_dateutil(text: str, days: float) -> None:
    begin = datetime(2026, 1, 1, 6, 20)
    after = begin + timedelta(days=days)
    since = begin
    if days > 1 and (step := STEPS.get(text)):
        since += (after - timedelta(days=1) - begin) // step * step
    theirs = rrulestr(text, dtstart=since)
    expected = [each.replace(tzinfo=UTC) for each in islice(theirs.xafter(after), 4)]
    ours = rrule(text, begin)
    assert times(ours, after.replace(tzinfo=UTC), 4) == expected
    before = theirs.before(after)
    assert ours.previous(after.replace(tzinfo=UTC)) == (before and before.replace(tzinfo=UTC))


def test_rule_sets_have_extra_and_excluded_dates() -> None:
    text = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;COUNT=4\nEXDATE:20260102T090000\nRDATE:20260110T120000"
    assert [each.day for each in times(rrule(text), START, 9)] == [1, 3, 4, 10]
    assert rrule(text).previous(datetime(2026, 1, 3, 9, tzinfo=UTC)) == datetime(2026, 1, 1, 9, tzinfo=UTC)


def test_rule_follows_local_time_across_dst_changes() -> None:
    daily = rrule("FREQ=DAILY", datetime(2026, 3, 1, 2, 30), tz=BERLIN)
    night = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    assert [each.isoformat() for each in times(daily, night, 2)] == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert len(times(daily, datetime(2026, 10, 24, 12, tzinfo=BERLIN), 3)) == 3
    evening = datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN, fold=1)
    assert daily.next(evening) == datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN)
    assert daily.previous(evening) == datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)


def test_rule_uses_the_timezone_of_its_start() -> None:
    utc = rrule("DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY")
    assert times(utc, datetime(2026, 7, 1, tzinfo=BERLIN), 1) == [datetime(2026, 7, 1, 9, tzinfo=UTC)]


class CountingZone(tzinfo):
    """The time zone of Berlin, counting how often it is used."""

    count = 0

    def utcoffset(self, instant: datetime | None) -> timedelta | None:
        self.count += 1
        return instant and BERLIN.utcoffset(instant)

    def dst(self, instant: datetime | None) -> timedelta | None:
        return instant and BERLIN.dst(instant)

    def fromutc(self, instant: datetime) -> datetime:
        self.count += 1
        return BERLIN.fromutc(instant.replace(tzinfo=BERLIN)).replace(tzinfo=self)

    def tzname(self, instant: datetime | None) -> str:
        return "Berlin"


NIGHTS = [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)]
"""The nights of DST changes."""


@pytest.mark.parametrize("hours", range(-30, 31, 6))
@pytest.mark.parametrize("night", NIGHTS)
def test_secondly_rule_is_evaluated_without_walking_through_a_day(night: datetime, hours: int) -> None:
    """Also around DST changes; the repeated hour counts once."""
    zone, second = CountingZone(), timedelta(seconds=1)
    rule, instant_asked = (
        rrule("FREQ=SECONDLY", datetime(2026, 1, 1), tz=zone),
        night + timedelta(hours=hours),
    )
    zone.count = 0
    later, earlier = rule.next(instant_asked), rule.previous(instant_asked)
    assert later is not None
    assert earlier is not None
    again = night == NIGHTS[1] and hours == 0
    assert later.astimezone(UTC) == instant_asked + (3600 * second if again else second)
    assert earlier.astimezone(UTC) == instant_asked - second
    assert zone.count < 500


def test_rejected_rule_is_cached() -> None:
    given = {"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=31", "start": "2026-01-01T00:00:00"}
    messages = set()
    for _ in range(3):
        with pytest.raises(InvalidSchedule, match="never matches") as caught:
            maybe_schedule(given)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert maybe_schedule({"rrule": "FREQ=DAILY"}) is maybe_schedule({"rrule": "FREQ=DAILY"})


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=WEEKLY;BYDAY=2MO",
        "FREQ=HOURLY;BYMONTH=12",
        "FREQ=DAILY;BYYEARDAY=366;BYDAY=SU",
        "FREQ=WEEKLY;BYMONTHDAY=-1;BYDAY=FR",
    ],
)
def test_rules_with_rare_days_match(text: str) -> None:
    assert rrule(text).next(datetime(2026, 1, 1, tzinfo=UTC)) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an RFC 5545 rule"),
        ("\n".join(["RRULE:FREQ=DAILY"] * 5), "too many"),
        ("FREQ=SOMETIMES", "not an RFC 5545 rule"),
        ("FREQ=DAILY;BYHOUR=25", "not an RFC 5545 rule|never matches"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never matches"),
        ("FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30", "never matches"),
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "BY… is not supported"),
        ("FREQ=MINUTELY;BYDAY=MO", "BY… is not supported"),
        ("FREQ=DAILY;COUNT=1000000", "too large"),
        ("FREQ=DAILY;" + "BYHOUR=1;" * 1000, "too long"),
        ("FREQ=DAILY;INTERVAL=0", "not an RFC 5545 rule|INTERVAL"),
        ("RRULE:FREQ=DAILY\nEXRULE:FREQ=WEEKLY", "EXRULE"),
    ],
)
def test_invalid_rules_are_rejected(text: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        rrule(text)


# -- solar events --


def test_sunset_is_later_each_day_in_spring() -> None:
    found = times(solar("sunset", 52.52, 13.4), datetime(2026, 3, 1, tzinfo=UTC), 3)
    almanac = datetime(2026, 3, 1, 16, 46, tzinfo=UTC)
    for day, instant in enumerate(found):
        assert abs(instant - almanac - day * timedelta(days=1, seconds=110)) < timedelta(minutes=2)


def test_solar_events_of_a_day_are_in_order() -> None:
    events = ("dawn_astronomical", "dawn_nautical", "dawn_civil", "sunrise", "solar_noon", "sunset",
              "dusk_civil", "dusk_nautical", "dusk_astronomical")  # fmt: skip
    found = [times(solar(event, 48.0, 11.0), datetime(2026, 3, 20, tzinfo=UTC), 1)[0] for event in events]
    assert found == sorted(found)
    for event, instant in zip(events, found, strict=True):
        back = solar(event, 48.0, 11.0).previous(instant + timedelta(minutes=1))
        assert back is not None
        assert abs(back - instant) < timedelta(seconds=30)


@pytest.mark.parametrize("event", ["dawn_civil", "sunrise", "solar_noon", "sunset", "dusk_astronomical"])
@pytest.mark.parametrize("place", [(52.0, 13.0), (-33.9, 151.2), (0.0, -179.9)])
def test_solar_event_occurs_once_a_day(event: str, place: tuple[float, float]) -> None:
    of = solar(event, *place)
    found = times(of, datetime(2026, 3, 1, tzinfo=UTC), 40)
    for earlier, later in pairwise(found):
        assert timedelta(hours=23) < later - earlier < timedelta(hours=25)
        assert of.previous(later) == earlier
    bit = timedelta(milliseconds=300)
    for instant in found:
        assert of.next(instant - bit) == instant
        assert of.previous(instant + bit) == instant


def test_sunrise_after_polar_night() -> None:
    found = times(solar("sunrise", 78.2, 15.6), datetime(2026, 11, 15, tzinfo=UTC), 1)
    assert [(each.year, each.month) for each in found] == [(2027, 2)]


@pytest.mark.parametrize("given", [("noon", 1, 1), ("sunset", 91, 0), ("sunset", 0, 200), ("sunset", "1", 2)])
def test_invalid_events_and_places_are_rejected(given: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidSchedule):
        solar(*given)


# -- conversion --


class Own:
    def next(self, after: datetime) -> datetime | None:
        return None

    def previous(self, before: datetime) -> datetime | None:
        return None


OWN = Own()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, schedule(30)),
        (timedelta(hours=1), schedule(3600)),
        ("0 4 * * *", crontab(0, 4)),
        ("@daily", crontab(0, 0)),
        (crontab(5), crontab(5)),
        (OWN, OWN),
    ],
)
def test_values_are_converted_to_schedules(value: Any, expected: Any) -> None:
    assert maybe_schedule(value) == expected


class OfCelery:
    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return True, 1.0


@pytest.mark.parametrize("value", [None, object(), [], OfCelery(), float("nan")])
def test_values_that_are_not_schedules_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidSchedule):
        maybe_schedule(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedule(30),
        lambda: schedule(30, anchor=START),
        lambda: clocked(START),
        lambda: rrule("FREQ=DAILY", datetime(2026, 1, 1), tz="Europe/Berlin"),
        lambda: solar("sunset", 52.5, 13.4),
    ],
)
def test_schedules_are_comparable_hashable_and_picklable(make: Callable[[], Schedule]) -> None:
    one, same = make(), make()
    assert one == same
    assert hash(one) == hash(same)
    assert one != crontab()
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert times(again, START, 3) == times(one, START, 3)
    assert one.words()
    assert repr(one).startswith("<")
