"""A result as the fields of a document in Celery's layout, and back.

Comes from:  ``mongodb.py``, with metadata or a document.
Goes to:     the serializer of the result store, which signs values where there is a security_key.
Thread:      any.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from qworker.backends.base import About, Backend, Found, Meta, refuse_too_large
from qworker.clock import parse_iso
from qworker.errors import DamagedResult, EncodeError
from qworker.interrupts import let_pass
from qworker.message.kombu_json import loads
from qworker.message.serialization import encode_json
from qworker.safe_repr import storable
from qworker.transports.mongodb.layout import Document
from qworker.transports.mongodb.server import epoch_of, storable_value

_OWN = frozenset({"_id", "expires", "task_id", "status", "result", "traceback", "children", "date_done"})


class Fields:
    """serializer: the name of *backend*'s own."""

    def __init__(self, backend: Backend, serializer: str) -> None:
        self._backend = backend
        self._serializer = serializer

    def of(self, task_id: str, meta: Meta) -> Document:
        """The fields of *meta* as they are stored. Raises EncodeError."""
        status, done, traceback = meta["status"], meta.get("date_done"), meta.get("traceback")
        data = self._backend.encode_value(meta.get("result"), None, ("result", task_id, status))
        refuse_too_large(data, self._backend.max_bytes)
        return {
            "status": status,
            "result": self.text(data),
            "traceback": storable(traceback) if isinstance(traceback, str) else None,
            "children": self._plain("children", task_id, meta.get("children") or []),
            "date_done": None if done is None else parse_iso(done),
            **{
                name: self._plain(name, task_id, value)
                for name, value in meta.items()
                if name not in _OWN and "\0" not in name
            },
        }

    def text(self, data: bytes) -> str | bytes:
        """What was serialised, as Celery stores it: as text where it is text."""
        if self._serializer in ("json", "yaml") and not data.startswith(b"\0"):
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        return data

    def _plain(self, name: str, task_id: str, value: Any) -> Any:
        """*value* as values of MongoDB's, as Celery stores it; what is signed, or none of them, as bytes."""
        if value is None or (isinstance(value, str) and storable_value(value)):
            return value
        if not self._backend.signs:
            try:
                plain = json.loads(encode_json(value, {name: value}))
            except (EncodeError, ValueError, RecursionError):
                pass
            else:
                if storable_value(plain):
                    return plain
        return self._backend.encode_value(value, None, (name, task_id))

    def _value(self, stored: Any, about: About, task_id: str) -> Any:
        """Undo _plain()."""
        if isinstance(stored, bytes):
            return self._backend.decode_value(stored, about, task_id)
        if not isinstance(stored, dict | list):
            return stored
        if self._backend.signs:
            raise self._backend.damaged(task_id, f"is refused: its {about[0]} are not signed")
        return loads(json.dumps(stored, default=str))

    def found(self, stored: Document) -> Found | None:
        """The metadata in a document, or why it cannot be read; None when it has expired."""
        task_id = str(stored["_id"])
        try:
            return self._meta(stored, task_id)
        except DamagedResult as error:
            return error
        except Exception as error:  # noqa: BLE001 - a field that is not what it should be
            let_pass(error)
            return self._backend.damaged(task_id, f"cannot be read: {error}")

    def _meta(self, stored: Document, task_id: str) -> Meta | None:
        done = stored.get("date_done")
        moment = epoch_of(done) if isinstance(done, datetime) else None
        expires = stored.get("expires")
        if expires is None and moment is not None and self._backend.expires is not None:
            expires = moment + self._backend.expires
        if expires is not None and expires <= self._backend.clock.now():
            return None
        status = stored["status"]
        if not isinstance(status, str):
            raise TypeError(f"its status is {status!r:.80}")
        meta: Meta = {
            name: self._value(value, (name, task_id), task_id)
            for name, value in stored.items()
            if name not in _OWN
        }
        result, about = stored["result"], ("result", task_id, status)
        return meta | {
            "task_id": task_id,
            "status": status,
            "result": None
            if result is None and not self._backend.signs
            else self._backend.decode_value(result or b"", about, task_id),
            "traceback": stored.get("traceback"),
            "children": self._value(stored.get("children"), ("children", task_id), task_id) or [],
            "date_done": done.replace(tzinfo=UTC).isoformat() if isinstance(done, datetime) else None,
        }
