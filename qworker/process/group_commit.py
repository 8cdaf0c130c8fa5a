"""Group commit: callers that wait for one connection together are served together by the one who has its
turn.

Comes from:  ``push`` of the brokers that publish on one connection, on any thread.
Goes to:     their function that writes or sends, called by whoever has the connection's turn.
Thread:      any; what is pending is put there by any thread, and taken out by who has the turn.

Who has the turn may be interrupted (see ``interrupts.py``), and gives it back all the same. He could not tell
the others what became of theirs: so the main thread, which is the one that signals interrupt, serves nobody
but itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Generic, Protocol, TypeVar

from qworker.errors import BrokerUnavailable
from qworker.interrupts import NotOurTurn, in_turn, interruptible

T = TypeVar("T")


class Connected(Protocol):
    """Who has a connection that one may use at a time; a fork gives the child another lock."""

    lock: Lock


class Pending(Generic[T]):
    """Items of one caller that wait to be served. done: they were, and *error* is what became of it."""

    __slots__ = ("done", "error", "items")

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.done = False
        self.error: Exception | None = None


class Line(Generic[T]):
    """Callers that wait for the lock of *place*. serve: with a batch, the first of which is the caller's own,
    and a deadline (monotonic seconds); it is done with those that it marks so. name: of the place, for
    messages."""

    def __init__(self, place: Connected, serve: Callable[[list[Pending[T]], float], None], name: str) -> None:
        self._place = place
        self._serve = serve
        self._name = name
        self._pending: deque[Pending[T]] = deque()

    def forget(self) -> None:
        """In a forked child: what the parent's threads were about to write is theirs."""
        self._pending = deque()

    def push(self, items: Sequence[T], timeout: float) -> None:
        """Have *items* served, alone or with what others bring; return when they are.

        Raises the error that they were marked with; BrokerUnavailable when it was not our turn within
        *timeout* seconds: then nothing was written.
        """
        deadline = time.monotonic() + timeout
        mine = Pending(items)
        lock, pending = self._place.lock, self._pending
        try:
            pending.append(mine)
            try:
                in_turn(lock, timeout, self._serve_all, mine, deadline)
            except NotOurTurn:
                try:
                    pending.remove(mine)
                except ValueError:  # it is under way: only that can tell
                    in_turn(lock, None, self._serve_all, mine, deadline)
                else:
                    raise BrokerUnavailable(
                        f"{self._name} took no message within {timeout:g} s; nothing was published"
                    ) from None
        finally:
            if not mine.done:  # we were interrupted, perhaps: then nobody else is to send it
                with suppress(ValueError):
                    pending.remove(mine)
        if mine.error is not None:
            raise mine.error

    def _serve_all(self, mine: Pending[T], deadline: float) -> None:
        """Serve all that is pending: the caller's, and what others brought meanwhile."""
        if mine.done:
            return
        batch = [mine]
        if interruptible():
            try:
                self._pending.remove(mine)
            except ValueError:
                pass  # somebody took it, and was cut short
        else:
            while self._pending:
                pending = self._pending.popleft()
                if pending is not mine:
                    batch.append(pending)
        self._serve(batch, deadline)

    def put_back(self, batch: Iterable[Pending[T]]) -> None:
        """For who has the turn: let these be served by themselves."""
        self._pending.extendleft(batch)


class GroupCommit(Line[T]):
    """store: writes items in one transaction by a deadline (monotonic seconds), and returns the error for
    which nothing of it was written, or None."""

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
            # One bad message, or one caller's short patience, is not the others' failure: they try for
            # themselves.
            self.put_back(reversed(batch[1:]))
            batch = batch[:1]
            error = self._store(batch[0].items, deadline)
        for pending in batch:
            pending.error, pending.done = error, True
