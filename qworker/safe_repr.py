"""Limited representations of arguments and results, for headers, logs and events.

Comes from:  publishing (argsrepr, kwargsrepr), execution (the result in the log line).
Goes to:     message headers, log lines, events, the dashboard.
Thread:      any.

The functions never raise. Their results are never longer than requested and have no control characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qworker.interrupts import reraise_interrupt

LIMIT = 1024
MAX_DEPTH = 6
_MANY = 64  # maximum items of one container
_PLAIN = frozenset({int, str, float, bool, type(None)})


def safe_repr(value: object, limit: int = LIMIT) -> str:
    """Return `repr(value)` in at most `limit` characters, on one line; "..." replaces what was left out."""
    kind = type(value)
    if kind in _PLAIN and (kind is not str or len(value) <= limit):  # type: ignore[arg-type]
        try:
            text = repr(value)
        except ValueError:  # an int of too many digits
            return _bounded(value, limit)
        return text if len(text) <= limit else _cut(text, limit)
    return _bounded(value, limit)


def repr_args(args: tuple[Any, ...], limit: int = LIMIT) -> str:
    """Return a representation of positional arguments, "(1, 2)"."""
    if not args:
        return "()"
    if type(args) is not tuple:
        args = tuple(args)
    return _fast_repr(args, args, limit) or _bounded(args, limit)


def repr_kwargs(kwargs: dict[str, Any], limit: int = LIMIT) -> str:
    """Return a representation of keyword arguments, "{'x': 1}"."""
    if not kwargs:
        return "{}"
    return _fast_repr(kwargs, kwargs.values(), limit) or _bounded(kwargs, limit)


def _fast_repr(container: object, values: Iterable[object], limit: int) -> str | None:
    """Return Python's own repr if it is certainly short and harmless, else None."""
    size = 0
    for value in values:
        kind = type(value)
        if kind is str:
            size += len(value)  # type: ignore[arg-type]
        elif kind not in _PLAIN:
            return None
    if size > limit:
        return None
    try:
        text = repr(container)
    except Exception as error:  # noqa: BLE001 - an int of too many digits, or a user's __repr__
        reraise_interrupt(error)
        return None
    return text if len(text) <= limit else None


def printable(text: str) -> str:
    """Return `text` with every control, bidirectional, or otherwise unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def storable(text: str) -> str:
    """Return `text` with NUL and lone surrogates escaped, as every database, file and log accepts it."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


class _Full(Exception):
    """The limit has been reached."""


def _bounded(value: object, limit: int) -> str:
    pieces: list[str] = []
    try:
        _write(value, pieces, limit, 0, set())
    except _Full:
        pass
    except Exception as error:  # noqa: BLE001 - a user's container may raise anything
        reraise_interrupt(error)
        pieces.append("...")
    text = printable("".join(pieces))
    return text if len(text) <= limit else _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return text[: max(limit - 3, 0)] + "..."[:limit]


def _write(value: Any, pieces: list[str], room: int, depth: int, seen: set[int]) -> int:
    """Append the representation of *value* to *pieces*; return the remaining room, in characters.
    Raises _Full if it does not fit into *room*."""
    brackets = _BRACKETS.get(type(value))
    if brackets is None:
        text = _leaf(value, room)
    elif id(value) in seen or depth >= MAX_DEPTH:
        text = f"{brackets[0]}...{brackets[1]}"
    elif not value:
        text = brackets[2]
    else:
        seen.add(id(value))
        pieces.append(brackets[0])
        room = _write_items(value, pieces, room - len(brackets[0]), depth, seen)
        seen.discard(id(value))
        text = ",)" if type(value) is tuple and len(value) == 1 else brackets[1]
    pieces.append(text)
    return _left(room, text)


def _write_items(container: Any, pieces: list[str], room: int, depth: int, seen: set[int]) -> int:
    is_dict = type(container) is dict
    text = ""  # what comes before the next item: plain values are written with it, as one piece
    for position, item in enumerate(container.items() if is_dict else container):
        if position == _MANY:
            text += f"... {len(container) - _MANY} more"
            pieces.append(text)
            return _left(room, text)
        if is_dict:
            key, item = item
            if type(key) is str and len(key) <= room:
                text += repr(key) + ": "
            else:
                pieces.append(text)
                room = _write(key, pieces, _left(room, text), depth + 1, seen)
                text = ": "
        if type(item) in _PLAIN:
            text += _leaf(item, room)
            pieces.append(text)
            room = _left(room, text)
        else:
            pieces.append(text)
            room = _write(item, pieces, _left(room, text), depth + 1, seen)
        text = ", "
    return room


def _left(room: int, text: str) -> int:
    if len(text) > room:
        raise _Full
    return room - len(text)


def _leaf(value: Any, room: int) -> str:
    if (type(value) is str or type(value) is bytes) and len(value) > room:
        value = value[: room + 1]  # its representation is longer
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        reraise_interrupt(error)
        if type(value) is int:
            return f"<int of {value.bit_length()} bits>"
        return f"<{type(value).__name__} whose repr() raised {type(error).__name__}>"


_BRACKETS: dict[type, tuple[str, str, str]] = {
    tuple: ("(", ")", "()"),
    list: ("[", "]", "[]"),
    dict: ("{", "}", "{}"),
    set: ("{", "}", "set()"),
    frozenset: ("frozenset({", "})", "frozenset()"),
}
