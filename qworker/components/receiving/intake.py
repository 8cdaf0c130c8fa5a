"""Intake: handles one received message.

Comes from:  Listener, with a leased message.
Goes to:     Listener: a Request to run; or Settler, for one that does not run.
Thread:      listener.

Unknown tasks are put back a few times, with growing delays, because a newer worker may know them; then they
are dead-lettered. Unreadable messages are dead-lettered at once. No message can stop the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from qworker import signals, states
from qworker.components import request as requests
from qworker.components.receiving.ledger import WorkerState
from qworker.components.request import Failing, Request, SignalRequest, UnreadableMessage
from qworker.errors import MessageError, NotRegistered
from qworker.message.exceptions import exception_to_dict
from qworker.message.reading import may_embed
from qworker.naming import close_tasks
from qworker.tasks.builtins import STAND_IN
from qworker.tasks.outcome import COPY, EXPIRED, POISONED, REVOKED, UNKNOWN, UNREADABLE, Outcome
from qworker.transports.lease import Ack, Leased, Release, Settlement

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)


class Intake:
    """settle, refuse: called for messages that do not run; see Settler."""

    def __init__(
        self,
        app: QWorker,
        state: WorkerState,
        settle: Callable[[Settlement], None],
        refuse: Callable[[Request | UnreadableMessage, Outcome], bool],
    ) -> None:
        self._app = app
        self._state = state
        self._settle = settle
        self._refuse = refuse
        self._accept = frozenset(app.conf.accept_content)
        self._unknown_delays: tuple[float, ...] = tuple(app.conf.task_unknown_delays)
        self._eta_window: float = app.conf.worker_eta_window

    def take(self, leased: Leased, generation: int, wall: float) -> Request | None:
        """Return the request to run; None if the message needs none."""
        try:
            request = requests.receive(self._app, leased, generation, self._accept)
        except NotRegistered as error:
            return self._unknown(leased, generation, error, wall)
        except MessageError as error:
            unreadable = UnreadableMessage(leased, error, {})
            self._refuse(unreadable, Outcome(UNREADABLE, text=requests.refusal(error)))
            return None
        known = self._state.settlement_of(request)
        if known is not None:  # it ran here under a lease that was lost
            self._settle(known)
            return None
        running = self._state.requests.get(request.key)
        if running is not None:  # it is still running here: its end settles this delivery
            running.generation = generation
            if running.acked:  # the broker has forgotten it
                self._settle(Ack(leased.tag))
            return None
        if self._state.is_copy(request):
            # The broker drops the copy. No task is lost: the original has run here, or will.
            reason = "SecurityError: it is a copy of a signed message that this worker has already received"
            self._refuse(request, Outcome(COPY, text=reason))
            return None
        if request.task.max_deliveries and requests.is_poisoned(leased, request.task.max_deliveries):
            deaths = leased.deliveries
            which = f"each of {deaths} deaths" if deaths > 1 else "the death"
            how = f"it was running at {which} of its process or worker"
            return self._drop(request, Outcome(POISONED, text=how))
        revocation = self._state.revoked.get(request.id)
        if revocation is not None:
            return self._drop(request, Outcome(REVOKED, text="revoked"))
        if request.expires is not None and request.expires <= wall:
            return self._drop(request, Outcome(EXPIRED, text="expired"))
        if request.eta is not None and request.eta > wall and leased.due is None:
            # The sender did not set the due time in the broker: put it back to wait there.
            self._settle(Release(leased.tag, request.eta))
            return None
        if self._state.was_unread(request):
            request.acks_late = True  # an early ack would lose it
        self._state.enter(request)
        if signals.task_received.receivers:
            request.__class__ = SignalRequest
            signals.task_received.send(request.task, request=request)
        if request.is_suspect:
            logger.warning(
                "Task %s[%s] was involved in %d %s, so it runs separately from other tasks",
                request.name, request.id, leased.deliveries, "death" if leased.deliveries == 1 else "deaths",
            )  # fmt: skip
        logger.debug("Task %s[%s] received", request.name, request.id)
        return request

    def _drop(self, request: Request, outcome: Outcome) -> Request | None:
        """Settle *request*, which does not run; return it if a child has to report to the calls in it."""
        if not self._refuse(request, outcome):
            return None
        self._state.enter(request)
        return request

    def _unknown(self, leased: Leased, generation: int, error: NotRegistered, wall: float) -> Request | None:
        """Put *leased* back, or dead-letter it; return the request if a child has to report to the calls in
        it."""
        app, name = self._app, error.name
        request: Request | None
        try:
            request = requests.receive(app, leased, generation, self._accept, app.tasks[STAND_IN])
        except MessageError:
            request = None
        task_id = None if request is None else request.id
        if signals.task_unknown.receivers:
            signals.task_unknown.send(self._app, message=leased, exc=error, name=name, id=task_id)
        if leased.requeued < len(self._unknown_delays):
            delay = self._unknown_delays[leased.requeued]
            logger.warning(
                "no task named %r is registered here (message %s in %s): putting it back for %g s",
                name, task_id or leased.tag, leased.queue, delay,
            )  # fmt: skip
            # Delayed messages are fetched before they are due, and this one would be counted again at once.
            due = max(leased.due or 0.0, wall + delay) + self._eta_window
            self._settle(Release(leased.tag, due, requeued=True))
            return None
        full = NotRegistered(name, close_tasks(name, app.tasks))
        outcome = Outcome(UNKNOWN, text=requests.refusal(full))
        if request is None:
            self._refuse(UnreadableMessage(leased, full, {}), outcome)
            return None
        if not may_embed(request.leased.body):
            self._refuse(UnreadableMessage(leased, full, request.headers), outcome)
            return None
        running = self._state.requests.get(request.key)
        if running is not None:
            running.generation = generation
            return None
        request.acks_late = True
        request.failing = Failing(outcome, states.FAILURE, exception_to_dict(full))
        self._state.enter(request)
        return request
