"""A soft limit that passes while a task publishes, retries or serialises is raised once, afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from qworker import QWorker, interrupts
from qworker.errors import EncodeError, SoftTimeLimitExceeded
from qworker.interrupts import interrupt
from qworker.message.context import Context
from qworker.message.protocol import TaskMessage, decode_body, encode, parse_headers
from qworker.tasks.execution import execute
from qworker.tasks.outcome import (
    FAILURE,
    RETRY,
    SUCCESS,
    Outcome,
)
from qworker.transports.lease import Envelope
from tests.support.stores import KeepingStore


class InterruptingStore(KeepingStore):
    """The limit passes during push()."""

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        interrupt(SoftTimeLimitExceeded())
        super().push(envelopes, timeout)


class InterruptingArgument:
    """The limit passes during __repr__() or __json__() of this argument."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __repr__(self) -> str:
        if self.where == "repr":
            interrupt(SoftTimeLimitExceeded())
        return "struck"

    def __json__(self) -> str:
        if self.where == "json":
            interrupt(SoftTimeLimitExceeded())
        return "struck"


@pytest.fixture
def run() -> Iterator[Callable[..., tuple[Outcome, KeepingStore]]]:
    def run(body: Callable[[QWorker, Any], Any], store: KeepingStore) -> tuple[Outcome, KeepingStore]:
        app = QWorker("struck", broker=store, backend="cache+memory://", set_as_current=False)
        task = app.task(name="work", bind=True)(lambda task: body(app, task))
        encoded = encode(TaskMessage(task="work", id="id-1"))
        headers = parse_headers(encoded.headers)
        message = decode_body(encoded.body, headers, {}, frozenset({"json"}))
        app.finalize()
        context = Context.from_message(headers, message, hostname="w@h", task=task)
        interrupts.begin()
        return execute(app, task, context, message, interrupts.end), store

    yield run
    interrupts.end()


Run = Callable[..., tuple[Outcome, KeepingStore]]


def test_soft_limit_during_a_push_is_raised_after_it(run: Run) -> None:
    caught: list[str] = []

    def body(app: QWorker, task: Any) -> None:
        try:
            app.send_task("other")
        except SoftTimeLimitExceeded as error:
            caught.append(type(error).__name__)

    outcome, store = run(body, InterruptingStore())
    assert (outcome.kind, caught) == (SUCCESS, ["SoftTimeLimitExceeded"])
    assert [sent.headers["task"] for sent in store.sent] == ["other"]


def test_soft_limit_during_the_push_of_a_retry_keeps_the_retry(run: Run) -> None:
    def body(app: QWorker, task: Any) -> None:
        raise task.retry(countdown=1)

    outcome, store = run(body, InterruptingStore())
    assert outcome.kind == RETRY
    assert [sent.headers["id"] for sent in store.sent] == ["id-1"]


@pytest.mark.parametrize("where", ["repr", "json"])
def test_soft_limit_during_encoding_is_not_an_encode_error(run: Run, where: str) -> None:
    def body(app: QWorker, task: Any) -> None:
        try:
            app.send_task("other", (InterruptingArgument(where),))
        except EncodeError:
            pytest.fail("taken for an argument that cannot be encoded")

    outcome, store = run(body, KeepingStore())
    assert outcome.kind == FAILURE
    assert "SoftTimeLimitExceeded" in outcome.text
    assert store.sent == []
