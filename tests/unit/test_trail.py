"""The option ``trail``: whether the calls that a task makes are recorded as its children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qworker import QWorker, Signature, chain, chord, group
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
    context = Context(id="parent", root_id="root", task=caller)
    token = push(context, caller and app.tasks[caller])
    try:
        call(app, called)
    finally:
        pop(token)
    assert len(context.children) == recorded


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
