"""Waiters: threads that wait for results with the ResultWatcher.

Comes from:  ``get``, which waits in the calling thread; ``await`` and ``then``, for which a WaiterThread
             waits.
Goes to:     the ResultWatcher, which gives each waiter its results.
Thread:      a Waiter belongs to the waiting thread, except for its queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from qworker.clock import Clock
from qworker.errors import DamagedResult

Meta = dict[str, Any]
"""The stored metadata of a task; see ``base``."""
Found = Meta | DamagedResult
"""The stored metadata of a task, or the error that says why it cannot be read."""

POLL_SECONDS = 0.5
"""The longest pause between two polls, even if there are notifications."""


class Waiter:
    """A waiting thread. ids: the tasks that it waits for, which may change. interval: its longest pause
    between two polls.

    If ids is a set, delivered results are removed from it: this waiter waits for all of them.
    """

    __slots__ = ("__weakref__", "asleep", "ids", "interval", "looked", "new", "news")

    def __init__(
        self, ids: Collection[str], interval: float = POLL_SECONDS, looked: int | None = None
    ) -> None:
        self.ids = ids
        self.looked = looked
        """The ResultWatcher.mark() made before all ids were read; None if they were not read."""
        self.interval = interval
        self.new = deque(ids)
        """Ids not read since they were added. Any thread."""
        self.asleep = False
        """Whether it waits while another thread leads."""
        self.news: SimpleQueue[Mapping[str, Found] | Exception] = SimpleQueue()
        """Results, or the error of reading them; an empty mapping tells this thread to lead."""

    def give(self, ended: Mapping[str, Found]) -> None:
        """Deliver news; called by the leader."""
        self.news.put(ended)
        if isinstance(self.ids, set):
            self.ids.difference_update(ended)

    def taken_anew(self) -> list[str]:
        """Return all ids in anew, and empty it."""
        return [self.new.popleft() for _ in range(len(self.new))]

    def taken(self, seconds: float) -> list[Mapping[str, Found] | Exception]:
        """Return all its news; if there is none, wait for up to *seconds*."""
        news = []
        try:
            news.append(self.news.get(seconds > 0, seconds if seconds > 0 else None))
            while True:
                news.append(self.news.get_nowait())
        except Empty:
            return news


# -- the interface of a store for the watcher --


class Source(Protocol):
    """A store's notifications about results, used by the leader. Methods of a broken source may raise any
    exception; then another source is opened. A source with ``announces_all = True`` needs no subscribe(): it
    announces everything stored after it was opened."""

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable at a notification; -1: there is none yet."""

    def subscribe(self, ids: Collection[str]) -> None:
        """Announce results of *ids* from now on, and possibly others. Earlier results are read instead."""

    def announced(self) -> Collection[str] | None:
        """Return the ids announced since the last call, without waiting; None: any may have ended."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: release the source without communicating with the server."""


class Watched(Protocol):
    """The part of a result store that its watcher uses."""

    clock: Clock
    listens: bool

    def read_many(self, ids: Collection[str]) -> dict[str, Found]: ...

    def open_source(self) -> Source | None: ...
