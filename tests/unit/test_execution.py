"""One run of one task: every run has an outcome, and the outcome is stored."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import Middleware, QWorker, Task, chain, chord, signals, states
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import (
    BackendError,
    ChordError,
    Ignore,
    InvalidTaskMessage,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
)
from qworker.message.context import Context, current_context
from qworker.message.protocol import TaskMessage, decode_body, encode, parse_headers, parse_properties
from qworker.tasks.async_execution import execute_async
from qworker.tasks.execution import MAX_TRACEBACK, Interrupted, cut_short, execute, invalid, started
from qworker.tasks.outcome import (
    EXPECTED,
    FAILURE,
    IGNORED,
    INTERRUPTED,
    INVALID,
    REJECTED,
    REQUEUED,
    RETRY,
    SUCCESS,
    TERMINATED,
    Outcome,
)
from qworker.testing import FakeClock, MemoryStore, StepWorker

Meta = dict[str, Any]
ASYNC = pytest.mark.parametrize("kind", ["sync", "async"])


class Bench:
    """An app with results in memory, and runs of its tasks; their rows are stored as a worker does."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        backend = settings.pop("backend", "cache+memory://")
        self.app = QWorker(
            "bench", broker=self.store, backend=backend, clock=self.clock, set_as_current=False, **settings
        )

    def task(self, body: Callable[..., Any], kind: str = "sync", **options: Any) -> Task[..., Any]:
        """Register a task with *body*; with kind "async", an async task that does the same."""
        if kind == "sync":
            return self.app.task(name="work", **options)(body)

        async def work(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return body(*args, **kwargs)

        return self.app.task(name="work", **options)(work)

    def context(self, task: Task[..., Any], *args: Any, **fields: Any) -> tuple[Context, Any]:
        serializer = fields.get("serializer", "json")
        encoded = encode(TaskMessage(task=task.name, id="id-1", args=args, **fields))
        headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
        body = decode_body(encoded.body, headers, properties, frozenset({serializer, "json"}))
        return Context.from_message(headers, body, properties=properties, hostname="w@h", task=task), body

    def run(self, task: Task[..., Any], *args: Any, **fields: Any) -> Outcome:
        self.app.finalize()
        context, body = self.context(task, *args, **fields)
        if task.is_async:
            outcome = asyncio.run(execute_async(self.app, task, context, body))
        else:
            outcome = execute(self.app, task, context, body)
        return self.keep(outcome)

    def keep(self, outcome: Outcome) -> Outcome:
        if outcome.row is not None:
            self.app.backend.store_rows([outcome.row])
        return outcome

    def run_body(self, body: Callable[..., Any], kind: str = "sync", **options: Any) -> Outcome:
        """Run a task with *body*."""
        return self.run(self.task(body, kind, **options))

    @property
    def stored(self) -> Meta | None:
        return self.app.backend.get("id-1")

    @property
    def state(self) -> str | None:
        return None if self.stored is None else self.stored["status"]


def raiser(error: BaseException) -> Callable[..., Any]:
    def body(*args: Any) -> Any:
        raise error

    return body


# -- outcomes --


@ASYNC
def test_success(kind: str) -> None:
    bench = Bench()
    outcome = bench.run(bench.task(lambda x, y: x + y, kind), 1, 2)
    assert (outcome.kind, outcome.traceback) == (SUCCESS, None)
    assert outcome.runtime > 0
    assert bench.stored is not None
    assert (bench.stored["status"], bench.stored["result"]) == ("SUCCESS", 3)


@ASYNC
def test_failure(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(ValueError("no", 7)), kind)
    assert (outcome.kind, outcome.text) == (FAILURE, "ValueError('no', 7)")
    assert bench.stored is not None
    assert bench.stored["status"] == "FAILURE"
    assert bench.stored["result"] == {
        "exc_type": "ValueError",
        "exc_message": ["no", 7],
        "exc_module": "builtins",
    }
    assert bench.stored["traceback"] == outcome.traceback
    assert "raise error" in (outcome.traceback or "")
    assert "qworker/execution.py" not in (outcome.traceback or "")  # starts at the first frame of the task


@ASYNC
@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
def test_base_exceptions_of_a_task_are_its_failure(kind: str, error: BaseException) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(error), kind)
    assert outcome.kind == FAILURE
    assert bench.state == "FAILURE"


@ASYNC
def test_wrong_arguments_are_a_failure(kind: str) -> None:
    bench = Bench()
    outcome = bench.run(bench.task(lambda: None, kind), 1, 2, 3)
    assert (outcome.kind, bench.state) == (FAILURE, "FAILURE")
    assert outcome.text.startswith("TypeError")


@ASYNC
def test_failure_listed_in_throws_is_expected(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(KeyError("k")), kind, throws=(LookupError,))
    assert (outcome.kind, bench.state) == (EXPECTED, "FAILURE")


@ASYNC
def test_ignore_leaves_the_state_unchanged(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Ignore("never mind")), kind)
    assert (outcome.kind, bench.stored) == (IGNORED, None)
    assert "never mind" in outcome.text


def test_chain_after_an_ignored_task_fails() -> None:
    bench = Bench()
    task = bench.task(raiser(Ignore()))
    bench.app.finalize()
    rest = [task.s().set(task_id="id-3"), task.s().set(task_id="id-2")]
    context, body = bench.context(task, chain=rest)
    outcome = execute(bench.app, task, context, body)
    assert (outcome.kind, bench.stored) == (IGNORED, None)
    bench.app.backend.store_rows([row for row, _ in outcome.follow])
    for task_id in ("id-2", "id-3"):
        with pytest.raises(ChordError, match="Dependency id-1 ended as IGNORED"):
            bench.app.AsyncResult(task_id).get(timeout=0)


def test_ignored_task_can_hand_its_chain_to_another_call(tmp_path: Path) -> None:
    """As in Celery's replace(): the chord waits for the replacement of the member."""
    app = QWorker("proj", broker=f"sqlite:///{tmp_path}/queue.db", set_as_current=False)

    @app.task(bind=True)
    def delegate(self: Any) -> None:
        give.apply_async((), task_id=self.request.id, chain=self.request.chain)
        raise Ignore("another call takes its place")

    @app.task
    def give(*given: Any) -> Any:
        return given

    result = chord([chain(delegate.s(), give.s()), give.s(1)], give.s()).apply_async()
    with StepWorker(app) as worker:
        worker.run()
    assert result.get(timeout=0) == [[[[]], [1]]]
    app.close()


@ASYNC
def test_reject_with_requeue_leaves_the_state_unchanged(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Reject("not mine", requeue=True)), kind)
    assert (outcome.kind, outcome.text, bench.stored) == (REQUEUED, "'not mine'", None)


@ASYNC
@pytest.mark.parametrize("reason", ["not mine", KeyError("no"), None])
def test_reject_without_requeue_is_a_failure_for_waiting_callers(kind: str, reason: Any) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Reject(reason, requeue=False)), kind)
    assert (outcome.kind, outcome.text) == (REJECTED, repr(reason))
    assert bench.state == "FAILURE"
    with pytest.raises(Reject) as caught:
        bench.app.AsyncResult("id-1").get(timeout=0)
    assert caught.value.reason == (repr(reason) if isinstance(reason, KeyError) else reason)


@ASYNC
def test_subclasses_of_reject_and_ignore_are_recognised(kind: str) -> None:
    class Busy(Reject):
        def __init__(self, who: str) -> None:
            super().__init__(f"{who} is busy", requeue=True)

    class Enough(Ignore):
        pass

    bench = Bench()
    outcome = bench.run_body(raiser(Busy("it")), kind)
    assert (outcome.kind, outcome.text) == (REQUEUED, "'it is busy'")
    bench = Bench()
    assert bench.run_body(raiser(Enough()), kind).kind == IGNORED
    assert bench.stored is None


@pytest.mark.parametrize(
    ("options", "fields", "state"),
    [
        ({"ignore_result": True}, {}, None),
        ({}, {"ignore_result": True}, None),
        ({"ignore_result": True, "store_errors_even_if_ignored": True}, {}, "FAILURE"),
    ],
)
def test_reject_follows_ignore_result_like_a_failure(
    options: dict[str, Any], fields: dict[str, Any], state: str | None
) -> None:
    bench = Bench()
    outcome = bench.run(bench.task(raiser(Reject("no")), **options), **fields)
    assert (outcome.kind, bench.state) == (REJECTED, state)


@ASYNC
def test_soft_time_limit_is_a_failure_unless_caught(kind: str) -> None:
    bench = Bench()
    assert bench.run_body(raiser(SoftTimeLimitExceeded()), kind).kind == FAILURE
    assert bench.state == "FAILURE"

    def careful() -> str:
        try:
            raise SoftTimeLimitExceeded()
        except SoftTimeLimitExceeded:
            return "cleaned up"

    bench = Bench()
    assert bench.run_body(careful, kind).kind == SUCCESS


@ASYNC
def test_interrupted_task_stores_nothing(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Interrupted()), kind)
    assert (outcome.kind, bench.stored) == (INTERRUPTED, None)


def test_soft_limit_is_disarmed_as_soon_as_the_body_ends() -> None:
    """disarm() stops the alarm of the soft limit: it must not go off outside the body."""
    for body in (lambda: 1, raiser(ValueError())):
        bench = Bench()
        task = bench.task(body)
        bench.app.finalize()
        context, message_body = bench.context(task)
        order: list[str] = []
        make_row = bench.app.backend.row

        def row(*args: Any, order: list[str] = order, make_row: Any = make_row) -> Any:
            order.append("row")
            return make_row(*args)

        bench.app.backend.row = row  # type: ignore[method-assign]
        execute(bench.app, task, context, message_body, lambda order=order: order.append("told"))
        assert order == ["told", "row"]


# -- retries --


@ASYNC
def test_retry_sends_the_next_attempt_and_stores_the_reason(kind: str) -> None:
    bench = Bench()

    def body() -> None:
        try:
            raise ConnectionError("away")
        except ConnectionError as error:
            raise task.retry(exc=error, countdown=30) from error

    task = bench.task(body, kind)
    outcome = bench.run(task)
    assert (outcome.kind, outcome.text) == (RETRY, "Retry in 30s: ConnectionError('away')")
    assert bench.stored is not None
    assert (bench.stored["status"], bench.stored["result"]["exc_type"]) == ("RETRY", "ConnectionError")
    assert bench.store.admin.next_due(["celery"]) == bench.clock.now() + 30
    bench.store.consumer.register("w@h", ["celery"], 1)
    bench.clock.advance(31)
    (leased,) = bench.store.consumer.lease(["celery"], 1).messages
    headers = parse_headers(leased.headers)
    assert (headers["id"], headers["retries"]) == ("id-1", 1)


@ASYNC
def test_autoretry_retries_only_the_given_exceptions(kind: str) -> None:
    options = {
        "autoretry_for": (OSError,),
        "dont_autoretry_for": (PermissionError,),
        "max_retries": 2,
        "default_retry_delay": 5,
    }
    for error, retries, expected in (
        (ConnectionError("x"), 0, RETRY),
        (ConnectionError("x"), 2, FAILURE),
        (PermissionError("x"), 0, FAILURE),
        (ValueError("x"), 0, FAILURE),
    ):
        bench = Bench()
        outcome = bench.run(bench.task(raiser(error), kind, **options), retries=retries)
        assert (outcome.kind, bench.store.messages) == (expected, int(expected == RETRY))
        assert type(error).__name__ in outcome.text  # the task's error, even when no retry is left
        if expected == FAILURE:
            assert "retry(" not in (outcome.traceback or "")


def test_autoretry_backs_off() -> None:
    bench = Bench()
    bench.run(
        bench.task(
            raiser(OSError()), autoretry_for=(OSError,), retry_backoff=2, retry_jitter=False, max_retries=9
        ),
        retries=3,
    )
    assert bench.store.admin.next_due(["celery"]) == bench.clock.now() + 16


def test_message_is_requeued_when_its_retry_cannot_be_sent() -> None:
    bench = Bench(task_publish_retry=False)
    bench.store.away = True
    outcome = bench.run_body(raiser(OSError("first")), autoretry_for=(OSError,))
    assert (outcome.kind, outcome.row) == (REQUEUED, None)
    assert "memory:// is away" in outcome.text


def test_unsendable_retry_of_an_acked_task_is_a_failure() -> None:
    bench = Bench(task_publish_retry=False)
    bench.store.away = True
    outcome = bench.run_body(raiser(OSError("first")), autoretry_for=(OSError,), acks_late=False)
    assert outcome.kind == FAILURE
    assert "memory:// is away" in outcome.text
    assert "first" in (outcome.traceback or "")


# -- what is stored --


def test_run_returns_its_row_without_opening_the_store() -> None:
    bench = Bench(result_expires=60, backend="sqlite:///nowhere/never-opened.db")
    bench.app.backend.store_rows = lambda rows: None  # type: ignore[method-assign]
    outcome = bench.run_body(lambda: "done")
    assert outcome.row is not None
    task_id, status, payload, expires = outcome.row
    assert (task_id, status, expires) == ("id-1", "SUCCESS", bench.clock.now() + 60)
    assert bench.app.backend.codec.decode(payload)["result"] == "done"


@pytest.mark.parametrize(
    ("options", "fields", "body", "stored"),
    [
        ({"ignore_result": True}, {}, lambda: 1, None),
        ({}, {"ignore_result": True}, lambda: 1, None),
        ({"ignore_result": True}, {}, raiser(ValueError()), None),
        ({"ignore_result": True, "store_errors_even_if_ignored": True}, {}, raiser(ValueError()), "FAILURE"),
        ({"ignore_result": True, "store_errors_even_if_ignored": True}, {}, lambda: 1, None),
        ({"ignore_result": True}, {}, raiser(Retry()), None),
        ({"ignore_result": True}, {"ignore_result": False}, lambda: 1, "SUCCESS"),
        ({"ignore_result": True}, {"ignore_result": False}, raiser(ValueError()), "FAILURE"),
    ],
)
def test_ignored_result_is_not_stored(
    options: dict[str, Any], fields: dict[str, Any], body: Any, stored: str | None
) -> None:
    bench = Bench()
    bench.run(bench.task(body, **options), **fields)
    assert bench.state == stored


@ASYNC
def test_unserialisable_result_is_a_failure(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(lambda: {"when": object()}, kind)
    assert outcome.kind == FAILURE
    assert "when" in outcome.text
    assert bench.stored is not None
    assert (bench.stored["status"], bench.stored["result"]["exc_type"]) == ("FAILURE", "EncodeError")


def test_unserialisable_arguments_are_text_in_an_extended_result() -> None:
    bench = Bench(result_extended=True, accept_content=["json", "pickle"], security_key="k" * 32)
    outcome = bench.run(bench.task(lambda value: 1), {2}, serializer="pickle")
    assert (outcome.kind, bench.state, bench.stored["args"]) == (SUCCESS, "SUCCESS", "[{2}]")


def test_failing_backend_still_gives_an_outcome(caplog: pytest.LogCaptureFixture) -> None:
    def broken(task_id: str, meta: Meta, kept: float) -> Any:
        raise RuntimeError("a bug in a store of somebody's own")

    bench = Bench()
    bench.app.backend.row = broken  # type: ignore[method-assign]
    outcome = bench.run_body(lambda: 1)
    assert outcome.kind == FAILURE
    assert "a bug in a store" in outcome.text
    assert "could not be reported" in caplog.text


def test_started_state_has_pid_and_hostname() -> None:
    bench = Bench()
    task = bench.task(lambda: 1, track_started=True)
    bench.app.finalize()
    context, _ = bench.context(task)
    row = started(bench.app, task, context)
    assert row is not None
    bench.app.backend.store_rows([row])
    assert bench.stored is not None
    assert bench.stored["status"] == "STARTED"
    assert bench.stored["result"].keys() == {"pid", "hostname"}


def test_started_state_has_unserialisable_arguments_as_text() -> None:
    bench = Bench(result_extended=True)
    task = bench.task(lambda: 1)
    bench.app.finalize()
    context, _ = bench.context(task)
    context.args = ({2},)
    row = started(bench.app, task, context)
    assert row is not None
    assert b'"args":"[{2}]"' in row[2]


def test_disabled_backend_gets_no_row() -> None:
    bench = Bench(backend="disabled://")
    assert bench.run_body(lambda: object()).row is None


# -- texts --


class Hostile(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")


@ASYNC
def test_exception_whose_repr_raises_is_a_failure(kind: str) -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Hostile()), kind)
    assert outcome.kind == FAILURE
    assert "Hostile" in outcome.text
    assert bench.stored is not None
    assert bench.stored["result"]["exc_type"] == "Hostile"


def test_exception_whose_repr_raises_can_be_retried() -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(Hostile()), autoretry_for=(Hostile,))
    assert (outcome.kind, bench.state, bench.store.messages) == (RETRY, "RETRY", 1)


def test_result_whose_repr_raises_is_a_success(caplog: pytest.LogCaptureFixture) -> None:
    class RaisingRepr(dict):  # type: ignore[type-arg]
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    bench = Bench()
    with caplog.at_level(logging.INFO):
        assert bench.run_body(lambda: RaisingRepr(a=1)).kind == SUCCESS


def test_length_of_texts_and_tracebacks_is_limited() -> None:
    bench = Bench()
    outcome = bench.run_body(raiser(ValueError("x" * 10_000_000)))
    assert len(outcome.text) <= 1024
    assert len(outcome.traceback or "") <= MAX_TRACEBACK + 10
    bench = Bench()

    def deep(n: int = 900) -> None:
        deep(n - 1) if n else raiser(ValueError("bottom"))()

    assert "bottom" in (bench.run_body(deep).traceback or "")


def test_result_repr_is_only_made_if_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert Bench().run_body(lambda: "x" * 5000, resultrepr_maxsize=20).text == "'" + "x" * 16 + "..."
    with caplog.at_level(logging.WARNING):
        assert Bench().run_body(lambda: [1]).text == ""


def test_invalid_message_has_an_outcome() -> None:
    assert invalid(InvalidTaskMessage("the body is cut off")) == Outcome(INVALID, 0.0, "the body is cut off")


def test_failure_keeps_no_references_to_locals_of_the_body() -> None:
    class Large:
        pass

    alive: list[weakref.ref[Large]] = []

    def body() -> None:
        large = Large()
        alive.append(weakref.ref(large))
        raise ValueError("v")

    bench = Bench()
    task = bench.task(body)
    bench.app.finalize()
    context, message_body = bench.context(task)
    execute(bench.app, task, context, message_body)
    assert isinstance(context.ended[1], ValueError)
    assert alive[0]() is None


# -- hooks, signals, middleware, context --


class Hooked(Task[..., Any]):
    def before_start(self, *given: Any) -> None:
        EVENTS.append("before_start")

    def on_success(self, *given: Any) -> None:
        EVENTS.append("on_success")

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        EVENTS.append(
            f"on_failure {exc!r} {task_id} {args} {einfo.exception is exc} {'Traceback' in str(einfo)}"
        )

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        EVENTS.append(f"on_retry {exc!r} {'Traceback' in str(einfo)}")

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        EVENTS.append(f"after_return {status} {retval!r}")


EVENTS: list[str] = []
OBSERVED = ("task_prerun", "task_success", "task_failure", "task_retry", "task_postrun")


@pytest.fixture
def events() -> Iterator[list[str]]:
    """The calls of hooks and signals, in order."""
    EVENTS.clear()
    receivers = []
    for name in OBSERVED:

        def receiver(said: str = name, **given: Any) -> None:
            EVENTS.append(said if said != "task_postrun" else f"{said} {given['state']}")

        getattr(signals, name).connect(receiver)
        receivers.append((name, receiver))
    yield EVENTS
    for name, receiver in receivers:
        getattr(signals, name).disconnect(receiver)


@ASYNC
def test_order_of_hooks_and_signals_on_success(kind: str, events: list[str]) -> None:
    Bench().run_body(lambda: events.append("body"), kind, base=Hooked)
    assert events == [
        "task_prerun", "before_start", "body", "task_success", "on_success", "after_return SUCCESS None",
        "task_postrun SUCCESS",
    ]  # fmt: skip


@ASYNC
def test_order_of_hooks_and_signals_on_failure(kind: str, events: list[str]) -> None:
    Bench().run_body(raiser(ValueError("v")), kind, base=Hooked)
    assert events == [
        "task_prerun", "before_start", "task_failure", "on_failure ValueError('v') id-1 () True True",
        "after_return FAILURE ValueError('v')", "task_postrun FAILURE",
    ]  # fmt: skip


@ASYNC
def test_order_of_hooks_and_signals_on_retry(kind: str, events: list[str]) -> None:
    Bench().run_body(raiser(OSError("o")), kind, base=Hooked, autoretry_for=(OSError,))
    assert events == [
        "task_prerun", "before_start", "task_retry", "on_retry OSError('o') True", "task_postrun RETRY",
    ]  # fmt: skip


@ASYNC
@pytest.mark.parametrize(
    ("directive", "sent"), [(Ignore(), []), (Reject("x", requeue=True), []), (Reject("x"), ["task_failure"])]
)
def test_order_of_hooks_and_signals_on_ignore_and_reject(
    kind: str, directive: Exception, sent: list[str], events: list[str]
) -> None:
    """As in Celery: after_return is only called for final states, and a rejected message is a failure only
    for signals."""
    Bench().run_body(raiser(directive), kind, base=Hooked)
    status = "IGNORED" if isinstance(directive, Ignore) else "REJECTED"
    assert events == ["task_prerun", "before_start", *sent, f"task_postrun {status}"]


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(3)])
@pytest.mark.parametrize("hook", ["on_success", "on_failure", "on_retry", "after_return"])
def test_raising_hook_does_not_change_the_outcome(
    hook: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"on_success": lambda: 1, "on_retry": raiser(OSError()), "on_failure": raiser(ValueError())}.get(
        hook, lambda: 1
    )
    expected = {"on_retry": RETRY, "on_failure": FAILURE}.get(hook, SUCCESS)
    base = type("Base", (Task,), {hook: lambda self, *given: raiser(error)()})
    bench = Bench()
    outcome = bench.run_body(body, base=base, autoretry_for=(OSError,))
    assert outcome.kind == expected
    assert (bench.state or "").lower() == expected
    assert f"{hook} of task work raised" in caplog.text or "<lambda> of task work raised" in caplog.text
    assert current_context() is None


def test_raising_before_start_prevents_the_run() -> None:
    base = type("Base", (Task,), {"before_start": lambda self, *given: raiser(ValueError("not now"))()})
    ran: list[int] = []
    bench = Bench()
    outcome = bench.run_body(lambda: ran.append(1), base=base)
    assert (outcome.kind, ran, bench.state) == (FAILURE, [], "FAILURE")


def test_receiver_raising_system_exit_does_not_end_the_process() -> None:
    def leave(**given: Any) -> None:
        raise SystemExit(3)

    for name in OBSERVED:
        getattr(signals, name).connect(leave)
        try:
            bench = Bench()
            outcome = bench.run_body(lambda: 1)
            assert outcome.kind in (SUCCESS, FAILURE)
            assert bench.state is not None
            assert current_context() is None
        finally:
            getattr(signals, name).disconnect(leave)


@ASYNC
def test_request_of_a_task_is_current_only_during_its_run(kind: str) -> None:
    seen: list[Any] = []
    bench = Bench()

    def body() -> None:
        seen.append((task.request.id, task.request.hostname, current_context() is not None))

    task = bench.task(body, kind)
    bench.run(task)
    assert seen == [("id-1", "w@h", True)]
    assert current_context() is None
    Bench().run_body(raiser(SystemExit(1)), kind)
    assert current_context() is None


class Doubling(Middleware):
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
        self.seen.append(f"in {context.args}")
        try:
            return call_next(context)
        finally:
            self.seen.append("out")


def test_middleware_wraps_the_body_outermost_first() -> None:
    seen: list[str] = []
    bench = Bench()
    bench.app.add_middleware(Doubling(seen))
    bench.app.add_middleware(Doubling(seen))
    outcome = bench.run(bench.task(lambda x: seen.append("body")), 5)
    assert outcome.kind == SUCCESS
    assert seen == ["in (5,)", "in (5,)", "body", "out", "out"]


def test_middleware_can_replace_the_run_or_its_arguments() -> None:
    class Answering(Middleware):
        def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
            if context.args == (1,):
                return "answered"
            context.args = (context.args[0] * 10,)
            return call_next(context)

    ran: list[Any] = []
    bench = Bench()
    bench.app.add_middleware(Answering())
    task = bench.task(lambda x: ran.append(x) or x)
    bench.run(task, 1)
    assert bench.stored is not None
    assert (bench.stored["result"], ran) == ("answered", [])
    bench.app.backend.forget("id-1")
    bench.run(task, 2)
    assert ran == [20]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError(), FAILURE), (Ignore(), IGNORED), (Reject(), REJECTED), (SystemExit(), FAILURE)],
)
def test_exception_of_middleware_decides_the_outcome(error: BaseException, kind: str) -> None:
    class Raising(Middleware):
        def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
            raise error

    bench = Bench()
    bench.app.add_middleware(Raising())
    assert bench.run_body(lambda: 1).kind == kind


# -- limits of async tasks --


def run_async(bench: Bench, body: Callable[..., Any], soft: float | None, hard: float | None) -> Outcome:
    task = bench.app.task(name="work")(body)
    bench.app.finalize()
    context, message_body = bench.context(task)
    return bench.keep(asyncio.run(execute_async(bench.app, task, context, message_body, soft, hard)))


@pytest.mark.parametrize(
    ("soft", "hard", "error"),
    [
        (0.001, None, "SoftTimeLimitExceeded"),
        (None, 0.001, "TimeLimitExceeded"),
        (0.001, 9, "SoftTimeLimitExceeded"),
    ],
)
def test_async_task_is_cancelled_at_its_time_limit(
    soft: float | None, hard: float | None, error: str
) -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    bench = Bench()
    outcome = run_async(bench, body, soft, hard)
    assert (outcome.kind, bench.state) == (FAILURE, "FAILURE")
    assert bench.stored is not None
    assert bench.stored["result"]["exc_type"] == error


def test_timeout_inside_an_async_task_is_not_its_time_limit() -> None:
    async def body() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    bench = Bench()
    outcome = run_async(bench, body, 30, 60)
    assert outcome.text == "TimeoutError()"


@pytest.mark.parametrize(
    ("by_worker", "kind", "state"),
    [
        (Interrupted(), INTERRUPTED, None),
        (Terminated("terminated on request"), TERMINATED, None),
        (None, FAILURE, "FAILURE"),
    ],
)
def test_outcome_of_a_cancelled_async_task_depends_on_the_cause(
    by_worker: BaseException | None, kind: str, state: str | None
) -> None:
    async def main() -> Outcome:
        context, message_body = bench.context(task)
        run = asyncio.ensure_future(
            execute_async(bench.app, task, context, message_body, cancelled=lambda: by_worker)
        )
        while not begun:
            await asyncio.sleep(0)
        run.cancel()
        return bench.keep(await run)

    begun: list[int] = []

    async def body() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    bench = Bench()
    task = bench.app.task(name="work")(body)
    bench.app.finalize()
    assert asyncio.run(main()).kind == kind
    assert bench.state == state


async def _cancel_itself() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)


async def _cancel_and_return() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]


async def _await_a_cancelled_future() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _cancel_from_outside() -> None:
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.Event().wait()


async def _cancel_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        asyncio.current_task().cancel()  # type: ignore[union-attr]


CANCELLED = [_cancel_itself, _await_a_cancelled_future, _cancel_from_outside, _cancel_in_a_group]


@pytest.mark.parametrize("body", CANCELLED)
@pytest.mark.parametrize("limits", [(None, None), (30, 60)])
def test_async_task_that_cancels_itself_fails(body: Any, limits: tuple[Any, Any]) -> None:
    bench = Bench()
    outcome = run_async(bench, body, *limits)
    assert (outcome.kind, bench.state) == (FAILURE, "FAILURE")
    assert bench.stored is not None
    assert bench.stored["result"]["exc_type"] == "CancelledError"
    assert "by its own code" in bench.stored["result"]["exc_message"][0]


def test_async_task_that_cancels_itself_and_returns_succeeds() -> None:
    assert run_async(Bench(), _cancel_and_return, None, None).kind == SUCCESS


def test_cancellation_is_retried_only_if_listed_explicitly() -> None:
    """CancelledError is not an Exception, like SystemExit; on_failure is called as for any failure."""
    failures: list[BaseException] = []

    class RecordingTask(Task[Any, Any]):
        def on_failure(self, exc: BaseException, *rest: Any) -> None:
            failures.append(exc)

    def run(kind: type[BaseException]) -> str:
        bench = Bench()
        task = bench.app.task(name="work", base=RecordingTask, autoretry_for=(kind,), max_retries=3)(
            _cancel_itself
        )
        bench.app.finalize()
        context, message_body = bench.context(task)
        return bench.keep(asyncio.run(execute_async(bench.app, task, context, message_body))).kind

    assert run(Exception) == FAILURE
    assert [type(error) for error in failures] == [asyncio.CancelledError]
    assert run(asyncio.CancelledError) == RETRY


def test_async_task_that_outlives_its_soft_limit_is_cancelled_at_the_hard_limit() -> None:
    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    bench = Bench()
    outcome = run_async(bench, body, 0.001, 0.7)  # far apart, even for a busy machine
    assert outcome.kind == FAILURE
    assert bench.stored is not None
    assert bench.stored["result"]["exc_type"] == "TimeLimitExceeded"


@ASYNC
@pytest.mark.parametrize("hook", ["on_failure", "after_return"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_base_exceptions_of_hooks_do_not_change_the_outcome(
    kind: str, hook: str, error: type[BaseException]
) -> None:
    def broken(*_: Any) -> None:
        raise error

    bench = Bench()
    bench.run_body(raiser(KeyError("no")), kind, base=type("Broken", (Task,), {hook: broken}))
    assert bench.state == "FAILURE"
    assert bench.stored is not None
    assert bench.stored["result"]["exc_type"] == "KeyError"


def test_concurrent_async_tasks_have_their_own_requests() -> None:
    seen: list[tuple[str, str | None]] = []
    bench = Bench()
    all_here = 0

    async def body(n: int) -> None:
        nonlocal all_here
        all_here += 1
        while all_here < 20:
            await asyncio.sleep(0)
        seen.append((task.request.id, task.request.args[0]))

    task = bench.app.task(name="work")(body)
    bench.app.finalize()

    async def main() -> None:
        contexts = []
        for n in range(20):
            context, message_body = bench.context(task, n)
            context.id = f"id-{n}"
            contexts.append(execute_async(bench.app, task, context, message_body))
        for outcome in await asyncio.gather(*contexts):
            bench.keep(outcome)

    asyncio.run(main())
    assert sorted(seen) == sorted((f"id-{n}", n) for n in range(20))
    assert bench.app.backend.get("id-7")["status"] == states.SUCCESS  # type: ignore[index]


# -- more hooks and retries --


@ASYNC
def test_after_return_gets_the_traceback(kind: str) -> None:
    seen: list[Any] = []

    class RecordingTask(Task[Any, Any]):
        def after_return(self, status: str, retval: Any, *rest: Any) -> None:
            seen.append((status, str(rest[-1])))

    bench = Bench()
    bench.run_body(raiser(KeyError("no")), kind, base=RecordingTask)
    ((status, text),) = seen
    assert status == "FAILURE"
    assert text.startswith("Traceback")
    assert "KeyError: 'no'" in text


def test_retry_backoff_takes_precedence_over_retry_kwargs_countdown() -> None:
    bench = Bench()
    options = {"retry_backoff": 4, "retry_jitter": False, "retry_kwargs": {"countdown": 60, "max_retries": 9}}
    assert bench.run_body(raiser(KeyError("no")), autoretry_for=(KeyError,), **options).kind == RETRY
    assert bench.store.admin.next_due(["celery"]) == bench.clock.now() + 4


def test_runtime_of_a_cut_short_run_is_measured_from_its_start() -> None:
    """Not the time since boot, which would mislead the pool about how long the task takes."""
    bench = Bench()
    task = bench.task(lambda: None)
    bench.app.finalize()
    context, _ = bench.context(task)
    outcome = cut_short(bench.app, task, context, Terminated("on request"), time.perf_counter() - 5)
    assert (outcome.kind, round(outcome.runtime or 0)) == (TERMINATED, 5)
    outcome = cut_short(bench.app, task, context, KeyError("no"), time.perf_counter() - 5)
    assert (outcome.kind, round(outcome.runtime or 0)) == (FAILURE, 5)


def test_autoretry_with_an_invalid_countdown_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    outcome = bench.run_body(
        raiser(KeyError("no")), autoretry_for=(KeyError,), retry_kwargs={"countdown": "soon"}, max_retries=3
    )
    assert (outcome.kind, bench.state) == (FAILURE, "FAILURE")
    assert "KeyError: 'no'" in (outcome.traceback or "")
    assert "could not be reported" not in caplog.text


def test_eager_call_does_not_wait_for_an_unavailable_backend(caplog: pytest.LogCaptureFixture) -> None:
    class UnavailableBackend(MemoryBackend):
        def store(self, task_id: str, meta: Meta) -> bool:
            raise BackendError("the store is away")

    bench = Bench()
    backend = UnavailableBackend("away://", bench.app.conf, bench.clock)
    app = QWorker(
        "bench",
        broker=bench.store,
        backend=backend,
        clock=bench.clock,
        set_as_current=False,
        task_store_eager_result=True,
    )
    result = app.task(name="five")(lambda: 5).apply()
    assert (result.state, result.get()) == ("SUCCESS", 5)
    assert "cannot be stored: the store is away" in caplog.text
    assert bench.clock.slept == []


def test_stored_failure_stays_if_the_rest_of_its_report_fails() -> None:
    """The result became the later error, without its children, after the errback had got the first one."""
    bench = Bench()
    called: list[Any] = []
    bench.app.task(name="told")(lambda request, exc, traceback: called.append(exc))

    def stop(**given: Any) -> None:
        raise SystemExit(1)

    def work() -> None:
        bench.app.tasks["told"].si(1, 2, 3).apply_async(task_id="called")
        raise KeyError("x")

    signals.task_failure.connect(stop)
    try:
        outcome = bench.run(bench.task(work), errbacks=[bench.app.tasks["told"].s()])
    finally:
        signals.task_failure.disconnect(stop)
    meta = bench.stored
    assert meta is not None
    assert (outcome.kind, meta["result"]["exc_type"]) == (FAILURE, "KeyError")
    assert [child[0][0] for child in meta["children"]] == ["called"]
    assert [repr(error) for error in called] == ["KeyError('x')"]
