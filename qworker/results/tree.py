"""Tree: a result with the results of its task's calls, recursively.

Comes from:  the methods of ``AsyncResult``, ``GroupResult`` and ``GraphResult``.
Goes to:     the result store, one read for each level.
Thread:      any.

A task's calls are known once it has ended, unless its option ``trail`` is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qworker import states
from qworker.contracts import App
from qworker.errors import DamagedResult, IncompleteStream

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Found, Meta
    from qworker.results.dependencies import DependencyGraph, GraphFormatter


class AnyResult(Protocol):
    """A result of any kind: of one call, a set, a group, or a graph."""

    _is_single: bool

    @property
    def app(self) -> App: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def parent(self) -> Any:
        """The Node before it; None if there is none."""

    @property
    def children(self) -> Sequence[Any]: ...
    def get(self, *args: Any, **kwargs: Any) -> Any: ...
    def ready(self) -> bool: ...
    def successful(self) -> bool: ...
    def failed(self) -> bool: ...
    def revoke(self, *args: Any, **kwargs: Any) -> None: ...
    def forget(self) -> None: ...
    def _singles(self) -> Iterator[Single]: ...


class Node(AnyResult, Protocol):
    """A result with an id: of one call, a group, or a graph."""

    @property
    def id(self) -> str: ...
    def __hash__(self) -> int: ...
    def as_tuple(self) -> Any: ...
    def _members_described(self) -> Any: ...


class Single(Node, Protocol):
    """The result of one call."""

    ignored: bool
    _meta: dict[str, Any] | None
    _promises: list[Any] | None
    _queue: str | None

    def keep(self, meta: dict[str, Any]) -> dict[str, Any]: ...
    def _is_stored(self) -> bool: ...
    def _final_meta(self) -> dict[str, Any] | None: ...
    def _value(self, meta: dict[str, Any], propagate: bool) -> Any: ...


DESCRIBED = 32
"""Maximum results of a line in a description, because each nests two levels deeper, and messages nest 200
levels at most."""


def iterdeps(result: Node, intermediate: bool) -> Iterator[tuple[Node | None, Node]]:
    """See ``AsyncResult.iterdeps``."""
    level: list[tuple[Node | None, Node]] = [(None, result)]
    while level:
        _look([single for _, node in level for single in node._singles()])
        below: list[tuple[Node | None, Node]] = []
        for parent, node in level:
            yield parent, node
            if node.ready():  # the consumer may have waited for this one
                below.extend((node, child) for child in node.children)
            elif not intermediate:
                raise IncompleteStream(
                    f"task {node.id} has not ended, so the calls that it makes are not known yet"
                )
        level = below


def _look(results: Sequence[Single]) -> None:
    """Read the *results* not known to have ended, in one read, and keep the final ones."""
    unknown = [each for each in results if each._meta is None and not each.ignored]
    if len(unknown) < 2:
        return  # a single one is read on use
    found = unknown[0].backend.read_many([each.id for each in unknown])
    for each in unknown:
        meta = found.get(each.id)
        if isinstance(meta, dict) and meta["status"] in states.READY_STATES:
            each.keep(meta)


def build_graph(result: Node, intermediate: bool, formatter: GraphFormatter | None) -> DependencyGraph[Node]:
    """See ``AsyncResult.build_graph``."""
    from qworker.results.dependencies import DependencyGraph, GraphFormatter

    graph: DependencyGraph[Node] = DependencyGraph(
        formatter=formatter or GraphFormatter(root=result.id, shape="oval")
    )
    for parent, node in iterdeps(result, intermediate):
        graph.add_arc(node)
        if parent is not None:
            graph.add_edge(parent, node)
    return graph


def collect(result: Node, intermediate: bool, options: Mapping[str, Any]) -> Iterator[tuple[Node, Any]]:
    """See ``AsyncResult.collect``."""
    for _, node in iterdeps(result, intermediate):
        yield node, node.get(**options)


def get_leaf(result: Node) -> Any:
    """See ``AsyncResult.get_leaf``."""
    value = None
    for _, each in collect(result, False, {}):
        value = each
    return value


class ResultTree(NamedTuple):
    """A result and those of its task's calls, as far as known.

    - name: of the task, if ``result_extended`` is on; None for a group, and if unknown.
    - state: for a group, FAILURE if a member failed, SUCCESS if all returned, PENDING if none has a state,
      else STARTED.
    """

    id: str
    name: str | None
    state: str
    children: tuple[ResultTree, ...]


def tree_of(result: Node) -> ResultTree:
    """See ``AsyncResult.tree``."""
    met = {result.id}
    nodes: list[tuple[Node, Meta, list[str]]] = []
    level: list[Any] = [result]
    while level:
        unknown = [node.id for node in level if node._is_single and node._meta is None and not node.ignored]
        found = result.backend.get_many(unknown) if unknown else {}
        below: list[Any] = []
        for node in level:
            meta = (node._meta or found.get(node.id) or {}) if node._is_single else {}
            if meta and meta["status"] in states.READY_STATES:
                node.keep(meta)
            known = meta.get("status") in states.READY_STATES or not node._is_single
            new = {child.id: child for child in (node.children if known else ()) if child.id not in met}
            met.update(new)
            below.extend(new.values())
            nodes.append((node, meta, list(new)))
        level = below
    made: dict[str, ResultTree] = {}
    for node, meta, ids in reversed(nodes):  # descendants come later in the list
        children = tuple(made.pop(each) for each in ids)
        state = (
            meta.get("status", states.PENDING)
            if node._is_single
            else state_of_many(child.state for child in children)
        )
        made[node.id] = ResultTree(node.id, meta.get("name"), state, children)
    return made[result.id]


def state_of_many(members: Iterable[str]) -> str:
    """Return the state of a group from those of its *members*; ignored results do not count."""
    found = set(members) - {states.IGNORED}
    if found & states.PROPAGATE_STATES:
        return states.FAILURE
    if found <= {states.SUCCESS, states.PENDING} and len(found) < 2:
        return next(iter(found), states.SUCCESS)
    return states.STARTED


# -- predecessors --


def line(result: AnyResult) -> Iterator[Node]:
    """Yield *result* and its predecessors, nearest first."""
    node: Any = result
    while node is not None:
        yield node
        node = node.parent


def singles_before(result: Node) -> list[Single]:
    """Return the results of the single calls before *result*, including those in groups, nearest first."""
    return [single for node in line(result) if node is not result for single in node._singles()]


def unknown_before(result: Node) -> list[str]:
    """Return the ids of the single calls before *result* that are not known to have ended."""
    return [each.id for each in singles_before(result) if each._meta is None and not each.ignored]


def raise_of_parents(result: Node, found: Mapping[str, Found]) -> None:
    """Raise the exception of the first failed predecessor of *result*, if any. Unreadable ones are skipped,
    because their values were not requested.

    found: the stored results for unknown_before().
    """
    for parent in reversed(singles_before(result)):
        meta = None if parent.ignored else parent._meta or found.get(parent.id)
        if meta is not None and not isinstance(meta, DamagedResult) and meta["status"] in states.READY_STATES:
            parent._value(parent.keep(meta), True)


def described(result: Node) -> Any:
    """See ``AsyncResult.as_tuple``."""
    nested: Any = None
    for node in reversed(list(islice(line(result), DESCRIBED))):
        nested = (node.id, nested), node._members_described()
    return nested


def ids_of_line(result: Node) -> list[str]:
    """See ``AsyncResult.as_list``."""
    return [node.id for node in line(result)]


def _of_the_workflow(result: AnyResult) -> list[Single]:
    """Return the results of the single calls in *result*, before it, and before each of its members, also of
    groups in groups."""
    met: dict[int, Any] = {}
    unseen: list[Any] = [result]
    while unseen:
        node = unseen.pop()
        if node is not None and id(node) not in met:  # members may share predecessors
            met[id(node)] = node
            unseen.extend((node.parent, *(() if node._is_single else reversed(node.children))))
    return [node for node in met.values() if node._is_single]


def revoke_workflow(
    result: AnyResult, connection: Any, terminate: bool, signal: str | int | None, wait: bool, timeout: Any
) -> None:
    """Cancel all calls of the workflow with *result*, except those known here to have ended, with one command
    to all workers. See AsyncResult.revoke()."""
    ids = list(dict.fromkeys(each.id for each in _of_the_workflow(result) if each._meta is None))
    if ids:
        result.app.control.revoke(
            ids if len(ids) > 1 else ids[0],
            terminate=terminate,
            signal="SIGTERM" if signal is None else signal,
            connection=connection,
            reply=wait,
            timeout=timeout,
        )


def forget_line(result: AnyResult) -> None:
    """See ``AsyncResult.forget``."""
    stored = [single for single in _of_the_workflow(result) if single._is_stored()]
    for single in stored:
        single._meta = None
    if not stored:
        return
    backend = result.backend
    backend.forget_many({single.id: None for single in stored})
    if result.parent is not None and backend.supports_locks:
        from qworker.results import outline

        for before in line(result):
            if before is result or not before._is_single:
                outline.forget(backend, before.id)
