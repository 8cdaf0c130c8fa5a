"""Renewal: extends the reservations of a worker's messages in time.

Comes from:  the consumer, in most of its calls.
Goes to:     ``ServerQueue.extend``.
Thread:      the listener's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from qworker.transports.held.port import NotAll, Received, by_queue

LOOK_SECONDS = 0.5
"""Interval of checks: there may be many messages, and such calls are frequent."""


class Renewal:
    """The leases of one consumer. monotonic: their clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._look_at = 0.0

    def renew(self, messages: Iterable[Received]) -> set[int]:
        """Extend those *messages* that are due for it; return the id() of each that others may have by
        now."""
        now = self._monotonic()
        if now < self._look_at:
            return set()
        self._look_at = now + LOOK_SECONDS
        gone: set[int] = set()
        stale_ones = (one for one in messages if now >= one.renew_at and not one.is_in_doubt)
        for queue, stale in by_queue(stale_ones):
            try:
                lost = set(map(id, queue.extend(stale)))
            except NotAll as error:
                _hidden(error.divide(stale)[0], now)
                raise error.reason from error.reason.__cause__
            gone |= lost
            # If a later call raises, the lost ones are found again.
            _hidden((one for one in stale if id(one) not in lost), now)
        return gone


def _hidden(messages: Iterable[Received], now: float) -> None:
    for message in messages:
        message.hidden_from(now)
