"""Settler: turns ends into letters to the Listener, with the result to store along or ahead of them.

Comes from:  the pool (how runs ended), Mediator (what is not to run), Intake (what cannot run).
Goes to:     the Listener's mailbox; through ResultWriter where results have a store of their own.
Thread:      any: it has no state but what it was built with.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qworker import signals
from qworker.components import request as requests
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool import contract
from qworker.components.pool.contract import Ended
from qworker.components.ready_queue import ReadyQueue
from qworker.components.request import Request
from qworker.components.result_writer import ResultWriter, carries_row
from qworker.components.status.counters import Counters, Run
from qworker.errors import EncodeError, InvalidTaskMessage, QWorkerError, TaskError
from qworker.tasks import execution
from qworker.transports.lease import Ack, Bury, Release, Settlement, Store

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

WHY = {
    contract.LOST: requests.LOST,
    contract.TIME_LIMIT: requests.TIME_LIMIT,
    contract.TERMINATED: requests.TERMINATED,
    contract.INTERRUPTED: requests.INTERRUPTED,
}
CUT_SHORT = {execution.INTERRUPTED: requests.INTERRUPTED, execution.TERMINATED: requests.TERMINATED}
"""Outcomes of runs that the worker cut short, to how it settles them."""


def _run(end: Ended) -> Run:
    """What is counted of an end."""
    outcome = end.outcome
    if outcome is None:
        return Run(end.request.name, WHY.get(end.why, requests.INTERRUPTED))
    return Run(end.request.name, outcome.kind, outcome.runtime)


class Settler:
    def __init__(self, app: QWorker, ready: ReadyQueue) -> None:
        self._app = app
        self._ready = ready
        self.listener: Mailbox[SettlementOrder]  # set by the worker, which builds both
        self.counters: Counters | None = None  # set by the worker when somebody may ask
        self.writer: ResultWriter | None = None  # None when results are stored with the ack

    # -- the pool's thread --

    def ended(self, ends: Sequence[Ended]) -> None:
        """Settle what left the pool; what had not started goes back to the ready queue."""
        if self.counters is not None:
            self.counters.count(_run(end) for end in ends if end.why != contract.UNSTARTED)
        letters, unstarted = [], []
        now = self._app.clock.now()
        for request, outcome, why, how in ends:
            if outcome is not None and outcome.kind not in CUT_SHORT:
                letters.append(self._outcome(request, outcome, now))
            elif why == contract.UNSTARTED:
                unstarted.append(request)
            else:
                end, how = (WHY[why], how) if outcome is None else (CUT_SHORT[outcome.kind], outcome.text)
                settlement, meta = requests.end(self._app, request, end, how, now)
                letters.append(self._letter(request, settlement, meta))
        if unstarted:
            self._ready.put_back(unstarted)
        self._post_many(letters)

    def _outcome(self, request: Request, outcome: execution.Outcome, now: float) -> SettlementOrder:
        settlement = requests.finish(request, outcome, now)
        if outcome.kind == execution.INVALID:
            meta = self._meta(request, InvalidTaskMessage(outcome.text))
            if signals.task_rejected.receivers:
                signals.task_rejected.send(self._app, message=request.leased, exc=outcome.text)
            return self._letter(request, settlement, meta)
        if outcome.kind == execution.FAILURE and outcome.row is None:
            # Its process could not even make a result of it (or none is wanted): there is a final state all
            # the same.
            meta = self._meta(request, TaskError(outcome.text))
            return self._letter(request, settlement, meta)
        return self._letter(request, settlement, None)

    def _meta(self, request: Request, error: QWorkerError) -> dict[str, Any] | None:
        return requests.result_meta(self._app, request.headers, request.leased.properties, error)

    def started(self, rows: Sequence[tuple[Request, tuple[Any, ...]]]) -> None:
        """Store the state STARTED of running requests."""
        self._post_many([SettlementOrder(request, Store(row), final=False) for request, row in rows])

    # -- mediator, listener --

    def end_here(self, request: Request, why: str, how: str) -> None:
        """Settle a request that is not to run after all."""
        if self.counters is not None:
            self.counters.count([Run(request.name, why)])
        settlement, meta = requests.end(self._app, request, why, how, self._app.clock.now())
        self.settle(request, settlement, meta)

    def settle(self, request: Request | None, settlement: Settlement, meta: dict[str, Any] | None) -> None:
        """Have *settlement* carried out, and *meta* stored with it."""
        letter = self._letter(request, settlement, meta)
        if self.writer is not None and carries_row(letter):
            self.writer.mailbox.post(letter)
        else:
            self.listener.post(letter)

    def park(self, request: Request, due: float) -> None:
        """Return a rate-limited request until epoch second *due*."""
        self.listener.post_many([SettlementOrder(request, Release(request.tag, due))])

    def _letter(
        self, request: Request | None, settlement: Settlement, meta: dict[str, Any] | None
    ) -> SettlementOrder:
        if meta is not None and isinstance(settlement, Ack | Bury):
            settlement = settlement._replace(row=self._row(meta))
        if request is not None and request.acked:  # the message is gone: only the result is left to store
            row = settlement.row if isinstance(settlement, Ack | Bury) else None
            return SettlementOrder(request, Store(row) if row is not None else None)
        return SettlementOrder(request, settlement)

    def _row(self, meta: dict[str, Any]) -> Any:
        try:
            return self._app.backend.row(meta["task_id"], meta)
        except EncodeError as error:
            logger.error("how task %s ended cannot be stored: %s", meta["task_id"], error)
            return None

    def _post_many(self, letters: list[SettlementOrder]) -> None:
        """To the Listener; through the writer what has a row, where results have a store of their own."""
        if self.writer is None:
            self.listener.post_many(letters)
            return
        self.writer.mailbox.post_many(letter for letter in letters if carries_row(letter))
        self.listener.post_many(letter for letter in letters if not carries_row(letter))
