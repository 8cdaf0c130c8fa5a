"""The doorbell of a worker on Redis: told of a message without taking it.

Comes from:  ``redis_holder.py``.
Goes to:     a socket that is subscribed to the bells of the queues, which our own publishers ring; and for others'
             messages one blocked ``BLMOVE q q RIGHT RIGHT`` for each queue, which moves nothing and ends when there
             is something.
Thread:      the listener's, but for wake().
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import hiredis

from qworker.errors import BrokerUnavailable
from qworker.transports.redis_connection import Link, checked, pack
from qworker.transports.redis_layout import Layout
from qworker.transports.redis_url import Endpoint
from qworker.transports.waker import Waker

BLOCK_SECONDS = 20
SILENCE_SECONDS = 10.0
"""After so long without a word the server is asked whether it is there, and after twice as long it is not."""


class Doorbell:
    """revoked: whether a revocation may have come since this was last set to False."""

    def __init__(self, where: Endpoint, layout: Layout) -> None:
        self._where = where
        self._layout = layout
        self._bell = Link(where)
        self._blocked: dict[str, tuple[Link, float]] = {}
        """queue → the connection on which its BLMOVE waits, and since when."""
        self._idle: list[Link] = []
        self._queues: tuple[str, ...] = ()
        self._channels: tuple[str, ...] = ()
        self._waker = Waker()
        self._heard = self._asked = 0.0
        self.blocks = True
        """Whether the server lets us call BLMOVE (6.2 and later)."""
        self.revoked = True

    def open(self, queues: Sequence[str]) -> None:
        """Listen for *queues*; raises BrokerUnavailable."""
        self._queues = tuple(queues)
        self._channels = tuple(f"{self._layout.bell}{queue}" for queue in ("", *queues))
        self._waker.open()
        self._drop()
        self._subscribe()

    def _subscribe(self) -> None:
        for reply in self._bell.ask(pack(("SUBSCRIBE", *self._channels)), len(self._channels)):
            checked(self._bell, reply)
        self._heard = self._asked = time.monotonic()
        self.revoked = True

    def arm(self) -> None:
        """Wait for what others publish, too: the last claim left nothing behind."""
        if not self.blocks:
            return
        for queue in self._queues:
            if queue not in self._blocked:
                link = self._idle.pop() if self._idle else Link(self._where)
                key = self._layout.list_of(queue, 0)
                link.send(pack(("BLMOVE", key, key, "RIGHT", "RIGHT", BLOCK_SECONDS)))
                self._blocked[queue] = link, time.monotonic()

    def wait(self, timeout: float) -> bool | None:
        """Wait until it rings (then True), wake() is called (None) or *timeout* seconds have passed (False)."""
        self._see_to_silence()
        if self._bell.fileno() < 0:
            return True
        blocked = (link.fileno() for link, _ in self._blocked.values())
        words, events = self._waker.sleep(timeout, self._bell.fileno(), *blocked)
        rang = self._bell.fileno() in events and self._hear()
        for queue, (link, _) in list(self._blocked.items()):
            if link.fileno() in events:
                rang = self._unblocked(queue, link) or rang
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
                rang = True
                self.revoked = self.revoked or reply[1] == self._layout.bell.encode()
        return rang

    def _unblocked(self, queue: str, link: Link) -> bool:
        """Whether *queue* has something, now that its BLMOVE has ended."""
        try:
            replies = link.received()
        except BrokerUnavailable:
            del self._blocked[queue]
            return True
        if not replies:
            return False
        del self._blocked[queue]
        self._idle.append(link)
        (reply,) = replies
        if isinstance(reply, hiredis.ReplyError):
            if "unknown command" in str(reply) or "NOPERM" in str(reply):
                self.blocks = False  # who waits looks now and then instead
            return False
        return reply is not None

    def _see_to_silence(self) -> None:
        now = time.monotonic()
        for queue, (link, since) in list(self._blocked.items()):
            if now - since > BLOCK_SECONDS + SILENCE_SECONDS:
                link.close()
                del self._blocked[queue]
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
        for link in (*(link for link, _ in self._blocked.values()), *self._idle):
            link.close()
        self._blocked, self._idle = {}, []

    def close(self) -> None:
        """Let go of everything. Safe to call twice."""
        self._drop()
        self._waker.close()

    def abandon(self) -> None:
        """In a forked child."""
        for link in (self._bell, *(link for link, _ in self._blocked.values()), *self._idle):
            link.abandon()
        self._blocked, self._idle = {}, []
        self.close()
