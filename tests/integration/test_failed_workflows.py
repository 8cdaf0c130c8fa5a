"""Retrying failed members of chords, groups and chains, on each kind of broker that keeps failed tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group, signals
from qworker.canvas.plan import SEGMENT
from qworker.errors import ChordError
from qworker.testing import MemoryStore, StepWorker
from tests.contract.place_redis import RedisPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqlite import SQLitePlace
from tests.support.waiting import until

pytestmark = pytest.mark.integration

Make = Callable[..., QWorker]


def sqlite(directory: Path) -> tuple[Any, dict[str, Any]]:
    place = SQLitePlace(directory)
    return place, {"broker": f"sqlite:///{place.path}"}


def redis(directory: Path) -> tuple[Any, dict[str, Any]]:
    place = RedisPlace(directory)
    options = {"global_keyprefix": place.prefix}
    return place, {
        "broker": place.url,
        "broker_transport_options": options,
        "result_backend_transport_options": options,
    }


def postgresql(directory: Path) -> tuple[Any, dict[str, Any]]:
    place = PostgreSQLPlace(directory)
    return place, {"broker": place.url}


def mysql(directory: Path) -> tuple[Any, dict[str, Any]]:
    place = MySQLPlace(directory)
    return place, {"broker": place.url}


def separate_results(directory: Path) -> tuple[Any, dict[str, Any]]:
    place, settings = sqlite(directory)
    return place, {**settings, "result_backend": f"db+sqlite:///{directory}/results.db"}


fine: set[int] = set()
"""Numbers for which half() does not fail."""


KEEP_BODIES = [sqlite, separate_results, postgresql, mysql]
"""Stores with qworker's format of chords. Redis uses Celery's, in which a failed body has no message."""


@pytest.fixture(params=[*KEEP_BODIES, redis], ids=lambda each: each.__name__)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QWorker]:
    fine.clear()
    place, settings = request.param(tmp_path)
    with QWorker("proj", set_as_current=False, **settings) as made:

        @made.task(name="half")
        def half(number: int) -> float:
            if number not in fine:
                raise ValueError(f"{number} is odd")
            return number / 2

        @made.task(name="total")
        def total(values: list[float], more: int = 0) -> float:
            return sum(values) + more

        @made.task(name="add")
        def add(number: float, other: int) -> float:
            return number + other

        @made.task(name="said")
        def said() -> str:
            return "without values"

        yield made
    place.clear()


with_bodies = pytest.mark.parametrize("app", KEEP_BODIES, indirect=True, ids=lambda each: each.__name__)


def run(app: QWorker) -> None:
    """Run a worker until the queues are empty."""
    with StepWorker(app) as worker:
        until(lambda: worker.run() == 0 and not app.queues())


def failed(app: QWorker) -> dict[str, int]:
    """Return the tags of the failed tasks, by task name."""
    return {each.task: each.tag for each in app.failed.list()}


def run_failing_chord(app: QWorker, body: Any) -> Any:
    fine.update({2, 4})
    half = app.tasks["half"]
    result = chord([half.s(2), half.s(3), half.s(4)], body).apply_async()
    run(app)
    return result


@with_bodies
def test_chord_body_can_be_retried_after_its_member(app: QWorker) -> None:
    tasks = app.tasks
    result = run_failing_chord(app, tasks["total"].s(more=1) | tasks["add"].s(100))
    assert app.AsyncResult(result.id).state == "FAILURE"
    tags = failed(app)
    assert tags.keys() == {"half", "total"}
    with pytest.raises(ChordError, match="has not succeeded \\(state: FAILURE\\): retry the member first"):
        app.failed.retry([tags["total"]])
    fine.add(3)
    assert app.failed.retry().number == 1, "the body waits for its member"
    assert app.failed.retry(task="total").number == 0
    run(app)
    assert failed(app).keys() == {"total"}
    assert app.failed.retry().number == 1
    assert app.AsyncResult(result.id).state == "PENDING", "also for the chain after the body"
    run(app)
    assert app.AsyncResult(result.id).get(timeout=5) == 1 + 1.5 + 2 + 1 + 100
    assert failed(app) == {}


@pytest.mark.parametrize("app", [redis], indirect=True)
def test_retried_member_of_a_celery_chord_does_not_run_the_body(app: QWorker) -> None:
    result = run_failing_chord(app, app.tasks["total"].s())
    assert failed(app).keys() == {"half"}
    (member,) = app.failed.list()
    fine.add(3)
    assert app.failed.retry().number == 1
    run(app)
    assert app.AsyncResult(member.id).get(timeout=5) == 1.5
    assert app.AsyncResult(result.id).state == "FAILURE"


@with_bodies
def test_immutable_body_is_retried_without_values(app: QWorker) -> None:
    result = run_failing_chord(app, app.tasks["said"].si())
    fine.add(3)
    app.failed.retry(task="half")
    run(app)
    assert app.failed.retry(task="said").number == 1
    run(app)
    assert app.AsyncResult(result.id).get(timeout=5) == "without values"


@with_bodies
def test_body_is_not_retried_if_its_member_fails_again(app: QWorker) -> None:
    run_failing_chord(app, app.tasks["total"].s())
    assert app.failed.retry().number == 1
    run(app)
    assert failed(app).keys() == {"half", "total"}
    assert app.failed.retry(task="total").number == 0


@with_bodies
def test_body_can_be_retried_with_other_arguments(app: QWorker) -> None:
    result = run_failing_chord(app, app.tasks["total"].s(more=1))
    assert app.failed.retry([failed(app)["total"]], args=[[20, 30]]).number == 1
    run(app)
    assert app.AsyncResult(result.id).get(timeout=5) == 51


@with_bodies
def test_group_as_body_cannot_be_retried_with_values(app: QWorker) -> None:
    total = app.tasks["total"]
    run_failing_chord(app, group(total.s(), total.s(more=1)))
    fine.add(3)
    app.failed.retry(task="half")
    run(app)
    for each in app.failed.list(task="total"):
        with pytest.raises(ChordError, match="its members, which are no longer known"):
            app.failed.retry([each.tag])


def test_group_members_can_be_retried(app: QWorker) -> None:
    fine.add(2)
    result = group(app.tasks["half"].s(2), app.tasks["half"].s(3)).apply_async()
    run(app)
    fine.add(3)
    assert app.failed.retry().number == 1
    run(app)
    assert [app.AsyncResult(each.id).get(timeout=5) for each in result.results] == [1, 1.5]


def test_retry_resets_the_results_of_a_chain(app: QWorker) -> None:
    result = (app.tasks["half"].s(3) | app.tasks["add"].s(1) | app.tasks["add"].s(2)).apply_async()
    run(app)
    assert app.AsyncResult(result.id).state == "FAILURE"
    fine.add(3)
    assert app.failed.retry().number == 1
    states = [app.AsyncResult(each.id).state for each in (result, result.parent)]
    assert states == ["PENDING", "PENDING"]
    run(app)
    assert app.AsyncResult(result.id).get(timeout=5) == 4.5


def test_signals_are_sent_for_a_body_that_fails_with_its_chord() -> None:
    seen: list[tuple[str, str]] = []
    app = QWorker("signals", broker=MemoryStore(), backend="cache+memory://", set_as_current=False)

    @app.task(name="fails")
    def fails() -> None:
        raise LookupError

    body = app.task(name="body")(lambda values: None)
    watched = {name: getattr(signals, f"task_{name}") for name in ("prerun", "success", "failure", "postrun")}
    receivers = {name: lambda sender, name=name, **_: seen.append((name, sender.name)) for name in watched}
    for name, signal in watched.items():
        signal.connect(receivers[name])
    try:
        with StepWorker(app) as worker:
            result = chord([fails.s()], body.s()).apply_async()
            worker.run()
            assert isinstance(result.get(propagate=False), ChordError)
    finally:
        for name, signal in watched.items():
            signal.disconnect(receivers[name])
    ends = ["prerun", "failure", "postrun"]
    assert seen == [(name, task) for task in ("fails", "body") for name in ends]


def test_call_with_wrong_arguments_gets_the_values_of_its_members_again(tmp_path: Path) -> None:
    """It got them as one list, like the body of a chord."""
    url = f"sqlite:///{tmp_path}/q.db"

    def make_app(**functions: Any) -> QWorker:
        app = QWorker("proj", broker=url, set_as_current=False)
        app.task(name="load")(lambda number: number)
        app.task(name="fail")(lambda: 1 / 0)
        for name, function in functions.items():
            app.task(name=name)(function)
        return app

    def run(app: QWorker) -> None:
        with StepWorker(app) as worker:
            worker.run()

    broken = make_app(node=lambda other: other, late=lambda: None)
    load, fail = broken.tasks["load"], broken.tasks["fail"]
    results = [
        graph({"a": load.s(1), "b": load.s(2), "c": broken.tasks["node"].s()}, {"c": ["a", "b"]})()["c"],
        graph({"a": fail.si(), "c": broken.tasks["node"].s()}, {"c": {"a": "a"}}, always=["c"])()["c"],
        chain(*[load.si(3)] * SEGMENT, broken.tasks["late"].s())(),
    ]
    run(broken)
    for result in results:
        with pytest.raises(TypeError):
            result.get(timeout=0)
    fixed = make_app(node=lambda a, b=None: ["node", a, b], late=lambda value: ["late", value])
    tags = [found.tag for found in fixed.failed.list() if found.task in ("node", "late")]
    assert fixed.failed.retry(tags).number == 3
    run(fixed)
    values = [fixed.AsyncResult(result.id).get(timeout=0) for result in results]
    assert values == [["node", 1, 2], ["node", None, None], ["late", 3]]
