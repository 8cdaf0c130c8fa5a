"""Kombu JSON: kombu's dialect of JSON, with datetime, Decimal, UUID and bytes as ``{"__type__",
"__value__"}``.

Comes from:  serialization, protocol, exceptions.
Goes to:     message headers and bodies, stored results.
Thread:      any.

It is as fast as plain JSON. kombu is only imported if a value needs it, because importing it takes 50 ms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from json import encoder as _json_encoder
from typing import Any

MAX_DEPTH = 200  #: levels of nested lists and objects


@lru_cache(1)
def _dialect() -> tuple[Callable[[Any], Any], Callable[[dict[str, Any]], Any]]:
    """Return kombu's (default, object_hook), for the tagged types and those registered by users."""
    from kombu.utils.json import JSONEncoder, object_hook

    return JSONEncoder().default, object_hook


def as_plain(value: Any) -> Any:
    """Return the JSON form of a value of a type that JSON does not have. Raises TypeError if there is none,
    or any error of a registered encoder."""
    return _dialect()[0](value)


def _build_dumps() -> Callable[[Any], str]:
    make = getattr(_json_encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(separators=(",", ":"), default=as_plain).encode
    # json.dumps() would build one for each call. Without markers, which threads would share; a value that
    # contains itself raises RecursionError anyway.
    chunks = make(None, as_plain, _json_encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    join = "".join
    return lambda value: join(chunks(value, 0))


rewritten = _build_dumps()
"""dumps() for data read from JSON or from a server, which may contain tags of its sender."""
TAG = frozenset({"__type__", "__value__"})
"""Keys of the object that represents a value of another type."""


def dumps(value: Any) -> str:
    """Return compact ASCII JSON in kombu's dialect. Raises TypeError, ValueError or RecursionError if that is
    impossible; LooksTagged, a ValueError, for a dictionary that looks like a tag."""
    text = rewritten(value)
    if '"__type__":' in text:
        refuse_tagged(value)
    return text


class LooksTagged(ValueError):
    """A dictionary looks like a tag of kombu's dialect: its JSON would be read as a value of another type, or
    rejected."""

    def __init__(self) -> None:
        super().__init__(
            "a dictionary with only the keys '__type__' and '__value__' is not read back as a dictionary: "
            "rename a key, or add another"
        )


def refuse_tagged(value: Any) -> None:
    """Raise LooksTagged for a dictionary in *value*, which must be serializable, that looks like a tag. Tags
    that dumps() writes for datetime and similar types are allowed."""
    if isinstance(value, dict):
        if value.keys() == TAG:
            raise LooksTagged
        for item in value.values():
            refuse_tagged(item)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_tagged(item)
    elif not (value is None or isinstance(value, str | int | float)):
        plain = as_plain(value)
        of_encoder = isinstance(plain, dict) and plain.keys() == TAG and not hasattr(value, "__json__")
        refuse_tagged(plain["__value__"] if of_encoder else plain)


_plain = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = vars(_plain)["scan_once"]  # the C scanner, if available


@lru_cache(1)
def _tagged_decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_hook=_dialect()[1])


def loads(text: str) -> Any:
    """Return the value of JSON `text` in kombu's dialect. Raises ValueError or RecursionError if it is
    malformed, or any error of a registered decoder."""
    if "__type__" in text:
        return _tagged_decoder().decode(text)
    try:
        value, end = _scan(text, 0)
    except StopIteration:  # leading white space, or no value
        return _plain.decode(text)
    return value if end == len(text) else _plain.decode(text)


_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_NEITHER = bytes(code for code in range(256) if code not in b'[]{}"')
"""All bytes except brackets and quotes."""
_PAIR = b"\x01\xff"


def too_deep(data: bytes, limit: int = MAX_DEPTH) -> bool:
    """Return whether JSON `data`, in UTF-8, nests deeper than `limit`, or its brackets do not match.

    Takes linear time for any input, because it checks untrusted data before it is parsed.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    if (
        b"\\" in data
    ):  # a quote after an even number of backslashes ends its string; after an odd number it does not
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A string without brackets is now two quotes. So are the end of a string and the start of the next, which
    # then count as one string.
    nest = data.translate(_STEPS, _NEITHER).replace(b'""', b"")
    nest = b"".join(nest.split(b'"')[::2])
    if nest.count(b"\x01") * 2 != len(nest):
        return True
    levels = 0
    while nest and levels < limit:
        inner = nest.replace(_PAIR, b"")  # remove the innermost level
        levels += 1
        if len(inner) * 2 > len(nest):  # few brackets were removed, so a single pass over the rest is cheaper
            return levels + max(accumulate(memoryview(inner).cast("b"))) > limit
        nest = inner
    return bool(nest)
