"""Workflows on a worker, end to end, on the embedded broker and on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, group
from qworker.errors import ChordError, PublishError
from qworker.results.group_result import GroupResult
from qworker.results.workflow import Survey
from qworker.worker import Worker
from tests.servers import prefix_of, require
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sqlite", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QWorker]:
    if request.param == "sqlite":
        app = QWorker("flows", broker=f"sqlite:///{tmp_path}/q.db", set_as_current=False)
    else:
        url = require("redis")
        options = {"global_keyprefix": prefix_of(tmp_path)}
        app = QWorker(
            "flows",
            broker=url,
            backend=url,
            broker_transport_options=options,
            result_backend_transport_options=options,
            set_as_current=False,
        )

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="parts", bind=True)
    def parts(self: Any, count: int) -> Any:
        group(self.app.tasks["add"].s(number, 1) for number in range(count))()
        return self.request.id

    @app.task(name="lists")
    def lists(values: Any) -> Any:
        return values

    @app.task(name="fail")
    def fail(*args: Any) -> None:
        raise ValueError("no")

    worker = Worker(app, pool="threads", concurrency=2)
    worker.start()
    yield app
    worker.stop()
    app.close()


def test_chain_passes_values_on(app: QWorker) -> None:
    add = app.tasks["add"]
    result = chain(add.s(1, 1), add.s(10), add.s(100)).delay()
    assert result.get(timeout=PATIENCE) == 112
    assert [result.parent.get(), result.parent.parent.get(), result.parent.parent.parent] == [12, 2, None]


def test_group_returns_a_list(app: QWorker) -> None:
    add = app.tasks["add"]
    result = group(add.s(number, number) for number in range(20))()
    assert isinstance(result, GroupResult)
    assert result.get(timeout=PATIENCE) == [2 * number for number in range(20)]


def test_chain_can_end_in_a_group_of_chains(app: QWorker) -> None:
    add = app.tasks["add"]
    result = (add.s(1, 1) | group(add.s(1), add.s(2) | add.s(3), add.si(5, 5)))()
    assert result.get(timeout=PATIENCE) == [3, 7, 10]
    assert result.parent.get() == 2


def test_group_called_by_a_task_is_its_child(app: QWorker) -> None:
    result = app.tasks["parts"].delay(3)
    assert result.get(timeout=PATIENCE) == result.id
    (called,) = result.children
    assert called.get(timeout=PATIENCE) == [1, 2, 3]


def test_map_starmap_and_chunks(app: QWorker) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    assert add.starmap([(1, 2), (3, 4)]).delay().get(timeout=PATIENCE) == [3, 7]
    assert total.map([[1, 2], [3]]).delay().get(timeout=PATIENCE) == [3, 3]
    assert add.chunks([(1, 2), (3, 4), (5, 6)], 2)().get(timeout=PATIENCE) == [[3, 7], [11]]
    assert (add.starmap([(1, 2), (3, 4)]) | total.s()).delay().get(timeout=PATIENCE) == 10


def test_send_many_accepts_workflows(app: QWorker) -> None:
    add = app.tasks["add"]
    results = app.send_many([("add", (1, 1)), add.s(2, 2) | add.s(3), group(add.s(4, 4), add.s(5, 5))])
    assert [each.get(timeout=PATIENCE) for each in results] == [2, 7, [8, 10]]


def test_chain_ends_at_a_failure(app: QWorker) -> None:
    add, fail = app.tasks["add"], app.tasks["fail"]
    result = chain(fail.s(), add.s(1))()
    with pytest.raises(ValueError, match="no"):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE"


def test_chord_passes_the_list_to_its_body(app: QWorker) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    result = (group(add.s(number, 1) for number in range(5)) | total.s() | add.s(100))()
    assert result.get(timeout=PATIENCE) == 115
    assert result.parent.get() == 15
    assert result.parent.parent.get() == [1, 2, 3, 4, 5]


def test_nested_chords_in_a_chain(app: QWorker) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    flow = chain(
        add.s(1, 1),
        group(add.s(1), add.s(2) | group(add.s(1), add.s(2)) | total.s()),
        total.s(),
        group(add.s(1), add.s(2)),
        total.s(),
    )
    assert flow().get(timeout=PATIENCE) == 2 * (3 + 11) + 3


def test_header_can_contain_any_workflow(app: QWorker) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    header = [
        add.s(1, 1),
        chord([add.s(1, 1), add.s(2, 2)], total.s()),
        chord([], total.s()),
        add.s(1, 1) | add.s(5),
    ]
    assert chord(header)(total.s()).get(timeout=PATIENCE) == 2 + 6 + 0 + 7


def test_value_of_a_group_in_a_header_is_its_list(app: QWorker) -> None:
    add = app.tasks["add"]
    lists = app.tasks["lists"]
    result = chord([add.s(1, 1) | group(add.s(1), add.s(2)), add.s(0, 5)])(lists.s())
    assert result.get(timeout=PATIENCE) == [[3, 4], 5]


def test_failed_member_fails_the_chord(app: QWorker) -> None:
    add, total, fail = app.tasks["add"], app.tasks["total"], app.tasks["fail"]
    result = chord([add.s(1, 1), fail.s()])(total.s() | add.s(1))
    with pytest.raises((ChordError, ValueError)):
        result.get(timeout=PATIENCE)


def test_survey_finds_the_workflow_from_any_call(app: QWorker) -> None:
    add, total, fail = app.tasks["add"], app.tasks["total"], app.tasks["fail"]
    result = (add.s(1, 1) | group(add.s(number) for number in range(3)) | total.s() | add.s(1))()
    assert result.get(timeout=PATIENCE) == 10
    header = result.parent.parent
    line = [header.parent.id, header.id, result.parent.id, result.id]
    for asked in (*line, header.results[1].id):
        found = Survey(app, asked).look()
        assert found is not None
        assert [step.id for step in found.line(found.root)] == line, asked
        assert found.counts() == {"SUCCESS": 6}
    failed = (fail.s() | add.s(1) | add.s(2))()
    with pytest.raises(ValueError, match="no"):
        failed.get(timeout=PATIENCE)
    found = Survey(app, failed.id).look()
    assert found is not None
    assert (found.root, found.counts()) == (failed.parent.parent.id, {"FAILURE": 2})


def test_errbacks_of_a_body_are_called_for_a_failed_header(app: QWorker) -> None:
    """Old-style and new-style errbacks, and workflows; but not those of the steps after the body."""
    notified: list[Any] = []

    @app.task(name="old")
    def old(failed: str) -> None:
        notified.append(("old", failed))

    @app.task(name="new")
    def new(request: Any, error: Any, traceback: str, more: str) -> None:
        notified.append(
            ("new", request.id, request.task, type(error).__name__, "raised ValueError" in str(error), more)
        )

    @app.task(name="workflow")
    def workflow(failed: str) -> str:
        return failed

    body = app.tasks["total"].s().on_error(old.s()).on_error(new.s("more")).on_error(workflow.s() | old.s())
    later = app.tasks["add"].s(1).on_error(old.si("later"))
    result = chord([app.tasks["fail"].s()], body | later)()
    until(lambda: len(notified) == 3)
    failed = result.parent.id
    assert sorted(notified) == [
        ("new", failed, "total", "ChordError", True, "more"),
        ("old", failed),
        ("old", failed),
    ]
    assert isinstance(result.get(timeout=PATIENCE, propagate=False), ChordError)


def test_chord_with_ignored_results_is_refused(app: QWorker) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    with pytest.raises(PublishError, match=r"result of add is ignored.*ignore_result=False"):
        chord([add.s(1, 1).set(ignore_result=True)])(total.s())


def test_ignore_result_false_overrides_the_task_option(app: QWorker) -> None:
    total = app.tasks["total"]

    @app.task(name="forgotten", ignore_result=True)
    def forgotten(value: int) -> int:
        return value

    result = chord([forgotten.s(number).set(ignore_result=False) for number in range(3)])(total.s())
    assert result.get(timeout=PATIENCE) == 3
