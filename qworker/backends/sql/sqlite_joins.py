"""Joins in the single SQLite file, stored with the results.

Comes from:  ``sqlite.py``.
Goes to:     the tables ``joins``, ``part`` and ``key_value``; ``message``, if the broker is the same file.
Thread:      any; the connection of the result store, used in turn.

If the broker is the same file, the consumer records parts itself, in the transaction of the ack
(``transports/sqlite/join_rows.py``), and a body is published in the transaction that deletes its join.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from qworker.backends.joins import PUSH_SECONDS, Finished, Join, Joins, Opening, fitting, remembered
from qworker.clock import Clock
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.interrupts import let_pass
from qworker.process.crash_points import CRASHING, crash_point
from qworker.transports.join_parts import check_join
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.sqlite import Database, Handle
from qworker.transports.sqlite.join_rows import record
from qworker.transports.sqlite.sender import JoinedSender, SQLiteSender

T = TypeVar("T")

OPEN = """INSERT INTO joins (id, size, remaining, due, expires, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""
FIND = "SELECT seq, size, remaining FROM joins WHERE id = ?"
ADDED = "SELECT -1 - number FROM part WHERE seq = ? AND number < 0 AND task_id = ?"
GROW = "UPDATE joins SET size = size + 1, remaining = remaining + 1 WHERE seq = ?"
"""A call added later has an additional row: -1 - its number."""
ADD = "INSERT INTO part (seq, number, task_id, status) VALUES (?, -1 - ?, ?, '')"
HOLD = """INSERT INTO key_value (key, value, expires) VALUES (:key, :publication, :expires)
ON CONFLICT (key) DO UPDATE SET expires = CASE WHEN key_value.expires <= :now THEN excluded.expires
ELSE key_value.expires END, value = CASE WHEN key_value.expires <= :now THEN excluded.value
ELSE key_value.value END RETURNING CAST(value AS INTEGER)"""
ANY_DUE = "SELECT 1 FROM joins WHERE due <= ? LIMIT 1"
PAST = "DELETE FROM joins WHERE remaining < 0 AND due <= ?"
DUE = "SELECT seq, size FROM joins WHERE due <= ? ORDER BY due, seq LIMIT ?"
CLAIM = """UPDATE joins SET due = :until, token = :token WHERE seq = :seq
RETURNING seq, id, token, body, remaining > 0 OR ifnull(expires <= :now, 0)"""
PARTS = "SELECT number, task_id, status FROM part WHERE seq = ? AND number >= 0 ORDER BY number"
EXTEND = "UPDATE joins SET due = ? WHERE id = ? AND token = ?"
FORGET_PARTS = "DELETE FROM part WHERE seq = (SELECT seq FROM joins WHERE id = ?)"
FORGET = "DELETE FROM joins WHERE id = ? AND remaining >= 0"
CLAIMED = "SELECT seq, expires FROM joins WHERE id = ? AND token = ?"
DONE = """UPDATE joins SET size = 0, remaining = -1, due = ?, token = NULL, expires = NULL, body = x''
WHERE seq = ?"""
DONE_PARTS = "DELETE FROM part WHERE seq = ?"


class SQLiteJoins(Joins):
    """handle: the connection to *database*."""

    def __init__(self, database: Database, handle: Handle, clock: Clock) -> None:
        self._database = database
        self._handle = handle
        self._clock = clock

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return as_backend_error(lambda: self._handle.write(work))

    def open(self, joins: Sequence[Join]) -> None:
        self._write(_opened(joins))

    def within(self, sender: Sender) -> Opening | None:
        if isinstance(sender, JoinedSender) and sender.path == self._database.path:
            return _Within(sender)
        return None

    def grow(self, join: str, task_id: str) -> int | None:
        def work(connection: sqlite3.Connection) -> int | None:
            for seq, size, remaining in connection.execute(FIND, (join,)).fetchall():
                for (number,) in connection.execute(ADDED, (seq, task_id)):
                    return int(number)
                if remaining > 0:
                    connection.execute(ADD, (seq, size, task_id))
                    connection.execute(GROW, (seq,))
                    return int(size)
            return None

        return self._write(work)

    def add(self, parts: Sequence[Part]) -> None:
        self._write(lambda connection: record(connection, parts))

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        now = self._clock.now()
        if not as_backend_error(lambda: self._handle.read(ANY_DUE, (now,))):
            return []  # without the write lock

        def work(connection: sqlite3.Connection) -> list[Finished]:
            connection.execute(PAST, (now,))
            order = {"until": now + seconds, "token": os.urandom(8).hex(), "now": now}
            return [
                _claimed(connection, {**order, "seq": seq})
                for seq in fitting(connection.execute(DUE, (now, limit)).fetchall())
            ]

        return self._write(work)

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        if isinstance(sender, SQLiteSender) and sender.path == self._database.path:
            return self._finish_with(join, envelopes, sender)
        until = self._clock.now() + PUSH_SECONDS
        values = (until, join.id, join.token)
        if not self._write(lambda connection: connection.execute(EXTEND, values).rowcount):
            return False
        sender.push(envelopes)
        if CRASHING:
            crash_point("body-sent")
        self._write(lambda connection: self._done(connection, join))
        return True

    def _done(self, connection: sqlite3.Connection, join: Finished) -> bool:
        """Record that *join* was finished; False when this claim has expired."""
        for seq, expires in connection.execute(CLAIMED, (join.id, join.token)).fetchall():
            connection.execute(DONE_PARTS, (seq,))
            connection.execute(DONE, (remembered(expires, self._clock.now()), seq))
            return True
        return False

    def _finish_with(self, join: Finished, envelopes: Sequence[Envelope], sender: SQLiteSender) -> bool:
        """Publish and finish in one transaction."""

        def work(connection: sqlite3.Connection) -> bool:
            ours = self._done(connection, join)
            if ours:
                if CRASHING:
                    crash_point("finishing-join")
                sender.insert(connection, envelopes)
            return ours

        ours = self._write(work)
        if ours:
            if CRASHING:
                crash_point("join-finished")
            sender.notify()
        return ours

    def drop(self, joins: Collection[str]) -> None:
        self._write(_dropped(joins))

    def hold(self, body: str, publication: int, seconds: float) -> int:
        now = self._clock.now()
        key = f"qworker-body-{body}"
        values = {"key": key, "publication": str(publication), "expires": now + seconds, "now": now}
        return self._write(lambda connection: int(connection.execute(HOLD, values).fetchone()[0]))

    def count(self) -> int:
        rows = as_backend_error(lambda: self._handle.read("SELECT count(*) FROM joins WHERE remaining >= 0"))
        return int(rows[0][0]) if rows else 0  # there is no file yet


class _Within(NamedTuple):
    """Opens joins in the transaction in which *sender* publishes."""

    sender: JoinedSender

    def open(self, joins: Sequence[Join]) -> None:
        self.sender.write(_opened(joins))

    def drop(self, joins: Collection[str]) -> None:
        self.sender.write(_dropped(joins))


def _opened(joins: Sequence[Join]) -> Callable[[sqlite3.Connection], object]:
    """Return a function that opens *joins* with a given connection."""
    rows = []
    for join in joins:
        check_join(join.id, join.size)
        due = join.expires if join.size else 0.0
        rows.append((join.id, join.size, join.size, due, join.expires, join.body))
    return lambda connection: connection.executemany(OPEN, rows)


def _dropped(joins: Collection[str]) -> Callable[[sqlite3.Connection], None]:
    """Return a function that drops *joins* with a given connection."""

    def work(connection: sqlite3.Connection) -> None:
        for statement in (FORGET_PARTS, FORGET):
            connection.executemany(statement, [(join,) for join in joins])

    return work


def _claimed(connection: sqlite3.Connection, order: dict[str, Any]) -> Finished:
    seq, join, token, body, overdue = connection.execute(CLAIM, order).fetchone()
    parts = [Part(join, *row) for row in connection.execute(PARTS, (seq,))]
    return Finished(join, token, body, parts, bool(overdue))


def as_backend_error(work: Callable[[], T]) -> T:
    """Return *work*(); errors of the file become BackendError."""
    try:
        return work()
    except (BrokerUnavailable, ConfigurationError) as error:
        let_pass(error)
        raise BackendError(str(error)) from error
