"""Schedules in a database that is a server: how ``store_sql`` comes to it.

Comes from:  ``stores.py``.
Goes to:     the database, by SQLAlchemy.
Thread:      any; SQLAlchemy's pool gives each its connection, and a forked child a pool of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy import exc as sa_errors

from qworker.backends.sql_joins import BEGIN, SQLSession
from qworker.backends.sql_tables import connect
from qworker.beat.store import LEASE_SECONDS
from qworker.beat.store_sql import Pusher
from qworker.clock import Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import BackendError, ConfigurationError
from qworker.interrupts import apart
from qworker.transports.connect_errors import MYSQL, POSTGRESQL, explained
from qworker.transports.lease import Sender
from qworker.transports.sql.refusals import passing
from qworker.transports.sql.result_rows import place_of
from qworker.transports.sql.sender import SQLSender

T = TypeVar("T")

TRIES = 3
"""How often a transaction is tried when the connection was lost, or another one was in the way."""
FAMILIES = {"mariadb": "mysql"}
_IDLE_MILLISECONDS = round(LEASE_SECONDS * 1000)
PATIENCE = {
    "postgresql": f"SET idle_in_transaction_session_timeout = {_IDLE_MILLISECONDS}",
    "mysql": f"SET SESSION wait_timeout = {-(-_IDLE_MILLISECONDS // 1000)}",
}
"""What each connection is told, by dialect: who falls silent in the midst of a transaction holds the row of
the lease, and nobody else could lead before the server has noticed that, which may take hours."""


class ServerSession(SQLSession):
    """As any, but on PostgreSQL many rows are no executemany(): psycopg would begin a pipeline, and who falls
    silent in the midst of one is busy to PostgreSQL, and not idle."""

    def do_many(self, statement: str, rows: Sequence[Any]) -> None:
        if self.connection.dialect.name != "postgresql":
            super().do_many(statement, rows)
            return
        for row in rows:
            self.do(statement, row)


class ServerPlace:
    """A database at *url*, as SQLAlchemy writes it, with ``db+`` before it or without."""

    def __init__(self, url: str, clock: Clock, options: dict[str, Any] | None = None) -> None:
        self._url = url
        self._clock = clock
        self._engine = connect(url, dict(options or {}), short_lived=False)
        self._pid = os.getpid()
        name = self._engine.dialect.name
        self.dialect = FAMILIES.get(name, name)
        if name not in BEGIN:
            raise ConfigurationError(
                f"schedules cannot be kept by {name}: PostgreSQL, MySQL, MariaDB, SQLite and Redis can"
            )
        event.listen(self._engine, "connect", self._tell)

    def _tell(self, connection: Any, _: Any) -> None:
        if self.dialect in PATIENCE:
            with connection.cursor() as cursor:
                cursor.execute(PATIENCE[self.dialect])

    def transact(self, work: Callable[[Any], T]) -> T:
        return apart(lambda: self._try(lambda session: session.transact(work)))

    def read(self, work: Callable[[Any], T]) -> T:
        return apart(lambda: self._try(work))

    def _try(self, work: Callable[[SQLSession], T]) -> T:
        if self._pid != os.getpid():
            self._engine.dispose(close=False)  # the connections are the parent's
            self._pid = os.getpid()
        for attempt in range(1, TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    return work(ServerSession(connection))
            except sa_errors.DBAPIError as error:
                if attempt == TRIES or not (error.connection_invalidated or passing(error.orig)):
                    spelling = POSTGRESQL if self.dialect == "postgresql" else MYSQL
                    text = explained(str(error.orig), spelling)
                    raise BackendError(f"the schedule store {mask_urls(self._url)}: {text}") from error
                self._clock.sleep(0.02 * attempt)
            except sa_errors.SQLAlchemyError as error:
                raise BackendError(f"the schedule store {mask_urls(self._url)}: {error}") from error
        raise AssertionError("unreachable: the last try returns or raises")

    def pusher(self, sender: Sender) -> Pusher | None:
        place = place_of(self._url)
        if not isinstance(sender, SQLSender) or place is None or place != place_of(sender.url):
            return None
        return lambda session, envelopes: sender.join(session.connection).push(envelopes)

    def pushed(self, sender: Sender) -> None:
        if isinstance(sender, SQLSender):
            sender.notify()

    def close(self) -> None:
        self._engine.dispose(close=self._pid == os.getpid())
