"""What RabbitMQ has pushed and nobody has asked for yet, and what is on lease.

Comes from:  ``subscription.py``, a delivery at a time.
Goes to:     back to it: Leased messages, in order of urgency, and the delivery numbers to acknowledge.
Thread:      the listener's.

RabbitMQ pushes up to the prefetch, while a worker asks for as many as it has room for. Prefetch follows what
is asked for: up at once, down after some seconds of asking for less, so that what a busy worker does not need
is with others.
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
"""The largest prefetch. The worker asks for some 400 at a time; the next ones are to be here by then."""
RELAX_SECONDS = 2.0
MOST_DEATHS = 20
"""How many deaths a message names; in general it is a dead letter long before."""


class Held(NamedTuple):
    """A message that was delivered and not acknowledged. own: the headers with counts that are ours.
    identity: the same whenever it is delivered again; another once it was sent anew. expires: the server
    would drop it once it is back in its queue."""

    number: int
    leased: Leased
    own: dict[str, Any]
    message_id: str
    identity: int
    expires: bool


class Prefetch:
    """How many unacknowledged messages each consumer may have. least: where it begins.

    paused: the worker is full of long tasks; nothing is to be sent to it until it asks again.
    """

    def __init__(self, least: int) -> None:
        self.size = min(MOST, max(1, least))
        self.paused = False
        self._asked = self._wanted = 0
        """The most that was asked for since _since, without and with what was on lease then."""
        self._since = 0.0

    def ask(self, limit: int, leased: int = 0) -> bool:
        """Note that *limit* more are wanted than the *leased*; True when the size has changed for that."""
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
        """Once in a while: True when the size has changed, since less was asked for and *waiting* lie
        idle."""
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
    """prefetch: of the consumers that fill it. finished: the identities of what ended here before, should it
    come again.
    deaths: tells which deaths of workers a message, by its tag, was running at."""

    def __init__(
        self,
        prefetch: Prefetch,
        finished: Container[int] = frozenset(),
        deaths: Callable[[int], Sequence[str]] = lambda tag: (),
    ) -> None:
        self.prefetch = prefetch
        self._finished = finished
        self._deaths = deaths
        self.over: list[int] = []
        """Delivery numbers of what came again although it was finished: they are to be acknowledged."""
        self.leased: dict[int, Held] = {}
        """tag → what the worker has."""
        self.waiting = 0
        """How many are due and not asked for yet."""
        self._tags: set[int] = set()  # of all that is here
        self._ready: dict[str, list[tuple[int, int, Held]]] = {}  # queue → heap of (-priority, number, …)
        self._early: list[tuple[float, int, Held]] = []  # heap of (due, number, …)
        self._unacked: dict[int, Held] = {}  # by delivery number, in their order
        self._bytes = 0  # of what was not asked for yet
        self._first_queue = 0

    def roomy(self) -> bool:
        """Whether more should be read: RabbitMQ counts messages, not bytes."""
        return self._bytes < 2 * MAX_LEASE_BYTES

    def put(self, queue: str, message: Delivery, now: float) -> bool:
        """Take in *message*, at epoch second *now*; False when it was finished before."""
        content = read_content(message)
        tag = tag_of(message, content)
        text, properties, own, priority, message_id, expires = content
        identity = _identity(tag, own) if own else tag
        deaths: Sequence[str] = ()
        if message.redelivered:
            if identity in self._finished:
                self.over.append(message.number)
                return False
            deaths = self._deaths(tag)
        counts = _counts(own, now, deaths) if own or deaths else _PLAIN
        while tag in self._tags:
            tag = tag % (2**63 - 1) + 1  # a twin: the same message was sent twice
        self._tags.add(tag)
        again = message.redelivered or counts.redelivered
        leased = Leased(
            tag, queue, priority, counts.due, counts.deliveries, again, counts.requeued, text, properties,
            message.body
        )  # fmt: skip
        held = Held(message.number, leased, counts.kept, message_id, identity, expires)
        self._unacked[message.number] = held
        self._bytes += len(message.body)
        if leased.due is not None:
            heappush(self._early, (leased.due, message.number, held))
        else:
            self._push(held)
        return True

    def identities(self) -> list[int]:
        """Of all that is here."""
        return [held.identity for held in self._unacked.values()]

    def _push(self, held: Held) -> None:
        heappush(self._ready.setdefault(held.leased.queue, []), (-held.leased.priority, held.number, held))
        self.waiting += 1

    def promote_due(self, now: float) -> None:
        """Make ready what is due by *now*."""
        while self._early and self._early[0][0] <= now:
            self._push(heappop(self._early)[2])

    def next_due(self) -> float | None:
        return self._early[0][0] if self._early else None

    def later_than(self, moment: float) -> list[Held]:
        """Take out what is due after *moment*. It still is to be acknowledged."""
        late = [entry[2] for entry in self._early if entry[0] > moment]
        if late:
            self._early = sorted(entry for entry in self._early if entry[0] <= moment)
            self._bytes -= sum(len(held.leased.body) for held in late)
        return late

    def take(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> list[Leased]:
        """Put on lease up to *limit* that are ready, and up to *delayed_limit* that fall due by epoch second
        *until*."""
        self._first_queue = (self._first_queue + 1) % max(1, len(queues))
        taken: list[Held] = []
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

    def surplus(self) -> list[Held]:
        """Take out what waits beyond the prefetch, the last of it. It still is to be settled."""
        surplus: list[Held] = []
        keep = 0 if self.prefetch.paused else max(1, self.prefetch.size // max(1, len(self._ready)))
        for ready in self._ready.values():
            ready.sort()
            while len(ready) > keep:
                held = ready.pop()[2]
                self._bytes -= len(held.leased.body)
                self.waiting -= 1
                surplus.append(held)
        return sorted(surplus, key=lambda held: held.number)

    def forget(self, held: Held) -> int:
        """*held* is settled; return its delivery number."""
        self.leased.pop(held.leased.tag, None)
        self._tags.discard(held.leased.tag)
        self._unacked.pop(held.number, None)
        return held.number

    def acks(self, settled: Iterable[Held], make: Callable[[int, bool], bytes]) -> list[bytes]:
        """What acknowledges *settled*, made by make(number, multiple): one ack for all that come before the
        first that is not settled, and one for each of the rest."""
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
    """What the headers that are apart say of a message. kept: those of them that go along when it is sent
    anew."""

    due: float | None
    deliveries: int
    redelivered: bool
    requeued: int
    kept: dict[str, Any]


_PLAIN = _Counts(None, 0, False, 0, {})
"""Of nearly all messages."""


def _identity(tag: int, own: dict[str, Any]) -> int:
    counts = [(name, own[name]) for name in sorted(KEPT) if name in own]
    return hash((tag, repr(counts))) if counts else tag


def _counts(own: dict[str, Any], now: float, deaths: Sequence[str] = ()) -> _Counts:
    counted = own.get(DEATHS)
    names = counted.split() if isinstance(counted, str) else []
    new = [name for name in deaths if name not in names]
    # A quorum queue counts each time that a message came back, also when it was only waiting here: four are a
    # death.
    died = count(own.get(DELIVERIES)) + count(own.get("x-delivery-count")) // 4 + len(new)
    due = instant(own.get(DUE))
    kept = {name: value for name, value in own.items() if name in KEPT}
    if new:
        kept[DELIVERIES] = count(own.get(DELIVERIES)) + len(new)
        kept[DEATHS] = " ".join([*names, *new][-MOST_DEATHS:])
    return _Counts(
        # What is past says nothing more: others copy it when they send the task again, for another time.
        due if due is not None and due > now else None,
        died,
        bool(own.get(REDELIVERED)) or died > 0,
        count(own.get(REQUEUED)),
        kept,
    )


def _urgency(held: Held) -> tuple[int, int]:
    return (-held.leased.priority, held.number)


# -- Deaths: which messages of RabbitMQ were running when a worker on this machine died --
# The server gives back what a dead worker held, and does not say what of it was running. The files of
# the dead do, for a day. Each worker here reads them; a message that is sent anew says which deaths are
# in its count already.

LOOK_SECONDS = 0.002
"""For how long a look counts: many messages come back at once."""


class Deaths:
    """files: of this process, beside which the others' are."""

    def __init__(self, files: OwnerFiles) -> None:
        self._files = files
        self._known: set[str] = set()
        self._running: dict[int, list[str]] = {}
        self._looked_at = float("-inf")

    def of(self, tag: int) -> Sequence[str]:
        """The workers that died while they ran the message *tag*, by the names of their files; most often
        none."""
        now = time.monotonic()
        if self._files.running and now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            for name, tags in left_by_the_dead(self._files.running, self._known):
                self._known.add(name)
                for each in tags:
                    self._running.setdefault(each, []).append(name)
        return self._running.get(tag, ())
