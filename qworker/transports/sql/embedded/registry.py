"""The registry of the embedded broker.

Comes from:  ``broker.py``.
Goes to:     the table ``key_value``, under keys of its own.
Thread:      any, with the publishing connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qworker.transports.registry import Registry
from qworker.transports.sql.embedded.handle import Handle

PREFIX = "registry:"
"""Prefix of keys. The expiry is in the value: rows with ``expires`` are deleted by sweep()."""
AFTER = "registry;"
"""The first text that sorts after all keys with the prefix."""


class SQLiteRegistry(Registry):
    """handle: the connection that publishes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def entries(self) -> dict[str, float | None]:
        rows = self._handle.read(
            "SELECT CAST(key AS TEXT), CAST(value AS REAL) FROM key_value WHERE key >= ? AND key < ?",
            (PREFIX, AFTER),
        )
        return {key.removeprefix(PREFIX): expires or None for key, expires in rows}

    def put(self, entries: Mapping[str, float | None]) -> None:
        rows = [(PREFIX + entry, repr(expires or 0.0)) for entry, expires in entries.items()]
        if rows:
            self._handle.write(
                lambda connection: connection.executemany(
                    "INSERT OR REPLACE INTO key_value (key, value) VALUES (?, ?)", rows
                )
            )

    def drop(self, entries: Iterable[str]) -> None:
        rows = [(PREFIX + entry,) for entry in entries]
        if rows:
            self._handle.write(
                lambda connection: connection.executemany("DELETE FROM key_value WHERE key = ?", rows)
            )
