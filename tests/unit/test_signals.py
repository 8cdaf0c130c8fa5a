"""Signals: which receivers are called, how often, and that errors in receivers are contained."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

from qworker import signals
from qworker.errors import ConfigurationError
from qworker.signals import Signal


class Task:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def signal() -> Signal:
    return Signal("task_happened")


def test_receiver_gets_sender_signal_and_arguments(signal: Signal) -> None:
    calls: list[dict[str, Any]] = []

    @signal.connect
    def receiver(**arguments: Any) -> str:
        calls.append(arguments)
        return "seen"

    task = Task("a")
    assert signal.send(task, result=3) == [(receiver, "seen")]
    assert calls == [{"signal": signal, "sender": task, "result": 3}]


def test_send_without_receivers_returns_an_empty_list(signal: Signal) -> None:
    assert not signal.receivers
    assert signal.send(None) == []


@pytest.mark.parametrize(
    ("wanted", "sender", "called"),
    [
        (None, "a", True),
        ("a", "a", True),
        ("a", "b", False),
        ("a", Task("a"), True),
        ("a", Task("b"), False),
        ("a", None, False),
    ],
)
def test_receiver_for_a_sender_by_name(signal: Signal, wanted: Any, sender: Any, called: bool) -> None:
    calls: list[Any] = []

    @signal.connect(sender=wanted)
    def receiver(sender: Any, **_: Any) -> None:
        calls.append(sender)

    signal.send(sender)
    assert bool(calls) is called
    assert signal.has_listeners(sender) is called


def test_receiver_for_a_sender_by_identity(signal: Signal) -> None:
    mine, other, calls = Task("same"), Task("same"), []
    signal.connect(lambda sender, **_: calls.append(sender), sender=mine)
    signal.send(other)
    signal.send(mine)
    assert calls == [mine]


def test_connect_and_disconnect_are_idempotent(signal: Signal) -> None:
    calls: list[int] = []

    def receiver(**_: Any) -> None:
        calls.append(1)

    signal.connect(receiver)
    signal.connect(receiver)
    signal.send(None)
    assert signal.disconnect(receiver)
    assert not signal.disconnect(receiver)
    signal.send(None)
    assert calls == [1]


def test_dispatch_uid_identifies_the_receiver(signal: Signal) -> None:
    calls: list[str] = []
    signal.connect(lambda **_: calls.append("old"), dispatch_uid="one")
    signal.connect(lambda **_: calls.append("new"), dispatch_uid="one")
    signal.send(None)
    assert calls == ["new"]
    assert signal.disconnect(dispatch_uid="one")
    assert not signal.receivers


def test_failing_receiver_is_logged_and_others_run(signal: Signal, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def broken(**_: Any) -> None:
        raise ValueError("mine")

    signal.connect(broken)
    signal.connect(lambda **_: calls.append(1))
    with caplog.at_level(logging.ERROR, logger="qworker.signals"):
        answers = signal.send(None)
    assert calls == [1]
    assert isinstance(answers[0][1], ValueError)
    assert "task_happened" in caplog.text
    assert "mine" in caplog.text


def test_methods_and_weak_receivers(signal: Signal) -> None:
    class Owner:
        def __init__(self) -> None:
            self.calls = 0

        def receive(self, **_: Any) -> None:
            self.calls += 1

    owner = Owner()
    signal.connect(owner.receive, weak=True)
    signal.send(None)
    assert owner.calls == 1
    assert signal.disconnect(owner.receive)
    signal.connect(owner.receive, weak=True)
    del owner
    gc.collect()
    assert signal.send(None) == []
    assert not signal.receivers


def test_receiver_can_disconnect_itself(signal: Signal) -> None:
    calls: list[str] = []

    def once(**_: Any) -> None:
        calls.append("once")
        signal.disconnect(once)

    signal.connect(once)
    signal.connect(lambda **_: calls.append("always"))
    signal.send(None)
    signal.send(None)
    assert calls == ["once", "always", "always"]


def test_receiver_without_kwargs_is_rejected(signal: Signal) -> None:
    def receiver(sender: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"receiver\(\) must take \*\*kwargs"):
        signal.connect(receiver)
    with pytest.raises(ConfigurationError, match="not callable"):
        signal.connect("receiver")  # type: ignore[arg-type]


def test_signal_names_match_their_variables() -> None:
    found = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert {name: value.name for name, value in found.items()} == {name: name for name in found}
    assert {
        "before_task_publish",
        "task_prerun",
        "task_failure",
        "worker_ready",
        "worker_process_init",
    } <= found.keys()
