"""ResultWriter: stores results in a store other than the broker's, before the messages are acked.

Comes from:  Settler, with settlement orders that contain rows.
Goes to:     the result backend, many rows at a time; then the orders go to the Listener.
Thread:      result writer; no other thread of the worker, and no task, waits for a result store.

An unavailable store is retried without limit; no message is settled before its result is stored. Waiting
results count as held messages, so a worker whose store is unavailable soon takes no more messages.

A third-party store that raises other errors is retried up to TRIES times. Then each result is tried
separately, and one that is refused again is replaced by a failure that says so. If that is refused too, the
message becomes a dead letter, so the task is not lost and the worker continues.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.components.component import ThreadComponent
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.conf import mask_urls
from qworker.errors import BackendError, EncodeError, QWorkerError
from qworker.process.randomness import RANDOM
from qworker.publishing.retry import RECONNECT
from qworker.safe_repr import safe_repr
from qworker.transports.lease import Ack, DeadLetter, Part, ResultRow, Store

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.backends.base import Backend

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Seconds between deletions of expired results."""
MAX_BATCH = 256
"""Maximum rows stored at a time."""
MAX_BATCH_BYTES = 4 * 1024**2
"""Maximum bytes stored at a time; the row that exceeds it is the last."""
TRIES = 20
"""Maximum number of unexpected errors of a store before results are given up; about 15 seconds."""
UNSTORABLE = (EncodeError, UnicodeError)
"""Errors of a store for a row that it can never store."""
UNIT_BYTES = 65536
"""A waiting result counts as one held message, and one more for each of these."""


class ResultWriter(ThreadComponent):
    """post: sends orders to the Listener. record: records the parts of joins."""

    name = "result writer"

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        post: Callable[[Iterable[SettlementOrder]], None],
        record: Callable[[Sequence[Part]], None] = lambda parts: None,
    ) -> None:
        super().__init__(app.clock, on_crash)
        self._app = app
        self._post = post
        self._record = record
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(self.wake)
        self._waiting: deque[SettlementOrder] = deque()  # this thread only, then store_left(); as all below
        self._units = 0
        self._failures = 0
        self._faults = 0
        """The number of failures that were unexpected errors."""
        self._retry_at = 0.0
        self._sweep_at = 0.0
        self._timeout: float = app.conf.result_store_patience

    def held(self) -> int:
        """Return how many messages wait for their results to be stored; large ones count more. Any thread."""
        return self._units + len(self.mailbox)

    def opened(self) -> None:
        """Report problems of the store at the start, not with the first result."""
        backend = self._app.backend
        if not backend.supports_locks:
            return  # it stores nothing
        if not backend.persistent and self._app.conf.worker_pool == "prefork":
            logger.warning(
                "results are kept in memory (%s), where only this worker sees them: set result_backend, or "
                "use --pool threads and read them in the same process",
                backend.safe_url,
            )
        probe = f"qworker-probe-{os.getpid()}"
        try:
            backend.add(probe, 1.0)
            backend.delete(probe)
        except BackendError as error:
            logger.error("results cannot be stored: %s. Tasks are not acknowledged until they can", error)
        except QWorkerError:
            raise  # the configuration is wrong
        except Exception:  # a third-party store
            logger.exception("the result store %s failed", backend.safe_url)

    def step(self, now: float) -> float | None:
        for order in self.mailbox.take():
            self._waiting.append(order)
            self._units += _units(order)
        if self._waiting and now < self._retry_at:
            return self._retry_at - now
        while self._waiting:
            batch = self._batch()
            try:
                unstored = self._store(batch)
            except BackendError as error:
                return self._try_later(now, f"does not answer: {error}")
            except Exception as error:  # a third-party store: it must not stop the worker
                self._faults += 1
                if self._faults == 1:
                    logger.exception(
                        "the result store raised an unexpected error: when it is unavailable, it should "
                        "raise BackendError"
                    )
                if self._faults < TRIES:
                    return self._try_later(now, f"failed: {_shown(error)}")
                try:
                    self._give_up(batch)
                except BackendError as away:
                    return self._try_later(now, f"does not answer: {away}")
            else:
                if self._failures:
                    logger.warning(
                        "the result store answers again after %d failures",
                        self._failures,
                        extra={"event": "result-store-back"},
                    )
                for order in batch:
                    self._done(order)
                self._post([_left(order, unstored) for order in batch if order.final or order.starts])
            self._failures = self._faults = 0
        return self._sweep(now)

    def _try_later(self, now: float, how: str) -> float:
        """Record and log that the store could not be used; return the seconds to wait."""
        delay = max(RECONNECT.delay(self._failures, RANDOM.random), 0.05)
        self._failures += 1
        self._retry_at = now + delay
        logger.warning(
            "the result store %s; trying again in %.1f s (%d results wait)",
            how,
            delay,
            len(self._waiting),
            extra={"event": "result-store-lost"},
        )
        return delay

    def _done(self, order: SettlementOrder) -> None:
        """Remove *order*, the oldest one, whose result is stored or given up."""
        self._waiting.popleft()
        self._units -= _units(order)

    def _give_up(self, batch: list[SettlementOrder]) -> None:
        """Try to store each order separately once more, and replace the results that are refused: by a
        failure, or, if that is refused too, by a dead letter."""
        for order in batch:
            unstored: dict[ResultRow, str] = {}
            row, parts = _row(order), list(_parts(order))
            if row is not None and (refused := self._refusal([row])) is not None:
                parts = _failed(parts)
                why = BackendError(f"the result store failed: {_shown(refused)}")
                if not store_why_not(self._app.backend, row, why, Exception):
                    unstored[row] = str(why)
            if (unrecorded := self._refusal([], parts)) is not None:
                logger.error(
                    "the end of %s cannot be recorded: %s; the calls after its group wait until they expire",
                    parts[0].task_id,
                    _shown(unrecorded),
                    extra={"event": "join-failed"},
                )
            self._done(order)
            if order.final or order.starts:
                self._post([_left(order, unstored)])

    def _refusal(self, rows: Sequence[ResultRow], parts: Sequence[Part] = ()) -> Exception | None:
        """Store *rows* and record *parts*; return an unexpected error of the store. Raises BackendError."""
        try:
            if rows:
                self._app.backend.store_rows(rows)
            if parts:
                self._record(parts)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - as in step()
            return error
        return None

    def _batch(self) -> list[SettlementOrder]:
        """Return the orders to store next, without removing them."""
        size, count = 0, 0
        for order in islice(self._waiting, MAX_BATCH):
            count += 1
            size += _size(order)
            if size >= MAX_BATCH_BYTES:
                break
        return list(islice(self._waiting, count))

    def _store(self, batch: list[SettlementOrder]) -> dict[ResultRow, str]:
        """Store the results and parts of *batch*; return the refused rows of which not even a failure is
        stored, and why."""
        backend = self._app.backend
        rows = [row for order in batch if (row := _row(order)) is not None]
        refused: set[ResultRow] = set()
        unstored: dict[ResultRow, str] = {}
        try:
            backend.store_rows(rows)
        except UNSTORABLE:  # one of them is invalid, and must not block the others
            for row in rows:
                try:
                    backend.store_rows([row])
                except UNSTORABLE as error:
                    refused.add(row)
                    if not store_why_not(backend, row, error, UNSTORABLE):
                        unstored[row] = f"the result store refuses it: {_shown(error)}"
        parts: list[Part] = []
        for order in batch:
            parts += _failed(_parts(order)) if _row(order) in refused else _parts(order)
        if parts:
            self._record(parts)  # after the results, because finishing a join reads them
        return unstored

    def _sweep(self, now: float) -> float:
        """Delete expired results from time to time; return the seconds until the next time."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            try:
                self._app.backend.sweep(self.clock.now())
            except Exception as error:  # noqa: BLE001 - a third-party store; tried again next time
                logger.warning("expired results could not be deleted: %s", error)
        return self._sweep_at - now

    def closed(self) -> None:
        """Store waiting results for up to ``result_store_patience``; tasks without a result run again."""
        deadline = self.clock.monotonic() + self._timeout
        self._retry_at = 0.0
        while self._waiting or len(self.mailbox):
            pause = self.step(self.clock.monotonic()) or 0.0
            if self._waiting:
                if self.clock.monotonic() + pause > deadline:
                    logger.error("%d results were not stored: those tasks will run again", len(self._waiting))
                    return
                self.clock.sleep(pause)

    def store_left(self) -> None:
        """Store the results of requests that were ended after this thread: they are posted while the worker
        stops. Called by the Listener, the last component that ends requests. Does nothing while earlier
        results wait for a store that does not answer."""
        if len(self.mailbox) and not self._waiting and not self.alive:
            self.closed()


def store_why_not(backend: Backend, refused: ResultRow, error: Exception, again: Any) -> bool:
    """Store a failure in place of a result that *backend* has refused with *error*; return False if that
    raises *again*, too. States before the end of the task are left out."""
    task_id, status, *_ = refused
    logger.error("state %s of %s cannot be stored: %s", status, task_id, _shown(error))
    if status not in states.READY_STATES:
        return True
    try:
        why = error if isinstance(error, BackendError | EncodeError) else BackendError(_shown(error))
        row = backend.row_why_not(refused, states.FAILURE, why)
        if row is not None:
            backend.store_rows([row])
    except BackendError:
        raise
    except again as problem:
        logger.error("its failure cannot be stored either: %s", _shown(problem))
        return False
    return True


def carries_result(order: SettlementOrder) -> bool:
    """Return whether a result or a part has to be stored before *order* is carried out."""
    return order.after_others or _row(order) is not None or bool(_parts(order))


def _row(order: SettlementOrder) -> ResultRow | None:
    return getattr(order.settlement, "row", None)


def _parts(order: SettlementOrder) -> tuple[Part, ...]:
    return getattr(order.settlement, "parts", ())


def _failed(parts: Sequence[Part]) -> list[Part]:
    return [part._replace(status=states.FAILURE) for part in parts]


def _left(order: SettlementOrder, unstored: Mapping[ResultRow, str]) -> SettlementOrder:
    """Return what is left of *order* when its result was stored, or cannot be, like those *unstored*."""
    row, settlement = _row(order), order.settlement
    why = None if row is None else unstored.get(row)
    if why is not None and isinstance(settlement, Ack):
        return order._replace(settlement=DeadLetter(settlement.tag, why))
    return _stripped(order)


def _shown(error: Exception) -> str:
    return mask_urls(safe_repr(error))


def _units(order: SettlementOrder) -> int:
    return 1 + _size(order) // UNIT_BYTES


def _size(order: SettlementOrder) -> int:
    """Return the bytes of the result."""
    row = _row(order)
    return 0 if row is None else len(row[2])


def _stripped(order: SettlementOrder) -> SettlementOrder:
    """Return *order* without its row and parts."""
    settlement = order.settlement
    if isinstance(settlement, Ack | DeadLetter):
        return order._replace(settlement=settlement._replace(row=None, parts=()))
    return order._replace(settlement=None) if isinstance(settlement, Store) else order
