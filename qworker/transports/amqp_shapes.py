"""Shapes: header tables written and read by what they have in common with those before.

Comes from:  ``amqp_codec.py``, for each message.
Goes to:     back to it: a table for a JSON text, a text for a table; None where no shape fits.
Thread:      any; what is known is a tuple that is replaced as a whole.

The headers of two calls differ in a few strings, such as the id. A shape is all that is around these strings, as JSON and
as a table. So most headers are copied in ten pieces, and need not be parsed and made anew, item by item. A shape
is learned from what the parser made, and kept only if it makes the same of the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii as quote
from struct import error as StructError
from typing import Any, NamedTuple

from qworker.transports.amqp_table import LONG, TEXT_CODE, read_value

MOST = 8
"""Shapes that are kept of each kind, the newest first."""
LESSON, CREDIT = 32, 256
"""Learning costs as much as so many hits save. It is paid for by hits, but for what is given in advance."""


class Writer(NamedTuple):
    """pattern: of the text, with a group for each string. form: of the table. identity: which string is the id."""

    pattern: re.Pattern[str]
    form: bytes
    identity: int | None

    def write(self, text: str) -> tuple[bytes, Any] | None:
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        strings = found.groups()
        data = [string.encode() for string in strings]
        content = self.form % tuple(chain.from_iterable([(LONG.pack(len(each)), each) for each in data]))
        return LONG.pack(len(content)) + content, None if self.identity is None else strings[self.identity]


class Reader(NamedTuple):
    """before: what comes before each string of the table, with its length. after: what comes after the last one.
    form: of the text. identity: which string is the id."""

    before: tuple[tuple[bytes, int], ...]
    after: bytes
    form: str
    identity: int | None

    def read(self, data: bytes, at: int, end: int) -> tuple[str, Any] | None:
        strings = []
        at += 4
        for piece, size in self.before:
            if not data.startswith(piece, at):
                return None
            at += size
            start = at + 4
            at = start + LONG.unpack_from(data, at)[0]
            strings.append(data[start:at].decode())
        if data[at:end] != self.after:
            return None
        text = self.form % tuple([quote(string) for string in strings])
        return text, None if self.identity is None else strings[self.identity]


class Shapes:
    """is_apart: tells by its name whether a header is not like the others; such headers are in no shape."""

    def __init__(self, is_apart: Callable[[str], bool]) -> None:
        self._is_apart = is_apart
        self._writers: tuple[Writer, ...] = ()
        self._readers: tuple[Reader, ...] = ()
        self._credit = CREDIT  # any thread: a lost count matters to nobody

    def write(self, text: str) -> tuple[bytes, Any] | None:
        """The table for the headers *text*, and their id."""
        try:
            for shape in self._writers:
                made = shape.write(text)
                if made is not None:
                    self._credit += self._credit < CREDIT
                    return made
        except UnicodeEncodeError:
            pass  # surrogates, of which the parser knows more
        return None

    def read(self, data: bytes, at: int, end: int) -> tuple[str, Any] | None:
        """The text for the table in *data* from *at* to *end*, and the id in it."""
        try:
            for shape in self._readers:
                made = shape.read(data, at, end)
                if made is not None:
                    self._credit += self._credit < CREDIT
                    return made
        except (UnicodeDecodeError, StructError):
            pass  # whatever it is, it is not what it looks like
        return None

    def learn_to_write(self, text: str, table: bytes, headers: Mapping[str, Any]) -> None:
        """*table* was made for *text*, which says *headers*."""
        pieces = self._pieces(text, table, headers)
        if pieces is None:
            return
        texts, tables, identity = pieces
        pattern = re.compile(r'([^"\\\x00-\x1f]*)'.join(map(re.escape, texts)))
        form = b"%b%b".join(piece.replace(b"%", b"%%") for piece in tables)
        shape = Writer(pattern, form, identity)
        if shape.write(text) == (table, headers.get("id")):
            self._writers = (shape, *self._writers[: MOST - 1])

    def learn_to_read(self, table: bytes, text: str, headers: Mapping[str, Any]) -> None:
        """*text* was made of *table*, which says *headers*."""
        pieces = self._pieces(text, table, headers)
        if pieces is None:
            return
        texts, tables, identity = pieces
        form = "%s".join(piece.strip('"').replace("%", "%%") for piece in texts)
        before = tuple((piece, len(piece)) for piece in tables[:-1])
        shape = Reader(before, tables[-1], form, identity)
        if shape.read(table, 0, len(table)) == (text, headers.get("id")):
            self._readers = (shape, *self._readers[: MOST - 1])

    def _pieces(
        self, text: str, table: bytes, headers: Mapping[str, Any]
    ) -> tuple[Sequence[str], Sequence[bytes], int | None] | None:
        """What is around the strings in both, and which string is the id; None when it is not worth it, or impossible."""
        if self._credit < LESSON or any(map(self._is_apart, headers)):
            return None
        self._credit -= LESSON
        strings = [name for name, value in headers.items() if type(value) is str]
        texts, tables = _around_in_text(text), _around_in_table(table)
        if len(texts) != len(strings) + 1 or len(tables) != len(strings) + 1:
            return None
        if "id" not in strings:
            return None if "id" in headers else (texts, tables, None)
        return texts, tables, strings.index("id")


def _around_in_text(text: str) -> list[str]:
    """The pieces of a JSON object around the strings that are its values, quotes included; [] where it is too hard."""
    if "\\" in text:
        return []
    parts = text.split('"')
    pieces, start, depth = [], 0, 0
    for index, part in enumerate(parts):
        if index % 2 == 0:
            depth += sum(map(part.count, "{[")) - sum(map(part.count, "}]"))
        elif depth == 1 and not parts[index + 1].lstrip().startswith(":"):
            pieces.append('"'.join(parts[start:index]))
            start = index + 1
    pieces.append('"'.join(parts[start:]))
    return [
        ('"' if index else "") + piece + ('"' if index < len(pieces) - 1 else "")
        for index, piece in enumerate(pieces)
    ]


def _around_in_table(table: bytes) -> list[bytes]:
    """The pieces of a table around the strings that are its values; the sizes are in none of them."""
    pieces, start, at = [], 4, 4
    while at < len(table):
        at += 1 + table[at]
        at += 1
        if table[at - 1] == TEXT_CODE:
            pieces.append(table[start:at])
            start = at = at + 4 + LONG.unpack_from(table, at)[0]
        else:
            _, at = read_value(table, at - 1)
    return [*pieces, table[start:]]
