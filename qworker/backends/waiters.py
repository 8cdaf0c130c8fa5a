"""Waiters: threads that wait for results with the ResultWatcher, and the notifications that wake it.

Comes from:  ``get``, which waits in the calling thread; ``await`` and ``then``, for which a WaiterThread
             waits.
Goes to:     the ResultWatcher, which gives each waiter its results.
Thread:      a Waiter belongs to the waiting thread, except for its queue.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from qworker.clock import Clock
from qworker.errors import DamagedResult
from qworker.interrupts import reraise_interrupt

logger = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.05, 30.0
"""Seconds after which a source that failed twice or more is opened again."""
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
        """Return the pending results. Without any, wait for one for up to *seconds*."""
        news = []
        try:
            news.append(self.news.get(seconds > 0, seconds if seconds > 0 else None))
            while True:
                news.append(self.news.get_nowait())
        except Empty:
            return news


# -- the interface of a store for the watcher --


class NotificationSource(Protocol):
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


class WatchedStore(Protocol):
    """The part of a result store that its watcher uses."""

    clock: Clock
    listens: bool

    def read_many(self, ids: Collection[str]) -> dict[str, Found]: ...

    def open_source(self) -> NotificationSource | None: ...


class Notifications:
    """The notifications of *backend*, opened when somebody waits, and again after a failure. Used by the
    leader only, but for mark()."""

    def __init__(self, backend: WatchedStore) -> None:
        self._backend = backend
        self._source: NotificationSource | None = None
        self.events = 0
        """Counts reads, openings and closings of the source: a new waiter has missed what came before."""
        self._failures = 0
        self._open_at = 0.0
        self._subscribed = 0

    @property
    def opened(self) -> bool:
        return self._source is not None

    def mark(self) -> int | None:
        """See ResultWatcher.mark()."""
        events = self.events
        return events if getattr(self._source, "announces_all", False) else None

    def fileno(self) -> int:
        """Return the file descriptor to wait on for notifications, or -1 without a connection."""
        return -1 if self._source is None else self._source.fileno()

    def read(self, waiters: Sequence[Waiter], came: bool) -> Collection[str] | None:
        """Return the announced ids; None: any may have ended. Opens the source if necessary.

        came: whether some ids of *waiters* are new.
        """
        source, count = self._source, sum(len(waiter.ids) for waiter in waiters)
        try:
            if source is None:
                if not count or time.monotonic() < self._open_at:
                    return ()
                self.events += 1
                source = self._source = self._backend.open_source()
                if source is None:
                    self._open_at = math.inf
                    return ()
                self._subscribe(source, waiters)
                self._failures = 0
                return None
            if came or count < self._subscribed // 2:  # not after each result, because this takes linear time
                self._subscribe(source, waiters)
            self.events += 1
            return source.announced()
        except Exception as error:  # noqa: BLE001 - sources may raise anything; results are polled meanwhile
            reraise_interrupt(error)
            self._failed(error)
            return None if source is not None else ()

    def _subscribe(self, source: NotificationSource, waiters: Sequence[Waiter]) -> None:
        ids = set[str]().union(*(waiter.ids for waiter in waiters))
        source.subscribe(ids)
        self._subscribed = len(ids)

    def unsubscribe(self) -> None:
        """Request no notifications until the next read()."""
        try:
            if self._source is not None:
                self._subscribe(self._source, ())
        except Exception as error:  # noqa: BLE001 - the next waiter opens another source
            reraise_interrupt(error)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        logger.log(
            logging.INFO if self._failures == 3 else logging.DEBUG,
            "results are polled, because notifications from the server failed: %s",
            error,
        )
        # An idle connection may have been closed, so the first retry is immediate.
        delay = min(FIRST_RETRY * 2**self._failures, LAST_RETRY) if self._failures else 0.0
        self._open_at = time.monotonic() + delay
        self._failures += 1
        self.close()

    def close(self) -> None:
        """Close the source; read() opens another one. Safe to call twice."""
        source, self._source = self._source, None
        self.events += 1
        if source is not None:
            try:
                source.close()
            except Exception as error:  # noqa: BLE001 - the source is discarded in any case
                reraise_interrupt(error)
                logger.debug("closing the source of notifications: %s", error)

    def abandon(self) -> None:
        """In a forked child: release the source without communicating with the server."""
        if self._source is not None:
            self._source.abandon()
