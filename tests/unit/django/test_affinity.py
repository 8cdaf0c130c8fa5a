"""CPU affinity of worker processes: the table of the manual."""

from __future__ import annotations

import os
from multiprocessing import get_context
from typing import Any

import pytest

from qworker.django.clusters.affinity import pin, processors_of

ROWS = [
    (4, 1, [[0], [1], [2], [3]]),
    (4, 2, [[0, 1], [2, 3], [0, 1], [2, 3]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3], [4, 5, 6], [7, 0, 1], [2, 3, 4], [5, 6, 7]]),
]


@pytest.mark.parametrize(("processors", "each", "expected"), ROWS)
def test_workers_are_assigned_processors_in_turn(processors: int, each: int, expected: Any) -> None:
    available = range(processors)
    assert [processors_of(worker, each, available) for worker in range(len(expected))] == expected


@pytest.mark.parametrize("each", [0, -1, 4, 5])
def test_affinity_of_zero_or_all_processors_uses_all(each: int) -> None:
    assert processors_of(1, each, range(4)) == [0, 1, 2, 3]


def test_unavailable_processors_are_skipped() -> None:
    assert [processors_of(worker, 1, [2, 5]) for worker in range(3)] == [[2], [5], [2]]


def _pinned(answers: Any) -> None:
    pin(1)
    answers.put(sorted(os.sched_getaffinity(0)))


def test_process_is_pinned(cluster: Any) -> None:
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(available) < 2:
        pytest.skip("it takes two processors that this process may use, and a system that tells of them")
    cluster(name="default", cpu_affinity=1)
    context = get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_pinned, args=(answers,))
    process.start()
    assert answers.get(timeout=30) == [available[1]]
    process.join()


def test_missing_affinity_support_is_logged(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    cluster(name="default", cpu_affinity=1)
    with caplog.at_level("INFO", logger="django-q"):
        pin(2)
    assert "worker 3 is not pinned to cpu [2]: this system does not support it" in caplog.text
