"""Tasks: definition, eager calls, retries, and the request."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import signal
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from qworker import QWorker, Task, chord, graph, group, signals
from qworker.clock import from_epoch
from qworker.context import set_default_app
from qworker.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ControlError,
    Ignore,
    MaxRetriesExceeded,
    PublishError,
    Reject,
    Retry,
)
from qworker.message.context import Context, pop, push
from qworker.message.protocol import Body, TaskMessage, encode, parse_headers
from qworker.tasks.execution import INTERRUPTED, Interrupted, execute
from qworker.testing import MemoryStore
from tests.support.stores import KeepingStore, make_app


class Hooked(Task[..., Any]):
    """A base class that records the hooks called."""

    max_retries = 1
    seen: list[str]

    def __init__(self) -> None:
        self.seen = []

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self.seen.append(f"before_start {args} {kwargs}")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.seen.append(f"on_success {retval}")

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(f"on_failure {exc!r} {'Traceback' in str(einfo)}")

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(f"on_retry {exc!r}")

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        self.seen.append(f"after_return {status}")


def request_of(task: Task[..., Any], **fields: Any) -> Context:
    """The request that a worker would give to *task*."""
    message = TaskMessage(task=task.name, id="i1", **fields)
    embed = {"callbacks": message.callbacks, "errbacks": None, "chain": None, "chord": None}
    return Context.from_message(
        parse_headers(encode(message).headers),
        Body(message.args, dict(message.kwargs), embed),
        delivery_info={"exchange": "", "routing_key": "came-by", "priority": 4, "redelivered": False},
        task=task,
    )


# -- definitions --


def test_task_looks_like_its_function() -> None:
    app, _, _ = make_app()

    @app.task
    def add(x: int, y: int = 1) -> int:
        """Add them."""
        return x + y

    assert add.name == "tests.unit.test_task.add"
    assert (add.__doc__, add.__name__, add.__module__) == ("Add them.", "add", __name__)
    assert str(inspect.signature(add)) == "(x: 'int', y: 'int' = 1) -> 'int'"
    assert (add(1), add(1, y=4)) == (2, 5)
    assert repr(add) == "<Task tests.unit.test_task.add>"
    assert isinstance(add, Task)


def test_bound_task_gets_itself_as_first_argument() -> None:
    app, _, _ = make_app()

    @app.task(bind=True, name="mine")
    def mine(self: Task[..., Any], x: int) -> tuple[str, int, bool]:
        return self.name, x, self.request.called_directly

    assert mine(5) == ("mine", 5, True)
    assert str(inspect.signature(mine)).startswith("(x: 'int')")


def test_calling_an_async_task_returns_a_coroutine() -> None:
    app, _, _ = make_app()

    @app.task
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    assert double.is_async
    assert asyncio.run(double(4)) == 8


def test_settings_are_defaults_of_task_options() -> None:
    app, _, _ = make_app(
        task_serializer="pickle", security_key="k" * 32, accept_content=["pickle"], task_acks_late=False,
        task_time_limit=9, task_default_rate_limit="5/m", task_max_deliveries=3,
        result_accept_content=["json"],
    )  # fmt: skip

    @app.task
    def plain() -> None: ...

    @app.task(serializer="json", acks_late=True, time_limit="2m", rate_limit="10/s", max_deliveries=1)
    def own() -> None: ...

    app.finalize()
    assert (plain.serializer, plain.acks_late, plain.time_limit, plain.rate_limit, plain.max_deliveries) == (
        "pickle", False, 9.0, "5/m", 3,
    )  # fmt: skip
    assert (own.serializer, own.acks_late, own.time_limit, own.rate_limit, own.max_deliveries) == (
        "json", True, 120.0, "10/s", 1,
    )  # fmt: skip


def test_task_annotations_override_options() -> None:
    app, _, _ = make_app(
        task_annotations={"*": {"max_retries": 7}, "slow": {"rate_limit": "1/s", "max_retries": 8}}
    )

    @app.task(name="slow")
    def slow() -> None: ...

    @app.task(name="fast")
    def fast() -> None: ...

    app.finalize()
    assert (slow.rate_limit, slow.max_retries, fast.rate_limit, fast.max_retries) == ("1/s", 8, None, 7)


def _generator(self: Any = None) -> Any:
    yield 1


async def _async_generator(self: Any = None) -> Any:
    yield 1


@pytest.mark.parametrize("function", [_generator, _async_generator, functools.partial(_generator, 1)])
def test_generator_functions_are_rejected_as_tasks(function: Any) -> None:
    app, _, _ = make_app()
    with pytest.raises(ConfigurationError, match="task g contains a yield"):
        app.task(name="g")(function)
    with pytest.raises(ConfigurationError, match="task g contains a yield"):
        app.register_task(type("Generating", (Task,), {"name": "g", "run": staticmethod(function)}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retires": 3}, "no task option 'retires'.*Did you mean"),
        ({"rate_limit": "fast"}, "rate_limit='fast' must be a rate"),
        ({"rate_limit": "10/y"}, "must be a rate"),
        ({"time_limit": -1}, "time_limit=-1 must be a duration"),
        ({"time_limit": 5, "soft_time_limit": 6}, "soft_time_limit .* comes after time_limit"),
        ({"throws": "KeyError"}, "must be exception classes"),
        ({"autoretry_for": [ValueError, 5]}, "must be exception classes"),
        ({"max_retries": -1}, "max_retries=-1 must be a whole number"),
        ({"max_deliveries": 0}, "of 1 or more"),
        ({"acks_late": "maybe"}, "must be true or false"),
        ({"priority": "high"}, "must be a whole number"),
        ({"queue": "a b"}, "queue name"),
        ({"base": dict}, "must be a subclass of qworker.Task"),
    ],
)
def test_invalid_task_options_are_rejected(options: dict[str, Any], message: str) -> None:
    app, _, _ = make_app()
    with pytest.raises(ConfigurationError, match=message):

        @app.task(name="work", **options)
        def work() -> None: ...


def test_positional_options_of_the_decorator_are_rejected() -> None:
    app, _, _ = make_app()
    with pytest.raises(ConfigurationError, match="options are given by name"):
        app.task("name")  # type: ignore[call-overload]


def test_class_based_task() -> None:
    app, store, _ = make_app()

    class Add(Task[[int, int], int]):
        name = "add"
        queue = "sums"
        max_retries = 9

        def run(self, x: int, y: int) -> int:
            return x + y

    add = app.register_task(Add())
    assert (add(1, 2), add.max_retries, app.tasks["add"]) == (3, 9, add)
    add.delay(1, 2)
    assert store.sent[0].envelope.queue == "sums"
    with pytest.raises(TypeError, match="missing 1 required positional"):
        add.delay(1)  # type: ignore[call-arg]


def test_task_is_pickled_by_name() -> None:
    app = QWorker("proj")

    @app.task(name="pickled")
    def pickled() -> None: ...

    try:
        assert pickle.loads(pickle.dumps(pickled)) is pickled
    finally:
        set_default_app(None)


# -- eager runs --


def test_apply_runs_hooks_like_a_worker() -> None:
    app, _, _ = make_app()

    @app.task(base=Hooked, bind=True)
    def work(self: Hooked, x: int) -> int:
        assert self.request.is_eager
        assert not self.request.called_directly
        return x * 2

    result = work.apply((4,), task_id="mine")
    assert (result.id, result.state, result.get(), result.ready(), result.successful()) == (
        "mine", "SUCCESS", 8, True, True,
    )  # fmt: skip
    assert work.seen == ["before_start (4,) {}", "on_success 8", "after_return SUCCESS"]  # type: ignore[attr-defined]


def test_apply_stores_or_throws_the_exception() -> None:
    app, _, _ = make_app()

    @app.task(base=Hooked)
    def fail() -> None:
        raise KeyError("no")

    result = fail.apply()
    assert (result.state, repr(result.result), result.failed()) == ("FAILURE", "KeyError('no')", True)
    assert "in fail" in (result.traceback or "")
    assert "execution.py" not in (result.traceback or "")
    assert repr(result.get(propagate=False)) == "KeyError('no')"
    with pytest.raises(KeyError):
        result.get()
    with pytest.raises(KeyError):
        fail.apply(throw=True)
    app.conf.task_eager_propagates = True
    with pytest.raises(KeyError):
        fail.apply()
    assert fail.seen[:3] == ["before_start () {}", "on_failure KeyError('no') True", "after_return FAILURE"]  # type: ignore[attr-defined]


def test_apply_retries_at_once() -> None:
    app, store, clock = make_app()

    @app.task(base=Hooked, bind=True, max_retries=3, default_retry_delay=100)
    def flaky(self: Hooked, x: int) -> tuple[int, int]:
        if self.request.retries < 2:
            raise self.retry(args=(x + 1,), exc=ValueError("again"))
        return x, self.request.retries

    assert flaky.apply((0,)).get() == (2, 2)
    assert flaky.seen.count("on_retry ValueError('again')") == 2  # type: ignore[attr-defined]
    assert clock.slept == []
    assert store.tries == 0


def test_apply_with_ignore_and_reject() -> None:
    app, _, _ = make_app()

    @app.task
    def directed(directive: Exception) -> None:
        raise directive

    assert directed.apply((Ignore("enough"),)).state == "IGNORED"
    assert directed.apply((Reject("bad"),)).state == "REJECTED"


def test_eager_arguments_are_serialized() -> None:
    app, store, _ = make_app(task_always_eager=True)

    @app.task(name="kind")
    def kind(value: Any) -> str:
        return type(value).__name__

    assert kind.delay((1, 2)).get() == "list"
    assert [result.get() for result in kind.apply_many([(1,), ("a",)])] == ["int", "str"]
    assert kind.apply_async(({1: 2},), countdown=5, queue="q").get() == "dict"
    with pytest.raises(Exception, match="object is not JSON"):
        kind.delay(object())
    assert store.tries == 0


def test_eager_call_accepts_a_task_id() -> None:
    app, _, _ = make_app(task_always_eager=True)

    @app.task(bind=True)
    def who(self: Task[..., Any]) -> str | None:
        return self.request.id

    assert who.apply_async(task_id="mine").get() == "mine"


def test_eager_async_tasks_run_inside_a_running_event_loop() -> None:
    app, _, _ = make_app(task_always_eager=True)

    @app.task(bind=True, autoretry_for=(OSError,), max_retries=1)
    async def nap(self: Task[..., Any], value: int) -> int:
        await asyncio.sleep(0)
        if not self.request.retries:
            raise OSError("again")
        return value

    async def caller() -> tuple[int, int]:
        return await nap.delay(1), nap.apply((2,)).get()

    assert nap.delay(3).get() == 3
    assert asyncio.run(caller()) == (1, 2)


def test_eager_results_are_stored_on_request_only() -> None:
    app, _, _ = make_app(task_always_eager=True)

    @app.task
    def work() -> int:
        return 5

    assert app.backend.get(work.delay().id) is None
    app.conf.task_store_eager_result = True
    meta = app.backend.get(work.delay().id)
    assert meta is not None
    assert meta["result"] == 5


def test_eager_call_made_in_a_task_knows_its_parent() -> None:
    app, _, _ = make_app(task_always_eager=True)
    seen: list[tuple[Any, Any]] = []

    @app.task(bind=True)
    def inner(self: Task[..., Any]) -> None:
        seen.append((self.request.root_id, self.request.parent_id))

    @app.task
    def outer() -> None:
        inner.delay()

    result = outer.delay()
    assert seen == [(result.id, result.id)]


def test_eager_run_sends_signals() -> None:
    app, _, _ = make_app()
    seen: list[str] = []

    @app.task(name="work")
    def work() -> int:
        return 1

    def note(signal: Any, **kwargs: Any) -> None:
        seen.append(signal.name)

    observed = (signals.task_prerun, signals.task_success, signals.task_postrun)
    for sent in observed:
        sent.connect(note, sender="work")
    work.apply()
    for sent in observed:
        sent.disconnect(note, sender="work")
    assert seen == ["task_prerun", "task_success", "task_postrun"]


# -- retry, in a worker --


@pytest.fixture
def flaky() -> Any:
    app, store, clock = make_app()

    @app.task(name="flaky", bind=True, max_retries=3, default_retry_delay=60)
    def flaky(self: Task[..., Any], x: int, y: int) -> None: ...

    return flaky, store, clock


def test_retry_sends_the_same_call_later(flaky: Any) -> None:
    task, store, clock = flaky
    request = request_of(
        task, args=(1,), kwargs={"y": 2}, retries=1, root_id="root", parent_id="p", group="g", group_index=2,
        expires="2030-01-01T00:00:00+00:00", timelimit=(9, 8), shadow="alias", callbacks=[{"task": "after"}],
        headers={"trace": "t1", "x-death": "broker"}, stamped_headers=["tenant"], stamps={"tenant": ["acme"]},
    )  # fmt: skip
    token = push(request)
    with pytest.raises(Retry) as caught:
        task.retry(exc=ValueError("again"))
    pop(token)
    (sent,) = store.sent
    expected = {
        "task": "flaky", "id": "i1", "retries": 2, "eta": from_epoch(clock.now() + 60).isoformat(),
        "root_id": "root",
        "parent_id": "p", "group": "g", "group_index": 2, "expires": "2030-01-01T00:00:00+00:00",
        "timelimit": [9, 8], "shadow": "alias", "trace": "t1", "stamped_headers": ["tenant"],
        "tenant": ["acme"],
        "stamps": {"tenant": ["acme"]},
    }  # fmt: skip
    assert {key: sent.headers.get(key) for key in expected} == expected
    assert "x-death" not in sent.headers
    assert (sent.body.args, sent.body.kwargs) == ((1,), {"y": 2})
    assert sent.body.embed["callbacks"] == [{"task": "after"}]
    assert (sent.envelope.queue, sent.envelope.priority, sent.envelope.due) == (
        "came-by",
        4,
        clock.now() + 60,
    )
    assert (repr(caught.value.exc), caught.value.when) == ("ValueError('again')", 60)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"countdown": 5}, {"due": 5}),
        ({"eta": datetime(2023, 11, 14, 22, 13, 30)}, {"due": 10}),
        ({"countdown": 0, "args": (7,), "kwargs": {"y": 8}}, {"due": 0, "args": (7,), "kwargs": {"y": 8}}),
        ({"countdown": 1, "queue": "other", "priority": 9}, {"due": 1, "queue": "other", "priority": 9}),
        ({"countdown": 1, "expires": 30}, {"due": 1, "expires": 30}),
    ],
)
def test_retry_options_change_the_next_attempt(
    flaky: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    task, store, clock = flaky
    token = push(request_of(task, args=(1, 2)))
    directive = task.retry(throw=False, **options)
    pop(token)
    assert isinstance(directive, Retry)
    (sent,) = store.sent
    found = {
        "due": sent.envelope.due - clock.now(), "args": sent.body.args, "kwargs": sent.body.kwargs,
        "queue": sent.envelope.queue, "priority": sent.envelope.priority,
        "expires": sent.envelope.expires and sent.envelope.expires - clock.now(),
    }  # fmt: skip
    assert found == {
        "args": (1, 2),
        "kwargs": {},
        "queue": "came-by",
        "priority": 4,
        "expires": None,
        **expected,
    }


@pytest.mark.parametrize(
    ("original", "given", "expected"),
    [
        # Passed by keyword before, positionally now.
        (((), {"x": 1, "y": 2}), {"args": (3,)}, ((3,), {"y": 2})),
        (((), {"x": 1, "y": 2}), {"args": (3, 4)}, ((3, 4), {})),
        (((1,), {"y": 2}), {"args": [5]}, ((5,), {"y": 2})),
        (((), {"x": 1, "y": 2}), {"args": ()}, ((), {"x": 1, "y": 2})),
        # Passed positionally before, by keyword now.
        (((1, 2), {}), {"kwargs": {"y": 8}}, ((1, 8), {})),
        (((1, 2), {}), {"kwargs": {"x": 7, "y": 8}}, ((7, 8), {})),
        (((1,), {"y": 2}), {"kwargs": {"x": 7, "y": 8}}, ((7,), {"y": 8})),
        (((1, 2), {}), {"kwargs": {}}, ((1, 2), {})),
        # Both.
        (((1, 2), {}), {"args": (), "kwargs": {"x": 7, "y": 8}}, ((), {"x": 7, "y": 8})),
    ],
)
def test_retry_replaces_arguments_by_position_or_keyword(
    flaky: Any, original: Any, given: dict[str, Any], expected: Any
) -> None:
    task, store, _ = flaky
    token = push(request_of(task, args=original[0], kwargs=original[1]))
    task.retry(throw=False, countdown=1, **given)
    pop(token)
    (sent,) = store.sent
    assert (sent.body.args, sent.body.kwargs) == expected


def test_positional_only_and_variable_arguments_are_kept_in_a_retry() -> None:
    app, store, _ = make_app()

    @app.task(name="odd", bind=True)
    def odd(self: Task[..., Any], x: int, /, y: int = 0, *rest: int, **more: int) -> None: ...

    for given, expected in [
        ({"kwargs": {"x": 9, "y": 8}}, ((1, 8, 3), {"x": 9})),
        ({"args": (4, 5)}, ((4, 5), {"more": 6})),
    ]:
        token = push(request_of(odd, args=(1, 2, 3), kwargs={"more": 6}))
        odd.retry(throw=False, countdown=1, **given)
        pop(token)
        assert (store.sent[-1].body.args, store.sent[-1].body.kwargs) == expected


def test_request_has_the_time_limits_of_its_call(flaky: Any) -> None:
    task, _, _ = flaky
    limited, free = request_of(task, timelimit=(9, 8)), request_of(task)
    assert (limited.time_limit, limited.soft_time_limit) == (9, 8)
    assert (free.time_limit, free.soft_time_limit, free.timelimit) == (None, None, [None, None])
    assert (task.request.time_limit, task.request.soft_time_limit, task.request.timelimit) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 10}, "priority=10 must be a whole number from 0 to 9"),
        ({"retry_policy": {"max_retry": 3}}, "retry_policy has no 'max_retry'"),
        ({"time_limit": 2, "soft_time_limit": 3}, "comes after time_limit"),
    ],
)
def test_invalid_retry_options_are_rejected(flaky: Any, options: dict[str, Any], words: str) -> None:
    task, store, _ = flaky
    token = push(request_of(task))
    with pytest.raises(PublishError, match=words):
        task.retry(throw=False, **options)
    pop(token)
    assert store.tries == 0


def test_retry_ignores_options_that_identify_the_call(flaky: Any) -> None:
    task, store, _ = flaky
    context = request_of(task)
    token = push(context)
    task.retry(throw=False, countdown=1, root_id="other", parent_id="other", group_id="g", reply_to="q")
    pop(token)
    (sent,) = store.sent
    assert (sent.headers["id"], sent.headers["parent_id"]) == (context.id, context.id)
    assert (sent.headers["root_id"], sent.headers["group"]) == (context.root_id, context.group)
    assert "reply_to" not in sent.properties


@pytest.mark.parametrize("changed", [{}, {"args": ("4711-0001", 1)}])
def test_a_next_attempt_hides_the_arguments_that_its_caller_hides(
    flaky: Any, changed: dict[str, Any]
) -> None:
    task, store, _ = flaky
    token = push(request_of(task, args=("4711-0000", 1), argsrepr="(…)", kwargsrepr="{}"))
    task.retry(throw=False, countdown=1, **changed)
    pop(token)
    assert (store.sent[0].headers["argsrepr"], store.sent[0].headers["kwargsrepr"]) == ("(…)", "{}")


def test_a_next_attempt_shows_its_own_arguments(flaky: Any) -> None:
    task, store, _ = flaky
    token = push(request_of(task, args=(1, 2), argsrepr="(1, 2)", kwargsrepr="{}"))
    task.retry(throw=False, countdown=1, args=(3,), kwargs={"y": 4})
    pop(token)
    assert (store.sent[0].headers["argsrepr"], store.sent[0].headers["kwargsrepr"]) == ("(3,)", "{'y': 4}")


def test_default_retry_kwargs_are_read_only(flaky: Any) -> None:
    with pytest.raises(TypeError):
        flaky[0].retry_kwargs["max_retries"] = 1
    assert not Task.retry_kwargs


def test_retry_caps_the_priority_of_the_message(flaky: Any) -> None:
    task, store, _ = flaky
    context = request_of(task)
    context.delivery_info = {"routing_key": "came-by", "priority": 200}
    token = push(context)
    task.retry(throw=False, countdown=1)
    pop(token)
    assert store.sent[0].envelope.priority == 9


def test_retry_raises_the_exception_after_max_retries(flaky: Any) -> None:
    task, store, _ = flaky
    token = push(request_of(task, retries=3))
    with pytest.raises(ValueError, match="again"):
        task.retry(exc=ValueError("again"))
    with pytest.raises(MaxRetriesExceeded, match=r"cannot retry flaky\[i1\]: it has no retries left"):
        task.retry()
    assert store.tries == 0
    task.retry(max_retries=4, throw=False)
    pop(token)
    assert store.tries == 1


def test_max_retries_none_is_unlimited() -> None:
    app, store, _ = make_app()

    @app.task(bind=True, max_retries=None)
    def stubborn(self: Task[..., Any]) -> None: ...

    token = push(request_of(stubborn, retries=1000))
    with pytest.raises(Retry):
        stubborn.retry(countdown=1)
    pop(token)
    assert store.sent[0].headers["retries"] == 1001


def test_retry_of_a_direct_call_raises(flaky: Any) -> None:
    task, store, _ = flaky
    with pytest.raises(ValueError, match="again"):
        task.retry(exc=ValueError("again"))
    with pytest.raises(Retry, match="called directly"):
        task.retry()
    assert store.tries == 0


@pytest.mark.parametrize("given", [{"args": 5}, {"args": "text"}, {"kwargs": [1]}], ids=str)
def test_retry_rejects_invalid_args_and_kwargs(flaky: Any, given: dict[str, Any]) -> None:
    task, store, _ = flaky
    token = push(request_of(task))
    with pytest.raises(TypeError, match=f"calling flaky: {next(iter(given))}="):
        task.retry(**given)
    pop(token)
    assert store.tries == 0


def test_retry_rejects_unknown_options(flaky: Any) -> None:
    task, store, _ = flaky
    token = push(request_of(task))
    with pytest.raises(Exception, match="no option 'cuontdown'"):
        task.retry(cuontdown=1)
    pop(token)
    assert store.tries == 0


def test_retry_is_signed_again() -> None:
    app, store, _ = make_app(security_key="k" * 32)

    @app.task(bind=True)
    def work(self: Task[..., Any]) -> None: ...

    token = push(request_of(work, headers={"signature": "v1:old"}))
    work.retry(throw=False)
    pop(token)
    (sent,) = store.sent
    assert app.signer is not None
    app.signer.verify(sent.headers, sent.envelope.body, sent.properties)


@pytest.mark.parametrize(
    ("options", "retries", "expected"),
    [
        ({}, 0, 180),
        ({"default_retry_delay": 5}, 3, 5),
        ({"retry_kwargs": {"countdown": 7}}, 0, 7),
        ({"retry_kwargs": {"countdown": timedelta(minutes=1)}}, 0, 60),
        ({"retry_backoff": True, "retry_jitter": False}, 3, 8),
        ({"retry_backoff": 0.5, "retry_jitter": False}, 2, 2),
        ({"retry_backoff": 5, "retry_backoff_max": 12, "retry_jitter": False}, 9, 12),
    ],
)
def test_autoretry_countdown(options: dict[str, Any], retries: int, expected: float) -> None:
    app, _, _ = make_app()

    @app.task(**options)
    def work() -> None: ...

    assert work.autoretry_countdown(Context(retries=retries)) == expected


def test_autoretry_jitter_is_below_the_delay() -> None:
    app, _, _ = make_app()

    @app.task(retry_backoff=True)
    def work() -> None: ...

    waits = {work.autoretry_countdown(Context(retries=4)) for _ in range(50)}
    assert len(waits) > 10
    assert all(0 <= wait <= 16 for wait in waits)


# -- custom states --


def test_update_state_cannot_replace_a_final_state() -> None:
    app, _, _ = make_app()

    @app.task(bind=True)
    def work(self: Task[..., Any]) -> None: ...

    token = push(request_of(work))
    assert work.update_state(state="PROGRESS", meta={"done": 3})
    pop(token)
    result = work.AsyncResult("i1")
    assert (result.state, result.info, result.ready()) == ("PROGRESS", {"done": 3}, False)
    app.backend.store("i1", app.backend.meta("i1", "SUCCESS", 5))
    assert not work.update_state("i1", state="PROGRESS")
    assert result.state == "SUCCESS"
    with pytest.raises(ConfigurationError, match="needs a task_id"):
        work.update_state(state="PROGRESS")


def test_request_belongs_to_its_task_only() -> None:
    app, _, _ = make_app()

    @app.task(name="outer")
    def outer() -> None: ...

    @app.task(name="inner")
    def inner() -> None: ...

    token = push(request_of(outer))
    assert outer.request.id == "i1"
    assert inner.request.id is None
    assert inner.request.called_directly
    pop(token)


def test_countdown_can_be_a_timedelta(flaky: Any) -> None:
    task, store, clock = flaky
    token = push(request_of(task))
    task.retry(throw=False, countdown=timedelta(minutes=1))
    pop(token)
    assert store.sent[0].envelope.due == clock.now() + 60


def test_keeping_store_implements_workers() -> None:
    assert KeepingStore().workers() == []


# -- Ctrl-C during an eager run --


def test_keyboard_interrupt_of_an_eager_task_propagates() -> None:
    app, _, _ = make_app()

    @app.task
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.apply()


def test_keyboard_interrupt_ends_an_eager_async_task() -> None:
    app, _, _ = make_app()

    @app.task
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        work.apply()


def test_worker_interruption_propagates_through_an_eager_call() -> None:
    app, _, _ = make_app()

    @app.task
    def inner() -> None:
        raise Interrupted

    @app.task
    def outer() -> Any:
        return inner.apply().state

    app.finalize()
    body = Body((), {}, {})
    context = Context.from_message({"id": "i1", "task": outer.name}, body, task=outer)
    assert execute(app, outer, context, body).kind == INTERRUPTED


# -- from asyncio --


class Gated(MemoryStore):
    """A broker that blocks push() until the test opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def push(self, envelopes: Any, timeout: float = 10.0) -> None:
        if not self.go.wait(timeout):
            raise BrokerUnavailable("held up")
        super().push(envelopes, timeout)


def gated(**settings: Any) -> tuple[Gated, Task[..., int]]:
    store = Gated()
    app = QWorker("gated", broker=store, backend="cache+memory://", set_as_current=False, **settings)

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return store, add


def test_slow_broker_does_not_block_the_event_loop() -> None:
    store, add = gated()

    async def main() -> list[str]:
        calls = [asyncio.create_task(add.adelay(number, y=1)) for number in range(3)]
        calls.append(asyncio.create_task(add.aapply_async((1, 2), countdown=60, task_id="mine")))
        calls.append(asyncio.create_task(add.app.asend_task("add", (1, 2), task_id="named")))
        many = [
            asyncio.create_task(add.aapply_many([(1, 2), (3, 4)], queue="celery")),
            asyncio.create_task(add.app.asend_many([("add", (1, 2)), add.s(3, 4)], queue="celery")),
        ]
        for _ in range(10):
            await asyncio.sleep(0)  # the loop runs although no call has been sent yet
        assert not any(call.done() for call in [*calls, *many])
        store.go.set()
        return [(await call).id for call in calls] + [each.id for some in many for each in await some]

    ids = asyncio.run(main())
    assert ids[3:5] == ["mine", "named"]
    assert len(set(ids)) == 9
    assert store.messages == 9


@pytest.mark.parametrize(
    ("workflow", "messages"),
    [
        (lambda add: add.s(1, 2), 1),
        (lambda add: add.s(1, 2) | add.s(3), 1),
        (lambda add: group(add.s(1, 2), add.s(3, 4)), 2),
        (lambda add: chord([add.s(1, 2), add.s(3, 4)], add.si(5, 6)), 2),
        (lambda add: graph({"a": add.s(1, 2), "b": add.s(3, 4)}), 2),
        (lambda add: add.starmap([(1, 2), (3, 4)]), 1),
        (lambda add: add.chunks([(1, 2), (3, 4)], 1), 2),
    ],
    ids=["signature", "chain", "group", "chord", "graph", "starmap", "chunks"],
)
@pytest.mark.parametrize("send", [lambda it: it.adelay(), lambda it: it.aapply_async(queue="celery")])
def test_workflows_are_sent_from_asyncio(
    send: Callable[[Any], Any], workflow: Callable[[Any], Any], messages: int
) -> None:
    store, add = gated()

    async def main() -> Any:
        call = asyncio.create_task(send(workflow(add)))
        for _ in range(10):
            await asyncio.sleep(0)  # the loop runs although the broker has accepted nothing yet
        assert not call.done()
        store.go.set()
        return await call

    assert asyncio.run(main()).id
    assert store.messages == messages


def test_async_calls_reject_invalid_arguments() -> None:
    _, add = gated()
    with pytest.raises(TypeError, match="missing"):
        asyncio.run(add.adelay(1))
    with pytest.raises(PublishError, match="no_such"):
        asyncio.run(add.aapply_async((1, 2), no_such=1))
    with pytest.raises(PublishError, match="no_such"):
        asyncio.run(add.aapply_many([(1, 2)], no_such=1))


def test_async_call_fails_after_task_publish_timeout() -> None:
    _, add = gated(task_publish_timeout=0.05)
    with pytest.raises(BrokerUnavailable, match="held up"):
        asyncio.run(add.adelay(1, 2))


def test_async_call_made_in_a_task_knows_its_parent() -> None:
    store, add = gated()
    store.go.set()
    context = Context(id="parent", root_id="root", called_directly=False)
    token = push(context, add)
    try:
        result = asyncio.run(add.adelay(1, 2))
    finally:
        pop(token)
    store.consumer.register("w@h", ["celery"], 1)
    (leased,) = store.consumer.lease(["celery"], 1).messages
    assert (json.loads(leased.headers)["parent_id"], json.loads(leased.headers)["root_id"]) == (
        "parent",
        "root",
    )
    assert context.children == [result]


def test_revoke_rejects_wait_and_timeout() -> None:
    store, add = gated()
    store.go.set()
    result = add.delay(1, 2)
    for given in ({"wait": True}, {"timeout": 1}, {"timeout": 0}):
        (name,) = given
        with pytest.raises(ControlError, match=f"{name}=.*workers do not answer"):
            result.revoke(**given)
    assert store.consumer.revoked_since(0)[1] == []
