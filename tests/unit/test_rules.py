"""Recurrence rules: their evaluation by dateutil, and the bounds on its work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil import rrule as theirs
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat import rrule, rules
from qworker.errors import InvalidSchedule

START = datetime(2026, 1, 1)
NOW = datetime(2026, 11, 24, 7, 30, tzinfo=UTC)
STEPS = {"ydayset", "mdayset", "wdayset", "ddayset"}
"""Functions that dateutil calls once in each step of a rule."""
MOST_STEPS = 50_000
"""Twice the days of the 60 years for which a rule is followed, or the hours of five. Up to the year 9999
there are three million days."""
MOST_FOUND = 200_000
"""Times that are computed to find one: MOST_TIMES of rules, in this step and in those before it."""


class Work:
    steps = 0
    found = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Count the work of dateutil in the block."""
    work = Work()

    def look(frame: Any, event: str, what: Any) -> None:
        if event == "call":
            work.steps += frame.f_code.co_name in STEPS
        elif event == "c_call":
            work.found += what.__name__ == "combine"

    sys.setprofile(look)
    try:
        yield work
    finally:
        sys.setprofile(None)


def test_frequency_constants_match_dateutil() -> None:
    for name in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"):
        assert getattr(rules, name) == getattr(theirs, name)


# -- rules that never match --


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "FREQ=DAILY;BYMONTH=1,2,3;BYHOUR=1;BYSETPOS=3",
            "BYSETPOS=3 never matches.* one day, .* has 1 at most",
        ),
        ("FREQ=DAILY;BYHOUR=1,2;BYMINUTE=0,30;BYSETPOS=5,-6", "one day, of which this rule has 4 at most"),
        ("FREQ=HOURLY;BYMINUTE=0,30;BYSETPOS=3", "one hour, of which this rule has 2 at most"),
        ("FREQ=HOURLY;BYHOUR=1,2,3;BYSETPOS=-2", "one hour, of which this rule has 1 at most"),
        ("FREQ=WEEKLY;BYSETPOS=8", "one week, of which this rule has 1 at most"),
        ("FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=32", "one month, of which this rule has 31 at most"),
        ("FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=3", "one week, of which this rule has 2 at most"),
        ("FREQ=WEEKLY;BYDAY=MO,TU;BYMONTHDAY=1;BYSETPOS=2", "no time in the 60 years"),
        ("FREQ=YEARLY;BYMONTH=2;BYDAY=MO;BYSETPOS=32", "one year, of which this rule has 31 at most"),
        ("FREQ=MONTHLY;BYMONTHDAY=1,2,-1;BYSETPOS=4", "one month, of which this rule has 3 at most"),
        ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6", "no time in the 60 years"),
        ("FREQ=MONTHLY;BYDAY=1MO;BYSETPOS=2", "no time in the 60 years"),
        ("FREQ=YEARLY;BYMONTH=1;BYDAY=1MO;BYSETPOS=-2", "no time in the 60 years"),
        ("FREQ=YEARLY;BYEASTER=0;BYSETPOS=2", "no time in the 60 years"),
        *(
            (f"FREQ={frequency};BYMONTH=2;BYMONTHDAY=30", "no time in the 60 years")
            for frequency in ("HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY")
        ),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=MO", "no time in the 60 years"),
        ("FREQ=HOURLY;INTERVAL=168;BYDAY=MO", "no time in the 60 years"),
        ("FREQ=WEEKLY;INTERVAL=5000;BYMONTH=2;BYMONTHDAY=29", "no time in the 60 years"),
        ("FREQ=WEEKLY;BYMONTH=1;BYMONTHDAY=1;UNTIL=20251231T000000", "no time in the 60 years"),
        ("FREQ=MONTHLY;INTERVAL=12;BYMONTH=2", "no time in the 60 years"),
        ("FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29", "no time in the 60 years"),
        ("FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6", "no time in the 60 years"),
        ("FREQ=DAILY;BYYEARDAY=366;BYMONTHDAY=30", "no time in the 60 years"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=3", "no time in the 60 years"),
        ("FREQ=MONTHLY;BYDAY=MO,1TU", "but not both: write two rules"),
        (f"FREQ=DAILY;INTERVAL={10**9}", "INTERVAL=1,000,000,000 is too large"),
        (f"FREQ=MINUTELY;INTERVAL={10**12}", "is too large"),
        (f"FREQ=SECONDLY;INTERVAL={10**15}", "is too large"),
        (f"FREQ=YEARLY;INTERVAL={10**30}", "is too large"),
    ],
)
def test_rules_that_never_match_are_rejected_quickly(text: str, why: str) -> None:
    with counted() as work, pytest.raises(InvalidSchedule, match=why):
        rrule(text, START)
    assert work.steps < MOST_STEPS


def _all(most: int) -> str:
    return ",".join(map(str, range(most)))


EVERY_MINUTE = f"BYHOUR={_all(24)};BYMINUTE={_all(60)}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"FREQ=YEARLY;BYDAY=MO;{EVERY_MINUTE}", "535,680 times in one year are too many"),
        (f"FREQ=DAILY;{EVERY_MINUTE};BYSECOND={_all(60)}", "86,400 times in one day are too many"),
        (f"FREQ=MONTHLY;BYSETPOS={','.join(map(str, range(1, 62)))};BYHOUR=1,2,3", "61 values of BYSETPOS"),
    ],
)
def test_rules_with_too_many_times_are_rejected(text: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        rrule(text, START)


# -- rules that match rarely --


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", datetime(2044, 2, 29)),
        ("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=0,1;BYSETPOS=2", datetime(2028, 2, 29, 1)),
        ("FREQ=MINUTELY;INTERVAL=2880", datetime(2026, 11, 25)),
        ("FREQ=SECONDLY;INTERVAL=864000", datetime(2026, 11, 27)),
        ("FREQ=HOURLY;INTERVAL=240000", datetime(2053, 5, 19)),
        ("FREQ=YEARLY;INTERVAL=100", datetime(2126, 1, 1)),
        ("FREQ=DAILY;INTERVAL=50000", datetime(2162, 11, 24)),
        (f"FREQ=YEARLY;{EVERY_MINUTE}", datetime(2027, 1, 1)),
        (f"FREQ=MONTHLY;BYDAY=MO;{EVERY_MINUTE}", datetime(2026, 11, 30)),
    ],
)
def test_rare_matches_are_found(text: str, following: datetime) -> None:
    rule = rrule(text, START)
    with counted() as work:
        found = rule.next(NOW)
        before = rule.previous(following.replace(tzinfo=UTC))
    assert found == following.replace(tzinfo=UTC)
    assert before is None or before < NOW
    assert work.found < MOST_FOUND
    assert work.steps < MOST_STEPS


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("FREQ=MONTHLY;BYDAY=-1FR", datetime(1, 1, 1)),
        ("FREQ=MONTHLY;INTERVAL=5", datetime(1970, 1, 31)),
        ("FREQ=MONTHLY;INTERVAL=18;BYDAY=TU;BYSETPOS=-1", datetime(1971, 7, 30)),
        ("FREQ=YEARLY", datetime(1600, 2, 29)),
        ("FREQ=YEARLY;INTERVAL=3", datetime(1972, 2, 29)),
        ("FREQ=YEARLY;INTERVAL=3;BYWEEKNO=53;BYDAY=SU", datetime(1970, 12, 31)),
    ],
)
def test_rule_with_an_old_start_is_not_followed_from_its_start(text: str, start: datetime) -> None:
    instant = NOW.replace(tzinfo=None)
    rule, known = rrule(text, start), theirs.rrulestr(text, dtstart=start)
    expected = known.after(instant), known.before(instant)
    with counted() as work:
        found = rule.next(NOW), rule.previous(NOW)
    assert tuple(each and each.replace(tzinfo=None) for each in found) == expected
    assert work.steps < 500


def test_many_excluded_dates_are_skipped_in_one_pass() -> None:
    leap = [f"{year}0229T000000" for year in range(2028, 2083, 4)]
    text = f"DTSTART:20260101T000000\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29\nEXDATE:{','.join(leap)}"
    rule = rrule(text)
    with counted() as work:
        found = rule.next(NOW)
        before = rule.previous(datetime(2081, 1, 1, tzinfo=UTC))
    assert found == datetime(2084, 2, 29, tzinfo=UTC)
    assert before is None
    assert work.steps < 2 * MOST_STEPS


def test_minutely_rule_ends_after_its_count() -> None:
    rule = rrule("FREQ=MINUTELY;COUNT=2000", datetime(2026, 1, 1, tzinfo=UTC))
    last = datetime(2026, 1, 2, 9, 19, tzinfo=UTC)
    assert rule.previous(datetime(2030, 1, 1, tzinfo=UTC)) == last
    assert rule.next(last) is None


def test_rule_can_start_on_the_last_day_of_the_calendar() -> None:
    rule = rrule("FREQ=WEEKLY;BYDAY=FR,SA,SU", datetime(9999, 12, 31))
    assert rule.next(NOW) == datetime(9999, 12, 31, tzinfo=UTC)


# -- random rules --

numbers = {
    "BYMONTH": st.integers(1, 12),
    "BYMONTHDAY": st.sampled_from([1, 28, 29, 30, 31, -1, -31]),
    "BYYEARDAY": st.sampled_from([1, 60, 366, -1, -366]),
    "BYWEEKNO": st.sampled_from([1, 52, 53, -53]),
    "BYDAY": st.sampled_from(["MO", "TU", "SU", "1MO", "-1FR", "5SA"]),
    "BYHOUR": st.integers(0, 23),
    "BYMINUTE": st.integers(0, 59),
    "BYSETPOS": st.sampled_from([1, 2, 5, 32, 366, -1, -2, -366]),
}
texts = st.builds(
    lambda frequency, interval, given: ";".join(
        [
            f"FREQ={frequency};INTERVAL={interval}",
            *(f"{name}={','.join(map(str, values))}" for name, values in given.items()),
        ]
    ),
    st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]),
    st.sampled_from([1, 1, 1, 2, 7, 12, 168, 1461, 10**6, 10**9, 10**12, 10**20]),
    st.fixed_dictionaries(
        {}, optional={name: st.lists(each, min_size=1, max_size=3) for name, each in numbers.items()}
    ),
)
starts = st.sampled_from([START, datetime(1, 1, 1), datetime(2024, 2, 29, 7, 30), datetime(9999, 12, 31)])


@given(text=texts, start=starts, days=st.integers(0, 20_000))
def test_work_for_any_rule_is_bounded(text: str, start: datetime, days: int) -> None:
    """And the times found equal those of dateutil."""
    instant = START + timedelta(days=days, hours=5)
    found = before = None
    with counted() as making:
        try:
            rule = rrule(text, start)
        except InvalidSchedule:
            rule = None
    with counted() as asking:
        if rule is not None:
            found, before = rule.next(instant.replace(tzinfo=UTC)), rule.previous(instant.replace(tzinfo=UTC))
    for work in (making, asking):
        assert work.steps < MOST_STEPS
        assert work.found < MOST_FOUND
    known = theirs.rrulestr(text, dtstart=start) if rule is not None and start.year > 2000 else None
    if known is not None and found is not None and "SECONDLY" not in text and "MINUTELY" not in text:
        assert found.replace(tzinfo=None) == known.after(instant)
        assert (before and before.replace(tzinfo=None)) == known.before(instant)


@pytest.mark.parametrize("offset", [0, 0.5, 5, 600, 1799, 3599])
def test_repeated_hour_keeps_times_in_order(offset: float) -> None:
    zone = ZoneInfo("Europe/Berlin")
    set_back = datetime(2023, 10, 29, 1, tzinfo=UTC)  # 03:00 becomes 02:00
    rule = rrule("FREQ=HOURLY;BYMINUTE=0,30;BYSECOND=7")
    after = (set_back + timedelta(seconds=offset)).astimezone(zone)
    found, last = rule.next(after), rule.previous(after)
    assert found is not None
    assert last is not None
    assert found.astimezone(UTC) == set_back + timedelta(hours=1, seconds=7)
    assert last.astimezone(UTC) == set_back - timedelta(minutes=30, seconds=-7)
