"""Publishing to the embedded broker, and revoking tasks.

Comes from:  any thread, by ``Broker.sender``; ``backends/sql/joins.py``, in a transaction of its own.
Goes to:     the tables ``message`` and ``revoked``; the notification pipes of waiting consumers.
Thread:      any, in turn; callers that wait together share one commit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.process.crash_points import crash_point
from qworker.process.group_commit import GroupCommit
from qworker.transports.lease import Envelope, Revoking, Sender
from qworker.transports.sql.embedded import (
    DELAYED,
    NEXT_NUMBER,
    NEXT_TAG,
    READY,
    Handle,
    Notifier,
    transaction,
    write,
)
from qworker.transports.sql.embedded.database import BUSY_SECONDS, create_tables

INSERT = f"""INSERT INTO message (tag, queue, priority, due, state, sent, headers, properties, body)
VALUES ({NEXT_TAG}, ?, ?, ?, ?, ?, ?, ?, ?)"""
REVOKE = f"""INSERT INTO revoked (seq, task_id, terminate, signal, expires)
VALUES ({NEXT_NUMBER.format(table="revoked")}, ?, ?, ?, ?)"""

NOTHING = nullcontext()

T = TypeVar("T")


class SQLiteSender(Sender, Revoking):
    """handle: the connection that publishes. messages, revocations: notify waiting consumers. path: of the
    file. revoke_expires: seconds for which a revocation is valid."""

    def __init__(
        self,
        handle: Handle,
        messages: Notifier,
        revocations: Notifier,
        path: Path,
        clock: Clock,
        revoke_expires: float,
    ) -> None:
        self.path = path
        self._handle = handle
        self._messages = messages
        self._revocations = revocations
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._commits = GroupCommit(handle, self._store, str(path))

    def after_fork(self) -> None:
        """In a forked child: pending messages belong to the parent."""
        self._commits.forget()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self._commits.push(envelopes, timeout)

    def insert(self, connection: sqlite3.Connection, envelopes: Sequence[Envelope]) -> None:
        """Publish *envelopes* within the current transaction of *connection*, which is to our file. Call
        notify() after the commit."""
        insert(connection, envelopes, self._clock.now())

    def notify(self) -> None:
        """Notify all waiting consumers."""
        self._messages.notify()

    def join(self, connection: Any) -> Sender:
        return JoinedSender(self, _driver_connection(connection, self.path), connection)

    def _store(self, envelopes: Sequence[Envelope], deadline: float) -> Exception | None:
        """Store *envelopes* in one transaction; return the error if nothing was stored, else None."""
        rows = _rows(envelopes, self._clock.now())

        def work(connection: sqlite3.Connection) -> None:
            crash_point("publishing")
            if len(rows) == 1:
                write(connection, INSERT, rows[0], deadline - time.monotonic())
            else:
                with transaction(connection, deadline - time.monotonic()):
                    connection.executemany(INSERT, rows)

        try:
            self._handle.use(work)
        except Exception as error:  # noqa: BLE001 - it is returned to the caller
            return error
        crash_point("published")
        if any(envelope.due is not None for envelope in envelopes):
            self.notify()  # all have to know when it is due
        else:
            self._messages.notify_one({envelope.queue for envelope in envelopes})
        return None

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        now = self._clock.now()
        number, until = int(now * 1_000_000), now + self._revoke_expires
        rows = [(number, task_id, terminate, signal, until) for task_id in ids]
        self._handle.write(lambda connection: connection.executemany(REVOKE, rows))
        self._revocations.notify()
        self._revocations.close()  # revocations are rare, and workers may be many


def insert(connection: sqlite3.Connection, envelopes: Sequence[Envelope], now: float) -> None:
    """Store *envelopes* in the tables of the broker of *connection*, without notification. now: epoch
    seconds."""
    connection.executemany(INSERT, _rows(envelopes, now))


def _rows(envelopes: Sequence[Envelope], now: float) -> list[tuple[Any, ...]]:
    """Return the arguments of INSERT for *envelopes*."""
    return [
        (
            queue,
            priority,
            due,
            READY if due is None or due <= now else DELAYED,
            now,
            headers,
            properties,
            body,
        )
        for queue, headers, properties, body, priority, due, _ in envelopes
    ]


class JoinedSender(Sender):
    """Publishes through *connection*, in its current transaction. The sender's notify() wakes consumers after
    the commit.

    given: the caller's connection, which wraps *connection*.
    """

    def __init__(self, sender: SQLiteSender, connection: sqlite3.Connection, given: Any) -> None:
        self.path = sender.path
        self._sender = sender
        self._connection = connection
        self._given = given

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Insert *envelopes*. An error is the driver's own, or Django's, since the caller's transaction has
        failed with it."""
        self.write(
            lambda connection: self._sender.insert(connection, envelopes), len(envelopes) == 1, timeout
        )

    def write(
        self, work: Callable[[sqlite3.Connection], T], is_one: bool = False, timeout: float = BUSY_SECONDS
    ) -> T:
        """Return *work* applied to the connection: in its transaction, or one that the driver begins by
        itself; else in a new one, unless the work is one statement (*is_one*)."""
        with getattr(self._given, "wrap_database_errors", NOTHING):
            if is_one or self._connection.in_transaction or _begins_by_itself(self._connection):
                return self._with_tables(work)
            with transaction(self._connection, timeout):
                return self._with_tables(work)

    def _with_tables(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return *work* applied to the connection; create the tables first, in the same transaction, if no
        worker and no other publisher has opened the file before."""
        try:
            return work(self._connection)
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
        create_tables(self._connection)
        return work(self._connection)


def _begins_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether the driver begins a transaction, which the caller will end, before a statement that writes."""
    legacy: Any = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)
    autocommit = getattr(connection, "autocommit", legacy)
    return connection.isolation_level is not None if autocommit == legacy else not autocommit


def _driver_connection(connection: Any, path: Path) -> sqlite3.Connection:
    """Return the driver's connection of a connection of sqlite3, Django or SQLAlchemy, to the file at *path*.
    Raises ConfigurationError for any other."""
    if hasattr(connection, "ensure_connection"):  # Django's
        connection.ensure_connection()
    found = connection
    for _ in range(4):
        if isinstance(found, sqlite3.Connection):
            break
        following = getattr(found, "driver_connection", None) or getattr(found, "connection", None)
        found = following() if callable(following) and not hasattr(following, "cursor") else following
    if not isinstance(found, sqlite3.Connection):
        raise ConfigurationError(
            "publishing_in needs a connection to the broker's own database, which is the SQLite file "
            f"{path}; not {type(connection).__module__}.{type(connection).__qualname__}",
            setting="broker_url",
        )
    files = [file for _, name, file in found.execute("PRAGMA database_list") if name == "main"]
    if not files or not files[0] or not os.path.samefile(files[0], path):
        found = "".join(files[:1]) or "a database without a file"
        raise ConfigurationError(
            f"publishing_in needs a connection to {path}; this one is to {found}",
            setting="broker_url",
        )
    return found
