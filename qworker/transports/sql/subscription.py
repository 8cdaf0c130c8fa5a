"""Subscription: whether publishers notify a consumer, and when it has to look for what they did not tell.

Comes from:  ``consumer.py``.
Goes to:     ``qworker_owner.armed_until``: publishers only notify while some consumer's lies ahead.
Thread:      the listener's.

A notification costs each publisher something, and a consumer that has enough to do needs none.
"""

from __future__ import annotations

import math
import time

from qworker.transports.sql.link import Link
from qworker.transports.sql.schema import NOW

SUBSCRIBED_SECONDS = 60.0
"""For how long publishers notify a consumer that says no more."""
FULL_CLAIMS = 3
"""Who was given all that it asked for so often in a row has enough to do."""
PAUSE_SECONDS = 0.25
"""For how long at the least who has enough to do is not notified, unless that changes."""
SECOND_LOOK = 0.015
"""Seconds. Whoever published while we were about to say that we listen told nobody of it: look again, so much
later."""


class Subscription:
    """Of a consumer that has just registered: then it is active.

    active: publishers notify. look_at: in monotonic seconds, when there may be something that nobody told of;
    inf: there is nothing.
    """

    renewal = f"armed_until = {NOW} + {SUBSCRIBED_SECONDS}"
    """What renews it, in an UPDATE of the consumer's row."""

    def __init__(self) -> None:
        self.active = True
        self.look_at = math.inf
        self._full_claims = 0
        self._paused_until = 0.0

    def claimed(self, began: float, full: bool) -> None:
        """Note a claim that *began* then. full: it was given all that it asked for."""
        self._full_claims = self._full_claims + 1 if full else 0
        if began >= self.look_at:
            self.look_at = math.inf  # it has seen what there was to see

    @property
    def has_enough(self) -> bool:
        """Whether notifications should pause."""
        return self.active and self._full_claims >= FULL_CLAIMS

    def pause(self, link: Link, generation: int) -> None:
        link.do("UPDATE qworker_owner SET armed_until = 0 WHERE id = %s", (generation,))
        self.active = False
        self._paused_until = time.monotonic() + PAUSE_SECONDS

    def rest(self) -> float:
        """Seconds for which nothing needs to be told, since there is enough to do."""
        return self._paused_until - time.monotonic() if self._full_claims else 0.0

    def resume(self, link: Link, generation: int) -> None:
        link.do(f"UPDATE qworker_owner SET {self.renewal} WHERE id = %s", (generation,))
        self.active = True
        self.look_at = time.monotonic() + SECOND_LOOK

    def missed(self) -> None:
        """Nobody has told us what happened while there was no connection."""
        self.look_at = time.monotonic()

    def look_is_due(self, now: float) -> bool:
        """Whether to look, at monotonic *now*; it is said once."""
        due = now >= self.look_at
        if due:
            self.look_at = math.inf
        return due
