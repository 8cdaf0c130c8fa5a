"""Computing the next due time of schedules, without Django or a clock."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat.wall_clock import is_plain, shown
from qworker.django.models.recurrence import DAYS, MONTHS, first_after, months_later, next_run
from qworker.errors import InvalidSchedule

AMSTERDAM = ZoneInfo("Europe/Amsterdam")
ZONES = [
    ZoneInfo(name) for name in ("Europe/Amsterdam", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
]
KINDS = (*DAYS, *MONTHS)


def local(year: int, month: int, day: int, hour: int = 12, minute: int = 0, fold: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=AMSTERDAM, fold=fold)


@pytest.mark.parametrize(
    ("kind", "due", "expected"),
    [
        ("H", local(2024, 1, 31, 23), local(2024, 2, 1, 0)),
        ("D", local(2024, 2, 28), local(2024, 2, 29)),
        ("W", local(2024, 12, 30), local(2025, 1, 6)),
        ("BW", local(2024, 12, 30), local(2025, 1, 13)),
        ("M", local(2024, 1, 15), local(2024, 2, 15)),
        ("BM", local(2024, 12, 15), local(2025, 2, 15)),
        ("Q", local(2024, 11, 15), local(2025, 2, 15)),
        ("Y", local(2024, 2, 29), local(2025, 2, 28)),
        ("Y", local(2023, 3, 26), local(2024, 3, 26)),  # in summer time, and in winter time
        ("M", local(2024, 3, 1, 0, 30), local(2024, 4, 1, 0, 30)),  # the day before in UTC
        ("D", local(2024, 3, 30, 2, 30), local(2024, 3, 31, 3, 0)),  # skipped by DST: at the end of the gap
        (
            "D",
            local(2024, 10, 26, 2, 30),
            local(2024, 10, 27, 2, 30, fold=0),
        ),  # repeated by DST: the first time
        ("D", local(2024, 10, 27, 2, 30, fold=1), local(2024, 10, 28, 2, 30)),
        ("H", local(2024, 10, 27, 2, 30, fold=0), local(2024, 10, 27, 2, 30, fold=1)),
        ("O", local(2024, 1, 1), local(2024, 1, 1)),
    ],
)
def test_next_run(kind: str, due: datetime, expected: datetime) -> None:
    assert next_run(kind, due, AMSTERDAM) == expected.astimezone(UTC)


@pytest.mark.parametrize(("minutes", "expected"), [(5, 5), (None, 1), (0, 1), (90, 90)])
def test_next_run_after_minutes(minutes: int | None, expected: int) -> None:
    due = local(2024, 3, 31, 1, 59)
    assert next_run("I", due, AMSTERDAM, minutes=minutes) - due.astimezone(UTC) == timedelta(minutes=expected)


def test_monthly_run_keeps_the_day_of_the_shortest_month() -> None:
    due, days = local(2024, 1, 31), []
    for _ in range(3):
        due = next_run("M", due, AMSTERDAM)
        days.append(due.astimezone(AMSTERDAM).day)
    assert days == [29, 29, 29]


def test_crontab_counts_from_the_due_time() -> None:
    due = local(2024, 3, 30, 4, 0)
    assert next_run("C", due, AMSTERDAM, cron="0 4 * * *") == local(2024, 3, 31, 4).astimezone(UTC)
    assert next_run("C", datetime(2024, 3, 30, 4), None, cron="0 4 * * *") == datetime(2024, 3, 31, 4)


@pytest.mark.parametrize(
    ("cron", "same"),
    [
        ("5/10 * * * *", "5,15,25,35,45,55 * * * *"),
        ("0 3/5 * * *", "0 3,8,13,18,23 * * *"),
        ("0 0 3/10 feb/4 ?", "0 0 3,13,23 2,6,10 *"),
        ("1,20/20 * * * *", "1,20,40 * * * *"),
        ("0 0 ? * mon/2", "0 0 * * 1,3,5"),
    ],
)
def test_open_ended_steps_and_question_marks_match_django_q2(cron: str, same: str) -> None:
    first, second = local(2024, 1, 1), local(2024, 1, 1)
    for _ in range(30):
        first = next_run("C", first, AMSTERDAM, cron=cron)
        second = next_run("C", second, AMSTERDAM, cron=same)
        assert first == second


@pytest.mark.parametrize("cron", [None, "", "* *", "0 0 30 2 *", "? * * * *", "70/5 * * * *", "x/5 * * * *"])
def test_invalid_crontabs_are_rejected(cron: str | None) -> None:
    with pytest.raises(InvalidSchedule):
        next_run("C", local(2024, 1, 1), AMSTERDAM, cron=cron)


def test_unknown_schedule_type_is_rejected() -> None:
    with pytest.raises(InvalidSchedule, match="not a type of schedule"):
        next_run("Z", local(2024, 1, 1), AMSTERDAM)


@pytest.mark.parametrize("kind", [*KINDS, "I", "H"])
def test_due_time_after_the_calendar_is_rejected(kind: str) -> None:
    with pytest.raises(InvalidSchedule, match="calendar"):
        next_run(kind, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), UTC)


INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


@given(INSTANTS, st.sampled_from(KINDS), st.sampled_from(ZONES))
def test_next_run_is_later_at_the_same_local_time(due: datetime, kind: str, zone: ZoneInfo) -> None:
    found = next_run(kind, due, zone)
    assert found > due
    assert found.tzinfo is UTC
    before, after = shown(due, zone), shown(found, zone)
    if is_plain(after, zone) and after.time() != before.time():
        # Local time was skipped: one second earlier, the clock showed more than one second less.
        assert after - shown(found - timedelta(seconds=1), zone) > timedelta(seconds=1)


@given(INSTANTS, st.sampled_from(tuple(DAYS)), st.sampled_from(ZONES))
def test_next_run_is_the_right_number_of_days_later(due: datetime, kind: str, zone: ZoneInfo) -> None:
    assert (shown(next_run(kind, due, zone), zone).date() - shown(due, zone).date()).days == DAYS[kind]


@given(st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)), st.integers(1, 48))
def test_months_later_caps_the_day(wall: datetime, months: int) -> None:
    found = months_later(wall, months)
    assert (found.year * 12 + found.month) - (wall.year * 12 + wall.month) == months
    assert found.day == min(wall.day, monthrange(found.year, found.month)[1])
    assert found.time() == wall.time()


@given(st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)), st.sampled_from(KINDS))
def test_naive_due_times_keep_the_time_of_day(wall: datetime, kind: str) -> None:
    found = next_run(kind, wall, None)
    assert found.tzinfo is None
    assert found > wall
    assert found.time() == wall.time()


def stepped(
    kind: str, due: datetime, now: datetime, zone: ZoneInfo | None, **fields: Any
) -> tuple[datetime, bool]:
    """The result of first_after() by single steps, and whether no step fell into a DST gap."""
    plain = True
    while due <= now:
        following = next_run(kind, due, zone, **fields)
        if zone is not None and kind in KINDS:
            plain = plain and shown(following, zone).time() == shown(due, zone).time()
        due = following
    return due, plain


CRONS = st.sampled_from(["0 4 * * *", "*/7 * * * *", "30 2 * * sun", "0 0 31 * *", "15 1,2,3 * * *"])
SPANS = st.floats(0, 3 * 366)


@given(INSTANTS, SPANS, st.sampled_from([*KINDS, "H"]), st.sampled_from([None, *ZONES]))
def test_first_after_equals_single_steps(
    due: datetime, days: float, kind: str, zone: ZoneInfo | None
) -> None:
    due = due if zone is not None else due.replace(tzinfo=None)
    now = due + timedelta(days=days)
    found, plain = stepped(kind, due, now, zone)
    jumped = first_after(kind, due, now, zone)
    assert jumped > now
    if plain:
        assert jumped == found
    elif zone is not None:  # a DST gap on the way has no effect
        assert (shown(jumped, zone).time() == shown(due, zone).time()) or shown(
            jumped - timedelta(seconds=1), zone
        ) < shown(jumped, zone) - timedelta(seconds=1)


@given(INSTANTS, st.floats(0, 3), st.integers(1, 5000), st.sampled_from(ZONES), CRONS)
def test_first_after_equals_single_steps_for_minutes_and_crontabs(
    due: datetime, days: float, minutes: int, zone: ZoneInfo, cron: str
) -> None:
    now = due + timedelta(days=days)
    assert (
        first_after("I", due, now, zone, minutes=minutes) == stepped("I", due, now, zone, minutes=minutes)[0]
    )
    first = next_run("C", due, zone, cron=cron)
    assert first_after("C", first, now, zone, cron=cron) == stepped("C", first, now, zone, cron=cron)[0]


@pytest.mark.parametrize("kind", [*KINDS, "I", "H", "C", "O"])
def test_first_after_is_fast_over_two_thousand_years(kind: str) -> None:
    # By single steps this would be up to a thousand million due times.
    due, now = datetime(1, 1, 31, 12, tzinfo=UTC), datetime(2026, 7, 29, 11, 30, tzinfo=UTC)
    found = first_after(kind, due, now, AMSTERDAM, cron="0 12 * * *")
    assert found == due if kind == "O" else now < found <= now + timedelta(days=366)


def test_missed_months_cap_the_day_to_the_shortest() -> None:
    due, now = local(2024, 1, 31), local(2024, 3, 30)
    assert first_after("M", due, now, AMSTERDAM) == local(2024, 4, 29).astimezone(UTC)
    found = first_after("Y", local(2024, 2, 29), local(2400, 1, 1), AMSTERDAM)
    assert found == local(2400, 2, 28).astimezone(UTC)


def test_first_after_keeps_due_times_that_do_not_advance() -> None:
    due, now = local(2024, 1, 1), local(2025, 1, 1)
    assert first_after("I", due, now, AMSTERDAM, minutes=-5) == due
    assert first_after("D", now, due, AMSTERDAM) == now
