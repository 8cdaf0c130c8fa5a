"""Shapes: header tables written and read by what they have in common with those before.

Comes from:  ``amqp_codec.py``, for each message.
Goes to:     back to it: a table for a JSON text, a text for a table; None where no shape fits.
Thread:      any; what is known is a tuple that is replaced as a whole.

The headers of two calls differ in a few strings, such as the id. A shape is all that is around these strings, as JSON and
as a table. So most headers are copied in ten pieces, and need not be parsed and made anew, item by item. A shape
is learned from what the parser made, and kept only if it makes the same of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quote
from operator import itemgetter
from struct import error as StructError
from typing import Any, NamedTuple

from qworker.transports.amqp_table import LONG, TEXT_CODE, read_value

MOST = 8
"""Shapes that are kept of each kind, the newest first."""
LESSON, CREDIT = 32, 256
"""Learning costs as much as so many hits save. It is paid for by hits, but for what is given in advance."""


class Writer(NamedTuple):
    """What is between the quotes of a text: size: how many parts; literals: those that *around* picks; the strings are
    those that *inside* picks. form: of the table. identity: which string is the id."""

    size: int
    around: Callable[[list[str]], tuple[str, ...]]
    literals: tuple[str, ...]
    inside: Callable[[list[str]], tuple[str, ...]]
    form: str
    identity: int | None

    def write(self, parts: list[str]) -> tuple[bytes, Any] | None:
        if len(parts) != self.size or self.around(parts) != self.literals:
            return None
        strings = self.inside(parts)
        sized = list(strings * 2)
        sized[1::2] = strings
        try:
            sized[::2] = [_SIZES[len(string)] for string in strings]
        except IndexError:
            sized[::2] = [LONG.pack(len(string)).decode("latin-1") for string in strings]
        content = (self.form % tuple(sized)).encode("latin-1")
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
        if "\\" in text or not text.isascii() or not text.isprintable():
            return None  # it is no JSON, or takes a parser
        parts = text.split('"')
        for shape in self._writers:
            made = shape.write(parts)
            if made is not None:
                self._credit += self._credit < CREDIT
                return made
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
        found = self._strings(text, table, headers)
        if found is None:
            return
        inside, tables, identity = found
        parts = text.split('"')
        around = _picking([index for index in range(len(parts)) if index not in inside])
        form = "%s%s".join(piece.decode("latin-1").replace("%", "%%") for piece in tables)
        shape = Writer(len(parts), around, around(parts), _picking(inside), form, identity)
        if shape.write(parts) == (table, headers.get("id")):
            self._writers = (shape, *self._writers[: MOST - 1])

    def learn_to_read(self, table: bytes, text: str, headers: Mapping[str, Any]) -> None:
        """*text* was made of *table*, which says *headers*."""
        found = self._strings(text, table, headers)
        if found is None:
            return
        inside, tables, identity = found
        parts = [part.replace("%", "%%") for part in text.split('"')]
        for index in reversed(inside):
            parts[index - 1 : index + 2] = [f"{parts[index - 1]}%s{parts[index + 1]}"]
        before = tuple((piece, len(piece)) for piece in tables[:-1])
        shape = Reader(before, tables[-1], '"'.join(parts), identity)
        if shape.read(table, 0, len(table)) == (text, headers.get("id")):
            self._readers = (shape, *self._readers[: MOST - 1])

    def _strings(
        self, text: str, table: bytes, headers: Mapping[str, Any]
    ) -> tuple[Sequence[int], Sequence[bytes], int | None] | None:
        """Where between the quotes the strings are, the pieces of the table around them, and which string is the id;
        None when it is not worth it, or impossible."""
        if self._credit < LESSON or any(map(self._is_apart, headers)):
            return None
        self._credit -= LESSON
        strings = [name for name, value in headers.items() if type(value) is str]
        inside, tables = _inside_text(text), _around_in_table(table)
        if not strings or len(inside) != len(strings) or len(tables) != len(strings) + 1:
            return None
        if "id" not in strings:
            return None if "id" in headers else (inside, tables, None)
        return inside, tables, strings.index("id")


def _picking(indexes: Sequence[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """A function that picks the items at *indexes*."""
    if len(indexes) == 1:  # of which itemgetter makes no tuple
        only = indexes[0]
        return lambda parts: (parts[only],)
    return itemgetter(*indexes)


_SIZES = tuple(LONG.pack(size).decode("latin-1") for size in range(256))
"""What comes before a string in a table, as text, for most strings."""


def _inside_text(text: str) -> list[int]:
    """Which parts between the quotes of a JSON object are its values; [] where it is too hard."""
    if "\\" in text:
        return []
    parts = text.split('"')
    inside, depth = [], 0
    for index, part in enumerate(parts):
        if index % 2 == 0:
            depth += sum(map(part.count, "{[")) - sum(map(part.count, "}]"))
        elif depth == 1 and not parts[index + 1].lstrip().startswith(":"):
            inside.append(index)
    return inside


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
