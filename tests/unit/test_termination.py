"""Failure handling of killed tasks: on_terminated(), errbacks and callbacks."""

from __future__ import annotations

import json
import signal
from typing import Any
from uuid import UUID

import pytest

from qworker import QWorker, Task, states
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import ChordError, PublishError, Reject
from qworker.message.context import Context
from qworker.message.exceptions import exception_of, exception_to_dict
from qworker.message.marks import CAUSE, FAILED, PUBLICATION, RUN
from qworker.message.protocol import TaskMessage, decode_body, encode, parse_headers, parse_properties
from qworker.tasks import copies, execution, followup, termination
from qworker.tasks.outcome import (
    COPY,
    EXPIRED,
    FAILURE,
    LOST,
    NOT_STARTED,
    POISONED,
    REQUEUED,
    RETRY,
    REVOKED,
    SUCCESS,
    TERMINATED,
    TIME_LIMIT,
    UNCONFIRMED,
    Outcome,
)
from qworker.testing import FakeClock, MemoryStore
from tests.support.receiving import everything


class Persistent(Task[Any, Any]):
    """A task that retries after it was killed."""

    has_on_terminated = True

    def on_terminated(self, context: Context, state: str, error: dict[str, Any]) -> None:
        raise self.retry(exc=LookupError(state), countdown=7, throw=False)


class Hooked(Task[Any, Any]):
    """A task with hooks of its own, before which its end is stored."""

    def after_return(self, *given: Any) -> None:
        pass


class Setup:
    """An app whose task has on_terminated(), and one of its calls."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.app = QWorker(
            "bench",
            broker=self.store,
            backend="cache+memory://",
            clock=self.clock,
            set_as_current=False,
            **settings,
        )

    def report(self) -> Outcome:
        app = self.app
        task = app.task(name="work", base=Persistent, acks_late=True)(lambda: None)
        app.finalize()
        encoded = encode(TaskMessage(task="work", id="id-1"))
        headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
        body = decode_body(encoded.body, headers, properties, frozenset({"json", "pickle"}))
        context = Context.from_message(headers, body, properties=properties, hostname="w@h", task=task)
        error = {"exc_type": "TimeLimitExceeded", "exc_message": [3]}
        return termination.report(app, task, context, TIME_LIMIT, "killed", states.FAILURE, error)


def _by_alarm() -> Exception:
    """An exception that a signal handler of the task raises."""

    def ring(*_: Any) -> None:
        raise TimeoutError("the hook's own alarm")

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except TimeoutError as error:
        return error
    finally:
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError


@pytest.mark.parametrize(
    "problem", [ValueError("a bug"), PublishError("it has no more retries"), Reject("no"), _by_alarm()]
)
def test_error_of_on_terminated_is_logged_and_the_end_is_reported(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise problem

    linked = Linked()
    linked.task.has_on_terminated, linked.task.on_terminated = True, fail  # type: ignore[method-assign]
    outcome = linked.report()
    assert (outcome.kind, outcome.reported, outcome.row is not None) == (TIME_LIMIT, True, True)
    assert [type(error).__name__ for error in linked.errback_calls] == ["TimeLimitExceeded"]
    assert "on_terminated() of task work[id-1] raised" in caplog.text


def test_on_terminated_can_retry() -> None:
    bench = Setup()
    outcome = bench.report()
    assert (outcome.kind, outcome.runtime) == (RETRY, None)
    assert outcome.text == "Retry in 7s: LookupError('FAILURE')"
    assert outcome.row is not None
    assert outcome.row[:2] == ("id-1", states.RETRY)
    assert bench.store.admin.next_due(["celery"]) == bench.clock.now() + 7
    assert bench.store.messages == 1


def test_unsent_retry_of_on_terminated_is_tried_again() -> None:
    bench = Setup(task_publish_retry=False)
    bench.store.away = True
    assert bench.report() == NOT_STARTED
    assert bench.clock.slept == [termination.AGAIN_SECONDS]


class Linked:
    """A killed call with a callback and an errback."""

    def __init__(self, **fields: Any) -> None:
        self.store = MemoryStore(FakeClock())
        self.app = app = QWorker(
            "linked",
            broker=self.store,
            backend="cache+memory://",
            clock=self.store.clock,
            task_publish_retry=False,
            result_extended=fields.pop("result_extended", False),
            set_as_current=False,
        )
        self.errback_calls: list[Any] = []
        base = fields.pop("base", Task)
        self.task = app.task(name="work", base=base, acks_late=fields.pop("acks_late", True))(lambda: None)
        self.link = app.task(name="link")(lambda value: None)
        app.task(name="told")(lambda request, exc, traceback: self.errback_calls.append(exc))
        app.finalize()
        self.headers = fields.pop("headers", {})
        self.redelivered = fields.pop("redelivered", False)
        given = {"callbacks": [self.link.s().set(task_id="next")], "errbacks": [app.tasks["told"].s()]}
        self.message = TaskMessage(task="work", id="id-1", headers=self.headers, **{**given, **fields})

    def context(self) -> Context:
        encoded = encode(self.message)
        headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
        body = decode_body(encoded.body, headers, properties, frozenset({"json", "pickle"}))
        return Context.from_message(
            headers,
            body,
            properties=properties,
            delivery_info={"redelivered": self.redelivered},
            hostname="w@h",
            task=self.task,
        )

    def report(self, kind: str = TIME_LIMIT) -> Outcome:
        error = {"exc_type": "TimeLimitExceeded", "exc_message": [3]}
        return termination.report(self.app, self.task, self.context(), kind, "killed", states.FAILURE, error)

    def sent(self) -> list[tuple[str, Any]]:
        return [
            (json.loads(leased.headers)["id"], json.loads(leased.body)[0])
            for leased in everything(self.store)
        ]


@pytest.mark.parametrize("kind", [TIME_LIMIT, LOST, TERMINATED])
@pytest.mark.parametrize("acks_late", [True, False])
def test_task_killed_after_storing_its_success_calls_its_callbacks(kind: str, acks_late: bool) -> None:
    linked = Linked(acks_late=acks_late)
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    outcome = linked.report(kind)
    assert (outcome.kind, outcome.runtime, outcome.text) == (SUCCESS, None, "")
    assert linked.sent() == [("next", [5])]
    assert linked.errback_calls == []


@pytest.mark.parametrize(
    "fields",
    [{}, {"callbacks": None}, {"callbacks": None, "errbacks": None, "base": Hooked}],
    ids=["links", "errbacks", "hooks"],
)
@pytest.mark.parametrize("kind", [TIME_LIMIT, LOST])
def test_task_killed_after_storing_its_failure_keeps_its_error(kind: str, fields: dict[str, Any]) -> None:
    """Its result became WorkerLost, after an errback had been given what the task raised."""
    linked = Linked(**fields)
    error = {"exc_type": "KeyError", "exc_message": ["x"], "exc_module": "builtins"}
    linked.app.backend.store_result("id-1", error, states.FAILURE, traceback="Traceback: KeyError")
    outcome = linked.report(kind)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert outcome.kind == kind
    assert (meta["result"], meta["traceback"]) == (error, "Traceback: KeyError")
    assert [repr(call) for call in linked.errback_calls] == (
        ["KeyError('x')"] if fields.get("errbacks", 1) else []
    )


@pytest.mark.parametrize(("kind", "redelivered"), [(TERMINATED, False), (REVOKED, True), (EXPIRED, True)])
def test_task_that_has_failed_is_not_revoked(kind: str, redelivered: bool) -> None:
    """Its result became REVOKED, when its errback had been called or was about to be."""
    linked = Linked(redelivered=redelivered)
    error = {"exc_type": "KeyError", "exc_message": ["x"], "exc_module": "builtins"}
    linked.app.backend.store_result("id-1", error, states.FAILURE, traceback="Traceback: KeyError")
    revoked = {"exc_type": "TaskRevokedError", "exc_message": ["revoked"]}
    outcome = termination.report(
        linked.app, linked.task, linked.context(), kind, "revoked", states.REVOKED, revoked
    )
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert (outcome.kind, outcome.text, outcome.reported) == (FAILURE, "KeyError('x')", True)
    assert (meta["status"], meta["result"], meta["traceback"]) == ("FAILURE", error, "Traceback: KeyError")
    assert [repr(call) for call in linked.errback_calls] == ["KeyError('x')"]


@pytest.mark.parametrize("traceback", [5, ["a"], None])
def test_stored_failure_may_have_any_traceback(traceback: Any) -> None:
    """Another program has stored it. Without one, no errback was called."""
    linked = Linked()
    backend = linked.app.backend
    meta = backend.meta("id-1", states.FAILURE, {"exc_type": "KeyError", "exc_message": ["x"]}, traceback)
    if traceback is None:
        del meta["traceback"]
    backend.store("id-1", meta)
    assert linked.report(LOST).row is not None
    assert [repr(error) for error in linked.errback_calls] == ["KeyError('x')"]


@pytest.mark.parametrize("stored", [states.SUCCESS, states.FAILURE])
def test_task_killed_after_storing_its_end_keeps_its_children(stored: str) -> None:
    linked = Linked()
    backend = linked.app.backend
    failed = {"exc_type": "KeyError", "exc_message": ["x"]}
    meta = backend.meta("id-1", stored, 5 if stored == states.SUCCESS else failed)
    meta["children"] = [[["called", None], None], [["next", None], None]]
    backend.store("id-1", meta)
    outcome = linked.report()
    assert outcome.row is not None
    backend.store_rows([outcome.row])
    found = linked.app.AsyncResult("id-1")
    assert [child.id for child in found.children] == ["called", "next"]


def test_children_of_an_earlier_attempt_are_not_kept() -> None:
    linked = Linked()
    backend = linked.app.backend
    meta = backend.meta("id-1", states.RETRY, {"exc_type": "KeyError", "exc_message": ["x"]})
    backend.store("id-1", {**meta, "children": [[["called", None], None]]})
    outcome = linked.report()
    assert outcome.row is not None
    backend.store_rows([outcome.row])
    assert linked.app.AsyncResult("id-1").children == []


@pytest.mark.parametrize("children", [5, [5], [[5, None]], {"a": 1}, "ab"], ids=str)
def test_stored_end_may_have_any_children(children: Any) -> None:
    """Another program has stored it."""
    linked = Linked()
    backend = linked.app.backend
    backend.store("id-1", {**backend.meta("id-1", states.SUCCESS, 5), "children": children})
    assert linked.report().kind == SUCCESS


def test_task_killed_by_its_hook_after_storing_its_success_has_succeeded() -> None:
    """Its result became WorkerLost."""
    linked = Linked(callbacks=None, errbacks=None, base=Hooked)
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    assert linked.report(LOST).kind == SUCCESS


@pytest.mark.parametrize("stored", ["text", None, {"exc_type": "E"}, [1]])
def test_stored_failure_without_an_error_is_replaced(stored: Any) -> None:
    """Another program has stored it."""
    linked = Linked()
    linked.app.backend.store_result("id-1", stored, states.FAILURE)
    outcome = linked.report(LOST)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert meta["result"]["exc_type"] == "TimeLimitExceeded"


@pytest.mark.parametrize("kind", [REVOKED, EXPIRED, POISONED])
def test_task_delivered_again_that_does_not_run_goes_on_after_its_stored_success(kind: str) -> None:
    linked = Linked(redelivered=True)
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    assert linked.report(kind).kind == SUCCESS
    assert linked.sent() == [("next", [5])]


@pytest.mark.parametrize(
    ("kind", "stored", "fields"),
    [
        (TIME_LIMIT, None, {}),
        (TIME_LIMIT, states.STARTED, {}),
        (TIME_LIMIT, states.FAILURE, {}),
        (EXPIRED, states.SUCCESS, {}),
        (EXPIRED, None, {"redelivered": True}),
        (EXPIRED, states.SUCCESS, {"redelivered": True, "headers": {RUN: "a1"}}),
        (TIME_LIMIT, states.SUCCESS, {"headers": {RUN: "a1"}}),
        (TIME_LIMIT, states.SUCCESS, {"ignore_result": True}),
        (TIME_LIMIT, states.SUCCESS, {"callbacks": None}),
    ],
)
def test_task_killed_without_a_stored_success_fails(kind: str, stored: Any, fields: dict[str, Any]) -> None:
    """Also if the stored success may be that of another call with the same id."""
    linked = Linked(**fields)
    if stored is not None:
        linked.app.backend.store_result("id-1", {"exc_type": "E", "exc_message": []}, stored)
    assert linked.report(kind).kind == kind
    assert linked.sent() == []
    assert len(linked.errback_calls) == 1


def test_unsent_callbacks_of_a_killed_task_are_sent_later() -> None:
    linked = Linked()
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    linked.store.away = True
    assert linked.report() == NOT_STARTED
    linked.store.away = False
    assert linked.report().kind == SUCCESS
    assert linked.sent() == [("next", [5])]


@pytest.mark.parametrize("kind", [REVOKED, EXPIRED, POISONED])
def test_second_message_of_a_body_does_not_go_on_after_the_success_of_the_first(kind: str) -> None:
    linked = Linked(redelivered=True, headers={PUBLICATION: 8})
    assert linked.app.backend.joins.hold("id-1", 7, 60) == 7
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    outcome = linked.report(kind)
    assert (outcome.kind, outcome.row, outcome.follow, outcome.reported) == (COPY, None, (), True)
    assert linked.sent() == []
    linked.message.headers[PUBLICATION] = 7  # type: ignore[index]
    assert linked.report(kind).kind == SUCCESS
    assert linked.sent() == [("next", [5])]


@pytest.mark.parametrize("kind", [LOST, TIME_LIMIT, POISONED])
@pytest.mark.parametrize(
    "cause", [None, {}, {"exc_type": "LookupError", "exc_module": "builtins", "exc_message": [UUID(int=7)]}]
)
def test_call_that_has_only_to_fail_keeps_the_error_of_its_chord(kind: str, cause: Any) -> None:
    linked = Linked(headers={FAILED: "Dependency one raised", **({} if cause is None else {CAUSE: cause})})
    outcome = linked.report(kind)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert meta["result"] == (cause or exception_to_dict(ChordError("Dependency one raised")))
    assert repr(linked.errback_calls) == repr([exception_of(meta)])


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        (TERMINATED, {FAILED: "Dependency one raised"}),
        (LOST, {FAILED: {"id": "one", "why": "Dependency one raised"}}),  # an errback, which ran
        (LOST, {CAUSE: {"exc_type": "LookupError"}}),
    ],
)
def test_other_ends_keep_the_error_of_their_process(kind: str, headers: dict[str, Any]) -> None:
    linked = Linked(headers=headers)
    outcome = linked.report(kind)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert meta["result"]["exc_type"] == "TimeLimitExceeded"


def test_error_of_a_chord_that_cannot_be_stored_becomes_a_chord_error() -> None:
    """As when the workers that store the errors of members have another result_serializer."""
    cause = {"exc_type": "LookupError", "exc_module": "builtins", "exc_message": [UUID(int=7)]}
    linked = Linked(headers={FAILED: "Dependency one raised", CAUSE: cause})
    linked.app.conf.update(result_serializer="msgpack", result_accept_content=["msgpack"])
    outcome = linked.report(LOST)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert meta["result"] == exception_to_dict(ChordError("Dependency one raised"))
    assert repr(linked.errback_calls) == repr([exception_of(meta)])


@pytest.mark.parametrize("cause", [None, {}])
def test_call_that_has_only_to_fail_fails_with_a_chord_error_without_a_cause(cause: Any) -> None:
    error = followup.failure({FAILED: "Dependency one raised", CAUSE: cause})
    assert repr(error) == repr(ChordError("Dependency one raised"))


@pytest.mark.parametrize("callbacks", [True, False])
def test_unconfirmed_call_that_another_worker_has_run_is_not_reported(callbacks: bool) -> None:
    """That worker sends what follows it."""
    linked = Linked(acks_late=False, **({} if callbacks else {"callbacks": None}))
    linked.app.backend.store_result("id-1", 5, states.SUCCESS)
    outcome = linked.report(UNCONFIRMED)
    assert (outcome.kind, outcome.row, outcome.reported) == (COPY, None, True)
    assert (linked.sent(), linked.errback_calls) == ([], [])


@pytest.mark.parametrize("stored", [None, states.STARTED])
def test_unconfirmed_call_that_nobody_has_run_fails(stored: str | None) -> None:
    linked = Linked(acks_late=False)
    if stored is not None:
        linked.app.backend.store_result("id-1", {}, stored)
    outcome = linked.report(UNCONFIRMED)
    assert (outcome.kind, outcome.row is not None, linked.sent()) == (UNCONFIRMED, True, [])
    assert len(linked.errback_calls) == 1
    again = linked.report(UNCONFIRMED)
    assert again._replace(row=None) == outcome._replace(row=None), "it is not the end by another worker"


def test_end_is_reported_with_the_repr_of_arguments_that_results_cannot_contain() -> None:
    linked = Linked(args=({1, 2},), serializer="pickle", result_extended=True)
    outcome = linked.report(EXPIRED)
    assert outcome.row is not None
    linked.app.backend.store_rows([outcome.row])
    meta = linked.app.backend.get("id-1")
    assert meta is not None
    assert (meta["status"], meta["args"], meta["kwargs"]) == (states.FAILURE, "[{1, 2}]", {})
    assert len(linked.errback_calls) == 1


class OddStore(MemoryBackend):
    """A result store that raises an error of its own in one *method*."""

    method = "get"

    def get(self, task_id: str) -> Any:
        self._fail("get")
        return super().get(task_id)

    def row(self, task_id: str, meta: Any, kept: float = 0.0) -> Any:
        if task_id == "id-1":
            self._fail("row")
        return super().row(task_id, meta, kept)

    def _fail(self, method: str) -> None:
        if method == self.method:
            raise OSError("no such device")


@pytest.mark.parametrize("kind", [LOST, TIME_LIMIT, UNCONFIRMED, EXPIRED])
@pytest.mark.parametrize("method", ["get", "row"])
def test_errbacks_and_calls_after_a_task_do_not_wait_for_a_store_that_fails(
    kind: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = {"task": "link", "args": [], "kwargs": {}, "options": {"task_id": "rest"}, "subtask_type": None}
    linked = Linked(chain=[call], acks_late=kind != UNCONFIRMED)
    backend = OddStore("cache+memory://", linked.app.conf, linked.store.clock)
    backend.method = method
    linked.app.stores._backend = backend
    outcome = linked.report(kind)
    assert (outcome.kind, outcome.reported, outcome.row is None) == (kind, True, method == "row")
    assert [row[0] for row, _ in outcome.follow] == ["rest"]
    assert len(linked.errback_calls) == 1
    assert method == "get" or "cannot be written" in caplog.text


@pytest.mark.parametrize("status", [states.FAILURE, states.REVOKED])
def test_the_end_of_an_unconfirmed_call_in_another_worker_stays(status: str) -> None:
    """Its errbacks were called twice, and those of a revoked one at all."""
    linked = Linked(acks_late=False)
    linked.app.backend.store_result("id-1", ValueError("there"), status)
    outcome = linked.report(UNCONFIRMED)
    assert (outcome.kind, outcome.row, linked.errback_calls) == (COPY, None, [])


def test_a_call_that_fails_along_and_cannot_be_reported_leaves_the_others_alone() -> None:
    calls = [
        {"task": "link", "args": [], "kwargs": {}, "options": options, "subtask_type": None}
        for options in ({"task_id": "last"}, {"task_id": "odd", "headers": [1]}, {"task_id": "next"}, [1])
    ]
    outcome = Linked(chain=calls).report(LOST)
    assert sorted(row[0] for row, _ in outcome.follow) == ["last", "next", "odd"]


@pytest.mark.parametrize(
    "odd",
    [{"args": 5}, {"kwargs": [1]}, {"args": 5, "kwargs": None, "options": {"task_id": "odd", "chain": 5}}],
)
@pytest.mark.parametrize("kind", [LOST, EXPIRED])
def test_a_malformed_call_of_another_program_leaves_the_others_alone(kind: str, odd: dict[str, Any]) -> None:
    """None of the calls after the task ended."""
    plain = {"task": "link", "args": [], "kwargs": {}, "subtask_type": None}
    calls = [{**plain, "options": {"task_id": id}} for id in ("last", "odd", "next")]
    calls[1] |= odd
    outcome = Linked(chain=calls).report(kind)
    assert sorted(row[0] for row, _ in outcome.follow) == ["last", "next", "odd"]


class OddJoins(MemoryBackend):
    @property
    def joins(self) -> Any:
        raise OSError("no such device")


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_body_runs_or_goes_back_if_its_store_cannot_tell_whether_it_is_a_copy(acks_late: bool) -> None:
    """The error ended a thread of the pool."""
    linked = Linked(headers={PUBLICATION: 5}, acks_late=acks_late)
    linked.app.stores._backend = OddJoins("cache+memory://", linked.app.conf, linked.store.clock)
    found = copies.refused(linked.app, linked.task, linked.context())
    assert found is None if not acks_late else found is not None and found.kind == REQUEUED


def test_a_state_that_cannot_be_written_is_no_reason_not_to_run(caplog: pytest.LogCaptureFixture) -> None:
    linked = Linked()
    backend = OddStore("cache+memory://", linked.app.conf, linked.store.clock)
    backend.method = "row"
    linked.app.stores._backend = backend
    assert execution.started(linked.app, linked.task, linked.context()) is None
    assert "STARTED" in caplog.text
