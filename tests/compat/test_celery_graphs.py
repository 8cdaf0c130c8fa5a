"""Graphs of results compared with Celery's, from the same stored results."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

from celery.exceptions import IncompleteStream as CelerysIncompleteStream
from celery.utils.graph import DependencyGraph as CelerysGraph
from celery.utils.graph import GraphFormatter as CelerysFormatter

from qworker.errors import IncompleteStream
from qworker.results.dependencies import DependencyGraph, GraphFormatter
from tests.support.beside_celery import Pair

pytestmark = pytest.mark.compat

EDGES = [("a", ["b", "c"]), ("b", ["d"]), ("c", ["d"]), ("d", []), ("e", [])]


def apps(path: Path) -> Pair:
    """Celery's app and ours with the same result directory: a called b and the group of c and d, b called
    e."""
    pair = Pair(broker_url="memory://", result_backend=f"file://{path}")
    store = pair.ours.backend
    group = (("g", None), [(("c", None), None), (("d", None), None)])
    called = {"a": [(("b", None), None), group], "b": [(("e", None), None)]}
    for each in "abcde":
        store.store(each, store.meta(each, "SUCCESS", 1, children=called.get(each, [])))
    return pair


def adjacency(graph: Any) -> dict[str, list[str]]:
    return {node.id: [each.id for each in others] for node, others in graph.items()}


def test_result_graph_equals_celerys(tmp_path: Path) -> None:
    pair = apps(tmp_path)
    mine, others = pair.ours.AsyncResult("a").graph, pair.theirs.AsyncResult("a").graph
    assert adjacency(mine) == adjacency(others)
    assert [each.id for each in mine.topsort()][-1] == "a"
    assert {each.id for each in mine.edges()} == {each.id for each in others.edges()}


def test_unfinished_result_has_no_graph_unless_intermediate(tmp_path: Path) -> None:
    pair = apps(tmp_path)
    for app, error in ((pair.theirs, CelerysIncompleteStream), (pair.ours, IncompleteStream)):
        result = app.AsyncResult("unknown")
        with pytest.raises(error):
            _ = result.graph
        assert adjacency(result.build_graph(intermediate=True)) == {"unknown": []}


@pytest.mark.parametrize("ask", [
    len, list, "b".__eq__, lambda graph: graph["a"], lambda graph: "d" in graph,
    lambda graph: [graph.valency_of(each) for each in [*graph, "nobody"]],
    lambda graph: [list(graph.edges()), list(graph.items()), list(graph.iteritems())],
    lambda graph: graph.adjacent,
])  # fmt: skip
def test_graph_methods_return_the_same(ask: Any) -> None:
    assert ask(DependencyGraph(EDGES)) == ask(CelerysGraph(EDGES))


def change(graph: Any, other: Any) -> dict[str, list[str]]:
    graph.add_arc("x")
    graph.add_arc("a")
    graph.add_edge("x", "a")
    other.add_arc("x")
    graph.connect(other)
    graph.update([("x", ["e"]), ("y", ["x"])])
    with pytest.raises(KeyError):
        graph.add_edge("nobody", "a")
    return graph.adjacent  # type: ignore[no-any-return]


def test_graph_changes_have_the_same_effect() -> None:
    ours = change(DependencyGraph(EDGES), DependencyGraph())
    assert ours == change(CelerysGraph(EDGES), CelerysGraph())


@pytest.mark.parametrize("kind", [DependencyGraph, CelerysGraph])
def test_topsort_puts_nodes_after_their_dependencies(kind: Any) -> None:
    order = kind(EDGES).topsort()
    assert sorted(order) == list("abcde")
    assert all(order.index(other) < order.index(node) for node, others in EDGES for other in others)


def drawn(graph: Any, formatter: Any = None) -> tuple[set[str], set[tuple[str, ...]]]:
    """The nodes and edges in the dot output of a graph."""
    written = io.StringIO()
    graph.to_dot(written, formatter)
    nodes = set(re.findall(r'^ *"(\w+)" \[', written.getvalue(), re.MULTILINE))
    return nodes, set(re.findall(r'"(\w+)" (->|--) "(\w+)"', written.getvalue()))


def test_dot_output_has_the_same_nodes_and_edges() -> None:
    ours, theirs = DependencyGraph(EDGES), CelerysGraph(EDGES)
    assert drawn(ours) == drawn(theirs)
    for one, other in ((ours, CelerysFormatter()), (theirs, CelerysFormatter())):
        assert drawn(one, other) == drawn(theirs)
    plain = drawn(ours, GraphFormatter(type="graph"))
    assert plain == drawn(theirs, CelerysFormatter(type="graph"))
