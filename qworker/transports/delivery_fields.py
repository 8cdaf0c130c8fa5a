"""Fields beside a message that say how it has fared so far, read so that nothing which may stand in them
stops a worker.

Comes from:  the envelopes of Redis, kombu and AMQP, which anybody who can write to the broker may have made.
Goes to:     `lease.Leased`.
Thread:      any; pure.
"""

from __future__ import annotations

from typing import Any

MOST_COUNT = 2**31 - 1
LATEST = 253402300799.0
"""The last second of the year 9999."""


def count(value: Any) -> int:
    """A number of deliveries, or of other things that happen one at a time; 0 for what is no such number."""
    return value if type(value) is int and 0 <= value <= MOST_COUNT else 0


def instant(value: Any) -> float | None:
    """Epoch seconds; None for what is no time between the years 1970 and 9999."""
    return float(value) if type(value) in (int, float) and 0 <= value <= LATEST else None
