"""Which state may replace which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import states

ANY = st.sampled_from([*sorted(states.ALL_STATES), "PROGRESS", "IGNORED"])


def test_precedence_is_that_of_celery() -> None:
    ranked = [
        "SUCCESS",
        "FAILURE",
        "PROGRESS",
        "REVOKED",
        "STARTED",
        "RECEIVED",
        "REJECTED",
        "RETRY",
        "PENDING",
    ]
    assert sorted(ranked, key=states.precedence) == ranked


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("PENDING", "STARTED", True),
        ("STARTED", "SUCCESS", True),
        ("STARTED", "RETRY", True),
        ("RETRY", "STARTED", True),
        ("PROGRESS", "SUCCESS", True),
        ("PROGRESS", "PROGRESS", True),
        ("PROGRESS", "RETRY", True),
        ("STARTED", "PROGRESS", True),
        ("STARTED", "STARTED", True),
        ("PROGRESS", "STARTED", False),
        ("SUCCESS", "FAILURE", False),
        ("SUCCESS", "SUCCESS", False),
        ("FAILURE", "SUCCESS", True),
        ("REVOKED", "SUCCESS", True),
        ("FAILURE", "STARTED", False),
        ("REVOKED", "PROGRESS", False),
        ("FAILURE", "RETRY", False),
    ],
)
def test_may_replace(old: str, new: str, allowed: bool) -> None:
    assert states.may_replace(old, new) is allowed


@given(st.lists(ANY, max_size=20))
def test_final_states_stay_final_and_success_stays(writes: list[str]) -> None:
    stored, was_final, succeeded = "PENDING", False, False
    for new in writes:
        if states.may_replace(stored, new):
            stored = new
        was_final = was_final or stored in states.READY_STATES
        succeeded = succeeded or stored == "SUCCESS"
        assert not was_final or stored in states.READY_STATES
        assert not succeeded or stored == "SUCCESS"


def test_state_sets_are_consistent() -> None:
    assert not states.READY_STATES & states.UNREADY_STATES
    assert states.PROPAGATE_STATES < states.EXCEPTION_STATES
    assert set(states.PRECEDENCE) - {None} == states.ALL_STATES
