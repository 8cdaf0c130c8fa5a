"""The leasing side of RabbitMQ: a worker's consumers, what they were sent, and its acks.

Comes from:  ``broker.py``; the server, which pushes messages.
Goes to:     ``inbox.py``, where they wait until they are asked for; acks and returns to the server.
Thread:      the listener's.

The lease is the channel: whatever was delivered on it and not acknowledged goes back when the connection
falls, at once. An epoch is a connection; when it is lost every call says LeaseLost until register() has made
a new one. A message keeps its tag over that (it comes from its message id), so the worker knows it again when
it comes back to it.

What must change when it goes back (its counts, or when it is due) is sent anew and confirmed before the old
one is acknowledged. A crash between the two leaves both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from amqp.exceptions import ChannelError

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.amqp.codec import ack_frame, requeue_frame
from qworker.transports.amqp.dead_letters import Sweeper
from qworker.transports.amqp.deaths import Deaths
from qworker.transports.amqp.finished import Finished
from qworker.transports.amqp.inbox import Held, Inbox, Prefetch
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import DEAD, Queues
from qworker.transports.amqp.republishing import Anew
from qworker.transports.amqp.revocations import RevokedStream
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import (
    Ack,
    Bury,
    Claim,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.owner_files import OwnerFiles, runtime_directory
from qworker.transports.wakeup import WakeupPipe

logger = logging.getLogger(__name__)

CHANNEL = 1
HOPELESS = 1.0
"""Seconds: what is due later than that is not kept here, but goes back into a queue of delays."""
GATHER_SECONDS = 0.01
"""While there is something left to be asked for, what comes in so much time is read in one go."""
EPOCHS = count(1)


class Holder:
    """connect: makes a Link with heartbeats, within so many seconds."""

    _clock: Clock
    _publisher: Publisher
    _queues: Queues
    _sweeper: Sweeper
    _timeout: float

    def __init__(self, connect: Callable[[float], Link]) -> None:
        self._connect = connect
        self._link: Link | None = None  # listener only, as all below
        self._epoch = 0
        self._name = ""
        self._new_holder()
        self._consumers: dict[str, str] = {}  # consumer tag → queue
        self._consumed: tuple[str, ...] = ()
        self._gone: set[str] = set()
        self._tags = count(1)
        self._news = self._revocations = False
        """Whether messages, or revocations, have come that the worker was not told of."""
        self._revoked: RevokedStream | None = None
        self._waker = WakeupPipe()

    def _new_holder(self) -> None:
        self._files = OwnerFiles(runtime_directory)
        self._deaths: Deaths | None = None
        self._finished = Finished()
        self._inbox = Inbox(Prefetch(1))

    def _disown(self) -> None:
        """In a forked child: the parent's leases are not ours."""
        if self._link is not None:
            self._link.abandon()
        self._link = self._revoked = None
        self._epoch = 0
        self._files.let_go()
        self._waker.close()
        self._new_holder()

    @contextmanager
    def _held(self) -> Any:
        """The link; LeaseLost when it is gone, or goes."""
        link = self._link
        if link is None or not link.alive:
            raise LeaseLost("there is no connection to RabbitMQ: what was held goes to others")
        try:
            yield link
        except ChannelError as error:
            link.drop()
            raise LeaseLost(f"RabbitMQ closed the channel: {error}; what was held goes to others") from error
        except BrokerUnavailable as error:
            if link.alive:
                raise  # it was the publishing side
            raise LeaseLost(f"{error}; what was held goes to others") from error

    # -- registering --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._let_go()
        self._waker.open()
        self._files.take()
        if self._deaths is None:
            self._files.tidy()
            self._deaths = Deaths(self._files.running)
        link = self._connect(self._timeout)
        self._finished.lose(self._inbox.identities())
        self._inbox = Inbox(Prefetch(4 * max(1, concurrency)), self._finished, self._deaths.of)
        self._consumers, self._gone, self._news = {}, set(), False
        self._consumed = tuple(queues)
        link.on_message = self._arrived
        link.on_cancel = self._cancelled
        try:
            channel = link.channel()
            link.call(channel.basic_qos, 0, self._inbox.prefetch.size, False)
            for queue in queues:
                self._queues.declare(link, queue)
                self._consume(link, queue)
            if self._revoked is None:
                self._revoked = RevokedStream(self._clock, self._queues.revoke_expires)
            self._revoked.open(link, self._queues, self._publisher, self._timeout)
        except ChannelError as error:
            link.drop()
            raise BrokerUnavailable(f"RabbitMQ at {link.address.shown}: {error}") from error
        except BaseException:
            link.drop()
            raise
        self._link = link
        self._name = name
        self._epoch = next(EPOCHS)
        return self._epoch

    def _consume(self, link: Link, queue: str) -> None:
        tag = f"qworker.{next(self._tags)}"
        self._consumers[tag] = queue
        link.call(link.connection.channels[CHANNEL].basic_consume, self._queues.prefix + queue, tag)

    def _arrived(self, message: Any) -> None:
        if message.consumer in self._consumers:
            queue = self._consumers[message.consumer]
            self._news = self._inbox.put(queue, message, self._clock.now()) or self._news
        elif self._revoked is not None and self._revoked.take(message):
            self._revocations = True

    def _cancelled(self, consumer: str) -> None:
        queue = self._consumers.pop(consumer, None)
        if queue is not None:
            self._news = True
            self._gone.add(queue)

    def _come_back(self, link: Link) -> None:
        """Make the queues that were deleted under us anew."""
        for queue in list(self._gone):
            logger.warning("queue %s was deleted in RabbitMQ; it is made anew", queue)
            self._queues.declare(link, queue)
            if not self._inbox.prefetch.paused:
                self._consume(link, queue)
            self._gone.discard(queue)

    # -- leasing --

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        messages = self._lease(queues, limit, delayed_limit, eta_window)
        return Claim(messages, self._inbox.next_due(), None if self._revocations else 0)

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        with self._held() as link:
            self._read(link)
            if self._gone:
                self._come_back(link)
            inbox = self._inbox
            if inbox.prefetch.ask(limit, len(inbox.leased)):
                self._resize(link)
            now = self._clock.now()
            inbox.ripen(now)
            late = inbox.later_than(now + max(HOPELESS, min(horizon, HOPELESS)))
            if late:
                self._send_anew(link, [(held, Release(held.leased.tag, held.leased.due)) for held in late])
                link.write(b"".join(self._again_over() + inbox.acks(late, _ack)))
            taken = inbox.take(queues, limit, near, now + horizon)
            self._news = False
            if CRASHING and taken:
                crash_point("claiming")
            return taken

    def _read(self, link: Link) -> None:
        """Take in what has come, as long as there is room for it."""
        while self._inbox.roomy() and link.read(0):
            pass
        if self._inbox.over:
            link.write(b"".join(self._again_over()))

    def _again_over(self) -> list[bytes]:
        """Acks for what was delivered again although it had ended here."""
        numbers, self._inbox.over = self._inbox.over, []
        if numbers:
            logger.info(
                "%d messages that had ended here were delivered again, and are not run again", len(numbers)
            )
        return [ack_frame(CHANNEL, number, False) for number in numbers]

    def _resize(self, link: Link) -> None:
        """Consume anew with another prefetch: it holds for consumers that begin later, and for quorum queues
        there is no other way. What was pushed beyond it goes back."""
        channel = link.connection.channels[CHANNEL]
        for tag in list(self._consumers):
            link.call(channel.basic_cancel, tag)
        surplus = self._inbox.surplus()
        if surplus:
            link.write(b"".join(requeue_frame(CHANNEL, number) for number in surplus))
        self._consumers = {}
        if not self._inbox.prefetch.paused:
            link.call(channel.basic_qos, 0, self._inbox.prefetch.size, False)
            for queue in self._consumed:
                if queue not in self._gone:
                    self._consume(link, queue)

    def extend(self) -> None:
        with self._held() as link:
            link.tick()

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        """The server gives back what the dead held; here the own connection is looked after."""
        with self._held() as link:
            self._read(link)
            link.tick()
            self._finished.alive()
            if self._gone:
                self._come_back(link)
            if self._inbox.prefetch.relax(time.monotonic(), self._inbox.waiting):
                self._resize(link)
        return []

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        with self._held() as link:
            try:
                count = self._queues.look(link, DEAD)
            except BrokerUnavailable as error:
                if not link.alive:
                    raise
                logger.debug("the dead letters are not swept: %s", error)
                return 0
        return self._sweeper.sweep(count or 0, self._clock.now(), dead_expires, dead_max)

    def running_path(self) -> str | None:
        return self._files.running or None

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._held() as link:
            self._read(link)
            assert self._revoked is not None
            self._revocations = False
            return self._revoked.since(cursor)

    # -- settling --

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        with self._held() as link:
            inbox = self._inbox
            lost: set[int] = set()
            gone: list[Held] = []
            back: list[Held] = []
            anew: list[tuple[Held, Release | Bury]] = []
            seen: set[int] = set()
            for settlement in settlements:
                if isinstance(settlement, Store):
                    continue  # results are kept elsewhere
                tag = settlement.tag
                held = inbox.leased.get(tag) if epoch == self._epoch and tag not in seen else None
                if held is None:
                    lost.add(tag)
                    continue
                seen.add(tag)
                if isinstance(settlement, Ack):
                    gone.append(held)
                elif isinstance(settlement, Bury) or self._changes(settlement):
                    anew.append((held, settlement))
                else:
                    back.append(held)
            if anew:
                # First, since only this can fail without the lease being lost: then nothing was done.
                self._send_anew(link, anew)
            if CRASHING:
                crash_point("acking")
            frames = self._again_over() + inbox.acks([*gone, *(held for held, _ in anew)], _ack)
            frames += [requeue_frame(CHANNEL, inbox.forget(held)) for held in back]
            if frames:
                link.write(b"".join(frames))
            self._finished.add([held.identity for held in gone])
            return lost

    def _changes(self, release: Release) -> bool:
        """Whether the message is another one when it goes back."""
        later = release.due is not None and release.due > self._clock.now()
        return release.counted or release.parked or later

    def confirm(self) -> None:
        """Acks have no answer, but what is asked after them has: the server does one thing after the
        other."""
        try:
            with self._held() as link:
                link.call(link.connection.channels[CHANNEL].basic_qos, 0, self._inbox.prefetch.size, False)
        except LeaseLost:
            self._finished.undo()
            raise

    def _send_anew(self, link: Link, messages: list[tuple[Held, Release | Bury]]) -> None:
        """Send *messages* to where they are to go, to be acknowledged then."""
        make = Anew(self._queues, self._clock, link.connection.frame_max)
        self._publisher.send(
            [
                make.buried(held, order) if isinstance(order, Bury) else make.released(held, order)
                for held, order in messages
            ],
            self._timeout,
        )
        self._finished.add([held.identity for held, _ in messages])

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        link = self._link
        if link is None:
            raise LeaseLost("this process holds no leases: register first")
        deadline = time.monotonic() + timeout
        if self._inbox.waiting and not self._heard and self._waker.sleep(min(timeout, GATHER_SECONDS))[0]:
            return False
        while not self._heard:
            left = deadline - time.monotonic()
            if not self._inbox.roomy():  # there is enough to be asked for
                self._waker.sleep(left)
                return False
            try:
                came = link.alive and link.read(max(0.0, left), self._waker.fileno())
            except BrokerUnavailable:
                return True  # the next call will say so
            if not link.alive:
                return True
            if self._waker.clear() or (left <= 0 and not came):
                break
        heard, self._news = self._heard, False
        return heard

    @property
    def _heard(self) -> bool:
        return self._news or self._revocations

    def wake(self) -> None:
        self._waker.wake()

    # -- the end --

    def deregister(self) -> None:
        self._epoch = 0
        with self._files.ending():
            self._let_go()
        self._new_holder()

    def _let_go(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()  # which gives back everything that was not acknowledged

    def _close_holder(self) -> None:
        self._let_go()
        self._waker.close()


def _ack(number: int, multiple: bool) -> bytes:
    return ack_frame(CHANNEL, number, multiple)
