"""Settler: turns the ends of requests into orders to the Listener, with the results to store.

Comes from:  the pool (outcomes of runs), Mediator (requests that must not run), Intake (messages that cannot
             run).
Goes to:     the Listener's mailbox; through ResultWriter if results have a separate store.
Thread:      any: immutable, except for a list that only grows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qworker.components.ending import outcomes
from qworker.components.ending.result_writer import ResultWriter, carries_result
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.request import MOST_DEATHS, Failing, Request, UnreadableMessage
from qworker.components.status.counters import Counters, EndedRun
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.tasks.outcome import (
    COPY,
    FAILURE,
    INTERRUPTED,
    INVALID,
    LEASE_EXPIRED,
    LOST,
    RETRY,
    SUCCESS,
    TERMINATED,
    TIME_LIMIT,
    UNSTARTED,
    Outcome,
)
from qworker.transports.lease import Ack, DeadLetter, Part, ResultRow, Settlement, Store

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)


def _runs(ends: Iterable[tuple[Request, Outcome]]) -> Iterator[EndedRun]:
    """Return the runs in *ends* for the counters."""
    for request, outcome in ends:
        label = outcomes.OUTCOMES[outcome.kind].label
        if label is not None:
            yield EndedRun(request.name, label, outcome.runtime)


class Settler:
    """mailbox: of the Listener. writer: None if results are stored with the ack. counters: None if they are
    not exposed."""

    def __init__(
        self,
        app: QWorker,
        ready: ReadyQueue,
        mailbox: Mailbox[SettlementOrder],
        writer: ResultWriter | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._app = app
        self._ready = ready
        self._mailbox = mailbox
        self._writer = writer
        self._counters = counters
        self.cut: list[str | None] = []
        """Ids of tasks interrupted since the worker began to stop. Any thread appends."""
        self._ending = False

    def quiet(self) -> None:
        """Record that the worker stops, so that later interruptions are counted in ``cut``."""
        self._ending = True

    def ended(self, ends: Sequence[tuple[Request, Outcome]]) -> None:
        """Settle requests that ended or must not run; put back those that did not start."""
        orders, waiting, ended = [], [], []
        app, now = self._app, self._app.clock.now()
        for request, outcome in ends:
            if self._ending and outcome.kind == INTERRUPTED:
                self.cut.append(request.id)
            known = request.failing
            if outcome.kind == INVALID and request.acked and known is None:
                orders.append(_sent_again(request, outcome))
                continue
            if known is not None and (again := _again(known, outcome)) is not None:
                request.failing = again
                waiting.append(request)
                continue
            if known is not None:
                outcome = _answered(known.outcome, outcome, request.time_limit)
            elif (failing := outcomes.failing(app, request, outcome, now)) is not None:
                request.failing = failing
                waiting.append(request)
                continue
            ended.append((request, outcome))
            settlement = outcomes.end(app, request, outcome, now)
            if settlement is None:
                waiting.append(request)
            else:
                orders += [_along(row, parts) for row, parts in outcome.follow]
                order = _order(request, settlement)
                orders.append(order._replace(after_others=True) if outcome.follow else order)
        if self._counters is not None:
            self._counters.count(_runs(ended))
        if waiting:
            self._ready.put_back(waiting)
        self._post_many(orders)

    def started(self, rows: Sequence[tuple[Request, ResultRow]]) -> None:
        """Store the state STARTED of running requests."""
        self._post_many([SettlementOrder(request, Store(row), final=False) for request, row in rows])

    def refuse(self, request: Request | UnreadableMessage, outcome: Outcome) -> bool:
        """Settle a message that was not accepted, without counting it.

        Return True if it has to be accepted after all, because a child must report its end to the calls in
        it.
        """
        if isinstance(request, Request):
            request.failing = outcomes.failing(self._app, request, outcome, self._app.clock.now())
            if request.failing is not None:
                return True
        settlement = outcomes.end(self._app, request, outcome, self._app.clock.now())
        if settlement is not None:
            # The message may come again until this is confirmed. A copy has the signature of another message.
            known = request if isinstance(request, Request) and outcome.kind != COPY else None
            self._post_many([SettlementOrder(known, settlement)])
        return False

    def settle(self, settlement: Settlement) -> None:
        """Settle a message that has no request."""
        self._post_many([SettlementOrder(None, settlement)])

    def _post_many(self, orders: list[SettlementOrder]) -> None:
        """Send orders to the Listener; those with results through the writer, if there is one."""
        if self._writer is None:
            self._mailbox.post_many(orders)
            return
        self._writer.mailbox.post_many(order for order in orders if carries_result(order))
        self._mailbox.post_many(order for order in orders if not carries_result(order))


def _again(failing: Failing, outcome: Outcome) -> Failing | None:
    """Return what another child must report after the one that reported *failing* ended with *outcome*; None
    for nothing."""
    if outcome.reported or failing.deaths > MOST_DEATHS or outcome.kind not in (LOST, TERMINATED, TIME_LIMIT):
        return None
    # Errbacks that took too long would do so again, so they are not run again.
    least = MOST_DEATHS if outcome.kind == TIME_LIMIT else 0
    return failing._replace(deaths=max(failing.deaths + 1, least))


def _answered(failing: Outcome, outcome: Outcome, limit: float | None) -> Outcome:
    """Return the end of a request whose end *failing* was reported by a child, which returned *outcome*.

    limit: the time limit in seconds.
    """
    if outcome.kind in (RETRY, SUCCESS, FAILURE):
        return outcome._replace(runtime=limit or 0.0)
    return outcome if outcome.reported or outcome.kind in (UNSTARTED, LEASE_EXPIRED) else failing


def _sent_again(request: Request, outcome: Outcome) -> SettlementOrder:
    """Return the order to send *request* again, which was acked and cannot be read. It becomes a dead letter
    when it returns, because it is not acked early then."""
    logger.warning(
        "Task %s[%s] cannot be read, and is sent again to be kept as a dead letter: %s",
        request.name, request.id, outcome.text,
    )  # fmt: skip
    request.acks_late = True
    return SettlementOrder(request, None, resend=True)


def _along(row: ResultRow, parts: Sequence[Sequence[Any]]) -> SettlementOrder:
    """Return the order to store the result of a call that ends with a request."""
    return SettlementOrder(None, Store(row, tuple(Part(*part) for part in parts)))


def _order(request: Request, settlement: Settlement) -> SettlementOrder:
    """Return the order for *settlement* of *request*."""
    if not request.acked:
        return SettlementOrder(request, settlement)
    # The message is gone: only the result and the parts are left to store.
    if not isinstance(settlement, Ack | DeadLetter) or not (settlement.row or settlement.parts):
        return SettlementOrder(request, None)
    return SettlementOrder(request, Store(settlement.row, settlement.parts))
