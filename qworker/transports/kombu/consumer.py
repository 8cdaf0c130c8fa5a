"""The consumer of kombu's transports: messages got one by one, acknowledged one by one.

Comes from:  the Listener, by ``Broker.consumer``.
Goes to:     kombu's channels; ``holdings.py``, for what was got.
Thread:      the listener's, but for wake() and notify().

What is due later, by its sender's word or by the worker's, is kept here unacknowledged until then, up to a
limit. What comes beyond that goes to the end of its queue, and nothing more is got for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.process.wakeup import WakeupPipe
from qworker.transports.kombu.holdings import Held, Holdings
from qworker.transports.kombu.messages import Outgoing, of_leased
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.kombu.server import DEAD, FAILED, Server
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Ack,
    Claim,
    Consumer,
    DeadLetter,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.own_headers import DELIVERIES, DIED, DUE, QUEUE, REASON, REDELIVERED, REQUEUED

NEWS = b"n"
"""What wakes those for whom something was pushed here."""
GENERATIONS = count(1)


class End(NamedTuple):
    """What is left to do with *held*, when all that must be sent was sent: keep it until *due*, put it
    *back*, or, with neither, acknowledge it."""

    held: Held
    due: float | None = None
    back: bool = False


class KombuConsumer(Consumer):
    """sender: for what goes back changed. wakeup: what wait() sleeps by. eta_limit: how many messages that
    are not due yet are held. poll: seconds between looks."""

    def __init__(
        self,
        server: Server,
        sender: KombuSender,
        wakeup: WakeupPipe,
        clock: Clock,
        eta_limit: int,
        poll: float,
    ) -> None:
        self._server = server
        self._sender = sender
        self._clock = clock
        self._poll_seconds = poll
        self._wakeup = wakeup
        self._connection: Any = None  # listener only, as all below
        self._bound: dict[str, Any] = {}
        self._generation = 0
        self._holdings = Holdings(eta_limit)
        self._first_queue = 0

    def after_fork(self) -> None:
        """In a forked child: the parent's leases are not ours."""
        self._connection = None
        self._generation = 0
        self._forget_all()
        self._wakeup.close()

    def _forget_all(self) -> None:
        self._bound = {}
        self._holdings.forget()

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """The connection; LeaseLost when it is gone, or goes."""
        connection = self._connection
        if connection is None:
            raise LeaseLost("there is no connection to the broker: what was held goes to others")
        try:
            with self._server.errors(connection):
                yield connection
        except BrokerUnavailable as error:
            self._let_go()
            raise LeaseLost(f"{error}; what was held goes to others") from error

    # -- leasing --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._let_go()
        self._wakeup.open()
        connection = self._server.connect()
        with self._server.errors(connection):
            self._bind(connection, queues)
        self._connection = connection
        self._generation = next(GENERATIONS)
        return self._generation

    def _bind(self, connection: Any, queues: Sequence[str]) -> None:
        """Be a consumer of *queues*, too."""
        self._bound.update((queue, self._server.declare(connection, queue)) for queue in queues)

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        now = self._clock.now()
        holdings = self._holdings
        taken: list[Held] = []
        try:
            with self._leasing() as connection:
                if unknown := [queue for queue in queues if queue not in self._bound]:
                    self._bind(connection, unknown)
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
        return Claim([held.leased for held in taken], holdings.next_due, last_revocation=0)

    def _get_some(self, queues: Sequence[str], limit: int, now: float, taken: list[Held]) -> None:
        """Add to *taken* up to *limit* messages that are due; those that are not are kept."""
        size = 0
        first = self._first_queue = (self._first_queue + 1) % max(1, len(queues))
        for queue in (*queues[first:], *queues[:first]):
            while limit > 0 and size < MAX_LEASE_BYTES:
                held = self._get(queue)
                if held is None:
                    break
                if held.leased.due is not None and held.leased.due > now:
                    self._keep(held, held.leased.due)
                    if self._holdings.full:
                        break
                    continue
                limit -= 1
                size += len(held.leased.body)
                taken.append(held)

    def _get(self, queue: str) -> Held | None:
        message = self._fetch(queue)
        return None if message is None else self._holdings.of(message, queue)

    def _fetch(self, queue: str) -> Any:
        """A message of kombu's; None when there is none."""
        bound = self._bound.get(queue)
        return None if bound is None else bound.get(no_ack=False)

    def _keep(self, held: Held, due: float) -> None:
        """Keep *held* until *due*, here or at the end of its queue."""
        if self._stays(held, due):
            self._holdings.wait_until(due, held)
        else:
            self._sender.send([of_leased(held.leased, {**held.own, DUE: due}, held.message_id)])
            held.message.ack()
            self._holdings.end(held)

    def _stays(self, held: Held, due: float, besides: int = 0) -> bool:
        """Whether *held* is kept here until *due*, with so many others that are about to be."""
        return self._holdings.has_room(besides)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        """All that must be sent is sent before anything is acknowledged. When this raises, call it again with
        the same, as a whole or in parts: what was sent by then is not sent twice, and what was settled is not
        lost."""
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
        """Send what the end of a message wants sent. kept: how many are about to be kept here."""
        held = self._holdings.leased[settlement.tag]
        if held.sent or isinstance(settlement, Ack):
            return End(held)
        if isinstance(settlement, DeadLetter):
            self._dead_letter(held, settlement)
        else:
            after, due = released(held, settlement), settlement.due
            if due is not None and due > self._clock.now():
                # Sent anew only if that is worth keeping beyond this worker's life.
                if self._stays(after, due, kept):
                    return End(after, due)
                after.own[DUE] = due
            elif not (settlement.counted or settlement.requeued or settlement.redelivered):
                return End(held, back=True)
            self._sender.send([of_leased(after.leased, after.own, held.message_id)])
        held = self._holdings.leased[settlement.tag] = held._replace(sent=True)
        return End(held)

    def _finish(self, ends: Mapping[int, End]) -> None:
        for tag, (held, due, back) in ends.items():
            if due is not None:
                self._holdings.wait_until(due, held)
                del self._holdings.leased[tag]
            else:
                if back:
                    held.message.requeue()
                else:
                    held.message.ack()
                self._holdings.end(held)

    def _dead_letter(self, held: Held, dead_letter: DeadLetter) -> None:
        self._sender.send([dead_lettered(held, dead_letter, self._clock.now(), of_leased)])

    def extend(self) -> None:
        with self._leasing():
            pass

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        with self._leasing():
            return []

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """Always nothing: see ``lacks``."""
        return cursor, []

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        """Dead letters stay until somebody looks after them."""
        return 0

    def running_path(self) -> str | None:
        return None

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """True when something was pushed here, or it is time to look."""
        if self._connection is None:
            raise LeaseLost("this process holds no leases: register first")
        words, _ = self._wakeup.sleep(min(timeout, self._poll_seconds))
        if words:
            return NEWS in words
        return timeout >= self._poll_seconds

    def wake(self) -> None:
        self._wakeup.wake()

    # -- the end --

    def deregister(self) -> None:
        self._let_go()
        self._generation = 0

    def _let_go(self) -> None:
        """Give back what is held, as far as the transport can."""
        connection, self._connection = self._connection, None
        everything = self._holdings.everything()
        self._forget_all()
        if connection is None:
            return
        with suppress(BrokerUnavailable), self._server.errors(connection):  # or it is gone already
            for held in everything:
                held.message.requeue()
            connection.release()

    def close(self) -> None:
        """Close what deregister() leaves open."""
        self._wakeup.close()


# -- What a message looks like that goes back changed, or to the dead letters or the failed tasks --


def released(held: Held, release: Release) -> Held:
    """*held* as it goes on after *release*."""
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
    return Held(held.message, after, own, held.message_id)


def dead_lettered(held: Held, dead_letter: DeadLetter, now: float, make: Callable[..., Outgoing]) -> Outgoing:
    """*held* as a dead letter, or as a failed task. make: ``messages.of_leased`` or ``messages.packed``."""
    own = {
        QUEUE: held.leased.queue,
        REASON: dead_letter.reason,
        DIED: now,
        DELIVERIES: held.leased.deliveries + dead_letter.counted,
    }
    return make(held.leased, own, held.message_id, FAILED if dead_letter.failed else DEAD)
