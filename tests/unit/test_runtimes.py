"""Runtime estimates, learned from runs."""

from __future__ import annotations

import pytest

from qworker.components.pool.runtimes import MAX_NAMES, OVERHEAD, RuntimeEstimates


def test_unknown_task_has_no_estimate() -> None:
    runtimes = RuntimeEstimates()
    assert (runtimes.seconds("add"), runtimes.mean) == (None, 0.0)


def test_first_run_is_the_estimate() -> None:
    runtimes = RuntimeEstimates()
    runtimes.learn("add", 0.5)
    assert runtimes.seconds("add") == runtimes.mean == pytest.approx(0.5 + OVERHEAD)
    assert runtimes.seconds("other") is None


def test_estimate_converges_to_the_runtime() -> None:
    runtimes = RuntimeEstimates()
    runtimes.learn("add", 0.1)
    for _ in range(40):
        runtimes.learn("add", 0.01)
    assert runtimes.seconds("add") == pytest.approx(0.01, rel=0.02)


def test_one_long_run_raises_the_estimate_at_once() -> None:
    runtimes = RuntimeEstimates()
    for _ in range(100):
        runtimes.learn("add", 0.001)
    runtimes.learn("add", 10.0)
    assert (runtimes.seconds("add") or 0) >= 2.0


def test_mean_rises_quickly_and_falls_slowly() -> None:
    rising, falling = RuntimeEstimates(), RuntimeEstimates()
    rising.learn("short", 0.001)
    falling.learn("long", 1.0)
    for _ in range(5):
        rising.learn("long", 1.0)
        falling.learn("short", 0.001)
    assert rising.mean > 0.5  # fetching too much is worse than fetching too often
    assert falling.mean > 0.5


def test_number_of_task_names_is_limited() -> None:
    runtimes = RuntimeEstimates()
    for number in range(MAX_NAMES + 10):
        runtimes.learn(f"task {number}", 0.001)
    assert len(runtimes._by_name) <= MAX_NAMES
    assert runtimes.seconds(f"task {MAX_NAMES + 9}") is not None
