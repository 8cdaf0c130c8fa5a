"""Dependencies: graphs of results, which can be sorted and drawn.

Comes from:  ``AsyncResult.build_graph()``, for results and those of their tasks' calls.
Goes to:     the caller; Graphviz, through to_dot().
Thread:      any; pure.

The names are those of ``celery.utils.graph``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from qworker.errors import CycleError

T = TypeVar("T", bound=Hashable)


class Writable(Protocol):
    """Anything that accepts text."""

    def write(self, text: str, /) -> object: ...


class GraphFormatter:
    """Writes a graph for Graphviz: labels of nodes, and attributes of nodes and edges.

    Subclass it for other attributes (the mappings below) or labels (label()).
    """

    scheme: Mapping[str, object] = {"shape": "box", "style": "filled", "fontname": "sans-serif"}
    """Attributes of the graph, nodes and edges."""
    graph_scheme: ClassVar[Mapping[str, object]] = {"bgcolor": "white"}
    node_scheme: ClassVar[Mapping[str, object]] = {"fillcolor": "lightblue"}
    term_scheme: ClassVar[Mapping[str, object]] = {"fillcolor": "palegreen"}
    """Attributes of nodes without successors."""
    edge_scheme: ClassVar[Mapping[str, object]] = {"color": "gray40"}

    def __init__(
        self,
        root: Any = None,
        type: str | None = None,
        id: str | None = None,
        indent: int = 0,
        inw: str = "    ",
        **scheme: object,
    ) -> None:
        """root: the first node. type: "digraph" or "graph". id: the name of the drawing. indent: the number
        of *inw* before each line. scheme: additional attributes of the graph, nodes and edges."""
        self.root = root
        self.type = type or "digraph"
        self.direction = {"digraph": "->", "graph": "--"}[self.type]
        self.id = id or "dependencies"
        self._outer = inw * indent
        self._inner = self._outer + inw
        self.scheme = {**self.scheme, **scheme}

    def label(self, obj: Any) -> Any:
        """Return the label of *obj*."""
        return obj

    def attrs(self, own: Mapping[str, object] | None, scheme: Mapping[str, object] | None = None) -> str:
        """Return the common attributes, overridden by *scheme* and *own*, in Graphviz's syntax."""
        merged = {**self.scheme, **(scheme or {}), **(own or {})}
        return ", ".join(f"{name}={_quoted(value)}" for name, value in merged.items())

    def head(self, **attrs: object) -> str:
        """Return the first lines."""
        root = {} if self.root is None else {"root": self.label(self.root)}
        attributes = self.attrs({**root, **attrs}, self.graph_scheme)
        return f"{self._outer}{self.type} {self.id} {{\n{self._inner}graph [{attributes}]"

    def tail(self) -> str:
        """Return the last line."""
        return f"{self._outer}}}"

    def node(self, obj: Any, **attrs: object) -> str:
        """Return the line of a node with successors."""
        return self.draw_node(obj, self.node_scheme, attrs)

    def terminal_node(self, obj: Any, **attrs: object) -> str:
        """Return the line of a node without successors."""
        return self.draw_node(obj, self.term_scheme, attrs)

    def draw_node(self, obj: Any, scheme: Mapping[str, object], attrs: Mapping[str, object]) -> str:
        """Return the line of a node with these attributes."""
        return f"{self._inner}{_quoted(self.label(obj))} [{self.attrs(attrs, scheme)}]"

    def edge(self, a: Any, b: Any, **attrs: object) -> str:
        """Return the line of the edge from *a* to *b*."""
        ends = f"{_quoted(self.label(a))} {self.direction} {_quoted(self.label(b))}"
        return f"{self._inner}{ends} [{self.attrs(attrs, self.edge_scheme)}]"


class DependencyGraph(Generic[T]):
    """Nodes with their successors: ``graph[node]`` is the list of successors.

    Iteration yields the nodes in insertion order; ``items()`` yields nodes and successors.
    """

    def __init__(
        self, it: Iterable[tuple[T, Iterable[T]]] | None = None, formatter: GraphFormatter | None = None
    ) -> None:
        """it: nodes with their successors. formatter: for to_dot()."""
        self.formatter = formatter or GraphFormatter()
        self.adjacent: dict[T, list[T]] = {}
        if it is not None:
            self.update(it)

    def add_arc(self, obj: T) -> None:
        """Add a node, unless it exists."""
        self.adjacent.setdefault(obj, [])

    def add_edge(self, A: T, B: T) -> None:
        """Add an edge from *A* to *B*. Raises KeyError if *A* does not exist."""
        self.adjacent[A].append(B)

    def connect(self, graph: DependencyGraph[T]) -> None:
        """Add the nodes of another graph. A node in both has the successors of that graph."""
        self.adjacent.update(graph.adjacent)

    def update(self, it: Iterable[tuple[T, Iterable[T]]]) -> None:
        """Add nodes with their successors."""
        given = [(node, list(others)) for node, others in it]
        for node, _ in given:
            self.add_arc(node)
        for node, others in given:
            self.adjacent[node] += others

    def edges(self) -> Iterator[T]:
        """Iterate over the nodes with successors."""
        return (node for node, others in self.adjacent.items() if others)

    def items(self) -> Iterable[tuple[T, list[T]]]:
        """Return the nodes with their successors."""
        return self.adjacent.items()

    iteritems = items

    def topsort(self) -> list[T]:
        """Return the nodes, each after its successors. Raises CycleError for a graph with cycles."""
        done: dict[T, bool] = {}
        """By node: whether it and all its successors are in the order."""
        order: list[T] = []
        for start in self.adjacent:
            waiting = [start]
            while waiting:
                node = waiting[-1]
                if node not in done:
                    done[node] = False
                    for each in self.adjacent.get(node, ()):
                        if done.get(each) is False:
                            raise CycleError(f"circular dependency: {each} depends on itself through {node}")
                        if each not in done:
                            waiting.append(each)
                else:
                    waiting.pop()
                    if not done[node]:
                        done[node] = True
                        order.append(node)
        return order

    def valency_of(self, obj: T) -> int:
        """Return the number of edges on all paths from a node; 0 if it does not exist."""
        count = 0
        waiting = [obj]
        while waiting:
            others = self.adjacent.get(waiting.pop(), [])
            count += len(others)
            waiting += others
        return count

    def to_dot(self, fh: Writable, formatter: GraphFormatter | None = None) -> None:
        """Write it to the text file *fh* in the language of Graphviz."""
        draw = formatter or self.formatter
        drawn: set[Any] = set()
        lines: list[Any] = [draw.head()]
        for node, others in self.adjacent.items():
            label = draw.label(node)
            if label not in drawn:
                drawn.add(label)
                lines.append(draw.node(node) if others else draw.terminal_node(node))
            lines += (draw.edge(node, each) for each in others)
        lines.append(draw.tail())
        for line in lines:  # Celery's formatters return bytes
            fh.write(f"{line.decode() if isinstance(line, bytes) else line}\n")

    def format(self, obj: T) -> Any:
        """Return the label of *obj*."""
        return self.formatter.label(obj)

    def __iter__(self) -> Iterator[T]:
        return iter(self.adjacent)

    def __getitem__(self, node: T) -> list[T]:
        return self.adjacent[node]

    def __len__(self) -> int:
        return len(self.adjacent)

    def __contains__(self, obj: object) -> bool:
        return obj in self.adjacent

    def __repr__(self) -> str:
        return "\n".join(
            f"{node}({self.valency_of(node)}): {', '.join(map(str, others)) or '-'}"
            for node, others in self.adjacent.items()
        )


def _quoted(value: object) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
