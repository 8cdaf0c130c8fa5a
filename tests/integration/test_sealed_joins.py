"""Joins of an app with a security_key: write access to the result store without the key does not allow
choosing values of a body, and nothing valid is refused.

The attacker is an app on the same servers without the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group
from qworker.backends.joins import Join
from qworker.canvas.plan import SEGMENT
from qworker.canvas.signatures import Signature
from qworker.errors import ChordError
from qworker.message.marks import JOINS
from qworker.naming import task_id
from qworker.publishing.workflows import shares_joins
from qworker.states import FAILURE, SUCCESS
from qworker.testing import StepWorker
from qworker.transports.lease import Part
from tests.contract.place_sql import PostgreSQLPlace
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

KEY = "k" * 32
KINDS = ("same", "separate", "files", "redis", "postgresql")


class Env:
    """The app with its key, and the attacker. ran: the arguments of bodies that ran."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.place: PostgreSQLPlace | None = None
        options: dict[str, Any] = {"broker": f"sqlite:///{directory}/queue.db"}
        if kind == "separate":
            options["backend"] = f"sqlite:///{directory}/results.db"
        elif kind == "files":
            options["backend"] = f"file://{directory}/results"
            (directory / "results").mkdir()
        elif kind == "postgresql":
            self.place = PostgreSQLPlace(directory)
            options["backend"] = self.place.results_url
        elif kind == "redis":
            server = {"global_keyprefix": prefix_of(directory)}
            options.update(
                broker=require("redis"),
                backend=require("redis"),
                broker_transport_options=server,
                result_backend_transport_options=server,
            )
        self.app = QWorker("sealed", set_as_current=False, security_key=[KEY], **options)
        self.attacker = QWorker("sealed", set_as_current=False, **options)
        self.ran: list[Any] = []
        task = self.app.task

        @task(name="give")
        def give(value: Any) -> Any:
            return value

        @task(name="fail")
        def fail(*given: Any) -> None:
            raise ValueError("no")

        @task(name="gather")
        def gather(*values: Any, **named: Any) -> Any:
            self.ran.append(values[0] if values else named)
            return self.ran[-1]

        @task(name="grows", bind=True)
        def grows(this: Any, value: Any) -> Any:
            this.add_to_chord(self.s("give", value + 1))
            return value

        self.other = self.app.send_task("give", (1000,))
        self.run()

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].s(*args)

    def run(self) -> None:
        with StepWorker(self.app) as worker:
            worker.run()

    def forge_parts(self, join: str, *parts: tuple[int, str, str]) -> None:
        """Let the attacker record *parts* before the members end."""
        self.attacker.backend.joins.add([Part(join, *part) for part in parts])

    def close(self) -> None:
        self.attacker.close()
        self.app.close()
        if self.place is not None:
            self.place.clear()


@pytest.fixture(params=KINDS)
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    made = Env(tmp_path, request.param)
    yield made
    made.close()


Written = Callable[[Env, Any, list[str]], list[tuple[int, str, str]]]
PARTS: dict[str, Written] = {
    "another task's": lambda env, gid, ids: [(0, env.other.id, SUCCESS), (1, ids[1], SUCCESS)],
    "only another task's": lambda env, gid, ids: [(n, env.other.id, SUCCESS) for n in (0, 1)],
    "in another order": lambda env, gid, ids: [(0, ids[1], SUCCESS), (1, ids[0], SUCCESS)],
    "one of them twice": lambda env, gid, ids: [(0, ids[0], SUCCESS), (1, ids[0], SUCCESS)],
    "of nobody": lambda env, gid, ids: [(0, "", SUCCESS), (1, "\x1b", SUCCESS)],
    "the failure of another task": lambda env, gid, ids: [(0, env.failed.id, FAILURE)],  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("what", PARTS)
def test_forged_parts_fail_the_chord(env: Env, what: str) -> None:
    env.failed = env.app.send_task("fail")  # type: ignore[attr-defined]
    env.run()
    result = chord([env.s("give", 1), env.s("give", 2)], env.s("gather")).apply_async()
    ids = [member.id for member in result.parent.results]
    env.forge_parts(result.parent.id, *PARTS[what](env, result.parent.id, ids))
    env.run()
    assert env.ran == []
    assert result.state == "FAILURE"
    with pytest.raises(ChordError, match="do not match the members"):
        result.get(timeout=0)


def test_forged_part_of_a_running_member_has_no_value(env: Env) -> None:
    result = chord([env.s("give", 1), env.s("give", 2)], env.s("gather")).apply_async()
    ids = [member.id for member in result.parent.results]
    env.forge_parts(result.parent.id, (0, ids[0], SUCCESS), (1, ids[1], SUCCESS))
    env.run()
    assert env.ran in ([], [[1, 2]])


def test_retried_chord_with_forged_parts_is_refused(env: Env) -> None:
    result = chord([env.s("give", 1), env.s("give", 2)], env.s("gather")).apply_async()
    env.forge_parts(result.parent.id, (0, env.other.id, SUCCESS), (1, env.other.id, SUCCESS))
    env.run()
    (found,) = env.app.failed.list()
    assert found.id == result.id
    with pytest.raises(ChordError, match="no longer known"):
        env.app.failed.retry([found.tag])
    env.run()
    assert env.ran == []


def test_forged_member_fails_the_chord(env: Env) -> None:
    result = chord([env.s("give", 1), env.s("give", 2)], env.s("gather")).apply_async()
    number = env.attacker.backend.joins.grow(result.parent.id, env.other.id)
    assert number == 2
    env.forge_parts(result.parent.id, (2, env.other.id, SUCCESS))
    env.attacker.backend.save_group(f"qworker-added-2-{result.parent.id}", {"task_id": env.other.id})
    env.run()
    assert env.ran == []
    assert result.state == "FAILURE"


def test_worker_that_loses_its_claim_leaves_the_records_of_added_members(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(env.app.backend.joins)
    claim, finish = kind.claim, kind.finish
    answers: list[bool] = []

    def late(joins: Any, *given: Any) -> bool:
        if not answers:
            assert claim(joins, 1, 0.0)
        answers.append(finish(joins, *given))
        return answers[-1]

    monkeypatch.setattr(kind, "claim", lambda joins, limit, seconds: claim(joins, limit, 0.0))
    monkeypatch.setattr(kind, "finish", late)
    result = chord([env.s("grows", 1), env.s("give", 5)], env.s("gather")).apply_async()
    env.run()
    assert (answers, env.ran) == ([False, True], [[1, 5, 2]])
    assert env.app.backend.get_group(f"qworker-added-2-{result.parent.id}") is None


def test_forged_parts_fail_a_long_chain(env: Env) -> None:
    steps = [env.s("give", 1), *(env.s("give") for _ in range(SEGMENT + 2)), env.s("gather")]
    result = chain(*steps).apply_async()
    before = result
    while before.parent is not None:
        before = before.parent
        env.forge_parts(before.id, (0, env.other.id, SUCCESS))
    env.run()
    assert env.ran == []
    assert result.state == "FAILURE"


def test_forged_parts_fail_a_graph_node(env: Env) -> None:
    nodes = {"a": env.s("give", 1), "b": env.s("give", 2), "c": env.s("gather")}
    result = graph(nodes, after={"c": {"x": "a", "y": "b"}}).apply_async()
    found = {node.id: node for node in result.results}
    ids = list(found)
    env.forge_parts(f"{result.id}-2", (0, ids[1], SUCCESS), (1, ids[0], SUCCESS))
    env.run()
    assert env.ran == []


def test_forged_failure_of_a_member_is_ignored(env: Env) -> None:
    nodes = {"a": env.s("give", 1), "b": env.s("fail"), "c": env.s("gather")}
    result = graph(nodes, after={"c": {"x": "a", "y": "b"}}, always=["c"]).apply_async()
    ids = [node.id for node in result.results]
    env.forge_parts(f"{result.id}-2", (0, ids[0], FAILURE))
    env.run()
    assert env.ran == [{"x": 1, "y": None}]


# -- valid joins --


FLOWS: dict[str, tuple[Callable[[Env], Any], list[Any]]] = {
    "chord": (lambda env: chord([env.s("give", n) for n in range(3)], env.s("gather")), [[0, 1, 2]]),
    "chord of chords": (
        lambda env: chord(
            [chord([env.s("give", n), env.s("give", 7)], env.s("gather")) for n in range(2)],
            env.s("gather"),
            app=env.app,
        ),
        [[0, 7], [1, 7], [[0, 7], [1, 7]]],
    ),
    "chain of groups": (
        lambda env: chain(
            group(env.s("give", n) for n in (1, 2)),
            group(env.s("give") for _ in range(2)),
            env.s("gather"),
        ),
        [[[1, 2], [1, 2]]],
    ),
    "members of long chains": (
        lambda env: chord(
            [chain(env.s("give", n), *(env.s("give") for _ in range(SEGMENT * 2))) for n in (1, 2)],
            env.s("gather"),
        ),
        [[1, 2]],
    ),
    "members that are added": (
        lambda env: chord([env.s("grows", 1), env.s("grows", 5)], env.s("gather")),
        [[1, 5, 2, 6]],
    ),
    "graph": (
        lambda env: graph(
            {"a": env.s("give", 1), "b": env.s("give"), "c": env.s("gather")},
            after={"b": {"value": "a"}, "c": {"x": "a", "y": "b"}},
        ),
        [{"x": 1, "y": 1}],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_workflows_run_with_a_key(env: Env, name: str) -> None:
    make, expected = FLOWS[name]
    make(env).apply_async()
    env.run()
    assert sorted(env.ran, key=str) == sorted(expected, key=str)


def test_join_of_an_older_version_is_finished(env: Env) -> None:
    """It does not name its members, and only its body is signed."""
    join = task_id()
    member = env.s("give", 1).set(headers={JOINS: [[join, 0]]})
    body = env.s("gather").set(task_id=task_id())
    written = env.app.backend.codec.encode_value(dict(body), ("join", join))
    env.app.backend.joins.open([Join(join, 1, written, None)])
    member.apply_async()
    env.run()
    assert env.ran == [[1]]


def test_older_version_ignores_the_members_field(env: Env) -> None:
    """It makes a Signature from all fields of the body."""
    fields = {**env.s("gather", [1]), "members": "2:of:whom"}
    Signature.from_dict(fields, env.app).apply_async()
    env.run()
    assert env.ran == [[1]]


def test_join_signed_with_an_older_key_is_finished(env: Env) -> None:
    chord([env.s("give", 1), env.s("grows", 2)], env.s("gather")).apply_async()
    env.app.conf.update(security_key=["n" * 32, KEY])
    env.app.backend.close()
    env.run()
    assert env.ran == [[1, 2, 3]]


def test_security_key_selects_the_shared_format(env: Env) -> None:
    assert shares_joins(env.app)
