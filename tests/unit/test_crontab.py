"""crontab, compared with a walk through all minutes, and with another library."""

from __future__ import annotations

import pickle
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat import crontab
from qworker.beat.crontab import _LATELY, MOST_REMEMBERED
from qworker.errors import InvalidSchedule

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = timedelta(minutes=1)
ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})


def at(text: str, zone: tzinfo = UTC) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone)


def times(given: crontab, after: datetime, count: int) -> list[str]:
    found = []
    for _ in range(count):
        instant = given.next(after)
        assert instant is not None
        found.append(instant.isoformat(" ", "minutes"))
        after = instant
    return found


# -- fields --


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("*", range(60)),
        ("*/15", [0, 15, 30, 45]),
        ("5", [5]),
        (5, [5]),
        ("5,10", [5, 10]),
        ("5-8", [5, 6, 7, 8]),
        ("10-20/5", [10, 15, 20]),
        ("58-1", [58, 59, 0, 1]),
        ([1, "3", "5-6"], [1, 3, 5, 6]),
        ({7}, [7]),
    ],
)
def test_minute_field_is_parsed(value: Any, numbers: Any) -> None:
    assert crontab(minute=value).minute == frozenset(numbers)


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("sunday", [0]),
        ("Mon-Fri", [1, 2, 3, 4, 5]),
        ("fri-mon", [5, 6, 0, 1]),
        (7, [0]),
        ("7", [0]),
        ("5-7", [5, 6, 0]),
        ("sat,sun", [6, 0]),
    ],
)
def test_day_of_week_has_names_and_two_numbers_for_sunday(value: Any, numbers: Any) -> None:
    assert crontab(day_of_week=value).day_of_week == frozenset(numbers)


def test_month_has_names() -> None:
    assert crontab(month_of_year="jan,Mar-may,december").month_of_year == {1, 3, 4, 5, 12}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "60",
        -1,
        "-1",
        "a",
        "*/0",
        "5/2",
        "*-3",
        "1,,2",
        "1-",
        1.5,
        None,
        [],
        [[1]],
        True,
        "1" * 2000,
        "²",
        "mon",
        "9" * 5,
    ],
)
def test_invalid_minute_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"minute=.*numbers from 0 to 59"):
        crontab(minute=value)


@pytest.mark.parametrize(
    "fields",
    [
        {"day_of_month": 31, "month_of_year": "feb,apr,jun"},
        {"day_of_month": "30,31", "month_of_year": 2},
    ],
)
def test_date_that_never_occurs_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match="never matches"):
        crontab(**fields)


@pytest.mark.parametrize("text", ["* * * *", "* * * * * *", "@never", "", "a b c d e", 5, None])
def test_invalid_crontab_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSchedule):
        crontab.from_text(text)


# -- due times --


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@hourly", "2026-01-01 01:00+00:00"),
        ("@daily", "2026-01-02 00:00+00:00"),
        ("@midnight", "2026-01-02 00:00+00:00"),
        ("@weekly", "2026-01-04 00:00+00:00"),
        ("@monthly", "2026-02-01 00:00+00:00"),
        ("@yearly", "2027-01-01 00:00+00:00"),
        ("@annually", "2027-01-01 00:00+00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00+00:00"),
        ("30 12 * * mon", "2026-01-05 12:30+00:00"),
    ],
)
def test_next_time(text: str, expected: str) -> None:
    assert times(crontab.from_text(text), at("2026-01-01"), 1) == [expected]


def test_day_fields_are_alternatives_in_text_but_not_in_celery() -> None:
    start = at("2026-11-01")
    assert times(crontab.from_text("0 0 13 * fri"), start, 2) == [
        "2026-11-06 00:00+00:00",
        "2026-11-13 00:00+00:00",
    ]
    for both in (crontab(0, 0, "fri", 13, "*"), crontab.from_string("0 0 13 * fri")):
        assert times(both, start, 2) == ["2026-11-13 00:00+00:00", "2027-08-13 00:00+00:00"]


def test_skipped_time_is_due_at_the_end_of_the_gap() -> None:
    night = at("2026-03-28 12:00", BERLIN)
    assert times(crontab(30, 2, tz="Europe/Berlin"), night, 2) == [
        "2026-03-29 03:00+02:00",
        "2026-03-30 02:30+02:00",
    ]
    assert times(crontab("15,45", 2, tz=BERLIN), night, 2) == [
        "2026-03-29 03:00+02:00",
        "2026-03-30 02:15+02:00",
    ]


def test_repeated_time_is_due_once() -> None:
    night = at("2026-10-24 12:00", BERLIN)
    assert times(crontab(30, 2, tz=BERLIN), night, 2) == ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]


def test_intervals_follow_the_clock() -> None:
    quarters = crontab("*/15", tz=BERLIN)
    for night in ("2026-03-29 00:00", "2026-10-25 00:00"):
        instant: datetime | None = at(night, BERLIN)
        for _ in range(40):
            assert instant is not None
            following = quarters.next(instant)
            assert following is not None
            assert following.astimezone(UTC) - instant.astimezone(UTC) == 15 * MINUTE
            instant = following


def test_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        crontab().next(datetime(2026, 1, 1))


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="no time zone"):
        crontab(tz="Mars/Olympus")


def test_next_and_previous_end_with_the_calendar() -> None:
    assert crontab(0, 0, "*", 29, 2).next(at("9996-03-01")) is None
    assert crontab().previous(datetime(1, 1, 1, 5, tzinfo=UTC)) is None


# -- comparisons --

STARS = ["*", "*/7", "*/15", "0", "30", "1,59", "10-20/5"]
HOURS = ["*", "*/2", "*/5", "0", "1", "2", "3", "23", "0,2", "1-3"]
DAYS = ["*", "*/10", "1", "31", "25-31", "29"]
MONTHS = ["*", "3", "10", "2", "3,4,9-11"]
WEEKDAYS = ["*", "0", "mon-fri", "6,0"]
crontabs = st.builds(
    lambda *fields: " ".join(fields),
    *(st.sampled_from(field) for field in (STARS, HOURS, DAYS, MONTHS, WEEKDAYS)),
).filter(lambda text: "31 2 *" not in text)


def clock_changes(zone: tzinfo, year: int) -> list[datetime]:
    """Return the midnights (UTC) in *year* that follow a change of the UTC offset of *zone*."""
    start = datetime(year, 1, 1, tzinfo=UTC)
    hours = [start + timedelta(days=day) for day in range(366)]
    return [
        after
        for before, after in pairwise(hours)
        if before.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset()
    ]


def walked(schedule: crontab, zone: tzinfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield every due instant, by checking every minute: times that match the local time, and, for fixed
    times, those that the local time has skipped since the minute before."""
    fixed = not schedule._follows
    fired: set[datetime] = set()
    wall = start.astimezone(zone).replace(tzinfo=None) - MINUTE
    instant = start
    while instant <= end:
        now = instant.astimezone(zone).replace(tzinfo=None, fold=0)
        due = schedule._matches(now)
        if fixed:
            due = due and now not in fired
            left_out = wall + MINUTE
            while left_out < now:
                due = due or schedule._matches(left_out)
                left_out += MINUTE
            if schedule._matches(now):
                fired.add(now)
        if due:
            yield instant
        wall = now
        instant += MINUTE


@given(text=crontabs, name=st.sampled_from(ZONES), year=st.integers(1975, 2075), data=st.data())
def test_due_times_equal_those_of_a_walk_through_all_minutes(
    text: str, name: str, year: int, data: st.DataObject
) -> None:
    zone = ZoneInfo(name)
    schedule = crontab.from_text(text, zone)
    nights = clock_changes(zone, year) or [datetime(year, 6, 1, tzinfo=UTC)]
    night = data.draw(st.sampled_from(nights))
    start, end = night - timedelta(hours=30), night + timedelta(hours=12)
    expected = list(walked(schedule, zone, start, end))
    found = []
    instant = schedule.next(start - MINUTE)
    while instant is not None and instant.astimezone(UTC) <= end:
        found.append(instant.astimezone(UTC))
        instant = schedule.next(instant)
    assert found == expected
    backwards = []
    instant = schedule.previous(end + MINUTE)
    while instant is not None and instant.astimezone(UTC) >= start:
        backwards.append(instant.astimezone(UTC))
        instant = schedule.previous(instant)
    assert backwards[::-1] == expected


@given(
    text=crontabs,
    name=st.sampled_from([name for name in ZONES if name != "UTC"]),
    start=st.datetimes(datetime(1975, 1, 1), datetime(2075, 1, 1)),
)
def test_due_times_equal_those_of_cronsim(text: str, name: str, start: datetime) -> None:
    zone = ZoneInfo(name)
    start = start.replace(tzinfo=UTC).astimezone(zone)
    schedule, other = crontab.from_text(text, zone), CronSim(text, start)
    instant: datetime | None = start
    for _ in range(20):
        expected = next(other, None)
        if expected is None or expected.year > start.year + 30:
            return
        assert instant is not None
        instant = schedule.next(instant)
        assert instant is not None
        if _begins_with_a_gap(min(instant, expected), zone):
            return  # cronsim misses times of days without midnight
        assert instant == expected


def _begins_with_a_gap(instant: datetime, zone: tzinfo) -> bool:
    midnight = datetime.combine(instant.astimezone(zone).date(), time(), zone)
    return midnight.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != midnight.replace(tzinfo=None)


# -- equality, hashing, text --


def test_equality_hash_pickle_and_repr() -> None:
    one, same, other = crontab("*/5", tz="Europe/Berlin"), crontab("*/5", tz=BERLIN), crontab("*/5")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != 5
    again = pickle.loads(pickle.dumps(one))
    assert (again, again.text, again.words()) == (one, one.text, one.words())
    assert repr(crontab(0, 4, day_of_week="mon")) == "<crontab: 0 4 * * mon (m/h/dM/MY/d)>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("@hourly", "every hour"),
        ("5,35 * * * *", "every hour at minute 5 and 35"),
        ("0 */3 * * *", "every 3 hours"),
        ("20 */3 * * *", "at minute 20 of every 3rd hour"),
        ("@daily", "at 00:00 every day"),
        ("0,30 9,17 * * sat", "at 09:00, 09:30, 17:00 and 17:30 on Saturday"),
        ("0 9 * * mon-wed", "at 09:00 on Monday, Tuesday and Wednesday"),
        ("*/10 9-17 * * *", "every 10 minutes of the hours 9, 10, 11, 12, 13, 14, 15, 16 and 17 every day"),
        ("0 4 1,15 * *", "at 04:00 on the 1st and 15th"),
        ("0 4 13 * fri", "at 04:00 on the 13th or on Friday"),
        ("0 4 */2 3 *", "at 04:00 every 2nd day of the month in March"),
        ("@yearly", "at 00:00 on the 1st in January"),
    ],
)  # fmt: skip
def test_words(text: str, words: str) -> None:
    assert crontab.from_text(text).words() == words


def test_words_distinguish_both_days_from_either_day() -> None:
    assert crontab(0, 4, "fri", 13).words() == "at 04:00 on the 13th if that is on Friday"


class CountingCrontab(crontab):
    """Counts computations of next times."""

    count = 0

    def _next_of_the_day(self, after: datetime, zone: tzinfo) -> datetime | None:
        CountingCrontab.count += 1
        return super()._next_of_the_day(after, zone)


def test_next_time_of_equal_crontabs_is_computed_once() -> None:
    asked = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    found = {CountingCrontab(minute=1, hour=2).next(asked) for _ in range(100)}
    assert found == {datetime(2031, 5, 7, 2, 1, tzinfo=UTC)}
    assert CountingCrontab.count == 1
    for number in range(3 * MOST_REMEMBERED):
        CountingCrontab(minute=1, hour=2).next(asked + timedelta(minutes=number))
    assert len(_LATELY) <= MOST_REMEMBERED


def test_similar_crontabs_do_not_share_cached_times() -> None:
    """They differ in whether they follow the clock, in the time zone, and in how two day fields combine."""
    asked = datetime(2026, 10, 25, 0, 15, tzinfo=UTC)
    london = ZoneInfo("Europe/London")
    similar = [
        crontab(minute=30, hour="*", tz=BERLIN),
        crontab(minute=30, hour="0-22", tz=BERLIN),
        crontab(minute=30, hour=2, tz=BERLIN),
        crontab(minute=30, hour=2, tz=london),
        crontab.from_text("30 2 1 * mon", london),
        crontab.from_string("30 2 1 * mon", london),
    ]
    given = [each.next(asked) for each in similar]
    for _ in range(2):
        for each, before in zip(similar, given, strict=True):
            assert each.next(asked) == before
            _LATELY.clear()


def test_positional_arguments_are_those_of_celery() -> None:
    """Minute, hour, day of the week, day of the month, month: not the order in crontab files."""
    given = crontab(5, 8, "mon-fri", "1-7", "*/3")
    named = crontab(minute=5, hour=8, day_of_week="mon-fri", day_of_month="1-7", month_of_year="*/3")
    assert given == named
    assert given.text == "5 8 1-7 */3 mon-fri"
    assert crontab.from_string(given.text) == given == pickle.loads(pickle.dumps(given))
    assert crontab(0, 8, 1).next(at("2026-11-26")) == at("2026-11-30 08:00")
