"""Publishing to a database, and revoking tasks.

Comes from:  ``publishing/publisher.py``, by ``SQLBroker.sender``.
Goes to:     ``qworker_message`` and ``qworker_revoked``; for ``publishing_in``, in the caller's transaction.
Thread:      any; they take turns at one connection, and those that wait together share one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.process.crash_points import crash_point
from qworker.process.group_commit import GroupCommit
from qworker.transports.lease import Envelope, Revoking, Sender
from qworker.transports.portions import portions
from qworker.transports.sql.link import Handle, Link, MessageRow
from qworker.transports.sql.schema import DELAYED, NEW_COLUMNS, NEXT_NUMBER, READY

REVOKE = (
    "INSERT INTO qworker_revoked (seq, task_id, terminate, signal_name, expires) VALUES (%s, %s, %s, %s, %s)"
)


class SQLSender(Sender, Revoking):
    """family: ``postgresql`` or ``mysql``. revoke_expires: seconds for which a revocation is valid. name: of
    the database, for messages; url: its address."""

    def __init__(
        self, handle: Handle, family: str, clock: Clock, revoke_expires: float, name: str, url: str
    ) -> None:
        self.url = url
        self._handle = handle
        self._family = family
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._commits = GroupCommit(handle, self._store, name)
        self._found: tuple[str, str] | None = None  # any thread would find the same

    def after_fork(self) -> None:
        """In a forked child: pending messages belong to the parent's threads."""
        self._commits.forget()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if envelopes:
            self._commits.push(self._rows(envelopes), timeout)

    def _rows(self, envelopes: Sequence[Envelope]) -> list[MessageRow]:
        """Return the rows for *envelopes*."""
        now = self._clock.now()
        return [
            (
                message.queue,
                -message.priority,
                message.due,
                DELAYED if message.due is not None and message.due > now else READY,
                now,
                message.headers,
                message.properties,
                message.body,
            )
            for message in envelopes
        ]

    def _store(self, rows: Sequence[MessageRow], deadline: float) -> Exception | None:
        """Store *rows* in one transaction; return the error if nothing was stored, else None."""

        def work(link: Link) -> None:
            with link.within(deadline):
                link.insert(rows)

        try:
            crash_point("publishing")
            self._handle.run_at_rest(work)
        except Exception as error:  # noqa: BLE001 - it is returned to the caller
            return error
        crash_point("published")
        return None

    def join(self, connection: Any) -> Sender:
        execute = executor(connection, self._family)
        return TransactionalSender(execute, *self._table_and_channel(), self._rows, self.url)

    def _table_and_channel(self) -> tuple[str, str]:
        """Return what Link.table_and_channel() does on our connection, which may differ from the caller's; it
        is asked once."""
        if self._found is None:
            self._found = self._handle.run_once(lambda link: link.table_and_channel())
        return self._found

    def push_in(self, link: Link, envelopes: Sequence[Envelope]) -> None:
        """push() within the transaction of *link*, which leads to the same database; see notify()."""
        table, channel = self._table_and_channel()
        if not envelopes:
            return
        link.add_messages(self._rows(envelopes), table)
        if channel:
            link.do(NOTIFY, (channel,))

    def notify(self) -> None:
        """Do nothing: join() and push_in() notify, or consumers poll."""

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._clock.now() + self._revoke_expires

        def work(link: Link) -> None:
            # One after another: a number that is committed after a higher one would never be seen.
            link.ask("SELECT version FROM qworker_schema WHERE id = 1 FOR UPDATE")
            first = int(link.ask(NEXT_NUMBER.format(table="qworker_revoked", column="seq"))[0][0])
            for number, task_id in enumerate(ids, first):
                link.do(REVOKE, (number, task_id, int(terminate), signal, until))
            link.notify()

        self._handle.transact(work)


# -- Publishing within the caller's own transaction: the message is stored if, and only if, its data is --
# Thread: the caller's; its connection is neither committed nor rolled back here.

PORTION = 500
"""Maximum rows of one statement."""
NOTIFY = "SELECT pg_notify(%s, '')"
"""Notifies all waiting consumers: to choose one, the user would need to read ``qworker_owner``, and here only
needs to insert messages."""
_PLACES = "(%s, %s, %s, %s, %s, %s, %s, %s)"
_DRIVERS = {"psycopg": "postgresql", "psycopg2": "postgresql", "pymysql": "mysql", "MySQLdb": "mysql"}

Execute = Callable[[str, tuple[Any, ...]], Any]


class TransactionalSender(Sender):
    """The sender of ``publishing_in``. table: of the messages. channel: of PostgreSQL's notifications; ''
    elsewhere. url: of the database. execute: carries out a statement in the
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
        for portion in portions(rows, PORTION):
            values = tuple(value for row in portion for value in row)
            places = ", ".join([_PLACES] * len(portion))
            self.execute(f"INSERT INTO {self._table} ({NEW_COLUMNS}) VALUES {places}", values)
        if self._channel and rows:
            self.execute(NOTIFY, (self._channel,))


def executor(connection: Any, family: str) -> Execute:
    """Return a function that executes statements on *connection*: a Session or Connection of SQLAlchemy, a
    connection of Django, or one of psycopg, psycopg2, PyMySQL or mysqlclient.

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
