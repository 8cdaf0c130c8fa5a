"""JSON in kombu's dialect, at C speed: datetime, Decimal, UUID and bytes as ``{"__type__", "__value__"}``.

Comes from:  serialization, protocol, exceptions.
Goes to:     message headers and bodies, stored results.
Thread:      any. Written and read by the C encoder and scanner without importing kombu until a value needs
             it: kombu costs 50 ms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from json import encoder as _json_encoder
from typing import Any

MAX_DEPTH = 200  #: of nested lists and objects


@lru_cache(1)
def _dialect() -> tuple[Callable[[Any], Any], Callable[[dict[str, Any]], Any]]:
    """kombu's (default, object_hook), which know the tagged types and those users register with it."""
    from kombu.utils.json import JSONEncoder, object_hook

    return JSONEncoder().default, object_hook


def as_plain(value: Any) -> Any:
    """What stands in JSON for a value that it has no type for. TypeError when there is nothing, or whatever a
    registered encoder raises."""
    return _dialect()[0](value)


def _build_dumps() -> Callable[[Any], str]:
    make = getattr(_json_encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(separators=(",", ":"), default=as_plain).encode
    # Built once (json.dumps builds one per call). No markers: they would be shared by threads, and a value
    # that contains itself ends in RecursionError all the same.
    chunks = make(None, as_plain, _json_encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    join = "".join
    return lambda value: join(chunks(value, 0))


rewritten = _build_dumps()
"""dumps() for what was read from JSON, or from a server: whoever made it wrote the tags that are in it."""
TAG = frozenset({"__type__", "__value__"})
"""The keys of what stands for a value of another type."""


def dumps(value: Any) -> str:
    """Compact ASCII JSON text of a value, in kombu's dialect. TypeError, ValueError or RecursionError if
    impossible; and LooksTagged, a ValueError."""
    text = rewritten(value)
    if '"__type__":' in text:
        refuse_tagged(value)
    return text


class LooksTagged(ValueError):
    """A dictionary that is written as it is, and would be read as a value of another type, or not at all:
    every reader of kombu's dialect takes it for a tag."""

    def __init__(self) -> None:
        super().__init__(
            "a dictionary of only '__type__' and '__value__' is how JSON writes a value of another type, so "
            "nobody could read it: rename a key, or add another"
        )


def refuse_tagged(value: Any) -> None:
    """Raise LooksTagged for a dictionary in *value* that looks like a tag, but for those that dumps() itself
    writes for a datetime and its like. *value* can be written."""
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
_scan: Callable[[str, int], tuple[Any, int]] = vars(_plain)["scan_once"]  # the C scanner, where there is one


@lru_cache(1)
def _tagged_decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_hook=_dialect()[1])


def loads(text: str) -> Any:
    """Value of JSON `text`, in kombu's dialect. ValueError or RecursionError (or, of a registered type,
    whatever its decoder raises) when it is malformed."""
    if "__type__" in text:
        return _tagged_decoder().decode(text)
    try:
        value, end = _scan(text, 0)
    except StopIteration:  # leading white space, or no value at all
        return _plain.decode(text)
    return value if end == len(text) else _plain.decode(text)


_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_NEITHER = bytes(code for code in range(256) if code not in b'[]{}"')
"""All that is neither a bracket nor a quote."""
_PAIR = b"\x01\xff"


def too_deep(data: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether JSON `data`, in UTF-8, nests deeper than `limit` (or its brackets do not match). Free for flat
    data.

    Takes time in proportion to the size of any bytes at all: hostile ones come here before anything else
    looks at them.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    if (
        b"\\" in data
    ):  # a quote behind an even number of backslashes ends its string; one behind an odd number does not
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A text without brackets is now two quotes. So are the end of one text and the start of the next: these
    # become one text.
    nest = data.translate(_STEPS, _NEITHER).replace(b'""', b"")
    nest = b"".join(nest.split(b'"')[::2])
    if nest.count(b"\x01") * 2 != len(nest):
        return True
    levels = 0
    while nest and levels < limit:
        inner = nest.replace(_PAIR, b"")  # takes away the innermost level
        levels += 1
        if len(inner) * 2 > len(nest):  # which is little of it: then one look at each bracket is cheaper
            return levels + max(accumulate(memoryview(inner).cast("b"))) > limit
        nest = inner
    return bool(nest)
