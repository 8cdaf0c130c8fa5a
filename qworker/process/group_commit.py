"""Group commit: one caller serves all callers that wait for the same connection.

Comes from:  ``push`` of brokers that publish on one connection, on any thread.
Goes to:     their function that writes or sends, called while holding the connection's lock.
Thread:      any thread adds pending items; the thread that holds the lock removes them.

The holder of the lock may be interrupted (see ``interrupts.py``), and still releases the lock. An interrupted
writer cannot report the others' outcomes, so the main thread, which signals interrupt, serves only itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Generic, Protocol, TypeVar

from qworker.errors import BrokerUnavailable
from qworker.interrupts import LockTimeout, interruptible, with_lock

T = TypeVar("T")


class Connected(Protocol):
    """The owner of a connection for one user at a time. A forked child has another lock."""

    lock: Lock


class Pending(Generic[T]):
    """Pending items of one caller. done: they were served; *error* is the outcome."""

    __slots__ = ("done", "error", "items")

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.done = False
        self.error: Exception | None = None


class Line(Generic[T]):
    """Callers that wait for the lock of *place*.

    - serve: called with a batch, the caller's items first, and a deadline (monotonic seconds); marks those
      that are done.
    - name: of the place, for messages.
    """

    def __init__(self, place: Connected, serve: Callable[[list[Pending[T]], float], None], name: str) -> None:
        self._place = place
        self._serve = serve
        self._name = name
        self._pending: deque[Pending[T]] = deque()

    def forget(self) -> None:
        """Drop pending items, which belong to the parent's threads. Called in a forked child."""
        self._pending = deque()

    def push(self, items: Sequence[T], timeout: float) -> None:
        """Serve *items*, alone or with those of other callers; return when they are done.

        Raises their error, or BrokerUnavailable if the lock was not available within *timeout* seconds; then
        nothing was written.
        """
        deadline = time.monotonic() + timeout
        mine = Pending(items)
        lock, pending = self._place.lock, self._pending
        try:
            pending.append(mine)
            try:
                with_lock(lock, timeout, self._serve_all, mine, deadline)
            except LockTimeout:
                try:
                    pending.remove(mine)
                except ValueError:  # another thread is serving them, and knows the outcome
                    with_lock(lock, None, self._serve_all, mine, deadline)
                else:
                    raise BrokerUnavailable(
                        f"{self._name} accepted no message within {timeout:g} s; nothing was published"
                    ) from None
        finally:
            if not mine.done:  # perhaps interrupted; then no other thread must send them
                with suppress(ValueError):
                    pending.remove(mine)
        if mine.error is not None:
            raise mine.error

    def _serve_all(self, mine: Pending[T], deadline: float) -> None:
        """Serve the caller's items and all other pending ones."""
        if mine.done:
            return
        batch = [mine]
        if interruptible():
            try:
                self._pending.remove(mine)
            except ValueError:
                pass  # taken by another thread, which was interrupted
        else:
            while self._pending:
                pending = self._pending.popleft()
                if pending is not mine:
                    batch.append(pending)
        self._serve(batch, deadline)

    def put_back(self, batch: Iterable[Pending[T]]) -> None:
        """Put *batch* back, to be served separately. Called while holding the lock."""
        self._pending.extendleft(batch)


class GroupCommit(Line[T]):
    """store: writes items in one transaction by a deadline (monotonic seconds), and returns the error if
    nothing was written, or None."""

    def __init__(
        self, place: Connected, store: Callable[[Sequence[T], float], Exception | None], name: str
    ) -> None:
        super().__init__(place, self._write_all, name)
        self._store = store

    def _write_all(self, batch: list[Pending[T]], deadline: float) -> None:
        """Write the whole batch in one transaction."""
        together = len(batch) > 1
        items = [item for pending in batch for item in pending.items] if together else batch[0].items
        error = self._store(items, deadline)
        if error is not None and together:
            # The others retry separately, because one invalid message or short timeout must not fail them.
            self.put_back(reversed(batch[1:]))
            batch = batch[:1]
            error = self._store(batch[0].items, deadline)
        for pending in batch:
            pending.error, pending.done = error, True
