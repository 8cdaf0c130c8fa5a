"""Envelopes: a message of ours as kombu's virtual channels pass it about, and back.

Comes from:  ``channel.py``, of what is published; ``courier.py``, of what is leased.
Goes to:     ``Envelope`` and the dict that kombu reads.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from qworker.message.kombu_envelope import from_kombu, to_kombu
from qworker.message.reading import EncodedMessage
from qworker.transports.lease import Leased

DELIVERY_COUNT = "x-delivery-count"
"""The header in which RabbitMQ's quorum queues, too, say how often a message was delivered in vain."""
ABOUT_DELIVERY = ("redelivered", DELIVERY_COUNT)
"""Headers that are about one delivery: a message that is sent anew starts without them."""


def encoded_of(message: Mapping[str, Any]) -> EncodedMessage:
    """A message that is published. Raises InvalidTaskMessage for one that cannot be kept."""
    headers = message.get("headers")
    if isinstance(headers, dict) and any(name in headers for name in ABOUT_DELIVERY):
        kept = {name: value for name, value in headers.items() if name not in ABOUT_DELIVERY}
        message = {**message, "headers": kept}
    return from_kombu(message)


def envelope_of(leased: Leased) -> dict[str, Any]:
    """A leased message as kombu has it. Raises InvalidTaskMessage for one that cannot be read."""
    envelope = to_kombu(
        EncodedMessage(leased.headers, leased.properties, leased.body),
        routing_key=leased.queue,
        priority=leased.priority,
        delivery_tag=str(leased.tag),
        redelivered=leased.redelivered,
    )
    if in_vain := leased.deliveries + leased.requeued:
        envelope["headers"][DELIVERY_COUNT] = in_vain
    return envelope


def due_time(headers: Mapping[str, Any] | None) -> float | None:
    """Epoch seconds of a task's ETA; None when there is none, or only its consumer can tell which time is
    meant."""
    eta = (headers or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None  # whoever consumes it will say what is wrong with it
