"""What follows a task: callbacks, chains and errbacks, as Celery's producers put them in messages."""

from __future__ import annotations

import json
import time
from asyncio import CancelledError
from threading import Event
from typing import Any

import pytest

from qworker import QWorker, Signature, Task, chain, group, signals
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    ConfigurationError,
    DamagedResult,
    LeaseLost,
    NotSupported,
    PublishError,
    Reject,
    TaskError,
    WorkerLost,
)
from qworker.message.context import Context, pop, push
from qworker.message.exceptions import exception_to_dict
from qworker.message.marks import FAILED, JOINS, PUBLICATION
from qworker.message.protocol import Body, TaskMessage, encode, parse_headers, parse_properties
from qworker.tasks import followup, termination
from qworker.tasks.execution import execute
from qworker.tasks.outcome import (
    FAILURE,
    LOST,
    REJECTED,
    REPLACED,
    REQUEUED,
    RETRY,
    SUCCESS,
    UNSTARTED,
    Outcome,
)
from tests.support.stores import KeepingStore, Sent, make_app


def run(app: QWorker, name: str, **fields: Any) -> Outcome:
    """Run a task as a worker would, on a message that carries *fields*."""
    message = TaskMessage(task=name, id="parent", root_id="root", **fields)
    body = Body(
        message.args,
        dict(message.kwargs),
        {key: getattr(message, key) for key in ("callbacks", "errbacks", "chain", "chord")},
    )
    task = app.tasks[name]
    encoded = encode(message)
    headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
    context = Context.from_message(headers, body, properties=properties, task=task)
    outcome = execute(app, task, context, body)
    if outcome.row is not None:  # as the worker does
        app.backend.store_rows([outcome.row])
    return outcome


@pytest.fixture
def app_and_store() -> tuple[QWorker, KeepingStore]:
    app, store, _ = make_app()

    @app.task(name="five")
    def five() -> int:
        return 5

    @app.task(name="odd")
    def odd() -> object:
        return object()

    @app.task(name="fail")
    def fail() -> None:
        raise KeyError("no")

    @app.task(name="after", queue="later")
    def after(value: int, more: int = 0) -> int:
        return value + more

    return app, store


def shown(sent: Sent) -> tuple[Any, ...]:
    return (
        sent.headers["task"],
        sent.body.args,
        sent.body.kwargs,
        sent.headers["parent_id"],
        sent.headers["root_id"],
    )


def test_callbacks_get_the_result_as_first_argument(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    callbacks = [
        Signature("after", (1,), options={"task_id": "settled", "celery_only": 1}),
        Signature("elsewhere.task", (2,), {"a": 3}, {"queue": "far"}, immutable=True),
    ]
    assert run(app, "five", callbacks=callbacks).kind == SUCCESS
    first, second = store.sent
    assert shown(first) == ("after", (5, 1), {}, "parent", "root")
    assert shown(second) == ("elsewhere.task", (2,), {"a": 3}, "parent", "root")
    assert (first.headers["id"], first.envelope.queue, second.envelope.queue) == ("settled", "later", "far")
    meta = app.backend.get("parent")
    assert meta is not None
    assert [child[0][0] for child in meta["children"]] == [sent.headers["id"] for sent in store.sent]


def test_callbacks_inherit_reply_to(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    callbacks = [Signature("after", (1,)), Signature("after", (2,), options={"reply_to": "another"})]
    run(app, "five", callbacks=callbacks, reply_to="caller")
    answers = [parse_properties(sent.envelope.properties)["reply_to"] for sent in store.sent]
    assert answers == ["caller", "another"]


def test_next_call_of_a_chain_carries_the_rest(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    run(app, "five", chain=[Signature("third"), Signature("second"), Signature("after")])
    (sent,) = store.sent
    assert shown(sent)[:2] == ("after", (5,))
    assert [call["task"] for call in sent.body.embed["chain"]] == ["third", "second"]
    store.pushes.clear()
    run(app, "five", chain=[Signature("third")])
    (sent,) = store.sent
    assert shown(sent)[:2] == ("third", (5,))
    assert not sent.body.embed["chain"]


def test_stamps_are_passed_to_callbacks(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    run(app, "five", callbacks=[Signature("after")], stamped_headers=["tenant"], stamps={"tenant": ["acme"]})
    assert store.sent[0].headers["tenant"] == ["acme"]


def test_failed_task_sends_only_its_errbacks(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    outcome = run(
        app,
        "fail",
        callbacks=[Signature("after")],
        chain=[Signature("x")],
        errbacks=[Signature("tell", (1,))],
    )
    assert outcome.kind == FAILURE
    assert [shown(sent)[:2] for sent in store.sent] == [("tell", ("parent", 1))]


def test_message_is_requeued_when_callbacks_cannot_be_sent(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    store.failures = 10_000
    outcome = run(app, "five", callbacks=[Signature("after")], chain=[Signature("next", task_id="n")])
    assert outcome.kind == REQUEUED
    assert "the store is away" in outcome.text
    assert (outcome.row, outcome.follow, outcome.parts) == (None, (), ())
    assert app.AsyncResult("parent").state == "SUCCESS"  # for callbacks that read it
    store.failures = 0
    assert run(app, "five", callbacks=[Signature("after")], chain=[Signature("next")]).kind == SUCCESS
    assert [shown(sent)[0] for sent in store.sent] == ["after", "next"]


def test_acked_task_fails_when_its_chain_cannot_be_sent(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    store.failures = 10_000
    app.tasks["five"].acks_late = False
    outcome = run(app, "five", chain=[Signature("next", options={"task_id": "n"})])
    result = app.AsyncResult("parent")
    assert (outcome.kind, result.state) == (FAILURE, "FAILURE")
    assert isinstance(result.result, BrokerUnavailable) or "the store is away" in str(result.result)
    assert [row[0] for row, _ in outcome.follow] == ["n"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BrokerUnavailable("away"), REQUEUED),
        (BackendError("away"), REQUEUED),
        (LeaseLost("frozen"), REQUEUED),
        (ConfigurationError("MySQL refuses this user", setting="broker_url"), REQUEUED),
        (ConfigurationError("Redis refuses this user", setting="result_backend"), REQUEUED),
        (ConfigurationError("retry_policy['x'] cannot be 1", setting="retry_policy"), FAILURE),
        (DamagedResult("forged"), FAILURE),
        (PublishError("too large"), FAILURE),
        (NotSupported("no joins"), FAILURE),
        (RuntimeError("a fault of ours"), FAILURE),
    ],
)
def test_publishing_error_decides_between_requeue_and_failure(
    app_and_store: tuple[QWorker, KeepingStore], error: Exception, kind: str
) -> None:
    app, store = app_and_store
    store.failures, store.failure = 10_000, error
    outcome = run(app, "five", chain=[Signature("next", options={"task_id": "n"})])
    assert outcome.kind == kind
    assert [row[0] for row, _ in outcome.follow] == (["n"] if kind == FAILURE else [])


@pytest.mark.parametrize(
    "error", [BrokerUnavailable("away"), PublishError("too large"), RuntimeError("a fault of ours")]
)
def test_stored_success_is_kept_when_callbacks_cannot_be_sent(
    app_and_store: tuple[QWorker, KeepingStore], error: Exception
) -> None:
    app, store = app_and_store
    store.failures, store.failure = 10_000, error
    seen: list[BaseException] = []

    @app.task(name="tell")
    def tell(request: Any, exc: BaseException, traceback: str) -> None:
        seen.append(exc)

    app.tasks["five"].acks_late = False
    callback = Signature("after", options={"task_id": "c", "chain": [Signature("later", task_id="l")]})
    outcome = run(
        app, "five", callbacks=[callback], errbacks=[tell.s()], chain=[Signature("next", task_id="n")]
    )
    result = app.AsyncResult("parent")
    assert (outcome.kind, outcome.stored, result.state, result.result) == (SUCCESS, True, "SUCCESS", 5)
    assert sorted(row[0] for row, _ in outcome.follow) == ["c", "l", "n"]
    assert {row[1] for row, _ in outcome.follow} == {"FAILURE"}
    assert [type(each) for each in seen] == [type(error)]


@pytest.mark.parametrize(
    ("task_options", "options", "stored"),
    [
        ({}, {"ignore_result": True}, False),
        ({"ignore_result": True}, {}, False),
        ({"ignore_result": True}, {"ignore_result": False}, True),
        ({"ignore_result": True}, {"headers": {JOINS: [["join", 0]]}}, True),
        ({"ignore_result": True, "store_errors_even_if_ignored": True}, {}, True),
    ],
)
def test_ignored_call_that_fails_with_the_one_before_it_has_no_result(
    app_and_store: tuple[QWorker, KeepingStore],
    task_options: dict[str, Any],
    options: dict[str, Any],
    stored: bool,
) -> None:
    app, _ = app_and_store
    app.task(name="quiet", **task_options)(lambda value: value)
    calls = [
        Signature("elsewhere", options={"task_id": "last"}),
        Signature("quiet", options={"task_id": "next", **options}),
    ]
    outcome = run(app, "fail", chain=calls)
    assert {row[0] for row, _ in outcome.follow} == ({"next", "last"} if stored else {"last"})


@pytest.mark.parametrize("options", [{"retry_policy": {"max_retries": "x"}}, {"serializer": "nobody's"}])
def test_callback_with_invalid_options_fails_the_task(
    app_and_store: tuple[QWorker, KeepingStore], options: dict[str, Any]
) -> None:
    app, store = app_and_store
    assert run(app, "five", callbacks=[Signature("after", options=options)]).kind == FAILURE
    assert store.sent == []


def test_callback_with_an_unserialisable_argument_fails_the_task(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, _ = app_and_store
    run(app, "odd", callbacks=[Signature("after")])
    assert "object is not JSON" in str(app.AsyncResult("parent").result)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        *(("sent", name) for name in ("five", "fail", "refuse")),
        *(("run in place", name) for name in ("fail", "refuse")),
        *(("hook", name) for name in ("five", "fail")),
        ("killed", "fail"),
    ],
)
def test_state_is_stored_before_callbacks_errbacks_and_hooks(where: str, name: str) -> None:
    app, store, _ = make_app()
    seen: list[str] = []

    def look(*_: Any, **__: Any) -> None:
        seen.append(app.AsyncResult("parent").state)

    class StateReadingTask(Task[..., Any]):
        on_success = on_failure = after_return = look

    base = StateReadingTask if where == "hook" else Task

    @app.task(name="five", base=base)
    def five() -> int:
        return 5

    @app.task(name="fail", base=base)
    def fail() -> None:
        raise KeyError("no")

    @app.task(name="refuse", base=base)
    def refuse() -> None:
        raise Reject("no")

    @app.task(name="tell")
    def tell(request: Any, error: Any, traceback: Any) -> None:
        look()

    store.on_push = look
    app.finalize()
    links = [] if where == "hook" else [Signature("tell" if where == "run in place" else "other")]
    if where == "killed":
        body = Body((), {}, {"errbacks": links})
        context = Context.from_message({"id": "parent", "task": name}, body, task=app.tasks[name])
        error = exception_to_dict(WorkerLost("died"))
        outcome = termination.report(app, app.tasks[name], context, LOST, "died", "FAILURE", error)
    else:
        outcome = run(app, name, callbacks=links, errbacks=links)
    assert seen
    assert set(seen) == {"SUCCESS" if name == "five" else "FAILURE"}
    assert outcome.row is not None
    assert outcome.stored


def test_errback_is_sent_when_the_state_cannot_be_stored_first() -> None:
    class UnavailableBackend(MemoryBackend):
        def store_rows(self, rows: Any) -> None:
            raise BackendError("the result store is away")

    plain, store, clock = make_app()
    backend = UnavailableBackend("away://", plain.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)

    @app.task(name="fail")
    def fail() -> None:
        raise KeyError("no")

    body = Body((), {}, {"errbacks": [Signature("tell")]})
    context = Context.from_message({"id": "parent", "task": "fail"}, body, task=fail)
    outcome = execute(app, fail, context, body)
    assert [shown(sent)[0] for sent in store.sent] == ["tell"]
    assert (outcome.kind, outcome.stored) == (FAILURE, False)
    assert outcome.row is not None


@pytest.mark.parametrize("mark", [None, 0, "", [], "why"])
def test_call_marked_as_failed_ends_with_a_chord_error(
    app_and_store: tuple[QWorker, KeepingStore], mark: Any
) -> None:
    app, _ = app_and_store
    body = Body((), {}, {})
    context = Context.from_message({"id": "i", "task": "five", FAILED: mark}, body, task=app.tasks["five"])
    outcome = execute(app, app.tasks["five"], context, body)
    assert (outcome.kind, outcome.text) == (FAILURE, f"ChordError({str(mark)!r})")


@pytest.mark.parametrize("limit", [None, 9.0])
def test_state_is_stored_before_errbacks_when_the_first_connection_is_slow(limit: float | None) -> None:
    class ConnectingBackend(MemoryBackend):
        def store_rows(self, rows: Any) -> None:
            Event().wait(0.7)
            super().store_rows(rows)

    plain, store, clock = make_app()
    backend = ConnectingBackend("slow://", plain.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)
    seen: list[str] = []

    @app.task(name="fail", time_limit=limit)
    def fail() -> None:
        raise KeyError("no")

    def look(*_: Any) -> None:
        seen.append(app.AsyncResult("parent").state)

    store.on_push = look
    body = Body((), {}, {"errbacks": [Signature("tell")]})
    context = Context.from_message({"id": "parent", "task": "fail"}, body, task=fail)
    assert execute(app, fail, context, body).stored
    assert seen == ["FAILURE"]


def test_hanging_result_store_delays_only_the_first_task() -> None:
    class HangingBackend(MemoryBackend):
        asked = 0

        def store_rows(self, rows: Any) -> None:
            self.asked += 1
            answer.wait(60)
            super().store_rows(rows)

    answer, plain = Event(), make_app()[0]
    _, store, clock = make_app()
    backend = HangingBackend("hanging://", plain.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)

    @app.task(name="five")
    def five() -> int:
        return 5

    @app.task(name="fail")
    def fail() -> None:
        raise KeyError("no")

    def end(name: str) -> Outcome:
        body = Body((), {}, {"callbacks": [Signature("after")], "errbacks": [Signature("tell")]})
        headers = {"id": name, "task": name, "timelimit": [1.0, None]}
        context = Context.from_message(headers, body, task=app.tasks[name])
        return execute(app, app.tasks[name], context, body)

    app.finalize()
    try:
        began = time.monotonic()
        outcomes = [end(name) for name in ("five", "fail", "five")]
        assert [outcome.kind for outcome in outcomes] == [SUCCESS, FAILURE, SUCCESS]
        assert [outcome.stored for outcome in outcomes] == [False] * 3
        assert all(outcome.row is not None for outcome in outcomes), "the worker stores them"
        assert [shown(sent)[0] for sent in store.sent] == ["after", "tell", "after"]
        assert backend.asked == 1
        assert time.monotonic() - began < 1.0, "the time limit is kept"
    finally:
        answer.set()


def test_state_without_hooks_and_links_is_left_to_the_worker(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, _ = app_and_store
    for name, chain_of in (("five", [Signature("next", task_id="n")]), ("fail", None)):
        assert not run(app, name, chain=chain_of).stored


def test_message_is_requeued_when_errbacks_cannot_be_sent(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    store.failures = 10_000
    outcome = run(app, "fail", errbacks=[Signature("tell")], chain=[Signature("next", task_id="n")])
    assert (outcome.kind, outcome.row, outcome.follow) == (REQUEUED, None, ())
    assert app.AsyncResult("parent").state == "FAILURE"  # for errbacks that read it
    store.failures = 0
    assert run(app, "fail", errbacks=[Signature("tell")]).kind == FAILURE
    assert [shown(sent)[0] for sent in store.sent] == ["tell"]
    assert repr(app.AsyncResult("parent").result) == "KeyError('no')"


@pytest.mark.parametrize("name", ["fail", "refuse"])
@pytest.mark.parametrize("gone", [True, False], ids=["acked before", "can never be sent"])
def test_unsendable_errback_is_logged(
    app_and_store: tuple[QWorker, KeepingStore], caplog: pytest.LogCaptureFixture, name: str, gone: bool
) -> None:
    app, store = app_and_store

    @app.task(name="refuse")
    def refuse() -> None:
        raise Reject("no")

    store.failures = 10_000
    if gone:
        app.tasks[name].acks_late = False
    else:
        store.failure = PublishError("too large")
    kind = FAILURE if name == "fail" else REJECTED
    assert run(app, name, errbacks=[Signature("tell"), Signature("tell")]).kind == kind
    assert caplog.text.count(f"an errback of task {name}[parent] was not sent") == 2
    assert app.AsyncResult("parent").state == "FAILURE"


def test_publishing_error_of_an_in_process_errback_is_logged(
    app_and_store: tuple[QWorker, KeepingStore], caplog: pytest.LogCaptureFixture
) -> None:
    """Its publishing errors do not requeue the failed task."""
    app, store = app_and_store

    @app.task(name="log_error")
    def log_error(request: Context, exc: BaseException, traceback: str) -> None:
        raise BrokerUnavailable("away")

    assert run(app, "fail", errbacks=[Signature("log_error"), Signature("after")]).kind == FAILURE
    assert "errback log_error of task fail[parent] raised" in caplog.text
    assert [shown(sent)[0] for sent in store.sent] == ["after"]


@pytest.mark.parametrize("away", [True, False])
def test_lost_run_is_reported_again_when_its_errback_cannot_be_sent(
    app_and_store: tuple[QWorker, KeepingStore], away: bool
) -> None:
    app, store = app_and_store
    store.failures = 10_000
    store.failure = BrokerUnavailable("away") if away else PublishError("too large")
    context = Context(id="parent", task="five", errbacks=[Signature("tell")])
    error = exception_to_dict(WorkerLost("gone"))
    outcome = termination.report(app, app.tasks["five"], context, LOST, "gone", "FAILURE", error)
    assert outcome.kind == (UNSTARTED if away else LOST)
    assert (outcome.row is None) == away


@pytest.mark.parametrize("name", ["again", "other"])
@pytest.mark.parametrize(
    ("error", "late", "kind"),
    [
        (BrokerUnavailable("the store is away"), True, REQUEUED),
        (BrokerUnavailable("the store is away"), False, FAILURE),
        (PublishError("too large"), True, FAILURE),
    ],
)
def test_unsendable_retry_or_replacement_requeues_or_fails(
    app_and_store: tuple[QWorker, KeepingStore], name: str, error: Exception, late: bool, kind: str
) -> None:
    """The calls of retry() and replace() fail like those of callbacks."""
    app, store = app_and_store

    @app.task(name="again", bind=True)
    def again(self: Task[Any, Any]) -> None:
        try:
            raise KeyError("no")
        except KeyError as error:
            raise self.retry(exc=error) from None

    @app.task(name="other", bind=True)
    def other(self: Task[Any, Any]) -> None:
        self.replace(Signature("after", (1,), app=app))

    app.tasks[name].acks_late = late
    store.failures, store.failure = 10_000, error
    outcome = run(app, name)
    assert outcome.kind == kind
    assert str(error) in outcome.text
    if kind == REQUEUED:
        assert outcome.text.startswith("'a call after it cannot be sent: ")
        assert outcome.row is None
    store.failures = 0
    assert run(app, name).kind == {"again": RETRY, "other": REPLACED}[name]
    assert len(store.sent) == 1


def test_celery_chord_is_ignored_without_a_compatible_backend(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, _ = app_and_store
    outcome = run(app, "five", chord=Signature("body"))
    assert (outcome.kind, outcome.parts) == (SUCCESS, ())


def test_links_of_an_eager_call_are_sent(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    app.tasks["five"].apply(link=Signature("after"))
    app.tasks["fail"].apply(link_error=Signature("tell"))
    assert [sent.headers["task"] for sent in store.sent] == ["after", "tell"]


def test_callback_with_a_mismatching_signature_fails_the_task(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, store = app_and_store
    seen: list[str] = []

    class RecordingTask(Task[Any, Any]):
        def on_failure(self, exc: BaseException, *rest: Any) -> None:
            seen.append(str(exc))

    app.task(name="six", base=RecordingTask)(lambda: 6)
    app.task(name="nothing")(lambda: None)
    assert run(app, "six", callbacks=[Signature("nothing")]).kind == FAILURE
    assert store.sent == []
    (text,) = seen
    assert text.startswith("nothing, which follows six, was not sent: ")


def test_errback_with_a_mismatching_signature_keeps_the_failure(
    app_and_store: tuple[QWorker, KeepingStore], caplog: pytest.LogCaptureFixture
) -> None:
    app, store = app_and_store
    app.task(name="nothing")(lambda: None)
    outcome = run(app, "fail", errbacks=[Signature("nothing"), Signature("after")])
    assert (outcome.kind, outcome.text) == (FAILURE, "KeyError('no')")
    assert repr(app.AsyncResult("parent").result) == "KeyError('no')"
    assert "an errback of task fail[parent] was not sent" in caplog.text
    assert [shown(sent)[:2] for sent in store.sent] == [("after", ("parent",))]


@pytest.mark.parametrize(("given", "sent"), [(200, 9), (-3, 0), (4, 4)])
def test_callback_priority_is_clamped(
    app_and_store: tuple[QWorker, KeepingStore], given: int, sent: int
) -> None:
    app, store = app_and_store
    assert run(app, "five", callbacks=[Signature("after", options={"priority": given})]).kind == SUCCESS
    assert store.sent[0].envelope.priority == sent


# -- errbacks that take the request, the exception and the traceback --


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_new_style_errback_runs_in_process(app_and_store: tuple[QWorker, KeepingStore], kind: str) -> None:
    app, store = app_and_store
    seen: list[Any] = []

    def tell(request: Context, exc: BaseException, traceback: str, *more: Any, level: str = "low") -> None:
        seen.append((request.id, request.root_id, repr(exc), traceback.splitlines()[-1], more, level))

    async def tell_async(
        request: Context, exc: BaseException, traceback: str, *more: Any, level: str
    ) -> None:
        tell(request, exc, traceback, *more, level=level)

    app.task(name="log_error")(tell if kind == "sync" else tell_async)
    run(app, "fail", errbacks=[Signature("log_error", (7,), {"level": "high"})])
    assert seen == [("parent", "root", "KeyError('no')", "KeyError: 'no'", (7,), "high")]
    assert store.sent == []


def test_async_errback_runs_within_an_event_loop(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    import asyncio

    app, _ = app_and_store
    seen: list[Any] = []

    @app.task(name="tell3")
    async def tell(request: Context, exc: BaseException, traceback: str) -> None:
        await asyncio.sleep(0)
        seen.append(repr(exc))

    async def within() -> None:
        run(app, "fail", errbacks=[Signature("tell3")])

    asyncio.run(within())
    assert seen == ["KeyError('no')"]


@pytest.mark.parametrize(
    ("function", "options", "call"),
    [
        (lambda task_id: None, {}, ()),
        (lambda task_id, x, y: None, {}, (1, 2)),
        (lambda self, request, exc, traceback: None, {"bind": True}, ()),
    ],
    ids=["old style", "with own arguments", "bound"],
)
def test_old_style_errback_is_sent_with_the_task_id(
    app_and_store: tuple[QWorker, KeepingStore], function: Any, options: Any, call: Any
) -> None:
    """As in Celery, bound errbacks are sent, so that they can retry."""
    app, store = app_and_store
    app.task(name="eb", typing=False, **options)(function)
    run(app, "fail", errbacks=[Signature("eb", call)])
    assert [shown(sent)[:2] for sent in store.sent] == [("eb", ("parent", *call))]


def test_immutable_errback_is_sent_unchanged(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    app.task(name="eb")(lambda x, y, z: None)
    run(app, "fail", errbacks=[Signature("eb", (1, 2, 3), immutable=True)])
    assert [shown(sent)[:2] for sent in store.sent] == [("eb", (1, 2, 3))]


@pytest.mark.parametrize(
    "error", [ValueError("in it"), SystemExit(2), KeyboardInterrupt(), GeneratorExit(), CancelledError()]
)
def test_raising_errback_does_not_affect_the_failure_or_other_errbacks(
    app_and_store: tuple[QWorker, KeepingStore], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    app, store = app_and_store

    @app.task(name="bad")
    def bad(request: Context, exc: BaseException, traceback: str) -> None:
        raise error

    outcome = run(app, "fail", errbacks=[Signature("bad"), Signature("tell")])
    assert (outcome.kind, outcome.text) == (FAILURE, "KeyError('no')")
    assert "errback bad of task fail[parent] raised" in caplog.text
    assert [shown(sent)[:2] for sent in store.sent] == [("tell", ("parent",))]


def test_failure_that_cannot_be_written_is_reported() -> None:
    """Its errbacks were not called, its error was replaced, and the call after it waited for ever."""
    app, *_ = make_app(message_max_bytes=2000)

    @app.task(name="long")
    def long() -> None:
        raise ValueError("x" * 5000)

    told: list[BaseException] = []
    tell = app.task(name="tell")(lambda request, error, traceback: told.append(error))
    outcome = run(app, "long", errbacks=[tell.s()], chain=[tell.s().set(task_id="next")])
    assert (outcome.kind, outcome.row, outcome.text[:12]) == (FAILURE, None, "ValueError('")
    assert [type(error) for error in told] == [ValueError]
    ((row, _),) = outcome.follow
    app.backend.store_rows([row])
    with pytest.raises(TaskError, match="its error cannot be written"):
        app.AsyncResult("next").get(timeout=0)


def test_errbacks_are_sent_for_a_rejected_message(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store

    @app.task(name="refuse")
    def refuse(requeue: bool) -> None:
        raise Reject("no", requeue=requeue)

    run(app, "refuse", args=(True,), errbacks=[Signature("tell")])
    assert store.sent == []
    run(app, "refuse", args=(False,), errbacks=[Signature("tell")])
    assert [shown(sent)[:2] for sent in store.sent] == [("tell", ("parent",))]


def test_repeated_chord_failure_makes_the_same_calls(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    """A joiner may die after sending them. Repeated calls have the same ids, and the number of their
    publication, so that one message of each runs."""
    app, _ = app_and_store

    def failed_chord_calls(number: int) -> list[tuple[Any, ...]]:
        after = chain(Signature("after", (1,)), Signature("after", (2,)), app=app)
        errbacks = [
            Signature("after", app=app),
            after,
            group(Signature("after"), Signature("after"), app=app),
        ]
        options = {"task_id": "body", "headers": {PUBLICATION: number}, "link_error": errbacks}
        envelopes, ended = followup.chord_failed(app, Signature("five", options=options, app=app), "no")
        assert [row[0] for row, _ in ended] == ["body"]
        headers = [json.loads(envelope.headers) for envelope in envelopes]
        assert {header[PUBLICATION] for header in headers} == {number}
        return sorted((header["id"], header["task"]) for header in headers)

    first = failed_chord_calls(1)
    assert len(set(first)) == 4
    assert failed_chord_calls(2) == first


NEXT = {"task": "five", "args": [2], "kwargs": {"y": 1}, "subtask_type": None, "immutable": False}
SETTLED = {"task_id": "the-next"}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, {}),
        ({}, {"chain": [{**NEXT, "options": {"task_id": "the-last"}}]}),
        ({"immutable": True}, {}),
        ({"options": {**SETTLED, "group_id": "g", "group_index": 3, "root_id": "another"}}, {}),
        ({"options": {**SETTLED, "chord": {**NEXT, "options": {}}}}, {}),
        ({"options": {**SETTLED, "headers": {"a": 1}}}, {}),
        ({"options": {**SETTLED, "queue": "z", "priority": 3, "of a producer": 4, "eta": None}}, {}),
    ],
)
def test_fast_path_sends_the_same_call(changes: dict[str, Any], more: dict[str, Any]) -> None:
    """The next call of a chain takes a fast path, unless a receiver of before_task_publish is connected."""
    app, store, _ = make_app()

    @app.task(name="five", typing=False)
    def five() -> int:
        return 5

    def published() -> tuple[Any, ...]:
        context = Context(id="first", called_directly=False, task="five", root_id="root")
        token = push(context, five)
        try:
            followup.follow(app, context, {**NEXT, "options": SETTLED, **changes}, (1,), **more)
        finally:
            pop(token)
        envelope = store.sent.pop().envelope
        return (
            json.loads(envelope.headers),
            envelope.properties,
            envelope.body,
            envelope.queue,
            envelope.priority,
            [child.id for child in context.children],
        )

    def observer(**_: Any) -> None:
        pass

    short = published()
    signals.before_task_publish.connect(observer)
    try:
        assert published() == short
    finally:
        signals.before_task_publish.disconnect(observer)
    assert short[-1] == ["the-next"]
