"""The cost of the rpc:// backend: only calls that have a result name a reply queue, and unread results
do not pile up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qworker import QWorker, states
from qworker.backends.rpc.backend import ENTRY_BYTES, Newest, RpcBackend
from qworker.errors import TaskExpired
from qworker.message.context import Context
from qworker.message.exceptions import exception_to_dict
from qworker.tasks import execution, termination
from qworker.tasks.outcome import EXPIRED
from qworker.testing import FakeClock
from qworker.transports.lease import Envelope, Sender


class KeepingSender(Sender):
    """Keeps the envelopes that are sent."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []

    def push(self, envelopes: Any, timeout: float = 10.0) -> None:
        self.sent += envelopes


class Replies(RpcBackend):
    """An RPC backend with a reply queue but no server."""

    def reply_to(self) -> str:
        return "mine"


def test_only_calls_with_a_result_have_reply_to() -> None:
    app = QWorker("proj", broker="amqp://nowhere", set_as_current=False)
    app.stores._backend = Replies("rpc://", app.conf, FakeClock())
    app.broker.sender = kept = KeepingSender()
    with_result = app.task(name="asked")(lambda x: x)
    ignored = app.task(name="ignored", ignore_result=True)(lambda x: x)
    with_result.delay(1)
    with_result.apply_async((1,), task_id="x")
    with_result.apply_many([(1,)])
    for envelope in kept.sent:
        headers, properties = json.loads(envelope.headers), json.loads(envelope.properties or "{}")
        assert (properties["reply_to"], properties["correlation_id"]) == ("mine", headers["id"])
    del kept.sent[:]
    ignored.delay(1)
    ignored.apply_async((1,), priority=3)
    with_result.apply_async((1,), ignore_result=True)
    assert ["reply_to" in (envelope.properties or "") for envelope in kept.sent] == [False] * 3


@pytest.mark.parametrize("called", ["eagerly", "as a function"])
def test_calls_of_a_task_that_runs_outside_of_a_worker_have_reply_to(called: str) -> None:
    """Their results were never sent, and get() waited for ever."""
    app = QWorker("proj", broker="amqp://nowhere", set_as_current=False)
    app.stores._backend = Replies("rpc://", app.conf, FakeClock())
    app.broker.sender = kept = KeepingSender()
    target = app.task(name="target")(lambda: 1)
    outer = app.task(name="outer")(lambda: target.delay().id)
    if called == "eagerly":
        outer.apply().get()
    else:
        outer()
    assert [json.loads(envelope.properties or "{}").get("reply_to") for envelope in kept.sent] == ["mine"]


def test_oldest_unread_results_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
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


def test_rpc_backend_bounds_unread_results() -> None:
    app = QWorker("proj", broker="amqp://nowhere", set_as_current=False)
    assert isinstance(RpcBackend("rpc://", app.conf, FakeClock())._values, Newest)


@pytest.mark.parametrize("end", ["it succeeds", "it expires"])
def test_caller_is_sent_a_result_whose_arguments_results_cannot_contain(end: str) -> None:
    app = QWorker("proj", broker="amqp://nowhere", result_extended=True, set_as_current=False)
    app.stores._backend = Replies("rpc://", app.conf, FakeClock())
    task = app.task(name="takes_a_set")(lambda x: 1)
    app.finalize()
    properties = {"reply_to": "mine", "correlation_id": "id-1"}
    message = {"task": task.name, "id": "id-1"}
    context = Context.from_message(message, [[{1, 2}], {}, {}], properties=properties, task=task)
    if end == "it succeeds":
        outcome = execution.execute(app, task, context, ([{1, 2}], {}))
    else:
        error = exception_to_dict(TaskExpired("expired"))
        outcome = termination.report(app, task, context, EXPIRED, "expired", states.REVOKED, error)
    assert outcome.row is not None
    assert outcome.row[1] == (states.SUCCESS if end == "it succeeds" else states.REVOKED)
