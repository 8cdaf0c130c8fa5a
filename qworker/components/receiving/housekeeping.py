"""Housekeeping: periodic work for all workers: reclaims messages of dead workers, and deletes old entries.

Comes from:  Listener, once a second.
Goes to:     the store.
Thread:      listener.

A worker is dead when its process has ended or its lease has expired. A worker that was itself disconnected or
frozen waits for the duration of a lease before it reclaims, because the others may have been disconnected
too.
"""

from __future__ import annotations

import logging
import math

from qworker.clock import Clock
from qworker.transports.lease import Consumer

logger = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
SWEEP_SECONDS = 60.0
USUAL_SILENCE = 2.0
"""Maximum seconds between two turns of a healthy listener, which waits one at most."""


class Housekeeping:
    """dead_limits: the seconds for which dead letters are kept, and their maximum number per queue.
    failed_limits: the same for failed tasks."""

    def __init__(
        self,
        clock: Clock,
        consumer: Consumer,
        lease_seconds: float,
        dead_limits: tuple[float, int],
        failed_limits: tuple[float, int],
    ) -> None:
        self._clock = clock
        self._consumer = consumer
        self._lease_seconds = lease_seconds
        self._dead_limits = dead_limits
        self._failed_limits = failed_limits
        self.due_at = 0.0
        """Monotonic time of the next round, as all times here."""
        self._sweep_at = 0.0
        self._answered_at = -math.inf
        self._believe_at = 0.0
        """The time from which expired leases of other workers count."""

    def answered(self, now: float) -> None:
        """Record that the broker answered in a turn that began at *now*."""
        self._answered_at = now

    def reclaim(self, now: float) -> bool:
        """Put back the messages of dead workers; return whether any worker is dead."""
        self.due_at = now + ROUND_SECONDS
        found = self._consumer.reclaim(silent=self._others_could_speak(now))
        for dead in found:
            logger.warning(
                "worker %s is dead: %d of its messages are back, %d of them were running",
                dead.name,
                dead.returned,
                dead.counted,
                extra={"event": "worker-dead"},
            )
        return bool(found)

    def _others_could_speak(self, now: float) -> bool:
        now = max(now, self._clock.monotonic())  # this turn may have taken long
        if now - self._answered_at > max(self._lease_seconds / 3, USUAL_SILENCE):
            self._believe_at = now + self._lease_seconds
        return now >= self._believe_at

    def sweep(self, now: float) -> None:
        """Delete old and surplus entries, once a minute."""
        if now >= self._sweep_at:
            swept = self._consumer.sweep("dead", *self._dead_limits)
            swept += self._consumer.sweep("failed", *self._failed_limits)
            self._sweep_at = now + (ROUND_SECONDS if swept else SWEEP_SECONDS)  # it sweeps in portions
