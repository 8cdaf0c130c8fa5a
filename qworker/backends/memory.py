"""Results in the memory of one process: for tests, and for the threads and solo pools.

Comes from:  ``result_backend = "cache+memory://"``.
Goes to:     a dict; nothing survives the process, and no other process sees it.
Thread:      any; one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from qworker.backends.base import Found
from qworker.backends.keyvalue import KeyValueBackend
from qworker.clock import Clock
from qworker.transports.forked import forgetful

_stores = forgetful()


class MemoryBackend(KeyValueBackend):
    """A dict with expiry. Who waits is woken by who stores."""

    persistent = False
    supports_wait = True

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._lock = threading.RLock()
        self._waiting: list[SimpleQueue[None]] = []
        """Of those who wait. Any thread: append, remove and a copy are atomic."""
        self._values: dict[str, tuple[bytes, float | None]] = {}  # under _lock
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: another thread of the parent's may have held the lock, and will never let go of
        it here."""
        self._lock = threading.RLock()
        self._waiting = []

    def locked(self, key: str) -> AbstractContextManager[Any]:
        return self._lock

    def read(self, key: str) -> bytes | None:
        with self._lock:
            value, expires = self._values.get(key, (None, None))
            return None if expires is not None and expires <= self.clock.now() else value

    def write(self, key: str, value: bytes, ttl: float | None) -> None:
        with self._lock:
            self._values[key] = (value, None if ttl is None else self.clock.now() + ttl)
        for waiting in list(self._waiting):
            waiting.put(None)

    def remove(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    @contextmanager
    def listening(self, ids: Collection[str]) -> Iterator[Callable[[float], Any]]:
        stored: SimpleQueue[None] = SimpleQueue()

        def listen(seconds: float) -> None:
            with suppress(Empty):
                stored.get(timeout=seconds)
                while True:
                    stored.get_nowait()

        try:
            self._waiting.append(stored)
            yield listen
        finally:
            with suppress(ValueError):
                self._waiting.remove(stored)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        with self._lock:
            return super().read_many(ids)

    def sweep(self, now: float) -> int:
        with self._lock:
            old = [
                key for key, (_, expires) in self._values.items() if expires is not None and expires <= now
            ]
            for key in old:
                del self._values[key]
        return len(old)
