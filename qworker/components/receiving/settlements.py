"""Settlements: sends settlements to the broker, and replaces those that it refuses.

Comes from:  Listener, with the settlements of a turn.
Goes to:     the store; refused settlements are changed and sent again until accepted.
Thread:      listener.

An unavailable store raises BrokerUnavailable, LeaseLost or ConfigurationError, and is retried without limit.
Any other error is caused by a settlement, for example a result that is too large. Then the batch is split
until the invalid settlements are alone, so that they block no others. A refused result is replaced by a
failure of the same task with the reason; if that is refused too, the message becomes a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from qworker import states
from qworker.conf import mask_urls
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.safe_repr import printable, safe_repr
from qworker.transports.lease import (
    Ack,
    Consumer,
    DeadLetter,
    Part,
    Release,
    ResultRow,
    RowsLocked,
    Settlement,
    Store,
)

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

ABSENT = (BrokerUnavailable, LeaseLost, ConfigurationError)
"""Errors of an unavailable store."""
PORTION_BYTES = 2 * 1024**2
"""Maximum bytes of results stored in one step; the settlement that exceeds it is the last. Servers limit the
size of a request, and after an outage there may be many settlements. On a slow network, one that takes too
long is cut off: see SENDING_SECONDS of ``transports/sql/reclaim.py``."""
LONGEST = 500
"""Maximum characters of a quoted error or reason."""
LATER_SECONDS = 60.0
"""Delay of a message that can neither be settled nor dead-lettered."""


class Settlements:
    """consumer: of the broker of *app*. on_parts: called when parts of joins were recorded."""

    def __init__(self, app: QWorker, consumer: Consumer, on_parts: Callable[[], None] = lambda: None) -> None:
        self._on_parts = on_parts
        self._app = app
        self._consumer = consumer
        self._generation = 0
        self._settled: set[int] = set()
        """Tags settled by a carry_out() that then failed, and will be repeated."""
        self._lost: set[int] = set()
        self._unanswered: set[int] = set()
        """Tags that the store may have settled without an answer."""
        self._early: frozenset[int] = frozenset()
        self.uncertain: set[tuple[int, int]] = set()
        """Generation and tag of early acks that were sent and are not confirmed. The listener writes."""

    def carry_out(
        self, generation: int, settlements: Sequence[Settlement], early: Iterable[int] = ()
    ) -> set[int]:
        """Settle like Consumer.settle(), but replace and log settlements that the store refuses.

        early: tags of early acks among them, to be added to *uncertain*.

        Raises only ABSENT. Then call it again with the same settlements, and perhaps more.
        """
        self._early = frozenset(early)
        if generation != self._generation:
            self._generation, self._settled, self._lost, self._unanswered = generation, set(), set(), set()
        if self._settled:
            settlements = [
                each for each in settlements if isinstance(each, Store) or each.tag not in self._settled
            ]
        clock, seconds = self._app.clock.monotonic, self._app.conf.worker_lease_seconds / 3
        renew_at = clock() + seconds
        for portion in _portions(settlements):
            if clock() >= renew_at:
                self._consumer.extend()
                renew_at = clock() + seconds
            self._settle(portion)
        if again := self._lost & self._unanswered:
            self._lost = self._lost.difference(self._consumer.settled_before(again))
        lost, self._settled, self._lost = self._lost, set(), set()
        self._unanswered.clear()  # all of them were settled again
        if any(type(each) is not Release and each.parts for each in settlements):  # type: ignore[union-attr]
            self._on_parts()
        return lost

    def store(self, results: Sequence[Store]) -> Iterator[int]:
        """Store *results* without a lease. Yields the number of results of each step. Raises ABSENT."""
        for portion in _portions(results):
            self._settle(portion)
            yield len(portion)

    def confirm(self) -> None:
        """Return once the settlements are confirmed, like Consumer.confirm(). If it raises, the early acks
        have to be carried out again."""
        try:
            self._consumer.confirm()
        except (BrokerUnavailable, ConfigurationError):
            self._unanswered.update(
                tag for generation, tag in self.uncertain if generation == self._generation
            )
            raise
        self.uncertain.clear()

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        new = set()
        if self._early:
            tags = (each.tag for each in settlements if type(each) is Ack)
            new = {(self._generation, tag) for tag in tags if tag in self._early} - self.uncertain
            self.uncertain |= new
        try:
            lost = self._consumer.settle(self._generation, settlements)
        except RowsLocked:  # an answer: nothing is settled
            self.uncertain -= new
            raise
        except (BrokerUnavailable, ConfigurationError):
            self._unanswered.update(each.tag for each in settlements if not isinstance(each, Store))
            raise
        except ABSENT:
            raise
        except Exception as error:  # noqa: BLE001 - one invalid settlement must not block the others
            self.uncertain -= new
            if len(settlements) > 1:
                logger.debug(
                    "%d settlements are refused, and tried separately: %s", len(settlements), _shown(error)
                )
                middle = len(settlements) // 2
                self._settle(settlements[:middle])
                self._settle(settlements[middle:])
                return
            lost = self._settle_otherwise(settlements[0], error)
        self._settled.update(each.tag for each in settlements if not isinstance(each, Store))
        self._lost |= lost
        if lost:
            carried_out = self._consumer.in_doubt(lost)
            self.uncertain -= {each for each in new if each[1] in lost and each[1] not in carried_out}

    def _settle_otherwise(self, settlement: Settlement, error: Exception) -> set[int]:
        why = f"the broker refused its outcome: {_shown(error)}"
        logger.error("%s: %s", _named(settlement), why)
        logger.debug("traceback of this error", exc_info=error)
        # The broker keeps the message then, so it must not run now.
        refused = {settlement.tag} if isinstance(settlement, Ack) and settlement.tag in self._early else set()
        self._unanswered -= refused
        for other in self._others(settlement, why):
            try:
                lost = self._consumer.settle(self._generation, [other])
                if not lost:  # the broker had it: no earlier attempt was carried out
                    self.uncertain -= {(self._generation, tag) for tag in refused}
                return refused | lost
            except ABSENT:
                raise
            except Exception as again:  # noqa: BLE001 - as in _settle(); try the next replacement
                logger.debug("%s is refused too: %s", type(other).__name__, _shown(again))
        if not isinstance(settlement, Store):
            logger.critical("%s cannot be settled: it is held until this worker ends", _named(settlement))
        return refused

    def _others(self, settlement: Settlement, why: str) -> Iterator[Settlement]:
        """Yield replacements for a refused *settlement*, the best first."""
        row = None if isinstance(settlement, Release) else settlement.row
        failure = None if row is None else self._failure_row(row, why)
        parts = () if isinstance(settlement, Release) else _failed(settlement.parts)
        if isinstance(settlement, Store):
            if failure is not None:
                yield Store(failure, parts)
            if parts:
                yield Store(None, parts)
            return
        tag = settlement.tag
        if tag in self._early:
            yield Release(tag, self._app.clock.now() + LATER_SECONDS)
            return
        counted = False
        if isinstance(settlement, Ack):
            if failure is not None:
                yield Ack(tag, failure, parts)
        elif isinstance(settlement, Release):
            counted = settlement.counted
            yield Release(tag, counted=counted)
        else:
            counted = settlement.counted
            why = f"{safe_repr(settlement.reason, LONGEST)}; {why}"
            for each in (row, failure):
                if each is not None:
                    yield DeadLetter(tag, why, each, counted, parts)
        yield DeadLetter(tag, why, counted=counted, parts=parts)
        yield DeadLetter(tag, "the broker refused its outcome", counted=counted)
        if isinstance(settlement, Ack):
            yield Ack(tag)  # the task has run, and would otherwise run again and again
        else:
            yield Release(tag, self._app.clock.now() + LATER_SECONDS)

    def _failure_row(self, row: ResultRow, why: str) -> ResultRow | None:
        """Return a row with the reason *why*: FAILURE if the task has ended, else its state. None if there is
        nothing to store."""
        task_id, status = row[:2]
        if status == states.STARTED:
            return None
        try:
            state = states.FAILURE if status in states.READY_STATES else status
            return self._app.backend.row_why_not(row, state, BackendError(why))
        except Exception as error:  # noqa: BLE001 - a third-party result store
            logger.debug("no row can be made from %.100r: %s", task_id, _shown(error))
            return None


def _failed(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return *parts* as failed, because the result could not be stored."""
    return tuple(part._replace(status=states.FAILURE) for part in parts)


def _portions(settlements: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    start = size = 0
    for position, settlement in enumerate(settlements):
        row = None if isinstance(settlement, Release) else settlement.row
        if row is not None:
            size += _size(row)
            if size >= PORTION_BYTES:
                yield settlements[start : position + 1]
                start, size = position + 1, 0
    if start < len(settlements):
        yield settlements[start:]


def _named(settlement: Settlement) -> str:
    row = None if isinstance(settlement, Release) else settlement.row
    names = [] if row is None else [f"task {safe_repr(row[0], 80)}"]
    if not isinstance(settlement, Store):
        names.append(f"message {settlement.tag}")
    return " in ".join(names) or "parts of a join"


def _size(row: ResultRow) -> int:
    payload: object = row[2]
    return len(payload) if isinstance(payload, bytes) else 0


def _shown(error: Exception) -> str:
    """Return *error* as one short line; some errors contain all the data to be sent."""
    return mask_urls(printable(f"{type(error).__name__}: {error}"[:LONGEST]))
