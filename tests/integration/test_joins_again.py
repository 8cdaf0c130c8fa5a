"""What a worker that died leaves to another: what opens, records or finishes a join a second time changes
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, group
from qworker.canvas.signatures import Signature
from qworker.publishing import bodies, body_messages
from qworker.publishing.workflows import planned, start
from qworker.testing import FakeClock, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


TABLES = ("task", "group", "keyvalue", "join", "part")


class House:
    """An app. ran: the arguments with which the bodies ran."""

    def __init__(self, app: QWorker) -> None:
        self.app = app
        self.ran: list[Any] = []
        self.told: list[str] = []

        @app.task(name="give")
        def give(value: Any) -> Any:
            return value

        @app.task(name="fail")
        def fail(*given: Any) -> None:
            raise ValueError("no")

        @app.task(name="gather")
        def gather(values: Any) -> Any:
            self.ran.append(values)
            return values

        @app.task(name="told", bind=True)
        def told(this: Any, failed: str) -> None:
            self.told.append(failed)

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].s(*args)


def made(directory: Path, kind: str) -> House:
    options: dict[str, Any] = {"broker": f"sqlite:///{directory}/queue.db", "clock": FakeClock()}
    if kind == "apart":
        options["backend"] = f"sqlite:///{directory}/results.db"
    elif kind in ("postgresql", "mysql"):
        tables = {name: f"{name}_{directory.name}" for name in TABLES}
        options.update(backend=f"db+{require(kind)}", database_table_names=tables)
    elif kind != "together":
        server = {"global_keyprefix": prefix_of(directory)}
        options = {
            "broker": require("redis"),
            "backend": require("redis"),
            "broker_transport_options": server,
            "result_backend_transport_options": server,
            "canvas_format": kind.partition(" ")[2],
        }
        if kind == "redis apart":
            options.update(broker=f"sqlite:///{directory}/queue.db", canvas_format="celery")
    return House(QWorker("again", set_as_current=False, **options))


@pytest.fixture(params=["together", "apart", "redis celery", "redis shared", "redis apart"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = made(tmp_path, request.param)
    yield house
    house.app.close()


FLOWS: dict[str, tuple[Any, list[Any]]] = {
    "chain, chord": (
        lambda house: chain(house.s("give", 1), group(house.s("give") for _ in range(3)), house.s("gather")),
        [[1, 1, 1]],
    ),
    "chord of chords": (
        lambda house: chord(
            [chord([house.s("give", n), house.s("give", 7)], house.s("gather")) for n in range(2)],
            house.s("gather"),
            app=house.app,
        ),
        [[0, 7], [1, 7], [[0, 7], [1, 7]]],
    ),
    "chord whose body is one": (
        lambda house: chord(
            [house.s("give", 1), house.s("give", 2)],
            chord([house.s("give"), house.s("give")], house.s("gather")),
        ),
        [[[1, 2], [1, 2]]],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("again", ["before", "after"])
def test_a_workflow_that_is_begun_again_runs_each_body_once(house: House, name: str, again: str) -> None:
    """As by a task that is delivered again once it has sent what follows it."""
    make, expected = FLOWS[name]
    work = make(house)
    work.freeze()
    with StepWorker(house.app) as worker:
        made = planned(house.app, work, run="")
        result = start(house.app, made)
        if again == "after":
            worker.run()
            assert sorted(map(repr, house.ran)) == sorted(map(repr, expected))
        start(house.app, planned(house.app, work, run=""))
        worker.run()
    assert sorted(map(repr, house.ran)) == sorted(map(repr, expected))
    assert result.get(timeout=5) == expected[-1]


@pytest.mark.parametrize("name", FLOWS)
def test_a_frozen_workflow_that_is_called_again_runs_again(house: House, name: str) -> None:
    make, expected = FLOWS[name]
    work = make(house)
    work.freeze()
    with StepWorker(house.app) as worker:
        for _ in range(3):
            house.ran.clear()
            assert work.apply_async().id == work.freeze().id
            worker.run()
            assert sorted(map(repr, house.ran)) == sorted(map(repr, expected))


@pytest.mark.parametrize("where", ["member", "step", "last step of a member"])
def test_a_task_that_nobody_knows_ends_its_workflow(house: House, where: str) -> None:
    """Its message is a dead letter; what waits for it fails, and its errback is told once."""
    house.app.conf.task_unknown_delays = ()
    stranger = Signature("nobody.knows", app=house.app)
    give, told = house.s("give", 1), house.s("told")
    if where == "member":
        work = chord([give, stranger], house.s("gather").on_error(told))
    elif where == "step":
        work = chain(stranger, house.s("give"), group(house.s("give"), house.s("give")), house.s("gather"))
        work.tasks[0].link_error(told)
    else:
        work = chord([give, chain(stranger, house.s("give"))], house.s("gather").on_error(told))
    with StepWorker(house.app) as worker:
        result = work.apply_async()
        worker.run()
        assert result.state == "FAILURE"
    assert (house.ran, len(house.told)) == ([], 1)
    (dead,) = house.app.broker.admin.dead()
    assert "nobody.knows" in dead.reason
    assert house.app.backend.joins.count() == 0


def publish(house: House) -> Any:
    """Do as a joiner that dies when it has published a body in another store."""
    (join,) = house.app.backend.joins.claim(16, 10.0)
    if join.parts and join.parts[0].value:
        values = [house.app.backend.joins.read_chord_part(part) for part in join.parts]
    else:
        values = [house.app.backend.get(part.task_id)["result"] for part in join.parts]  # type: ignore[index]
    made = body_messages.messages_of(house.app, bodies.read_body(house.app, join)[0], values)
    assert house.app.backend.joins.claim(16, 10.0) == []
    house.app.broker.sender.push(made)
    return made


@pytest.mark.parametrize("kind", ["apart"])
@pytest.mark.parametrize("body", ["gather", "chain", "group", "chord"])
@pytest.mark.parametrize("ran", [False, True], ids=["both wait", "one ran"])
def test_a_body_that_was_published_twice_runs_once(tmp_path: Path, kind: str, body: str, ran: bool) -> None:
    house = made(tmp_path, kind)
    follows: Any = house.s("gather")
    if body == "chain":
        follows = chain(house.s("gather"), house.s("gather"))
    elif body == "group":
        follows = group(house.s("gather"), house.s("gather"))
    elif body == "chord":
        follows = chord([house.s("gather"), house.s("give")], house.s("gather"))
    with StepWorker(house.app) as worker:
        parts = worker.parts
        chord([house.s("give", 1)], follows)()
        joiner, parts.joiner = parts.joiner, None  # type: ignore[assignment]
        worker.run()
        publish(house)
        if ran:
            worker.run()
        parts.joiner = joiner
        worker.advance(11)
        worker.run()
    count = {"gather": 1, "chain": 2, "group": 2, "chord": 2}[body]
    assert len(house.ran) == count
    assert house.app.backend.joins.count() == 0
    house.app.close()


def test_the_parent_of_a_body_is_a_member(house: House) -> None:
    parents: list[Any] = []

    @house.app.task(name="whose", bind=True)
    def whose(this: Any, values: Any) -> None:
        parents.append(this.request.parent_id)

    with StepWorker(house.app) as worker:
        result = chord([house.s("give", 1), house.s("give", 2)], house.s("whose"), app=house.app)()
        worker.run()
    assert len(parents) == 1
    assert parents[0] in {member.id for member in result.parent.results}
