"""The doorbell of a worker on Redis: told of a message without taking it.

Comes from:  ``consumer.py``.
Goes to:     a socket that is subscribed to the bells of the queues, which our own publishers ring; and
             blocked ``BLMOVE list list RIGHT RIGHT``, which move nothing and end when there is something in
             that list: one for the list of each queue that stock publishers use, one for the list that ours
             use.
Thread:      the listener's, but for wake().

Behind the latter a claim may wait on the same connection, which the server carries out as soon as the BLMOVE
ends: so a message that finds the worker idle does not wait for the worker to hear of it and ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from qworker.errors import BrokerUnavailable
from qworker.transports.redis.connection import Link, checked, pack
from qworker.transports.redis.layout import USUAL, Layout
from qworker.transports.redis.url import Endpoint
from qworker.transports.wakeup import WakeupPipe

BLOCK_SECONDS = 20
SILENCE_SECONDS = 10.0
"""After so long without a word the server is asked whether it is there, and after twice as long it is not."""

MOST_QUEUES = 8
"""A worker of more queues than these has no claims wait in the server, which would take a connection each."""

Numbers = tuple[int, int]
"""Those that a claim may give to what it takes: from, up to."""


@dataclass(slots=True)
class Blocked:
    """A connection on which a BLMOVE waits, and since when. numbers: of the claim behind it, if there is
    one."""

    link: Link
    since: float
    numbers: Numbers | None
    replies: list[Any] = field(default_factory=list)


class Doorbell:
    """revoked: whether a revocation may have come since this was last set to False."""

    def __init__(self, where: Endpoint, layout: Layout) -> None:
        self._where = where
        self._layout = layout
        self._bell = Link(where)
        self._blocked: dict[tuple[str, int], Blocked] = {}
        """By queue and step."""
        self.claims: list[tuple[Numbers, Any]] = []
        """What the claims that were carried out have answered; None: they may have taken something, and no
        answer came. Whoever reads them clears the list."""
        self._idle: list[Link] = []
        self._lists: tuple[tuple[str, int], ...] = ()
        self._channels: tuple[str, ...] = ()
        self._waker = WakeupPipe()
        self._heard = self._asked = 0.0
        self.blocks = True
        """Whether the server lets us call BLMOVE (6.2 and later)."""
        self.revoked = True

    def open(self, queues: Sequence[str]) -> None:
        """Listen for *queues*; raises BrokerUnavailable."""
        steps = {0, self._layout.usual} if len(queues) <= MOST_QUEUES else {0}
        self._lists = tuple((queue, step) for queue in queues for step in sorted(steps))
        self._channels = tuple(f"{self._layout.bell}{queue}" for queue in ("", *queues))
        self._waker.open()
        self._drop()
        self._subscribe()

    def _subscribe(self) -> None:
        for reply in self._bell.ask(pack(("SUBSCRIBE", *self._channels)), len(self._channels)):
            checked(self._bell, reply)
        self._heard = self._asked = time.monotonic()
        self.revoked = True

    def arm(self, claim: Callable[[str], tuple[bytes, Numbers]] | None) -> None:
        """Wait for what others publish, too: the last claim left nothing behind. claim: makes the packed
        claim that is to be carried out when a queue has something, and its numbers."""
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
        """Have no claim carried out any more; what one may have taken meanwhile is in ``claims``."""
        for place, blocked in list(self._blocked.items()):
            if blocked.numbers is not None:
                blocked.link.close()
                self._unanswered(place, blocked)

    def _unanswered(self, place: tuple[str, int], blocked: Blocked) -> None:
        del self._blocked[place]
        if blocked.numbers is not None:
            self.claims.append((blocked.numbers, None))

    def wait(self, timeout: float) -> bool | None:
        """Wait until it rings (then True), wake() is called (None) or *timeout* seconds have passed
        (False)."""
        self._see_to_silence()
        if self._bell.fileno() < 0:
            return True
        files = (blocked.link.fileno() for blocked in self._blocked.values())
        words, events = self._waker.sleep(timeout, self._bell.fileno(), *files)
        rang = self._bell.fileno() in events and self._hear()
        for place, blocked in list(self._blocked.items()):
            if blocked.link.fileno() in events:
                rang = self._unblocked(place, blocked) or rang
        if words:
            return True if rang else None
        return rang

    def _hear(self) -> bool:
        try:
            replies = self._bell.received()
        except BrokerUnavailable:
            self._reconnect()
            return True  # something may have been said meanwhile
        self._heard = time.monotonic()
        rang = False
        for reply in replies:
            if reply[0] == b"message":
                queue = reply[1].decode()[len(self._layout.bell) :]
                self.revoked = self.revoked or not queue
                usual = reply[2] == USUAL and (queue, self._layout.usual) in self._blocked
                rang = rang or not usual  # else that will tell of it itself
        return rang

    def _unblocked(self, place: tuple[str, int], blocked: Blocked) -> bool:
        """Whether the list at *place* has something, or had, now that something was said on its
        connection."""
        try:
            blocked.replies += blocked.link.received()
        except BrokerUnavailable:
            self._unanswered(place, blocked)
            return True
        if len(blocked.replies) < (1 if blocked.numbers is None else 2):
            return False
        del self._blocked[place]
        self._idle.append(blocked.link)
        found, *claimed = blocked.replies
        if isinstance(found, hiredis.ReplyError) and (
            "unknown command" in str(found) or "NOPERM" in str(found)
        ):
            self.blocks = False  # who waits looks now and then instead
        rang = found is not None and not isinstance(found, hiredis.ReplyError)
        if blocked.numbers is None:
            return rang
        return self._claimed(blocked.numbers, claimed[0]) or rang

    def _claimed(self, numbers: Numbers, answer: Any) -> bool:
        """Note what a claim has answered; whether there is anything to be done about it."""
        if isinstance(answer, hiredis.ReplyError):
            if not str(answer).startswith("NOSCRIPT"):  # that one took nothing
                self.claims.append((numbers, None))
            return True
        if answer is not None and len(answer) > 1:
            self.claims.append((numbers, answer))
        return answer is None or len(answer) > 1

    def _see_to_silence(self) -> None:
        now = time.monotonic()
        for place, blocked in list(self._blocked.items()):
            if now - blocked.since > BLOCK_SECONDS + SILENCE_SECONDS:
                blocked.link.close()
                self._unanswered(place, blocked)
        if now - self._heard > 2 * SILENCE_SECONDS and self._asked > self._heard:
            self._reconnect()
        elif now - max(self._heard, self._asked) > SILENCE_SECONDS:
            self._asked = now
            try:
                self._bell.send(pack(("PING",)))
            except BrokerUnavailable:
                self._reconnect()

    def _reconnect(self) -> None:
        self._bell.close()
        try:
            self._subscribe()
        except BrokerUnavailable:
            self._bell.close()  # the next claim will say what is wrong

    def wake(self) -> None:
        """End a wait(). Safe in a signal handler."""
        self._waker.wake()

    def _drop(self) -> None:
        self._bell.close()
        for link in (*(blocked.link for blocked in self._blocked.values()), *self._idle):
            link.close()
        self._blocked, self._idle, self.claims = {}, [], []

    def close(self) -> None:
        """Let go of everything. Safe to call twice."""
        self._drop()
        self._waker.close()

    def abandon(self) -> None:
        """In a forked child."""
        for link in (self._bell, *(blocked.link for blocked in self._blocked.values()), *self._idle):
            link.abandon()
        self._blocked, self._idle, self.claims = {}, [], []
        self.close()
