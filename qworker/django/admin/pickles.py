"""pickles: displays a pickle as text without importing or calling anything that it names.

Comes from:  the columns of a task, and waiting packages.
Goes to:     the pages of the admin.
Thread:      that of the request.

Unpickling imports classes and calls them, so a pickle with a missing class, or a malicious one, would break
the page. Here, stand-ins with the same names replace classes and functions.
"""

from __future__ import annotations

import datetime
import io
import pickle
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, ClassVar

from django.db.models.base import model_unpickle

from qworker.conf.secrets import MASK, is_secret

MOST_NAMES = 1000
"""Classes and functions that one pickle may name: a stand-in class is made for each."""
DEEPEST = 12
"""Levels of nested containers that are shown."""
DEEPEST_KEY = 100
"""Levels of nested tuples in a key: Python hashes them by recursion without a limit."""
MOST_HASHED = 1_000_000
"""Items of keys hashed in total: few bytes can make many, by tuples that contain each other twice."""
LONGEST_PIECE = 10_000
MODEL = f"{model_unpickle.__module__}.{model_unpickle.__qualname__}"
"""The function in pickles of model instances; its argument is the model's name."""
BUILT_IN, OLD_BUILT_IN = "builtins", "__builtin__"
PRIVATE = ("_state", "_django_version")
"""Django's private attributes of an instance."""
BRACKETS = {tuple: "()", list: "[]", set: "{}", frozenset: "{}"}


class Unreadable(Exception):
    """Raised for a pickle that cannot be read, with the reason."""


class StandIn:
    """An instance of a class that is not imported, or the result of a function that is not called.

    args, kwargs: its arguments. state: its attributes. items: its items.
    """

    path = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> StandIn:
        made = super().__new__(cls)
        made.args, made.kwargs = args, kwargs
        made.state, made.items = None, []
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: tuple[Any, ...]
        self.kwargs: dict[str, Any]
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    add = append

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class Zone(datetime.tzinfo):
    """A time zone with only a name."""

    def __init__(self, key: str = "", *_: Any) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"ZoneInfo({self.key!r})"


def _bytes(text: str, *_: Any) -> bytes:
    """Return bytes, which older pickle protocols write as a call of encode()."""
    return text.encode("latin1")


HARMLESS: dict[str, Any] = {
    "datetime.datetime": datetime.datetime,
    "datetime.date": datetime.date,
    "datetime.time": datetime.time,
    "datetime.timedelta": datetime.timedelta,
    "datetime.timezone": datetime.timezone,
    "decimal.Decimal": Decimal,
    "uuid.UUID": uuid.UUID,
    "zoneinfo.ZoneInfo": Zone,
    "_codecs.encode": _bytes,
}
"""Classes whose instances are safe to create and never large."""


_BUILD: Callable[[Any], None] = pickle._Unpickler.dispatch[pickle.BUILD[0]]


class Reader(pickle._Unpickler):
    """Unpickles with stand-ins. A subclass of the pure-Python class, which does not allocate memory for sizes
    that a pickle only announces."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._named: dict[str, Any] = {}
        self._hashed = 0

    def find_class(self, module: str, name: str) -> Any:
        path = f"{BUILT_IN if module == OLD_BUILT_IN else module}.{name}"
        if path == f"{BUILT_IN}.getattr":
            return self._attribute
        return HARMLESS[path] if path in HARMLESS else self._stand_in(path)

    def _attribute(self, owner: Any, name: str) -> Any:
        """Return the stand-in for getattr(owner, name), such as a method."""
        return Zone if owner is Zone else self._stand_in(f"{getattr(owner, 'path', '')}.{name}")

    def _stand_in(self, path: str) -> Any:
        if path not in self._named:
            if len(self._named) >= MOST_NAMES:
                raise Unreadable("it names too many classes")
            self._named[path] = type("StandIn", (StandIn,), {"path": path.removeprefix(f"{BUILT_IN}.")})
        return self._named[path]

    def _load_build(self) -> None:
        """Set the state of an instance. Real classes and functions must not be changed."""
        made, state = self.stack[-2:]
        is_whole = type(made) is uuid.UUID and isinstance(state, dict) and type(state.get("int")) is int
        if not is_whole and not isinstance(made, StandIn):
            raise Unreadable("it changes something other than an instance")
        _BUILD(self)

    dispatch[pickle.BUILD[0]] = _load_build

    def _check_keys(self, keys: Iterable[Any]) -> None:
        """Refuse keys that take too long to hash, or would overflow the stack, which kills the process."""
        waiting = [(key, 1) for key in keys]
        while waiting:
            key, depth = waiting.pop()
            self._hashed += 1
            if depth > DEEPEST_KEY or self._hashed > MOST_HASHED:
                raise Unreadable("its keys are too large")
            if type(key) in (tuple, frozenset):
                waiting += [(item, depth + 1) for item in key]


def _checking(opcode: int, keys: Callable[[Reader], Iterable[Any]]) -> None:
    """Check *keys*, which *opcode* hashes, before it is executed."""
    load = Reader.dispatch[opcode]

    def check_and_load(reader: Reader) -> None:
        reader._check_keys(keys(reader))
        load(reader)

    Reader.dispatch[opcode] = check_and_load


_checking(pickle.SETITEM[0], lambda reader: reader.stack[-2:-1])
_checking(pickle.SETITEMS[0], lambda reader: reader.stack[::2])
_checking(pickle.DICT[0], lambda reader: reader.stack[::2])
_checking(pickle.ADDITEMS[0], lambda reader: reader.stack)
_checking(pickle.FROZENSET[0], lambda reader: reader.stack)


def read(data: bytes) -> Any:
    """Return the content of the pickle *data*, with stand-ins for instances, classes and functions.

    Raises Unreadable for invalid pickles.
    """
    try:
        found = Reader(data).load()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from error
    # picklefield wraps models and functions.
    is_wrapper = isinstance(found, StandIn) and found.path.endswith("picklefield.fields._ObjectWrapper")
    state = found.state if is_wrapper else None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        return state[1].get("_obj")
    return found


def read_column(text: str) -> Any:
    """Like read(), for a pickle in base64."""
    try:
        data = b64decode(text, validate=True)
    except ValueError as error:
        raise Unreadable("it is not base64") from error
    return read(data)


def shown(value: Any, most: int) -> str:
    """Return *value* on one line of at most *most* characters: text as it is, anything else like its
    repr()."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[: most - 1]}…"
    return _joined_up(_pieces(value, 0), most)


def spread(value: Any, most: int, width: int = 100) -> str:
    """Like shown(), but with each item on its own line if the value is longer than *width*."""
    text = shown(value, most)
    if isinstance(value, str) or len(text) <= width:
        return text
    return _joined_up(_pieces(value, 0, ",\n "), most)


def _joined_up(pieces: Iterator[str], most: int) -> str:
    found: list[str] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > most:
            return f"{''.join(found)[: most - 1]}…"
    return "".join(found)


def _pieces(value: Any, depth: int, between: str = ", ") -> Iterator[str]:
    """Yield the text of *value* in pieces, so that the reader can stop. between: separates items."""
    if isinstance(value, str | bytes | bytearray):
        yield repr(value[:LONGEST_PIECE])
    elif isinstance(value, type) and issubclass(value, StandIn):
        yield value.path
    elif not isinstance(value, StandIn | tuple | list | dict | set | frozenset):
        yield _plain(value)
    elif depth >= DEEPEST:
        yield "…"
    elif isinstance(value, StandIn):
        yield from _instance(value, depth + 1, between)
    elif isinstance(value, dict):
        yield "{"
        yield from _joined(([key, ": ", item] for key, item in value.items()), depth + 1, between)
        yield "}"
    else:
        brackets = BRACKETS[type(value)]
        yield brackets[0]
        yield from _joined(([item] for item in value), depth + 1, between)
        yield f",{brackets[1]}" if type(value) is tuple and len(value) == 1 else brackets[1]


class _Word(str):
    """Text shown without quotation marks."""


def _joined(parts: Iterator[list[Any]], depth: int, between: str) -> Iterator[str]:
    """Yield *parts* with *between* them; each is a value, or a name, its separator, and a value."""
    for place, (*head, value) in enumerate(parts):
        if place:
            yield between
        if head:
            name, sign = head
            yield from [str(name)] if isinstance(name, _Word) else _pieces(name, depth)
            yield sign
            if isinstance(name, str) and is_secret(name):
                yield MASK
                continue
        yield from _pieces(value, depth)


def _instance(value: StandIn, depth: int, between: str) -> Iterator[str]:
    path, args, state = value.path, value.args, value.state
    if path == MODEL and args and isinstance(args[0], tuple | list):
        path, args, state = ".".join(map(str, args[0])), (), _key_of(state)
    yield f"{path}("
    yield from _joined(_made_of(value, args, state), depth, between)
    yield ")"


def _key_of(state: Any) -> Any:
    """Return the first field of a model's instance, its key. A user who may see tasks may not be permitted to
    see the other fields."""
    fields = state.items() if isinstance(state, dict) else ()
    return dict([(name, each) for name, each in fields if name not in PRIVATE][:1])


def _made_of(value: StandIn, args: Any, state: Any) -> Iterator[list[Any]]:
    yield from ([each] for each in args)
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # from __slots__
        state = {**(state[0] if isinstance(state[0], dict) else {}), **state[1]}
    named = {**value.kwargs, **state} if isinstance(state, dict) else value.kwargs
    for name, each in named.items():
        yield [_Word(name), "=", each] if isinstance(name, str) else [name, "=", each]
    if state is not None and not isinstance(state, dict):
        yield [state]
    if value.items:
        yield [value.items]


def _plain(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - such as an int of too many digits, or an invalid UUID
        return f"<{type(value).__name__}: {type(error).__name__}>"
