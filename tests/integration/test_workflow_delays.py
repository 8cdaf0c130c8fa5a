"""Workflows whose members are due later than the life of a result: their joins wait for them, in each result
store that has joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group
from qworker.canvas.plan import SEGMENT
from qworker.clock import from_epoch
from qworker.errors import ChordError
from qworker.results.workflow import Survey
from qworker.testing import FakeClock, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

LIFE = 100
"""For how many seconds a result is kept, and a join after its members are due."""


class House:
    """An app whose messages are in a SQLite file, and what its tasks do."""

    def __init__(self, directory: Path, results: str | None, **conf: Any) -> None:
        self.clock = FakeClock()
        self.app = QWorker(
            "delays",
            broker=f"sqlite:///{directory}/queue.db",
            backend=results,
            clock=self.clock,
            result_expires=LIFE,
            set_as_current=False,
            **conf,
        )
        self.give = self.app.task(lambda value, *rest: value, name="give")
        self.total = self.app.task(lambda values: sum(values), name="total")
        self.late = lambda call: call.set(countdown=2 * LIFE)

        @self.app.task(name="becomes", bind=True)
        def becomes(this: Any, value: Any) -> Any:
            this.replace(self.give.s(value))

        @self.app.task(name="adds", bind=True)
        def adds(this: Any, value: Any) -> Any:
            this.add_to_chord(self.give.s(10))
            return value

        @self.app.task(name="slow", bind=True)
        def slow(this: Any, value: Any) -> Any:
            if not this.request.retries:
                this.retry(countdown=0.8 * LIFE)
            return value

        self.becomes, self.adds, self.slow = becomes, adds, slow
        self.sum = self.app.task(lambda **values: sum(values.values()), name="sum")

    def at(self, seconds: float) -> Any:
        return from_epoch(self.clock.now() + seconds)


URLS: dict[str, Callable[[Path], str | None]] = {
    "beside": lambda path: None,
    "alone": lambda path: f"sqlite:///{path}/results.db",
    "sql": lambda path: f"db+sqlite:///{path}/sql.db",
    "redis": lambda path: require("redis"),
    "files": lambda path: f"file://{path}",
    "memory": lambda path: "cache+memory://",
}


MANY = ("beside", "redis")
"""The others take the same epoch second, from the same place."""


@pytest.fixture(
    params=[each if each in MANY else pytest.param(each, marks=pytest.mark.more_cases) for each in URLS]
)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    more: dict[str, Any] = {}
    if request.param == "redis":
        more["result_backend_transport_options"] = {"global_keyprefix": prefix_of(tmp_path)}
    house = House(tmp_path, URLS[request.param](tmp_path), **more)
    yield house
    house.app.close()


FLOWS: dict[str, tuple[Callable[[House], Any], int, float]] = {
    "the call": (
        lambda h: chord([h.give.s(1), h.give.s(2)], h.total.s()).set(countdown=2 * LIFE), 3, 2 * LIFE
    ),
    "a timedelta": (
        lambda h: chord([h.give.s(1).set(countdown=timedelta(seconds=2 * LIFE))], h.total.s()), 1, 2 * LIFE
    ),
    "an eta": (lambda h: chord([h.give.s(3).set(eta=h.at(2 * LIFE))], h.total.s()), 3, 2 * LIFE),
    "a chain": (
        lambda h: chord(
            [chain(*(h.give.s(4).set(countdown=0.9 * LIFE) for _ in range(3)))], h.total.s()
        ), 4, 0.9 * LIFE
    ),
    "a chord": (
        lambda h: chord(
            [chord([h.give.s(5).set(countdown=0.9 * LIFE)], h.total.s().set(countdown=0.9 * LIFE))],
            h.total.s(),
        ), 5, 0.9 * LIFE
    ),
    "a chain of groups": (
        lambda h: group(h.give.s(1), h.give.s(2)).set(countdown=2 * LIFE) | h.total.s(), 3, 2 * LIFE
    ),
}  # fmt: skip
"""What is called, its value, and how long each step is held back."""


BESIDE: dict[str, tuple[Callable[[House], Any], Any]] = {
    "a chord": (lambda h: chord([h.give.s(1), h.late(h.give.s(2))], h.total.s()), 3),
    "a chord of chords": (
        lambda h: chord([chord([h.give.s(1)], h.total.s()), h.late(h.give.s(2))], h.total.s()),
        3,
    ),
    "the end of a chain": (
        lambda h: chord([chain(h.give.s(0), h.give.si(1)), h.late(h.give.s(2))], h.total.s()),
        3,
    ),
    "a replaced member": (lambda h: chord([h.becomes.s(1), h.late(h.give.s(2))], h.total.s()), 3),
    "an added member": (lambda h: chord([h.adds.s(1), h.late(h.give.s(2))], h.total.s()), 13),
    "a graph": (
        lambda h: graph(
            {"x": h.give.s(1), "y": h.late(h.give.s(2)), "z": h.sum.s()}, after={"z": ["x", "y"]}
        ),
        {"x": 1, "y": 2, "z": 3},
    ),
    "the levels of a graph": (
        lambda h: graph(
            {"x": h.give.s(1), "a": h.slow.s(2), "b": h.slow.si(3), "z": h.sum.s()},
            after={"b": ["a"], "z": ["x", "b"]},
        ),
        {"x": 1, "a": 2, "b": 3, "z": 4},
    ),
    "after a step": (lambda h: h.give.s(0) | chord([h.give.si(1), h.late(h.give.si(2))], h.total.s()), 3),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_value_is_kept_for_a_member_that_is_due_later_than_results_live(house: House, name: str) -> None:
    if house.app.results_with_broker:
        pytest.skip("the broker sweeps by the system's time, which is after all that this clock says")
    make, value = BESIDE[name]
    with StepWorker(house.app) as worker:
        result = make(house)()
        worker.run()
        for _ in range(3):
            worker.advance(0.9 * LIFE)
            house.app.backend.sweep(house.clock.now())
            if result.ready():
                break
        assert result.ready()
        assert result.get(timeout=5) == value


def test_who_was_added_is_known_for_as_long_as_the_join(tmp_path: Path) -> None:
    house = House(tmp_path, f"sqlite:///{tmp_path}/results.db", security_key="k" * 32)
    with house.app, StepWorker(house.app) as worker:
        result = chord([house.adds.s(1), house.late(house.give.s(2))], house.total.s())()
        worker.run()
        for _ in range(3):
            worker.advance(0.9 * LIFE)
            house.app.backend.sweep(house.clock.now())
        assert result.ready()
        assert result.get(timeout=5) == 13


def test_the_outline_of_a_workflow_is_kept_as_long_as_the_join(house: House) -> None:
    if house.app.results_with_broker:
        pytest.skip("the broker sweeps by the system's time, which is after all that this clock says")
    with StepWorker(house.app) as worker:
        result = chord([house.give.s(1), house.late(house.give.s(2))], house.total.s())()
        worker.run()
        worker.advance(1.5 * LIFE)
        house.app.backend.sweep(house.clock.now())
        survey = Survey(house.app, result.id).look()
        assert survey is not None
        assert sum(survey.counts().values()) == 3


@pytest.mark.parametrize("name", FLOWS)
def test_a_chord_waits_for_members_that_are_due_later_than_results_live(house: House, name: str) -> None:
    make, value, pause = FLOWS[name]
    with StepWorker(house.app) as worker:
        result = make(house)()
        worker.run()
        for _ in range(3):
            worker.advance(pause + 1)
            if result.ready():
                break
        assert result.ready()
        assert result.get(timeout=5) == value


GRAPHS: dict[str, tuple[Callable[[House], Any], int]] = {
    "a node": (
        lambda h: graph({"a": h.give.s(7).set(countdown=2 * LIFE), "b": h.sum.s()}, after={"b": ["a"]}), 7
    ),
    "in a row": (
        lambda h: graph(
            {
                "a": h.give.s(8).set(countdown=1.5 * LIFE),
                "b": h.sum.s().set(countdown=1.5 * LIFE),
                "c": h.sum.s().set(countdown=1.5 * LIFE),
            },
            after={"b": ["a"], "c": ["b"]},
        ), 8
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_the_nodes_of_a_graph_wait_likewise(house: House, name: str) -> None:
    make, value = GRAPHS[name]
    with StepWorker(house.app) as worker:
        flow = make(house)
        last = list(flow.nodes)[-1]
        result = flow.apply_async()
        worker.run()
        for _ in range(10):
            worker.advance(0.5 * LIFE)
            if result[last].ready():
                break
        assert result[last].ready(), {name: each.state for name, each in result.items()}
        assert result[last].get(timeout=5) == value


def test_a_segment_of_a_chain_waits_for_those_before(house: House) -> None:
    with StepWorker(house.app) as worker:
        steps = [house.give.s(9) for _ in range(2 * SEGMENT + 1)]
        steps[3].set(countdown=3 * LIFE)
        steps[SEGMENT + 3].set(countdown=3 * LIFE)
        result = chain(*steps)()
        worker.run()
        for _ in range(2):
            worker.advance(3 * LIFE + 1)
        assert result.ready()
        assert result.get(timeout=5) == 9


def test_a_join_is_given_up_when_its_time_is_over(house: House) -> None:
    """The delay does not keep it for ever: a member that is not heard of is waited for as long as ever."""
    with StepWorker(house.app) as worker:
        lost = house.give.s(1).set(countdown=2 * LIFE, queue="nobody")
        result = chord([lost], house.total.s())()
        worker.run()
        worker.advance(3 * LIFE - 1)
        assert result.state == "PENDING"
        worker.advance(2)
        with pytest.raises(ChordError):
            result.get(timeout=5)
