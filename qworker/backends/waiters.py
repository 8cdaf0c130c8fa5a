"""Waiters: threads that wait for results with the ResultWatcher.

Comes from:  ``get``, whose thread is itself a Waiter; ``await`` and ``then``, for which an Attendant waits.
Goes to:     the ResultWatcher, which gives each waiter its ended results.
Thread:      a Waiter belongs to the waiting thread, except for its queue. An Attendant is called from any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qworker.backends.base import Found
    from qworker.backends.result_watcher import ResultWatcher
    from qworker.clock import Clock

logger = logging.getLogger(__name__)

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


class Attendant:
    """A thread that waits on behalf of callers that must not block, and calls them back.

    patient: it continues while the store is unavailable; otherwise it reports the error to all callers.
    reads: it also reads the source, for others and for a while after them.
    """

    def __init__(self, watcher: ResultWatcher, name: str, patient: bool = False, reads: bool = False) -> None:
        self._watcher = watcher
        self._name = name
        self._patient = patient
        self._reads = reads
        # Re-entrant, because the garbage collector may remove a waiter in the middle of any operation of the
        # thread.
        self._lock = threading.RLock()
        self._calls: dict[str, list[Callable[[Found | Exception], object]]] = {}  # under _lock
        self.waiter = Waiter(self._calls)
        self._thread: threading.Thread | None = None  # under _lock
        self._idle = False  # under _lock
        self._stay_until = 0.0  # under _lock

    def call(self, task_id: str, callback: Callable[[Found | Exception], object]) -> None:
        """Call callback(metadata) when the task has ended, or callback(error) when the result cannot be
        read."""
        self.call_many({task_id: callback})

    def call_many(self, callbacks: Mapping[str, Callable[[Found | Exception], object]]) -> None:
        """Like call(), with a callback for each id."""
        with self._lock:
            for task_id, callback in callbacks.items():
                self._calls.setdefault(task_id, []).append(callback)
            self.waiter.anew.extend(callbacks)
            self.ensure()
            self._rouse()
        self._watcher.stir()

    def cancel_many(self, callbacks: Mapping[str, Callable[[Found | Exception], object]]) -> None:
        """Like cancel(), with a callback for each id."""
        for task_id, callback in callbacks.items():
            self.cancel(task_id, callback)

    def cancel(self, task_id: str, callback: Callable[[Found | Exception], object]) -> None:
        """Remove the callback. Safe to call twice."""
        with self._lock:
            callbacks = self._calls.get(task_id, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks:
                self._calls.pop(task_id, None)

    def ensure(self) -> None:
        """Start the thread if it is not running."""
        # It may also never have started, if the thread that was starting it was interrupted.
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._stay_until = time.monotonic() + self._watcher.linger
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def dismiss(self) -> None:
        """End the thread when it is idle."""
        with self._lock:
            self._stay_until = 0.0
            self._rouse()

    def _rouse(self) -> None:
        if self._idle:
            self._idle = False
            self.waiter.news.put({})

    def _run(self) -> None:
        try:
            while (idle := self._stays()) is not None:
                if idle > 0:
                    self._watcher.leave(self.waiter)
                    self.waiter.taken(idle)
                    continue
                try:
                    for news in self._watcher.attend(self.waiter, POLL_SECONDS):
                        self._give(news)
                except Exception as error:  # noqa: BLE001 - whatever the store says, those who wait are told
                    self._give(error)
        finally:
            self._watcher.leave(self.waiter)

    def _stays(self) -> float | None:
        """Return how long it may stay idle, 0 if there is work; None: the thread ends, and another may have
        begun."""
        with self._lock:
            now = time.monotonic()
            if self._calls or (self._reads and self._watcher.waited_for()):
                self._stay_until = now + self._watcher.linger
                return 0.0
            if now >= self._stay_until:
                self._thread = None
                return None
            self._idle = not self._reads
            return self._stay_until - now if self._idle else 0.0

    def _give(self, news: Mapping[str, Found] | Exception) -> None:
        if isinstance(news, Exception):
            if self._patient:
                logger.warning("promises are waiting for the result store: %s", news)
                self._watcher.backend.clock.sleep(1.0)
                return
            news = dict.fromkeys(list(self._calls), news)  # type: ignore[arg-type]
        for task_id, found in news.items():
            with self._lock:
                callbacks = self._calls.pop(task_id, [])
            for callback in callbacks:
                callback(found)


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
