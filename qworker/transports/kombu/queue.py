"""One queue of a kombu transport, message by message; with corrections for kombu.

Comes from:  ``server.py``.
Goes to:     kombu's channels.
Thread:      its user's; all users share one connection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import kombu as untyped_kombu

from qworker.naming import task_id
from qworker.transports.held.messages import Content, Outgoing, as_text, mapping
from qworker.transports.held.port import Count, Entry, Received, ServerQueue

kombu: Any = untyped_kombu
virtual: Any = import_module("kombu.transport.virtual")  # which has no types
COMPRESSION = "compression"


class KombuQueue(ServerQueue):
    """bound: kombu's queue, bound to a channel."""

    batch = 1

    def __init__(self, bound: Any) -> None:
        self.name = bound.name
        self._bound = bound
        self._producer: Any = None

    def text(self, message: Outgoing) -> Outgoing:
        return message  # kombu writes it itself

    def send(self, entries: Sequence[Entry]) -> None:
        if self._producer is None:
            self._producer = kombu.Producer(self._bound.channel)
        for message, _, _ in entries:
            queue, body, options = message[:3]
            self._producer.publish(body, exchange="", routing_key=queue, serializer=None, **options)

    def take(self, count: int, seconds: float) -> list[Received]:
        message = self._bound.get(no_ack=False)
        return [] if message is None else [self._received(with_way_back(message, self.name))]

    def _received(self, message: Any) -> Received:
        info = mapping(message.delivery_info)
        return Received(
            self,
            Content(
                message.headers,
                message.properties,
                message.content_type,
                message.content_encoding,
                message.body,
                info,
            ),
            id=str(message.delivery_tag),
            receipt=message,
            lease_seconds=math.inf,
            redelivered=bool(info.get("redelivered")),
        )

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        return []

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        for message in messages:
            message.receipt.requeue()

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        for message in messages:
            message.receipt.ack()
        return []

    def count(self) -> Count:
        return Count(int(self._bound.queue_declare(passive=True).message_count or 0))

    def purge(self) -> int:
        return int(self._bound.purge() or 0)


def take_anything(channel: Any) -> None:
    """Make *channel*, of kombu's own transport, return any content of a queue, which it has removed by then:
    unreadable content comes as a body without headers, for the dead letters. Compressed bodies stay
    compressed: that is what was signed, and workers limit the decompressed size."""
    kind = channel.Message
    if issubclass(kind, virtual.Message) and not issubclass(kind, _Anything):
        channel.Message = type(kind.__name__, (_Anything, kind), {})


class _Compressed:
    """Keeps a compressed body as it is: kombu would decompress it, and drop the header that says so."""

    headers: Any

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        make: Any = super().__init__
        compression = mapping(mapping(payload).get("headers")).get(COMPRESSION)
        if compression is None:
            make(payload, channel=channel, **more)
            return
        headers = {name: value for name, value in payload["headers"].items() if name != COMPRESSION}
        make({**payload, "headers": headers}, channel=channel, **more)
        self.headers = {**self.headers, COMPRESSION: compression}

    def serializable(self) -> Any:
        """Return the form that is written when it goes back."""
        origin: Any = super()
        written = origin.serializable()
        if COMPRESSION in self.headers:
            written["headers"] = {**written["headers"], COMPRESSION: self.headers[COMPRESSION]}
        return written


class _Anything(_Compressed):
    delivery_tag: Any

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        make: Any = super().__init__
        try:
            make(payload, channel=channel, **more)
            if not isinstance(self.headers, dict) or not isinstance(self.delivery_tag, str | int):
                raise TypeError("no message")
        except Exception:  # noqa: BLE001 - anybody may send anything
            raw = {"body": as_text(payload), "properties": {"delivery_tag": task_id()}}
            make(raw, channel=channel, **more)


def with_way_back(message: Any, queue: str) -> Any:
    """Return kombu's *message*, extended so that it can be put back into *queue* if it lacks its own
    address."""
    info = message.delivery_info
    if not (
        isinstance(info, Mapping)
        and isinstance(info.get("exchange"), str)
        and isinstance(info.get("routing_key"), str)
    ):
        message.delivery_info = {**mapping(info), "exchange": "", "routing_key": queue}
    return message
