"""The consumer for RabbitMQ: leasing and settling messages.

Comes from:  the Listener; the server, which pushes messages.
Goes to:     ``subscription.py``, which is one connection; ``publisher.py``, for messages sent again.
Thread:      the listener's, except wake().

The lease is the channel: unacknowledged deliveries go back as soon as the connection is lost. A generation is
a connection. After a loss every call raises LeaseLost until register() has made a new one. A message keeps
its tag (derived from its message id), so the worker recognises it when it is delivered again.

A message that must change when it goes back (its counts, or its due time) is sent again and confirmed before
the old one is acknowledged. A crash in between leaves both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from amqp.exceptions import ChannelError

from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.process.crash_points import crash_point
from qworker.process.owner_files import OwnerFiles, runtime_directory
from qworker.process.wakeup import WakeupPipe
from qworker.transports.amqp.codec import content_header, largest_header
from qworker.transports.amqp.inbox import DeathRecords, Inbox, Prefetch, UnackedMessage
from qworker.transports.amqp.letters import PLACES, Sweeper, as_letter
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.outgoing import Outgoing, waiting
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import NotServed
from qworker.transports.amqp.revocations import RevokedStream
from qworker.transports.amqp.server import Server
from qworker.transports.amqp.subscription import Subscription
from qworker.transports.amqp.workers import PresencePublisher
from qworker.transports.lease import (
    Ack,
    Claim,
    Consumer,
    Dead,
    DeadLetter,
    Hearing,
    Kind,
    Presenting,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.own_headers import DELIVERIES, DUE, REDELIVERED, REQUEUED
from qworker.transports.recent import Recent

SECONDS = 60.0
"""How long before the end of a connection acks may have been lost: its heartbeat noticed nothing for so
long."""
LINGER_SECONDS = 300.0
"""How long messages of a lost connection may come back: a server may notice the loss late."""
MOST = 20_000


class SettledMessages:
    """Settled messages that RabbitMQ may deliver again: they are acknowledged again, and do not run.

    An ack has no answer. Acks in transit when a connection broke, and acks that a dying server forgot, leave
    messages that are delivered again. The server limits unacknowledged messages to the prefetch, so such acks
    are among the last ones written. A message that was sent again, with other counts, is a different one.
    now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._recent: Recent[int] = Recent(SECONDS, MOST, now)
        self._lost: set[int] = set()
        self._until = self._alive_at = 0.0

    def add(self, identities: Iterable[int]) -> None:
        """Record that their acks were written."""
        self._recent.add(tuple(identities))

    def undo(self) -> None:
        """Remove the last ones added: their runs waited for a confirmation of the ack, which did not come."""
        self._recent.undo()

    def alive(self) -> None:
        """Record that the server has answered."""
        self._alive_at = self._now()

    def lose(self, held: Iterable[int]) -> None:
        """Record that the connection is lost. *held* were not settled, and run when they come again."""
        self._recent.forget_before(self._alive_at - SECONDS)
        if self._now() >= self._until:
            self._lost.clear()
        self._lost.update(*self._recent)
        self._lost.difference_update(held)
        self._until = self._now() + LINGER_SECONDS

    def __contains__(self, identity: object) -> bool:
        """Whether a message delivered again need not run. False for all when no connection was lost
        lately."""
        if self._lost and self._now() >= self._until:
            self._lost.clear()
        return identity in self._lost


logger = logging.getLogger(__name__)

KEPT_SECONDS = 1.0
"""A message due later than that is not kept here, but goes back into a delay queue."""
GATHER_SECONDS = 0.01
"""While messages are left to be leased, those arriving within this time are read together."""
OPEN_SECONDS = 2.0
"""Interval of attempts to open a stream that the server did not serve."""
GENERATIONS = count(1)


def _has_failed(order: Release | DeadLetter) -> bool:
    """Whether a message to be sent again goes to the failed tasks."""
    return isinstance(order, DeadLetter) and order.failed


class AMQPConsumer(Consumer, Hearing, Presenting):
    """publisher: sends messages that change when they go back."""

    prefetched = False

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self._sweepers = {queue: Sweeper(server, queue) for queue in PLACES.values()}
        self._wakeup = WakeupPipe()
        self._revoked = RevokedStream(server, publisher)
        self._presence = PresencePublisher(server, publisher)
        self.queues: tuple[str, ...] = ()
        """The queues of the last registration; any thread may read this."""
        self._logged_not_kept = False
        """Whether it was logged that failed tasks cannot be kept."""
        self._start_over()

    def _start_over(self) -> None:
        """Reset to the state before registration."""
        self._generation = 0
        self._files = OwnerFiles(runtime_directory)
        self._deaths = DeathRecords(self._files)
        self._settled = SettledMessages()
        self._subscription: Subscription | None = None
        """The last one; its link is closed when the lease is lost."""
        self._postponed: dict[int, tuple[UnackedMessage, Release | DeadLetter]] = {}
        """By tag, messages to be sent again once the server accepts messages; held until then."""
        self._to_open: dict[str, Callable[[Link], None]] = {}
        """Functions that open streams that are not open yet, by the missing capability."""
        self._open_at = 0.0

    def after_fork(self) -> None:
        """In a forked child: the leases belong to the parent."""
        if self._subscription is not None:
            self._subscription.link.abandon()
        self._files.let_go()
        self._wakeup.close()
        self._revoked = RevokedStream(self._server, self._publisher)
        self._presence = PresencePublisher(self._server, self._publisher)
        self._start_over()

    @contextmanager
    def _held(self) -> Iterator[Subscription]:
        """Return the subscription; LeaseLost when its link is lost or closing."""
        subscription = self._subscription
        if subscription is None or not subscription.link.alive:
            raise LeaseLost("there is no connection to RabbitMQ: messages that were held go to others")
        link = subscription.link
        try:
            yield subscription
        except ChannelError as error:
            link.drop()
            raise LeaseLost(
                f"RabbitMQ closed the channel: {error}; messages that were held go to others"
            ) from error
        except BrokerUnavailable as error:
            if link.alive:
                raise  # it was the publishing side
            raise LeaseLost(f"{error}; messages that were held go to others") from error

    # -- registering --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._generation = 0
        if self._subscription is not None:
            self._subscription.link.close()
        self._wakeup.open()
        self._files.take()
        self._files.tidy()
        link = self._server.connect_for_long()
        if self._subscription is not None:
            self._settled.lose(self._subscription.inbox.identities())
            self._subscription = None
        self._postponed = {}  # the server gives them back, and they will run again
        inbox = Inbox(Prefetch(4 * max(1, concurrency)), self._settled, self._deaths.of)
        self.queues = tuple(queues)
        try:
            subscription = Subscription(self._server, link, self.queues, inbox, self._revoked)
            self._to_open = {
                "this worker does not receive revocations": self._revoked.open,
                "`qworker workers` does not show this worker": partial(
                    self._presence.open, name=name, queues=self.queues, concurrency=concurrency
                ),
            }
            self._open_streams(link, logger.warning)
        except ChannelError as error:
            link.drop()
            raise BrokerUnavailable(f"RabbitMQ at {link.address.shown}: {error}") from error
        except BaseException:
            link.drop()
            raise
        self._subscription = subscription
        self._generation = next(GENERATIONS)
        return self._generation

    def _open_streams(self, link: Link, log: Callable[..., None]) -> None:
        """Open missing streams. Tasks do not wait for it: a stream that was new when the server was killed
        cannot be served any more, until it is deleted."""
        self._open_at = time.monotonic() + OPEN_SECONDS
        for lack, open_stream in list(self._to_open.items()):
            try:
                open_stream(link)
            except NotServed as error:
                log("%s yet: %s; trying again every %g s", lack, error, OPEN_SECONDS)
            else:
                del self._to_open[lack]

    # -- leasing --

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        with self._held() as subscription:
            subscription.read()
            inbox = subscription.inbox
            if inbox.prefetch.ask(limit, len(inbox.leased)):
                self._send_back(subscription, subscription.resize())
            now = self._server.clock.now()
            inbox.promote_due(now)
            self._send_back(subscription, inbox.later_than(now + KEPT_SECONDS))
            taken = inbox.take(queues, limit, delayed_limit, now + eta_window)
            subscription.unreported = False
            if taken:
                crash_point("claiming")
            return Claim(taken, inbox.next_due(), self._revoked.last)

    def extend(self) -> None:
        with self._held() as subscription:
            subscription.link.tick()
            self._presence.announce()

    def present(self, text: str) -> None:
        self._presence.text = text

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        """Check our own connection; the server itself gives back the messages of dead workers."""
        with self._held() as subscription:
            subscription.read()
            subscription.link.tick()
            if self._postponed:
                self._part_with(subscription, [])
            if self._to_open and time.monotonic() >= self._open_at:
                self._open_streams(subscription.link, logger.debug)
            self._presence.announce_if_due()
            self._settled.alive()
            inbox = subscription.inbox
            if inbox.prefetch.relax(time.monotonic(), inbox.waiting):
                self._send_back(subscription, subscription.resize())
        return []

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        queue = PLACES[kind]
        with self._held() as subscription:
            try:
                count = self._server.queues.look(subscription.link, queue)
            except BrokerUnavailable as error:
                if not subscription.link.alive:
                    raise
                logger.debug("%s is not swept: %s", queue, error)
                return 0
        return self._sweepers[queue].sweep(count or 0, self._server.clock.now(), expires, most)

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        return ()  # an ended message looks like one that others have

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return ()

    def running_path(self) -> str | None:
        return self._files.running or None

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._held() as subscription:
            subscription.read()
            return self._revoked.since(cursor)

    # -- settling --

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        with self._held() as subscription:
            leased = subscription.inbox.leased if generation == self._generation else {}
            lost: set[int] = set()
            gone: list[UnackedMessage] = []
            back: list[UnackedMessage] = []
            changed: list[tuple[UnackedMessage, Release | DeadLetter]] = []
            seen: set[int] = set()
            for settlement in settlements:
                if isinstance(settlement, Store):
                    continue  # results are stored elsewhere
                tag = settlement.tag
                held = leased.get(tag) if tag not in seen and tag not in self._postponed else None
                if held is None:
                    lost.add(tag)
                    continue
                seen.add(tag)
                if isinstance(settlement, Ack):
                    gone.append(held)
                elif isinstance(settlement, DeadLetter) or held.expires or self._changes(settlement):
                    changed.append((held, settlement))
                else:
                    back.append(held)
            if changed:
                # First, because only this can fail without losing the lease: then nothing was done.
                self._part_with(subscription, changed)
            crash_point("acking")
            subscription.settle(gone, back)
            self._settled.add([held.identity for held in gone])
            return lost

    def _changes(self, release: Release) -> bool:
        """Return whether the message changes when it goes back."""
        later = release.due is not None and release.due > self._server.clock.now()
        return release.counted or release.requeued or later

    def confirm(self) -> None:
        try:
            with self._held() as subscription:
                subscription.confirm()
        except LeaseLost:
            self._settled.undo()
            raise

    def _send_back(self, subscription: Subscription, messages: Sequence[UnackedMessage]) -> None:
        """Send *messages* that are not needed here back to their queues."""
        if not messages:
            return
        orders = {held.leased.tag: (held, Release(held.leased.tag, held.leased.due)) for held in messages}
        try:
            self._part_with(subscription, [*orders.values()])
        except BrokerUnavailable:  # nobody repeats this, unlike settle()
            self._postponed.update(orders)
            raise

    def _part_with(
        self, subscription: Subscription, messages: list[tuple[UnackedMessage, Release | DeadLetter]]
    ) -> None:
        """Send *messages*, and postponed ones, to their destinations, and acknowledge the old ones. While the
        server accepts no messages they are kept, without waiting."""
        if not self._publisher.is_taken():
            if not self._postponed:
                logger.warning(
                    "RabbitMQ accepts no messages (an alarm): messages to be put back are held here"
                )
            self._postponed.update((held.leased.tag, (held, order)) for held, order in messages)
            return
        messages = [*self._postponed.values(), *messages]
        self._send_anew(subscription, messages)
        self._postponed = {}
        subscription.settle([held for held, _ in messages], [])

    def _send_anew(
        self, subscription: Subscription, messages: list[tuple[UnackedMessage, Release | DeadLetter]]
    ) -> None:
        """Send *messages* to their destinations, to be acknowledged afterwards."""
        make = Republishing(self._server, subscription.link.connection.frame_max)
        failed = [make.message(held, order) for held, order in messages if _has_failed(order)]
        others = [make.message(held, order) for held, order in messages if not _has_failed(order)]
        try:
            self._publisher.send([*failed, *others], self._server.timeout)
        except ConfigurationError as error:  # for example, the user may not create queues here
            if not failed:
                raise
            self._publisher.send(others, self._server.timeout)
            self._cannot_keep(error)
        self._settled.add([held.identity for held, _ in messages])

    def _cannot_keep(self, error: ConfigurationError) -> None:
        """Treat a failed task as one that is not kept: its message must not come back for that reason."""
        log = logger.debug if self._logged_not_kept else logger.error
        self._logged_not_kept = True
        log("failed tasks are not kept: %s; or set task_keep_failed = False", error)

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        with self._held() as subscription:
            link, inbox = subscription.link, subscription.inbox
            deadline = time.monotonic() + timeout
            rests = inbox.waiting and not subscription.unreported
            if rests and self._wakeup.sleep(min(timeout, GATHER_SECONDS))[0]:
                link.check()
                return False
            while not subscription.unreported:
                left = deadline - time.monotonic()
                if not inbox.roomy():  # enough messages are waiting to be leased
                    self._wakeup.sleep(left)
                    break
                came = link.read(max(0.0, left), self._wakeup.fileno())
                if self._wakeup.clear() or (left <= 0 and not came) or not link.alive:
                    break
            link.check()
            received, subscription.unreported = subscription.unreported, False
        return received

    def wake(self) -> None:
        self._wakeup.wake()

    # -- the end --

    def deregister(self) -> None:
        with self._files.ending():
            if self._subscription is not None:
                self._subscription.link.close()  # this gives back everything that was not acknowledged
        self._start_over()

    def close(self) -> None:
        """Deregister, and close what belongs to this process."""
        try:
            self.deregister()
        finally:
            self._wakeup.close()


# -- Messages of RabbitMQ that a worker sends instead of settling them in place --
# They have changed, or go to the dead letters or the failed tasks.


class Republishing:
    """frame_max: bytes, as negotiated with the server."""

    def __init__(self, server: Server, frame_max: int) -> None:
        self._queues = server.queues
        self._clock = server.clock
        self._frame_max = frame_max

    def message(self, held: UnackedMessage, order: Release | DeadLetter) -> Outgoing:
        """Return the message to be sent for *order*."""
        return (
            self._dead_lettered(held, order) if isinstance(order, DeadLetter) else self._released(held, order)
        )

    def _released(self, held: UnackedMessage, release: Release) -> Outgoing:
        """Return the message of *held* as it goes back to its queue, or to the dead letters if it is too
        large for that."""
        leased = held.leased
        more = {**held.own, **_counts(held, release)}
        more.pop(DUE, None)
        due = release.due if release.due is not None and release.due > self._clock.now() else None
        if due is not None:
            more |= waiting(leased.queue, due)
        elif held.expires:
            more[DUE] = self._clock.now()  # so it is a different message, although its counts are unchanged
        header = content_header(
            leased.headers, leased.properties, len(leased.body), held.message_id, leased.priority, more
        )
        most = largest_header(self._frame_max)
        if (size := len(header)) > most:
            reason = (
                f"it could not go back to its queue: with the additional headers they have {size} bytes, "
                f"and RabbitMQ accepts {most}"
            )
            logger.error("message %d in %s goes to the dead letters: %s", leased.tag, leased.queue, reason)
            return self._dead_lettered(held, DeadLetter(leased.tag, reason, counted=release.counted))
        return Outgoing(self._queues.prefix + leased.queue, header, leased.body, due)

    def _dead_lettered(self, held: UnackedMessage, dead_letter: DeadLetter) -> Outgoing:
        """Return the message of *held* as a dead letter, or as a failed task."""
        leased = held.leased
        dead = Dead(
            leased.tag, leased.queue, dead_letter.reason, self._clock.now(),
            leased.deliveries + dead_letter.counted, leased.headers, leased.properties, leased.body,
        )  # fmt: skip
        more = {name: value for name, value in held.own.items() if name != DUE}
        kind = PLACES["failed" if dead_letter.failed else "dead"]
        return as_letter(kind, dead, self._queues, held.message_id, leased.priority, more, self._frame_max)


def _counts(held: UnackedMessage, release: Release) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if release.counted:
        changed[DELIVERIES] = held.leased.deliveries + 1
    if release.requeued:
        changed[REQUEUED] = held.leased.requeued + 1
    if release.counted or release.redelivered or held.leased.redelivered:
        changed[REDELIVERED] = True
    return changed
