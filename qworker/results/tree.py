"""Result tree: a result with the results of the calls its task made, and of theirs.

Comes from:  ``AsyncResult``, of which these are methods.
Goes to:     the result store, once for every result that is looked at.
Thread:      any.

A task's calls are known once it has ended (its option ``trail`` is on by default).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qworker.errors import IncompleteStream

if TYPE_CHECKING:
    from qworker.results.result import AsyncResult


def iterdeps(
    result: AsyncResult[Any], intermediate: bool = False
) -> Iterator[tuple[AsyncResult[Any] | None, AsyncResult[Any]]]:
    """Go through the tree, level by level: ``(parent, result)`` for each, of which the first parent is None.

    intermediate: pass over the calls of what has not ended; else IncompleteStream is raised after such a
    result.
    """
    waiting: deque[tuple[AsyncResult[Any] | None, AsyncResult[Any]]] = deque([(None, result)])
    while waiting:
        parent, node = waiting.popleft()
        yield parent, node
        if node.ready():
            waiting.extend((node, child) for child in node.children)
        elif not intermediate:
            raise IncompleteStream(
                f"task {node.id} has not ended, so the calls that it makes are not known yet"
            )


def collect(
    result: AsyncResult[Any], intermediate: bool = False, **options: Any
) -> Iterator[tuple[AsyncResult[Any], Any]]:
    """Wait for each result of the tree in turn: ``(result, value)`` for each. options: as for get(), of
    each."""
    for _, node in iterdeps(result, intermediate):
        yield node, node.get(**options)


def get_leaf(result: AsyncResult[Any]) -> Any:
    """Wait for all results of the tree, and return the value of the last."""
    value = None
    for _, each in collect(result):
        value = each
    return value


def raise_of_parents(result: AsyncResult[Any]) -> None:
    """Raise the exception of a result before *result*, if one has failed; of the first, if several have."""
    parents, node = [], result.parent
    while node is not None:
        parents.append(node)
        node = node.parent
    for parent in reversed(parents):
        parent.maybe_throw()
