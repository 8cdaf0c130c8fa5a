"""Many rows in few statements, as MySQL reads them: PyMySQL writes each value by five calls, which takes more
than the server needs to store it.

Comes from:  ``mysql.py``, for messages, and for what schedules keep.
Goes to:     the server, by its connection.
Thread:      any; pure functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qworker.transports.portions import portions_by_size

LARGE = 64 * 1024
"""Bytes of a value that is no longer written by two characters for each."""


def statements(
    statement: str, rows: Sequence[Sequence[Any]], most: int, encoding: str, escape: Callable[[Any], str]
) -> Iterator[bytes]:
    """Yield *statement*, an INSERT with VALUES (%s, …), with the values of some of *rows* at a time.

    most: bytes of one, unless a row is longer. escape: writes values not written here.
    """
    head, _, rest = statement.partition(" VALUES (")
    _, _, tail = rest.partition(")")
    begin, end = f"{head} VALUES ".encode(encoding), tail.encode(encoding)
    texts = (
        f"({','.join([literal(value, escape) for value in row])})".encode(encoding, "surrogateescape")
        for row in rows
    )
    for some in portions_by_size(texts, sys.maxsize, most + 1, lambda text: len(text) + 1):
        yield begin + b",".join(some) + end


def literal(value: Any, escape: Callable[[Any], str]) -> str:
    """Return *value* in SQL syntax, where a backslash escapes."""
    kind = type(value)
    if kind is str:
        if "\\" in value or "'" in value or "\0" in value:
            return escape(value)
        return f"'{value}'"
    if value is None:
        return "NULL"
    if kind is int:
        return str(value)
    if kind is bytes and len(value) < LARGE:
        return f"x'{value.hex()}'"
    return escape(value)
