"""Shapes: header tables written and read by what they have in common with those before.

Comes from:  ``codec.py``, for each message.
Goes to:     back to it: a table for a JSON text, a text for a table; None where no shape fits.
Thread:      any; what is known is a tuple that is replaced as a whole.

The headers of two calls differ in a few strings, such as the id. A shape is all that is around these strings,
as JSON and as a table. So most headers are copied in ten pieces, and need not be parsed and made anew, item
by item. A shape is learned from what the parser made, and kept only if it makes the same of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quote
from operator import itemgetter
from typing import Any, NamedTuple

from qworker.transports.amqp.table import LONG, TEXT_CODE, read_value

MOST = 8
"""Shapes that are kept of each kind, the newest first."""
LESSON, CREDIT = 32, 256
"""Learning costs as much as so many hits save. It is paid for by hits, but for what is given in advance."""


class TextShape(NamedTuple):
    """size: how many parts there are; literals: those that *around* picks. The strings are those that
    *inside* picks;
    indexes: where they are."""

    size: int
    around: Callable[[list[str]], tuple[str, ...]]
    literals: tuple[str, ...]
    inside: Callable[[list[str]], tuple[str, ...]]
    indexes: Sequence[int]

    def strings(self, parts: list[str]) -> tuple[str, ...] | None:
        """The values that are strings, in their order; None when something else is different, too."""
        if len(parts) != self.size or self.around(parts) != self.literals:
            return None
        return self.inside(parts)


class Writer(NamedTuple):
    """text: the shape of the text. form: of the table. identity: which string is the id."""

    text: TextShape
    form: str
    identity: int | None

    def write(self, parts: list[str]) -> tuple[bytes, Any] | None:
        strings = self.text.strings(parts)
        if strings is None:
            return None
        sized = list(strings * 2)
        sized[1::2] = strings
        try:
            sized[::2] = [_SIZES[len(string)] for string in strings]
        except IndexError:
            sized[::2] = [LONG.pack(len(string)).decode("latin-1") for string in strings]
        content = (self.form % tuple(sized)).encode("latin-1")
        return LONG.pack(len(content)) + content, None if self.identity is None else strings[self.identity]


class Reader(NamedTuple):
    """before: what comes before each string of the table, up to the lower two bytes of its size. after: what
    comes after the last one. form: of the text. quotes: how many are in it. identity: which string is the
    id."""

    before: tuple[tuple[bytes, int], ...]
    after: bytes
    form: str
    quotes: int
    identity: int | None

    def read(self, data: bytes) -> tuple[str, Any] | None:
        whole = data.decode("latin-1")
        strings = []
        at = 4
        for piece, size in self.before:
            if not data.startswith(piece, at):
                return None
            at += size
            start = at + 2
            at = start + (data[at] << 8) + data[at + 1]
            strings.append(whole[start:at])
        if data[at:] != self.after:
            return None
        text = self.form % tuple(strings)
        if text.count('"') != self.quotes or "\\" in text or not text.isascii() or not text.isprintable():
            strings = [string.encode("latin-1").decode() for string in strings]
            text = self.form % tuple([quote(string)[1:-1] for string in strings])
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
        parts = _parts(text)
        if parts is None:
            return None
        for shape in self._writers:
            made = shape.write(parts)
            if made is not None:
                self._credit += self._credit < CREDIT
                return made
        return None

    def read(self, data: bytes, at: int, end: int) -> tuple[str, Any] | None:
        """The text for the table in *data* from *at* to *end*, and the id in it."""
        found = data[at:end]
        try:
            for shape in self._readers:
                made = shape.read(found)
                if made is not None:
                    self._credit += self._credit < CREDIT
                    return made
        except (UnicodeDecodeError, IndexError):
            pass  # whatever it is, it is not what it looks like
        return None

    def learn_to_write(self, text: str, table: bytes, headers: Mapping[str, Any]) -> None:
        """*table* was made for *text*, which says *headers*."""
        found = self._compare(text, table, headers)
        if found is None:
            return
        known, tables, identity = found
        form = "%s%s".join(piece.decode("latin-1").replace("%", "%%") for piece in tables)
        shape = Writer(known, form, identity)
        if shape.write(text.split('"')) == (table, headers.get("id")):
            self._writers = (shape, *self._writers[: MOST - 1])

    def learn_to_read(self, table: bytes, text: str, headers: Mapping[str, Any]) -> None:
        """*text* was made of *table*, which says *headers*."""
        found = self._compare(text, table, headers)
        if found is None:
            return
        known, tables, identity = found
        parts = [part.replace("%", "%%") for part in text.split('"')]
        for index in known.indexes:
            parts[index] = "%s"
        before = tuple((piece + b"\0\0", len(piece) + 2) for piece in tables[:-1])
        shape = Reader(before, tables[-1], '"'.join(parts), len(parts) - 1, identity)
        if shape.read(table) == (text, headers.get("id")):
            self._readers = (shape, *self._readers[: MOST - 1])

    def _compare(
        self, text: str, table: bytes, headers: Mapping[str, Any]
    ) -> tuple[TextShape, Sequence[bytes], int | None] | None:
        """The shape of the text, the pieces of the table around the strings, and which string is the id; None
        when it is not worth it, or impossible."""
        if self._credit < LESSON or any(map(self._is_apart, headers)):
            return None
        self._credit -= LESSON
        known, tables = _shape(text, headers), _around_in_table(table)
        if known is None or len(tables) != len(known.indexes) + 1:
            return None
        strings = [name for name, value in headers.items() if type(value) is str]
        if "id" not in strings:
            return None if "id" in headers else (known, tables, None)
        return known, tables, strings.index("id")


_SIZES = tuple(LONG.pack(size).decode("latin-1") for size in range(256))
"""What comes before a string in a table, as text, for most strings."""


def _parts(text: str) -> list[str] | None:
    """What is between the quotes of *text*; None when it is no JSON, or takes a parser."""
    if "\\" in text or not text.isascii() or not text.isprintable():
        return None
    return text.split('"')


def _shape(text: str, value: Mapping[str, Any]) -> TextShape | None:
    """The shape of *text*, which says *value*; None when it has none."""
    parts = _parts(text)
    if parts is None:
        return None
    inside: list[int] = []
    around: list[int] = []
    depth = keys = 0
    for index, part in enumerate(parts):
        around.append(index)
        if index % 2 == 0:
            depth += sum(map(part.count, "{[")) - sum(map(part.count, "}]"))
        elif depth == 1:
            if parts[index + 1].lstrip().startswith(":"):
                keys += 1
            else:
                inside.append(around.pop())
    shape = TextShape(len(parts), _picking(around), _picking(around)(parts), _picking(inside), inside)
    strings = tuple(each for each in value.values() if type(each) is str)
    return shape if strings and keys == len(value) and shape.strings(parts) == strings else None


def _picking(indexes: Sequence[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """A function that picks the items at *indexes*."""
    if len(indexes) < 2:  # of which itemgetter makes no tuple
        return lambda parts: tuple(parts[index] for index in indexes)
    return itemgetter(*indexes)


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
