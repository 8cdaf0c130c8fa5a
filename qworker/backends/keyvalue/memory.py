"""Results in the memory of one process: for tests, and for the threads and solo pools.

Comes from:  ``result_backend = "cache+memory://"``.
Goes to:     a dict, which is lost with the process and invisible to others.
Thread:      any; one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

from qworker.backends.base import Found
from qworker.backends.keyvalue.backend import KeyValueBackend
from qworker.backends.keyvalue.keys import TASK_PREFIX
from qworker.clock import Clock
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe

_stores = forgetful()


class StoringThreads:
    """A Source that the store itself notifies, in this process. Any thread may call announce()."""

    def __init__(self) -> None:
        self._wakeup = WakeupPipe()
        self._wakeup.open()
        self._subscribed: frozenset[str] = frozenset()
        self._announced: SimpleQueue[str] = SimpleQueue()

    def announce(self, task_id: str) -> None:
        if task_id in self._subscribed:
            self._announced.put(task_id)
            self._wakeup.wake()

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        self._subscribed = frozenset(ids)

    def announced(self) -> Collection[str]:
        self._wakeup.clear()
        return [self._announced.get() for _ in range(self._announced.qsize())]

    def close(self) -> None:
        self._subscribed = frozenset()
        self._wakeup.close()

    abandon = close


class MemoryBackend(KeyValueBackend):
    """A dict with expiry. Storing wakes the waiters."""

    persistent = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._lock = threading.RLock()
        self._source: StoringThreads | None = None
        self._values: dict[str, tuple[bytes, float | None]] = {}  # under _lock
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: replace the lock, which another thread of the parent may have held."""
        self._lock = threading.RLock()
        self._source = None

    def locked(self, key: str) -> AbstractContextManager[Any]:
        return self._lock

    def read(self, key: str) -> bytes | None:
        with self._lock:
            value, expires = self._values.get(key, (None, None))
            return None if expires is not None and expires <= self.clock.now() else value

    def write(self, key: str, value: bytes, ttl: float | None) -> None:
        with self._lock:
            self._values[key] = (value, None if ttl is None else self.clock.now() + ttl)
        if self._source is not None:
            self._source.announce(key.removeprefix(TASK_PREFIX))

    def remove(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    def list(self, prefix: str) -> Iterable[str]:
        with self._lock:
            return [key for key in self._values if key.startswith(prefix)]

    def open_source(self) -> StoringThreads:
        self._source = StoringThreads()
        return self._source

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        with self._lock:
            return super().read_many(ids)

    def sweep(self, now: float) -> int:
        with self._lock:
            old = [key for key, (_, until) in self._values.items() if until is not None and until <= now]
            for key in old:
                del self._values[key]
        return len(old)
