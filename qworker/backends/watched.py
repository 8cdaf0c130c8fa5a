"""Watched: what those who wait for results ask of a store; and its Source, which tells of them.

Comes from:  the result stores.
Goes to:     ``result_watcher.py``.
Thread:      the one that leads there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qworker.backends.base import Found
    from qworker.clock import Clock


class Source(Protocol):
    """Where a store tells of results. Owner: the thread that leads. A method of a broken source raises
    whatever it likes; then another source is opened. One with ``tells_of_all = True`` needs no subscribe():
    it tells of whatever is stored after it was opened."""

    def fileno(self) -> int:
        """What becomes readable when something is told; -1: nothing, as yet."""

    def subscribe(self, ids: Collection[str]) -> None:
        """Tell of *ids* from now on; of others it need not. A look finds what was stored before."""

    def told(self) -> Collection[str] | None:
        """The ids that were told since the last call, without waiting; None: it may be any."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: let go without a word to the server or to others."""


class Watched(Protocol):
    """What is asked of a result store by the watcher of those who wait."""

    clock: Clock
    listens: bool

    def read_many(self, ids: Collection[str]) -> dict[str, Found]: ...

    def open_source(self) -> Source | None: ...
