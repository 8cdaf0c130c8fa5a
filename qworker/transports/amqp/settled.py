"""SettledMessages: settled messages of RabbitMQ that it may deliver again.

Comes from:  ``consumer.py``, which reports acks and lost connections.
Goes to:     ``inbox.py``: a message that comes again is acknowledged again, and does not run.
Thread:      the listener's.

An ack has no answer. Acks in transit when a connection broke, and acks that a dying server forgot, leave
messages that are delivered again. The server limits unacknowledged messages to the prefetch, so such acks are
among the last ones written. A message that was sent again, with other counts, is a different one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from qworker.transports.recent import Recent

SECONDS = 60.0
"""How long before the end of a connection acks may have been lost: its heartbeat noticed nothing for so
long."""
LINGER_SECONDS = 300.0
"""How long messages of a lost connection may come back: a server may notice the loss late."""
MOST = 20_000


class SettledMessages:
    """now: monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._recent: Recent[int] = Recent(SECONDS, MOST, now)
        self._lost: set[int] = set()
        self._until = self._alive_at = 0.0

    def add(self, identities: Iterable[int]) -> None:
        """Record that their acks were written."""
        self._recent.add(tuple(identities))

    def undo(self) -> None:
        """Remove the last ones added: their runs waited for a confirmation of the ack, which did not come."""
        self._recent.undo()

    def alive(self) -> None:
        """Record that the server has answered."""
        self._alive_at = self._now()

    def lose(self, held: Iterable[int]) -> None:
        """Record that the connection is lost. *held* were not settled, and run when they come again."""
        self._recent.forget_before(self._alive_at - SECONDS)
        if self._now() >= self._until:
            self._lost.clear()
        self._lost.update(*self._recent)
        self._lost.difference_update(held)
        self._until = self._now() + LINGER_SECONDS

    def __contains__(self, identity: object) -> bool:
        """Whether a message delivered again need not run. False for all when no connection was lost
        lately."""
        if self._lost and self._now() >= self._until:
            self._lost.clear()
        return identity in self._lost
