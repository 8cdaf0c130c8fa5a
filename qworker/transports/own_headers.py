"""Headers about a message's transport rather than the task: ours, and those added by RabbitMQ.

Comes from:  nothing; constants.
Goes to:     the transports that store such data in headers: ``transports/amqp/codec.py``,
             ``transports/held/messages.py``.
Thread:      any; pure.

All other headers belong to the sender of the message, whatever their prefix, and are delivered.
"""

from __future__ import annotations

import json
from typing import Any

from qworker.message.kombu_json import dumps

OWN = "x-qworker-"
TEXT = OWN + "headers"
"""Headers that the transport cannot represent, as text."""
MOVED = OWN + "moved"
"""How many bytes at the beginning of the body are headers that were too large."""
PACKED = OWN + "packed"
"""The same, for a body that was compressed with them."""
DUE, DELIVERIES, REQUEUED, REDELIVERED = OWN + "due", OWN + "deliveries", OWN + "parked", OWN + "redelivered"
DEATHS = OWN + "deaths"
"""The workers whose deaths are included in the count of deliveries, by the names of their running files."""
QUEUE, REASON, DIED = OWN + "queue", OWN + "reason", OWN + "died"
"""Of a dead letter."""
KEPT = frozenset({DELIVERIES, REQUEUED, REDELIVERED, DUE, DEATHS})
"""Headers kept when a message is sent again. The server's own, such as x-death, are about the old one."""

_SERVERS = frozenset(
    {"x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-received-from"}
)
_SERVERS_BEGIN = (OWN, "x-first-death-", "x-last-death-")


def is_apart(name: str) -> bool:
    """Return whether the header *name* is not the sender's."""
    return name[:2] == "x-" and (name in _SERVERS or name.startswith(_SERVERS_BEGIN))


def headers_in(text: str) -> dict[str, Any]:
    """Return the headers in the JSON *text*, which any program may have written; {} if it is no object."""
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return headers if type(headers) is dict else {}


def id_in(text: str) -> str | None:
    """Return the task id in the headers *text*; None if they have no id that is text."""
    identity = headers_in(text).get("id")
    return identity if type(identity) is str else None


def outline(text: str) -> str:
    """Return the headers that replace *text* when it is moved to the body, for display in other tools."""
    headers = headers_in(text)
    found = {name: headers.get(name) for name in ("id", "task")}
    return dumps({name: value for name, value in found.items() if type(value) is str and len(value) < 256})


# -- Validation of counts and times --

MOST_COUNT = 2**31 - 1
LATEST = 253402300799.0
"""The last second of the year 9999."""


def count(value: Any) -> int:
    """Return a count of deliveries or similar events; 0 if it is invalid."""
    return value if type(value) is int and 0 <= value <= MOST_COUNT else 0


def instant(value: Any) -> float | None:
    """Return epoch seconds; None for anything outside of the years 1970 to 9999."""
    return float(value) if type(value) in (int, float) and 0 <= value <= LATEST else None
