"""ConnectionState: how the broker answers this worker, and how long to let it be when it does not.

Comes from:  Listener, after each turn.
Goes to:     Health and Metrics, which tell of it.
Thread:      written by the listener; single attributes are read by any.
"""

from __future__ import annotations

import logging
import random

from qworker.publishing.retry import RECONNECT

logger = logging.getLogger(__name__)


class ConnectionState:
    def __init__(self) -> None:
        self.answered_at = 0.0
        """Monotonic time of the last turn in which the broker answered; 0.0 before the first."""
        self.failing: str | None = None
        """Why the broker did not answer at the last turn; None when it did."""
        self.failures = self.reconnects = 0
        """How many turns failed, and how often the broker answered again."""
        self._in_a_row = 0

    def failed(self, error: Exception) -> float:
        """The broker did not answer; return the seconds until it is to be asked again."""
        delay = RECONNECT.delay(self._in_a_row, random.random)
        self._in_a_row += 1
        self.failures += 1
        self.failing = str(error)
        if self._in_a_row & (self._in_a_row - 1) == 0:  # the 1st, 2nd, 4th, 8th… time
            logger.error(
                "the broker does not answer: %s; trying again in %.1f s",
                error,
                delay,
                extra={"event": "broker-lost"},
            )
        return max(delay, 0.05)

    def answered(self, now: float) -> None:
        """The broker answered in a turn that began at the monotonic time *now*."""
        if self._in_a_row:
            logger.warning(
                "the broker answers again after %d failures", self._in_a_row, extra={"event": "broker-back"}
            )
            self._in_a_row = 0
            self.failing = None
            self.reconnects += 1
        self.answered_at = now
