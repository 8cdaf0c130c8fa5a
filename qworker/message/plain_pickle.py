"""Pickles of plain data from sources that are not trusted: reading one runs no code.

Comes from:  ``spooler/arguments.py``, for jobs of uWSGI's decorators; ``backends/sql``, for results of
             an older Celery.
Goes to:     their values.
Thread:      any; stateless.

Time and memory are proportional to the length of a pickle. For that they are read by the unpickler in Python,
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
MAX_KEY = 1000
"""Maximum number of members, at any depth, of a tuple that is hashed."""
MAX_REPEATED = 1_000_000
"""Maximum number of members, at any depth, of a value, where one that occurs again counts again; a longer
pickle may have as many as it has bytes."""


class RefusedPickle(ValueError):
    """It could run code, or take much memory or time."""


class _Operations(dict[int, Callable[[Any], None]]):
    """Refuses all others."""

    def __missing__(self, code: int) -> Any:
        import pickletools  # not in every process that reads results

        names = {operation.code: operation.name for operation in pickletools.opcodes}
        raise RefusedPickle(f"it has the operation {names.get(chr(code), code)}")


class _Unpickler(pickle._Unpickler):
    stack: list[Any]
    """The objects since the last mark."""

    def __init__(self, data: bytes, classes: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes
        self._room = 1000 + 2 * len(data)

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = "builtins" if module_name == "__builtin__" else module_name, global_name
        try:
            return self._classes[name]
        except KeyError:
            raise RefusedPickle(f"it names {safe_repr('.'.join(name), 100)}") from None

    def call(self) -> None:
        function, arguments = self.stack[-2:]
        # Each call may copy its arguments, which the pickle need not repeat.
        self._room -= sum(len(each) for each in arguments if isinstance(each, Sized))
        if self._room < 0 or (function is bytearray and isinstance(arguments[0], int)):
            raise RefusedPickle("it requests too much memory")
        for each in arguments if function in (set, frozenset, dict) else ():
            _check_keys((key for pair in each for key in pair[:1]) if function is dict else each)
        self.stack[-2:] = [function(*arguments)]

    def create(self) -> None:
        cls, arguments = self.stack[-2:]
        if cls is not UUID or arguments != ():
            raise RefusedPickle("it creates an object that is no UUID")
        self.stack[-2:] = [UUID(int=0)]

    def build(self) -> None:
        created, state = self.stack[-2:]
        if type(created) is not UUID:
            raise RefusedPickle("it sets the attributes of an object that is no UUID")
        object.__setattr__(created, "int", UUID(int=operator.index(state["int"])).int)
        self.stack.pop()

    def read_bytearray(self) -> None:
        _PLAIN[pickle.BINBYTES8[0]](self)
        self.stack[-1] = bytearray(self.stack[-1])


def _checked(operation: bytes, keys: slice) -> Callable[[_Unpickler], None]:
    """Return *operation*, which will hash *keys* of the stack."""

    def run(unpickler: _Unpickler) -> None:
        _check_keys(unpickler.stack[keys])
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


def load_plain(data: bytes, classes: Mapping[tuple[str, str], Any] = CLASSES) -> Any:
    """Return the value pickled in *data*, which may name *classes* only.

    Raises RefusedPickle for other contents, and any exception for damaged data.
    """
    value = _Unpickler(data, classes).load()
    _check(value, max(MAX_REPEATED, len(data)), (list, tuple, set, frozenset, dict))
    return value


def _check_keys(keys: Iterable[Any]) -> None:
    """Raise RefusedPickle if hashing one of *keys* could take long."""
    for key in keys:
        if type(key) is tuple:
            _check(key, MAX_KEY, (tuple,))


def _check(value: Any, most: int, containers: tuple[type[Collection[Any]], ...]) -> None:
    """Raise RefusedPickle if *value* has more than *most* members at any depth within *containers*, counting
    again those that occur again, or a member that is a class or function."""
    waiting = [value]
    while waiting:
        member = waiting.pop()
        if isinstance(member, containers):
            most -= len(member)
            if most < 0:
                raise RefusedPickle("it repeats its parts too often")
            waiting.extend(member)
            if isinstance(member, dict):
                waiting.extend(member.values())
        elif callable(member):
            raise RefusedPickle(f"it contains {safe_repr(member, 100)}")
