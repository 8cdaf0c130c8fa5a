"""Parsing of instants and durations, and the fake clock."""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import clock
from qworker.testing import FakeClock

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.astimezone(timezone(timedelta(hours=-5))),
        "2030-01-31T12:00:00+00:00",
        "2030-01-31T12:00:00Z",
        "2030-01-31T12:00:00",
        "2030-01-31T07:00:00-05:00",
        NOON.timestamp(),
        int(NOON.timestamp()),
    ],
)
def test_instant_in_all_notations(value: object) -> None:
    assert clock.to_epoch(value) == NOON.timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["soon", "", "x" * 10_000, "NaN", math.nan, math.inf, -math.inf, 10**400, "12:00"]
)
def test_invalid_time_raises_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        clock.to_epoch(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, True, date(2030, 1, 31), [], b"2030-01-31"])
def test_time_of_another_type_raises_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="expected a datetime"):
        clock.to_epoch(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [1e30, -1e30, math.inf, math.nan, 253402300800.0])
def test_instants_outside_the_calendar_are_refused(epoch: float) -> None:
    with pytest.raises(ValueError, match="years 1 and 9999"):
        clock.from_epoch(epoch)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.timezones()))
def test_instant_survives_a_round_trip_through_text(moment: datetime) -> None:
    epoch = clock.to_epoch(moment)
    assert clock.to_epoch(clock.isoformat(epoch)) == pytest.approx(epoch, abs=1e-3)
    assert clock.from_epoch(epoch).utcoffset() == timedelta(0)
    # As instants: in an hour that a clock change repeats, datetimes of two zones are never equal.
    assert clock.to_epoch(clock.parse_iso(moment.isoformat())) == pytest.approx(epoch, abs=1e-3)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (timedelta(minutes=2), 120.0),
        ("10", 10.0),
        ("1.5", 1.5),
        ("10s", 10.0),
        ("200ms", 0.2),
        ("1h30m", 5400.0),
        (" 2d 1h ", 176400.0),
        ("1w", 604800.0),
        (".5s", 0.5),
    ],
)
def test_durations_are_parsed(given_: float | timedelta | str, expected: float) -> None:
    assert clock.seconds(given_) == pytest.approx(expected)


@pytest.mark.parametrize(
    "value", ["", "  ", "soon", "10x", "1h30", "-1s", -1, "-5", "nan", "inf", math.nan, timedelta(-1)]
)
def test_invalid_durations_are_rejected(value: float | timedelta | str) -> None:
    with pytest.raises(ValueError, match=r"not a|negative"):
        clock.seconds(value)


@pytest.mark.parametrize("value", [None, True, [1]])
def test_durations_of_other_types_are_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="expected seconds"):
        clock.seconds(value)  # type: ignore[arg-type]


def test_system_clock() -> None:
    before = time.time()
    assert before <= clock.SYSTEM_CLOCK.now() <= before + 5
    first = clock.SYSTEM_CLOCK.monotonic()
    clock.SYSTEM_CLOCK.sleep(0)
    assert clock.SYSTEM_CLOCK.monotonic() >= first
    assert clock.boottime() > 0


def test_fake_clock_moves_only_on_request() -> None:
    fake = FakeClock(now=100.0, monotonic=5.0)
    assert (fake.now(), fake.monotonic()) == (100.0, 5.0)
    fake.sleep(2.5)
    fake.advance(1)
    assert (fake.now(), fake.monotonic(), fake.slept) == (103.5, 8.5, [2.5])
    fake.jump(-50)
    assert (fake.now(), fake.monotonic()) == (53.5, 8.5)
    with pytest.raises(ValueError, match="does not go back"):
        fake.advance(-1)
