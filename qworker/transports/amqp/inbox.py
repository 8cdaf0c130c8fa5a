"""Messages that RabbitMQ has pushed, not leased yet or on lease.

Comes from:  ``subscription.py``, one delivery at a time.
Goes to:     ``subscription.py``: Leased messages, ordered by priority, and the delivery numbers to
          acknowledge.
Thread:      the listener's.

RabbitMQ pushes up to the prefetch, while a worker leases as many as it has room for. The prefetch follows the
demand: it grows at once, and shrinks after some seconds of lower demand, so that other workers get the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from qworker.process.owner_files import OwnerFiles, left_by_the_dead
from qworker.transports.amqp.codec import Delivery, read_content, tag_of
from qworker.transports.lease import MAX_LEASE_BYTES, Leased
from qworker.transports.own_headers import (
    DEATHS,
    DELIVERIES,
    DUE,
    KEPT,
    REDELIVERED,
    REQUEUED,
    count,
    instant,
)

MOST = 1024
"""The largest prefetch. The worker leases about 400 at a time; the next ones should be here by then."""
RELAX_SECONDS = 2.0
MOST_DEATHS = 20
"""Maximum deaths named in a message; usually it is a dead letter long before."""


class UnackedMessage(NamedTuple):
    """A delivered, unacknowledged message. own: the headers with our counts.
    identity: the same at each delivery; a different one after it was sent again. expires: the server would
    drop it once it is back in its queue."""

    number: int
    leased: Leased
    own: dict[str, Any]
    message_id: str
    identity: int
    expires: bool


class Prefetch:
    """How many unacknowledged messages each consumer may have. least: the initial value.

    paused: the worker is busy with long tasks, and gets no messages until it leases again.
    """

    def __init__(self, least: int) -> None:
        self.size = min(MOST, max(1, least))
        self.paused = False
        self._asked = self._wanted = 0
        """The maximum demand since _since, without and with the messages on lease then."""
        self._since = 0.0

    def ask(self, limit: int, leased: int = 0) -> bool:
        """Record that *limit* more are wanted than the *leased*; True when the size has changed."""
        self._asked = max(self._asked, limit)
        self._wanted = max(self._wanted, limit + leased)
        if self.paused and limit > 0:
            self.paused, self.size = False, min(MOST, limit)
            return True
        if limit == 0 or limit + leased <= self.size or self.size >= MOST:
            return False
        while self.size < 2 * (limit + leased) and self.size < MOST:
            self.size = min(MOST, 2 * self.size)
        return True

    def relax(self, now: float, waiting: int) -> bool:
        """Called from time to time: True when the size has changed, because demand was lower and *waiting*
        are idle."""
        if now - self._since < RELAX_SECONDS:
            return False
        asked, wanted, self._since = self._asked, self._wanted, now
        self._asked = self._wanted = 0
        if not waiting or self.paused:
            return False
        if not asked:
            self.paused = True
        elif self.size > 4 * wanted:
            self.size = max(1, 2 * wanted)
        else:
            return False
        return True


class Inbox:
    """prefetch: of the consumers that fill it. settled: identities of messages that ended here before.
    deaths: returns the dead workers that were running the message with a given tag."""

    def __init__(
        self,
        prefetch: Prefetch,
        settled: Container[int] = frozenset(),
        deaths: Callable[[int], Sequence[str]] = lambda tag: (),
    ) -> None:
        self.prefetch = prefetch
        self._settled = settled
        self._deaths = deaths
        self.over: list[int] = []
        """Delivery numbers of settled messages that came again, to be acknowledged."""
        self.leased: dict[int, UnackedMessage] = {}
        """tag → message leased by the worker."""
        self.waiting = 0
        """How many are due and not leased yet."""
        self._tags: set[int] = set()  # of all that is here
        self._ready: dict[
            str, list[tuple[int, int, UnackedMessage]]
        ] = {}  # queue → heap of (-priority, number, …)
        self._early: list[tuple[float, int, UnackedMessage]] = []  # heap of (due, number, …)
        self._unacked: dict[int, UnackedMessage] = {}  # by delivery number, in their order
        self._bytes = 0  # of messages not leased yet
        self._first_queue = 0

    def roomy(self) -> bool:
        """Whether more should be read: RabbitMQ counts messages, not bytes."""
        return self._bytes < 2 * MAX_LEASE_BYTES

    def put(self, queue: str, message: Delivery, now: float) -> bool:
        """Add *message*, at epoch second *now*; False when it was settled before."""
        content = read_content(message)
        tag = tag_of(message, content)
        text, properties, own, priority, message_id, expires = content
        identity = _identity(tag, own) if own else tag
        deaths: Sequence[str] = ()
        if message.redelivered:
            if identity in self._settled:
                self.over.append(message.number)
                return False
            deaths = self._deaths(tag)
        counts = _counts(own, now, deaths) if own or deaths else _PLAIN
        while tag in self._tags:
            tag = tag % (2**63 - 1) + 1  # a duplicate: the same message was sent twice
        self._tags.add(tag)
        again = message.redelivered or counts.redelivered
        leased = Leased(
            tag, queue, priority, counts.due, counts.deliveries, again, counts.requeued, text, properties,
            message.body
        )  # fmt: skip
        held = UnackedMessage(message.number, leased, counts.kept, message_id, identity, expires)
        self._unacked[message.number] = held
        self._bytes += len(message.body)
        if leased.due is not None:
            heappush(self._early, (leased.due, message.number, held))
        else:
            self._push(held)
        return True

    def identities(self) -> list[int]:
        """Return the identities of all messages here."""
        return [held.identity for held in self._unacked.values()]

    def _push(self, held: UnackedMessage) -> None:
        heappush(self._ready.setdefault(held.leased.queue, []), (-held.leased.priority, held.number, held))
        self.waiting += 1

    def promote_due(self, now: float) -> None:
        """Move messages due by *now* to the ready ones."""
        while self._early and self._early[0][0] <= now:
            self._push(heappop(self._early)[2])

    def next_due(self) -> float | None:
        return self._early[0][0] if self._early else None

    def later_than(self, moment: float) -> list[UnackedMessage]:
        """Take out messages due after *moment*. They must still be acknowledged."""
        late = [entry[2] for entry in self._early if entry[0] > moment]
        if late:
            self._early = sorted(entry for entry in self._early if entry[0] <= moment)
            self._bytes -= sum(len(held.leased.body) for held in late)
        return late

    def take(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> list[Leased]:
        """Lease up to *limit* ready messages, and up to *delayed_limit* that are due by epoch second
        *until*."""
        self._first_queue = (self._first_queue + 1) % max(1, len(queues))
        taken: list[UnackedMessage] = []
        size = 0
        while delayed_limit > 0 and self._early and self._early[0][0] <= until and size < MAX_LEASE_BYTES:
            held = heappop(self._early)[2]
            delayed_limit -= 1
            size += len(held.leased.body)
            taken.append(held)
        for queue in (*queues[self._first_queue :], *queues[: self._first_queue]):
            ready = self._ready.get(queue)
            while ready and limit > 0 and size < MAX_LEASE_BYTES:
                held = heappop(ready)[2]
                limit -= 1
                self.waiting -= 1
                size += len(held.leased.body)
                taken.append(held)
        taken.sort(key=_urgency)
        self._bytes -= size
        for held in taken:
            self.leased[held.leased.tag] = held
        return [held.leased for held in taken]

    def surplus(self) -> list[UnackedMessage]:
        """Take out what exceeds the prefetch, the last ones first. They must still be settled."""
        surplus: list[UnackedMessage] = []
        keep = 0 if self.prefetch.paused else max(1, self.prefetch.size // max(1, len(self._ready)))
        for ready in self._ready.values():
            ready.sort()
            while len(ready) > keep:
                held = ready.pop()[2]
                self._bytes -= len(held.leased.body)
                self.waiting -= 1
                surplus.append(held)
        return sorted(surplus, key=lambda held: held.number)

    def forget(self, held: UnackedMessage) -> int:
        """Forget *held*, which is settled; return its delivery number."""
        self.leased.pop(held.leased.tag, None)
        self._tags.discard(held.leased.tag)
        self._unacked.pop(held.number, None)
        return held.number

    def acks(self, settled: Iterable[UnackedMessage], make: Callable[[int, bool], bytes]) -> list[bytes]:
        """Return acks for *settled*, made by make(number, multiple): one for all before the first unsettled
        one, and one for each of the rest."""
        numbers = {held.number: held for held in settled}
        if not numbers:
            return []
        last = 0
        for number in self._unacked:
            if number not in numbers:
                break
            last = number
        frames = [make(last, True)] if last else []
        frames += [make(number, False) for number in sorted(numbers) if number > last]
        for held in numbers.values():
            self.forget(held)
        return frames


class _Counts(NamedTuple):
    """The contents of the internal headers. kept: those that are sent along when the message is sent
    again."""

    due: float | None
    deliveries: int
    redelivered: bool
    requeued: int
    kept: dict[str, Any]


_PLAIN = _Counts(None, 0, False, 0, {})
"""The values for nearly all messages."""


def _identity(tag: int, own: dict[str, Any]) -> int:
    counts = [(name, own[name]) for name in sorted(KEPT) if name in own]
    return hash((tag, repr(counts))) if counts else tag


def _counts(own: dict[str, Any], now: float, deaths: Sequence[str] = ()) -> _Counts:
    counted = own.get(DEATHS)
    names = counted.split() if isinstance(counted, str) else []
    new = [name for name in deaths if name not in names]
    # A quorum queue counts each return of a message, also of one that only waited here: four count as a
    # death.
    died = count(own.get(DELIVERIES)) + count(own.get("x-delivery-count")) // 4 + len(new)
    due = instant(own.get(DUE))
    kept = {name: value for name, value in own.items() if name in KEPT}
    if new:
        kept[DELIVERIES] = count(own.get(DELIVERIES)) + len(new)
        kept[DEATHS] = " ".join([*names, *new][-MOST_DEATHS:])
    return _Counts(
        # A past due time is dropped, because clients copy it when they send the task again for another time.
        due if due is not None and due > now else None,
        died,
        bool(own.get(REDELIVERED)) or died > 0,
        count(own.get(REQUEUED)),
        kept,
    )


def _urgency(held: UnackedMessage) -> tuple[int, int]:
    return (-held.leased.priority, held.number)


# -- DeathRecords: which messages of RabbitMQ were running when a worker on this machine died --
# The server gives back the messages of a dead worker without saying which were running. The files of the dead
# do, for a day. Each worker here reads them; a message that is sent again names the deaths that its count
# already includes.

LOOK_SECONDS = 0.002
"""How long one reading is valid, because many messages come back at once."""


class DeathRecords:
    """files: of this process, in the same directory as the others'."""

    def __init__(self, files: OwnerFiles) -> None:
        self._files = files
        self._known: set[str] = set()
        self._running: dict[int, list[str]] = {}
        self._looked_at = float("-inf")

    def of(self, tag: int) -> Sequence[str]:
        """Return the workers that died while running the message *tag*, by the names of their files; usually
        none."""
        now = time.monotonic()
        if self._files.running and now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            for name, tags in left_by_the_dead(self._files.running, self._known):
                self._known.add(name)
                for each in tags:
                    self._running.setdefault(each, []).append(name)
        return self._running.get(tag, ())
