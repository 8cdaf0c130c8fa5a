"""Joins of an app with a security_key: somebody who can write to the result store, and has no key, chooses no
value of what a body gets; and nothing honest is refused.

The stranger is an app on the same servers without the key.
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
KINDS = ("together", "apart", "files", "redis", "postgresql")


class House:
    """The app with its key, and the stranger. ran: the arguments with which bodies ran."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.place: PostgreSQLPlace | None = None
        options: dict[str, Any] = {"broker": f"sqlite:///{directory}/queue.db"}
        if kind == "apart":
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
        self.stranger = QWorker("sealed", set_as_current=False, **options)
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

    def adds(self, join: str, *parts: tuple[int, str, str]) -> None:
        """What the stranger writes, before the members end."""
        self.stranger.backend.joins.add([Part(join, *part) for part in parts])

    def close(self) -> None:
        self.stranger.close()
        self.app.close()
        if self.place is not None:
            self.place.clear()


@pytest.fixture(params=KINDS)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, request.param)
    yield made
    made.close()


Written = Callable[[House, Any, list[str]], list[tuple[int, str, str]]]
PARTS: dict[str, Written] = {
    "another task's": lambda house, gid, ids: [(0, house.other.id, SUCCESS), (1, ids[1], SUCCESS)],
    "only another task's": lambda house, gid, ids: [(n, house.other.id, SUCCESS) for n in (0, 1)],
    "in another order": lambda house, gid, ids: [(0, ids[1], SUCCESS), (1, ids[0], SUCCESS)],
    "one of them twice": lambda house, gid, ids: [(0, ids[0], SUCCESS), (1, ids[0], SUCCESS)],
    "of nobody": lambda house, gid, ids: [(0, "", SUCCESS), (1, "\x1b", SUCCESS)],
    "the failure of another task": lambda house, gid, ids: [(0, house.failed.id, FAILURE)],  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("what", PARTS)
def test_a_stranger_does_not_choose_what_the_body_of_a_chord_gets(house: House, what: str) -> None:
    house.failed = house.app.send_task("fail")  # type: ignore[attr-defined]
    house.run()
    result = chord([house.s("give", 1), house.s("give", 2)], house.s("gather")).apply_async()
    ids = [member.id for member in result.parent.results]
    house.adds(result.parent.id, *PARTS[what](house, result.parent.id, ids))
    house.run()
    assert house.ran == []
    assert result.state == "FAILURE"
    with pytest.raises(ChordError, match="do not match the members"):
        result.get(timeout=0)


def test_a_member_that_has_not_ended_has_no_value(house: House) -> None:
    result = chord([house.s("give", 1), house.s("give", 2)], house.s("gather")).apply_async()
    ids = [member.id for member in result.parent.results]
    house.adds(result.parent.id, (0, ids[0], SUCCESS), (1, ids[1], SUCCESS))
    house.run()
    assert house.ran in ([], [[1, 2]])


def test_a_failed_chord_that_is_sent_again_gets_nothing_of_a_strangers(house: House) -> None:
    result = chord([house.s("give", 1), house.s("give", 2)], house.s("gather")).apply_async()
    house.adds(result.parent.id, (0, house.other.id, SUCCESS), (1, house.other.id, SUCCESS))
    house.run()
    (found,) = house.app.failed.list()
    assert found.id == result.id
    with pytest.raises(ChordError, match="not known any more"):
        house.app.failed.retry([found.tag])
    house.run()
    assert house.ran == []


def test_a_stranger_adds_no_member(house: House) -> None:
    result = chord([house.s("give", 1), house.s("give", 2)], house.s("gather")).apply_async()
    number = house.stranger.backend.joins.grow(result.parent.id, house.other.id)
    assert number == 2
    house.adds(result.parent.id, (2, house.other.id, SUCCESS))
    house.stranger.backend.save_group(f"qworker-added-2-{result.parent.id}", {"task_id": house.other.id})
    house.run()
    assert house.ran == []
    assert result.state == "FAILURE"


def test_the_next_segment_of_a_chain_gets_the_value_of_the_last(house: House) -> None:
    steps = [house.s("give", 1), *(house.s("give") for _ in range(SEGMENT + 2)), house.s("gather")]
    result = chain(*steps).apply_async()
    before = result
    while before.parent is not None:
        before = before.parent
        house.adds(before.id, (0, house.other.id, SUCCESS))
    house.run()
    assert house.ran == []
    assert result.state == "FAILURE"


def test_a_node_of_a_graph_gets_the_values_of_its_own(house: House) -> None:
    nodes = {"a": house.s("give", 1), "b": house.s("give", 2), "c": house.s("gather")}
    result = graph(nodes, after={"c": {"x": "a", "y": "b"}}).apply_async()
    found = {node.id: node for node in result.results}
    ids = list(found)
    house.adds(f"{result.id}-2", (0, ids[1], SUCCESS), (1, ids[0], SUCCESS))
    house.run()
    assert house.ran == []


def test_that_a_member_has_failed_says_its_result_and_nobody_else(house: House) -> None:
    nodes = {"a": house.s("give", 1), "b": house.s("fail"), "c": house.s("gather")}
    result = graph(nodes, after={"c": {"x": "a", "y": "b"}}, always=["c"]).apply_async()
    ids = [node.id for node in result.results]
    house.adds(f"{result.id}-2", (0, ids[0], FAILURE))
    house.run()
    assert house.ran == [{"x": 1, "y": None}]


# -- what is honest --


FLOWS: dict[str, tuple[Callable[[House], Any], list[Any]]] = {
    "chord": (lambda house: chord([house.s("give", n) for n in range(3)], house.s("gather")), [[0, 1, 2]]),
    "chord of chords": (
        lambda house: chord(
            [chord([house.s("give", n), house.s("give", 7)], house.s("gather")) for n in range(2)],
            house.s("gather"),
            app=house.app,
        ),
        [[0, 7], [1, 7], [[0, 7], [1, 7]]],
    ),
    "chain of groups": (
        lambda house: chain(
            group(house.s("give", n) for n in (1, 2)),
            group(house.s("give") for _ in range(2)),
            house.s("gather"),
        ),
        [[[1, 2], [1, 2]]],
    ),
    "members of long chains": (
        lambda house: chord(
            [chain(house.s("give", n), *(house.s("give") for _ in range(SEGMENT * 2))) for n in (1, 2)],
            house.s("gather"),
        ),
        [[1, 2]],
    ),
    "members that are added": (
        lambda house: chord([house.s("grows", 1), house.s("grows", 5)], house.s("gather")),
        [[1, 5, 2, 6]],
    ),
    "graph": (
        lambda house: graph(
            {"a": house.s("give", 1), "b": house.s("give"), "c": house.s("gather")},
            after={"b": {"value": "a"}, "c": {"x": "a", "y": "b"}},
        ),
        [{"x": 1, "y": 1}],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_workflows_run_as_without_a_key(house: House, name: str) -> None:
    make, expected = FLOWS[name]
    make(house).apply_async()
    house.run()
    assert sorted(house.ran, key=str) == sorted(expected, key=str)


def test_a_join_of_an_older_version_is_finished(house: House) -> None:
    """It says of no member who it is, and signed is nothing but its body."""
    join = task_id()
    member = house.s("give", 1).set(headers={JOINS: [[join, 0]]})
    body = house.s("gather").set(task_id=task_id())
    written = house.app.backend.encode_value(dict(body), about=("join", join))
    house.app.backend.joins.open([Join(join, 1, written, None)])
    member.apply_async()
    house.run()
    assert house.ran == [[1]]


def test_an_older_version_reads_past_who_the_members_are(house: House) -> None:
    """It makes a signature of the whole body."""
    fields = {**house.s("gather", [1]), "members": "2:of:whom"}
    Signature.from_dict(fields, house.app).apply_async()
    house.run()
    assert house.ran == [[1]]


def test_the_key_that_wrote_a_join_may_be_the_older_one(house: House) -> None:
    chord([house.s("give", 1), house.s("grows", 2)], house.s("gather")).apply_async()
    house.app.conf.update(security_key=["n" * 32, KEY])
    house.app.backend.close()
    house.run()
    assert house.ran == [[1, 2, 3]]


def test_with_a_key_the_format_is_ours(house: House) -> None:
    assert shares_joins(house.app)
