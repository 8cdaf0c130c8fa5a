"""Test messages, whose headers are plain names instead of JSON.

Comes from:  the suite.
Goes to:     the broker, which does not read headers.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qworker.transports.lease import Envelope, Leased


def message(name: str, queue: str = "q", **fields: Any) -> Envelope:
    """Return an Envelope whose headers are *name*, for brokers that do not read headers."""
    return Envelope(queue, name, fields.pop("properties", None), fields.pop("body", b"[]"), **fields)


def names(messages: Iterable[Leased]) -> list[str]:
    """Return the names of messages made by message()."""
    return [leased.headers for leased in messages]
