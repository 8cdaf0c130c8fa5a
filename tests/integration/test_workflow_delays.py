"""Workflows with members that are due after results expire: their joins wait for them, in each result
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
from tests.support.cases import cases

pytestmark = pytest.mark.integration

LIFE = 100
"""Seconds for which results are kept, and joins after their members are due."""


class Env:
    """An app with an SQLite file as broker, and its tasks."""

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
"""The others get the same expiry time from the same code."""


@pytest.fixture(params=cases(URLS, MANY))
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    more: dict[str, Any] = {}
    if request.param == "redis":
        more["result_backend_transport_options"] = {"global_keyprefix": prefix_of(tmp_path)}
    env = Env(tmp_path, URLS[request.param](tmp_path), **more)
    yield env
    env.app.close()


FLOWS: dict[str, tuple[Callable[[Env], Any], int, float]] = {
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
"""The call, its value, and the delay of each step."""


MIXED: dict[str, tuple[Callable[[Env], Any], Any]] = {
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


@pytest.mark.parametrize("name", MIXED)
def test_values_are_kept_for_members_due_after_results_expire(env: Env, name: str) -> None:
    if env.app.results_with_broker:
        pytest.skip("the broker sweeps by the system's time, which is after all that this clock says")
    make, value = MIXED[name]
    with StepWorker(env.app) as worker:
        result = make(env)()
        worker.run()
        for _ in range(3):
            worker.advance(0.9 * LIFE)
            env.app.backend.sweep(env.clock.now())
            if result.ready():
                break
        assert result.ready()
        assert result.get(timeout=5) == value


def test_added_members_are_remembered_as_long_as_the_join(tmp_path: Path) -> None:
    env = Env(tmp_path, f"sqlite:///{tmp_path}/results.db", security_key="k" * 32)
    with env.app, StepWorker(env.app) as worker:
        result = chord([env.adds.s(1), env.late(env.give.s(2))], env.total.s())()
        worker.run()
        for _ in range(3):
            worker.advance(0.9 * LIFE)
            env.app.backend.sweep(env.clock.now())
        assert result.ready()
        assert result.get(timeout=5) == 13


def test_outline_of_a_workflow_is_kept_as_long_as_the_join(env: Env) -> None:
    if env.app.results_with_broker:
        pytest.skip("the broker sweeps by the system's time, which is after all that this clock says")
    with StepWorker(env.app) as worker:
        result = chord([env.give.s(1), env.late(env.give.s(2))], env.total.s())()
        worker.run()
        worker.advance(1.5 * LIFE)
        env.app.backend.sweep(env.clock.now())
        survey = Survey(env.app, result.id).look()
        assert survey is not None
        assert sum(survey.counts().values()) == 3


@pytest.mark.parametrize("name", FLOWS)
def test_chord_waits_for_members_due_after_results_expire(env: Env, name: str) -> None:
    make, value, pause = FLOWS[name]
    with StepWorker(env.app) as worker:
        result = make(env)()
        worker.run()
        for _ in range(3):
            worker.advance(pause + 1)
            if result.ready():
                break
        assert result.ready()
        assert result.get(timeout=5) == value


GRAPHS: dict[str, tuple[Callable[[Env], Any], int]] = {
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
def test_graph_nodes_wait_for_delayed_dependencies(env: Env, name: str) -> None:
    make, value = GRAPHS[name]
    with StepWorker(env.app) as worker:
        flow = make(env)
        last = list(flow.nodes)[-1]
        result = flow.apply_async()
        worker.run()
        for _ in range(10):
            worker.advance(0.5 * LIFE)
            if result[last].ready():
                break
        assert result[last].ready(), {name: each.state for name, each in result.items()}
        assert result[last].get(timeout=5) == value


def test_segments_of_a_chain_wait_for_delayed_steps(env: Env) -> None:
    with StepWorker(env.app) as worker:
        steps = [env.give.s(9) for _ in range(2 * SEGMENT + 1)]
        steps[3].set(countdown=3 * LIFE)
        steps[SEGMENT + 3].set(countdown=3 * LIFE)
        result = chain(*steps)()
        worker.run()
        for _ in range(2):
            worker.advance(3 * LIFE + 1)
        assert result.ready()
        assert result.get(timeout=5) == 9


def test_join_of_a_lost_member_expires(env: Env) -> None:
    """A lost delayed member is waited for as long after its due time as others."""
    with StepWorker(env.app) as worker:
        lost = env.give.s(1).set(countdown=2 * LIFE, queue="nobody")
        result = chord([lost], env.total.s())()
        worker.run()
        worker.advance(3 * LIFE - 1)
        assert result.state == "PENDING"
        worker.advance(2)
        with pytest.raises(ChordError):
            result.get(timeout=5)
