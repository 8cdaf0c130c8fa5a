"""Result stores that map keys to bytes, under Celery's keys.

Comes from:  ``memory.py`` and ``filesystem.py``, which implement reading, writing and locking of one key.
Goes to:     the Backend contract.
Thread:      any.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from qworker import states
from qworker.backends.base import Backend, Meta
from qworker.backends.joins import Joins
from qworker.backends.keyvalue.joins import KeyValueJoins
from qworker.backends.keyvalue.keys import GROUP_PREFIX, LOCK_PREFIX, TASK_PREFIX
from qworker.transports.lease import ResultRow


class KeyValueBackend(Backend):
    """A Backend based on locked(), read(), write(), remove() and list()."""

    @abstractmethod
    def locked(self, key: str) -> AbstractContextManager[Any]:
        """Lock *key* against all other threads and processes that share the store."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the value of *key*; None if it is missing or has expired."""

    @abstractmethod
    def write(self, key: str, value: bytes, ttl: float | None) -> None:
        """Set *key* for *ttl* seconds (None: forever), atomically for readers."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete *key*, if it exists."""

    @abstractmethod
    def list(self, prefix: str) -> Iterable[str]:
        """Return the keys that begin with *prefix*, used for joins. Some may have been deleted meanwhile."""

    @property
    def joins(self) -> Joins:
        return KeyValueJoins(self, self.clock) if self.supports_locks else super().joins

    def store(self, task_id: str, meta: Meta) -> bool:
        return self._store(task_id, meta["status"], self.codec.encode(meta), self.expires)

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        now = self.clock.now()
        for task_id, status, payload, expires in rows:
            self._store(task_id, status, payload, self.expires if expires is None else expires - now)

    def _store(self, task_id: str, status: str, data: bytes, ttl: float | None) -> bool:
        key = TASK_PREFIX + task_id
        with self.locked(key):
            old = self.read(key)
            if old is not None and not states.may_replace(self.codec.status_of(old), status):
                return False
            self.write(key, data, ttl)
        return True

    def get(self, task_id: str) -> Meta | None:
        data = self.read(TASK_PREFIX + task_id)
        return None if data is None else self.codec.decode(data, task_id)

    def forget(self, task_id: str) -> None:
        self.delete_key(TASK_PREFIX + task_id)

    def add(self, key: str, ttl: float | None = None) -> bool:
        name = LOCK_PREFIX + key
        with self.locked(name):
            if self.read(name) is not None:
                return False
            self.write(name, b"1", ttl)
        return True

    def incr(self, key: str, ttl: float | None = None) -> int:
        name = LOCK_PREFIX + key
        with self.locked(name):
            value = int(self.read(name) or 0) + 1
            self.write(name, b"%d" % value, ttl)
        return value

    def delete(self, key: str) -> None:
        self.delete_key(LOCK_PREFIX + key)

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        key = GROUP_PREFIX + group_id
        data = self.codec.encode_value({"result": result}, ("group", group_id))
        with self.locked(key):
            self.write(key, data, None if self.expires is None else self.expires + kept)

    def get_group(self, group_id: str) -> Any:
        data = self.read(GROUP_PREFIX + group_id)
        return None if data is None else self.codec.decode_value(data, ("group", group_id))["result"]

    def delete_group(self, group_id: str) -> None:
        self.delete_key(GROUP_PREFIX + group_id)

    def delete_key(self, key: str) -> None:
        """Delete *key* while holding its lock."""
        with self.locked(key):
            self.remove(key)
