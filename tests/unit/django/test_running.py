"""What is noted of a run whose function, result or observers do what they should not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qworker.django.execution import endings
from qworker.django.execution.calls import package_of
from qworker.django.execution.running import run
from qworker.django.signals import post_execute, post_execute_in_worker
from qworker.errors import EncodeError


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_unsayable() -> None:
    raise Unsayable


def spoil(given: list[Any]) -> int:
    given.append(threading.Lock())
    return len(given)


@pytest.fixture
def package(cluster: Any) -> Any:
    cluster(name="default", orm="default")
    return lambda function, *args, **options: package_of(function, args, {}, options)


def test_an_error_of_which_nothing_can_be_said(package: Any) -> None:
    made = package(raise_unsayable)
    with pytest.raises(Unsayable):
        run(made)
    assert made["success"] is False
    assert made["result"].startswith("Unsayable : Traceback")


def test_a_result_that_cannot_be_pickled_is_a_failure(package: Any) -> None:
    made = package(threading.Lock)
    with pytest.raises(EncodeError):
        run(made)
    assert made["success"] is False


def test_a_result_that_nobody_keeps_may_be_anything(package: Any) -> None:
    made = package(threading.Lock, save=False)
    run(made)
    assert made["success"] is True


def test_arguments_that_were_spoilt_are_kept_as_text(package: Any) -> None:
    made = package(spoil, [1])
    assert run(made) == 2
    assert made["success"] is True
    (kept,) = made["args"]
    assert "lock" in kept


@pytest.mark.parametrize("signal", [post_execute_in_worker, post_execute])
def test_an_observer_that_raises_changes_nothing(package: Any, signal: Any) -> None:
    def observer(**_: Any) -> None:
        raise ValueError("an observer")

    signal.connect(observer)
    try:
        made = package("math.sqrt", 4)
        assert run(made) == 2
        assert endings.end(made) == []
    finally:
        signal.disconnect(observer)
    assert made["success"] is True


def test_the_next_of_a_chain_is_the_same_task_each_time(package: Any) -> None:
    made = package("math.sqrt", 4, chain=[("math.sqrt", (9,))], save=False)
    run(made)
    (first,), (again,) = endings.end(made), endings.end(made)
    assert first[3]["id"] == again[3]["id"] != made["id"]
