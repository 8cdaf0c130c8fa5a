"""MemoryStore: a whole broker in the memory of one process, on any clock.

Comes from:  tests, which pass it as ``QWorker(broker=MemoryStore(clock))``.
Goes to:     the room under test; ``another()`` is what a second worker would open.
Thread:      any; everything is under one lock, and wait() is the only place that waits.

Nothing outlives the object. Leases, due times, revocations and dead letters behave as the contract suite of
LeaseStore demands, so that what is proven with this broker holds with every other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from qworker import states
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.lease import (
    Bury,
    Dead,
    Envelope,
    Leased,
    LeaseStore,
    QueueInfo,
    Reclaimed,
    Release,
    ResultRow,
    Revocation,
    Settlement,
    Store,
)


@dataclass
class _Message:
    """A message in the store. owner: the epoch that holds it, 0 for nobody."""

    tag: int
    envelope: Envelope
    sent: float
    due: float | None
    owner: int = 0
    deliveries: int = 0
    redelivered: bool = False
    parked: int = 0

    def leased(self) -> Leased:
        queue, headers, properties, body, priority = self.envelope[:5]
        return Leased(
            self.tag,
            queue,
            priority,
            self.due,
            self.deliveries,
            self.redelivered,
            self.parked,
            headers,
            properties,
            body,
        )


@dataclass
class _Owner:
    """A holder of leases. lease_until: monotonic seconds."""

    name: str
    queues: tuple[str, ...]
    concurrency: int
    started: float
    lease_until: float


@dataclass
class _Shared:
    """What all handles of one broker see; everything is under *lock*, and *changed* tells of pushes and revocations."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    messages: dict[int, _Message] = field(default_factory=dict)
    dead: dict[int, tuple[Dead, int]] = field(default_factory=dict)
    owners: dict[int, _Owner] = field(default_factory=dict)
    revoked: list[tuple[int, Revocation, float]] = field(default_factory=list)
    results: dict[str, ResultRow] = field(default_factory=dict)
    handles: list[MemoryStore] = field(default_factory=list)
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


class MemoryStore(LeaseStore):
    """clock: says what is due and when a lease has run out. lease_seconds: how long a silent holder is believed to live.

    away: while True, every call raises BrokerUnavailable. settled: every settlement that was carried out, in order.
    """

    url = "memory://"

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        shared: _Shared | None = None,
    ) -> None:
        self.clock = clock
        self.away = False
        self.settled: list[Settlement] = []
        self.pushes = 0
        """How many times push() was called."""
        self._lease_seconds = lease_seconds
        self._revoke_expires = revoke_expires
        self._shared = _Shared() if shared is None else shared
        self._changed = threading.Condition(self._shared.lock)
        self._rang = self._woken = False  # under the lock
        self._epoch = 0
        self._shared.handles.append(self)

    def another(self) -> MemoryStore:
        """Return a second handle of the same broker, as another process would open it."""
        return MemoryStore(
            self.clock,
            lease_seconds=self._lease_seconds,
            revoke_expires=self._revoke_expires,
            shared=self._shared,
        )

    @property
    def results(self) -> dict[str, ResultRow]:
        """task id → the result that was stored together with an ack."""
        return self._shared.results

    @property
    def held(self) -> set[int]:
        """The tags that this handle has on lease."""
        with self._reached() as shared:
            return {message.tag for message in shared.messages.values() if message.owner == self._epoch}

    @contextmanager
    def _reached(self) -> Iterator[_Shared]:
        """What the broker holds, locked, if it can be reached."""
        with self._shared.lock:
            if self.away:
                raise BrokerUnavailable(f"{self.url} is away")
            yield self._shared

    def _ring(self) -> None:
        for handle in self._shared.handles:
            handle._rang = True
            handle._changed.notify_all()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        with self._reached() as shared:
            self.pushes += 1
            now = self.clock.now()
            for envelope in envelopes:
                tag = shared.next()
                shared.messages[tag] = _Message(tag, envelope, now, envelope.due)
            self._ring()

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        with self._reached() as shared:
            until = self.clock.now() + self._revoke_expires
            shared.revoked += [(shared.next(), Revocation(id, terminate, signal), until) for id in ids]
            self._ring()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # -- the listener --

    def enlist(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        with self._reached() as shared:
            self._give_up(shared)
            self._epoch = shared.next()
            until = self.clock.monotonic() + self._lease_seconds
            shared.owners[self._epoch] = _Owner(name, tuple(queues), concurrency, self.clock.now(), until)
            return self._epoch

    def lease(self, queues: Sequence[str], limit: int, near: int = 0, horizon: float = 0.0) -> list[Leased]:
        with self._reached() as shared:
            now = self.clock.now()
            free = [
                message
                for message in shared.messages.values()
                if not message.owner and message.envelope.queue in queues
            ]
            later = [m for m in free if m.due is not None and now < m.due <= now + horizon]
            ready = [m for m in free if m.due is None or m.due <= now]
            taken = sorted(ready, key=_urgency)[: max(0, limit)]
            taken += sorted(later, key=lambda message: (message.due, message.tag))[: max(0, near)]
            if taken:
                self._renew(shared)
            for message in taken:
                message.owner = self._epoch
            return [message.leased() for message in sorted(taken, key=_urgency)]

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        with self._reached() as shared:
            lost = {tag for one in settlements if (tag := self._settle(shared, epoch, one)) is not None}
            if any(type(settlement) is Release for settlement in settlements):
                self._ring()
            return lost

    def _settle(self, shared: _Shared, epoch: int, settlement: Settlement) -> int | None:
        """Carry out one settlement; return its tag when that was not ours any more."""
        if isinstance(settlement, Store):
            self._keep(shared, settlement.row)
            self.settled.append(settlement)
            return None
        message = shared.messages.get(settlement.tag)
        if message is None or message.owner != epoch:
            return settlement.tag
        if isinstance(settlement, Release):
            message.owner = 0
            message.due = settlement.due if settlement.due is not None else message.due
            message.deliveries += settlement.counted
            message.redelivered = message.redelivered or settlement.counted or settlement.redelivered
            message.parked += settlement.parked
        else:
            del shared.messages[settlement.tag]
            if isinstance(settlement, Bury):
                self._bury(shared, message, settlement.reason)
            if settlement.row is not None:
                self._keep(shared, settlement.row)
        self.settled.append(settlement)
        return None

    def _bury(self, shared: _Shared, message: _Message, reason: str) -> None:
        queue, headers, properties, body, priority = message.envelope[:5]
        died = self.clock.now()
        letter = Dead(message.tag, queue, reason, died, message.deliveries, headers, properties, body)
        shared.dead[message.tag] = letter, priority

    def _keep(self, shared: _Shared, row: ResultRow) -> None:
        old = shared.results.get(row[0])
        if old is None or states.may_replace(old[1], row[1]):
            shared.results[row[0]] = row

    def extend(self) -> None:
        with self._reached() as shared:
            self._renew(shared)

    def _renew(self, shared: _Shared) -> None:
        owner = shared.owners.get(self._epoch)
        if owner is None:
            raise LeaseLost(
                f"worker {self._epoch} was silent for over {self._lease_seconds:g} s and taken for dead"
            )
        owner.lease_until = self.clock.monotonic() + self._lease_seconds

    def reclaim(self) -> list[Reclaimed]:
        with self._reached() as shared:
            now = self.clock.monotonic()
            found = []
            for epoch, owner in list(shared.owners.items()):
                held = [message for message in shared.messages.values() if message.owner == epoch]
                if epoch == self._epoch or owner.lease_until >= now or not held:
                    continue
                del shared.owners[epoch]
                for message in held:
                    message.owner, message.redelivered = 0, True
                found.append(Reclaimed(owner.name, len(held), 0))
            if found:
                self._ring()
            return found

    def next_due(self, queues: Sequence[str]) -> float | None:
        with self._reached() as shared:
            now = self.clock.now()
            return min(
                (
                    message.due
                    for message in shared.messages.values()
                    if not message.owner
                    and message.envelope.queue in queues
                    and message.due is not None
                    and message.due > now
                ),
                default=None,
            )

    def wait(self, timeout: float) -> bool:
        with self._changed:
            if not self._rang and not self._woken:
                self._changed.wait(timeout)
            rang, self._rang, self._woken = self._rang, False, False
            return rang

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._reached() as shared:
            now = self.clock.now()
            new = [(number, one) for number, one, until in shared.revoked if number > cursor and until > now]
            return (new[-1][0] if new else cursor), [revocation for _, revocation in new]

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        with self._reached() as shared:
            now = self.clock.now()
            newest = sorted(shared.dead, reverse=True)[:dead_max]
            old = [
                tag
                for tag, (letter, _) in shared.dead.items()
                if tag not in newest or letter.died_at < now - dead_expires
            ]
            stale = [id for id, row in shared.results.items() if row[3] is not None and row[3] < now]
            standing = [entry for entry in shared.revoked if entry[2] >= now]
            count = len(old) + len(stale) + len(shared.revoked) - len(standing)
            for tag in old:
                del shared.dead[tag]
            for id in stale:
                del shared.results[id]
            shared.revoked = standing
            return count

    def running_path(self) -> str | None:
        return None

    def resign(self) -> None:
        with self._reached() as shared:
            self._give_up(shared)

    def _give_up(self, shared: _Shared) -> None:
        """Stop being the holder that this handle was."""
        if shared.owners.pop(self._epoch, None) is None:
            return
        for message in shared.messages.values():
            if message.owner == self._epoch:
                message.owner = 0
        self._ring()

    # -- administration --

    def queues(self) -> list[QueueInfo]:
        with self._reached() as shared:
            now = self.clock.now()
            everything = list(shared.messages.values())
            letters = [letter for letter, _ in shared.dead.values()]
            names = {message.envelope.queue for message in everything} | {letter.queue for letter in letters}
            found = []
            for name in sorted(names):
                here = [message for message in everything if message.envelope.queue == name]
                delayed = [m for m in here if not m.owner and m.due is not None and m.due > now]
                leased = [message for message in here if message.owner]
                ready = [m for m in here if m not in delayed and m not in leased]
                oldest = min((message.sent for message in ready), default=None)
                dead = sum(letter.queue == name for letter in letters)
                found.append(QueueInfo(name, len(ready), len(delayed), len(leased), dead, oldest))
            return found

    def purge(self, queue: str) -> int:
        with self._reached() as shared:
            gone = [m.tag for m in shared.messages.values() if m.envelope.queue == queue and not m.owner]
            for tag in gone:
                del shared.messages[tag]
            return len(gone)

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        with self._reached() as shared:
            letters = [letter for letter, _ in shared.dead.values() if queue in (None, letter.queue)]
            return sorted(letters, key=lambda letter: (-letter.died_at, -letter.tag))[:limit]

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        with self._reached() as shared:
            now = self.clock.now()
            chosen = self._chosen(shared, tags)
            for tag in chosen:
                letter, priority = shared.dead.pop(tag)
                envelope = Envelope(letter.queue, letter.headers, letter.properties, letter.body, priority)
                fresh = shared.next()
                shared.messages[fresh] = _Message(fresh, envelope, now, None, redelivered=True)
            self._ring()
            return len(chosen)

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        with self._reached() as shared:
            chosen = self._chosen(shared, tags)
            for tag in chosen:
                del shared.dead[tag]
            return len(chosen)

    def _chosen(self, shared: _Shared, tags: Iterable[int] | None) -> list[int]:
        return sorted(shared.dead if tags is None else shared.dead.keys() & set(tags))

    def workers(self) -> list[dict[str, object]]:
        with self._reached() as shared:
            now = self.clock.monotonic()
            return [
                {
                    "name": owner.name,
                    "pid": 0,
                    "queues": list(owner.queues),
                    "concurrency": owner.concurrency,
                    "started": owner.started,
                }
                for owner in shared.owners.values()
                if owner.lease_until >= now
            ]

    def close(self) -> None:
        if not self.away:
            self.resign()


def _urgency(message: _Message) -> tuple[int, int]:
    return (-message.envelope.priority, message.tag)
