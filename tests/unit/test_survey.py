"""Inspecting workflows: what is found from the id of any call in them, and at what cost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from qworker import QWorker, chain, chord, group
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import BackendError, EncodeError
from qworker.message.exceptions import exception_to_dict
from qworker.results import outline
from qworker.results.workflow import UNREADABLE, Survey, Workflow
from qworker.testing.clock import FakeClock
from tests.support.stores import KeepingStore, make_app


class Store(MemoryBackend):
    """refusal: error raised by save_group(). sizes: number of ids in each read."""

    refusal: Exception | None = None

    def __init__(self, conf: Any, clock: FakeClock) -> None:
        super().__init__("cache+memory://", conf, clock)
        self.sizes: list[int] = []

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        if self.refusal is not None:
            raise self.refusal
        super().save_group(group_id, result, kept)

    def read_many(self, ids: Collection[str]) -> Any:
        self.sizes.append(len(ids))
        return super().read_many(ids)


def make(**settings: Any) -> QWorker:
    clock = FakeClock()
    backend = Store(make_app(**settings)[0].conf, clock)
    app = QWorker(
        "proj", broker=KeepingStore(), backend=backend, clock=clock, set_as_current=False, **settings
    )

    @app.task(name="add")
    def add(x: int, y: int = 1) -> int:
        return x + y

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    return app


def end(app: QWorker, task_id: str, value: Any = 1, **fields: Any) -> None:
    failed = isinstance(value, BaseException)
    state = "FAILURE" if failed else "SUCCESS"
    stored = exception_to_dict(value) if failed else value
    app.backend.store(task_id, app.backend.meta(task_id, state, stored, **fields))


def look(app: QWorker, task_id: str) -> Workflow:
    found = Survey(app, task_id).look()
    assert found is not None
    return found


def shape(workflow: Workflow) -> Any:
    """``[step, …]`` of the root's chain; each step is ``(id, state, [chain below it, …])``."""

    def line(first: str) -> list[Any]:
        return [(step.id, step.state, [line(each) for each in step.calls]) for step in workflow.line(first)]

    return line(workflow.root)


CALLED = [[("c", "PENDING", [])], [("d", "PENDING", [])]]


def test_unknown_id_has_no_workflow() -> None:
    assert Survey(make(), "unknown").look() is None


def test_callers_and_callees_are_found() -> None:
    app = make()
    end(app, "a", children=[(("b", None), None)])
    end(app, "b", parent_id="a", children=[(("c", None), None), (("d", None), None)])
    found = look(app, "b")
    assert (found.root, found.asked) == ("a", "b")
    assert shape(found) == [("a", "SUCCESS", [[("b", "SUCCESS", CALLED)]])]
    assert found.counts() == {"SUCCESS": 2, "PENDING": 2}
    assert found.unknown == ("the calls made by a task are not known until it has ended",)


def test_running_caller_is_shown() -> None:
    app = make()
    end(app, "b", parent_id="a")
    found = look(app, "b")
    assert shape(found) == [("a", "PENDING", [[("b", "SUCCESS", [])]])]
    assert "the caller of a is not known until a has ended" in found.unknown


@pytest.mark.parametrize("asked", ["last", "group", "member", "body"])
def test_workflow_with_joins_is_found_from_any_call(asked: str) -> None:
    app = make()
    add, total = app.tasks["add"], app.tasks["total"]
    work = chain(add.s(1), group(add.s(1), add.s(2) | add.s(3)), total.s(), add.s(5))
    result = work.apply_async(task_id="last")
    header = result.parent.parent
    first, member, inner = header.parent.id, header.results[0].id, header.results[1]
    end(app, member, group_id=header.id)
    end(app, result.parent.id, ValueError("no"), group_id=header.id)
    ids = {"last": "last", "group": header.id, "member": member, "body": result.parent.id}
    found = look(app, ids[asked])
    members = [
        [(member, "SUCCESS", [])],
        [(inner.parent.id, "PENDING", []), (inner.id, "PENDING", [])],
    ]
    assert shape(found) == [
        (first, "PENDING", []),
        (header.id, "STARTED", members),
        (result.parent.id, "FAILURE", []),
        ("last", "PENDING", []),
    ]
    assert [found.steps[each].name for each in (first, header.id, result.parent.id)] == ["add", None, "total"]


def test_workflow_called_by_a_task_is_shown_below_it() -> None:
    app = make()
    line = [["g", None, [[["m", "add"]]]], ["body", "total"]]
    outline.keep(app.backend, line, "a")
    end(app, "a", children=[(("g", None), [(("m", None), None)])])
    expected = [("a", "SUCCESS", [[("g", "PENDING", [[("m", "PENDING", [])]]), ("body", "PENDING", [])]])]
    assert shape(look(app, "body")) == expected
    assert shape(look(app, "a")) == expected


def test_chord_called_by_celery_is_found() -> None:
    app = make()
    header = (("g", None), [(("m", None), None), (("n", None), None)])
    end(app, "a", children=[(("body", header), None)])
    members = [[("m", "PENDING", [])], [("n", "PENDING", [])]]
    assert shape(look(app, "a")) == [("a", "SUCCESS", [[("g", "PENDING", members), ("body", "PENDING", [])]])]


def test_saved_group_is_found() -> None:
    app = make()
    app.GroupResult("g", [app.AsyncResult("m"), app.AsyncResult("n")]).save()
    end(app, "n")
    assert shape(look(app, "g")) == [("g", "STARTED", [[("m", "PENDING", [])], [("n", "SUCCESS", [])]])]


def test_member_of_an_unstored_group_is_explained() -> None:
    app = make()
    end(app, "m", group_id="g")
    assert look(app, "m").unknown == ("m is a member of group g, but nothing else of the group is stored",)
    end(app, "n", group_id="g", parent_id="a")
    end(app, "a", children=[(("g", None), [(("m", None), None), (("n", None), None)])])
    assert look(app, "n").unknown == ()  # its caller names the group


def test_store_without_parents_is_explained() -> None:
    app = make()
    app.backend.keeps_parents = False  # type: ignore[misc]
    end(app, "m")
    (unknown,) = look(app, "m").unknown
    assert (
        unknown == "cache+memory:// does not store which call made another: the calls before m are not known"
    )


def test_call_with_ignored_result_is_shown_as_ignored() -> None:
    app = make()
    add = app.tasks["add"]
    result = chain(group(add.s(1), add.s(2)), app.tasks["total"].s(), add.s(1).set(ignore_result=True))()
    assert look(app, result.id).steps[result.id].state == "IGNORED"


def test_extended_results_record_every_workflow() -> None:
    app = make(result_extended=True)
    add = app.tasks["add"]
    line, beside = (add.s(1) | add.s(2))(), group(add.s(1), add.s(2))()
    assert [step.id for step in look(app, line.id).line(line.parent.id)] == [line.parent.id, line.id]
    assert look(app, beside.id).steps[beside.id].calls == tuple(each.id for each in beside)
    plain = make()
    assert Survey(plain, (plain.tasks["add"].s(1) | plain.tasks["add"].s(2))().id).look() is None


def test_forget_removes_the_outline() -> None:
    app = make()
    result = chord([app.tasks["add"].s(1)], app.tasks["total"].s())()
    assert Survey(app, result.id).look() is not None
    result.forget()
    assert Survey(app, result.id).look() is None
    assert Survey(app, result.parent.id).look() is None


@pytest.mark.parametrize("error", [BackendError("away"), EncodeError("large")])
def test_workflow_is_sent_even_if_its_outline_cannot_be_stored(error: Exception) -> None:
    app = make()
    assert isinstance(app.backend, Store)
    app.backend.refusal = error
    assert chord([app.tasks["add"].s(1)], app.tasks["total"].s())().id


# -- malformed data --


@pytest.mark.parametrize(
    "kept",
    [
        7, {}, {"line": []}, {"line": [7]}, {"line": [["a"]]}, {"line": [["a", None, 7]]}, {"of": "x"},
        {"line": [["a", None, [[]]]]}, {"line": [["a", None]]}, {"line": [[7, "add"]]}, {"line": [["a", 7]]},
    ],
)  # fmt: skip
def test_malformed_outline_is_ignored(kept: Any) -> None:
    app = make()
    app.backend.save_group("qworker-workflow-x", kept)
    assert Survey(app, "x").look() is None


def test_cycles_are_shown_once() -> None:
    app = make()
    end(app, "a", parent_id="b", children=[(("b", None), None)])
    end(app, "b", parent_id="a", children=[(("a", None), None), "no result"])
    assert look(app, "a").counts() == {"SUCCESS": 2}
    outline.keep(app.backend, [["c", "add"], ["d", "add"], ["c", "add"], ["d", "add"]], None)
    assert look(app, "d").counts() == {"PENDING": 2}


def test_unreadable_result_is_shown_as_unreadable() -> None:
    app = make()
    end(app, "a", children=[(("b", None), None)])
    app.backend.write("celery-task-meta-b", b"\xff", None)  # type: ignore[attr-defined]
    assert look(app, "a").steps["b"].state == UNREADABLE


# -- cost --


def read_sizes(app: QWorker) -> list[int]:
    assert isinstance(app.backend, Store)
    app.backend.sizes.clear()
    return app.backend.sizes


def test_each_level_is_read_at_once() -> None:
    app = make()
    members = [((f"m{number}", None), None) for number in range(2000)]
    end(app, "a", children=[(("g", None), members)])
    for (member, _), _ in members:
        end(app, member, children=[((f"{member}-child", None), None)])
    sizes = read_sizes(app)
    survey = Survey(app, "a")
    found = survey.look()
    assert found is not None
    assert found.counts() == {"SUCCESS": 2001, "PENDING": 2000}
    assert sizes == [1, 2000, 2000]
    sizes.clear()
    survey.look()
    assert sizes == [2000]  # ended calls are not read again


def test_chain_with_a_stored_outline_is_read_at_once() -> None:
    app = make(result_extended=True)
    result = chain(app.tasks["add"].s(1) for _ in range(3000))()
    sizes = read_sizes(app)
    assert look(app, result.id).counts() == {"PENDING": 3000}
    assert sizes == [1, 3000]
