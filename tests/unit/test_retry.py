"""Retry policies: delays and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import ConfigurationError
from qworker.publishing.retry import RECONNECT, RetryPolicy, backoff_delay

SECONDS = st.floats(0, 1e6)
CHANCE = st.floats(0, 1, exclude_max=True)


def most() -> float:
    return 0.999999


@pytest.mark.parametrize(("attempt", "expected"), [(0, 0.0), (1, 0.2), (2, 0.4), (3, 0.5), (100, 0.5)])
def test_intervals_grow_as_in_kombu(attempt: int, expected: float) -> None:
    policy = RetryPolicy(interval_start=0, interval_step=0.2, interval_max=0.5)
    assert policy.delay(attempt, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("retries", "expected"), [(0, 2), (1, 4), (2, 8), (8, 512), (9, 600), (10_000, 600), (-1, 2)]
)
def test_backoff_doubles_up_to_its_maximum(retries: int, expected: float) -> None:
    assert backoff_delay(2, retries, 600, False, most) == expected
    assert backoff_delay(2, retries, 600, True, lambda: 0.5) == expected / 2


def test_policy_with_backoff_ignores_intervals() -> None:
    policy = RetryPolicy(backoff=1.0, backoff_max=10, jitter=False, interval_start=99)
    assert [policy.delay(attempt, most) for attempt in range(5)] == [1, 2, 4, 8, 10]


@given(SECONDS, SECONDS, SECONDS, st.none() | SECONDS, SECONDS, st.booleans(), st.integers(0, 10**9), CHANCE)
def test_delay_is_between_zero_and_the_maximum(
    start: float,
    step: float,
    top: float,
    backoff: float | None,
    cap: float,
    jitter: bool,
    attempt: int,
    chance: float,
) -> None:
    policy = RetryPolicy(3, start, step, top, backoff, cap, jitter)
    assert 0 <= policy.delay(attempt, lambda: chance) <= (top if backoff is None else cap)


def test_reconnect_policy_is_unlimited_and_jittered() -> None:
    assert RECONNECT.allows(10**9)
    assert RECONNECT.delay(0, most) == pytest.approx(0.1, rel=1e-3)
    assert RECONNECT.delay(100, most) == pytest.approx(2, rel=1e-3)
    assert RECONNECT.delay(100, lambda: 0.0) == 0


def test_max_retries_limits_attempts() -> None:
    assert [RetryPolicy(max_retries=2).allows(attempt) for attempt in range(4)] == [True, True, False, False]


def test_policy_from_the_mapping_of_celery() -> None:
    policy = RetryPolicy.from_mapping(
        {
            "max_retries": None,
            "interval_start": 1,
            "interval_step": 2,
            "interval_max": 3,
            "retry_errors": None,
        }
    )
    assert policy == RetryPolicy(None, 1, 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_retrys": 3}, "did you mean 'max_retries'"),
        ({"zzz": 3}, "the known keys are"),
        ({"max_retries": "3"}, "cannot be '3'"),
        ({"max_retries": 2.5}, "cannot be 2.5"),
        ({"max_retries": True}, "cannot be True"),
        ({"interval_start": -1}, "cannot be -1"),
        ({"interval_start": None}, "cannot be None"),
        ({"interval_max": float("nan")}, "cannot be nan"),
        ({"interval_max": float("inf")}, "cannot be inf"),
        ({"jitter": 1}, "cannot be 1"),
    ],
)
def test_invalid_mappings_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        RetryPolicy.from_mapping(options, "task_publish_retry_policy")
    assert caught.value.setting == "task_publish_retry_policy"
