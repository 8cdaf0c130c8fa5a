"""Messages as AMQP 0-9-1 frames: our three columns to a content header and back.

Comes from:  ``amqp_publisher.py``, which writes; ``amqp_holder.py`` and ``amqp_dead.py``, which read.
Goes to:     the frames that ``amqp_link.py`` carries.
Thread:      any; pure.

A message is to look as Celery's do: its headers are the header table, its body is raw. py-amqp would read and write
the same, an item at a time and through several objects; for messages, which are most of the traffic, this is shorter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from qworker.json_dialect import dumps
from qworker.serialization import JSON

OWN = "x-qworker-"
"""Begins the headers that are ours alone. Like all that begin with ``x-`` they are taken out of what tasks see."""
TEXT = OWN + "headers"
"""Holds headers that no AMQP table can hold, as text."""

_HEAD = Struct(">BHI")
_SHORT, _LONG, _LONGLONG = Struct(">H"), Struct(">I"), Struct(">Q")
_SIGNED, _SIGNED_LONG, _DOUBLE, _FLOAT = Struct(">i"), Struct(">q"), Struct(">d"), Struct(">f")
_CONTENT = Struct(">HHQH")
_END = b"\xce"
BASIC = 60

# Properties in the order of their flags, from the highest bit down.
_CONTENT_TYPE, _ENCODING, _TABLE, _MODE, _PRIORITY = 1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11
_CORRELATION, _REPLY_TO, _EXPIRATION, _MESSAGE_ID, _TIMESTAMP = 1 << 10, 1 << 9, 1 << 8, 1 << 7, 1 << 6
_TEXTS = (("type", 1 << 5), ("user_id", 1 << 4), ("app_id", 1 << 3), ("cluster_id", 1 << 2))


class Unfit(ValueError):
    """A value that an AMQP table cannot hold."""


class Delivery(NamedTuple):
    """A message as it came. header: the payload of its content header."""

    consumer: str
    number: int
    redelivered: bool
    exchange: str
    routing_key: str
    header: bytes
    body: bytes


class Content(NamedTuple):
    """What a content header says. own: the headers that begin with ``x-``; text and properties: the two columns."""

    text: str
    properties: str | None
    own: dict[str, Any]
    priority: int
    message_id: str


# -- writing --


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"S" + _LONG.pack(len(data)) + data


def _integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"I" + _SIGNED.pack(value)
    if -(2**63) <= value < 2**63:
        return b"l" + _SIGNED_LONG.pack(value)
    raise Unfit(f"{value} has more than 64 bits")


def _array(value: Any) -> bytes:
    data = b"".join([_value(item) for item in value])
    return b"A" + _LONG.pack(len(data)) + data


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    type(None): lambda value: b"V",
    bool: lambda value: b"t\x01" if value else b"t\x00",
    int: _integer,
    float: lambda value: b"d" + _DOUBLE.pack(value),
    list: _array,
    tuple: _array,
    dict: lambda value: b"F" + table(value),
}


def _value(value: Any) -> bytes:
    try:
        return _WRITERS[type(value)](value)
    except KeyError:
        raise Unfit(f"{type(value).__name__} is no type of AMQP") from None


def short(value: str) -> bytes:
    """A short string. Unfit when it has over 255 bytes."""
    data = value.encode("utf-8", "surrogatepass")
    if len(data) > 255:
        raise Unfit(f"{value[:40]!r}… has over 255 bytes")
    return b"%c%b" % (len(data), data)


_names: dict[str, bytes] = {}


def table(values: Mapping[str, Any]) -> bytes:
    """A field table. Unfit when a name or a value does not fit into one."""
    parts = []
    for name, value in values.items():
        key = _names.get(name)
        if key is None:
            key = short(name)
            if len(_names) < 1000:
                _names[name] = key
        parts.append(key + _WRITERS[type(value)](value) if type(value) in _WRITERS else key + _value(value))
    data = b"".join(parts)
    return _LONG.pack(len(data)) + data


def _headers(text: str, more: Mapping[str, Any]) -> tuple[bytes, Any]:
    """The table of the headers in the JSON *text*, and their id."""
    try:
        headers = json.loads(text)
        if type(headers) is dict:
            return table({**headers, **more} if more else headers), headers.get("id")
    except (ValueError, RecursionError):  # Unfit is a ValueError
        pass
    return table({TEXT: text, **more}), None


def content_header(
    text: str,
    properties: str | None,
    size: int,
    message_id: str,
    priority: int = 0,
    more: Mapping[str, Any] | None = None,
    expiration: int | None = None,
) -> bytes:
    """The payload of a content header: of the columns *text* and *properties*, a body of *size* bytes, and *more*
    headers. expiration: milliseconds. ValueError when *properties* are no JSON object."""
    headers, identity = _headers(text, more or {})
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
        (None if expiration is None else str(expiration), _EXPIRATION),
        (message_id, _MESSAGE_ID),
    ):
        if type(value) is str and value:
            try:
                parts.append(short(value))
            except Unfit:
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
    """The payload of basic.publish."""
    return b"\x00\x3c\x00\x28\x00\x00%b%b%c" % (short(exchange), short(routing_key), mandatory)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END


def message_frames(channel: int, method: bytes, header: bytes, body: bytes, frame_max: int) -> bytes:
    """All frames of one message to be published."""
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
    """basic.reject with requeue."""
    return frame(1, channel, b"\x00\x3c\x00\x5a%b\x01" % _LONGLONG.pack(number))


# -- reading --


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 4 + _LONG.unpack_from(data, at)[0]
    return _decode(data[at + 4 : end]), end


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def _read_array(data: bytes, at: int) -> tuple[list[Any], int]:
    end = at + 4 + _LONG.unpack_from(data, at)[0]
    at += 4
    values = []
    while at < end:
        value, at = _read_value(data, at)
        values.append(value)
    return values, end


def _read_decimal(data: bytes, at: int) -> tuple[float, int]:
    return _SIGNED.unpack_from(data, at + 1)[0] / 10 ** data[at], at + 5


def _fixed(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    struct = Struct(form)
    return lambda data, at: (struct.unpack_from(data, at)[0], at + struct.size)


_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("S"): _read_text,
    ord("x"): _read_text,
    ord("V"): lambda data, at: (None, at),
    ord("t"): lambda data, at: (data[at] != 0, at + 1),
    ord("A"): _read_array,
    ord("F"): lambda data, at: read_table(data, at),
    ord("D"): _read_decimal,
    **{
        ord(code): _fixed(form)
        for code, form in {
            "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "T": ">Q",
            "f": ">f", "d": ">d",
        }.items()
    },
}  # fmt: skip


def _read_value(data: bytes, at: int) -> tuple[Any, int]:
    return _READERS[data[at]](data, at + 1)


def read_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The field table at *at*, and where it ends."""
    long = _LONG.unpack_from
    end = at + 4 + long(data, at)[0]
    at += 4
    values: dict[str, Any] = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        key = data[start:at]
        name = _known.get(key)
        if name is None:
            name = key.decode("utf-8", "replace")
            if len(_known) < 1000:
                _known[key] = name
        code = data[at]
        at += 1
        if code == _S:  # most are text or nothing
            stop = at + 4 + long(data, at)[0]
            values[name] = _decode(data[at + 4 : stop])
            at = stop
        elif code == _V:
            values[name] = None
        else:
            values[name], at = _READERS[code](data, at)
    return values, end


_known: dict[bytes, str] = {}
_S, _V = b"SV"


def read_short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end


def delivery(method: bytes, header: bytes, body: bytes) -> Delivery:
    """What basic.deliver (its payload is *method*) has brought."""
    consumer, at = read_short(method, 4)
    number, redelivered = _LONGLONG.unpack_from(method, at)[0], method[at + 8] & 1
    exchange, at = read_short(method, at + 9)
    return Delivery(consumer, number, redelivered == 1, exchange, read_short(method, at)[0], header, body)


def body_size(header: bytes) -> int:
    size: int = _LONGLONG.unpack_from(header, 4)[0]
    return size


def read_content(message: Delivery) -> Content:
    """The columns of *message*. What cannot be read of its header is left out; the worker will say what is missing."""
    data = message.header
    flags = _SHORT.unpack_from(data, 12)[0]
    at = 14
    found: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    if flags & _CONTENT_TYPE:
        found["content_type"], at = read_short(data, at)
    if flags & _ENCODING:
        found["content_encoding"], at = read_short(data, at)
    if flags & _TABLE:
        end = at + 4 + _LONG.unpack_from(data, at)[0]
        try:
            headers = read_table(data, at)[0]
        except (
            Exception
        ) as error:  # whatever a stranger has put there: the worker refuses it by its missing headers
            headers = {"unreadable": f"{type(error).__name__}: {error}"}
        at = end
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
    found.pop("expiration", None)  # it had its effect, or none
    message_id = found.pop("message_id", "")
    if message.exchange:
        found["delivery_info"] = {"exchange": message.exchange, "routing_key": message.routing_key}
    own = {name: headers.pop(name) for name in [name for name in headers if name[:2] == "x-"]}
    text = own.get(TEXT)
    if not isinstance(text, str):
        text = dumps(headers)
    plain = {"content_type": JSON, "content_encoding": "utf-8", "correlation_id": headers.get("id")}
    return Content(text, None if found == plain else dumps(found), own, priority, message_id)


def tag_of(message: Delivery, content: Content) -> int:
    """A number of 63 bits for *message*, the same at each delivery: from its message id, which every message of ours has,
    or else from what it holds."""
    if content.message_id:
        digest = blake2b(content.message_id.encode("utf-8", "surrogatepass"), digest_size=8)
    else:
        digest = blake2b(content.text.encode("utf-8", "surrogatepass"), digest_size=8)
        digest.update((content.properties or "").encode("utf-8", "surrogatepass"))
        digest.update(message.body[:4096])
    return int.from_bytes(digest.digest()) >> 1 or 1
