"""Publishing within the caller's own transaction: the message is there exactly if the caller's data is.

Comes from:  ``app.publishing_in(connection)``, by ``SQLSender.join()``.
Goes to:     ``qworker_message``, by the caller's connection: of SQLAlchemy, Django, or the driver itself.
Thread:      the caller's; its connection is neither committed nor rolled back here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qworker.errors import ConfigurationError
from qworker.transports.lease import Envelope, Sender
from qworker.transports.sql.link import MessageRow
from qworker.transports.sql.schema import NEW_COLUMNS

PORTION = 500
"""Rows of one statement."""
_PLACES = "(%s, %s, %s, %s, %s, %s, %s, %s)"
_DRIVERS = {"psycopg": "postgresql", "psycopg2": "postgresql", "pymysql": "mysql", "MySQLdb": "mysql"}

Execute = Callable[[str, tuple[Any, ...]], Any]


class TransactionalSender(Sender):
    """What ``publishing_in`` publishes to. table: of the messages. channel: of PostgreSQL's notifications, ''
    elsewhere: a worker that waits finds the message at its next look, since a notification would make other
    publishers wait for this transaction. url: of the database. execute: carries out a statement in the
    transaction."""

    def __init__(
        self,
        execute: Execute,
        table: str,
        channel: str,
        rows_of: Callable[[Sequence[Envelope]], list[MessageRow]],
        url: str,
    ) -> None:
        self.url = url
        self.execute = execute
        self._table = table
        self._channel = channel
        self._rows_of = rows_of

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Insert *envelopes*. An error is the driver's own, since the caller's transaction has failed with
        it."""
        rows = self._rows_of(envelopes)
        for start in range(0, len(rows), PORTION):
            portion = rows[start : start + PORTION]
            values = tuple(value for row in portion for value in row)
            places = ", ".join([_PLACES] * len(portion))
            self.execute(f"INSERT INTO {self._table} ({NEW_COLUMNS}) VALUES {places}", values)
        if self._channel and rows:
            self.execute("SELECT pg_notify(%s, '')", (self._channel,))


def executor(connection: Any, family: str) -> Execute:
    """What executes statements on *connection*: a Session or Connection of SQLAlchemy, a connection of
    Django, or one of psycopg, psycopg2, PyMySQL or mysqlclient.

    Raises ConfigurationError for anything else, and for a database of another family than *family*.
    """
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise ConfigurationError(
            "publishing_in takes the synchronous session: await session.run_sync(publish), where "
            "publish(session) calls "
            "publishing_in(session)"
        )
    if callable(getattr(connection, "connection", None)) and hasattr(connection, "get_bind"):
        connection = connection.connection()  # a Session's
    if hasattr(connection, "exec_driver_sql"):
        _check(connection.dialect.name, family)
        execute: Execute = connection.exec_driver_sql
        return execute
    driver = type(connection).__module__.partition(".")[0]
    if not hasattr(connection, "cursor") or (driver not in _DRIVERS and not hasattr(connection, "vendor")):
        raise ConfigurationError(
            "publishing_in takes a Session or Connection of SQLAlchemy, django.db.connection, or a "
            "connection of "
            f"{', '.join(_DRIVERS)}; not {type(connection).__module__}.{type(connection).__qualname__}"
        )
    _check(getattr(connection, "vendor", None) or _DRIVERS[driver], family)

    def execute_plainly(statement: str, values: tuple[Any, ...]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)

    return execute_plainly


def _check(dialect: str, family: str) -> None:
    found = {"mariadb": "mysql"}.get(dialect, dialect)
    if found != family:
        raise ConfigurationError(
            f"the connection given to publishing_in is one to {dialect}, and the broker is {family}: they "
            "must be the "
            "same database",
            setting="broker_url",
        )
