"""Envelopes: our messages in the form of kombu's virtual channels, and back.

Comes from:  ``channel.py``, with published messages; ``consumer_thread.py``, with leased ones.
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
"""The header for the number of failed deliveries, also used by RabbitMQ's quorum queues."""
ABOUT_DELIVERY = ("redelivered", DELIVERY_COUNT)
"""Headers about one delivery: a message that is sent again starts without them."""


def encoded_of(message: Mapping[str, Any]) -> EncodedMessage:
    """Return a published message. Raises InvalidTaskMessage for one that cannot be stored."""
    headers = message.get("headers")
    if isinstance(headers, dict) and any(name in headers for name in ABOUT_DELIVERY):
        kept = {name: value for name, value in headers.items() if name not in ABOUT_DELIVERY}
        message = {**message, "headers": kept}
    return from_kombu(message)


def envelope_of(leased: Leased) -> dict[str, Any]:
    """Return a leased message in kombu's form. Raises InvalidTaskMessage for an unreadable one."""
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
    """Return the epoch seconds of a task's ETA; None if there is none, or its time zone is only known to the
    consumer."""
    eta = (headers or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None  # its consumer will report the error
