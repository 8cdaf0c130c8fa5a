"""A result as the columns of a row in Celery's table, and back.

Comes from:  ``backend.py``, with metadata or a row.
Goes to:     the serializer of the result store, which signs values with a security_key.
Thread:      any.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from qworker import states
from qworker.backends.base import About, Backend, Found, Meta, refuse_too_large
from qworker.backends.sql.tables import EXTENDED
from qworker.errors import DamagedResult
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import storable
from qworker.transports.sql.result_rows import key_of


class Columns:
    """Converts results. extended: include EXTENDED and stamps. serializer: the name of *backend*'s."""

    def __init__(self, backend: Backend, extended: bool, serializer: str) -> None:
        self._backend = backend
        self._extended = extended
        self._serializer = serializer

    def of(self, task_id: str, meta: Meta) -> dict[str, Any]:
        """Return the columns of a row, as plain values, without accessing the database. Raises EncodeError
        like Backend.encode()."""
        key = key_of(task_id)
        result = self._backend.encode_value(meta.get("result"), None, ("result", key, meta["status"]))
        refuse_too_large(result, self._backend.max_bytes)
        row = {
            "status": meta["status"],
            "result": result,
            "traceback": _text(meta.get("traceback")),
            "children": self._column("children", key, meta.get("children") or None),
            "date_done": meta.get("date_done"),
        }
        for name in EXTENDED if self._extended else ():
            value = meta.get(name)
            row[name] = self._column(name, key, value) if name in ("args", "kwargs") else _text(value)
        if self._extended and (names := meta.get("stamped_headers")):
            stamps = {name: meta[name] for name in names if name in meta}
            row["stamps"] = self._column("stamps", key, {"stamped_headers": names, "stamps": stamps})
        return row

    def _column(self, name: str, key: str, value: Any) -> bytes | None:
        return None if value is None else self._backend.encode_value(value, None, (name, key))

    def found(self, row: Mapping[str, Any], task_id: str) -> Found | None:
        """Return the metadata in *row* of *task_id*, or why it cannot be read; None when it has expired."""
        try:
            return self._meta(row, task_id)
        except DamagedResult as error:
            return error
        except Exception as error:  # noqa: BLE001
            # Some databases accept values of the wrong type.
            reraise_interrupt(error)
            return self._backend.damaged(task_id, f"cannot be read: {error}")

    def _meta(self, row: Mapping[str, Any], task_id: str) -> Meta | None:
        done = row["date_done"]
        if done is not None:
            done = done.replace(tzinfo=UTC)
            if (
                self._backend.expires is not None
                and done.timestamp() + self._backend.expires <= self._backend.clock.now()
            ):
                return None
        key, status = row["task_id"], row["status"] or states.PENDING
        if not isinstance(status, str):
            raise TypeError(f"its status is {status!r:.80}")
        meta: Meta = {
            "task_id": task_id,
            "status": status,
            "result": self.value(row["result"], ("result", key, status), task_id),
            "traceback": row["traceback"],
            "children": self.value(row.get("children"), ("children", key), task_id) or [],
            "date_done": done.isoformat() if done is not None else None,
        }
        for name in EXTENDED:
            if name in row and (self._extended or row[name] is not None):
                value = row[name]
                called = name in ("args", "kwargs")
                meta[name] = self.value(value, (name, key), task_id) if called else value
        stamps = self.value(row.get("stamps"), ("stamps", key), task_id)
        if isinstance(stamps, dict) and isinstance(stamps.get("stamps"), dict):
            meta = {**stamps["stamps"], **meta, "stamped_headers": stamps.get("stamped_headers")}
        return meta

    def value(self, data: Any, about: About, task_id: str | None = None) -> Any:
        """Return the value in a column: serialised by qworker or Celery 5.7, or pickled by an older Celery.
        Raises DamagedResult."""
        if data is None:
            if not self._backend.signs or about[0] != "result":
                return None
            data = b""  # so that the missing signature is reported
        payload = data.encode() if isinstance(data, str) else bytes(data)
        if is_pickle(payload) and self._serializer != "pickle" and not self._backend.signs:
            return load_plain(payload, self._backend.called(task_id), task_id)
        return self._backend.decode_value(payload, about, task_id)


def _text(value: Any) -> Any:
    """Return *value* in the form of a text column."""
    return storable(value) if type(value) is str else value


# -- results pickled by an older Celery: only plain data is accepted --


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replaces ``_codecs.encode``, which builds bytes in pickles of protocol 2."""
    return text.encode("latin1")


def _described(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the tuple format of a pickled AsyncResult or GroupResult."""
    if name == "GroupResult":
        group_id, children = arguments[:2]
        return [[group_id, arguments[2] if len(arguments) > 2 else None], children]
    if name == "AsyncResult":
        return [[arguments[0], arguments[4] if len(arguments) > 4 else None], None]
    raise pickle.UnpicklingError(f"it holds a {name}")


def _no_backend(*arguments: Any) -> None:
    """Replaces the function that opens the store of a pickled result."""


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
    """Tell whether *payload* begins like a pickle of protocol 2 or later, and not like JSON, YAML or text."""
    return payload[:1] == b"\x80"


def load_plain(payload: bytes, called: str, task_id: str | None = None) -> Any:
    """Return the plain value pickled in *payload*. Raises DamagedResult for any other content.

    called: the name of the stored data in errors; task_id: its owner.
    """
    try:
        return _PlainUnpickler(io.BytesIO(payload)).load()
    except Exception as error:  # noqa: BLE001 - damaged pickles may raise anything
        raise DamagedResult(
            f"{called} was pickled by Celery 5.6 or before, and only plain data is read from a pickle; "
            f"{error}. Read it with that Celery, or delete the row",
            task_id,
        ) from None
