"""MemoryQueues: the data of a broker in memory, without locking or waiting.

Comes from:  ``store.py``, which holds its lock during every call.
Goes to:     ``store.py``.
Thread:      the one that holds the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from qworker import states
from qworker.transports.lease import (
    Again,
    Dead,
    DeadLetter,
    Envelope,
    Kind,
    Leased,
    MessageState,
    Peeked,
    QueueInfo,
    Release,
    ResultRow,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.own_headers import id_in

SWEPT_AT_ONCE = 1000


@dataclass
class Message:
    """A message in a queue. owner: the generation that has leased it; 0 if none has."""

    tag: int
    envelope: Envelope
    sent: float
    due: float | None
    owner: int = 0
    deliveries: int = 0
    redelivered: bool = False
    requeued: int = 0

    @property
    def queue(self) -> str:
        return self.envelope.queue

    @property
    def urgency(self) -> tuple[int, int]:
        return (-self.envelope.priority, self.tag)

    def is_due(self, now: float) -> bool:
        return self.due is None or self.due <= now

    def state(self, now: float) -> MessageState:
        if self.owner:
            return "leased"
        return "ready" if self.is_due(now) else "delayed"

    def peeked(self, state: MessageState, worker: str) -> Peeked:
        headers, priority = self.envelope.headers, self.envelope.priority
        return Peeked(self.queue, state, priority, self.due, self.sent, self.deliveries, headers, worker)

    def leased(self) -> Leased:
        queue, headers, properties, body, priority = self.envelope[:5]
        counts = (self.deliveries, self.redelivered, self.requeued)
        return Leased(self.tag, queue, priority, self.due, *counts, headers, properties, body)


@dataclass
class Owner:
    """A consumer. lease_until: by the clock for leases. presence: its published state."""

    name: str
    queues: tuple[str, ...]
    concurrency: int
    started: float
    lease_until: float
    presence: str


@dataclass
class MemoryQueues:
    """Messages by tag; dead letters and failed tasks by tag, with their priority; consumers by generation;
    results by task id."""

    messages: dict[int, Message] = field(default_factory=dict)
    dead: dict[int, tuple[Dead, int]] = field(default_factory=dict)
    failed: dict[int, tuple[Dead, int]] = field(default_factory=dict)
    owners: dict[int, Owner] = field(default_factory=dict)
    revoked: list[tuple[int, Revocation, float]] = field(default_factory=list)
    results: dict[str, ResultRow] = field(default_factory=dict)
    last: int = 0

    def next(self) -> int:
        """Return an unused number for a tag, a generation or a revocation."""
        self.last += 1
        return self.last

    def held_by(self, generation: int) -> list[Message]:
        return [message for message in self.messages.values() if message.owner == generation]

    def free(self, queues: Iterable[str]) -> list[Message]:
        wanted = set(queues)
        return [
            message for message in self.messages.values() if not message.owner and message.queue in wanted
        ]

    def check(self, settlement: Settlement) -> None:
        """Raise what settle() would raise, so that a batch is settled completely or not at all."""
        if isinstance(settlement, Release):
            float(0.0 if settlement.due is None else settlement.due)
        elif settlement.row is not None:
            hash(settlement.row[:2])

    def settle(self, generation: int, settlement: Settlement, now: float) -> bool:
        """Apply *settlement*; return False if its message is not leased by *generation*."""
        if isinstance(settlement, Store):
            if settlement.row is not None:
                self._keep(settlement.row)
            return True
        message = self.messages.get(settlement.tag)
        if message is None or message.owner != generation:
            return False
        if isinstance(settlement, Release):
            message.owner = 0
            message.due = float(settlement.due) if settlement.due is not None else message.due
            message.deliveries += settlement.counted
            message.redelivered = message.redelivered or settlement.counted or settlement.redelivered
            message.requeued += settlement.requeued
            return True
        del self.messages[settlement.tag]
        if isinstance(settlement, DeadLetter):
            queue, headers, properties, body, priority = message.envelope[:5]
            count = message.deliveries + settlement.counted
            letter = Dead(message.tag, queue, settlement.reason, now, count, headers, properties, body)
            self.letters("failed" if settlement.failed else "dead")[message.tag] = letter, priority
        if settlement.row is not None:
            self._keep(settlement.row)
        return True

    def _keep(self, row: ResultRow) -> None:
        old = self.results.get(row[0])
        if old is None or states.may_replace(old[1], row[1]):
            self.results[row[0]] = row

    def give_up(self, generation: int) -> bool:
        """Remove the consumer *generation* and release its messages; return False if there is none."""
        if self.owners.pop(generation, None) is None:
            return False
        for message in self.held_by(generation):
            message.owner = 0
        return True

    def letters(self, kind: Kind) -> dict[int, tuple[Dead, int]]:
        """Return the letters of *kind* by tag, with their priorities."""
        return self.dead if kind == "dead" else self.failed

    def retry(self, kind: Kind, tags: Iterable[int], now: float) -> None:
        """Turn letters into messages again, and delete stored failures of their tasks."""
        for tag in tags:
            self._again(*self.letters(kind).pop(tag), now)

    def send_again(self, kind: Kind, calls: Iterable[Again], now: float) -> int:
        """See Letters.send_again()."""
        kept = self.letters(kind)
        found = [(call, kept.pop(call.tag)) for call in calls if call.tag in kept]
        for (_, headers, properties, body), (letter, priority) in found:
            sent = letter._replace(headers=headers, properties=properties, body=body)
            self._again(sent, priority, now)
        return len(found)

    def _again(self, letter: Dead, priority: int, now: float) -> None:
        id = id_in(letter.headers)
        if id in self.results and self.results[id][1] == states.FAILURE:
            del self.results[id]
        envelope = Envelope(letter.queue, letter.headers, letter.properties, letter.body, priority)
        fresh = self.next()
        self.messages[fresh] = Message(fresh, envelope, now, None, redelivered=True)

    def sweep(self, kind: Kind, expires: float, most: int, now: float) -> int:
        """Delete some of the expired or surplus letters, results and revocations; return their number."""
        letters = self.letters(kind)
        old = _over(letters, now - expires, most)
        stale = [id for id, row in self.results.items() if row[3] is not None and row[3] < now]
        over = [entry for entry in self.revoked if entry[2] < now]
        if kind == "failed":
            stale, over = [], []
        for tag in old[:SWEPT_AT_ONCE]:
            del letters[tag]
        for id in stale[:SWEPT_AT_ONCE]:
            del self.results[id]
        for entry in over[:SWEPT_AT_ONCE]:
            self.revoked.remove(entry)
        return sum(len(things[:SWEPT_AT_ONCE]) for things in (old, stale, over))

    def peek(self, queue: str, state: MessageState, limit: int, now: float) -> list[Peeked]:
        """Return the first *limit* messages of *queue* in that state."""
        found = [
            message
            for message in self.messages.values()
            if message.queue == queue and message.state(now) == state
        ]
        found.sort(
            key=lambda message: (message.due or 0, message.tag) if state == "delayed" else message.urgency
        )
        return [message.peeked(state, self._holder(message)) for message in found[:limit]]

    def _holder(self, message: Message) -> str:
        owner = self.owners.get(message.owner)
        return "" if owner is None else owner.name

    def queues(self, now: float) -> list[QueueInfo]:
        letters = [letter for letter, _ in self.dead.values()]
        names = {message.queue for message in self.messages.values()} | {letter.queue for letter in letters}
        return [
            self._queue(name, sum(letter.queue == name for letter in letters), now) for name in sorted(names)
        ]

    def _queue(self, name: str, dead: int, now: float) -> QueueInfo:
        here = [message for message in self.messages.values() if message.queue == name]
        free = [message for message in here if not message.owner]
        ready = [message for message in free if message.is_due(now)]
        oldest = min((message.sent for message in ready), default=None)
        return QueueInfo(name, len(ready), len(free) - len(ready), len(here) - len(free), dead, oldest)


def _over(letters: dict[int, tuple[Dead, int]], before: float, most: int) -> list[int]:
    """Return the tags of letters that died before epoch second *before*, or are not among the newest *most*
    of their queue."""
    kept: Counter[str] = Counter()
    old = []
    for tag, (letter, _) in reversed(letters.items()):  # the latest are last
        kept[letter.queue] += 1
        if kept[letter.queue] > most or letter.died_at < before:
            old.append(tag)
    return old
