"""MemoryStore: a complete broker in the memory of one process, with any clock.

Comes from:  tests, which pass it as ``QWorker(broker=MemoryStore(clock))``.
Goes to:     the code under test; ``another()`` returns a handle for a second worker.
Thread:      any; one lock protects everything, and only wait() waits.

Nothing outlives the object. Leases, due times, revocations and dead letters are tested with the contract
suite of brokers, so a test with this store is valid for other brokers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.testing.memory_queues import MemoryQueues, Message, Owner
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Again,
    Claim,
    Dead,
    Delayed,
    Envelope,
    Hearing,
    Kind,
    Leased,
    Letters,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    Presenting,
    QueueInfo,
    Reclaimed,
    Release,
    ResultRow,
    Revocation,
    Revocations,
    Revoking,
    Settlement,
    SingleObjectBroker,
    Store,
    StoredResults,
    Workers,
)
from qworker.transports.presence import Presence, from_text


class _Building:
    """State shared by all handles of one broker."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues = MemoryQueues()
        self.handles: list[MemoryStore] = []


class MemoryStore(
    SingleObjectBroker, Revoking, Hearing, Presenting, Listing, Peeking, Delayed, StoredResults
):
    """clock: for due times. uptime: returns the seconds for leases; by default ``clock.monotonic``.
    lease_seconds: how long a silent consumer is considered alive. revoke_expires: how long revocations are
    kept, in seconds. keeps_failed: whether to keep failed tasks.

    away: while True, every call raises BrokerUnavailable. settled: all applied settlements in order. pushes:
    number of calls of push().
    """

    url = "memory://"

    missing = None
    prefetched = purges_leased = False

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        uptime: Callable[[], float] | None = None,
        shared_with: MemoryStore | None = None,
        keeps_failed: bool = False,
    ) -> None:
        """shared_with: a store to share the data of; see another()."""
        self.clock = clock
        self.away = False
        self.settled: list[Settlement] = []
        self.pushes = 0
        self._uptime = uptime or clock.monotonic
        self._lease_seconds = lease_seconds
        self._revoke_expires = revoke_expires
        self._building: _Building = _Building() if shared_with is None else shared_with._building
        self._changed = threading.Condition(self._building.lock)
        self._rang = self._woken = False  # this and all below: under the lock
        self._generation = 0
        self._presence = ""
        self._turn_of_queues = 0
        self._building.handles.append(self)
        kinds: tuple[Kind, ...] = ("dead", "failed") if keeps_failed else ("dead",)
        super().__init__(
            type(self).url,
            lacks=frozenset(),
            letters={kind: MemoryLetters(kind, self) for kind in kinds},
            revocations=Revocations(self, self),
            presence=Workers(self, self),
            peeking=self,
            delayed=self,
            stored_results=self,
            by_queue=None,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )

    def another(self) -> MemoryStore:
        """Return a second handle of the same broker, like one opened by another process."""
        return MemoryStore(
            self.clock,
            lease_seconds=self._lease_seconds,
            revoke_expires=self._revoke_expires,
            uptime=self._uptime,
            shared_with=self,
            keeps_failed="failed" in self.letters,
        )

    @property
    def results(self) -> dict[str, ResultRow]:
        """The results stored with acknowledgements, by task id."""
        return self._building.queues.results

    @property
    def messages(self) -> int:
        """The number of messages, leased or not, without dead letters."""
        return len(self._building.queues.messages)

    @property
    def held(self) -> set[int]:
        """The tags of messages leased by this handle."""
        with self._reached() as memory:
            return {message.tag for message in memory.held_by(self._generation)}

    @contextmanager
    def _reached(self) -> Iterator[MemoryQueues]:
        """Lock the data and return it. Raises BrokerUnavailable while ``away``."""
        with self._building.lock:
            if self.away:
                raise BrokerUnavailable(f"{self.url} is away")
            yield self._building.queues

    def _ring(self) -> None:
        for handle in self._building.handles:
            handle._rang = True
            handle._changed.notify_all()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        with self._reached() as memory:
            self.pushes += 1
            for envelope in envelopes:
                if not isinstance(envelope.body, bytes):
                    raise TypeError(f"the type of a body is bytes, not {type(envelope.body).__name__}")
            now = self.clock.now()
            for envelope in envelopes:
                tag = memory.next()
                memory.messages[tag] = Message(tag, envelope, now, envelope.due)
            if envelopes:
                self._ring()

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        with self._reached() as memory:
            until = self.clock.now() + self._revoke_expires
            memory.revoked += [(memory.next(), Revocation(id, terminate, signal), until) for id in ids]
            self._ring()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # -- the listener --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        with self._reached() as memory:
            if memory.give_up(self._generation):
                self._ring()
            self._generation = memory.next()
            until = self._uptime() + self._lease_seconds
            memory.owners[self._generation] = Owner(
                name, tuple(queues), concurrency, self.clock.now(), until, self._presence
            )
            return self._generation

    def present(self, text: str) -> None:
        with self._building.lock:
            self._presence = text

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        with self._reached() as memory:
            last = max((number for number, _, _ in memory.revoked), default=0)
            return Claim(self._lease(queues, limit, delayed_limit, eta_window), self.next_due(queues), last)

    def _lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int, eta_window: float
    ) -> list[Leased]:
        with self._reached() as memory:
            now = self.clock.now()
            start = self._turn_of_queues = (self._turn_of_queues + 1) % len(queues)
            taken: list[Message] = []
            for queue in (*queues[start:], *queues[:start]):
                ready = [message for message in memory.free([queue]) if message.is_due(now)]
                taken += sorted(ready, key=lambda message: message.urgency)[: max(0, limit - len(taken))]
            later = [m for m in memory.free(queues) if not m.is_due(now) and m.is_due(now + eta_window)]
            taken += sorted(later, key=lambda message: (message.due or 0, message.tag))[
                : max(0, delayed_limit)
            ]
            totals = accumulate(len(message.envelope.body) for message in taken)
            taken = taken[: 1 + sum(total < MAX_LEASE_BYTES for total in totals)]
            if taken:
                self._renew(memory)
            for message in taken:
                message.owner = self._generation
            return [message.leased() for message in sorted(taken, key=lambda message: message.urgency)]

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        with self._reached() as memory:
            now = self.clock.now()
            lost = set()
            for settlement in settlements:
                memory.check(settlement)
            for settlement in settlements:
                if memory.settle(generation, settlement, now):
                    self.settled.append(settlement)
                elif not isinstance(settlement, Store):
                    lost.add(settlement.tag)
            if any(type(settlement) is Release for settlement in settlements):
                self._ring()
            return lost

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        self.extend()
        return tags

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return ()

    def extend(self) -> None:
        with self._reached() as memory:
            self._renew(memory)

    def _renew(self, memory: MemoryQueues) -> None:
        owner = memory.owners.get(self._generation)
        if owner is None:
            raise LeaseLost(
                f"worker {self._generation} was silent for over {self._lease_seconds:g} s and considered dead"
            )
        owner.lease_until = self._uptime() + self._lease_seconds
        owner.presence = self._presence

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        with self._reached() as memory:
            now = self._uptime()
            found = []
            for generation, owner in list(memory.owners.items()):
                held = memory.held_by(generation)
                if not silent or generation == self._generation or owner.lease_until >= now or not held:
                    continue
                for message in held:
                    message.redelivered = True
                memory.give_up(generation)
                found.append(Reclaimed(owner.name, len(held), 0))
            if found:
                self._ring()
            return found

    def may_have_due_joins(self, now: float) -> bool:
        return True

    def next_due(self, queues: Sequence[str]) -> float | None:
        with self._reached() as memory:
            now = self.clock.now()
            dues = [message.due for message in memory.free(queues) if not message.is_due(now)]
            return min((due for due in dues if due is not None), default=None)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        with self._changed:
            if not self._rang and not self._woken:
                self._changed.wait(timeout)
            rang, self._rang, self._woken = self._rang, False, False
            return rang

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._reached() as memory:
            now = self.clock.now()
            new = [entry for entry in memory.revoked if entry[0] > cursor and entry[2] > now]
            return (new[-1][0] if new else cursor), [revocation for _, revocation, _ in new]

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        with self._reached() as memory:
            return memory.sweep(kind, expires, most, self.clock.now())

    def confirm(self) -> None:
        """Nothing to do: settle() is synchronous."""

    def running_path(self) -> str | None:
        return None

    def deregister(self) -> None:
        with self._reached() as memory:
            if memory.give_up(self._generation):
                self._ring()

    # -- administration --

    def queues(self) -> list[QueueInfo]:
        with self._reached() as memory:
            return memory.queues(self.clock.now())

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        with self._reached() as memory:
            return memory.peek(queue, state, limit, self.clock.now())

    def purge(self, queue: str) -> int:
        with self._reached() as memory:
            gone = memory.free([queue])
            for message in gone:
                del memory.messages[message.tag]
            return len(gone)

    def flush_delayed(self, queue: str) -> int:
        with self._reached() as memory:
            now = self.clock.now()
            late = [message for message in memory.free([queue]) if not message.is_due(now)]
            for message in late:
                message.due = None
            self._ring()
            return len(late)

    def workers(self) -> list[Presence]:
        with self._reached() as memory:
            return [
                from_text(
                    owner.presence, Presence(owner.name, 0, owner.queues, owner.concurrency, owner.started)
                )
                for owner in memory.owners.values()
                if owner.concurrency > 0
            ]

    def close(self) -> None:
        if not self.away:
            self.deregister()


class MemoryLetters(Letters):
    """The letters of *kind* in *store*."""

    def __init__(self, kind: Kind, store: MemoryStore) -> None:
        self._kind = kind
        self._store = store

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        with self._store._reached() as memory:
            kept = [
                letter
                for letter, _ in memory.letters(self._kind).values()
                if queue in (None, letter.queue)
                and (after is None or (letter.died_at, letter.tag) < (after.died_at, after.tag))
            ]
        return sorted(kept, key=lambda letter: (-letter.died_at, -letter.tag))[:limit]

    def retry(self, tags: Sequence[int] | None = None) -> int:
        with self._store._reached() as memory:
            chosen = sorted(self._chosen(memory, tags))
            memory.retry(self._kind, chosen, self._store.clock.now())
            self._store._ring()
            return len(chosen)

    def send_again(self, calls: Sequence[Again]) -> int:
        with self._store._reached() as memory:
            count = memory.send_again(self._kind, calls, self._store.clock.now())
            self._store._ring()
            return count

    def discard(self, tags: Sequence[int] | None = None) -> int:
        with self._store._reached() as memory:
            chosen = self._chosen(memory, tags)
            for tag in chosen:
                del memory.letters(self._kind)[tag]
            return len(chosen)

    def push(self, letters: Sequence[Dead]) -> None:
        with self._store._reached() as memory:
            for letter in letters:
                tag = memory.next()
                memory.letters(self._kind)[tag] = letter._replace(tag=tag), 0

    def _chosen(self, memory: MemoryQueues, tags: Sequence[int] | None) -> list[int]:
        kept = memory.letters(self._kind)
        return list(kept if tags is None else kept.keys() & set(tags))
