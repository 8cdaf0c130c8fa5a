"""Workflows as they are looked at: what is found from the id of any call in them, and at what cost."""

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
    """refusal: what save_group() raises. sizes: of how many ids each look was."""

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
    """``[step, …]`` of the line of the root; each step is ``(id, state, [line below it, …])``."""

    def line(first: str) -> list[Any]:
        return [(step.id, step.state, [line(each) for each in step.calls]) for step in workflow.line(first)]

    return line(workflow.root)


CALLED = [[("c", "PENDING", [])], [("d", "PENDING", [])]]


def test_nothing_is_known_of_an_id_that_nobody_sent() -> None:
    assert Survey(make(), "unknown").look() is None


def test_calls_are_found_down_and_up() -> None:
    app = make()
    end(app, "a", children=[(("b", None), None)])
    end(app, "b", parent_id="a", children=[(("c", None), None), (("d", None), None)])
    found = look(app, "b")
    assert (found.root, found.asked) == ("a", "b")
    assert shape(found) == [("a", "SUCCESS", [[("b", "SUCCESS", CALLED)]])]
    assert found.counts() == {"SUCCESS": 2, "PENDING": 2}
    assert found.unknown == ("the calls made by a task are not known until it has ended",)


def test_what_called_it_and_runs_still_is_shown() -> None:
    app = make()
    end(app, "b", parent_id="a")
    found = look(app, "b")
    assert shape(found) == [("a", "PENDING", [[("b", "SUCCESS", [])]])]
    assert "the caller of a is not known until a has ended" in found.unknown


@pytest.mark.parametrize("asked", ["last", "group", "member", "body"])
def test_a_workflow_with_joins_is_known_from_any_call_of_it(asked: str) -> None:
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


def test_the_workflow_that_a_task_called_is_below_it() -> None:
    app = make()
    line = [["g", None, [[["m", "add"]]]], ["body", "total"]]
    outline.keep(app.backend, line, "a")
    end(app, "a", children=[(("g", None), [(("m", None), None)])])
    expected = [("a", "SUCCESS", [[("g", "PENDING", [[("m", "PENDING", [])]]), ("body", "PENDING", [])]])]
    assert shape(look(app, "body")) == expected
    assert shape(look(app, "a")) == expected


def test_a_chord_that_celery_called_is_found_by_its_result() -> None:
    app = make()
    header = (("g", None), [(("m", None), None), (("n", None), None)])
    end(app, "a", children=[(("body", header), None)])
    members = [[("m", "PENDING", [])], [("n", "PENDING", [])]]
    assert shape(look(app, "a")) == [("a", "SUCCESS", [[("g", "PENDING", members), ("body", "PENDING", [])]])]


def test_a_group_that_was_saved_is_known() -> None:
    app = make()
    app.GroupResult("g", [app.AsyncResult("m"), app.AsyncResult("n")]).save()
    end(app, "n")
    assert shape(look(app, "g")) == [("g", "STARTED", [[("m", "PENDING", [])], [("n", "SUCCESS", [])]])]


def test_a_member_of_a_group_that_is_not_stored_says_so() -> None:
    app = make()
    end(app, "m", group_id="g")
    assert look(app, "m").unknown == ("m is a member of group g, but nothing else of the group is stored",)
    end(app, "n", group_id="g", parent_id="a")
    end(app, "a", children=[(("g", None), [(("m", None), None), (("n", None), None)])])
    assert look(app, "n").unknown == ()  # who called it names the group


def test_a_store_without_parents_says_so() -> None:
    app = make()
    app.backend.keeps_parents = False  # type: ignore[misc]
    end(app, "m")
    (unknown,) = look(app, "m").unknown
    assert (
        unknown == "cache+memory:// does not store which call made another: the calls before m are not known"
    )


def test_a_call_whose_result_is_ignored_is_not_waited_for() -> None:
    app = make()
    add = app.tasks["add"]
    result = chain(group(add.s(1), add.s(2)), app.tasks["total"].s(), add.s(1).set(ignore_result=True))()
    assert look(app, result.id).steps[result.id].state == "IGNORED"


def test_with_extended_results_every_workflow_is_known() -> None:
    app = make(result_extended=True)
    add = app.tasks["add"]
    line, beside = (add.s(1) | add.s(2))(), group(add.s(1), add.s(2))()
    assert [step.id for step in look(app, line.id).line(line.parent.id)] == [line.parent.id, line.id]
    assert look(app, beside.id).steps[beside.id].calls == tuple(each.id for each in beside)
    plain = make()
    assert Survey(plain, (plain.tasks["add"].s(1) | plain.tasks["add"].s(2))().id).look() is None


def test_forgetting_a_workflow_forgets_its_outline() -> None:
    app = make()
    result = chord([app.tasks["add"].s(1)], app.tasks["total"].s())()
    assert Survey(app, result.id).look() is not None
    result.forget()
    assert Survey(app, result.id).look() is None
    assert Survey(app, result.parent.id).look() is None


@pytest.mark.parametrize("error", [BackendError("away"), EncodeError("large")])
def test_a_workflow_is_called_also_when_its_outline_cannot_be_kept(error: Exception) -> None:
    app = make()
    assert isinstance(app.backend, Store)
    app.backend.refusal = error
    assert chord([app.tasks["add"].s(1)], app.tasks["total"].s())().id


# -- what strangers have stored --


@pytest.mark.parametrize(
    "kept",
    [
        7, {}, {"line": []}, {"line": [7]}, {"line": [["a"]]}, {"line": [["a", None, 7]]}, {"of": "x"},
        {"line": [["a", None, [[]]]]}, {"line": [["a", None]]}, {"line": [[7, "add"]]}, {"line": [["a", 7]]},
    ],
)  # fmt: skip
def test_an_outline_that_is_none_is_passed_over(kept: Any) -> None:
    app = make()
    app.backend.save_group("qworker-workflow-x", kept)
    assert Survey(app, "x").look() is None


def test_what_calls_itself_is_shown_once() -> None:
    app = make()
    end(app, "a", parent_id="b", children=[(("b", None), None)])
    end(app, "b", parent_id="a", children=[(("a", None), None), "no result"])
    assert look(app, "a").counts() == {"SUCCESS": 2}
    outline.keep(app.backend, [["c", "add"], ["d", "add"], ["c", "add"], ["d", "add"]], None)
    assert look(app, "d").counts() == {"PENDING": 2}


def test_what_cannot_be_read_says_so() -> None:
    app = make()
    end(app, "a", children=[(("b", None), None)])
    app.backend.write("celery-task-meta-b", b"\xff", None)  # type: ignore[attr-defined]
    assert look(app, "a").steps["b"].state == UNREADABLE


# -- cost --


def looks(app: QWorker) -> list[int]:
    assert isinstance(app.backend, Store)
    app.backend.sizes.clear()
    return app.backend.sizes


def test_each_level_is_one_look() -> None:
    app = make()
    members = [((f"m{number}", None), None) for number in range(2000)]
    end(app, "a", children=[(("g", None), members)])
    for (member, _), _ in members:
        end(app, member, children=[((f"{member}-child", None), None)])
    sizes = looks(app)
    survey = Survey(app, "a")
    found = survey.look()
    assert found is not None
    assert found.counts() == {"SUCCESS": 2001, "PENDING": 2000}
    assert sizes == [1, 2000, 2000]
    sizes.clear()
    survey.look()
    assert sizes == [2000]  # what has ended is not looked at again


def test_a_line_of_thousands_is_one_look_when_its_outline_is_kept() -> None:
    app = make(result_extended=True)
    result = chain(app.tasks["add"].s(1) for _ in range(3000))()
    sizes = looks(app)
    assert look(app, result.id).counts() == {"PENDING": 3000}
    assert sizes == [1, 3000]
