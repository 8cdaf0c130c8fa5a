"""FetchWindow: how many messages the Listener may hold ahead of the pool.

Comes from:  the pool's mean run time and the count of what is reserved.
Goes to:     Listener.
Thread:      listener.

Short tasks are fetched by the dozen, so that the broker is asked seldom; of long ones hardly more than there
are processes, so that other workers may have them. The window is what the pool can do in LOOKAHEAD seconds.
"""

from __future__ import annotations

from qworker.components.pool import TaskPool
from qworker.components.ready_queue import ReadyQueue

LOOKAHEAD_SECONDS = 0.02
MAX_WINDOW = 384


class FetchWindow:
    """multiplier: of long tasks, how many per process are held besides those that run (0: none)."""

    def __init__(self, pool: TaskPool, ready: ReadyQueue, concurrency: int, multiplier: int) -> None:
        self._pool = pool
        self._ready = ready
        self._concurrency = concurrency
        self._multiplier = multiplier

    def size(self) -> int:
        """How many requests may be ready or running."""
        mean = self._pool.mean_runtime()
        short = int(LOOKAHEAD_SECONDS * self._concurrency / mean) if mean else 0
        least = self._concurrency * (1 + self._multiplier)
        return max(least, min(short, MAX_WINDOW))

    def held(self) -> int:
        """How many are ready or running, async tasks that run not counted: they take nobody's place."""
        return len(self._ready) + self._pool.in_flight() - self._pool.async_in_flight()

    def room(self) -> int:
        """How many may be fetched now; 0 while more than half of the window is full, so that fetches are batches."""
        size, held = self.size(), self.held()
        return size - held if held <= size // 2 or self._window_is_small(size) else 0

    def _window_is_small(self, size: int) -> bool:
        return size <= 4 * self._concurrency

    def surplus(self) -> int:
        """How many ready requests are far beyond the window."""
        return max(0, len(self._ready) - 2 * self.size())

    def idle(self) -> bool:
        """Whether nothing is held: then the last acks need not wait for others."""
        return len(self._ready) == 0 and self._pool.in_flight() == 0
