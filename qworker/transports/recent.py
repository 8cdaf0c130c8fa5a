"""Recent operations, in case the other side loses them.

Comes from:  the consumers of SQL and RabbitMQ, after each batch of settlements.
Goes to:     the same, after a lost connection: to find messages lost with it.
Thread:      the owner's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Batches of recent operations. seconds: how long they are kept, counted back from the newest.
    most: the oldest batches are dropped while at least this many operations remain."""

    def __init__(self, seconds: float, most: int = 2**63, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._most = most
        self._now = now
        self._batches: deque[tuple[float, Sequence[T]]] = deque()
        self._count = 0

    def add(self, batch: Sequence[T]) -> None:
        """Add operations done just now."""
        self._batches.append((self._now(), batch))
        self._count += len(batch)
        self.forget_before(self._now() - self._seconds)
        while self._count - len(self._batches[0][1]) >= self._most:
            self._forget_first()

    def undo(self) -> None:
        """Remove the newest batch: it was not done."""
        if self._batches:
            self._count -= len(self._batches.pop()[1])

    def forget_before(self, moment: float) -> None:
        while self._batches and self._batches[0][0] < moment:
            self._forget_first()

    def _forget_first(self) -> None:
        self._count -= len(self._batches.popleft()[1])

    def __iter__(self) -> Iterator[Sequence[T]]:
        """Yield the batches, oldest first."""
        return iter([batch for _, batch in self._batches])
