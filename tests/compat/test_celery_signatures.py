"""Signatures and results compared with Celery's: settable properties, equality, results of calls as return
values."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import celery
import celery.canvas
import celery.exceptions
import pytest
from celery.canvas import Signature as CelerySignature
from kombu.utils.objects import cached_property

import qworker
from qworker import QWorker, chain, chord, graph, group
from qworker.errors import ConfigurationError
from qworker.results.result import AsyncResult, result_from_tuple
from qworker.testing import StepWorker

VALUES = {
    "args": (1, 2),
    "kwargs": {"x": 1},
    "options": {"queue": "q"},
    "subtask_type": "kind",
    "immutable": True,
    "task": "other",
    "id": "id-1",
    "root_id": "root-1",
    "parent_id": "parent-1",
}


def settable(kind: type) -> set[str]:
    """The settable properties of Celery's Signature."""
    found = {name for base in kind.__mro__ for name, each in vars(base).items() if is_settable(each)}
    return {name for name in found if not name.startswith("_")}


def is_settable(each: Any) -> bool:
    if isinstance(each, property):
        return each.fset is not None
    return hasattr(type(each), "__set__") and not isinstance(each, cached_property)


def test_settable_properties_of_celery_are_all_tested() -> None:
    assert settable(CelerySignature) - {"type", "app"} <= VALUES.keys() | {"chord"}


@pytest.mark.parametrize("name", VALUES)
def test_settable_properties_of_celery_can_be_set_here(name: str) -> None:
    theirs, ours = CelerySignature("add", (3,)), qworker.Signature("add", (3,))
    for each in (theirs, ours):
        setattr(each, name, VALUES[name])
    assert getattr(ours, name) == getattr(theirs, name) == VALUES[name]
    assert {key: ours[key] for key in ours if key != "args"} == {
        key: theirs[key] for key in ours if key != "args"
    }
    assert tuple(ours["args"]) == tuple(theirs["args"])


@pytest.mark.parametrize("kind", ["AsyncResult", "GroupResult"])
def test_result_is_equal_to_its_id(kind: str) -> None:
    theirs = celery.Celery("proj", set_as_current=False)
    ours = QWorker("proj", broker="memory://", set_as_current=False)
    for app in (theirs, ours):
        app_: Any = app
        result = app_.AsyncResult("abc") if kind == "AsyncResult" else app_.GroupResult("abc", [])
        assert result == "abc"
        assert result == "abc"
        assert result != "abd"
        assert result != 3


@pytest.mark.parametrize("raises", ["Ignore", "Reject"])
def test_member_of_an_eager_chord_without_a_value_is_none(raises: str) -> None:
    got: list[Any] = []
    theirs = celery.Celery("proj", set_as_current=False, broker="memory://", backend="cache+memory://")
    ours = QWorker("proj", broker="memory://", backend="cache+memory://", set_as_current=False)
    sides: Any = (
        (
            theirs,
            celery.chord,
            celery.exceptions,
            {"shared": False},
        ),  # or other Celery apps would have them, too
        (ours, chord, qworker.errors, {}),
    )
    for library, kind, errors, options in sides:

        @library.task(name="one", **options)
        def one() -> int:
            return 1

        @library.task(name="none", **options)
        def none() -> None:
            raise getattr(errors, raises)()  # noqa: B023

        @library.task(name="shown", **options)
        def shown(values: list[Any]) -> str:
            return repr(values)

        got.append(kind([one.si(), none.si()], shown.s()).apply().get())
    assert got[0] == got[1] == "[1, None]"


@pytest.fixture
def app_and_worker(tmp_path: Path) -> tuple[QWorker, StepWorker]:
    app = QWorker("proj", broker=f"sqlite:///{tmp_path}/q.db", set_as_current=False)

    @app.task(name="one")
    def one(*values: Any) -> int:
        return 1

    @app.task(name="call", bind=True)
    def call(self: Any, kind: str) -> Any:
        work = {"task": one.si(), "group": group(one.si(), one.si()), "chain": chain(one.si(), one.si())}
        work["graph"] = graph({"a": one.si()})
        return work[kind].apply_async()

    @app.task(name="empty", bind=True)
    def empty(self: Any) -> Any:
        return self.replace(chain())

    return app, StepWorker(app)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["task", "group", "chain", "graph"])
@pytest.mark.parametrize("follows", [False, True])
def test_task_can_return_the_result_of_a_call(
    app_and_worker: tuple[QWorker, StepWorker], kind: str, follows: bool
) -> None:
    app, worker = app_and_worker
    call: Any = app.tasks["call"]
    result = (call.s(kind) | app.tasks["one"].s()).apply_async() if follows else call.delay(kind)
    worker.run()
    if follows:
        assert result.get(timeout=1) == 1
        result = result.parent
    described = result.get(timeout=1)
    assert kind == "chain" or described[0][0] == result.children[0].id
    if kind != "graph":
        again = result_from_tuple(described, app)
        assert again.get(timeout=1) == ([1, 1] if kind == "group" else 1)


@pytest.mark.integration
def test_task_cannot_be_replaced_by_an_empty_chain(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker
    result: AsyncResult[Any] = app.tasks["empty"].delay()
    worker.run()
    with pytest.raises(ConfigurationError, match="Cannot replace with an empty chain"):
        result.get(timeout=1)


@pytest.mark.integration
@pytest.mark.parametrize("option", ["countdown", "expires"])
@pytest.mark.parametrize(
    "where",
    ["task", "body", "chord", "late", "link", "link_error", "long", "graph", "header", "group", "call"],
)
def test_timedelta_is_accepted_wherever_seconds_are(
    app_and_worker: tuple[QWorker, StepWorker], option: str, where: str
) -> None:
    app, _ = app_and_worker
    one: Any = app.tasks["one"]
    times: Any = {option: timedelta(seconds=5)}
    timed = one.s().set(**times)
    made: Any = {
        "task": timed,
        "body": chord([one.si()], timed),
        "chord": chord([one.si()], one.s()).set(**times),
        "late": one.si() | timed,
        "link": one.si().set(link=timed),
        "link_error": one.si().set(link_error=[timed]),
        "long": chain(timed for _ in range(70)),
        "graph": graph({"a": one.si(), "b": one.s()}, after={"b": {"x": "a"}}).set(**times),
        "header": one.si() | chord([timed], timed),
        "group": one.si() | group(one.s(), one.s()).set(**times),
        "call": chord([one.si()], one.s()),
    }[where]
    made.apply_async(**times if where == "call" else {})
    assert timed.options[option] == timedelta(seconds=5)
