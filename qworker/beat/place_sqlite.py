"""Schedules in the embedded file: the connection for ``store_sql``.

Comes from:  ``stores.py``.
Goes to:     the file, through its own handle.
Thread:      any, one at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qworker.beat.store_sql import Pusher
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.transports.lease import Sender
from qworker.transports.sql.embedded import Database, Handle
from qworker.transports.sql.embedded.sender import SQLiteSender

T = TypeVar("T")


class SQLitePlace:
    """The embedded file, or a similar one."""

    dialect = "sqlite"

    def __init__(self, database: Database) -> None:
        self._database = database
        # A power failure may lose the last slots together with their messages, which are then called again.
        self._handle = Handle(database, "NORMAL")

    def transact(self, work: Callable[[Any], T]) -> T:
        return self._explained(lambda: self._handle.transact(work))

    def read(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self._explained(lambda: self._handle.read(query.replace("%s", "?"), values))

    def _explained(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (BrokerUnavailable, ConfigurationError, sqlite3.Error) as error:
            reraise_interrupt(error)
            raise BackendError(f"the schedule store: {error}") from error

    def pusher(self, sender: Sender) -> Pusher | None:
        if not isinstance(sender, SQLiteSender) or sender.path != self._database.path:
            return None
        return lambda session, envelopes: sender.insert(session.connection, envelopes)

    def pushed(self, sender: Sender) -> None:
        if isinstance(sender, SQLiteSender):
            sender.notify()

    def close(self) -> None:
        self._handle.close()
