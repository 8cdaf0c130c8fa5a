"""Pickles of plain data from sources that are not trusted: reading one runs no code.

Comes from:  ``spooler/arguments.py``, for jobs of uWSGI's decorators; ``backends/sql``, for results of
             an older Celery.
Goes to:     their values.
Thread:      any; stateless.
"""

from __future__ import annotations

import datetime
import decimal
import io
import pickle
from collections.abc import Collection, Mapping
from typing import Any

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
    "BININT1", "BININT2", "BINPUT", "BINUNICODE", "BINUNICODE8", "DICT", "DUP", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE", "FLOAT", "FRAME", "FROZENSET", "GET", "GLOBAL", "INT",
    "LIST", "LONG", "LONG1", "LONG4", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE",
    "NEWTRUE", "NONE", "POP", "POP_MARK", "PROTO", "PUT", "REDUCE", "SETITEM", "SETITEMS",
    "SHORT_BINBYTES", "SHORT_BINUNICODE", "STACK_GLOBAL", "STOP", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "UNICODE",
))
# fmt: on
"""The allowed operations. Others create objects of other classes, or load them from elsewhere."""
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class RefusedPickle(ValueError):
    """It could run code, or take much memory."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, classes: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = "builtins" if module_name == "__builtin__" else module_name, global_name
        try:
            return self._classes[name]
        except KeyError:
            raise RefusedPickle(f"it names {safe_repr('.'.join(name), 100)}") from None


def load_plain(
    data: bytes,
    classes: Mapping[tuple[str, str], Any] = CLASSES,
    operations: Collection[str] = OPERATIONS,
) -> Any:
    """Return the value pickled in *data*, which may name *classes* and have *operations* only.

    Raises RefusedPickle for other contents, and any exception for damaged data.
    """
    import pickletools  # not in every process that reads results

    for operation, argument, _ in pickletools.genops(data):
        if operation.name not in operations:
            raise RefusedPickle(f"it has the operation {operation.name}")
        # A number may not exceed that of the operations: memory for as many objects would be allocated.
        if operation.name in _PUTS and not 0 <= int(str(argument)) <= len(data):
            raise RefusedPickle("it requests too much memory")
    return _Unpickler(data, classes).load()
