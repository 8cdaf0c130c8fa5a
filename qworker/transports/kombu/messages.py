"""Messages as kombu's channels carry them, to our three columns and back.

Comes from:  ``broker.py``.
Goes to:     kombu's Producer and Message.
Thread:      any; pure.
"""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping
from hashlib import blake2b
from importlib import import_module
from typing import Any, NamedTuple

from qworker.message.kombu_json import rewritten
from qworker.message.serialization import JSON
from qworker.naming import task_id
from qworker.transports.lease import Dead, Envelope, Leased
from qworker.transports.own_headers import (
    DELIVERIES,
    DIED,
    DUE,
    PACKED,
    QUEUE,
    REASON,
    REDELIVERED,
    REQUEUED,
    TEXT,
    count,
    instant,
    is_apart,
    outline,
)

virtual: Any = import_module("kombu.transport.virtual")  # which has no types
COMPRESSION = "compression"
MOST_UNPACKED = 64 * 1024**2
_NAMED = frozenset({str})
_GIVEN = ("correlation_id", "reply_to", "timestamp", "type", "app_id", "user_id")
_NAMES = ("correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "user_id")


class Outgoing(NamedTuple):
    """What Producer.publish is given, besides the queue."""

    queue: str
    body: bytes
    options: dict[str, Any]


class Read(NamedTuple):
    """What a message of kombu's says. own: the headers that are ours alone."""

    tag: int
    text: str
    properties: str | None
    body: bytes
    priority: int
    redelivered: bool
    own: dict[str, Any]
    message_id: str | None


def outgoing(
    queue: str,
    text: str,
    properties: str | None,
    body: bytes,
    priority: int,
    more: Mapping[str, Any],
    message_id: str | None = None,
) -> Outgoing:
    """A message for kombu. TypeError or ValueError for what is no message."""
    if type(body) is not bytes:
        raise TypeError(f"a body of type {type(body).__name__}: brokers support bytes only")
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        headers = None
    if type(headers) is not dict:
        headers = {TEXT: text}
    given = {} if properties is None else json.loads(properties)
    options = {
        "headers": {**headers, **more},
        "content_type": given.get("content_type") or JSON,
        "content_encoding": given.get("content_encoding") or "utf-8",
        "delivery_mode": 2,
        "message_id": message_id or task_id(),
        "priority": priority,
    }
    if properties is None and type(headers.get("id")) is str:
        options["correlation_id"] = headers["id"]
    options.update({name: given[name] for name in _GIVEN if given.get(name)})
    return Outgoing(queue, body, options)


def of_envelope(envelope: Envelope, now: float) -> Outgoing:
    queue, headers, properties, body, priority, due, _ = envelope
    more = {DUE: float(due)} if due is not None and due > now else {}
    return outgoing(queue, headers, properties, body, priority, more)


def of_leased(
    leased: Leased, own: Mapping[str, Any], message_id: str | None, queue: str | None = None
) -> Outgoing:
    """The message of *leased*, to be sent anew with *own* headers; to *queue* if not to its own."""
    return outgoing(
        queue or leased.queue,
        leased.headers,
        leased.properties,
        leased.body,
        leased.priority,
        own,
        message_id,
    )


def packed(
    leased: Leased, own: Mapping[str, Any], message_id: str | None, queue: str | None = None
) -> Outgoing:
    """As of_leased(), as small as can be: for brokers that count bytes. Only dead() can read it."""
    text = leased.headers.encode("utf-8", "surrogatepass")
    body = b85encode(zlib.compress(text + leased.body, 9))
    small = leased._replace(headers=outline(leased.headers), body=body)
    return of_leased(small, {**own, PACKED: len(text)}, message_id, queue)


def _unpacked(content: Read) -> tuple[str, bytes]:
    """The headers, as text, and the body of a dead letter."""
    size = content.own.get(PACKED)
    if type(size) is int:
        try:
            whole = zlib.decompressobj().decompress(b85decode(content.body), MOST_UNPACKED)
            return whole[:size].decode("utf-8", "surrogatepass"), whole[size:]
        except (ValueError, zlib.error):
            pass  # a stranger's
    return content.text, content.body


def read(message: Any) -> Read:
    """What kombu's *message* says."""
    headers = _mapping(message.headers)
    own = {
        name: headers.pop(name) for name in [name for name in headers if name[:2] == "x-"] if is_apart(name)
    }
    given = _mapping(message.properties)
    found: dict[str, Any] = {
        "content_type": message.content_type or JSON,
        "content_encoding": message.content_encoding or "utf-8",
        **{name: given[name] for name in _NAMES if given.get(name) is not None},
    }
    message_id = found.pop("message_id", None)
    info = _mapping(message.delivery_info)
    if info.get("exchange"):
        found["delivery_info"] = {name: info.get(name) or "" for name in ("exchange", "routing_key")}
    text = own.get(TEXT)
    if not isinstance(text, str):
        text = _text(headers)
    plain = {"content_type": JSON, "content_encoding": "utf-8"}
    if headers.get("id") is not None:
        plain["correlation_id"] = headers["id"]
    body = message.body
    if not isinstance(body, bytes | bytearray | memoryview):
        body = (body if isinstance(body, str) else _text(body)).encode("utf-8", "surrogatepass")
    identity = str(message_id or message.delivery_tag)
    digest = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    priority = given.get("priority")
    return Read(
        int.from_bytes(digest) >> 1 or 1,
        text,
        None if found == plain else _text(found),
        bytes(body),
        count(priority),
        bool(info.get("redelivered")),
        own,
        message_id if isinstance(message_id, str) else None,
    )


def take_anything(channel: Any) -> None:
    """Have *channel*, of a transport of kombu's own, make a message of whatever lies in a queue, which it has
    taken out by then: what kombu cannot read comes as a body without headers, for the dead letters. And as
    keep_compressed()."""
    _make_messages_of(channel, _Anything)


def keep_compressed(channel: Any) -> None:
    """Have *channel* leave a body compressed that is: that is what was signed, and workers know how large it
    may become."""
    _make_messages_of(channel, _Compressed)


def _make_messages_of(channel: Any, behaviour: type) -> None:
    kind = channel.Message
    if issubclass(kind, virtual.Message) and not issubclass(kind, behaviour):
        channel.Message = type(kind.__name__, (behaviour, kind), {})


class _Compressed:
    """kombu opens a body that its headers say is compressed, and forgets that it was."""

    headers: Any

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        make: Any = super().__init__
        compression = _mapping(_mapping(payload).get("headers")).get(COMPRESSION)
        if compression is None:
            make(payload, channel=channel, **more)
            return
        headers = {name: value for name, value in payload["headers"].items() if name != COMPRESSION}
        make({**payload, "headers": headers}, channel=channel, **more)
        self.headers = {**self.headers, COMPRESSION: compression}

    def serializable(self) -> Any:
        """As it is written when it goes back."""
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
            raw = {"body": _text(payload), "properties": {"delivery_tag": task_id()}}
            make(raw, channel=channel, **more)


def with_way_back(message: Any, queue: str) -> Any:
    """*message* of kombu's, which can be put back into *queue* where it does not say itself where it came
    from."""
    info = message.delivery_info
    if not (
        isinstance(info, Mapping)
        and isinstance(info.get("exchange"), str)
        and isinstance(info.get("routing_key"), str)
    ):
        message.delivery_info = {**_mapping(info), "exchange": "", "routing_key": queue}
    return message


def _mapping(value: Any) -> dict[str, Any]:
    """*value* as a dict of its own, with names; an empty one for what is none."""
    if type(value) is dict and {*map(type, value)} <= _NAMED:  # as JSON has it
        return value.copy()
    return {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """*value* as JSON; what cannot be written so the worker is to refuse, and say why."""
    try:
        return rewritten(value)
    except Exception as error:  # noqa: BLE001 - a stranger's
        return rewritten({"unreadable": f"{type(error).__name__}: {error}"})


def leased(queue: str, content: Read, tag: int) -> Leased:
    """*content* as it is leased from *queue*, under *tag*."""
    own = content.own
    return Leased(
        tag,
        queue,
        content.priority,
        instant(own.get(DUE)),
        count(own.get(DELIVERIES)),
        content.redelivered or bool(own.get(REDELIVERED)),
        count(own.get(REQUEUED)),
        content.text,
        content.properties,
        content.body,
    )


def dead(content: Read) -> Dead:
    own = content.own
    text, body = _unpacked(content)
    return Dead(
        content.tag,
        str(own.get(QUEUE, "")),
        str(own.get(REASON, "not put here by qworker")),
        instant(own.get(DIED)) or 0.0,
        count(own.get(DELIVERIES)),
        text,
        content.properties,
        body,
    )
