"""The consumer of servers that hide what they give out: it is hidden for as long as this worker lives.

Comes from:  the Listener, by ``Broker.consumer``.
Goes to:     ``queue.py``; each source has a thread that waits for its messages (``long_poll.py``).
Thread:      the listener's, but for wake().

The server hides a message that it gave to somebody for some seconds. That is our lease: it is renewed for as
long as this worker lives, so no task is too long for it. What is due later waits in the server, as long as
that can delay a message: it is given back with a delay, or sent anew with one, until it is due.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost, PublishError
from qworker.process.wakeup import WakeupPipe
from qworker.transports.held.long_poll import Polls
from qworker.transports.held.parting import Parting, give_all_back, goes_back, part, partings_of
from qworker.transports.held.queue import Received, RemoteQueue
from qworker.transports.held.renewal import Renewal
from qworker.transports.held.server import Heard, QueueGone, RemoteServer
from qworker.transports.kombu.consumer import NEWS, End, KombuConsumer, dead_lettered, released
from qworker.transports.kombu.holdings import Held
from qworker.transports.kombu.messages import of_leased, packed
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.lease import Ack, Claim, DeadLetter, Release, Revocation
from qworker.transports.own_headers import DUE

logger = logging.getLogger(__name__)

AHEAD_SECONDS = 30.0
"""What is due sooner is kept here."""
LOOK_SECONDS = 5.0


class RemoteConsumer(KombuConsumer):
    """See KombuConsumer."""

    _server: RemoteServer

    def __init__(
        self, server: RemoteServer, sender: KombuSender, wakeup: WakeupPipe, clock: Clock, eta_limit: int
    ) -> None:
        super().__init__(server, sender, wakeup, clock, eta_limit, LOOK_SECONDS)
        self._notify = partial(wakeup.wake, NEWS)
        self._polls = Polls()  # listener only, as all below
        self._heard = Heard()
        self._partings: dict[int, Parting] = {}
        """What came before its time, and is not ours to keep; by the identity of the message."""
        self._renewal = Renewal()

    # -- leasing --

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """The connection. What is held stays ours when the server does not answer for a while."""
        connection = self._connection
        if connection is None:
            raise LeaseLost("there is no connection to the broker: what was held goes to others")
        try:
            with self._server.errors(connection):
                yield connection
        except QueueGone as error:
            self._let_go()
            raise LeaseLost(f"{error}; a queue was deleted") from error

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        connection = self._connection
        with self._server.errors(connection):
            for kind in self._server.letters:  # said now, and not at the first letter
                self._server.declare(connection, kind)
            self._heard = self._server.revocations(connection, self._notify)
        return generation

    def _bind(self, connection: Any, queues: Sequence[str]) -> None:
        super()._bind(connection, queues)
        if queues:
            sources = self._server.sources(connection, [self._bound[queue] for queue in queues])
            self._polls.add(sources, self._server.wait_seconds, self._notify)

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        with self._leasing():
            self._renew()
            self._polls.collect(limit)
        claim = super().lease(queues, limit, delayed_limit, eta_window)
        # If it fails the next turn does it: what was taken must not be forgotten here.
        with suppress(BrokerUnavailable), self._leasing():
            self._part_with_the_early()
        room = limit - len(claim.messages)
        if room > 0 and not self._holdings.full:
            self._polls.ask(room, queues)
        return claim._replace(last_revocation=None) if self._heard.has_news else claim

    def look(self, queue: str) -> Claim:
        with self._leasing() as connection:
            self._bind(connection, [] if queue in self._bound else [queue])
            self._renew()
            self._polls.look(queue)
        claim = super().lease([queue], 1)
        with suppress(BrokerUnavailable), self._leasing():
            self._part_with_the_early()
        return claim

    def unbind(self, queue: str) -> None:
        with self._leasing():
            for name in self._polls.unbind(queue, list(self._bound)):
                del self._bound[name]

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        if self._connection is None:
            return cursor, []
        with self._leasing():
            return self._heard.since(cursor)

    def _fetch(self, queue: str) -> Received | None:
        return self._polls.get(queue)

    def extend(self) -> None:
        with self._leasing():
            self._renew()

    def _renew(self) -> None:
        """Keep what is here, and forget what others have by now."""
        if gone := self._renewal.renew(self._everything()):
            logger.warning("%d messages were not renewed in time; others have them", len(gone))
            self._holdings.lose(gone)
            self._polls.lose(gone)

    def _everything(self) -> Iterator[Received]:
        return chain((held.message for held in self._holdings.everything()), self._polls.arrived)

    # -- what goes back --

    def _keep(self, held: Held, due: float) -> None:
        queue: RemoteQueue = held.message.queue
        delay: int | None = None
        if self._stays(held, due):
            self._holdings.wait_until(due, held)
            return
        if queue.longest_return:  # it says itself when it is due, should it come before that
            delay = max(0, min(queue.longest_return, int(due - self._clock.now())))
        else:
            self._sender.send([of_leased(held.leased, {**held.own, DUE: due}, held.message_id)])
        self._partings[id(held.message)] = Parting(held, delay)
        self._holdings.end(held)

    def _stays(self, held: Held, due: float, besides: int = 0) -> bool:
        queue: RemoteQueue = held.message.queue
        waits = max(queue.longest_delay, queue.longest_return)
        near = not waits or due - self._clock.now() <= AHEAD_SECONDS
        return near and super()._stays(held, due, besides)

    def _prepare(self, settlement: Ack | DeadLetter | Release, kept: int) -> End:
        if isinstance(settlement, Release):
            held = self._holdings.leased[settlement.tag]
            if goes_back(held, settlement, self._clock.now()) and not self._stays(
                held, settlement.due or 0.0, kept
            ):
                return End(held, settlement.due, back=True)
        try:
            return super()._prepare(settlement, kept)
        except PublishError:
            if isinstance(settlement, Release) and settlement.due is not None and not settlement.counted:
                held = self._holdings.leased[settlement.tag]  # it is too large to be sent on, and so it stays
                return End(released(held, settlement), settlement.due)
            raise

    def _dead_letter(self, held: Held, dead_letter: DeadLetter) -> None:
        try:
            super()._dead_letter(held, dead_letter)
        except PublishError:  # with its reason it is larger than what the server took before
            self._sender.send([dead_lettered(held, dead_letter, self._clock.now(), packed)])

    def _finish(self, ends: Mapping[int, End]) -> None:
        for tag, (held, due, back) in ends.items():
            if due is not None and not back:
                self._holdings.wait_until(due, held)
                del self._holdings.leased[tag]
        partings = partings_of(ends.values(), self._clock.now())
        for parting, late in part(partings):  # where it raises, what is left will be settled again
            self._holdings.end(parting.held)
            if late:
                self._holdings.late.add(parting.held.leased.tag)
        self._part_with_the_early()

    def _part_with_the_early(self) -> None:
        for parting, _ in part(list(self._partings.values())):
            del self._partings[id(parting.held.message)]

    # -- the end --

    def _let_go(self) -> None:
        polls, connection = self._polls, self._connection
        if connection is None:
            super()._let_go()
            return
        polls.close()
        held = list(self._everything())
        # If it fails they come back when they are hidden no longer.
        with suppress(BrokerUnavailable), self._server.errors(connection):
            self._part_with_the_early()
            give_all_back(held)
        self._polls = Polls()
        self._forget_all()
        polls.see_off({message.queue for message in held})
        super()._let_go()

    def _forget_all(self) -> None:
        super()._forget_all()
        self._heard = Heard()
        self._partings = {}

    def after_fork(self) -> None:
        self._polls = Polls()
        super().after_fork()
