"""Cron fields, compared with an oracle that lists the values of each field."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.spooler.uwsgi.signal_table import CronFields

RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(7))


def oracle_matches(fields: CronFields, when: datetime) -> bool:
    """Matches by sets of values; day and weekday are ORed if both are given."""
    sets = [
        {value for value in values if value % -field == 0} if field < 0 else {field}
        for field, values in zip(fields, RANGES, strict=True)
    ]
    if 7 in sets[4]:
        sets[4] = {0}
    now = (when.minute, when.hour, when.day, when.month, when.isoweekday() % 7)
    fits = [value in allowed for value, allowed in zip(now, sets, strict=True)]
    days = fits[2] or fits[4] if fields.day >= 0 and fields.weekday >= 0 else fits[2] and fits[4]
    return fits[0] and fits[1] and days and fits[3]


def field(values: range, top: int) -> st.SearchStrategy[int]:
    return st.sampled_from([-1, -1, -1, -2, -3, -7, *values, top])


@given(
    st.builds(CronFields, *(field(values, 7 if values == range(7) else values[-1]) for values in RANGES)),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    st.booleans(),
)
def test_matches_equals_the_oracle(fields: CronFields, when: datetime, near: bool) -> None:
    if near:  # otherwise hardly anything would match
        when = when.replace(minute=max(fields.minute, 0), hour=max(fields.hour, 0))
    assert fields.matches(when.timetuple()) == oracle_matches(fields, when)


@pytest.mark.parametrize(
    ("fields", "days"),
    [
        (CronFields(0, 0, -2), [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]),
        (CronFields(0, 0, 13, -1, 5), [5, 12, 13, 19, 26]),
        (CronFields(0, 0, -1, -1, 7), [7, 14, 21, 28]),
        (CronFields(0, 0, -1, -1, 0), [7, 14, 21, 28]),
        (CronFields(0, 0, 31, 1), [31]),
        (CronFields(0, 0, -1, -3), []),
    ],
)
def test_days_of_january_2024(fields: CronFields, days: list[int]) -> None:
    month = [datetime(2024, 1, 1) + timedelta(day) for day in range(31)]
    assert [when.day for when in month if fields.matches(when.timetuple())] == days


def test_month_step_matches_multiples() -> None:
    months = [datetime(2024, month, 1) for month in range(1, 13)]
    fields = CronFields(0, 0, -1, -3)
    assert [when.month for when in months if fields.matches(when.timetuple())] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    "fields", [CronFields(60), CronFields(-1, 24), CronFields(-1, -1, 0), CronFields(weekday=8)]
)
def test_fields_out_of_range_never_match(fields: CronFields) -> None:
    assert fields.never()
    assert not fields.matches(time.localtime(0))
    assert not CronFields(59, 23, 31, 12, 7).never()
