"""Messages that tests tell apart by their headers, which are no JSON here: the tests' own.

Comes from:  the suite.
Goes to:     the broker, which does not read headers.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qworker.transports.lease import Envelope, Leased


def message(name: str, queue: str = "q", **fields: Any) -> Envelope:
    """An Envelope whose headers are just *name*, no JSON: for brokers that do not read headers."""
    return Envelope(queue, name, fields.pop("properties", None), fields.pop("body", b"[]"), **fields)


def names(messages: Iterable[Leased]) -> list[str]:
    """The names of such messages."""
    return [leased.headers for leased in messages]
