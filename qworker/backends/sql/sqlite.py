"""Results in the single SQLite file, with the messages.

Comes from:  an embedded broker without result_backend, or ``result_backend = "sqlite:///path"``.
Goes to:     the tables ``result`` and ``key_value`` of ``embedded``; joins in ``joins.py``.
Thread:      any, one at a time: a process has one connection, which is not shared across a fork.

If the broker is the same file, the worker stores a result in the transaction of the ack; the child process
only makes the row. A waiting process has a notification pipe beside the file.
"""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from qworker import states
from qworker.backends.base import Backend, Found, Meta
from qworker.backends.keyvalue.keys import GROUP_PREFIX, LOCK_PREFIX
from qworker.backends.sql.joins import Publishing, SQLJoins, Write
from qworker.clock import Clock
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.transports.lease import Envelope, Part, ResultRow, Sender
from qworker.transports.sql.embedded import (
    UPSERT_RESULT,
    Database,
    FileSession,
    Handle,
    NotificationPipe,
    Notifier,
    database_path,
)
from qworker.transports.sql.embedded.join_rows import record
from qworker.transports.sql.embedded.sender import JoinedSender, SQLiteSender
from qworker.transports.sql.join_rows import JoinTables, Row, Session

T = TypeVar("T")

SELECT = "SELECT CAST(payload AS BLOB), CAST(expires AS REAL) FROM result WHERE task_id = ?"
SELECT_MANY = """SELECT task_id, CAST(payload AS BLOB), CAST(expires AS REAL) FROM result
WHERE task_id IN (SELECT value FROM json_each(?))"""
ADD = """
INSERT INTO key_value (key, value, expires) VALUES (?, '1', ?)
ON CONFLICT (key) DO UPDATE SET value = '1', expires = excluded.expires WHERE key_value.expires <= ?
"""
INCREMENT = """
INSERT INTO key_value (key, value, expires) VALUES (:key, '1', :expires)
ON CONFLICT (key) DO UPDATE SET expires = excluded.expires,
    value = CASE WHEN key_value.expires <= :now THEN '1' ELSE CAST(key_value.value AS INTEGER) + 1 END
RETURNING CAST(value AS INTEGER)
"""
HOLD = """INSERT INTO key_value (key, value, expires) VALUES (:key, :publication, :expires)
ON CONFLICT (key) DO UPDATE SET expires = CASE WHEN key_value.expires <= :now THEN excluded.expires
ELSE key_value.expires END, value = CASE WHEN key_value.expires <= :now THEN excluded.value
ELSE key_value.value END RETURNING CAST(value AS INTEGER)"""
SWEEP = (
    "DELETE FROM result WHERE task_id IN (SELECT task_id FROM result WHERE expires <= ? LIMIT 1000)",
    "DELETE FROM key_value WHERE key IN (SELECT key FROM key_value WHERE expires <= ? LIMIT 1000)",
)


class PipeSource:
    """A Source: each final state is announced in all pipes, without the id of the task."""

    announces_all = True

    def __init__(self, pipe: NotificationPipe) -> None:
        self._pipe = pipe
        weakref.finalize(self, pipe.close)  # also at exit, to remove the pipe's file

    def fileno(self) -> int:
        return self._pipe.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        pass

    def announced(self) -> Collection[str] | None:
        return None if self._pipe.clear() else ()

    def close(self) -> None:
        self._pipe.close()

    abandon = close


class FileJoinDatabase:
    """The JoinDatabase of ``joins.py`` in the file. handle: the connection to *database*."""

    tables = JoinTables("joins", "part", "")  # a writer locks the whole file
    keep = "ON CONFLICT DO NOTHING"
    skipping = ""

    def __init__(self, database: Database, handle: Handle, clock: Clock) -> None:
        self._database = database
        self._handle = handle
        self._clock = clock

    def are_there(self) -> bool:
        return True  # opening the file creates them

    def make(self) -> None:
        pass

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return as_backend_error(lambda: self._handle.read(statement.replace("%s", "?"), values))

    def transact(self, work: Callable[[Session], T]) -> T:
        return as_backend_error(lambda: self._handle.transact(work))

    def record(self, session: Session, parts: Sequence[Part]) -> None:
        assert isinstance(session, FileSession)
        record(session.connection, parts)

    def hold(self, body: str, publication: int, seconds: float) -> int:
        now = self._clock.now()
        key = f"qworker-body-{body}"
        values = {"key": key, "publication": str(publication), "expires": now + seconds, "now": now}
        return as_backend_error(
            lambda: self._handle.write(lambda connection: int(connection.execute(HOLD, values).fetchone()[0]))
        )

    def publishing(self, sender: Sender) -> Publishing | None:
        if not isinstance(sender, SQLiteSender) or sender.path != self._database.path:
            return None

        def write(session: Session, envelopes: Sequence[Envelope]) -> None:
            assert isinstance(session, FileSession)
            sender.insert(session.connection, envelopes)

        return Publishing(write, sender.notify)

    def within(self, sender: Sender) -> tuple[Write, JoinTables] | None:
        if not isinstance(sender, JoinedSender) or sender.path != self._database.path:
            return None
        return (lambda work: sender.write(lambda connection: work(FileSession(connection)))), self.tables


class SQLiteBackend(Backend):
    """Results in one SQLite file, opened on first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._database = Database(database_path(url), "NORMAL")
        self._handle = Handle(self._database)
        self._notifier = Notifier(self._database.pipes, "result")

    @property
    def joins(self) -> SQLJoins:
        return SQLJoins(FileJoinDatabase(self._database, self._handle, self.clock), self.clock)

    def _do(self, work: Callable[[], T]) -> T:
        return as_backend_error(work)

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._do(lambda: self._handle.read(statement, values))

    def same_store(self, store_url: str) -> bool:
        return store_url.startswith("sqlite:") and database_path(store_url) == self._database.path

    def store(self, task_id: str, meta: Meta) -> bool:
        return self._store([(task_id, meta["status"], self.codec.encode(meta), self.expiry())]) > 0

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        self._store(rows)

    def _store(self, rows: Sequence[ResultRow]) -> int:
        def work(connection: sqlite3.Connection) -> int:
            return connection.executemany(UPSERT_RESULT, rows).rowcount

        stored = self._do(lambda: self._handle.write(work))
        if stored and any(status in states.READY_STATES for _, status, _, _ in rows):
            self._notifier.notify()
        return stored

    def get(self, task_id: str) -> Meta | None:
        for payload, expires in self._read(SELECT, (task_id,)):
            if expires is None or expires > self.clock.now():
                return self.codec.decode(payload, task_id)
        return None

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        if len(ids) == 1:
            return super().read_many(ids)
        rows = self._read(SELECT_MANY, (json.dumps(list(ids)),))
        now = self.clock.now()
        return {row[0]: self.codec.found(row[1], row[0]) for row in rows if row[2] is None or row[2] > now}

    def forget(self, task_id: str) -> None:
        self._write("DELETE FROM result WHERE task_id = ?", (task_id,))

    def forget_many(self, ids: Iterable[str]) -> None:
        chosen = "SELECT value FROM json_each(?)"
        self._write(f"DELETE FROM result WHERE task_id IN ({chosen})", (json.dumps(list(ids)),))

    def open_source(self) -> PipeSource | None:
        self._do(lambda: self._handle.run(lambda connection: None))  # creates the file and its directory
        pipe = NotificationPipe(self._database.pipes, "result")
        return PipeSource(pipe) if pipe.fileno() >= 0 else None

    def add(self, key: str, ttl: float | None = None) -> bool:
        now = self.clock.now()
        return self._write(ADD, (LOCK_PREFIX + key, None if ttl is None else now + ttl, now)) > 0

    def incr(self, key: str, ttl: float | None = None) -> int:
        now = self.clock.now()
        values = {"key": LOCK_PREFIX + key, "expires": None if ttl is None else now + ttl, "now": now}

        def work(connection: sqlite3.Connection) -> int:
            return int(connection.execute(INCREMENT, values).fetchone()[0])

        return self._do(lambda: self._handle.write(work))

    def delete(self, key: str) -> None:
        self._write("DELETE FROM key_value WHERE key = ?", (LOCK_PREFIX + key,))

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        value = self.codec.encode_value({"result": result}, ("group", group_id))
        self._write(
            "INSERT OR REPLACE INTO key_value (key, value, expires) VALUES (?, ?, ?)",
            (GROUP_PREFIX + group_id, value, self.expiry(delay=kept)),
        )

    def get_group(self, group_id: str) -> Any:
        rows = self._read(
            "SELECT value FROM key_value WHERE key = ? AND (expires IS NULL OR expires > ?)",
            (GROUP_PREFIX + group_id, self.clock.now()),
        )
        return self.codec.decode_value(rows[0][0], ("group", group_id))["result"] if rows else None

    def delete_group(self, group_id: str) -> None:
        self._write("DELETE FROM key_value WHERE key = ?", (GROUP_PREFIX + group_id,))

    def _write(self, statement: str, values: tuple[Any, ...]) -> int:
        def work(connection: sqlite3.Connection) -> int:
            return connection.execute(statement, values).rowcount

        return self._do(lambda: self._handle.write(work))

    def sweep(self, now: float) -> int:
        total = 0
        for statement in SWEEP:
            # A thousand rows at a time, so that other processes can write in between.
            while gone := self._write(statement, (now,)):
                total += gone
        return total

    def close(self) -> None:
        super().close()
        self._handle.close()
        self._notifier.close()


def as_backend_error(work: Callable[[], T]) -> T:
    """Return what *work* returns; convert errors of the file to BackendError."""
    try:
        return work()
    except (BrokerUnavailable, ConfigurationError) as error:
        reraise_interrupt(error)
        raise BackendError(str(error)) from error
