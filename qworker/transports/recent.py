"""What was done lately, in case that the other side forgets it.

Comes from:  holders, after each batch of settlements.
Goes to:     back to them, when a connection was lost: what it took with it is found here.
Thread:      that of who made it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Batches of things that were done. seconds: for how long they are kept, counted back from the newest.
    most: how many things are kept at the least, if there are so many."""

    def __init__(self, seconds: float, most: int = 2**63, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._most = most
        self._now = now
        self._batches: deque[tuple[float, Sequence[T]]] = deque()
        self._count = 0

    def add(self, batch: Sequence[T]) -> None:
        """Note what was done just now."""
        self._batches.append((self._now(), batch))
        self._count += len(batch)
        self.forget_before(self._now() - self._seconds)
        while self._count - len(self._batches[0][1]) >= self._most:
            self._forget_first()

    def undo(self) -> None:
        """Forget the newest batch: it was not done after all."""
        if self._batches:
            self._count -= len(self._batches.pop()[1])

    def forget_before(self, moment: float) -> None:
        while self._batches and self._batches[0][0] < moment:
            self._forget_first()

    def _forget_first(self) -> None:
        self._count -= len(self._batches.popleft()[1])

    def __iter__(self) -> Iterator[Sequence[T]]:
        """The batches, the oldest first."""
        return iter([batch for _, batch in self._batches])
