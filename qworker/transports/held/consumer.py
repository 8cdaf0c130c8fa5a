"""The consumer of servers that reserve messages: messages here stay reserved while this worker is alive.

Comes from:  the Listener, by ``Broker.consumer``.
Goes to:     ``Server`` and ``ServerQueue``, also through ``long_poll.py``, which waits for messages,
             and ``holdings.py``, for messages here.
Thread:      the listener's, except wake() and notify().

The server gives a delivered message to nobody else for some seconds. That is our lease: it is extended while
this worker is alive, so no task takes too long. A delayed message waits in the server, for as long as the
server can delay it: it is given back or sent again with a delay, until it is due. If the server cannot delay,
it is kept here, up to a limit; messages beyond that go to the end of their queue, and nothing more is taken
for a moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, count
from typing import Any

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost, PublishError
from qworker.process.wakeup import WakeupPipe
from qworker.transports.held.holdings import End, Holding, Holdings, carry_out, give_all_back, whole_seconds
from qworker.transports.held.long_poll import Looks, Polls
from qworker.transports.held.messages import Outgoing, of_leased, packed
from qworker.transports.held.port import (
    DEAD,
    FAILED,
    ConnectionGone,
    NotAll,
    QueueGone,
    Received,
    ReceivedRevocations,
    Server,
    ServerQueue,
    by_queue,
    close,
    expired_leases,
)
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Ack,
    ByQueue,
    Claim,
    Consumer,
    DeadLetter,
    Hearing,
    Kind,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.own_headers import DELIVERIES, DIED, DUE, QUEUE, REASON, REDELIVERED, REQUEUED

LOOK_SECONDS = 0.5
"""Interval of checks: there may be many messages, and such calls are frequent."""


class Renewal:
    """Extends the reservations of one consumer's messages in time. monotonic: their clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._look_at = 0.0

    def renew(self, messages: Iterable[Received]) -> set[int]:
        """Extend those *messages* that are due for it; return the id() of each that others may have by
        now."""
        now = self._monotonic()
        if now < self._look_at:
            return set()
        self._look_at = now + LOOK_SECONDS
        gone: set[int] = set()
        stale_ones = (one for one in messages if now >= one.renew_at and not one.is_in_doubt)
        for queue, stale in by_queue(stale_ones):
            try:
                lost = set(map(id, queue.extend(stale)))
            except NotAll as error:
                _hidden(error.divide(stale)[0], now)
                raise error.reason from error.reason.__cause__
            gone |= lost
            # If a later call raises, the lost ones are found again.
            _hidden((one for one in stale if id(one) not in lost), now)
        return gone


def _hidden(messages: Iterable[Received], now: float) -> None:
    for message in messages:
        message.hidden_from(now)


logger = logging.getLogger(__name__)

MESSAGE = b"n"
"""The word that wakes consumers after a push in this process."""
GENERATIONS = count(1)
AHEAD_SECONDS = 30.0
"""A message due sooner is kept here, even if the server can delay it."""


class HeldConsumer(Consumer, Hearing, ByQueue):
    """sender: for messages that change when they go back. wakeup: used by wait(). eta_limit: how many delayed
    messages are kept here."""

    prefetched = False

    def __init__(
        self, server: Server, sender: HeldSender, wakeup: WakeupPipe, clock: Clock, eta_limit: int
    ) -> None:
        self._server = server
        self._sender = sender
        self._clock = clock
        self._poll_seconds = server.poll_seconds
        self._wakeup = wakeup
        self._notify = partial(wakeup.wake, MESSAGE)
        self._connection: Any = None  # listener only, as all below
        self._bound: dict[str, ServerQueue] = {}
        self._generation = 0
        self._holdings = Holdings(eta_limit, clock.monotonic)
        self._polls = self._no_polls()
        self._renewal = Renewal()
        self._revocations = ReceivedRevocations()
        self._leaving: dict[int, End] = {}
        """Messages that arrived early and must not stay here; by the identity of the message."""
        self._first_queue = 0

    def _no_polls(self) -> Polls | Looks:
        return Looks() if self._server.wait_seconds is None else Polls()

    def after_fork(self) -> None:
        """In a forked child: the leases belong to the parent."""
        self._connection = None
        self._generation = 0
        self._forget_all()
        self._wakeup.close()

    def _forget_all(self) -> None:
        self._bound = {}
        self._holdings.forget()
        self._polls = self._no_polls()
        self._revocations = ReceivedRevocations()
        self._leaving = {}

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """Return the connection. LeaseLost when held messages are no longer ours; they still are when the
        server does not answer for a while."""
        connection = self._connection
        if connection is None:
            raise LeaseLost("there is no connection to the broker: messages that were held go to others")
        try:
            with self._server.errors(connection):
                yield connection
        except ConnectionGone as error:
            self._let_go()
            raise LeaseLost(f"{error}; messages that were held go to others") from error
        except QueueGone as error:
            self._let_go()
            raise LeaseLost(f"{error}; a queue was deleted") from error

    # -- leasing --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._let_go()
        self._wakeup.open()
        self._connection = connection = self._server.connect()
        try:
            with self._server.errors(connection):
                self._bind(connection, queues)
                self._server.declare_letters(connection)
                self._revocations = self._server.revocations(connection, self._notify)
        except BaseException:
            self._let_go()
            raise
        self._generation = next(GENERATIONS)
        return self._generation

    def _bind(self, connection: Any, queues: Sequence[str]) -> None:
        """Consume *queues*, too."""
        if queues:
            bound = {queue: self._server.declare(connection, queue) for queue in queues}
            self._bound.update(bound)
            sources = self._server.sources(connection, list(bound.values()))
            self._polls.add(sources, self._server.wait_seconds or 0.0, self._notify)

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        with self._leasing():
            self._renew()
            self._polls.collect(limit)
        claim = self._take(queues, limit, delayed_limit, eta_window)
        room = limit - len(claim.messages)
        if room > 0 and not self._holdings.full:
            self._polls.ask(room, queues)
        return claim._replace(last_revocation=None) if self._revocations.has_news else claim

    def look(self, queue: str) -> Claim:
        with self._leasing() as connection:
            self._bind(connection, [] if queue in self._bound else [queue])
            self._renew()
            self._polls.look(queue)
        return self._take([queue], 1, 0, 0.0)

    def unbind(self, queue: str) -> None:
        with self._leasing():
            for name in self._polls.unbind(queue, list(self._bound)):
                del self._bound[name]

    def _take(self, queues: Sequence[str], limit: int, delayed_limit: int, eta_window: float) -> Claim:
        """Return due messages that are here."""
        now = self._clock.now()
        holdings = self._holdings
        taken: list[Holding] = []
        try:
            with self._leasing() as connection:
                self._bind(connection, [queue for queue in queues if queue not in self._bound])
                taken += holdings.take_due(now, limit, now + eta_window, delayed_limit)
                limit -= sum(held.leased.due is None or held.leased.due <= now for held in taken)
                if not holdings.full:
                    self._get_some(queues, limit, now, taken)
        except BaseException:
            for held in taken:  # the next lease gives them out, unless they are lost with the connection
                holdings.wait_until(held.leased.due or now, held)
            raise
        taken.sort(key=lambda held: -held.leased.priority)
        holdings.leased.update((held.leased.tag, held) for held in taken)
        # If it fails the next turn does it: the messages taken must not be lost here.
        with suppress(BrokerUnavailable), self._leasing():
            self._part_with_the_early()
        return Claim([held.leased for held in taken], holdings.next_due, last_revocation=0)

    def _get_some(self, queues: Sequence[str], limit: int, now: float, taken: list[Holding]) -> None:
        """Add to *taken* up to *limit* messages that are due; those that are not are kept."""
        size = 0
        first = self._first_queue = (self._first_queue + 1) % max(1, len(queues))
        for queue in (*queues[first:], *queues[:first]):
            while limit > 0 and size < MAX_LEASE_BYTES:
                message = self._polls.get(queue)
                if message is None:
                    break
                held = self._holdings.of(message, queue)
                if held.leased.due is not None and held.leased.due > now:
                    self._keep(held, held.leased.due)
                    if self._holdings.full:
                        break
                    continue
                limit -= 1
                size += len(held.leased.body)
                taken.append(held)

    def extend(self) -> None:
        with self._leasing():
            self._renew()

    def _renew(self) -> None:
        """Extend the messages here, and forget those that others have by now."""
        if gone := self._renewal.renew(self._everything()):
            logger.warning("%d messages were not renewed in time; other consumers have them", len(gone))
            self._holdings.lose(gone)
            self._polls.lose(gone)

    def _everything(self) -> Iterator[Received]:
        return chain((held.message for held in self._holdings.everything()), self._polls.arrived)

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        with self._leasing():
            return []

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        if self._connection is None:
            return cursor, []
        with self._leasing():
            return self._revocations.since(cursor)

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        """Return 0: letters stay until they are removed, or the server drops them."""
        return 0

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        return ()  # an ended message looks like one that others have

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        found = self._holdings.in_doubt & set(tags)
        self._holdings.in_doubt -= found
        return found

    def confirm(self) -> None:
        """Does nothing: settlements are certain when settle() returns."""

    def running_path(self) -> str | None:
        return None

    # -- delayed messages --

    def _keep(self, held: Holding, due: float) -> None:
        """Keep *held* until *due*: here, in the server, or at the end of its queue."""
        longest_return = held.message.queue.longest_return
        delay: int | None = None
        if self._stays(held, due):
            self._holdings.wait_until(due, held)
            return
        if longest_return:  # its headers contain the due time, if it comes earlier
            delay = max(0, min(longest_return, int(due - self._clock.now())))
        else:
            self._sender.send([of_leased(held.leased, {**held.own, DUE: due}, held.message_id)])
        self._leaving[id(held.message)] = End(held, delay=delay)
        self._holdings.end(held)

    def _stays(self, held: Holding, due: float, others: int = 0) -> bool:
        """Whether *held* is kept here until *due*, if this number of others are about to be."""
        queue = held.message.queue
        waits = max(queue.longest_delay, queue.longest_return)
        near = not waits or due - self._clock.now() <= AHEAD_SECONDS
        return near and self._holdings.has_room(others)

    def _part_with_the_early(self) -> None:
        for end, _ in carry_out(list(self._leaving.values())):
            del self._leaving[id(end.held.message)]

    # -- settling --

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        """Everything that must be sent is sent before anything is finished. If this raises, call it again
        with the same settlements, together or in parts: messages already sent are not sent twice, and
        settlements already made are not lost."""
        lost: set[int] = set()
        again: set[int] = set()
        ends: dict[int, End] = {}
        kept = 0
        with self._leasing():
            for settlement in settlements:
                if isinstance(settlement, Store):
                    continue  # results are kept elsewhere
                tag = settlement.tag
                if generation == self._generation and tag in self._holdings.leased and tag not in ends:
                    held = self._holdings.leased[tag]
                    if not isinstance(settlement, Ack) and not held.sent and expired_leases([held.message]):
                        # Others may run it: a copy or a dead letter of it must not be sent.
                        self._holdings.end(held)
                        lost.add(tag)
                        continue
                    end = ends[tag] = self._prepare(settlement, kept)
                    kept += end.due is not None
                elif generation == self._generation and tag in self._holdings.ended:
                    again.add(tag)
                else:
                    lost.add(tag)
            try:
                self._finish(ends)
            except BaseException:
                self._holdings.ended |= ends.keys() - self._holdings.leased.keys()
                raise
            self._holdings.ended -= again
            late = self._holdings.late & (ends.keys() | again)
            self._holdings.late -= late
        return lost | late

    def _prepare(self, settlement: Ack | DeadLetter | Release, kept: int) -> End:
        """Send what the end of a message requires. kept: how many are about to be kept here."""
        held = self._holdings.leased[settlement.tag]
        if held.sent or isinstance(settlement, Ack):
            return End(held)
        if isinstance(settlement, DeadLetter):
            self._dead_letter(held, settlement)
        elif (end := self._release(held, settlement, kept)) is not None:
            return end
        held = self._holdings.leased[settlement.tag] = held._replace(sent=True)
        return End(held)

    def _release(self, held: Holding, release: Release, kept: int) -> End | None:
        """Return how *held* goes back. None if it was sent again: it has changed, or the server cannot
        delay it."""
        now, due = self._clock.now(), release.due
        after = released(held, release)
        if due is not None and due > now:
            # Given back or sent again only if it must outlive this worker.
            if self._stays(after, due, kept):
                return End(after, due)
            if not after.changed and _may_return(held, due, now):
                return End(held, delay=whole_seconds(due, now))
            after.own[DUE] = due
        elif not after.changed:
            return End(held, delay=0)
        try:
            self._sender.send([of_leased(after.leased, after.own, held.message_id)])
        except PublishError:
            if due is None or release.counted:
                raise
            return End(released(held, release), due)  # too large to be sent again: kept here
        return None

    def _dead_letter(self, held: Holding, dead_letter: DeadLetter) -> None:
        now = self._clock.now()
        try:
            self._sender.send([dead_lettered(held, dead_letter, now, of_leased)])
        except PublishError:  # with its reason it is larger than the server accepts
            self._sender.send([dead_lettered(held, dead_letter, now, packed)])

    def _finish(self, ends: Mapping[int, End]) -> None:
        leaving: list[End] = []
        for tag, end in ends.items():
            if end.due is None:
                leaving.append(end)
            else:
                self._holdings.wait_until(end.due, end.held)
                del self._holdings.leased[tag]
        for end, late in carry_out(leaving):  # if it raises, the rest is settled again
            self._holdings.end(end.held)
            if late:
                self._holdings.late.add(end.held.leased.tag)
            if late and end.held.message.in_doubt:
                self._holdings.in_doubt.add(end.held.leased.tag)
        self._part_with_the_early()

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """True when this process has pushed something, or it is time to poll."""
        if self._connection is None:
            raise LeaseLost("this process holds no leases: register first")
        words, _ = self._wakeup.sleep(min(timeout, self._poll_seconds))
        if words:
            return MESSAGE in words
        return timeout >= self._poll_seconds

    def wake(self) -> None:
        self._wakeup.wake()

    # -- the end --

    def deregister(self) -> None:
        self._let_go()
        self._generation = 0

    def _let_go(self) -> None:
        """Give back everything held."""
        polls, connection, self._connection = self._polls, self._connection, None
        if connection is None:
            self._forget_all()
            return
        polls.close()
        changed = [held for held in self._holdings.everything() if held.changed]
        others = {id(held.message) for held in changed}
        back = [message for message in self._everything() if id(message) not in others]
        # If it fails, they come back when their reservation expires.
        with suppress(BrokerUnavailable), self._server.errors(connection):
            self._part_with_the_early()
            give_all_back(back)
            self._send_again(changed)
        self._forget_all()
        polls.drain({message.queue for message in back})
        close(connection)

    def _send_again(self, changed: Sequence[Holding]) -> None:
        """Send messages with their new counts, and finish those that the server has."""
        ends: list[End] = []
        for held in changed:
            try:
                if not held.sent and not expired_leases([held.message]):
                    self._sender.send([_back_in_its_queue(held)])
                    held = held._replace(sent=True)
            except PublishError:  # with its count it is larger than the server accepts
                ends.append(End(held, delay=0))
            if held.sent:
                ends.append(End(held))
        for _ in carry_out(ends):
            pass

    def close(self) -> None:
        """Close what deregister() leaves open."""
        self._wakeup.close()


# -- Messages that go back changed, or become dead letters or failed tasks --


def _back_in_its_queue(held: Holding) -> Outgoing:
    """Return *held* as it is sent again, with its counts and due time."""
    due = held.leased.due
    own = held.own if due is None else {**held.own, DUE: due}
    return of_leased(held.leased, own, held.message_id)


def _may_return(held: Holding, due: float, now: float) -> bool:
    """Whether the server can keep *held* unchanged until it is *due*."""
    says = held.own.get(DUE, 0.0)
    return (
        type(says) in (int, float)
        and says <= due
        and whole_seconds(due, now) <= held.message.queue.longest_return
    )


def released(held: Holding, release: Release) -> Holding:
    """Return *held* changed by *release*."""
    own, old = dict(held.own), held.leased
    if release.counted:
        own[DELIVERIES] = old.deliveries + 1
    if release.requeued:
        own[REQUEUED] = old.requeued + 1
    if release.counted or release.redelivered or old.redelivered:
        own[REDELIVERED] = True
    own.pop(DUE, None)
    after = old._replace(
        due=release.due,
        deliveries=own.get(DELIVERIES, 0),
        requeued=own.get(REQUEUED, 0),
        redelivered=REDELIVERED in own,
    )
    changed = held.changed or release.counted or release.requeued or release.redelivered
    return Holding(held.message, after, own, held.message_id, changed=changed)


def dead_lettered(
    held: Holding, dead_letter: DeadLetter, now: float, make: Callable[..., Outgoing]
) -> Outgoing:
    """Return *held* as a dead letter, or as a failed task. make: ``messages.of_leased`` or
    ``messages.packed``."""
    own = {
        QUEUE: held.leased.queue,
        REASON: dead_letter.reason,
        DIED: now,
        DELIVERIES: held.leased.deliveries + dead_letter.counted,
    }
    return make(held.leased, own, held.message_id, FAILED if dead_letter.failed else DEAD)
