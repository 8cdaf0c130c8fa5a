"""Waiters: threads that wait for results with the ResultWatcher.

Comes from:  ``get``, whose thread is itself a Waiter; ``await`` and ``then``, for which a WaiterThread waits.
Goes to:     the ResultWatcher, which gives each waiter its ended results.
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
    """A waiting thread. ids: what it waits for, which may change; interval: its longest pause between two
    polls.

    If ids is a set, ended results are removed from it when they are delivered: this waiter waits for all of
    them, one after another.
    """

    __slots__ = ("__weakref__", "anew", "asleep", "ids", "interval", "looked", "news")

    def __init__(
        self, ids: Collection[str], interval: float = POLL_SECONDS, looked: int | None = None
    ) -> None:
        self.ids = ids
        self.looked = looked
        """The ResultWatcher.mark() from before all ids were read; None: they were not read."""
        self.interval = interval
        self.anew = deque(ids)
        """Ids not read since they were added. Any thread."""
        self.asleep = False
        """It waits while another thread leads."""
        self.news: SimpleQueue[Mapping[str, Found] | Exception] = SimpleQueue()
        """Ended results, or why they cannot be read; an empty mapping: lead from now on."""

    def give(self, ended: Mapping[str, Found]) -> None:
        """Deliver news; called by the leader."""
        self.news.put(ended)
        if isinstance(self.ids, set):
            self.ids.difference_update(ended)

    def taken_anew(self) -> list[str]:
        """Return all ids in anew, and empty it."""
        return [self.anew.popleft() for _ in range(len(self.anew))]

    def taken(self, seconds: float) -> list[Mapping[str, Found] | Exception]:
        """Return all its news; if there is none, wait for some up to so many seconds."""
        news = []
        try:
            news.append(self.news.get(seconds > 0, seconds if seconds > 0 else None))
            while True:
                news.append(self.news.get_nowait())
        except Empty:
            return news


# -- Watched: what those who wait for results ask of a store; and its Source, which tells of them --


class Source(Protocol):
    """Notifications about results from a store. Owner: the leader. A method of a broken source may raise
    anything; then another source is opened. With ``tells_of_all = True`` it needs no subscribe(): it
    announces everything stored after it was opened."""

    def fileno(self) -> int:
        """The file that becomes readable at a notification; -1: there is none yet."""

    def subscribe(self, ids: Collection[str]) -> None:
        """Announce *ids* from now on; others are optional. A read finds earlier results."""

    def told(self) -> Collection[str] | None:
        """Return the ids announced since the last call, without waiting; None: it may be any."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: release it without communicating with the server or others."""


class Watched(Protocol):
    """The part of a result store that its watcher uses."""

    clock: Clock
    listens: bool

    def read_many(self, ids: Collection[str]) -> dict[str, Found]: ...

    def open_source(self) -> Source | None: ...
