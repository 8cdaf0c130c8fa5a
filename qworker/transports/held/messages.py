"""Messages as kombu's transports carry them: from our three columns, and back.

Comes from:  the sender; what servers give.
Goes to:     servers, as ``Outgoing`` or as text; the consumer and the letters, as ``Leased`` and ``Dead``.
Thread:      any; pure.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode, b85decode, b85encode
from collections.abc import Mapping
from hashlib import blake2b
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

MOST_UNPACKED = 64 * 1024**2
_NAMED = frozenset({str})
_GIVEN = ("correlation_id", "reply_to", "timestamp", "type", "app_id", "user_id")
_NAMES = ("correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "user_id")


class Outgoing(NamedTuple):
    """The arguments of Producer.publish, besides the queue. once: an id under which a server that remembers
    ids stores the message once, even if several processes send it; "": a new id."""

    queue: str
    body: bytes
    options: dict[str, Any]
    once: str = ""


class Read(NamedTuple):
    """The contents of a kombu message. own: the internal headers."""

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
    """Return a message for kombu. TypeError or ValueError for an invalid one."""
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
    """Return the message of *leased*, to be sent again with *own* headers; to *queue* if not to its own."""
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
    """Like of_leased(), as small as possible: for brokers that count bytes. Only dead() can read it."""
    text = leased.headers.encode("utf-8", "surrogatepass")
    body = b85encode(zlib.compress(text + leased.body, 9))
    small = leased._replace(headers=outline(leased.headers), body=body)
    return of_leased(small, {**own, PACKED: len(text)}, message_id, queue)


def _unpacked(content: Read) -> tuple[str, bytes]:
    """Return the headers, as text, and the body of a dead letter."""
    size = content.own.get(PACKED)
    if type(size) is int:
        try:
            whole = zlib.decompressobj().decompress(b85decode(content.body), MOST_UNPACKED)
            return whole[:size].decode("utf-8", "surrogatepass"), whole[size:]
        except (ValueError, zlib.error):
            pass  # sent by another program
    return content.text, content.body


def read(message: Any) -> Read:
    """Return the contents of kombu's *message*."""
    headers = mapping(message.headers)
    own = {
        name: headers.pop(name) for name in [name for name in headers if name[:2] == "x-"] if is_apart(name)
    }
    given = mapping(message.properties)
    found: dict[str, Any] = {
        "content_type": message.content_type or JSON,
        "content_encoding": message.content_encoding or "utf-8",
        **{name: given[name] for name in _NAMES if given.get(name) is not None},
    }
    message_id = found.pop("message_id", None)
    info = mapping(message.delivery_info)
    if info.get("exchange"):
        found["delivery_info"] = {name: info.get(name) or "" for name in ("exchange", "routing_key")}
    text = own.get(TEXT)
    if not isinstance(text, str):
        text = as_text(headers)
    plain = {"content_type": JSON, "content_encoding": "utf-8"}
    if headers.get("id") is not None:
        plain["correlation_id"] = headers["id"]
    body = message.body
    if not isinstance(body, bytes | bytearray | memoryview):
        body = (body if isinstance(body, str) else as_text(body)).encode("utf-8", "surrogatepass")
    identity = str(message_id or message.delivery_tag)
    digest = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    priority = given.get("priority")
    return Read(
        int.from_bytes(digest) >> 1 or 1,
        text,
        None if found == plain else as_text(found),
        bytes(body),
        count(priority),
        bool(info.get("redelivered")),
        own,
        message_id if isinstance(message_id, str) else None,
    )


def mapping(value: Any) -> dict[str, Any]:
    """Return *value* as a new dict with names as keys; an empty one for anything else."""
    if type(value) is dict and {*map(type, value)} <= _NAMED:  # as in JSON
        return value.copy()
    return {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else {}


def as_text(value: Any) -> str:
    """Return *value* as JSON. If it cannot be JSON, the error takes its place, and the worker reports it."""
    try:
        return rewritten(value)
    except Exception as error:  # noqa: BLE001 - sent by another program
        return rewritten({"unreadable": f"{type(error).__name__}: {error}"})


def leased(queue: str, content: Read, tag: int) -> Leased:
    """Return *content* as leased from *queue*, under *tag*."""
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
        str(own.get(REASON, "not written by qworker")),
        instant(own.get(DIED)) or 0.0,
        count(own.get(DELIVERIES)),
        text,
        content.properties,
        body,
    )


# -- A message as text, as kombu's transports write it: JSON, with the body in base64 --


class Content(NamedTuple):
    """The contents of a text, by the names of kombu's Message. body: bytes, or anything sent by another
    program."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: Any
    content_encoding: Any
    body: Any
    delivery_info: dict[str, Any]


def written(message: Outgoing) -> str:
    """Return *message* as kombu's transport would write it."""
    options = dict(message.options)
    headers = options.pop("headers")
    if PACKED in headers:  # already text, and as small as possible
        body, encoding = message.body.decode("ascii"), None
    else:
        body, encoding = b64encode(message.body).decode("ascii"), "base64"
    return rewritten(
        {
            "body": body,
            "content-encoding": options.pop("content_encoding"),
            "content-type": options.pop("content_type"),
            "headers": headers,
            "properties": {
                "delivery_mode": 2,
                **options,
                "body_encoding": encoding,
                "delivery_tag": options["message_id"],
                "delivery_info": {"exchange": "", "routing_key": message.queue},
            },
        }
    )


def parsed(text: str) -> Content:
    """Return the contents of *text* written by kombu, or written(), plain or in base64; or else all of it as
    the body: other code reports the error."""
    try:
        payload = json.loads(text if text.lstrip()[:1] == "{" else b64decode(text, validate=True))
        properties = dict(payload["properties"])
        body = payload.get("body")
        encoding = str(properties.get("body_encoding") or "utf-8").lower()
        if body and encoding != "utf-8":
            if encoding != "base64":
                raise ValueError(encoding)
            body = b64decode(body, validate=True)
        return Content(
            dict(payload.get("headers") or {}),
            properties,
            payload.get("content-type"),
            payload.get("content-encoding"),
            body.encode() if isinstance(body, str) else body,
            dict(properties.get("delivery_info") or {}),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # anybody may send anything
        return Content({}, {}, None, None, text, {})
