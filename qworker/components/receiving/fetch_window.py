"""FetchWindow: how many messages the Listener may hold ahead of the pool.

Comes from:  learned run times, and ready requests.
Goes to:     Listener.
Thread:      listener.

Ready requests should be LOOKAHEAD_SECONDS of work. So short tasks are fetched in batches, to query the broker
rarely, and of long tasks only a few more than there are processes. Requests that could not start within
AHEAD_SECONDS are left to other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qworker.components.pool.contract import TaskPool
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.transports.lease import MAX_LEASE_BYTES, Leased

LOOKAHEAD_SECONDS = 0.04
MAX_WINDOW = 384
AHEAD_SECONDS = 1.0


class FetchWindow:
    """multiplier: the number of long tasks per process held in addition to running ones (0: none).
    waiting: returns the number of messages held outside the pool and the ready queue."""

    def __init__(
        self,
        pool: TaskPool,
        ready: ReadyQueue,
        concurrency: int,
        multiplier: int,
        waiting: Callable[[], int],
    ) -> None:
        self._pool = pool
        self._ready = ready
        self._waiting = waiting
        self._concurrency = concurrency
        self._multiplier = multiplier
        self._budget = LOOKAHEAD_SECONDS * concurrency
        self._most = MAX_WINDOW
        """Maximum ready requests: reduced when too much was fetched, otherwise doubled."""
        self.fits = MAX_LEASE_BYTES
        """Maximum number of held messages, from the size of the latest ones."""
        self._kept: int | None = None
        """The number left when some were given back; no more are fetched until there are fewer."""

    def room(self) -> int:
        """Return how many messages may be fetched now; few or none while more than half of the budget is
        held, so that they are fetched in batches."""
        ready = self._ready
        # Requests that wait for a token are not counted, because they must not block others.
        waiting = self._waiting()
        held = ready.wanting_slots + self._pool.in_flight() - self._pool.async_in_flight() + waiting
        long = self._pool.busy_beyond(AHEAD_SECONDS)
        few = max(0, self._least(long) - held)
        mean = self._pool.mean_runtime()
        left = self._budget - ready.load
        if not mean or left < self._budget / 2 or long >= self._concurrency:
            return few
        if self._kept is not None and ready.wanting_slots >= self._kept:
            return few
        return max(few, min(int(left / mean), self._most - ready.wanting_slots - waiting, self.fits - held))

    def _least(self, long: int) -> int:
        """Return how many may be held whatever their duration. long: the number of processes busy for
        long."""
        if self._pool.latest_runtime() > AHEAD_SECONDS:
            return self._concurrency  # the next task is probably long, too
        return self._concurrency + self._multiplier * max(0, self._concurrency - long)

    def measure(self, messages: Sequence[Leased]) -> bool:
        """Record the size of the fetched *messages*; return whether size limited their number."""
        size = sum(len(message.body) for message in messages if type(message.body) is bytes)
        if messages:
            # Larger messages apply at once, smaller ones slowly, because large ones may follow.
            self.fits = max(1, min(MAX_LEASE_BYTES * len(messages) // (size + 1), 2 * self.fits))
        return size >= MAX_LEASE_BYTES

    def weigh(self, request: Request) -> float:
        """Set the expected duration of *request*, and return it."""
        seconds = self._pool.expected_runtime(request.name)
        request.seconds = self._pool.mean_runtime() if seconds is None else seconds
        return request.seconds

    def reweigh(self) -> None:
        """Update the expected durations of ready requests."""
        self._ready.reweigh(self.weigh)

    def surplus(self) -> list[Request]:
        """Take out ready requests if they turn out to be too much work, or no process will be free soon."""
        long = self._pool.busy_beyond(AHEAD_SECONDS)
        if long >= self._concurrency:
            return self._ready.drop_last(-1.0, 0)
        if self._ready.load <= 3 * self._budget:
            self._kept, self._most = None, min(2 * self._most, MAX_WINDOW)
            return []
        least = self._least(long)
        surplus = self._ready.drop_last(self._budget, least)
        self._kept, self._most = max(1, self._ready.wanting_slots), max(least, self._most // 4)
        return surplus

    def idle(self) -> bool:
        """Whether no request is ready or in the pool, so that the last acks need not wait for others."""
        return len(self._ready) == 0 and self._pool.in_flight() == 0
