"""Headers that are about a message's way and not the task's: ours, and those that RabbitMQ adds.

Comes from:  nothing; names.
Goes to:     the transports that keep such things in headers: ``transports/amqp/codec.py``,
             ``transports/held/messages.py``.
Thread:      any; pure.

All other headers belong to whoever sent the message, whatever they begin with, and arrive.
"""

from __future__ import annotations

import json
from typing import Any

from qworker.message.kombu_json import dumps

OWN = "x-qworker-"
TEXT = OWN + "headers"
"""Headers that the transport cannot hold, as text."""
MOVED = OWN + "moved"
"""How many bytes at the beginning of the body are headers that were too large for their place."""
PACKED = OWN + "packed"
"""The same, of a body that was compressed with them."""
DUE, DELIVERIES, REQUEUED, REDELIVERED = OWN + "due", OWN + "deliveries", OWN + "parked", OWN + "redelivered"
DEATHS = OWN + "deaths"
"""The workers whose deaths are in the count of deliveries, by the names of their running files."""
QUEUE, REASON, DIED = OWN + "queue", OWN + "reason", OWN + "died"
"""Of a dead letter."""
KEPT = frozenset({DELIVERIES, REQUEUED, REDELIVERED, DUE, DEATHS})
"""What goes along when a message is sent anew. The server's own marks, such as x-death, are about the old
one."""

_SERVERS = frozenset(
    {"x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-received-from"}
)
_SERVERS_BEGIN = (OWN, "x-first-death-", "x-last-death-")


def is_apart(name: str) -> bool:
    """Whether the header *name* is none of the sender's."""
    return name[:2] == "x-" and (name in _SERVERS or name.startswith(_SERVERS_BEGIN))


def outline(text: str) -> str:
    """What is left of the headers *text* in their place when they are moved, for those who look with other
    tools."""
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if type(headers) is not dict:
        return "{}"
    found = {name: headers.get(name) for name in ("id", "task")}
    return dumps({name: value for name, value in found.items() if type(value) is str and len(value) < 256})


# -- Fields beside a message that say how it has fared so far --

MOST_COUNT = 2**31 - 1
LATEST = 253402300799.0
"""The last second of the year 9999."""


def count(value: Any) -> int:
    """A number of deliveries, or of other things that happen one at a time; 0 for what is no such number."""
    return value if type(value) is int and 0 <= value <= MOST_COUNT else 0


def instant(value: Any) -> float | None:
    """Epoch seconds; None for what is no time between the years 1970 and 9999."""
    return float(value) if type(value) in (int, float) and 0 <= value <= LATEST else None
