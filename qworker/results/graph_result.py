"""Graph result: the results of the nodes of a graph, by name.

Comes from:  a called graph, or user code that makes one from other results.
Goes to:     the result store, with one read for all nodes.
Thread:      any; one object may be shared.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from qworker.conf.unsupported import RESULT, unsupported
from qworker.contracts import App
from qworker.results import tree
from qworker.results.group_result import GroupResult
from qworker.results.result import AsyncResult
from qworker.results.tree import Node, ResultTree

if TYPE_CHECKING:
    from qworker import QWorker
    from qworker.backends.base import Backend


class GraphResult:
    """The results of the nodes of a graph; ``result["name"]`` is that of one node.

    ``result.get()`` returns the value of each node by name; ``await result`` does the same in asyncio.

    - id: of the graph.
    - parent: the result of the call before it.
    - members: the same results as a GroupResult, ordered by name, for its other methods.
    """

    __module__ = "qworker"

    __slots__ = ("__weakref__", "members", "names")

    def __init__(
        self,
        id: str,
        results: Mapping[str, AsyncResult[Any]],
        parent: Any = None,
        app: App | None = None,
    ) -> None:
        self.names = tuple(results)
        self.members: GroupResult[Any] = GroupResult(id, results.values(), parent, app)

    @property
    def id(self) -> str:
        """The id of the graph."""
        return self.members.id

    @property
    def parent(self) -> Any:
        """The result of the call before the graph; None if there is none."""
        return self.members.parent

    @parent.setter
    def parent(self, parent: Any) -> None:
        self.members.parent = parent

    @property
    def app(self) -> QWorker:
        """The app whose result store is used."""
        return self.members.app

    @property
    def backend(self) -> Backend:
        """The result store."""
        return self.members.backend

    @property
    def results(self) -> list[AsyncResult[Any]]:
        """The results of the nodes, ordered by name."""
        return self.members.results

    children = results

    # -- waiting --

    def get(
        self,
        timeout: float | timedelta | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        disable_sync_subtasks: bool = True,
    ) -> dict[str, Any]:
        """Wait until all nodes have ended; return the value of each by name.

        propagate: raise the exception of the first failed node as soon as it is known; False returns
        exceptions instead of values, also for nodes that did not run because another failed. Other arguments
        and errors are those of ResultSet.get().
        """
        values = self.members.get(timeout, propagate, interval, disable_sync_subtasks=disable_sync_subtasks)
        return dict(zip(self.names, values, strict=True))

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        """Wait without blocking the event loop; return the values or raise an exception like get()."""
        return self._await().__await__()

    async def _await(self) -> dict[str, Any]:
        return dict(zip(self.names, await self.members, strict=True))

    # -- state --

    def ready(self) -> bool:
        """Return whether all nodes have ended, successfully or not."""
        return self.members.ready()

    def waiting(self) -> bool:
        """Return whether any node has not ended."""
        return self.members.waiting()

    def successful(self) -> bool:
        """Return whether all nodes returned a value."""
        return self.members.successful()

    def failed(self) -> bool:
        """Return whether any node failed, or did not run because another failed."""
        return self.members.failed()

    def completed_count(self) -> int:
        """Return how many nodes returned a value."""
        return self.members.completed_count()

    # -- the calls of the nodes' tasks --

    def iterdeps(self, intermediate: bool = False) -> Iterator[tuple[Node | None, Node]]:
        """Iterate over the tree, level by level; see AsyncResult.iterdeps()."""
        return tree.iterdeps(self, intermediate)

    def collect(self, intermediate: bool = False, **options: Any) -> Iterator[tuple[Node, Any]]:
        """Wait for each result of the tree in turn; see AsyncResult.collect()."""
        return tree.collect(self, intermediate, options)

    def get_leaf(self) -> Any:
        """Wait for all results of the tree, and return the value of the last."""
        return tree.get_leaf(self)

    # -- actions --

    def forget(self) -> None:
        """Delete the stored results of the nodes and of the calls before the graph."""
        tree.forget_line(self)

    def revoke(
        self,
        connection: Any = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: Any = None,
    ) -> None:
        """Cancel all calls that have not run, including those before the graph. Arguments and errors are
        those of AsyncResult.revoke()."""
        self.members.revoke(connection, terminate, signal, wait, timeout)

    # -- description --

    def as_tuple(self) -> Any:
        """Return plain data, which result_from_tuple() converts to a GroupResult."""
        return tree.described(self)

    def as_list(self) -> list[str]:
        """Return its id and those of the results before it."""
        return tree.ids_of_line(self)

    def tree(self) -> ResultTree:
        """Return the nodes, each with the calls that its task made; see AsyncResult.tree()."""
        return tree.tree_of(self)

    _is_single = False

    def _values(self, propagate: bool) -> dict[str, Any]:
        return dict(zip(self.names, self.members._values(propagate), strict=True))

    def _singles(self) -> Iterator[AsyncResult[Any]]:
        return self.members._singles()

    def _members_described(self) -> list[Any]:
        return self.members._members_described()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported("GraphResult", name, RESULT)

    def __getitem__(self, name: str) -> AsyncResult[Any]:
        """Return the result of the node *name*. Raises KeyError if there is none."""
        try:
            return self.results[self.names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return self.names

    def items(self) -> list[tuple[str, AsyncResult[Any]]]:
        """Return the names of the nodes with their results."""
        return list(zip(self.names, self.results, strict=True))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GraphResult):
            return other.names == self.names and other.members == self.members
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<GraphResult: {self.id} [{', '.join(self.names):.1000}]>"

    def __reduce__(self) -> Any:
        return type(self), (self.id, dict(self.items()), self.parent)
