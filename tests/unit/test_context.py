"""The current app, task and request."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from qworker import QWorker, chain, current_app, current_task, group
from qworker.context import Proxy, set_default_app, set_default_maker
from qworker.errors import ConfigurationError
from qworker.message.context import Context, current_context, pop, push
from qworker.message.protocol import Body, TaskMessage, encode, parse_headers
from qworker.tasks.async_execution import execute_async
from qworker.tasks.execution import execute
from qworker.tasks.outcome import SUCCESS
from tests.support.stores import make_app


@pytest.fixture(autouse=True)
def _no_default_app() -> Iterator[None]:
    set_default_app(None)
    yield
    set_default_app(None)


def received(**fields: Any) -> Context:
    message = TaskMessage(task="proj.add", id="i1", args=(1,), kwargs={"y": 2}, **fields)
    headers = parse_headers(encode(message).headers)
    embed = {"callbacks": message.callbacks, "errbacks": None, "chain": None, "chord": None}
    return Context.from_message(
        headers,
        Body(message.args, dict(message.kwargs), embed),
        properties={"reply_to": "q"},
        delivery_info={"exchange": "", "routing_key": "celery", "priority": 0, "redelivered": True},
        hostname="w@h",
        deliveries=2,
    )


def test_received_request_has_every_field_of_celery() -> None:
    context = received(
        retries=3, eta="2030-01-01T00:00:00+00:00", group="g", group_index=4, shadow="alias", parent_id="p",
        timelimit=(9, 8), callbacks=[{"task": "t"}], headers={"trace": "abc"},
    )  # fmt: skip
    expected = {
        "id": "i1", "task": "proj.add", "args": (1,), "kwargs": {"y": 2}, "retries": 3,
        "eta": "2030-01-01T00:00:00+00:00", "expires": None, "group": "g", "group_index": 4, "root_id": "i1",
        "parent_id": "p", "hostname": "w@h", "reply_to": "q", "correlation_id": "i1",
        "callbacks": [{"task": "t"}],
        "errbacks": None, "chain": None, "chord": None, "is_eager": False, "called_directly": False,
        "ignore_result": None, "logfile": None, "loglevel": None, "utc": True, "argsrepr": "(1,)",
        "kwargsrepr": "{'y': 2}", "shadow": "alias", "stamps": {}, "replaced_task_nesting": 0,
        "deliveries": 2,
    }  # fmt: skip
    assert {name: getattr(context, name) for name in expected} == expected
    assert list(context.timelimit or ()) == [9, 8]
    assert context.delivery_info == {
        "exchange": "",
        "routing_key": "celery",
        "priority": 0,
        "redelivered": True,
    }
    assert context.headers == {"trace": "abc"}
    assert context.children == []


def test_custom_headers_are_attributes() -> None:
    context = received(headers={"trace": "abc"})
    assert context.trace == "abc"
    assert context.get("trace") == "abc"
    assert context.get("nothing", 5) == 5
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = context.nothing


def test_fields_can_be_set_and_added() -> None:
    context = received()
    context.update({"retries": 1}, mine=2)
    context.other = 3
    assert (context.retries, context.mine, context.other) == (1, 2, 3)


def test_headers_are_none_without_custom_headers() -> None:
    assert received().headers is None


def test_empty_request_counts_as_called_directly() -> None:
    context = Context(task="t")
    assert context.called_directly
    assert (context.id, context.retries, context.args, context.delivery_info) == (None, 0, (), None)


def test_each_context_has_its_own_children() -> None:
    first, second = Context(), Context()
    first.children.append("x")
    assert second.children == []


def test_context_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(received(headers={"trace": "abc"})))
    assert (copy.id, copy.trace, copy.kwargs) == ("i1", "abc", {"y": 2})


def test_contexts_nest() -> None:
    assert current_context() is None
    outer, inner = Context(id="outer"), Context(id="inner")
    first = push(outer)
    second = push(inner)
    assert current_context() is inner
    pop(second)
    assert current_context() is outer
    pop(first)
    assert current_context() is None


def test_threads_and_asyncio_tasks_have_their_own_context() -> None:
    seen: dict[str, Any] = {}

    async def one(name: str) -> None:
        token = push(Context(id=name))
        await asyncio.sleep(0)
        context = current_context()
        seen[name] = context and context.id
        pop(token)

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"))

    token = push(Context(id="main"))
    thread = threading.Thread(target=lambda: seen.update(thread=current_context()))
    thread.start()
    thread.join()
    asyncio.run(both())
    pop(token)
    assert seen == {"a": "a", "b": "b", "thread": None}


def test_current_app_is_the_latest_or_that_of_the_running_task() -> None:
    set_default_maker(None)  # other tests may set up Django
    with pytest.raises(ConfigurationError, match="no app has been made"):
        _ = current_app.conf
    first = QWorker("first")
    second = QWorker("second")
    quiet = QWorker("quiet", set_as_current=False)
    assert current_app == second
    assert repr(current_app) == repr(second)

    @first.task
    def which() -> str:
        return current_app.main or ""

    assert which() == "first"
    assert quiet != current_app


def test_current_task_is_false_outside_a_task() -> None:
    app, _, _ = make_app()

    @app.task
    def name() -> str:
        assert current_task
        return current_task.name

    assert name() == "tests.unit.test_context.name"
    assert not current_task


def test_proxy_forwards_to_its_target() -> None:
    target = Context(id="1")
    proxy = Proxy(lambda: target)
    assert isinstance(proxy, Context)
    proxy.mine = 1
    assert target.mine == 1
    del proxy.mine
    assert "mine" not in target.__dict__
    assert hash(proxy) == hash(target)
    assert "id" in dir(proxy)


# -- a task that another calls as a function --


class Called(NamedTuple):
    app: QWorker
    broker: Any
    inner: Any
    seen: list[Any]
    """What the inner task has seen."""


@pytest.fixture(params=[False, True], ids=["def", "async def"])
def called(request: pytest.FixtureRequest) -> Called:
    """A task ``outer`` that calls ``inner`` as a function, which does what it is given."""
    app, broker, _ = make_app(task_inherit_parent_priority=True)
    seen: list[Any] = []

    @app.task(name="target")
    def target() -> None: ...

    if request.param:

        @app.task(name="inner")
        async def inner(act: Any) -> None:
            seen.append(act())

        @app.task(name="outer")
        async def outer(act: Any) -> None:
            await inner(act)
    else:

        @app.task(name="inner")
        def inner(act: Any) -> None:
            seen.append(act())

        @app.task(name="outer")
        def outer(act: Any) -> None:
            inner(act)

    return Called(app, broker, inner, seen)


def run_outer(called: Called, act: Any) -> Context:
    """Run the task ``outer`` as a worker does."""
    outer = called.app.tasks["outer"]
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = Body((act,), {}, embed)
    headers = {"task": "outer", "id": "parent", "root_id": "root"}
    context = Context.from_message(headers, body, task=outer, delivery_info={"priority": 6})
    if outer.is_async:
        outcome = asyncio.run(execute_async(called.app, outer, context, body))
    else:
        outcome = execute(called.app, outer, context, body)
    assert outcome.kind == SUCCESS, outcome.text
    return context


@pytest.mark.parametrize(
    "call",
    [
        lambda target: target.delay(),
        lambda target: target.apply_async(queue="far"),
        lambda target: target.apply_many([()])[0],
        lambda target: target.app.send_task("target"),
        lambda target: chain(target.si(), target.si()).delay().parent,
        lambda target: group(target.si(), target.si()).delay(),
        lambda target: target.app.send_many([("target", ())])[0],
    ],
)
def test_its_calls_belong_to_the_task_that_runs(called: Called, call: Any) -> None:
    context = run_outer(called, lambda: call(called.app.tasks["target"]))
    assert context.children == called.seen
    assert {each.headers["parent_id"] for each in called.broker.sent} == {"parent"}
    assert {each.headers["root_id"] for each in called.broker.sent} == {"root"}


def test_its_calls_inherit_the_priority_of_the_task_that_runs(called: Called) -> None:
    run_outer(called, called.app.tasks["target"].delay)
    assert [each.envelope.priority for each in called.broker.sent] == [6]


def test_it_must_not_wait_for_results_in_a_worker(called: Called) -> None:
    def wait() -> None:
        with pytest.raises(RuntimeError, match="must not wait"):
            called.app.tasks["target"].delay().get(timeout=1)

    run_outer(called, wait)


def test_the_task_that_calls_it_has_its_own_request(called: Called) -> None:
    outer = called.app.tasks["outer"]
    run_outer(called, lambda: (outer.request.id, called.inner.request.id, current_task.name))
    assert called.seen == [("parent", None, "inner")]


def test_an_eager_run_is_the_parent_of_its_calls(called: Called) -> None:
    run_outer(called, lambda: called.app.tasks["inner"].apply((called.app.tasks["target"].delay,)).id)
    assert [each.headers["parent_id"] for each in called.broker.sent] == called.seen[-1:]
    assert [each.headers["root_id"] for each in called.broker.sent] == ["root"]


def test_the_worker_task_is_the_one_that_runs(called: Called) -> None:
    run_outer(called, lambda: (called.app.current_worker_task.name, called.app.current_task.name))
    assert called.seen == [("outer", "inner")]
    assert called.app.current_worker_task is None


def test_a_task_that_calls_itself_again_and_again_keeps_no_requests() -> None:
    """Each callback of an event loop has a copy of the context in which it was scheduled."""
    app, _, _ = make_app()
    contexts: list[Any] = []
    kept: list[int] = []

    @app.task(name="tick")
    def tick(left: int) -> None:
        request = current_context()
        assert request is not None
        contexts.append(weakref.ref(request))
        assert pickle.loads(pickle.dumps(request)).args == (left,)
        if left:
            asyncio.get_running_loop().call_soon(tick, left - 1)
        else:
            gc.collect()
            kept.append(sum(each() is not None for each in contexts))

    async def main() -> None:
        tick(50)
        for _ in range(60):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert len(contexts) == 51
    assert kept[0] < 5
