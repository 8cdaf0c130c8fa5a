"""Limited representations of arguments and results, for headers, logs and events.

Comes from:  publishing (argsrepr, kwargsrepr), execution (the result in the log line).
Goes to:     message headers, log lines, events, the dashboard.
Thread:      any.

The functions never raise. Their results are never longer than requested and have no control characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    room = [limit]

    def write(text: str) -> None:
        pieces.append(text)
        room[0] -= len(text)
        if room[0] < 0:
            raise _Full

    try:
        _write(value, write, 0, set())
    except _Full:
        pass
    except Exception as error:  # noqa: BLE001 - a user's container may raise anything
        reraise_interrupt(error)
        pieces.append("...")
    text = printable("".join(pieces))
    return text if len(text) <= limit else _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return text[: max(limit - 3, 0)] + "..."[:limit]


def _write(value: Any, write: Callable[[str], None], depth: int, seen: set[int]) -> None:
    kind = type(value)
    if kind is str or kind is bytes:
        write(repr(value[: LIMIT * 4]) if len(value) > LIMIT * 4 else repr(value))
        return
    brackets = _BRACKETS.get(kind)
    if brackets is None:
        write(_leaf(value))
        return
    if id(value) in seen or depth >= MAX_DEPTH:
        write(f"{brackets[0]}...{brackets[1]}")
        return
    seen.add(id(value))
    if kind is dict:
        write("{")
        _write_items(value, value.items(), write, depth, seen, pairs=True)
        write("}")
    elif not value:
        write(brackets[2])
    else:
        write(brackets[0])
        _write_items(value, value, write, depth, seen, pairs=False)
        write(",)" if kind is tuple and len(value) == 1 else brackets[1])
    seen.discard(id(value))


def _write_items(
    container: Any,
    items: Iterable[Any],
    write: Callable[[str], None],
    depth: int,
    seen: set[int],
    pairs: bool,
) -> None:
    for position, item in enumerate(items):
        if position:
            write(", ")
        if position == _MANY:
            write(f"... {len(container) - _MANY} more")
            return
        if pairs:
            _write(item[0], write, depth + 1, seen)
            write(": ")
            item = item[1]
        _write(item, write, depth + 1, seen)


def _leaf(value: Any) -> str:
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
