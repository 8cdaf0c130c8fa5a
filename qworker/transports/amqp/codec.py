"""Messages as AMQP 0-9-1 frames: our three columns to a content header and back.

Comes from:  ``publisher.py``, which writes; ``consumer.py`` and ``letters.py``, which read.
Goes to:     the frames sent by ``link.py``.
Thread:      any; pure.

Messages look like Celery's: the headers are the header table, the body is raw. py-amqp would do the same,
item by item and through several objects; messages are most of the traffic, so this is shorter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from qworker.interrupts import reraise_interrupt
from qworker.message.kombu_json import rewritten
from qworker.message.serialization import JSON
from qworker.transports.amqp.delays import PREFIX
from qworker.transports.amqp.table import LONG, UnsupportedValue, read_short, read_table, short, table
from qworker.transports.own_headers import TEXT, is_apart

_HEAD = Struct(">BHI")
_SHORT, _LONGLONG = Struct(">H"), Struct(">Q")
_CONTENT = Struct(">HHQH")
_TAG = Struct(">QB")
DELIVER = b"\x00\x3c\x00\x3c"
"""Start of the payload of basic.deliver."""
_END = b"\xce"
BASIC = 60

# Properties in the order of their flags, from the highest bit down.
_CONTENT_TYPE, _ENCODING, _TABLE, _MODE, _PRIORITY = 1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11
_CORRELATION, _REPLY_TO, _EXPIRATION, _MESSAGE_ID, _TIMESTAMP = 1 << 10, 1 << 9, 1 << 8, 1 << 7, 1 << 6
_TEXTS = (("type", 1 << 5), ("user_id", 1 << 4), ("app_id", 1 << 3), ("cluster_id", 1 << 2))


class Delivery(NamedTuple):
    """A received message. header: the payload of its content header."""

    consumer: str
    exchange: str
    routing_key: str
    number: int
    redelivered: bool
    header: bytes
    body: bytes


class Content(NamedTuple):
    """A parsed content header. own: the internal headers (``own_headers.py``); text and properties: the two
    columns. expires: the server will drop it from its queue at some time, like messages that Celery sends
    with expires."""

    text: str
    properties: str | None
    own: dict[str, Any]
    priority: int
    message_id: str
    expires: bool = False


_PLAIN = short(JSON) + short("utf-8")
_MOST = _CONTENT_TYPE | _ENCODING | _TABLE | _MODE | _CORRELATION | _MESSAGE_ID
"""The properties of nearly all messages."""


# -- writing --


def _headers(text: str, more: Mapping[str, Any]) -> tuple[bytes, Any]:
    """Return the table of the headers in the JSON *text*, and their id."""
    try:
        headers = json.loads(text)
        if type(headers) is dict:
            return table({**headers, **more} if more else headers), headers.get("id")
    except (ValueError, RecursionError):  # UnsupportedValue is a ValueError
        pass
    return table({TEXT: text, **more}), None


def content_header(
    text: str,
    properties: str | None,
    size: int,
    message_id: str,
    priority: int = 0,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the payload of a content header: for the columns *text* and *properties*, a body of *size*
    bytes, and *more* headers. ValueError when *properties* is not a JSON object."""
    headers, identity = _headers(text, more or {})
    if properties is None and not priority and type(identity) is str:
        one, two = (id.encode("utf-8", "surrogatepass") for id in (identity, message_id))
        if 0 < len(one) < 256 and 0 < len(two) < 256:
            begin = _CONTENT.pack(BASIC, 0, size, _MOST)
            return b"%b%b%b\x02%c%b%c%b" % (begin, _PLAIN, headers, len(one), one, len(two), two)
    flags = _CONTENT_TYPE | _ENCODING | _TABLE | _MODE
    given: Any = {} if properties is None else json.loads(properties)
    if type(given) is not dict:
        raise ValueError(f"properties are {properties!r:.100}, not an object")
    parts = [
        short(given.get("content_type") or JSON),
        short(given.get("content_encoding") or "utf-8"),
        headers,
        b"\x02",
    ]
    if priority:
        flags |= _PRIORITY
        parts.append(bytes((max(0, min(priority, 255)),)))
    correlation = given.get("correlation_id", identity if properties is None else None)
    for value, flag in (
        (correlation, _CORRELATION),
        (given.get("reply_to"), _REPLY_TO),
        (message_id, _MESSAGE_ID),
    ):
        if type(value) is str and value:
            try:
                parts.append(short(value))
            except UnsupportedValue:
                continue
            flags |= flag
    if type(given.get("timestamp")) is int:
        flags |= _TIMESTAMP
        parts.append(_LONGLONG.pack(given["timestamp"]))
    for name, flag in _TEXTS:
        if name != "user_id" and type(given.get(name)) is str:  # the server accepts no user_id but our own
            flags |= flag
            parts.append(short(given[name]))
    return _CONTENT.pack(BASIC, 0, size, flags) + b"".join(parts)


def publish_method(exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """Return the payload of basic.publish."""
    return b"\x00\x3c\x00\x28\x00\x00%b%b%c" % (short(exchange), short(routing_key), mandatory)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END


def largest_header(frame_max: int) -> int:
    """Return the maximum size of a content header: it must fit into one frame, while a body may take
    several."""
    return frame_max - 8


def message_frames(channel: int, method: bytes, header: bytes, body: bytes, frame_max: int) -> bytes:
    """Return all frames of one message to be published."""
    pack, most = _HEAD.pack, frame_max - 8
    parts = [
        pack(1, channel, len(method)), method, b"\xce", pack(2, channel, len(header)), header, b"\xce",
    ]  # fmt: skip
    for start in range(0, len(body), most):
        piece = body[start : start + most]
        parts += (pack(3, channel, len(piece)), piece, b"\xce")
    return b"".join(parts)


def ack_frame(channel: int, number: int, multiple: bool) -> bytes:
    return frame(1, channel, b"\x00\x3c\x00\x50%b%c" % (_LONGLONG.pack(number), multiple))


def requeue_frame(channel: int, number: int) -> bytes:
    """Return basic.reject with requeue."""
    return frame(1, channel, b"\x00\x3c\x00\x5a%b\x01" % _LONGLONG.pack(number))


# -- reading --


def delivery(method: bytes, header: bytes, body: bytes) -> Delivery:
    """Return the message of basic.deliver (its payload is *method*)."""
    at = 5 + method[4]
    number, redelivered = _TAG.unpack_from(method, at)
    return Delivery(*_names(method[4:at], method[at + 9 :]), number, redelivered & 1 == 1, header, body)


@lru_cache(256)
def _names(before: bytes, after: bytes) -> tuple[str, str, str]:
    """Return consumer, exchange and routing key, which are the same for most deliveries."""
    exchange, at = read_short(after, 0)
    return read_short(before, 0)[0], exchange, read_short(after, at)[0]


def whole_delivery(data: bytes, at: int) -> tuple[Delivery, int] | None:
    """Return the message whose three frames begin at *at*, and their end; None for anything else, or when a
    part is missing."""
    most = len(data)
    if not data.startswith(DELIVER, at + 7) or at + 11 > most:
        return None
    kind, channel, size = _HEAD.unpack_from(data, at)
    second = at + size + 8
    if kind != 1 or second + 19 > most:
        return None
    header_kind, header_channel, header_size = _HEAD.unpack_from(data, second)
    third = second + header_size + 8
    if header_kind != 2 or header_channel != channel or third + 7 > most:
        return None
    body_kind, body_channel, size = _HEAD.unpack_from(data, third)
    end = third + size + 8
    if body_kind != 3 or body_channel != channel or end > most:
        return None
    header = data[second + 7 : third - 1]
    if body_size(header) != size or not data[second - 1] == data[third - 1] == data[end - 1] == 0xCE:
        return None
    return delivery(data[at + 7 : second - 1], header, data[third + 7 : end - 1]), end


def body_size(header: bytes) -> int:
    size: int = _LONGLONG.unpack_from(header, 4)[0]
    return size


def _read_headers(data: bytes, at: int) -> tuple[str, Any, dict[str, Any], int]:
    """Return for the table at *at*: the tasks' headers as JSON, the id, the internal headers, and its end."""
    end = at + 4 + LONG.unpack_from(data, at)[0]
    try:
        headers = read_table(data, at)[0]
        own = {name: headers.pop(name) for name in [name for name in headers if is_apart(name)]}
        text = own.get(TEXT)
        if not isinstance(text, str):
            text = rewritten(headers)
    except Exception as error:  # noqa: BLE001 - by another program: without a task, the worker refuses it
        reraise_interrupt(error)
        return rewritten({"unreadable": f"{type(error).__name__}: {error}"}), None, {}, end
    return text, headers.get("id"), own, end


def read_content(message: Delivery) -> Content:
    """Return the columns of *message*. Unreadable headers are left out; the worker will report what is
    missing."""
    data = message.header
    flags = _SHORT.unpack_from(data, 12)[0]
    at = 14
    exchange = "" if message.exchange.startswith(PREFIX) else message.exchange
    if flags == _MOST and not exchange and data.startswith(_PLAIN, at):
        text, identity, own, at = _read_headers(data, at + len(_PLAIN))
        correlation, at = read_short(data, at + 1)
        if correlation == identity:
            return Content(text, None, own, 0, read_short(data, at)[0])
        at = 14
    found: dict[str, Any] = {}
    text, identity, own = "{}", None, {}
    if flags & _CONTENT_TYPE:
        found["content_type"], at = read_short(data, at)
    if flags & _ENCODING:
        found["content_encoding"], at = read_short(data, at)
    if flags & _TABLE:
        text, identity, own, at = _read_headers(data, at)
    if flags & _MODE:
        at += 1
    priority = 0
    if flags & _PRIORITY:
        priority, at = data[at], at + 1
    for name, flag in (
        ("correlation_id", _CORRELATION), ("reply_to", _REPLY_TO), ("expiration", _EXPIRATION),
        ("message_id", _MESSAGE_ID),
    ):  # fmt: skip
        if flags & flag:
            found[name], at = read_short(data, at)
    if flags & _TIMESTAMP:
        found["timestamp"], at = _LONGLONG.unpack_from(data, at)[0], at + 8
    for name, flag in _TEXTS:
        if flags & flag:
            found[name], at = read_short(data, at)
    expires = found.pop("expiration", None) is not None
    message_id = found.pop("message_id", "")
    if exchange:
        found["delivery_info"] = {"exchange": exchange, "routing_key": message.routing_key}
    plain = {"content_type": JSON, "content_encoding": "utf-8", "correlation_id": identity}
    return Content(text, None if found == plain else rewritten(found), own, priority, message_id, expires)


def tag_of(message: Delivery, content: Content) -> int:
    """Return a number of 63 bits for *message*, the same at each delivery: from its message id, which all our
    messages have, or else from its contents."""
    if content.message_id:
        digest = blake2b(content.message_id.encode("utf-8", "surrogatepass"), digest_size=8)
    else:
        digest = blake2b(content.text.encode("utf-8", "surrogatepass"), digest_size=8)
        digest.update((content.properties or "").encode("utf-8", "surrogatepass"))
        digest.update(message.body[:4096])
    return int.from_bytes(digest.digest()) >> 1 or 1
