"""What calls and results cost where results are sent to the caller: only those that are to have one name a
queue, and what nobody asks for does not pile up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.rpc.backend import ENTRY_BYTES, Newest, RpcBackend
from qworker.testing import FakeClock
from qworker.transports.lease import Envelope, Sender


class Kept(Sender):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []

    def push(self, envelopes: Any, timeout: float = 10.0) -> None:
        self.sent += envelopes


class Replies(RpcBackend):
    """Whose queue is there without a server."""

    def reply_to(self) -> str:
        return "mine"


def test_only_calls_with_a_result_name_a_queue() -> None:
    app = QWorker("proj", broker="amqp://nowhere", set_as_current=False)
    app.stores._backend = Replies("rpc://", app.conf, FakeClock())
    app.broker.sender = kept = Kept()
    asked = app.task(name="asked")(lambda x: x)
    ignored = app.task(name="ignored", ignore_result=True)(lambda x: x)
    asked.delay(1)
    asked.apply_async((1,), task_id="x")
    asked.apply_many([(1,)])
    for envelope in kept.sent:
        headers, properties = json.loads(envelope.headers), json.loads(envelope.properties or "{}")
        assert (properties["reply_to"], properties["correlation_id"]) == ("mine", headers["id"])
    del kept.sent[:]
    ignored.delay(1)
    ignored.apply_async((1,), priority=3)
    asked.apply_async((1,), ignore_result=True)
    assert ["reply_to" in (envelope.properties or "") for envelope in kept.sent] == [False] * 3


def test_the_oldest_results_that_nobody_asks_for_go(caplog: pytest.LogCaptureFixture) -> None:
    kept = Newest(3 * (100 + ENTRY_BYTES))
    for name in "abca":
        kept[name] = b"x" * 100, None
    assert not caplog.records
    kept["d"] = b"x" * 100, None
    assert list(kept) == ["c", "a", "d"]
    kept["e"] = b"x" * 100, None
    assert len(caplog.records) == 1
    assert "task_ignore_result" in caplog.text
    assert kept.pop("e") == (b"x" * 100, None)
    assert kept.pop("e", None) is None
    kept["huge"] = b"x" * 10_000, None
    assert list(kept) == ["huge"]
    del kept["huge"]
    assert kept.size == 0


def test_what_came_by_rpc_is_bounded() -> None:
    app = QWorker("proj", broker="amqp://nowhere", set_as_current=False)
    assert isinstance(RpcBackend("rpc://", app.conf, FakeClock())._values, Newest)
