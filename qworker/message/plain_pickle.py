"""Pickles of plain data from sources that are not trusted: reading one runs no code.

Comes from:  ``spooler/arguments.py``, for jobs of uWSGI's decorators; ``backends/sql``, for results of
             an older Celery.
Goes to:     their values.
Thread:      any; stateless.

Time and memory are limited to a multiple of the length of a pickle. For that the unpickler in Python is used,
whose operations can be replaced.
"""

from __future__ import annotations

import datetime
import decimal
import io
import operator
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from typing import Any
from uuid import UUID

from qworker.safe_repr import safe_repr

CLASSES: Mapping[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytes"): bytes,
    ("builtins", "complex"): complex,
    ("datetime", "date"): datetime.date,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): decimal.Decimal,
}
"""The classes that a pickle may name: they only contain a value."""
# fmt: off
OPERATIONS = frozenset((
    "ADDITEMS", "APPEND", "APPENDS", "BINBYTES", "BINBYTES8", "BINFLOAT", "BINGET", "BININT",
    "BININT1", "BININT2", "BINPUT", "BINUNICODE", "BINUNICODE8", "BUILD", "BYTEARRAY8", "DICT", "DUP",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE", "FLOAT", "FRAME", "FROZENSET", "GET", "GLOBAL",
    "INT", "LIST", "LONG", "LONG1", "LONG4", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE",
    "NEWOBJ", "NEWTRUE", "NONE", "POP", "POP_MARK", "PROTO", "PUT", "REDUCE", "SETITEM", "SETITEMS",
    "SHORT_BINBYTES", "SHORT_BINUNICODE", "STACK_GLOBAL", "STOP", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "UNICODE",
))
# fmt: on
"""The allowed operations. Others create objects of other classes, or load them from elsewhere."""
_ARGUMENTS: Mapping[Any, Collection[tuple[type, ...]]] = {
    set: [(), (list,)],
    frozenset: [(), (list,)],
    dict: [(), (list,)],
    complex: [(float, float)],
    bytes: [()],
    bytearray: [(), (bytes,), (str, str)],
    datetime.date: [(bytes,)],
    datetime.datetime: [(bytes,), (bytes, datetime.timezone)],
    datetime.time: [(bytes,), (bytes, datetime.timezone)],
    datetime.timedelta: [(int, int, int)],
    datetime.timezone: [(datetime.timedelta,), (datetime.timedelta, str)],
    decimal.Decimal: [(str,)],
    UUID: [],
}
"""The types of arguments with which pickles create objects of a class. Others take much memory, look for
codecs, or print what they got."""


class RefusedPickle(ValueError):
    """The pickle could run code, or take much memory or time."""


class _Operations(dict[int, Callable[[Any], None]]):
    """Refuses all others."""

    def __missing__(self, code: int) -> Any:
        import pickletools  # not in every process that reads results

        names = {operation.code: operation.name for operation in pickletools.opcodes}
        raise RefusedPickle(f"it has the operation {names.get(chr(code), code)}")


class _Unpickler(pickle._Unpickler):
    stack: list[Any]
    """The objects since the last mark."""

    def __init__(self, data: bytes, classes: Mapping[tuple[str, str], Any], room: int) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes
        self._room = room + 100 * len(data)
        """How many more members may be hashed, copied or returned."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = "builtins" if module_name == "__builtin__" else module_name, global_name
        try:
            return self._classes[name]
        except KeyError:
            raise RefusedPickle(f"it names {safe_repr('.'.join(name), 100)}") from None

    def call(self) -> None:
        function, arguments = self.stack[-2:]
        types = tuple(map(type, arguments))
        if not callable(function) or types not in _ARGUMENTS.get(function, [types]):
            raise RefusedPickle(f"it calls {safe_repr(function, 100)} in an unsupported way")
        if function is bytearray and types == (str, str):  # by protocol 2, in latin-1
            arguments = (arguments[0].encode("latin1"),)
        self.charge(len(arguments))
        for each in arguments:  # which may be copied, and occur again
            self.charge(20 * len(each) if isinstance(each, Sized) else 1)
        if function in (set, frozenset, dict):
            for each in arguments:
                self.hashes([key for pair in each for key in pair[:1]] if function is dict else each)
        value = function(*arguments)
        if isinstance(value, datetime.date | datetime.time):
            value.replace()  # checks the fields
        self.stack[-2:] = [value]

    def create(self) -> None:
        cls, arguments = self.stack[-2:]
        if cls is not UUID or arguments != ():
            raise RefusedPickle("it creates an object other than a UUID")
        self.stack[-2:] = [UUID(int=0)]

    def build(self) -> None:
        created, state = self.stack[-2:]
        if type(created) is not UUID or created.int:
            raise RefusedPickle("it sets the attributes of an object that is not a new UUID")
        object.__setattr__(created, "int", UUID(int=operator.index(state["int"])).int)
        self.stack.pop()

    def read_bytearray(self) -> None:
        _PLAIN[pickle.BINBYTES8[0]](self)
        self.stack[-1] = bytearray(self.stack[-1])

    def charge(self, members: int) -> None:
        self._room -= members
        if self._room < 0:
            raise RefusedPickle("it repeats its parts too often")

    def hashes(self, keys: Iterable[Any]) -> None:
        """Charge for hashing and comparing *keys*."""
        for key in keys:
            if type(key) is not str:
                self.weigh(key, (tuple, frozenset))

    def weigh(self, value: Any, containers: tuple[type[Collection[Any]], ...]) -> None:
        """Charge for the members of *value*, at any depth within *containers*, and again for each that occurs
        again. Refuse classes and functions."""
        waiting = [value]
        while waiting:
            member = waiting.pop()
            if isinstance(member, containers):
                self.charge(len(member))
                waiting.extend(member)
                if isinstance(member, dict):
                    waiting.extend(member.values())
            elif isinstance(member, str | bytes | bytearray):
                self.charge(len(member) // 16)
            elif isinstance(member, int):
                self.charge(member.bit_length() // 1000)
            elif callable(member):
                raise RefusedPickle(f"it contains {safe_repr(member, 100)}")


def _checked(operation: bytes, keys: slice) -> Callable[[_Unpickler], None]:
    """Return *operation*, which will hash *keys* of the stack."""

    def run(unpickler: _Unpickler) -> None:
        unpickler.hashes(unpickler.stack[keys])
        _PLAIN[operation[0]](unpickler)

    return run


_PLAIN: Mapping[int, Callable[[Any], None]] = pickle._Unpickler.dispatch
_CODES = [getattr(pickle, name)[0] for name in OPERATIONS]
_Unpickler.dispatch = _Operations({code: _PLAIN[code] for code in _CODES})
_Unpickler.dispatch |= {
    pickle.REDUCE[0]: _Unpickler.call,
    pickle.NEWOBJ[0]: _Unpickler.create,
    pickle.BUILD[0]: _Unpickler.build,
    pickle.BYTEARRAY8[0]: _Unpickler.read_bytearray,
    pickle.SETITEM[0]: _checked(pickle.SETITEM, slice(-2, -1)),
    pickle.SETITEMS[0]: _checked(pickle.SETITEMS, slice(0, None, 2)),
    pickle.DICT[0]: _checked(pickle.DICT, slice(0, None, 2)),
    pickle.ADDITEMS[0]: _checked(pickle.ADDITEMS, slice(None)),
    pickle.FROZENSET[0]: _checked(pickle.FROZENSET, slice(None)),
}  # fmt: skip


def load_plain(data: bytes, classes: Mapping[tuple[str, str], Any] = CLASSES, room: int = 3_000_000) -> Any:
    """Return the value pickled in *data*, which may name *classes* only.

    room: how many members may be hashed, copied or returned, besides 100 for each byte of *data*.

    Raises RefusedPickle for other contents, and any exception for damaged data.
    """
    unpickler = _Unpickler(data, classes, room)
    value = unpickler.load()
    unpickler.weigh(value, (list, tuple, set, frozenset, dict))
    return value
