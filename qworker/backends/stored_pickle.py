"""Results that an older Celery has pickled: read when they are plain data, refused when they are not.

Comes from:  rows of Celery 5.6 and before, whose SQL result column was a pickle whatever the result
             serializer.
Goes to:     plain Python values; no class outside of a short list is ever looked up, so nothing stored can
             run.
Thread:      any; pure.
"""

from __future__ import annotations

import io
import pickle
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from qworker.errors import DamagedResult


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """What a pickle of protocol 2 asks of ``_codecs.encode``, to write bytes."""
    return text.encode("latin1")


def _described(name: str, arguments: tuple[Any, ...]) -> Any:
    """Of a result or a group of results that was pickled whole: the tuple that describes it."""
    if name == "GroupResult":
        group_id, children = arguments[:2]
        return [[group_id, arguments[2] if len(arguments) > 2 else None], children]
    if name == "AsyncResult":
        return [[arguments[0], arguments[4] if len(arguments) > 4 else None], None]
    raise pickle.UnpicklingError(f"it holds a {name}")


def _no_backend(*arguments: Any) -> None:
    """The store that a pickled result belonged to is not opened again."""


_PLAIN: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _latin1,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("celery.app.base", "_unpickle_appattr"): _described,
    ("celery.backends.base", "unpickle_backend"): _no_backend,
    ("celery.backends.database", "DatabaseBackend"): None,
    ("collections", "OrderedDict"): dict,
    ("datetime", "date"): date,
    ("datetime", "datetime"): datetime,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("decimal", "Decimal"): Decimal,
    ("uuid", "UUID"): UUID,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _PLAIN["builtins" if module == "__builtin__" else module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it holds an object of {module}.{name}") from None

    def persistent_load(self, reference: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def is_pickle(payload: bytes) -> bool:
    """Tell whether *payload* begins as every pickle of protocol 2 and up does, and no JSON, YAML or text
    can."""
    return payload[:1] == b"\x80"


def load_plain(payload: bytes, called: str, task_id: str | None = None) -> Any:
    """Return the plain value that is pickled in *payload*. Raises DamagedResult, saying what else it holds.

    called: what the error calls that which is stored; task_id: of whom it is.
    """
    try:
        return _PlainUnpickler(io.BytesIO(payload)).load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
        raise DamagedResult(
            f"{called} was pickled by Celery 5.6 or before, and only plain data is read from a pickle; "
            f"{error}. Read it with that Celery, or delete the row",
            task_id,
        ) from None
