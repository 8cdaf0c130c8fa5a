"""AMQP 0-9-1's tables and short strings: Python values to bytes and back.

Comes from:  ``codec.py``.
Goes to:     the header tables of messages.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

LONG = Struct(">I")
_SIGNED, _SIGNED_LONG, _DOUBLE = Struct(">i"), Struct(">q"), Struct(">d")


class UnsupportedValue(ValueError):
    """A value that an AMQP table cannot hold."""


# -- writing --


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"S" + LONG.pack(len(data)) + data


def _integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"I" + _SIGNED.pack(value)
    if -(2**63) <= value < 2**63:
        return b"l" + _SIGNED_LONG.pack(value)
    raise UnsupportedValue(f"{value} has more than 64 bits")


def _array(value: Any) -> bytes:
    data = b"".join([_value(item) for item in value])
    return b"A" + LONG.pack(len(data)) + data


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
        raise UnsupportedValue(f"{type(value).__name__} is not a type of AMQP") from None


def short(value: str) -> bytes:
    """Return a short string. UnsupportedValue when it has over 255 bytes."""
    data = value.encode("utf-8", "surrogatepass")
    if len(data) > 255:
        raise UnsupportedValue(f"{value[:40]!r}… has over 255 bytes")
    return b"%c%b" % (len(data), data)


_names: dict[str, bytes] = {}


def table(values: Mapping[str, Any]) -> bytes:
    """Return a field table. UnsupportedValue when a name or a value does not fit."""
    parts = []
    for name, value in values.items():
        key = _names.get(name)
        if key is None:
            key = short(name)
            if len(_names) < 1000:
                _names[name] = key
        parts.append(key + _WRITERS[type(value)](value) if type(value) in _WRITERS else key + _value(value))
    data = b"".join(parts)
    return LONG.pack(len(data)) + data


# -- reading --


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 4 + LONG.unpack_from(data, at)[0]
    return _decode(data[at + 4 : end]), end


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def _read_array(data: bytes, at: int) -> tuple[list[Any], int]:
    end = at + 4 + LONG.unpack_from(data, at)[0]
    at += 4
    values = []
    while at < end:
        value, at = _read_value(data, at)
        values.append(value)
    _check_end(at, end)
    return values, end


def _check_end(at: int, end: int) -> None:
    """ValueError when a value in a table or an array extends beyond its end: the enclosing one would read
    those bytes again."""
    if at != end:
        raise ValueError(f"a value extends {at - end} bytes beyond the end of its table")


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
    """Return the field table at *at*, and its end."""
    long = LONG.unpack_from
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
        if code == _S:  # most are text or empty
            stop = at + 4 + long(data, at)[0]
            values[name] = _decode(data[at + 4 : stop])
            at = stop
        elif code == _V:
            values[name] = None
        else:
            values[name], at = _READERS[code](data, at)
    _check_end(at, end)
    return values, end


_known: dict[bytes, str] = {}
_S, _V = ord("S"), ord("V")


def read_short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end
