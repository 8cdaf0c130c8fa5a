"""Group commit: callers that wait for one connection together share one commit.

Comes from:  ``push`` of the brokers that are databases, on any thread.
Goes to:     their ``store(items, deadline)``, called by whoever has the connection's turn.
Thread:      any; ``_pending`` is filled by any thread and emptied by who has the turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

from qworker.errors import BrokerUnavailable

T = TypeVar("T")


class Turns(Protocol):
    """Who has a connection that one may use at a time; a fork gives the child another lock."""

    turn: Lock


class _Pending(Generic[T]):
    """Items of one caller that wait for the next commit."""

    __slots__ = ("done", "error", "items")

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.done = False
        self.error: Exception | None = None


class GroupCommit(Generic[T]):
    """place: the connection's turn. store: writes items in one transaction by a deadline (monotonic seconds), and
    returns the error for which nothing of it was written, or None. name: of the place, for messages."""

    def __init__(
        self, place: Turns, store: Callable[[Sequence[T], float], Exception | None], name: str
    ) -> None:
        self._place = place
        self._store = store
        self._name = name
        self._pending: deque[_Pending[T]] = deque()

    def forget(self) -> None:
        """In a forked child: what the parent's threads were about to write is theirs."""
        self._pending = deque()

    def push(self, items: Sequence[T], timeout: float) -> None:
        """Write *items*, alone or with what others bring; return when they are safe.

        Raises what ``store`` returned; BrokerUnavailable when it was not our turn within *timeout* seconds: then
        nothing was written.
        """
        deadline = time.monotonic() + timeout
        turn = self._place.turn
        if not self._pending and turn.acquire(False):
            try:  # nobody else is here
                error = self._store(items, deadline)
            finally:
                turn.release()
        else:
            error = self._push_with_others(items, turn, timeout, deadline)
        if error is not None:
            raise error

    def _push_with_others(
        self, items: Sequence[T], turn: Lock, timeout: float, deadline: float
    ) -> Exception | None:
        mine = _Pending(items)
        self._pending.append(mine)
        if not turn.acquire(timeout=timeout):
            try:
                self._pending.remove(mine)
            except ValueError:
                pass  # its commit is under way: only that can tell
            else:
                return BrokerUnavailable(
                    f"{self._name} took no message within {timeout:g} s; nothing was published"
                )
            turn.acquire()
        try:
            if not mine.done:
                self._write_all(mine, deadline)
        finally:
            turn.release()
        return mine.error

    def _write_all(self, mine: _Pending[T], deadline: float) -> None:
        """Write all that is pending in one transaction: the caller's, and what others brought meanwhile."""
        others: list[_Pending[T]] = []
        while self._pending:
            pending = self._pending.popleft()
            if pending is not mine:
                others.append(pending)
        batch = [mine, *others]
        error = self._store([item for pending in batch for item in pending.items], deadline)
        if error is not None and others:
            # One bad message, or one caller's short patience, is not the others' failure: they try for themselves.
            self._pending.extendleft(reversed(others))
            batch = [mine]
            error = self._store(mine.items, deadline)
        for pending in batch:
            pending.error, pending.done = error, True
