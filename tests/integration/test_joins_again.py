"""Steps that are repeated after the death of a worker: opening, recording or finishing a join twice changes
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


class Env:
    """An app. ran: the arguments of the bodies that ran."""

    def __init__(self, app: QWorker) -> None:
        self.app = app
        self.ran: list[Any] = []
        self.notified: list[str] = []

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

        @app.task(name="notified", bind=True)
        def notified(this: Any, failed: str) -> None:
            self.notified.append(failed)

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].s(*args)


def made(directory: Path, kind: str) -> Env:
    options: dict[str, Any] = {"broker": f"sqlite:///{directory}/queue.db", "clock": FakeClock()}
    if kind == "separate":
        options["backend"] = f"sqlite:///{directory}/results.db"
    elif kind in ("postgresql", "mysql"):
        tables = {name: f"{name}_{directory.name}" for name in TABLES}
        options.update(backend=f"db+{require(kind)}", database_table_names=tables)
    elif kind != "same":
        server = {"global_keyprefix": prefix_of(directory)}
        options = {
            "broker": require("redis"),
            "backend": require("redis"),
            "broker_transport_options": server,
            "result_backend_transport_options": server,
            "canvas_format": kind.partition(" ")[2],
        }
        if kind == "redis separate":
            options.update(broker=f"sqlite:///{directory}/queue.db", canvas_format="celery")
    return Env(QWorker("again", set_as_current=False, **options))


@pytest.fixture(params=["same", "separate", "redis celery", "redis shared", "redis separate"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    env = made(tmp_path, request.param)
    yield env
    env.app.close()


FLOWS: dict[str, tuple[Any, list[Any]]] = {
    "chain, chord": (
        lambda env: chain(env.s("give", 1), group(env.s("give") for _ in range(3)), env.s("gather")),
        [[1, 1, 1]],
    ),
    "chord of chords": (
        lambda env: chord(
            [chord([env.s("give", n), env.s("give", 7)], env.s("gather")) for n in range(2)],
            env.s("gather"),
            app=env.app,
        ),
        [[0, 7], [1, 7], [[0, 7], [1, 7]]],
    ),
    "chord whose body is one": (
        lambda env: chord(
            [env.s("give", 1), env.s("give", 2)],
            chord([env.s("give"), env.s("give")], env.s("gather")),
        ),
        [[[1, 2], [1, 2]]],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("again", ["before", "after"])
def test_workflow_started_again_runs_each_body_once(env: Env, name: str, again: str) -> None:
    """Like by a redelivered task that has already sent its successors."""
    make, expected = FLOWS[name]
    work = make(env)
    work.freeze()
    with StepWorker(env.app) as worker:
        made = planned(env.app, work, run="")
        result = start(env.app, made)
        if again == "after":
            worker.run()
            assert sorted(map(repr, env.ran)) == sorted(map(repr, expected))
        start(env.app, planned(env.app, work, run=""))
        worker.run()
    assert sorted(map(repr, env.ran)) == sorted(map(repr, expected))
    assert result.get(timeout=5) == expected[-1]


@pytest.mark.parametrize("name", FLOWS)
def test_frozen_workflow_called_again_runs_again(env: Env, name: str) -> None:
    make, expected = FLOWS[name]
    work = make(env)
    work.freeze()
    with StepWorker(env.app) as worker:
        for _ in range(3):
            env.ran.clear()
            assert work.apply_async().id == work.freeze().id
            worker.run()
            assert sorted(map(repr, env.ran)) == sorted(map(repr, expected))


@pytest.mark.parametrize("where", ["member", "step", "last step of a member"])
def test_unknown_task_fails_its_workflow(env: Env, where: str) -> None:
    """Its message becomes a dead letter; its dependants fail, and the errback runs once."""
    env.app.conf.task_unknown_delays = ()
    unknown = Signature("nobody.knows", app=env.app)
    give, notified = env.s("give", 1), env.s("notified")
    if where == "member":
        work = chord([give, unknown], env.s("gather").on_error(notified))
    elif where == "step":
        work = chain(unknown, env.s("give"), group(env.s("give"), env.s("give")), env.s("gather"))
        work.tasks[0].link_error(notified)
    else:
        work = chord([give, chain(unknown, env.s("give"))], env.s("gather").on_error(notified))
    with StepWorker(env.app) as worker:
        result = work.apply_async()
        worker.run()
        assert result.state == "FAILURE"
    assert (env.ran, len(env.notified)) == ([], 1)
    (dead,) = env.app.broker.admin.dead()
    assert "nobody.knows" in dead.reason
    assert env.app.backend.joins.count() == 0


def publish(env: Env) -> Any:
    """Act like a joiner that dies after publishing a body in another store."""
    (join,) = env.app.backend.joins.claim(16, 10.0)
    if join.parts and join.parts[0].value:
        values = [env.app.backend.joins.read_chord_part(part) for part in join.parts]
    else:
        values = [env.app.backend.get(part.task_id)["result"] for part in join.parts]  # type: ignore[index]
    made = body_messages.messages_of(env.app, bodies.read_body(env.app, join)[0], values)
    assert env.app.backend.joins.claim(16, 10.0) == []
    env.app.broker.sender.push(made)
    return made


@pytest.mark.parametrize("kind", ["separate"])
@pytest.mark.parametrize("body", ["gather", "chain", "group", "chord"])
@pytest.mark.parametrize("ran", [False, True], ids=["both wait", "one ran"])
def test_body_published_twice_runs_once(tmp_path: Path, kind: str, body: str, ran: bool) -> None:
    env = made(tmp_path, kind)
    follows: Any = env.s("gather")
    if body == "chain":
        follows = chain(env.s("gather"), env.s("gather"))
    elif body == "group":
        follows = group(env.s("gather"), env.s("gather"))
    elif body == "chord":
        follows = chord([env.s("gather"), env.s("give")], env.s("gather"))
    with StepWorker(env.app) as worker:
        parts = worker.parts
        chord([env.s("give", 1)], follows)()
        joiner, parts.joiner = parts.joiner, None  # type: ignore[assignment]
        worker.run()
        publish(env)
        if ran:
            worker.run()
        parts.joiner = joiner
        worker.advance(11)
        worker.run()
    count = {"gather": 1, "chain": 2, "group": 2, "chord": 2}[body]
    assert len(env.ran) == count
    assert env.app.backend.joins.count() == 0
    env.app.close()


def test_parent_of_a_body_is_a_member(env: Env) -> None:
    parents: list[Any] = []

    @env.app.task(name="whose", bind=True)
    def whose(this: Any, values: Any) -> None:
        parents.append(this.request.parent_id)

    with StepWorker(env.app) as worker:
        result = chord([env.s("give", 1), env.s("give", 2)], env.s("whose"), app=env.app)()
        worker.run()
    assert len(parents) == 1
    assert parents[0] in {member.id for member in result.parent.results}
