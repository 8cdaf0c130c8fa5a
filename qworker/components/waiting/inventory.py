"""WaitingRequests: what was received and has not begun, wherever in this worker it waits.

Comes from:  Listener, with what it has fetched, and with revocations.
Goes to:     the schedule, the pool at once or by the ready queue; back to the Listener, when a request is not
             to start here.
Thread:      listener, but for recall().
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from qworker.components.pool.contract import OnEnded
from qworker.components.request import Request
from qworker.components.waiting.doubts import UNKNOWN
from qworker.components.waiting.mediator import Mediator
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import ScheduleController
from qworker.process.crash_points import CRASHING, crash_point
from qworker.tasks.outcome import EXPIRED, LOST, POISONED, REVOKED, Outcome
from qworker.tasks.outcome import UNKNOWN as UNKNOWN_TASK

logger = logging.getLogger(__name__)


FOUND_AGAIN = frozenset({REVOKED, EXPIRED, POISONED, UNKNOWN_TASK})
"""Ends without a run, which each worker comes to."""


class WaitingRequests:
    """on_ended: takes a request that is not to run; see Settler."""

    def __init__(
        self,
        ready: ReadyQueue,
        schedule: ScheduleController,
        mediator: Mediator,
        on_ended: OnEnded,
    ) -> None:
        self._ready = ready
        self._schedule = schedule
        self._mediator = mediator
        self._pool = mediator.pool
        self._on_ended = on_ended

    @property
    def scheduled(self) -> int:
        """How many wait for their time. Any thread."""
        return len(self._schedule.schedule)

    @property
    def ready(self) -> int:
        """How many wait for a place to run. Any thread."""
        return len(self._ready)

    def schedule(self, due: float, request: Request) -> None:
        """Have *request* wait until the epoch second *due*."""
        if CRASHING:
            crash_point("heap push")
        self._schedule.enter(due, request)

    def add(self, requests: list[Request]) -> None:
        """Have *requests* run: at once if somebody is idle, or else in their turn."""
        if requests and (rest := self._mediator.offer(requests)):
            self._ready.put_many(rest)

    def give_up(self, requests: Sequence[Request]) -> None:
        """End *requests*, of which nobody knows whether the broker has them still, as the death of a process
        ends what was acked before it ran."""
        for request in requests:
            request.mark_acked()
        if requests:
            self._on_ended([(request, Outcome(LOST, text=UNKNOWN)) for request in requests])

    def end_failing(self, requests: Sequence[Request]) -> list[Request]:
        """End those of *requests* that a child was to tell of, and cannot any more; return the others. What
        did not run goes back, to another worker that finds the same end and tells of it. What did must not
        run again: it ends here, without its errbacks."""

        def ends(request: Request) -> bool:
            failing = request.failing
            return failing is not None and (request.acked or failing.outcome.kind not in FOUND_AGAIN)

        if ended := [
            (each, each.failing.outcome._replace(told=True))
            for each in requests
            if each.failing and ends(each)
        ]:
            self._on_ended(ended)
        return [request for request in requests if not ends(request)]

    def keep(self, requests: Sequence[Request]) -> list[Request]:
        """Put back those of *requests* that no other worker may have: the broker has them no more, or they
        have ended and a child is to tell of it. Return the others. requests: from the end of the ready queue,
        the last one first."""
        kept = [request for request in requests if request.acked or request.failing is not None]
        self._ready.put_back(reversed(kept))
        return [request for request in requests if not request.acked and request.failing is None]

    def take_all(self) -> list[Request]:
        """Take out everything but what is in the pool."""
        return [*self._mediator.early.take(), *self._ready.clear(), *self._schedule.schedule.clear()]

    def lease_lost(self) -> list[Request]:
        """Take out what others have now, and keep what was acked, which nobody else has."""
        waiting = [*self._pool.recall(), *self._ready.clear(), *self._schedule.schedule.clear()]
        self._ready.put_back(request for request in waiting if request.acked)
        return [request for request in waiting if not request.acked]

    def recall(self) -> None:
        """Take back from the pool what has not begun. Any thread."""
        self._ready.put_back(self._pool.recall())

    def revoked(self, request: Request) -> None:
        """A revocation hit *request*, which may be running, too."""
        if self._schedule.schedule.remove(request):
            self._on_ended([(request, Outcome(REVOKED, text="revoked"))])
            return
        # If it is in the pool but has not started, it comes back here, and the mediator will not pass it on.
        self.recall()
        revocation = request.revocation
        if revocation.terminate and self._pool.terminate(request, revocation.signal):
            logger.warning("Task %s[%s] is terminated on request", request.name, request.id)
