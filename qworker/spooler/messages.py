"""MessageConsumer: the messages of ``spool://``, claimed by the worker that runs them.

Comes from:  the Listener; the directories of the queues.
Goes to:     messages, each with its file locked until it is settled.
Thread:      listener, but for wake().
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import InvalidPacket
from qworker.spooler.claiming import Claim as FileClaim
from qworker.spooler.consumer import DirectoryConsumer, Lane, Order
from qworker.spooler.message_files import AT_ONCE, from_file, tag_of
from qworker.transports.lease import Ack, DeadLetter, Leased, Release

logger = logging.getLogger(__name__)

LATEST = 2.0**53
"""The epoch second before which every time of a file is."""


class _Held(NamedTuple):
    claim: FileClaim
    leased: Leased


class MessageConsumer(DirectoryConsumer[Lane]):
    """Holds the locks of what it has given out."""

    def __init__(
        self, open_lanes: Callable[[Sequence[str]], list[Lane]], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(open_lanes, clock)
        self._held: dict[int, _Held] = {}
        self._stuck: list[FileClaim] = []
        """What has ended, and could not be settled."""

    def _forget(self) -> None:
        for held in self._held.values():
            held.claim.let_go()
        self._held.clear()
        self._stuck.clear()

    def offer_again(self) -> None:
        """Nothing: whoever consumes this broker alone keeps what it has."""

    def _take(self, lane: Lane, limit: int) -> list[Leased]:
        while (claim := lane.directory.next()) is not None:
            try:
                leased = self._read(claim)
            except InvalidPacket as error:
                try:
                    claim.set_aside(str(error))
                except OSError as problem:
                    claim.decline()
                    logger.error("%s cannot be set aside, and is left alone: %s", claim.path, problem)
                continue
            self._held[leased.tag] = _Held(claim, leased)
            return [leased]
        return []

    def _read(self, claim: FileClaim) -> Leased:
        deliveries = claim.attempts
        requeued, redelivered = divmod(claim.returns, 2)
        return from_file(
            claim.pairs,
            claim.body,
            self._tag(claim),
            due=claim.due(),
            deliveries=deliveries,
            requeued=requeued,
            redelivered=bool(redelivered or deliveries),
        )

    def _tag(self, claim: FileClaim) -> int:
        tag = tag_of(claim.name, claim.inode)
        while tag in self._held:  # two processes sent within the same microsecond
            tag += 1
        return tag

    def settle_held(self, orders: Sequence[Order]) -> set[int]:
        for order in orders:  # all or none of them: what is refused is told apart by settling it alone
            if isinstance(order, Release) and order.due is not None and not abs(order.due) < LATEST:
                raise ValueError(f"no file can be due at {order.due!r}")
        lost: set[int] = set()
        for order in orders:
            held = self._held.pop(order.tag, None)
            if held is None:
                lost.add(order.tag)
                continue
            try:
                self._settle(held.claim, held.leased, order)
            except OSError as error:
                # It has ended, and must not run again: it stays locked as long as this process lives.
                self._stuck.append(held.claim)
                logger.error("%s cannot be settled, and stays locked: %s", held.claim.path, error)
        return lost

    def _settle(self, claim: FileClaim, leased: Leased, order: Order) -> None:
        if isinstance(order, Ack):
            claim.finish()
            return
        if order.counted:
            claim.begin()
        if isinstance(order, DeadLetter):
            claim.set_aside(str(order.reason))
            return
        if order.redelivered or order.requeued:
            claim.note_returns(
                (leased.requeued + order.requeued) * 2 + (order.redelivered or claim.returns % 2)
            )
        due = AT_ONCE if order.due is None else order.due
        if order.due is None and leased.due is not None:
            due = leased.due
        claim.give_back_for(due)
