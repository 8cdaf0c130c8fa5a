"""Single values: their conversion to and from plain data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from qworker.message.kombu_json import dumps, loads
from qworker.tasks.codecs import TIMEDELTA, ConversionError


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("-P1DT1H", -timedelta(hours=25)),
        ("P1W", timedelta(days=7)),
        ("P1,5D", timedelta(hours=36)),
        ("P999999999DT23H59M59.999999S", timedelta.max),
    ],
)
def test_durations_are_loaded(plain: Any, expected: timedelta) -> None:
    assert TIMEDELTA.load(plain) == expected


@pytest.mark.parametrize(
    "plain",
    [
        True,
        None,
        "",
        "P",
        "PT",
        "P1Y",
        "P1M",
        "1h",
        "90",
        f"P{'9' * 99}D",
        float("nan"),
        1e300,
        "P9999999999D",
        [1],
    ],
)
def test_invalid_durations_are_rejected(plain: Any) -> None:
    with pytest.raises(ConversionError, match="expected a timedelta"):
        TIMEDELTA.load(plain)


def test_overlong_duration_is_rejected() -> None:
    assert TIMEDELTA.load(loads(dumps(TIMEDELTA.dump(timedelta.min)))) == timedelta.min
    with pytest.raises(ConversionError, match="centuries"):
        TIMEDELTA.dump(timedelta.max)
