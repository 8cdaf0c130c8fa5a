"""What is noted of a run whose function, result or observers do what they should not."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from qworker.django.execution import endings
from qworker.django.execution.calls import package_of, signed
from qworker.django.execution.running import located, run
from qworker.django.execution.work import run_package
from qworker.django.function_names import function_name
from qworker.django.signals import post_execute, post_execute_in_worker, pre_execute
from qworker.django.transports.packages import UNLIMITED, envelope_of
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


class Shop:
    class Till:
        @staticmethod
        def sum(*prices: int) -> int:
            return sum(prices)

    @classmethod
    def name(cls) -> str:
        return cls.__name__


class Bakery(Shop):
    pass


HERE = __name__


@pytest.mark.parametrize(
    ("path", "args", "value"),
    [
        (f"{HERE}.Shop.name", (), "Shop"),
        (f"{HERE}.Bakery.name", (), "Bakery"),
        (f"{HERE}.Shop.Till.sum", (1, 2), 3),
        ("collections.OrderedDict.fromkeys", ("a",), {"a": None}),
        ("len", ([1, 2],), 2),
        ("str.upper", ("a",), "A"),
    ],
)
def test_a_path_leads_into_classes_and_to_builtins(
    package: Any, path: str, args: tuple[Any, ...], value: Any
) -> None:
    assert run(package(path, *args)) == value


@pytest.mark.parametrize(
    "path", ["nothing", "no.such", f"{HERE}.nothing", f"{HERE}.Shop.nothing", f"{HERE}.Shop.Till.x.y", ""]
)
def test_a_path_that_leads_to_nothing_is_a_failure(package: Any, path: str) -> None:
    made = package(path)
    with pytest.raises(ImportError):
        run(made)
    assert made["success"] is False


@pytest.mark.parametrize(
    "func", [Shop.name, Bakery.name, Shop.Till.sum, dict.fromkeys, str.upper, len, math.sqrt, Shop, run]
)
def test_the_name_of_a_function_leads_to_it_again(func: Any) -> None:
    assert located(function_name(func)) == func


def test_what_has_no_path_is_called_by_its_repr() -> None:
    assert function_name([].append).startswith("<built-in method")


@pytest.mark.parametrize(("function", "found"), [(raise_unsayable, True), ("no.such", False)])
def test_a_failure_is_told_in_the_worker_before_and_after(package: Any, function: Any, found: bool) -> None:
    heard: list[Any] = []

    def observer(signal: Any, func: Any, task: dict[str, Any], **_: Any) -> None:
        heard.append((signal, func is not None, task.get("success")))

    for signal in (pre_execute, post_execute_in_worker):
        signal.connect(observer)
    try:
        with pytest.raises((Unsayable, ImportError)):
            run(package(function))
    finally:
        for signal in (pre_execute, post_execute_in_worker):
            signal.disconnect(observer)
    assert heard == [(pre_execute, found, None), (post_execute_in_worker, found, False)]


def test_who_takes_a_package_is_noted_before_it_runs(package: Any) -> None:
    heard: list[str] = []

    def observer(task: dict[str, Any], **_: Any) -> None:
        heard.append(task["cluster"])

    pre_execute.connect(observer)
    try:
        for options in ({}, {"cluster": "other"}):
            assert run_package(signed(package("math.sqrt", 4, save=False, **options))) == 2
    finally:
        pre_execute.disconnect(observer)
    assert heard == ["default", "other"]


@pytest.mark.parametrize(("timeout", "limit"), [(3, 3), (1.5, 1.5), (None, None), (0, None), (-1, UNLIMITED)])
def test_the_message_carries_the_timeout(package: Any, timeout: Any, limit: Any) -> None:
    made = package("math.sqrt", 4, timeout=timeout)
    assert json.loads(envelope_of("text", made, "queue").headers)["timelimit"] == [limit, None]


@pytest.mark.parametrize("signal", [post_execute_in_worker, post_execute])
def test_an_observer_that_raises_changes_nothing(package: Any, signal: Any) -> None:
    def observer(**_: Any) -> None:
        raise ValueError("an observer")

    signal.connect(observer)
    try:
        made = package("math.sqrt", 4, save=False)
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
