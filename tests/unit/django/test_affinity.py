"""Which processors a worker process may use: the rows of the manual."""

from __future__ import annotations

import os
from multiprocessing import get_context
from typing import Any

import pytest

from qworker.django.clusters.log import pin, processors_of

ROWS = [
    (4, 1, [[0], [1], [2], [3]]),
    (4, 2, [[0, 1], [2, 3], [0, 1], [2, 3]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3], [4, 5, 6], [7, 0, 1], [2, 3, 4], [5, 6, 7]]),
]


@pytest.mark.parametrize(("processors", "each", "expected"), ROWS)
def test_workers_take_the_next_processors_in_turn(processors: int, each: int, expected: Any) -> None:
    available = range(processors)
    assert [processors_of(worker, each, available) for worker in range(len(expected))] == expected


@pytest.mark.parametrize("each", [0, -1, 4, 5])
def test_none_or_as_many_as_there_are_is_all(each: int) -> None:
    assert processors_of(1, each, range(4)) == [0, 1, 2, 3]


def test_processors_that_this_process_may_not_use_are_left_out() -> None:
    assert [processors_of(worker, 1, [2, 5]) for worker in range(3)] == [[2], [5], [2]]


def _pinned(answers: Any) -> None:
    pin(1)
    answers.put(sorted(os.sched_getaffinity(0)))


def test_a_process_is_pinned(cluster: Any) -> None:
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


def test_where_the_system_cannot_do_it_the_log_says_what_it_would_be(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    cluster(name="default", cpu_affinity=1)
    with caplog.at_level("INFO", logger="django-q"):
        pin(2)
    assert "worker 3 is not pinned to cpu [2]: this system does not support it" in caplog.text
