"""Waiting for messages on Redis, without taking them.

Comes from:  ``consumer.py``.
Goes to:     a socket that is subscribed to the channels of the queues, where our publishers announce
             messages; and blocked ``BLMOVE list list RIGHT RIGHT``, which move nothing and end when that list
             has something: one for the list of each queue that stock publishers use, one for the list that
             ours use.
Thread:      the listener's, except wake().

A claim may wait behind the latter on the same connection. The server carries it out as soon as the BLMOVE
ends: so a message for an idle worker is taken without another round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hiredis

from qworker.errors import BrokerUnavailable
from qworker.process.wakeup import WakeupPipe
from qworker.transports.lease import MAX_LEASE_BYTES, Leased
from qworker.transports.redis.connection import Link, checked, pack
from qworker.transports.redis.envelope import USUAL, Layout, from_payload, whole
from qworker.transports.redis.url import Endpoint

BLOCK_SECONDS = 20
SILENCE_SECONDS = 10.0
"""After so long without data the server is pinged, and after twice as long it is considered gone."""

MOST_QUEUES = 8
"""A worker of more queues has no claims waiting in the server, which would need a connection each."""


@dataclass(slots=True)
class Blocked:
    """A connection on which a BLMOVE waits, and since when. numbers: of the claim behind it, if there is
    one."""

    link: Link
    since: float
    numbers: Numbers | None
    replies: list[Any] = field(default_factory=list)


class Prefetch(NamedTuple):
    """A claim that may have been carried out during a wait. answer: None when there was none, although it may
    have taken something."""

    queue: str
    numbers: Numbers
    answer: Answer | None


class Subscription:
    """drained: whether the queues were empty when last checked, and nothing was announced since. Only then
    are BLMOVEs sent, which would end at once if a list has something.
    prefetches: claims carried out during a wait; the reader clears the list."""

    def __init__(self, where: Endpoint, layout: Layout) -> None:
        self._where = where
        self._layout = layout
        self._link = Link(where)
        self._blocked: dict[tuple[str, int], Blocked] = {}
        """The blocked BLMOVE for each queue and step."""
        self._idle: list[Link] = []
        self._queues: frozenset[str] = frozenset()
        """The queues that are watched."""
        self._lists: tuple[tuple[str, int], ...] = ()
        """The lists of these queues."""
        self._channels: dict[str, None] = {}
        """All channels ever subscribed to, in order."""
        self._waker = WakeupPipe()
        self._last_read = self._asked = 0.0
        self.blocks = True
        """Whether the server lets us call BLMOVE (6.2 and later)."""
        self.drained = False
        self.prefetches: list[Prefetch] = []

    def open(self, queues: Sequence[str]) -> None:
        """Watch *queues*; raises BrokerUnavailable."""
        self._channels = {self._channel(""): None}
        self._choose(queues)
        self._waker.open()
        self.drop()
        self._subscribe()

    def listen_for(self, queues: Sequence[str]) -> None:
        """Watch *queues*, and no others, from now on; raises BrokerUnavailable. Call it before they are
        checked: it also repairs a broken connection."""
        if len(self._queues) != len(queues) or not self._queues.issuperset(queues):
            self._change_to(queues)
        if self._is_cut_off():
            self._subscribe()

    def _change_to(self, queues: Sequence[str]) -> None:
        known = len(self._channels)
        self._choose(queues)
        for place, blocked in list(self._blocked.items()):
            if place not in self._lists:
                blocked.link.close()
                self._unanswered(place, blocked)
        if len(self._channels) > known:
            self._link.close()

    def _is_cut_off(self) -> bool:
        """Whether the connection for notifications is broken."""
        return self._link.fileno() < 0

    def _choose(self, queues: Sequence[str]) -> None:
        self._queues = frozenset(queues)
        steps = {0, self._layout.usual} if len(queues) <= MOST_QUEUES else {0}
        self._lists = tuple((queue, step) for queue in queues for step in sorted(steps))
        self._channels.update(dict.fromkeys(map(self._channel, queues)))
        self.drained = False

    def _channel(self, queue: str) -> str:
        return f"{self._layout.channels}{queue}"

    def _subscribe(self) -> None:
        try:
            for reply in self._link.ask(pack(("SUBSCRIBE", *self._channels)), len(self._channels)):
                checked(self._link, reply)
        except BaseException:
            self._link.close()  # otherwise it would seem to be subscribed
            raise
        self._last_read = self._asked = time.monotonic()

    def arm(self, claim: Callable[[str], tuple[bytes, Numbers]] | None) -> None:
        """Also wait for messages of other publishers: the queues are drained. claim: makes the packed claim
        to be carried out when a queue has something, and its numbers."""
        if not self.blocks:
            return
        usual = self._layout.usual
        for place in self._lists:
            if place not in self._blocked:
                queue, step = place
                link = self._idle.pop() if self._idle else Link(self._where)
                key = self._layout.list_of(queue, step)
                command, numbers = claim(queue) if claim is not None and step == usual else (b"", None)
                blocked = self._blocked[place] = Blocked(link, time.monotonic(), numbers)
                try:
                    link.send(pack(("BLMOVE", key, key, "RIGHT", "RIGHT", BLOCK_SECONDS)) + command)
                except BrokerUnavailable:
                    self._unanswered(place, blocked)
                    raise

    def call_off(self) -> None:
        """Cancel waiting claims; the results of those already carried out are in ``prefetches``."""
        for place, blocked in list(self._blocked.items()):
            if blocked.numbers is not None:
                blocked.link.close()
                self._unanswered(place, blocked)

    def _unanswered(self, place: tuple[str, int], blocked: Blocked) -> None:
        del self._blocked[place]
        if blocked.numbers is not None:
            self.prefetches.append(Prefetch(place[0], blocked.numbers, None))

    def wait(self, timeout: float) -> bool | None:
        """Wait until there is something to lease (then True), wake() is called (None) or *timeout* seconds
        have passed (False)."""
        if self._is_cut_off():
            self.drained = False
            return True
        self._see_to_silence()
        files = (blocked.link.fileno() for blocked in self._blocked.values())
        words, events = self._waker.sleep(timeout, self._link.fileno(), *files)
        notified = self._link.fileno() in events and self._read_notifications()
        for place, blocked in list(self._blocked.items()):
            if blocked.link.fileno() in events:
                notified = self._unblocked(place, blocked) or notified
        if words:
            return True if notified else None
        return notified

    def _read_notifications(self) -> bool:
        """Read notifications; return whether there was one that no BLMOVE reports."""
        try:
            replies = self._link.received()
        except BrokerUnavailable:
            self._reconnect()
            return True  # there may have been a notification meanwhile
        self._last_read = time.monotonic()
        notified = False
        for reply in replies:
            if reply[0] == b"message":
                queue = reply[1].decode()[len(self._layout.channels) :]
                if not queue or queue in self._queues:
                    notified = (
                        notified or reply[2] != USUAL or (queue, self._layout.usual) not in self._blocked
                    )
        if notified:
            self.drained = False
        return notified

    def _unblocked(self, place: tuple[str, int], blocked: Blocked) -> bool:
        """Read the data that arrived for *place*; return whether its list has, or had, something."""
        try:
            blocked.replies += blocked.link.received()
        except BrokerUnavailable:
            self._unanswered(place, blocked)
            self.drained = False
            return True
        if len(blocked.replies) < (1 if blocked.numbers is None else 2):
            return False
        del self._blocked[place]
        self._idle.append(blocked.link)
        found, *claimed = blocked.replies
        refused = isinstance(found, hiredis.ReplyError)
        if refused and ("unknown command" in str(found) or "NOPERM" in str(found)):
            self.blocks = False  # waiting polls from time to time instead
        if blocked.numbers is not None:
            return self._claimed(place[0], blocked.numbers, claimed[0])
        if found is None or refused:
            return False
        self.drained = False
        return True

    def _claimed(self, queue: str, numbers: Numbers, reply: Any) -> bool:
        """Record the answer of a claim; return whether there is anything to do about it."""
        if isinstance(reply, list):
            answer = Answer.of(reply)
            if not answer.fields:
                return False
            self.prefetches.append(Prefetch(queue, numbers, answer))
            if len(answer.fields) < numbers[1] - numbers[0]:
                return True  # it left nothing behind
        elif reply is not None and not str(reply).startswith("NOSCRIPT"):  # that one took nothing
            self.prefetches.append(Prefetch(queue, numbers, None))
        self.drained = False
        return True

    def _see_to_silence(self) -> None:
        now = time.monotonic()
        for place, blocked in list(self._blocked.items()):
            if now - blocked.since > BLOCK_SECONDS + SILENCE_SECONDS:
                blocked.link.close()
                self._unanswered(place, blocked)
        if now - self._last_read > 2 * SILENCE_SECONDS and self._asked > self._last_read:
            self._reconnect()
        elif now - max(self._last_read, self._asked) > SILENCE_SECONDS:
            self._asked = now
            try:
                self._link.send(pack(("PING",)))
            except BrokerUnavailable:
                self._reconnect()

    def _reconnect(self) -> None:
        self.drained = False  # notifications were missed meanwhile
        self._link.close()
        with suppress(BrokerUnavailable):  # the next claim will raise the error
            self._subscribe()

    def wake(self) -> None:
        """End a wait(). Safe in a signal handler."""
        self._waker.wake()

    def drop(self) -> None:
        """Close the connections; open() makes others."""
        for link in self._links():
            link.close()
        self._forget()

    def _links(self) -> list[Link]:
        return [self._link, *(blocked.link for blocked in self._blocked.values()), *self._idle]

    def _forget(self) -> None:
        self._blocked, self._idle, self.prefetches, self.drained = {}, [], [], False

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        self.drop()
        self._waker.close()

    def abandon(self) -> None:
        """In a forked child: drop the connections."""
        for link in self._links():
            link.abandon()
        self._forget()
        self._waker.close()


# -- Claims of a consumer on Redis --
# The numbers that claims assign, the messages held, and those that may be held unknowingly. A claim names the
# numbers for the messages that it takes. Without an answer it is *orphaned*: messages with one of those
# numbers are ours without our knowledge, and must be given back.

Numbers = tuple[int, int]
"""The numbers that a claim may assign: from, up to."""


class Answer(NamedTuple):
    """The result of LEASE. next_due: of its queues. fields, payloads: of the messages it took, in order."""

    next_due: float | None
    last_revocation: int
    fields: list[bytes]
    payloads: list[bytes]

    @classmethod
    def of(cls, reply: list[bytes]) -> Answer:
        due, revocation = reply[:2]
        return cls(float(due) if due else None, whole(revocation), reply[2::2], reply[3::2])


class Claims:
    """held: tag → field of ``unacked`` of each message on lease. orphaned: the numbers of claims without an
    answer."""

    def __init__(self, layout: Layout, generation: int) -> None:
        self._layout = layout
        self._generation = generation
        self._next_number = 0
        self.held: dict[int, bytes] = {}
        self.orphaned: list[Numbers] = []

    def prepare(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, until: float = 0.0
    ) -> tuple[tuple[Any, ...], Numbers]:
        """Return the arguments of LEASE for a claim, and its numbers. until: epoch second for delayed
        ones."""
        first, self._next_number = self._next_number, self._next_number + limit + delayed_limit
        steps = self._layout.scale.steps
        arguments = (
            self._generation, limit, delayed_limit, repr(until), MAX_LEASE_BYTES, first, len(steps), *steps,
            *queues,
        )  # fmt: skip
        return arguments, (first, self._next_number)

    def take(self, answer: Answer) -> tuple[list[Leased], list[bytes]]:
        """Return the messages of *answer*, which are held from now on; and fields to acknowledge at once.

        These are duplicates: a stock consumer considered our message lost, and put it back.
        """
        names: dict[bytes, str] = {}
        copies, messages = [], []
        for each, payload in zip(answer.fields, answer.payloads, strict=True):
            queue = each.split(b":", 4)[4]
            name = names.get(queue) or names.setdefault(queue, queue.decode())
            message = from_payload(payload, self._layout.scale, name)
            if message.tag in self.held:
                copies.append(self.held[message.tag])
            self.held[message.tag] = each
            messages.append(message)
        return messages, copies
