"""ResultWriter: stores results in a store that is not the broker's, before the messages are acked.

Comes from:  Settler, with orders to settle that carry rows.
Goes to:     the result backend, as many rows at a time as have come; then the orders go to the Listener.
Thread:      result writer; no other thread of the worker, and no task, ever waits for a result store.

A store that is away is asked for ever; no message is settled before its result is stored. What waits here
counts as held, so that a worker whose store is away soon takes no more messages.

A third party's store that raises anything but our errors is taken for away, too, but not for ever. After
TRIES each result is tried by itself, and one that is refused again becomes a failure that says so. Where not
even that is taken, the message becomes a dead letter: the task is not lost, and the worker goes on.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from qworker import states
from qworker.components.component import ThreadComponent
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.conf import mask_urls
from qworker.errors import BackendError, EncodeError, QWorkerError
from qworker.publishing.retry import RECONNECT
from qworker.safe_repr import safe_repr
from qworker.transports.lease import Ack, DeadLetter, Part, ResultRow, Store

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Between two rounds of deleting expired results."""
MAX_BATCH = 256
"""How many rows are stored at a time, and"""
MAX_BATCH_BYTES = 4 * 1024**2
"""how many bytes of them: the row that goes over it is the last."""
TRIES = 20
"""How often a store may fail in a way that it should not: about a quarter of a minute."""
UNFIT = (EncodeError, UnicodeError)
"""What a store raises for a row that it can never take."""
UNIT_BYTES = 65536
"""Of a result that waits: as much as this is held like one more message."""


class ResultWriter(ThreadComponent):
    """post: gives orders to the Listener. record: records the parts of joins."""

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
        self._waiting: deque[SettlementOrder] = deque()  # this thread only, as all below
        self._units = 0
        self._failures = 0
        self._faults = 0
        """How many of these were errors that a store should not raise."""
        self._retry_at = 0.0
        self._sweep_at = 0.0
        self._timeout: float = app.conf.result_store_patience

    def held(self) -> int:
        """How many messages wait for their results to be stored; large results count as more. Any thread."""
        return self._units + len(self.mailbox)

    def opened(self) -> None:
        """Say at the start what would otherwise come out with the first result."""
        backend = self._app.backend
        if not backend.supports_locks:
            return  # it stores nothing at all
        if not backend.persistent and self._app.conf.worker_pool == "prefork":
            logger.warning(
                "results are kept in memory (%s), where only this worker sees them: set result_backend, "
                "or use --pool threads and ask for them in the same process",
                backend.safe_url,
            )
        probe = f"qworker-probe-{os.getpid()}"
        try:
            backend.add(probe, 1.0)
            backend.delete(probe)
        except BackendError as error:
            logger.error("results cannot be stored: %s. Tasks are not acknowledged until they can", error)
        except QWorkerError:
            raise  # what is configured is wrong
        except Exception:  # a third party's store
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
                self._store(batch)
            except BackendError as error:
                return self._try_later(now, f"does not answer: {error}")
            except Exception as error:  # a third party's store: it must not stop the worker
                self._faults += 1
                if self._faults == 1:
                    logger.exception(
                        "the result store raised what it should not: when it is away, that is BackendError"
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
                self._post([_stripped(order) for order in batch if order.final or order.starts])
            self._failures = self._faults = 0
        return self._sweep(now)

    def _try_later(self, now: float, how: str) -> float:
        """Note that the store could not be used, and say so; return for how many seconds to let it be."""
        delay = max(RECONNECT.delay(self._failures, random.random), 0.05)
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
        """Nothing of *order*, which waited longest, is left to store."""
        self._waiting.popleft()
        self._units -= _units(order)

    def _give_up(self, batch: list[SettlementOrder]) -> None:
        """Try the row of each order once more, by itself, and go on without those that are refused."""
        for order in batch:
            left = _stripped(order)
            try:
                self._store([order])
            except BackendError:
                raise
            except Exception as error:  # noqa: BLE001 - as in step()
                left = self._without_result(order, error)
            self._done(order)
            if order.final or order.starts:
                self._post([left])

    def _without_result(self, order: SettlementOrder, error: Exception) -> SettlementOrder:
        """What is to become of *order*, whose row the store has refused for the last time."""
        row = _row(order)
        if row is None:
            return _stripped(order)
        task_id, status, *_ = row
        why = f"the result store failed: {_shown(error)}"
        settlement = order.settlement
        try:
            if status in states.READY_STATES and self._store_why_not(row, BackendError(why)):
                return _stripped(order)
        except BackendError:
            raise
        except Exception:  # as in step()
            logger.debug("the traceback of that", exc_info=True)
        if isinstance(settlement, Ack):
            logger.error(
                "state %s of %s is not stored, and its message is a dead letter: %s", status, task_id, why
            )
            return order._replace(settlement=DeadLetter(settlement.tag, why))
        logger.error("state %s of %s is not stored: %s", status, task_id, why)
        return _stripped(order)

    def _batch(self) -> list[SettlementOrder]:
        """The orders whose rows are stored next: they stay in what waits until that is done."""
        size, count = 0, 0
        for order in islice(self._waiting, MAX_BATCH):
            count += 1
            size += _size(order)
            if size >= MAX_BATCH_BYTES:
                break
        return list(islice(self._waiting, count))

    def _store(self, batch: list[SettlementOrder]) -> None:
        backend = self._app.backend
        rows = [row for order in batch if (row := _row(order)) is not None]
        parts = [part for order in batch for part in _parts(order)]
        try:
            backend.store_rows(rows)
        except UNFIT:  # one of them is to blame, and must not keep the others
            for row in rows:
                try:
                    backend.store_rows([row])
                except UNFIT as error:
                    self._store_why_not(row, error)
                    parts = [
                        part._replace(status=states.FAILURE) if part.task_id == row[0] else part
                        for part in parts
                    ]
        if parts:
            self._record(parts)  # after the results, which whoever finishes a join is going to read

    def _store_why_not(self, refused: ResultRow, error: Exception) -> bool:
        """The store will never take this result: it is a failure for who waits for it. False when it does not
        take that either."""
        logger.error("the result of %s cannot be stored: %s", refused[0], _shown(error))
        backend = self._app.backend
        try:
            why = error if isinstance(error, QWorkerError) else BackendError(_shown(error))
            row = backend.row_why_not(refused, states.FAILURE, why)
            if row is not None:
                backend.store_rows([row])
        except UNFIT:
            logger.error("nor can be that it failed")
            return False
        return True

    def _sweep(self, now: float) -> float:
        """Delete expired results now and then; return the seconds until the next time."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            try:
                self._app.backend.sweep(self.clock.now())
            except Exception as error:  # noqa: BLE001 - a third party's store: the next round may do better
                logger.warning("expired results could not be deleted: %s", error)
        return self._sweep_at - now

    def closed(self) -> None:
        """Store what still waits, within the patience of the setting: what is not stored will be decided
        again."""
        deadline = self.clock.monotonic() + self._timeout
        self._retry_at = 0.0
        while self._waiting or len(self.mailbox):
            pause = self.step(self.clock.monotonic()) or 0.0
            if self._waiting:
                if self.clock.monotonic() + pause > deadline:
                    logger.error(
                        "%d results were not stored: those tasks will come again", len(self._waiting)
                    )
                    return
                self.clock.sleep(pause)


def carries_result(order: SettlementOrder) -> bool:
    """Whether there is a result to store, or a part to record, before *order* is carried out."""
    return order.after_others or _row(order) is not None or bool(_parts(order))


def _row(order: SettlementOrder) -> ResultRow | None:
    return getattr(order.settlement, "row", None)


def _parts(order: SettlementOrder) -> tuple[Part, ...]:
    return getattr(order.settlement, "parts", ())


def _shown(error: Exception) -> str:
    return mask_urls(safe_repr(error))


def _units(order: SettlementOrder) -> int:
    return 1 + _size(order) // UNIT_BYTES


def _size(order: SettlementOrder) -> int:
    """Bytes of the result."""
    row = _row(order)
    return 0 if row is None else len(row[2])


def _stripped(order: SettlementOrder) -> SettlementOrder:
    """What is left to do once the row is stored."""
    settlement = order.settlement
    if isinstance(settlement, Ack | DeadLetter):
        return order._replace(settlement=settlement._replace(row=None, parts=()))
    return order._replace(settlement=None) if isinstance(settlement, Store) else order
