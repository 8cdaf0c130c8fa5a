"""Finished: messages of RabbitMQ that ended here, and that it may deliver again for all that.

Comes from:  ``consumer.py``, which says what it acknowledged, and when a connection was lost.
Goes to:     ``inbox.py``: what comes again is acknowledged again, and not run.
Thread:      the listener's.

An ack has no answer. Those that were on their way when a connection broke, and those that a server forgot
when it died, leave messages that are delivered again. The server lets nobody have more than the prefetch
unacknowledged, so such acks are among the last that were written. A message that was sent anew, with other
counts, is another one than before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from qworker.transports.recent import Recent

SECONDS = 60.0
"""For how long before the end of a connection acks may have failed to arrive: its heartbeat noticed nothing
for so long."""
LINGER_SECONDS = 300.0
"""For how long what was lost with a connection may come back: a server notices late that we have gone."""
MOST = 20_000


class Finished:
    """now: monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._recent: Recent[int] = Recent(SECONDS, MOST, now)
        self._lost: set[int] = set()
        self._until = self._alive_at = 0.0

    def add(self, identities: Iterable[int]) -> None:
        """Their acks were written."""
        self._recent.add(tuple(identities))

    def undo(self) -> None:
        """What was added last is not over: its run waited for the word that the ack arrived, and that did not
        come."""
        self._recent.undo()

    def alive(self) -> None:
        """The server has answered."""
        self._alive_at = self._now()

    def lose(self, held: Iterable[int]) -> None:
        """The connection is gone; *held* was not settled, and is to be run when it comes again."""
        self._recent.forget_before(self._alive_at - SECONDS)
        if self._now() >= self._until:
            self._lost.clear()
        self._lost.update(*self._recent)
        self._lost.difference_update(held)
        self._until = self._now() + LINGER_SECONDS

    def __contains__(self, identity: object) -> bool:
        """Whether what was delivered again need not be run. False for all when nothing was lost lately."""
        if self._lost and self._now() >= self._until:
            self._lost.clear()
        return identity in self._lost
