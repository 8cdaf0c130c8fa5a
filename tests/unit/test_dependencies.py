"""Dependency graphs: topological order at any depth, and dot output."""

from __future__ import annotations

import io
from typing import Any

import pytest

from qworker.errors import CycleError
from qworker.results.dependencies import DependencyGraph, GraphFormatter


def test_topsort_of_a_chain_of_thousands() -> None:
    graph = DependencyGraph((number, [number + 1]) for number in range(20_000))
    assert graph.topsort() == list(range(20_000, -1, -1))
    assert graph.valency_of(0) == 20_000
    assert len(repr(graph[0])) < 20


def test_topsort_of_a_cycle_is_refused() -> None:
    with pytest.raises(CycleError, match="depends on itself"):
        DependencyGraph([("a", ["b"]), ("b", ["c"]), ("c", ["b"])]).topsort()


class LabellingFormatter(GraphFormatter):
    graph_scheme = {"bgcolor": "black"}

    def label(self, obj: Any) -> Any:
        return f'the "{obj}"'


def test_formatter_sets_attributes_and_labels() -> None:
    graph = DependencyGraph(
        [("a", ["b"]), ("b", [])], LabellingFormatter(root="a", id="calls", indent=1, shape="oval")
    )
    written = io.StringIO()
    graph.to_dot(written)
    head, attributes, a, edge, b, tail = written.getvalue().splitlines()
    assert (head, tail) == ("    digraph calls {", "    }")
    assert 'bgcolor="black"' in attributes
    assert 'root="the \\"a\\""' in attributes
    assert a.startswith('        "the \\"a\\"" [shape="oval", ')
    assert edge.startswith('        "the \\"a\\"" -> "the \\"b\\"" [')
    assert (graph.format("b"), repr(graph)) == ('the "b"', "a(1): b\nb(0): -")
    assert "palegreen" in b
