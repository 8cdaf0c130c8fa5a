"""The option ``trail``: whether the calls that a task makes are recorded as its children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qworker import QWorker, Signature, chain, chord, graph, group
from qworker.message.context import Context, pop, push
from qworker.message.protocol import Body
from qworker.signals import before_task_publish
from qworker.tasks.execution import execute
from tests.support.stores import make_app


@pytest.fixture
def app() -> QWorker:
    made, _, _ = make_app()

    @made.task(name="trailed")
    def trailed() -> int:
        return 1

    @made.task(name="untrailed", trail=False)
    def untrailed() -> int:
        return 1

    @made.task(name="fails", trail=False)
    def fails() -> None:
        raise ValueError

    return made


def one(app: QWorker, called: str) -> Signature:
    return app.tasks[called].s()


@pytest.mark.parametrize("called", ["trailed", "untrailed"])
@pytest.mark.parametrize(
    "call",
    [
        lambda app, called: app.tasks[called].delay(),
        lambda app, called: app.tasks[called].apply_async(queue="far"),
        lambda app, called: app.tasks[called].apply_many([()]),
        lambda app, called: app.tasks[called].apply_many([one(app, called).set(queue="far")]),
        lambda app, called: app.tasks[called].apply_many([()], queue="far"),
        lambda app, called: app.send_task(called),
        lambda app, called: app.send_many([(called, ())]),
        lambda app, called: app.send_many([one(app, called) | one(app, called)]),
        lambda app, called: chain(one(app, called), one(app, called)).delay(),
        lambda app, called: group(one(app, called), one(app, called)).delay(),
        lambda app, called: chord([one(app, called)], one(app, called)).delay(),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("caller", "recorded"), [("trailed", 1), ("untrailed", 0), (None, 1)])
def test_option_of_the_caller_decides(
    app: QWorker, caller: str | None, recorded: int, call: Callable[[QWorker, str], Any], called: str
) -> None:
    assert len(_children_of(app, caller, lambda: call(app, called))) == recorded


@pytest.mark.parametrize("by_set", [False, True])
@pytest.mark.parametrize("add_to_parent", [False, True, None])
@pytest.mark.parametrize(
    "flow",
    [
        lambda one: one,
        lambda one: chain(one, one),
        lambda one: group(one, one),
        lambda one: chord([one], one),
        lambda one: chain(group(one, one), one),
        lambda one: graph({"a": one, "b": one}, {"b": ["a"]}),
    ],
)
def test_add_to_parent_decides_for_one_call(
    app: QWorker, flow: Callable[[Signature], Signature], add_to_parent: bool | None, by_set: bool
) -> None:
    def call() -> None:
        called = flow(one(app, "trailed"))
        if by_set:
            called.set(add_to_parent=add_to_parent).apply_async()
        else:
            called.apply_async(add_to_parent=add_to_parent)

    assert len(_children_of(app, "trailed", call)) == (add_to_parent is not False)


def _children_of(app: QWorker, caller: str | None, call: Callable[[], Any]) -> list[Any]:
    """Return the children of a run of the task *caller* that only makes *call*."""
    context = Context(id="parent", root_id="root", called_directly=False, task=caller)
    token = push(context, caller and app.tasks[caller])
    try:
        call()
    finally:
        pop(token)
    return context.children


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("field", ["callbacks", "chain"])
@pytest.mark.parametrize(("caller", "recorded"), [("trailed", 1), ("untrailed", 0)])
def test_calls_after_a_task_are_recorded_by_its_option(
    app: QWorker, caller: str, recorded: int, field: str, observed: bool
) -> None:
    def observer(**_: Any) -> None:
        pass

    if observed:  # then calls do not take the fast path
        before_task_publish.connect(observer)
    try:
        assert len(_children(app, caller, field)) == recorded
    finally:
        before_task_publish.disconnect(observer)


def test_errbacks_are_recorded_by_the_option_of_the_failed_task(app: QWorker) -> None:
    assert not _children(app, "fails", "errbacks")
    app.tasks["fails"].trail = True
    assert len(_children(app, "fails", "errbacks")) == 1


def _children(app: QWorker, name: str, field: str) -> list[Any]:
    """Return the children of a run of the task *name*, whose *field* is a call."""
    embed: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    called = Signature("trailed" if name == "untrailed" else "untrailed", immutable=True)
    called["options"]["task_id"] = "called"
    body = Body((), {}, {**embed, field: [called]})
    headers = {"task": name, "id": "parent", "root_id": "parent"}
    context = Context.from_message(headers, body, task=app.tasks[name])
    execute(app, app.tasks[name], context, body)
    return context.children
