"""Graphs in a worker that is stepped: their values and failures, also beside an oracle in plain Python."""

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

from qworker import GraphResult, Ignore, QWorker, chord, graph, group
from qworker.canvas.graphs import MAX_DEPENDANTS
from qworker.canvas.plan import plan
from qworker.canvas.signatures import signature
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import ChordError, NotSupported, PublishError, TaskRevokedError
from qworker.testing import FakeClock, MemoryStore, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


class House:
    """An app whose messages are in memory, or at *broker*. ran: the nodes that were called, in order.
    told: the ids of failed calls whose errback was called."""

    def __init__(self, broker: str | None = None, results: str = "cache+memory://", **conf: Any) -> None:
        # Redis has a clock of its own.
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
        self.told: list[str] = []
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

        @task(name="told", bind=True)
        def told(this: Any, failed: str) -> None:
            self.told.append(failed)

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
        """Four nodes, of which the last waits for both in the middle."""
        return graph(
            {name: nodes.get(name) or self.node(name) for name in ("top", "left", "right", "low")},
            after={"left": ["top"], "right": {"upper": "top"}, "low": ["left", "right"]},
            always=always,
            app=self.app,
        )

    def ended(self, flow: Any) -> Any:
        """The result of *flow*, after a worker has run all that there is."""
        with StepWorker(self.app) as worker:
            result = flow()
            worker.run()
            return result


TOP = ["top", {}]
LEFT, RIGHT = ["left", {"top": TOP}], ["right", {"upper": TOP}]
DIAMOND = {"top": TOP, "left": LEFT, "right": RIGHT, "low": ["low", {"left": LEFT, "right": RIGHT}]}


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.app.close()


@pytest.fixture(params=["sqlite", "sql", "redis", "files", "memory"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
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
    house = House(broker, results, **conf)
    yield house
    house.app.close()


# -- values --


def test_a_node_gets_the_values_of_those_that_it_waits_for_by_name(anywhere: House) -> None:
    result = anywhere.ended(anywhere.diamond())
    assert isinstance(result, GraphResult)
    assert result.get(timeout=5) == DIAMOND
    assert result["low"].get(timeout=5) == DIAMOND["low"]
    assert sorted(anywhere.ran) == ["left", "low", "right", "top"]
    assert anywhere.app.backend.joins.count() == 0


@pytest.mark.parametrize("kind", ["chain", "group", "chord", "graph"])
def test_a_node_may_be_any_workflow(anywhere: House, kind: str) -> None:
    one, two, more = anywhere.node("left"), anywhere.s("node", "two"), anywhere.s("more")
    left, value = {
        "chain": (one | more, [LEFT]),
        "group": (group(one, two), [LEFT, ["two", {"top": TOP}]]),
        "chord": (group(one, two) | more, [[LEFT, ["two", {"top": TOP}]]]),
        "graph": (
            graph({"left": one, "two": two}, after={"two": ["left"]}),
            {"left": LEFT, "two": ["two", {"left": LEFT}]},
        ),
    }[kind]
    result = anywhere.ended(anywhere.diamond(left=left))
    assert result.get(timeout=5) == {
        **DIAMOND,
        "left": value,
        "low": ["low", {"left": value, "right": RIGHT}],
    }


def test_a_graph_is_one_step_of_a_chain_a_chord_and_a_group(anywhere: House) -> None:
    more, inner = anywhere.s("more"), graph({"p": anywhere.node("p"), "q": anywhere.node("q")}, {"q": ["p"]})
    value = {"p": ["p", {}], "q": ["q", {"p": ["p", {}]}]}
    assert anywhere.ended(inner | more | more).get(timeout=5) == [[value]]
    assert anywhere.ended(chord([inner, anywhere.s("more", 1)], more)).get(timeout=5) == [[value, [1]]]
    several = anywhere.ended(group(inner, anywhere.s("more", 2)))
    assert several[0].get(timeout=5) == value
    assert several.get(timeout=5) == several.get(timeout=5, propagate=False) == [value, [2]]
    assert (several.ready(), several.successful(), several.completed_count()) == (True, True, 2)
    last = graph({"p": anywhere.s("more"), "q": anywhere.node("q")}, {"q": ["p"]})
    result = anywhere.ended(anywhere.s("more", 7) | last)
    assert result.get(timeout=5) == {"p": [[7]], "q": ["q", {"p": [[7]]}]}
    assert result.parent.get(timeout=5) == [7]
    assert anywhere.ended(chord([anywhere.s("more", 7)], last)).get(timeout=5)["p"] == [[[7]]]
    assert anywhere.app.backend.joins.count() == 0


def test_arguments_of_the_call_are_for_the_nodes_that_wait_for_nothing(house: House) -> None:
    first = graph({"a": house.node("a"), "b": house.s("more"), "c": house.node("c")}, {"c": ["b"]})
    with StepWorker(house.app) as worker:
        result = first.delay("x")
        worker.run()
    assert result.get(timeout=5) == {"a": ["x", "a", {}], "b": ["x"], "c": ["c", {"b": ["x"]}]}


def test_an_immutable_node_waits_and_gets_no_value(house: House) -> None:
    last = house.app.signature("node", ("low",), immutable=True)
    ignored = house.s("forgotten")
    flow = graph({"a": house.node("a"), "b": ignored, "low": last}, {"low": ["a", "b"]})
    assert house.ended(flow)["low"].get(timeout=5) == ["low", {}]
    assert house.ran == ["a", "low"]


def test_a_graph_may_be_called_from_a_task_and_described_by_a_dict(house: House) -> None:
    identity = house.ended(house.s("caller").delay).get(timeout=5)
    assert isinstance(identity, str)
    assert len(house.ran) == 4
    fields = json.loads(json.dumps(house.diamond()))
    assert house.ended(signature(fields, app=house.app)).get(timeout=5) == DIAMOND


def test_options_are_those_of_every_node(house: House) -> None:
    with StepWorker(house.app, queues=["far"]) as worker:
        result = house.diamond().apply_async(queue="far", headers={"mine": 1})
        worker.run()
    assert result.get(timeout=5) == DIAMOND


def test_eager_mode_has_the_same_values(house: House) -> None:
    house.app.conf.task_always_eager = True
    assert house.diamond()().get() == DIAMOND
    flow = house.diamond(left=house.s("fail", "left"), always="low")
    result = flow()
    assert result["low"].get() == ["low", {"left": None, "right": RIGHT}]
    assert str(result.get(propagate=False)["left"]) == "left"
    assert (house.s("more", 7) | graph({"p": house.s("more")}) | house.s("more"))().get() == [{"p": [[7]]}]
    assert house.s("replaced").delay().get() == DIAMOND
    assert (house.s("replaced") | house.s("more"))().get() == [DIAMOND]
    call = house.s("replaced")
    call.link(house.s("told"))
    assert call.delay().get() == DIAMOND
    assert house.told == [DIAMOND]


def test_a_result_can_be_awaited_by_name_and_as_a_whole(house: House) -> None:
    result = house.ended(house.diamond())

    async def main() -> None:
        assert await result["top"] == TOP
        assert await result == DIAMOND

    asyncio.run(main())


def test_what_a_result_tells(house: House) -> None:
    result = house.ended(house.diamond(right=house.s("fail", "right")))
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
def test_what_waits_for_a_node_that_fails_fails_along_and_the_error_is_told_once(
    anywhere: House, how: str
) -> None:
    left = anywhere.s("fail", "left") if how == "fail" else anywhere.node("left")
    if how == "revoked":
        left.set(task_id="bad")
        anywhere.app.control.revoke("bad")
    if how == "expired":
        left.set(expires="2001-01-01T00:00:00Z")
    if how == "ignore":
        left = anywhere.s("ignore")
    flow = anywhere.diamond(left=left)
    flow.link_error(anywhere.s("told"))
    result = anywhere.ended(flow)
    assert [each.state for _, each in result.items()][::3] == ["SUCCESS", "FAILURE"]
    with pytest.raises({"fail": ValueError, "ignore": ChordError}.get(how, TaskRevokedError)):
        result["low"].get(timeout=5)
    assert "low" not in anywhere.ran
    assert anywhere.told == ([result["left"].id] if how == "fail" else [])
    assert anywhere.app.backend.joins.count() == 0


def test_a_node_may_run_although_one_that_it_waits_for_has_failed(anywhere: House) -> None:
    result = anywhere.ended(anywhere.diamond(["low"], left=anywhere.s("fail", "left")))
    assert result["low"].get(timeout=5) == ["low", {"left": None, "right": RIGHT}]
    with pytest.raises(ValueError, match="left"):
        result.get(timeout=5)


def test_a_node_that_fails_ends_what_follows_the_graph(anywhere: House) -> None:
    more = anywhere.s("more")
    result = anywhere.ended(anywhere.diamond(top=anywhere.s("fail", "top")) | more | more)
    for each in (result, result.parent):
        with pytest.raises(ValueError, match="top"):
            each.get(timeout=5, follow_parents=False)
    assert anywhere.app.backend.joins.count() == 0


def test_a_node_that_does_not_take_the_values_fails(house: House) -> None:
    result = house.ended(house.diamond(low=house.s("more")))
    with pytest.raises(ChordError, match="unexpected keyword argument"):
        result["low"].get(timeout=5)


def test_a_value_that_nobody_keeps_is_refused_where_the_graph_is_called(house: House) -> None:
    with pytest.raises(PublishError, match=r"result of forgotten is ignored.*graph"):
        house.diamond(top=house.s("forgotten"))()


def test_without_joins_a_graph_is_refused_in_a_sentence() -> None:
    house = House(results="disabled://")
    with pytest.raises(NotSupported):
        house.diamond()()
    house.app.close()


# -- refused --

S = {"task": "node", "args": ["x"]}
LINE = {f"n{number}": S for number in range(10_000)}


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({}, "a graph is made of None"),
        ({"nodes": {}}, "a graph is made of {}"),
        ({"nodes": [S]}, "expected signatures by their names"),
        ({"nodes": {"a": 7}}, "node( a)? of a graph is 7, not a signature"),
        ({"nodes": {"a": {"task": 7}}}, "not a signature"),
        ({"nodes": {"a": {**S, "kwargs": 7}}}, "not a mapping"),
        ({"nodes": {"two words": S}}, "a node of a graph is called 'two words'"),
        ({"nodes": {"class": S}}, "called 'class'"),
        ({"nodes": {"a" * 101: S}}, "at most 100 characters"),
        ({"nodes": {"a": S}, "after": 7}, "after=7"),
        ({"nodes": {"a": S}, "after": {"a": 7}}, "expected a list of names"),
        ({"nodes": {"a": S}, "after": {"b": ["a"]}}, "after in a graph names 'b', and there is no such node"),
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
def test_a_dict_that_is_no_graph_is_refused_in_one_message(kwargs: Any, why: str) -> None:
    fields = {"task": "qworker.graph", "kwargs": kwargs, "subtask_type": "graph"}
    with pytest.raises(PublishError, match=why) as raised:
        plan(fields, shared=True)
    assert len(str(raised.value)) < 500
    if set(kwargs) >= {"nodes"}:
        with pytest.raises(PublishError, match=why):
            graph(**kwargs)


def test_graphs_in_each_other_without_end_are_refused() -> None:
    fields: Any = S
    for _ in range(10_000):
        fields = {"task": "qworker.graph", "kwargs": {"nodes": {"a": fields}}, "subtask_type": "graph"}
    with pytest.raises(PublishError, match="nested more than"):
        plan(fields, shared=True)


def test_a_message_whose_chain_has_no_graph_costs_no_worker(house: House) -> None:
    bad = {"task": "qworker.graph", "kwargs": {"nodes": 7}, "subtask_type": "graph"}
    with StepWorker(house.app) as worker:
        result = house.app.send_task("more", (1,), chain=[bad])
        worker.run()
        assert result.state == "FAILURE"
        other = house.app.send_task("more", (1,))
        worker.run()
        assert other.get(timeout=5) == [1]


def test_a_graph_of_ten_thousand_nodes_in_a_row_and_beside_each_other_is_planned() -> None:
    row = graph(LINE, after={f"n{number}": [f"n{number - 1}"] for number in range(1, 10_000)})
    made = plan(row, shared=True)
    assert (len(made.joins), len(made.calls), made.joins[-1].terms) == (9999, 1, 9999)
    wide = graph(LINE, after={f"n{number}": ["n0"] for number in range(1, MAX_DEPENDANTS + 1)})
    assert len(plan(wide, shared=True).calls) == 10_000 - MAX_DEPENDANTS


# -- beside an oracle --


class Drawn:
    """A graph as it was drawn: kinds, edges and choices, by node."""

    def __init__(self, kinds: list[str], edges: list[set[int]], always: set[int]) -> None:
        self.kinds = kinds
        self.edges = edges
        self.always = always

    def __repr__(self) -> str:
        return f"Drawn({self.kinds}, {self.edges}, {self.always})"

    def made(self, house: House) -> Any:
        return graph(
            {f"n{number}": self._node(house, number) for number in range(len(self.kinds))},
            after={
                f"n{number}": [f"n{each}" for each in sorted(edges)]
                for number, edges in enumerate(self.edges)
            },
            always=[f"n{number}" for number in sorted(self.always)],
        )

    def _node(self, house: House, number: int) -> Any:
        name, kind = f"n{number}", self.kinds[number]
        if kind == "fail":
            return house.s("fail", name)
        one = house.node(name)
        if kind == "chain":
            return one | house.s("more")
        if kind == "group":
            return group(one, house.s("more", name).set(immutable=True))
        if kind == "chord":
            return group(one) | house.s("more") if number % 2 else chord([one], house.s("more"))
        return one.set(immutable=True) if kind == "immutable" else one

    def expected(self) -> tuple[dict[str, Any], set[str]]:
        """The value of each node, None of one that fails or does not run; and which run."""
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
def test_random_graphs_have_the_values_of_the_oracle(wanted: Drawn, eager: bool) -> None:
    house = House(task_always_eager=eager)
    result = house.ended(wanted.made(house))
    values, ran = wanted.expected()
    found = result.get(timeout=5, propagate=False)
    assert {name: None if isinstance(each, Exception) else each for name, each in found.items()} == values
    assert Counter(house.ran) == Counter(ran)
    place = {name: number for number, name in enumerate(house.ran)}
    for number, edges in enumerate(wanted.edges):
        for each in edges:
            if f"n{number}" in ran and f"n{each}" in ran:
                assert place[f"n{each}"] < place[f"n{number}"]
    if not eager:
        assert house.app.backend.joins.count() == 0
    house.app.close()
