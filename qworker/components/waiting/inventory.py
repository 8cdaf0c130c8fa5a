"""WaitingRequests: all requests in this worker that have not begun.

Comes from:  Listener, with fetched requests and revocations.
Goes to:     the schedule, or the pool, directly or through the ready queue; back to the Listener, if a
             request must not start here.
Thread:      listener, except recall().
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from qworker.components.pool.contract import OnEnded
from qworker.components.request import Request
from qworker.components.waiting.mediator import Mediator
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import ScheduleController
from qworker.process.crash_points import CRASHING, crash_point
from qworker.tasks.outcome import FOUND_AGAIN, REVOKED, RUN_AGAIN, UNCONFIRMED, Outcome

DOUBT_SECONDS = 3.0
"""Seconds to wait for a redelivery. A broker that notices a broken connection redelivers unacknowledged
messages at once."""
NO_GENERATION = 0
UNKNOWN = "the broker did not confirm the acknowledgement before the run, so the task has not run here"


class Resolved(NamedTuple):
    """again: requests that were delivered again and may run. failed: those to be given up."""

    again: list[Request]
    failed: list[Request]


class Doubts:
    """Requests acked before they run, when it is unknown whether the broker still has them.

    AckBuffer adds them when the answer to an ack was lost together with the lease, or the answer to a message
    sent again. The broker either no longer has such a message, or delivers it again to some worker. It must
    not run twice, so it only runs if the broker delivers it here; the Listener lets any other fail.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Request]] = []

    def __len__(self) -> int:
        """Return the number of undecided requests. Any thread."""
        return len(self._waiting)

    def add(self, requests: Sequence[Request], until: float) -> None:
        """Add *requests*. They stay in the ledger, so that Intake recognises a redelivery and sets its
        generation. until: the monotonic time at which they are given up."""
        for request in requests:
            request.generation = NO_GENERATION
            self._waiting.append((until, request))

    def undecided(self) -> list[Request]:
        """Return the requests that were not delivered again yet."""
        return [request for _, request in self._waiting if request.generation == NO_GENERATION]

    def resolve(self, now: float) -> Resolved:
        """Return the requests that are decided at the monotonic time *now*."""
        found = Resolved([], [])
        waiting = []
        for until, request in self._waiting:
            if request.generation != NO_GENERATION:
                found.again.append(request)
            elif until <= now:
                found.failed.append(request)
            else:
                waiting.append((until, request))
        self._waiting = waiting
        return found


logger = logging.getLogger(__name__)


class WaitingRequests:
    """on_ended: called for a request that does not run; see Settler."""

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
        """The number of requests that wait for their due time. Any thread."""
        return len(self._schedule.schedule)

    @property
    def ready(self) -> int:
        """The number of requests that wait for a slot. Any thread."""
        return len(self._ready)

    def schedule(self, due: float, request: Request) -> None:
        """Keep *request* until the epoch second *due*."""
        if CRASHING:
            crash_point("heap push")
        self._schedule.enter(due, request)

    def add(self, requests: list[Request]) -> None:
        """Run *requests* at once if processes are idle, otherwise through the ready queue."""
        if requests and (rest := self._mediator.offer(requests)):
            self._ready.put_many(rest)

    def give_up(self, requests: Sequence[Request]) -> None:
        """End *requests* that the broker may no longer have as UNCONFIRMED."""
        for request in requests:
            request.mark_acked()
        if requests:
            self._on_ended([(request, Outcome(UNCONFIRMED, text=UNKNOWN)) for request in requests])

    def take_found_again(self) -> list[Request]:
        """Take out the ended requests whose end another worker would determine, too."""
        return self._ready.drop_reports(lambda request: not request.acked and _ended_by(request, FOUND_AGAIN))

    def end_reports(self) -> list[Request]:
        """End the requests whose end no child can report any more, without their errbacks. Return those that
        another worker can run again: their time was over, and they are delivered again as if this worker had
        been killed before."""
        again = self._ready.drop_reports(lambda request: not request.acked and _ended_by(request, RUN_AGAIN))
        if ended := [
            (request, request.failing.outcome._replace(reported=True))
            for request in self._ready.drop_reports(lambda request: True)
            if request.failing is not None
        ]:
            self._on_ended(ended)
        return again

    def keep(self, requests: Sequence[Request]) -> list[Request]:
        """Put those *requests* back into the ready queue that cannot go to another worker, because they are
        acked, or have ended and a child must report it. Return the others.

        requests: from the end of the ready queue, last one first.
        """
        kept = [request for request in requests if request.acked or request.failing is not None]
        self._ready.put_back(reversed(kept))
        return [request for request in requests if not request.acked and request.failing is None]

    def take_all(self) -> list[Request]:
        """Take out all requests that have not ended, and are not in the pool."""
        return [*self._mediator.early.take(), *self._ready.clear(), *self._schedule.schedule.clear()]

    def lease_lost(self) -> list[Request]:
        """Take out the requests that other workers have now; keep acked ones, which no other worker has."""
        reports = self._ready.drop_reports(lambda request: not request.acked)
        waiting = [*reports, *self._pool.recall(), *self._ready.clear(), *self._schedule.schedule.clear()]
        self._ready.put_back(request for request in waiting if request.acked)
        return [request for request in waiting if not request.acked]

    def recall(self) -> None:
        """Recall requests that have not begun from the pool. Any thread."""
        self._ready.put_back(self._pool.recall())

    def revoked(self, request: Request) -> None:
        """Handle a revocation of *request*, which may be running."""
        if self._schedule.schedule.remove(request):
            self._on_ended([(request, Outcome(REVOKED, text="revoked"))])
            return
        # If it is in the pool but has not begun, it returns to the ready queue, and the mediator drops it.
        self.recall()
        revocation = request.revocation
        if request.failing is not None:
            return  # a child reports its end to the calls after it, which would wait forever
        if revocation.terminate and self._pool.terminate(request, revocation.signal):
            logger.warning("Task %s[%s] is terminated on request", request.name, request.id)


def _ended_by(request: Request, kinds: Collection[str]) -> bool:
    return request.failing is not None and request.failing.outcome.kind in kinds
