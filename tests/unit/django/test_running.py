"""Runs of functions: what is recorded, also if functions, results or receivers misbehave."""

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


def append_lock(given: list[Any]) -> int:
    given.append(threading.Lock())
    return len(given)


@pytest.fixture
def package(cluster: Any) -> Any:
    cluster(name="default", orm="default")
    return lambda function, *args, **options: package_of(function, args, {}, options)


def test_error_with_a_failing_str_is_recorded(package: Any) -> None:
    made = package(raise_unsayable)
    with pytest.raises(Unsayable):
        run(made)
    assert made["success"] is False
    assert made["result"].startswith("Unsayable : Traceback")


def test_unpicklable_result_is_a_failure(package: Any) -> None:
    made = package(threading.Lock)
    with pytest.raises(EncodeError):
        run(made)
    assert made["success"] is False


def test_unsaved_result_need_not_be_picklable(package: Any) -> None:
    made = package(threading.Lock, save=False)
    run(made)
    assert made["success"] is True


def test_arguments_that_became_unpicklable_are_stored_as_text(package: Any) -> None:
    made = package(append_lock, [1])
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
def test_paths_of_methods_and_builtins(package: Any, path: str, args: tuple[Any, ...], value: Any) -> None:
    assert run(package(path, *args)) == value


@pytest.mark.parametrize(
    "path", ["nothing", "no.such", f"{HERE}.nothing", f"{HERE}.Shop.nothing", f"{HERE}.Shop.Till.x.y", ""]
)
def test_unresolvable_path_is_a_failure(package: Any, path: str) -> None:
    made = package(path)
    with pytest.raises(ImportError):
        run(made)
    assert made["success"] is False


@pytest.mark.parametrize(
    "func", [Shop.name, Bakery.name, Shop.Till.sum, dict.fromkeys, str.upper, len, math.sqrt, Shop, run]
)
def test_function_name_round_trips(func: Any) -> None:
    assert located(function_name(func)) == func


def test_function_without_a_path_is_named_by_its_repr() -> None:
    assert function_name([].append).startswith("<built-in method")


@pytest.mark.parametrize(("function", "is_found"), [(raise_unsayable, True), ("no.such", False)])
def test_signals_are_sent_before_and_after_a_failure(package: Any, function: Any, is_found: bool) -> None:
    received: list[Any] = []

    def observer(signal: Any, func: Any, task: dict[str, Any], **_: Any) -> None:
        received.append((signal, func is not None, task.get("success")))

    for signal in (pre_execute, post_execute_in_worker):
        signal.connect(observer)
    try:
        with pytest.raises((Unsayable, ImportError)):
            run(package(function))
    finally:
        for signal in (pre_execute, post_execute_in_worker):
            signal.disconnect(observer)
    assert received == [(pre_execute, is_found, None), (post_execute_in_worker, is_found, False)]


def test_package_has_its_cluster_before_it_runs(package: Any) -> None:
    received: list[str] = []

    def observer(task: dict[str, Any], **_: Any) -> None:
        received.append(task["cluster"])

    pre_execute.connect(observer)
    try:
        for options in ({}, {"cluster": "other"}):
            assert run_package(signed(package("math.sqrt", 4, save=False, **options))) == 2
    finally:
        pre_execute.disconnect(observer)
    assert received == ["default", "other"]


@pytest.mark.parametrize(("timeout", "limit"), [(3, 3), (1.5, 1.5), (None, None), (0, None), (-1, UNLIMITED)])
def test_message_carries_the_timeout(package: Any, timeout: Any, limit: Any) -> None:
    made = package("math.sqrt", 4, timeout=timeout)
    assert json.loads(envelope_of("text", made, "queue").headers)["timelimit"] == [limit, None]


@pytest.mark.parametrize("signal", [post_execute_in_worker, post_execute])
def test_failing_receiver_does_not_affect_the_task(package: Any, signal: Any) -> None:
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


def test_next_task_of_a_chain_has_a_stable_id(package: Any) -> None:
    made = package("math.sqrt", 4, chain=[("math.sqrt", (9,))], save=False)
    run(made)
    (first,), (again,) = endings.end(made), endings.end(made)
    assert first[3]["id"] == again[3]["id"] != made["id"]
