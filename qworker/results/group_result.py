"""Group result: the results of the members of a group, which can be saved.

Comes from:  a called or saved group; the descriptions of a task's calls.
Goes to:     the result store.
Thread:      any; one object may be shared, except for changes of its members.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.context import get_current_app
from qworker.contracts import App
from qworker.results import tree
from qworker.results.result import AsyncResult, result_from_tuple
from qworker.results.several import R, ResultSet
from qworker.results.tree import ResultTree, Single

if TYPE_CHECKING:
    from qworker.backends.base import Backend

__all__ = ["GroupResult", "GroupResults", "ResultSet"]


class GroupResult(ResultSet[R]):
    """The results of the members of a group, with the id of the group.

    parent: the result of the call before the group.
    """

    __module__ = "qworker"

    __slots__ = ("id", "parent")

    def __init__(
        self,
        id: str,
        results: Iterable[AsyncResult[R]] = (),
        parent: Any = None,
        app: App | None = None,
    ) -> None:
        super().__init__(results, app)
        self.id = id
        self.parent = parent

    def _before(self) -> Iterable[Single]:
        return tree.singles_before(self)

    # -- saving --

    def save(self, backend: Backend | None = None) -> None:
        """Store the ids of the members for restore(), for as long as results are kept."""
        (backend or self.backend).save_group(self.id, self.as_tuple())

    def delete(self, backend: Backend | None = None) -> None:
        """Undo save(). The results are kept."""
        (backend or self.backend).delete_group(self.id)

    @classmethod
    def restore(cls, id: str, backend: Backend | None = None, app: App | None = None) -> Any:
        """Return the group saved with this id; None if there is none, or it has expired."""
        app = app or get_current_app()
        described = (backend or app.backend).get_group(id)
        return described and result_from_tuple(described, app)

    # -- description --

    def as_tuple(self) -> Any:
        """Return plain data, which result_from_tuple() converts back; see AsyncResult.as_tuple()."""
        return tree.described(self)

    def as_list(self) -> list[str]:
        """Return its id and those of the results before it."""
        return tree.ids_of_line(self)

    def tree(self) -> ResultTree:
        """Return the members, each with the calls that its task made; see AsyncResult.tree()."""
        return tree.tree_of(self)

    def _members_described(self) -> list[Any]:
        return [each.as_tuple() for each in self.results]

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GroupResult):
            return other.id == self.id and other.results == self.results and other.parent == self.parent
        return other == self.id if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        members = ", ".join(map(str, self.results))
        return f"<{type(self).__name__}: {self.id} [{members}]>"

    def __reduce__(self) -> Any:
        return type(self), (self.id, self.results, self.parent)


class GroupResults(NamedTuple):
    """Factory for group results of *app*."""

    app: App

    def __call__(
        self,
        id: str,
        results: Iterable[AsyncResult[R]],
        parent: Any = None,
    ) -> GroupResult[R]:
        """Return the result of the group *id* with the members *results*."""
        return GroupResult(id, results, parent, self.app)

    def restore(self, id: str, backend: Backend | None = None) -> Any:
        """See GroupResult.restore()."""
        return GroupResult.restore(id, backend, self.app)
