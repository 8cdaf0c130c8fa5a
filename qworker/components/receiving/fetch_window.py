"""FetchWindow: how many messages the Listener may hold ahead of the pool.

Comes from:  what the pool has learned of run times, and what is ready.
Goes to:     Listener.
Thread:      listener.

Short tasks are fetched by the dozen, so that the broker is asked seldom; of long ones hardly more than there
are processes, so that other workers may have them: what is ready is to be LOOKAHEAD_SECONDS of work. What
would not start within AHEAD_SECONDS, since no process is free by then, is not kept from others at all.
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
    """multiplier: of long tasks, how many per process are held besides those that run (0: none).
    waiting: tells how many messages are done with but for their results, which are not stored yet."""

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
        """To be ready at a time: fewer after too much was fetched, and twice as many after each time it was
        not."""
        self.fits = MAX_LEASE_BYTES
        """How many messages may be held, going by the size of the latest ones."""
        self._kept: int | None = None
        """How many were left when some were given back: nothing more is fetched before these get fewer."""

    def room(self) -> int:
        """How many may be fetched now; few or none while more than half of the budget is held, so that
        fetches are batches."""
        ready = self._ready
        # What waits for a token is not counted: it must not keep the others in the broker.
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
        """How many may be held, run or not, however long they take. long: how many processes are busy for
        long."""
        if self._pool.latest_runtime() > AHEAD_SECONDS:
            return self._concurrency  # what comes next is probably long, too
        return self._concurrency + self._multiplier * max(0, self._concurrency - long)

    def measure(self, messages: Sequence[Leased]) -> bool:
        """Note how large *messages* are, which were just fetched; True when they are few for being large."""
        size = sum(len(message.body) for message in messages if type(message.body) is bytes)
        if messages:
            # Growth counts at once, shrinkage slowly: a few small ones do not mean that no large ones follow.
            self.fits = max(1, min(MAX_LEASE_BYTES * len(messages) // (size + 1), 2 * self.fits))
        return size >= MAX_LEASE_BYTES

    def weigh(self, request: Request) -> float:
        """Note how long *request* is expected to take, and return it."""
        seconds = self._pool.expected_runtime(request.name)
        request.seconds = self._pool.mean_runtime() if seconds is None else seconds
        return request.seconds

    def reweigh(self) -> None:
        """Weigh what is ready by what was learned since it came."""
        self._ready.reweigh(self.weigh)

    def surplus(self) -> list[Request]:
        """Take out what was fetched ahead for short tasks once it turns out to be far too much work, or that
        no process will be free for it soon."""
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
        """Whether nothing is held: then the last acks need not wait for others."""
        return len(self._ready) == 0 and self._pool.in_flight() == 0
