"""The leasing side of the plain path: messages got one by one, acknowledged one by one.

Comes from:  ``broker.py``.
Goes to:     kombu's channels.
Thread:      the listener's.

What is due later, by its sender's word or by the worker's, is kept here unacknowledged until then, up to a
limit. What comes beyond that goes to the end of its queue, and nothing more is got for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.kombu.messages import Outgoing, leased, of_leased, read, with_way_back
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
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
from qworker.transports.own_headers import (
    DELIVERIES,
    DIED,
    DUE,
    KEPT,
    PARKED,
    QUEUE,
    REASON,
    REDELIVERED,
)
from qworker.transports.wakeup import WakeupPipe

DEAD = "qworker.dead"
FULL_SECONDS = 1.0
NEWS = b"n"
"""What wakes those for whom something was pushed here."""
EPOCHS = count(1)


class Held(NamedTuple):
    """A message that was got and not acknowledged. own: its headers that are ours. sent: whether it was sent
    anew by now, so that all that is left to do is to acknowledge it."""

    message: Any
    leased: Leased
    own: dict[str, Any]
    message_id: str | None
    sent: bool = False


class End(NamedTuple):
    """What is left to do with *held*, when all that must be sent was sent: keep it until *due*, put it
    *back*, or, with neither, acknowledge it."""

    held: Held
    due: float | None = None
    back: bool = False


class KombuConsumer:
    _clock: Clock
    url: str

    def __init__(self, eta_limit: int, poll: float) -> None:
        self._eta_limit = eta_limit
        self._poll_seconds = poll
        self._consuming: Any = None  # listener only, as all below
        self._bound: dict[str, Any] = {}
        self._epoch = 0
        self._held: dict[int, Held] = {}
        self._here: set[int] = set()  # tags of all that is held or waits
        self._ended: set[int] = set()  # tags that a settle() which raised has settled; it will be repeated
        self._waiting: list[tuple[float, int, Held]] = []  # heap of (due, order, …)
        self._order = count()
        self._full_until = 0.0
        self._turn_of_queues = 0
        self._waker = WakeupPipe()

    def _connect(self) -> Any:
        raise NotImplementedError

    def _declare(self, connection: Any, queue: str) -> Any:
        raise NotImplementedError

    def _send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        raise NotImplementedError

    def _errors(self, connection: Any) -> Any:
        raise NotImplementedError

    def _disown(self) -> None:
        """In a forked child: the parent's leases are not ours."""
        self._consuming = None
        self._epoch = 0
        self._forget_all()
        self._waker.close()

    def _forget_all(self) -> None:
        self._bound, self._held, self._here, self._waiting = {}, {}, set(), []
        self._ended = set()

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """The connection; LeaseLost when it is gone, or goes."""
        connection = self._consuming
        if connection is None:
            raise LeaseLost("there is no connection to the broker: what was held goes to others")
        try:
            with self._errors(connection):
                yield connection
        except BrokerUnavailable as error:
            self._let_go()
            raise LeaseLost(f"{error}; what was held goes to others") from error

    # -- leasing --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._let_go()
        self._waker.open()
        connection = self._connect()
        with self._errors(connection):
            self._bound = {queue: self._declare(connection, queue) for queue in queues}
        self._consuming = connection
        self._epoch = next(EPOCHS)
        return self._epoch

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        messages = self._lease(queues, limit, delayed_limit, eta_window)
        return Claim(messages, self._waiting[0][0] if self._waiting else None, 0)

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        now = self._clock.now()
        found: list[Held] = []
        size = 0
        with self._leasing():
            while self._waiting:
                due = self._waiting[0][0]
                if due <= now and limit > 0:
                    limit -= 1
                elif now < due <= now + horizon and near > 0:
                    near -= 1
                else:
                    break
                found.append(heappop(self._waiting)[2])
            if time.monotonic() >= self._full_until:
                self._turn_of_queues = (self._turn_of_queues + 1) % max(1, len(queues))
                start = self._turn_of_queues
                for queue in (*queues[start:], *queues[:start]):
                    while limit > 0 and size < MAX_LEASE_BYTES:
                        held = self._get(queue)
                        if held is None:
                            break
                        if held.leased.due is not None and held.leased.due > now:
                            if not self._keep(held, held.leased.due):
                                break
                            continue
                        limit -= 1
                        size += len(held.leased.body)
                        found.append(held)
        found.sort(key=lambda held: -held.leased.priority)
        for held in found:
            self._held[held.leased.tag] = held
        return [held.leased for held in found]

    def _get(self, queue: str) -> Held | None:
        bound = self._bound.get(queue)
        message = None if bound is None else bound.get(no_ack=False)
        if message is None:
            return None
        content = read(with_way_back(message, queue))
        tag = content.tag
        while tag in self._here:
            tag = tag % (2**63 - 1) + 1  # a twin: the same message was sent twice
        self._here.add(tag)
        own = {name: value for name, value in content.own.items() if name in KEPT}
        return Held(message, leased(queue, content, tag), own, content.message_id)

    def _keep(self, held: Held, due: float) -> bool:
        """Keep *held* until *due*, here or at the end of its queue; False when nothing more is to be got for
        a moment."""
        if self._stays(held, due):
            heappush(self._waiting, (due, next(self._order), held))
        else:
            self._send([of_leased(held.leased, {**held.own, DUE: due}, held.message_id)])
            held.message.ack()
            self._here.discard(held.leased.tag)
        return time.monotonic() >= self._full_until

    def _stays(self, held: Held, due: float, besides: int = 0) -> bool:
        """Whether *held* is kept here until *due*, with so many others that are about to be."""
        if len(self._waiting) + besides < self._eta_limit:
            return True
        self._full_until = time.monotonic() + FULL_SECONDS
        return False

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
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
                if epoch == self._epoch and tag in self._held and tag not in ends:
                    end = ends[tag] = self._prepare(settlement, kept)
                    kept += end.due is not None
                elif epoch == self._epoch and tag in self._ended:
                    again.add(tag)
                else:
                    lost.add(tag)
            try:
                self._finish(ends)
            except BaseException:
                self._ended |= ends.keys() - self._held.keys()
                raise
            self._ended -= again
        return lost

    def _prepare(self, settlement: Ack | Bury | Release, kept: int) -> End:
        """Send what the end of a message wants sent. kept: how many are about to be kept here."""
        held = self._held[settlement.tag]
        if held.sent or isinstance(settlement, Ack):
            return End(held)
        if isinstance(settlement, Bury):
            self._bury(held, settlement)
        else:
            after, due = self._released(held, settlement), settlement.due
            if due is not None and due > self._clock.now():
                # Sent anew only if that is worth keeping beyond this worker's life.
                if self._stays(after, due, kept):
                    return End(after, due)
                after.own[DUE] = due
            elif not (settlement.counted or settlement.parked or settlement.redelivered):
                return End(held, back=True)
            self._send([of_leased(after.leased, after.own, held.message_id)])
        held = self._held[settlement.tag] = held._replace(sent=True)
        return End(held)

    def _finish(self, ends: Mapping[int, End]) -> None:
        for tag, (held, due, back) in ends.items():
            if due is not None:
                heappush(self._waiting, (due, next(self._order), held))
            else:
                if back:
                    held.message.requeue()
                else:
                    held.message.ack()
                self._here.discard(tag)
            del self._held[tag]

    def _released(self, held: Held, release: Release) -> Held:
        """*held* as it goes on after *release*."""
        own, old = dict(held.own), held.leased
        if release.counted:
            own[DELIVERIES] = old.deliveries + 1
        if release.parked:
            own[PARKED] = old.parked + 1
        if release.counted or release.redelivered or old.redelivered:
            own[REDELIVERED] = True
        own.pop(DUE, None)
        after = old._replace(
            due=release.due,
            deliveries=own.get(DELIVERIES, 0),
            parked=own.get(PARKED, 0),
            redelivered=REDELIVERED in own,
        )
        return Held(held.message, after, own, held.message_id)

    def _bury(self, held: Held, bury: Bury) -> None:
        self._send([self._buried(held, bury, of_leased)])

    def _buried(self, held: Held, bury: Bury, make: Callable[..., Outgoing]) -> Outgoing:
        old = held.leased
        own = {
            QUEUE: old.queue,
            REASON: bury.reason,
            DIED: self._clock.now(),
            DELIVERIES: old.deliveries + bury.counted,
        }
        return make(old, own, held.message_id, DEAD)

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
        if self._consuming is None:
            raise LeaseLost("this process holds no leases: register first")
        words, _ = self._waker.sleep(min(timeout, self._poll_seconds))
        if words:
            return NEWS in words
        return timeout >= self._poll_seconds

    def _ring(self) -> None:
        self._waker.wake(NEWS)

    def wake(self) -> None:
        self._waker.wake()

    # -- the end --

    def deregister(self) -> None:
        self._let_go()
        self._epoch = 0

    def _let_go(self) -> None:
        """Give back what is held, as far as the transport can."""
        connection, self._consuming = self._consuming, None
        held = [*self._held.values(), *(entry[2] for entry in self._waiting)]
        self._forget_all()
        if connection is None:
            return
        try:
            with self._errors(connection):
                for one in held:
                    one.message.requeue()
                connection.release()
        except BrokerUnavailable:
            pass  # it is gone already

    def _close_holder(self) -> None:
        self._waker.close()


__all__ = ["DEAD", "Ack", "Held", "KombuConsumer"]
