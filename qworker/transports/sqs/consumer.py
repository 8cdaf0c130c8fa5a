"""The consumer of SQS: what it was given is hidden from others for as long as this worker lives.

Comes from:  the Listener, by ``Broker.consumer``.
Goes to:     ``queue.py``; each queue that is consumed has a thread that waits for its messages.
Thread:      the listener's, but for wake().

SQS hides a message that it gave to somebody for some seconds. That is our lease: it is renewed for as long as
this worker lives, so no task is too long for it. What is due later waits in SQS, which delays a message by up
to 15 minutes, and is sent on until it is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost, PublishError
from qworker.transports.kombu.consumer import NEWS, End, KombuConsumer
from qworker.transports.kombu.holdings import Held
from qworker.transports.kombu.messages import packed
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.kombu.server import DEAD
from qworker.transports.kombu.settling import dead_lettered, released
from qworker.transports.lease import Ack, Claim, DeadLetter, Release
from qworker.transports.sqs.queue import FIFO, LongPoll, Received, SqsQueue
from qworker.transports.sqs.server import SqsServer, code_of
from qworker.transports.wakeup import WakeupPipe

logger = logging.getLogger(__name__)

AHEAD_SECONDS = 30.0
"""What is due sooner is kept here."""
FAREWELL_SECONDS = 1.0
"""How long the end waits for messages that are on their way to us."""
LOOK_SECONDS = 5.0


class SqsConsumer(KombuConsumer):
    """See KombuConsumer."""

    _server: SqsServer

    def __init__(
        self, server: SqsServer, sender: KombuSender, wakeup: WakeupPipe, clock: Clock, eta_limit: int
    ) -> None:
        super().__init__(server, sender, wakeup, clock, eta_limit, LOOK_SECONDS)
        self._notify = partial(wakeup.wake, NEWS)
        self._polls: list[LongPoll] = []  # listener only, as the next
        self._renew_at = 0.0

    def _dead_letter(self, held: Held, dead_letter: DeadLetter) -> None:
        try:
            super()._dead_letter(held, dead_letter)
        except PublishError:  # with its reason it is larger than what SQS took before
            self._sender.send([dead_lettered(held, dead_letter, self._clock.now(), packed)])

    # -- leasing --

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """The connection. What is held stays ours when SQS does not answer for a while."""
        connection = self._connection
        if connection is None:
            raise LeaseLost("there is no connection to the broker: what was held goes to others")
        try:
            with self._server.errors(connection):
                yield connection
        except BrokerUnavailable as error:
            if "NonExistent" in code_of(error.__cause__) or "DoesNotExist" in code_of(error.__cause__):
                self._let_go()
                raise LeaseLost(f"{error}; a queue was deleted") from error
            raise

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        with self._server.errors(self._connection):
            self._server.declare(self._connection, DEAD)  # said now, and not at the first dead letter
        self._polls = [
            LongPoll(queue, self._server.wait_seconds, self._notify) for queue in self._bound.values()
        ]
        self._bound = {poll.queue.name: poll for poll in self._polls}
        return generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        with self._leasing():
            self._renew()
            for poll in self._polls:
                poll.collect()
        claim = super().lease(queues, limit, delayed_limit, eta_window)
        # What was sent on. If it fails the next turn does it: what was taken must not be forgotten here.
        with suppress(BrokerUnavailable), self._leasing():
            self._delete()
        room = limit - len(claim.messages)
        if room > 0 and not self._holdings.full:
            for poll in self._polls:
                poll.ask(room)
        return claim

    def _stays(self, held: Held, due: float, besides: int = 0) -> bool:
        near = held.leased.queue.endswith(FIFO) or due - self._clock.now() <= AHEAD_SECONDS
        return near and super()._stays(held, due, besides)

    def _prepare(self, settlement: Ack | DeadLetter | Release, kept: int) -> End:
        try:
            return super()._prepare(settlement, kept)
        except PublishError:
            if isinstance(settlement, Release) and settlement.due is not None and not settlement.counted:
                held = self._holdings.leased[settlement.tag]  # it is too large to be sent on, and so it stays
                return End(released(held, settlement), settlement.due)
            raise

    def _finish(self, ends: Mapping[int, End]) -> None:
        try:
            super()._finish(ends)
            self._delete()
        except BaseException:  # what was not deleted is still ours, and its settlement will come again
            undone = {id(one) for poll in self._polls for one in poll.queue.finished}
            for held, _, _ in ends.values():
                if id(held.message) in undone:
                    held.message.queue.finished.remove(held.message)
                    self._holdings.take_back(held)
            raise

    def _delete(self) -> None:
        for poll in self._polls:
            for one in poll.queue.delete_finished():
                logger.warning("message %s of %s ended after its lease; it may "
                               "run again", one.delivery_tag, poll.queue.name)  # fmt: skip

    def extend(self) -> None:
        with self._leasing():
            self._renew()

    def _renew(self) -> None:
        """Hide for longer what has been here for long."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + 0.5
        stale: dict[SqsQueue, list[Received]] = {}
        for one in self._messages():
            if now >= one.renew_at:
                stale.setdefault(one.queue, []).append(one)
        gone = {id(one) for queue, ones in stale.items() for one in queue.hide(ones, self._server.visibility)}
        if gone:
            self._lose(gone)

    def _messages(self) -> Iterator[Received]:
        for held in self._holdings.everything():
            yield held.message
        for poll in self._polls:
            yield from poll.arrived

    def _lose(self, gone: set[int]) -> None:
        """Forget what others have by now, *gone* by its identity."""
        logger.warning("%d messages were not renewed in time; others have them", len(gone))
        self._holdings.lose(gone)
        for poll in self._polls:
            for one in [one for one in poll.arrived if id(one) in gone]:
                poll.arrived.remove(one)

    # -- the end --

    def _let_go(self) -> None:
        polls, connection = self._polls, self._connection
        if connection is None:
            super()._let_go()
            return
        for poll in polls:
            poll.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for poll in polls:
            poll.join(end - time.monotonic())
        held: dict[SqsQueue, list[Received]] = {}
        for one in self._messages():
            held.setdefault(one.queue, []).append(one)
        try:
            with self._server.errors(connection):
                self._delete()
                for queue, ones in held.items():
                    queue.hide(ones, 0)
        except BrokerUnavailable:
            pass  # they come back when they are hidden no longer
        self._polls = []
        self._forget_all()
        end = time.monotonic() + FAREWELL_SECONDS
        for poll in polls:
            if poll.queue in held:  # a poll under way has got some of them at once, and gives them back, too
                poll.join(end - time.monotonic())
        super()._let_go()

    def after_fork(self) -> None:
        self._polls = []
        super().after_fork()
