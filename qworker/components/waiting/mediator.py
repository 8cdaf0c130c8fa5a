"""Mediator: moves the best ready requests to free pool slots.

Comes from:  ReadyQueue or TaskBucket, filled by Listener and ScheduleController.
Goes to:     TaskPool.submit.
Thread:      mediator; refill() is called by the pool's thread, offer() by the listener, one at a time.

It first counts free slots, then takes that many of the best requests, so that the most urgent ones run next
and revocations work until the last moment. Requests refused by the pool are put back.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import OnEnded, OnRoom, Slots, TaskPool
from qworker.components.request import Request
from qworker.components.waiting.early_acks import EarlyAcks
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.worker_lease import CurrentLease, WorkerLease
from qworker.process.crash_points import crash_point
from qworker.tasks.outcome import EXPIRED, LEASE_EXPIRED, REVOKED, Outcome

WAIT_SECONDS = 10.0
BATCH = 64
NOTHING = CurrentLease(0, 0.0)


class Mediator(ThreadComponent):
    """Moves requests to the pool.

    - mailbox: of the Listener.
    - lease: no request starts while it may have expired, because another worker may have the request.
    - on_ended: called with requests that must not run.
    - make_pool: called with refill() to make the pool, because mediator and pool call each other.
    """

    name = "mediator"
    timeout = WAIT_SECONDS
    """The longest wait of a step in seconds."""

    def __init__(
        self,
        clock: Clock,
        on_crash: Callable[[str, BaseException], None],
        ready: ReadyQueue,
        mailbox: Mailbox[SettlementOrder],
        lease: WorkerLease,
        on_ended: OnEnded,
        make_pool: Callable[[OnRoom], TaskPool],
    ) -> None:
        super().__init__(clock, on_crash)
        self.early = EarlyAcks(mailbox, ready)
        self._ready = ready
        self._mailbox = mailbox
        self._lease = lease
        self._on_ended = on_ended
        self._quiet = False  # written by quiet(), a flag
        self._turn = threading.Lock()
        """Held while moving requests from the ready queue to the pool, so that none overtakes another."""
        self._expected: str | None = None
        """Under _turn: the task that the next request probably has: that of the first refused request, else
        of the last one taken. None if none waits."""
        self._ended = False
        """Under _turn: whether a request ended in the last move, so that its slot is still free."""
        self.pool = make_pool(self.refill)

    def step(self, now: float) -> float | None:
        seen = self._ready.changes
        with self._turn:
            moved = self._move()
        if not moved:
            self._ready.wait(self.timeout, seen)
        return 0

    def refill(self) -> None:
        """Give ready requests to the pool, which has room now. Called by the pool's thread, which saves a
        thread switch for every frame of short tasks."""
        if not self._turn.acquire(blocking=False):
            self._ready.wake()  # the thread with the turn may have counted the slots already
            return
        try:
            rest = self._move() >= BATCH or self._ended
        finally:
            self._turn.release()
        if rest:
            self._ready.wake()  # the mediator moves the rest

    def _move(self) -> int:
        """Move the best requests to free slots, while holding the turn; return how many were taken."""
        ready, pool = self._ready, self.pool
        self._ended = False
        # Computed each time, because an unknown task, or one that was slow at first, may turn out to be
        # short.
        expected = self._expected
        slots = pool.free_slots_for(pool.expected_runtime(expected)) if expected else pool.free_slots()
        slots = Slots(min(slots.sync, BATCH), min(slots.asynchronous, BATCH))
        acked: list[Request] = []
        if self.early and not self._quiet:
            acked, kept = self.early.take_startable(), self.early.held
            slots = Slots(
                max(0, slots.sync - kept.sync - sum(not request.is_async for request in acked)),
                max(0, slots.asynchronous - kept.asynchronous - sum(request.is_async for request in acked)),
            )
        held = self._lease.current()
        take = ready.get_reports if self._quiet else ready.get_many
        requests = [] if held is None else take(slots)
        runnable, back = self._runnable([*acked, *requests] if acked else requests, held)
        plain = [request.name for request in requests if not request.is_async]
        if len(plain) < slots.sync:
            self._expected = None
        elif plain:
            self._expected = plain[-1]
        if back:
            ready.put_back(back, notify=False)
            self._expect(back)
        if runnable:
            crash_point("dispatching")
            refused = pool.submit(runnable)
            crash_point("dispatched")
            if any(request.is_async for request in runnable):
                self._mailbox.wake()  # they leave room for more requests
            if refused:
                ready.put_back(refused)
                self._expect(refused)
        return len(acked) + len(requests) - len(back)

    def _expect(self, waiting: Sequence[Request]) -> None:
        """Remember the task of the first of *waiting* that needs a process."""
        best = next((request for request in waiting if not request.is_async), None)
        if best is not None:
            self._expected = best.name

    def offer(self, requests: list[Request]) -> list[Request]:
        """Give *requests* to idle processes at once; return those that have to go through the ready queue.

        Called by the Listener's thread, which saves a thread switch in an idle worker. It overtakes no other
        request: it does nothing while requests are ready, in transit or waiting for a token.
        """
        ready = self._ready
        if ready.limits or len(ready) or not self._turn.acquire(blocking=False):
            return requests
        try:
            if self._quiet:
                return requests
            idle = self.pool.free_slots_for(None).sync
            if len(ready) or len(requests) > idle or any(request.is_async for request in requests):
                return requests
            held = self._lease.current()
            if held is None:
                return requests
            runnable, back = self._runnable(requests, held)
            crash_point("offering")
            return [*self.pool.submit(runnable), *back]
        finally:
            self._turn.release()

    def _runnable(
        self, requests: list[Request], held: CurrentLease | None
    ) -> tuple[list[Request], list[Request]]:
        """Return the *requests* to run now, and those that have to wait for a place. The others are ended, or
        acked first. held: the lease when it was checked.

        If we are frozen between here and the start of a request, the pool returns it as UNSTARTED.
        """
        wall = self.clock.now()
        generation, until = held or NOTHING
        runnable: list[Request] = []
        early: list[Request] = []
        back: list[Request] = []
        places: _Places | None = None
        for request in requests:
            if not request.acked:
                if request.generation != generation:  # the lease was lost while it was in transit
                    self._end(request, Outcome(LEASE_EXPIRED))
                    continue
                request.starts_before = until
            if request.failing is not None:
                runnable.append(request)
            elif request.revocation is not None:
                self._end(request, Outcome(REVOKED, text="revoked"))
            elif request.expires is not None and request.expires <= wall:
                self._end(request, Outcome(EXPIRED, text="expired"))
            elif request.acked or (places is None and request.acks_late and not self.early):
                runnable.append(request)
            else:
                if places is None:
                    places = _Places(self.pool, self.early, runnable)
                if not places.take(request):
                    back.append(request)
                elif request.acks_late:
                    runnable.append(request)
                else:
                    early.append(request)
        if early and places is not None:
            self.early.ask(early, places.seconds)
        return runnable, back

    def _end(self, request: Request, outcome: Outcome) -> None:
        """End a request that must not run."""
        self._ended = True
        self._on_ended([(request, outcome)])

    def quiet(self) -> None:
        """Move no more requests but those whose end a child must report; return when no other is in
        transit."""
        self._quiet = True
        self._ready.wake()
        with self._turn:
            pass  # wait for the thread that has the turn

    def busy(self) -> bool:
        """Return whether requests run, or have ends that a child must report. Any thread."""
        with self._turn:
            return bool(self.pool.in_flight() or self.pool.ending or self._ready.reports)

    def stop(self, deadline: float = 0.0) -> None:
        self.quiet()
        super().stop(deadline)
        self._ready.wake()


class _Places:
    """The free places in the pool. Requests in *early* and *taken* have one already."""

    def __init__(self, pool: TaskPool, early: EarlyAcks, taken: Sequence[Request]) -> None:
        self._pool = pool
        held = early.held
        asynchronous = sum(request.is_async for request in taken)
        self._taken = [held.sync + len(taken) - asynchronous, held.asynchronous + asynchronous]
        self._full = [False, False]
        self._known: float | None = None
        self._slots = Slots(0, 0)
        self.seconds = early.longest
        """The longest expected duration of the sync requests with a place."""

    def take(self, request: Request) -> bool:
        """Take a place for *request*; return False if there is none for it and later ones of its kind."""
        kind = int(request.is_async)
        if self._full[kind]:
            return False
        seconds = self.seconds
        if not kind:
            expected = self._pool.expected_runtime(request.name)
            seconds = max(seconds, math.inf if expected is None else expected)
        if seconds != self._known:
            self._known = seconds
            self._slots = self._pool.free_slots_for(None if seconds == math.inf else seconds)
        if self._taken[kind] >= self._slots[kind]:
            self._full[kind] = True
            return False
        self._taken[kind] += 1
        self.seconds = seconds
        return True
