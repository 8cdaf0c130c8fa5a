"""A server that hides what it gives out: what a transport must say of it.

Comes from:  the URL of the broker and the settings.
Goes to:     the transport's library.
Thread:      any; what connect() returns belongs to who called it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from qworker.errors import BrokerUnavailable
from qworker.transports.held.queue import RemoteQueue, Source
from qworker.transports.kombu.server import DEAD, Server
from qworker.transports.lease import Revocation


class QueueGone(BrokerUnavailable):
    """A queue was deleted, or the server has forgotten it: the consumer registers again."""


class Heard:
    """Revocations that all workers hear of: none, where a server has no way to tell them."""

    has_news = False
    """Whether there may be some that since() has not returned."""

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """As Consumer.revoked_since."""
        return cursor, []


class RemoteServer(Server):
    """See Server. What connect() returns connects again by itself when it has lost the server: what a
    consumer holds stays its own meanwhile. errors() raises QueueGone where declare() is to be called
    again."""

    wait_seconds: float
    """How long one receive() of a long poll waits."""
    letters: Sequence[str] = (DEAD,)
    """The kinds of letters that it keeps."""

    @abstractmethod
    def declare(self, connection: Any, queue: str) -> RemoteQueue:
        """The queue, which there is from now on. Dead letters are in the queue DEAD, failed tasks in FAILED
        where the server keeps them; who looks at them has them hidden from others for a while, and does not
        renew that."""

    def sources(self, connection: Any, queues: Sequence[RemoteQueue]) -> Sequence[Source]:
        """What is asked for messages of *queues*, by a thread each: the queues, or one source for all where
        the server can wait for several at once."""
        return queues

    def revocations(self, connection: Any, ring: Callable[[], None]) -> Heard:
        """What is heard of revocations over *connection*. ring: called when there is news, in any thread."""
        return Heard()
