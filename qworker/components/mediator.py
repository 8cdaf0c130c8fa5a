"""Mediator: gives the best ready requests to free pool slots.

Comes from:  ReadyQueue or TaskBucket, filled by Listener and ScheduleController.
Goes to:     TaskPool.submit.
Thread:      mediator; owns nothing but the requests in its hand.
Loses nothing, because a request in hand is unacked, and what the pool refuses is put back.

First free slots, then that many of the best requests: so the most urgent runs next, and a revocation counts
until the last moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.components.pool import TaskPool
from qworker.components.ready_queue import ReadyQueue, Slots
from qworker.crash_points import CRASHING, crash_point
from qworker.request import EXPIRED, REVOKED, Request

PATIENCE = 1.0
BATCH = 64

EndHere = Callable[[Request, str, str], None]
"""Called with a request that is not to run, why (a constant of request.py) and how."""


class Mediator(ThreadComponent):
    """end_here: takes requests that are revoked or expired. ack_first: takes those that are acked before they run.
    fetch_more: tells the Listener that there is room although nothing has ended. patience: the longest wait of a
    step, in seconds."""

    name = "mediator"

    def __init__(
        self,
        clock: Clock,
        on_crash: Callable[[str, BaseException], None],
        ready: ReadyQueue,
        pool: TaskPool,
        end_here: EndHere,
        ack_first: Callable[[Sequence[Request]], None],
        fetch_more: Callable[[], None],
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(clock, on_crash)
        self._ready = ready
        self._pool = pool
        self._end_here = end_here
        self._ack_first = ack_first
        self._fetch_more = fetch_more
        self.patience = patience
        self._quiet = False  # written by quiet(), a flag
        self._blocked = False  # mediator only: the pool refused the best one last time

    def step(self, now: float) -> float | None:
        if self._quiet:
            return PATIENCE
        seen = self._ready.wakes
        slots = self._pool.free_slots(idle_only=self._blocked)
        batch = Slots(min(slots.sync, BATCH), min(slots.asynchronous, BATCH))
        requests = self._runnable(self._ready.get_many(batch, self.patience, seen))
        if slots.sync:
            self._blocked = False
        if requests:
            if CRASHING:
                crash_point("dispatching")
            refused = self._pool.submit(requests)
            if CRASHING:
                crash_point("dispatched")
            if any(request.is_async for request in requests):
                self._fetch_more()  # they run beside whatever comes next
            if refused:
                self._ready.put_back(refused)
                # The best of them is long, and needs a process that has nothing else.
                self._blocked = not all(request.is_async for request in refused)
        return 0

    def _runnable(self, requests: list[Request]) -> list[Request]:
        """Those of *requests* that are to run now; the others go where they belong."""
        wall = self.clock.now()
        runnable, early = [], []
        for request in requests:
            if request.revocation is not None:
                self._end_here(request, REVOKED, "revoked")
            elif request.expires is not None and request.expires <= wall:
                self._end_here(request, EXPIRED, "expired")
            elif not request.acks_late and not request.acked:
                early.append(request)
            else:
                runnable.append(request)
        if early:
            self._ack_first(early)
        return runnable

    def quiet(self) -> None:
        self._quiet = True
        self._ready.wake()

    def stop(self, timeout: float = 5.0) -> None:
        self.quiet()
        super().stop(timeout)
