"""Graphs on a StepWorker: values and failures, also compared with an oracle in plain Python."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworker import GraphResult, Ignore, QWorker, chain, chord, graph, group
from qworker.canvas.graphs import MAX_DEPENDANTS
from qworker.canvas.plan import SEGMENT, plan
from qworker.canvas.signatures import signature
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import ChordError, NotSupported, PublishError, TaskRevokedError
from qworker.testing import FakeClock, MemoryStore, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


class Env:
    """An app with *broker*, by default in memory. ran: the nodes that were called, in order. notified: the
    ids of failed calls whose errback was called."""

    def __init__(self, broker: str | None = None, results: str = "cache+memory://", **conf: Any) -> None:
        # Redis has its own clock.
        self.clock = SYSTEM_CLOCK if results.startswith("redis") else FakeClock()
        self.app = QWorker(
            "graphs",
            broker=broker or MemoryStore(self.clock),
            backend=results,
            clock=self.clock,
            set_as_current=False,
            **conf,
        )
        self.ran: list[str] = []
        self.notified: list[str] = []
        task = self.app.task

        @task(name="node")
        def node(name: str, *args: Any, **values: Any) -> Any:
            self.ran.append(name)
            return [name, *args, dict(sorted(values.items()))]

        @task(name="more")
        def more(value: Any) -> Any:
            return [value]

        @task(name="fail")
        def fail(name: str, *args: Any, **values: Any) -> None:
            self.ran.append(name)
            raise ValueError(name)

        @task(name="ignore")
        def ignore(**values: Any) -> None:
            raise Ignore

        @task(name="forgotten", ignore_result=True)
        def forgotten(**values: Any) -> None:
            pass

        @task(name="notified", bind=True)
        def notified(this: Any, failed: str) -> None:
            self.notified.append(failed)

        @task(name="replaced", bind=True)
        def replaced(this: Any) -> Any:
            return this.replace(self.diamond())

        @task(name="caller")
        def caller() -> str:
            return str(self.diamond()().id)

    def s(self, name: str, *args: Any, **options: Any) -> Any:
        return self.app.signature(name, args).set(**options)

    def node(self, name: str) -> Any:
        return self.s("node", name)

    def diamond(self, always: Any = (), **nodes: Any) -> Any:
        """Return a graph of four nodes; the last waits for both in the middle."""
        return graph(
            {name: nodes.get(name) or self.node(name) for name in ("top", "left", "right", "low")},
            after={"left": ["top"], "right": {"upper": "top"}, "low": ["left", "right"]},
            always=always,
            app=self.app,
        )

    def result_of(self, flow: Any) -> Any:
        """Call *flow* and run all tasks; return the result."""
        with StepWorker(self.app) as worker:
            result = flow()
            worker.run()
            return result


TOP = ["top", {}]
LEFT, RIGHT = ["left", {"top": TOP}], ["right", {"upper": TOP}]
DIAMOND = {"top": TOP, "left": LEFT, "right": RIGHT, "low": ["low", {"left": LEFT, "right": RIGHT}]}


@pytest.fixture
def env() -> Iterator[Env]:
    env = Env()
    yield env
    env.app.close()


@pytest.fixture(params=["sqlite", "sql", "redis", "files", "memory"])
def any_env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    (tmp_path / "results").mkdir()
    broker, results = {
        "sqlite": lambda: (f"sqlite:///{tmp_path}/queue.db", f"sqlite:///{tmp_path}/queue.db"),
        "sql": lambda: (None, f"db+sqlite:///{tmp_path}/results.db"),
        "redis": lambda: (require("redis"), require("redis")),
        "files": lambda: (None, f"file://{tmp_path}/results"),
        "memory": lambda: (None, "cache+memory://"),
    }[request.param]()
    options = {"global_keyprefix": prefix_of(tmp_path)} if request.param == "redis" else {}
    conf = {"broker_transport_options": options, "result_backend_transport_options": options}
    env = Env(broker, results, **conf)
    yield env
    env.app.close()


# -- values --


@pytest.mark.parametrize("length", [None, SEGMENT])
def test_call_with_wrong_arguments_fails_by_itself(length: int | None) -> None:
    """It failed along with its join: no errback was called, and no failed task was kept."""
    env = Env()
    told: list[Any] = []

    @env.app.task(name="total")
    def total(values: Any, more: Any) -> None: ...

    @env.app.task(name="told")
    def tell(request: Any, error: Exception, traceback: str) -> None:
        told.append((request.task, type(error)))

    node, call = env.app.tasks["node"], total.s().set(link_error=tell.s())
    flow = graph({"a": node.s("a"), "b": call}, {"b": ["a"]})
    worker = StepWorker(env.app)
    result = (chain(*[node.si("a")] * length, call) if length else flow).apply_async()
    worker.run()
    with pytest.raises(TypeError, match="total"):
        result.get(timeout=0)
    assert told == [("total", TypeError)]


def test_node_gets_values_as_keyword_arguments(any_env: Env) -> None:
    result = any_env.result_of(any_env.diamond())
    assert isinstance(result, GraphResult)
    assert result.get(timeout=5) == DIAMOND
    assert result["low"].get(timeout=5) == DIAMOND["low"]
    assert sorted(any_env.ran) == ["left", "low", "right", "top"]
    assert any_env.app.backend.joins.count() == 0


@pytest.mark.parametrize("kind", ["chain", "group", "chord", "graph"])
def test_node_can_be_any_workflow(any_env: Env, kind: str) -> None:
    one, two, more = any_env.node("left"), any_env.s("node", "two"), any_env.s("more")
    left, value = {
        "chain": (one | more, [LEFT]),
        "group": (group(one, two), [LEFT, ["two", {"top": TOP}]]),
        "chord": (group(one, two) | more, [[LEFT, ["two", {"top": TOP}]]]),
        "graph": (
            graph({"left": one, "two": two}, after={"two": ["left"]}),
            {"left": LEFT, "two": ["two", {"left": LEFT}]},
        ),
    }[kind]
    result = any_env.result_of(any_env.diamond(left=left))
    assert result.get(timeout=5) == {
        **DIAMOND,
        "left": value,
        "low": ["low", {"left": value, "right": RIGHT}],
    }


def test_graph_can_be_part_of_chains_chords_and_groups(any_env: Env) -> None:
    more, inner = any_env.s("more"), graph({"p": any_env.node("p"), "q": any_env.node("q")}, {"q": ["p"]})
    value = {"p": ["p", {}], "q": ["q", {"p": ["p", {}]}]}
    assert any_env.result_of(inner | more | more).get(timeout=5) == [[value]]
    assert any_env.result_of(chord([inner, any_env.s("more", 1)], more)).get(timeout=5) == [[value, [1]]]
    several = any_env.result_of(group(inner, any_env.s("more", 2)))
    assert several[0].get(timeout=5) == value
    assert several.get(timeout=5) == several.get(timeout=5, propagate=False) == [value, [2]]
    assert (several.ready(), several.successful(), several.completed_count()) == (True, True, 2)
    last = graph({"p": any_env.s("more"), "q": any_env.node("q")}, {"q": ["p"]})
    result = any_env.result_of(any_env.s("more", 7) | last)
    assert result.get(timeout=5) == {"p": [[7]], "q": ["q", {"p": [[7]]}]}
    assert result.parent.get(timeout=5) == [7]
    assert any_env.result_of(chord([any_env.s("more", 7)], last)).get(timeout=5)["p"] == [[[7]]]
    assert any_env.app.backend.joins.count() == 0


def test_call_arguments_go_to_nodes_without_dependencies(env: Env) -> None:
    first = graph({"a": env.node("a"), "b": env.s("more"), "c": env.node("c")}, {"c": ["b"]})
    with StepWorker(env.app) as worker:
        result = first.delay("x")
        worker.run()
    assert result.get(timeout=5) == {"a": ["x", "a", {}], "b": ["x"], "c": ["c", {"b": ["x"]}]}


def test_immutable_node_waits_and_gets_no_values(env: Env) -> None:
    last = env.app.signature("node", ("low",), immutable=True)
    ignored = env.s("forgotten")
    flow = graph({"a": env.node("a"), "b": ignored, "low": last}, {"low": ["a", "b"]})
    assert env.result_of(flow)["low"].get(timeout=5) == ["low", {}]
    assert env.ran == ["a", "low"]


def test_graph_can_be_called_in_a_task_and_made_from_a_dict(env: Env) -> None:
    identity = env.result_of(env.s("caller").delay).get(timeout=5)
    assert isinstance(identity, str)
    assert len(env.ran) == 4
    fields = json.loads(json.dumps(env.diamond()))
    assert env.result_of(signature(fields, app=env.app)).get(timeout=5) == DIAMOND


def test_call_options_apply_to_every_node(env: Env) -> None:
    with StepWorker(env.app, queues=["far"]) as worker:
        result = env.diamond().apply_async(queue="far", headers={"mine": 1})
        worker.run()
    assert result.get(timeout=5) == DIAMOND


def test_eager_mode_gives_the_same_values(env: Env) -> None:
    env.app.conf.task_always_eager = True
    assert env.diamond()().get() == DIAMOND
    flow = env.diamond(left=env.s("fail", "left"), always="low")
    result = flow()
    assert result["low"].get() == ["low", {"left": None, "right": RIGHT}]
    assert str(result.get(propagate=False)["left"]) == "left"
    assert (env.s("more", 7) | graph({"p": env.s("more")}) | env.s("more"))().get() == [{"p": [[7]]}]
    assert env.s("replaced").delay().get() == DIAMOND
    assert (env.s("replaced") | env.s("more"))().get() == [DIAMOND]
    call = env.s("replaced")
    call.link(env.s("notified"))
    assert call.delay().get() == DIAMOND
    assert env.notified == [DIAMOND]


def test_graph_result_and_nodes_can_be_awaited(env: Env) -> None:
    result = env.result_of(env.diamond())

    async def main() -> None:
        assert await result["top"] == TOP
        assert await result == DIAMOND

    asyncio.run(main())


def test_graph_result_methods(env: Env) -> None:
    result = env.result_of(env.diamond(right=env.s("fail", "right")))
    assert list(result) == ["top", "left", "right", "low"]
    assert len(result) == 4
    assert "low" in result
    assert (result.ready(), result.successful(), result.failed(), result.completed_count()) == (
        True, False, True, 2,
    )  # fmt: skip
    assert [child.id for child in result.tree().children] == [each.id for each in result.results]
    assert result.tree().state == "FAILURE"
    with pytest.raises(KeyError):
        result["nobody"]
    result.forget()
    assert result["top"].state == "PENDING"


# -- failures --


@pytest.mark.parametrize("how", ["fail", "revoked", "expired", "ignore"])
def test_dependants_of_a_failed_node_fail_and_errback_runs_once(any_env: Env, how: str) -> None:
    left = any_env.s("fail", "left") if how == "fail" else any_env.node("left")
    if how == "revoked":
        left.set(task_id="bad")
        any_env.app.control.revoke("bad")
    if how == "expired":
        left.set(expires="2001-01-01T00:00:00Z")
    if how == "ignore":
        left = any_env.s("ignore")
    flow = any_env.diamond(left=left)
    flow.link_error(any_env.s("notified"))
    result = any_env.result_of(flow)
    assert [each.state for _, each in result.items()][::3] == ["SUCCESS", "FAILURE"]
    with pytest.raises({"fail": ValueError, "ignore": ChordError}.get(how, TaskRevokedError)):
        result["low"].get(timeout=5)
    assert "low" not in any_env.ran
    assert any_env.notified == ([result["left"].id] if how == "fail" else [])
    assert any_env.app.backend.joins.count() == 0


def test_always_node_runs_after_a_failed_dependency(any_env: Env) -> None:
    result = any_env.result_of(any_env.diamond(["low"], left=any_env.s("fail", "left")))
    assert result["low"].get(timeout=5) == ["low", {"left": None, "right": RIGHT}]
    with pytest.raises(ValueError, match="left"):
        result.get(timeout=5)


def test_failed_node_fails_what_follows_the_graph(any_env: Env) -> None:
    more = any_env.s("more")
    result = any_env.result_of(any_env.diamond(top=any_env.s("fail", "top")) | more | more)
    for each in (result, result.parent):
        with pytest.raises(ValueError, match="top"):
            each.get(timeout=5, follow_parents=False)
    assert any_env.app.backend.joins.count() == 0


def test_node_that_does_not_accept_the_values_fails(env: Env) -> None:
    result = env.result_of(env.diamond(low=env.s("more")))
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        result["low"].get(timeout=5)


def test_dependency_with_ignored_result_is_refused(env: Env) -> None:
    with pytest.raises(PublishError, match=r"result of forgotten is ignored.*graph"):
        env.diamond(top=env.s("forgotten"))()


def test_graph_without_a_store_for_joins_is_refused() -> None:
    env = Env(results="disabled://")
    with pytest.raises(NotSupported):
        env.diamond()()
    env.app.close()


# -- refused --

S = {"task": "node", "args": ["x"]}
LINE = {f"n{number}": S for number in range(10_000)}


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({}, "a graph cannot be made of None"),
        ({"nodes": {}}, "a graph cannot be made of {}"),
        ({"nodes": [S]}, "expected signatures by name"),
        ({"nodes": {"a": 7}}, "node( a)? of a graph is 7, not a signature"),
        ({"nodes": {"a": {"task": 7}}}, "not a signature"),
        ({"nodes": {"a": {**S, "kwargs": 7}}}, "not a mapping"),
        ({"nodes": {"two words": S}}, "a node of a graph is named 'two words'"),
        ({"nodes": {"class": S}}, "named 'class'"),
        ({"nodes": {"a" * 101: S}}, "at most 100 characters"),
        ({"nodes": {"a": S}, "after": 7}, "after=7"),
        ({"nodes": {"a": S}, "after": {"a": 7}}, "expected a list of names"),
        ({"nodes": {"a": S}, "after": {"b": ["a"]}}, "after in a graph names 'b', but there is no such node"),
        ({"nodes": {"abc": S}, "after": {"abc": ["abd"]}}, "Did you mean abc"),
        ({"nodes": {"a": S}, "after": {"a": [["a"]]}}, "there is no such node"),
        ({"nodes": {"a": S, "b": S}, "after": {"a": {"two words": "b"}}}, "an argument of node a"),
        ({"nodes": {"a": S}, "after": {"a": ["a"]}}, "in a cycle: a after a"),
        (
            {"nodes": dict.fromkeys("abcd", S), "after": {"d": "c", "a": "b", "b": "c", "c": "a"}},
            "in a cycle: c after a after b after c",
        ),
        ({"nodes": {"a": S}, "always": 7}, "always=7"),
        ({"nodes": {"a": S}, "always": ["b"]}, "always in a graph names 'b'"),
        (
            {"nodes": LINE, "after": {f"n{number}": "n0" for number in range(1, 2000)}},
            "1999 nodes of a graph wait for n0",
        ),
        (
            {"nodes": LINE, "after": {f"n{n}": f"n{(n + 1) % 10_000}" for n in range(10_000)}},
            "in a cycle: .* … after n0",
        ),
        ({"nodes": LINE, "after": {"n1": ["m1"]}}, "there is no such node"),
    ],
)  # fmt: skip
def test_invalid_graph_is_refused(kwargs: Any, why: str) -> None:
    fields = {"task": "qworker.graph", "kwargs": kwargs, "subtask_type": "graph"}
    with pytest.raises(PublishError, match=why) as raised:
        plan(fields, shared=True)
    assert len(str(raised.value)) < 500
    if set(kwargs) >= {"nodes"}:
        with pytest.raises(PublishError, match=why):
            graph(**kwargs)


def test_deeply_nested_graphs_are_refused() -> None:
    fields: Any = S
    for _ in range(10_000):
        fields = {"task": "qworker.graph", "kwargs": {"nodes": {"a": fields}}, "subtask_type": "graph"}
    with pytest.raises(PublishError, match="nested more than"):
        plan(fields, shared=True)


def test_invalid_graph_in_a_chain_does_not_stop_the_worker(env: Env) -> None:
    bad = {"task": "qworker.graph", "kwargs": {"nodes": 7}, "subtask_type": "graph"}
    with StepWorker(env.app) as worker:
        result = env.app.send_task("more", (1,), chain=[bad])
        worker.run()
        assert result.state == "FAILURE"
        other = env.app.send_task("more", (1,))
        worker.run()
        assert other.get(timeout=5) == [1]


def test_large_graphs_can_be_planned() -> None:
    row = graph(LINE, after={f"n{number}": [f"n{number - 1}"] for number in range(1, 10_000)})
    made = plan(row, shared=True)
    assert (len(made.joins), len(made.calls), made.joins[-1].terms) == (9999, 1, 9999)
    wide = graph(LINE, after={f"n{number}": ["n0"] for number in range(1, MAX_DEPENDANTS + 1)})
    assert len(plan(wide, shared=True).calls) == 10_000 - MAX_DEPENDANTS


# -- compared with an oracle --


class Drawn:
    """A random graph: kinds and edges of nodes, and the nodes that always run."""

    def __init__(self, kinds: list[str], edges: list[set[int]], always: set[int]) -> None:
        self.kinds = kinds
        self.edges = edges
        self.always = always

    def __repr__(self) -> str:
        return f"Drawn({self.kinds}, {self.edges}, {self.always})"

    def made(self, env: Env) -> Any:
        return graph(
            {f"n{number}": self._node(env, number) for number in range(len(self.kinds))},
            after={
                f"n{number}": [f"n{each}" for each in sorted(edges)]
                for number, edges in enumerate(self.edges)
            },
            always=[f"n{number}" for number in sorted(self.always)],
        )

    def _node(self, env: Env, number: int) -> Any:
        name, kind = f"n{number}", self.kinds[number]
        if kind == "fail":
            return env.s("fail", name)
        one = env.node(name)
        if kind == "chain":
            return one | env.s("more")
        if kind == "group":
            return group(one, env.s("more", name).set(immutable=True))
        if kind == "chord":
            return group(one) | env.s("more") if number % 2 else chord([one], env.s("more"))
        return one.set(immutable=True) if kind == "immutable" else one

    def expected(self) -> tuple[dict[str, Any], set[str]]:
        """Return the value of each node (None if it fails or does not run), and the nodes that run."""
        values: dict[str, Any] = {}
        ran: set[str] = set()
        failed: set[str] = set()
        for number, (kind, edges) in enumerate(zip(self.kinds, self.edges, strict=True)):
            name = f"n{number}"
            wanted = [f"n{each}" for each in sorted(edges)]
            if failed & set(wanted) and number not in self.always:
                failed.add(name)
                continue
            ran.add(name)
            if kind == "fail":
                failed.add(name)
                continue
            given = {} if kind == "immutable" else {each: values.get(each) for each in sorted(wanted)}
            value: Any = [name, given]
            values[name] = {
                "chain": [value], "group": [value, [name]], "chord": [[value]],
            }.get(kind, value)  # fmt: skip
        return {f"n{number}": values.get(f"n{number}") for number in range(len(self.kinds))}, ran


@st.composite
def drawn(draw: Any) -> Drawn:
    size = draw(st.integers(1, 8))
    kinds = draw(
        st.lists(
            st.sampled_from(["plain", "plain", "fail", "chain", "group", "chord", "immutable"]),
            min_size=size, max_size=size,
        )
    )  # fmt: skip
    edges = [
        set(draw(st.lists(st.integers(0, number - 1), max_size=3))) if number else set()
        for number in range(size)
    ]
    return Drawn(kinds, edges, set(draw(st.lists(st.integers(0, size - 1), max_size=3))))


@given(drawn(), st.booleans())
@settings(max_examples=40)
def test_random_graphs_match_the_oracle(wanted: Drawn, eager: bool) -> None:
    env = Env(task_always_eager=eager)
    result = env.result_of(wanted.made(env))
    values, ran = wanted.expected()
    found = result.get(timeout=5, propagate=False)
    assert {name: None if isinstance(each, Exception) else each for name, each in found.items()} == values
    assert Counter(env.ran) == Counter(ran)
    place = {name: number for number, name in enumerate(env.ran)}
    for number, edges in enumerate(wanted.edges):
        for each in edges:
            if f"n{number}" in ran and f"n{each}" in ran:
                assert place[f"n{each}"] < place[f"n{number}"]
    if not eager:
        assert env.app.backend.joins.count() == 0
    env.app.close()
