"""Joins in an SQL database, stored with the results: one algorithm for the embedded file and for servers.

Comes from:  the result stores of this package, each with its JoinDatabase.
Goes to:     the tables of joins and parts; the table of messages, when the broker is the same database.
Thread:      any; the JoinDatabase provides connections.

If the broker is the same database, its consumer records parts itself, in the transaction of the ack
(``transports/sql/join_rows.py``, ``transports/sql/embedded/join_rows.py``), and a body is published in the
transaction that finishes its join.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from qworker.backends.joins import MAX_PARTS, PUSH_SECONDS, Finished, Join, Joins, Opening, remembered
from qworker.clock import Clock
from qworker.errors import EncodeError, PublishError
from qworker.process.crash_points import crash_point
from qworker.transports.join_parts import check_join
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.portions import first_that_fit, portions
from qworker.transports.sql.join_rows import PORTION, JoinTables, Row, Session, places

T = TypeVar("T")

OPENED_AT_ONCE = 100
"""Joins per statement, because older versions of SQLite support 999 parameters."""

Write: TypeAlias = Callable[[Callable[[Session], object]], object]
"""Calls a function with a session, in one transaction."""


class Publishing(NamedTuple):
    """write: stores messages within the transaction of a session. notify: wakes workers after the commit."""

    write: Callable[[Session, Sequence[Envelope]], object]
    notify: Callable[[], object]


class JoinDatabase(Protocol):
    """The database of a result store. Statements have %s placeholders.

    tables: the names of the tables of joins and parts. keep: the end of an INSERT that keeps existing rows.
    skipping: the end of a SELECT that locks rows, and skips those locked by others.
    """

    tables: JoinTables
    keep: str
    skipping: str

    def are_there(self) -> bool:
        """Return whether the tables exist."""

    def make(self) -> None:
        """Create missing tables."""

    def ask(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of *statement*, which only reads."""

    def transact(self, work: Callable[[Session], T]) -> T:
        """Return what *work* returns for a session, in one transaction."""

    def record(self, session: Session, parts: Sequence[Part]) -> None:
        """Record *parts* within the transaction of *session*."""

    def hold(self, body: str, publication: int, seconds: float) -> int:
        """As Joins.hold()."""

    def publishing(self, sender: Sender) -> Publishing | None:
        """Return functions that publish in this store's transactions; None if *sender* uses another
        database."""

    def within(self, sender: Sender) -> tuple[Write, JoinTables] | None:
        """Return a function that writes in the caller's transaction, in which *sender* publishes, and the
        names of the tables there; None if that is in another database."""


class _Within(NamedTuple):
    """An Opening that uses *write*, in these tables."""

    write: Write
    tables: JoinTables
    keep: str

    def open(self, joins: Sequence[Join]) -> None:
        self.write(partial(_open, self.tables.join, self.keep, _rows(joins)))

    def drop(self, joins: Collection[str]) -> None:
        # Joins that existed before may have parts, or may be finished (remaining < 0).
        join, part, _ = self.tables

        def work(session: Session) -> None:
            for some in portions(sorted(joins), PORTION):
                dropped = f"FROM {join} WHERE id IN ({places(some)}) AND remaining >= 0"
                session.do(f"DELETE FROM {part} WHERE seq IN (SELECT seq {dropped})", some)
                session.do(f"DELETE {dropped}", some)

        self.write(work)


def _rows(joins: Sequence[Join]) -> list[Row]:
    """Return the rows for opening *joins*."""
    rows: list[Row] = []
    for join in sorted(joins, key=lambda join: join.id):
        check_join(join.id, join.size)
        due = join.expires if join.size else 0.0
        rows.append((join.id, join.size, join.size, due, join.expires, join.body))
    return rows


def _open(table: str, keep: str, rows: Sequence[Row], session: Session) -> None:
    for some in portions(rows, OPENED_AT_ONCE):
        values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(some))
        statement = f"INSERT INTO {table} (id, size, remaining, due, expires, body) VALUES {values} {keep}"
        session.do(statement, [value for row in some for value in row])


class SQLJoins(Joins):
    def __init__(self, database: JoinDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._join, self._part, self._locking = database.tables
        self._transact = database.transact

    def open(self, joins: Sequence[Join]) -> None:
        rows = _rows(joins)
        if rows:
            self._database.make()
            self._transact(partial(_open, self._join, self._database.keep, rows))

    def within(self, sender: Sender) -> Opening | None:
        found = self._database.within(sender)
        return None if found is None else _Within(*found, self._database.keep)

    def grow(self, join: str, task_id: str) -> int | None:
        query = f"SELECT seq, size, remaining FROM {self._join} WHERE id = %s{self._locking}"
        # A call added later has an additional row, with -1 - its number.
        known = f"SELECT number FROM {self._part} WHERE seq = %s AND number < 0 AND task_id = %s"
        adding = f"INSERT INTO {self._part} (seq, number, task_id, status) VALUES (%s, %s, %s, '')"
        growth = f"UPDATE {self._join} SET size = size + 1, remaining = remaining + 1 WHERE seq = %s"

        def work(session: Session) -> int | None:
            for seq, size, remaining in session.ask(query, (join,)):
                for (number,) in session.ask(known, (seq, task_id)):
                    return -1 - int(number)
                if remaining > 0:
                    session.do(adding, (seq, -1 - size, task_id))
                    session.do(growth, (seq,))
                    return int(size)
            return None

        return self._transact(work) if self._database.are_there() else None

    def add(self, parts: Sequence[Part]) -> None:
        def work(session: Session) -> None:
            self._database.record(session, parts)
            crash_point("recording-parts")

        if parts and self._database.are_there():
            self._transact(work)
            crash_point("parts-recorded")

    # -- claims --

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        if not self._database.are_there():
            return []
        now = self._clock.now()
        if not self._database.ask(f"SELECT 1 FROM {self._join} WHERE due <= %s LIMIT 1", (now,)):
            return []  # without waiting for a write lock
        token = os.urandom(8).hex()
        order = f" ORDER BY due, seq LIMIT %s{self._database.skipping}"
        past = f"SELECT seq FROM {self._join} WHERE due <= %s AND remaining < 0{order}"
        due = f"SELECT seq, size, id, body, remaining, expires FROM {self._join} WHERE due <= %s "
        due += f"AND remaining >= 0{order}"

        def work(session: Session) -> list[Finished]:
            self._delete(session, [seq for (seq,) in session.ask(past, (now, PORTION))])
            found = {seq: row for seq, *row in session.ask(due, (now, limit))}
            claimed: list[int] = first_that_fit(((seq, size) for seq, (size, *_) in found.items()), MAX_PARTS)
            for some in portions(claimed, PORTION):
                session.do(
                    f"UPDATE {self._join} SET due = %s, token = %s WHERE seq IN ({places(some)})",
                    (now + seconds, token, *some),
                )
            return [self._claimed(session, seq, token, now, found[seq]) for seq in claimed]

        return self._transact(work)

    def _claimed(self, session: Session, seq: int, token: str, now: float, row: Sequence[Any]) -> Finished:
        _, name, body, remaining, expires = row
        rows = session.ask(
            f"SELECT number, task_id, status FROM {self._part} WHERE seq = %s AND number >= 0 "
            "ORDER BY number",
            (seq,),
        )
        overdue = remaining > 0 or (expires is not None and expires <= now)
        return Finished(name, token, bytes(body), [Part(name, *row) for row in rows], overdue)

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        if not self._database.are_there():
            return False
        if (publishing := self._database.publishing(sender)) is not None:
            return self._finish_with(join, envelopes, publishing)
        ours: object
        if join.attempt:
            query = f"SELECT 1 FROM {self._join} WHERE id = %s AND token = %s"
            ours = self._database.ask(query, (join.id, join.token))
        else:
            until = self._clock.now() + PUSH_SECONDS
            extend = f"UPDATE {self._join} SET due = %s WHERE id = %s AND token = %s"
            ours = self._transact(lambda session: session.do(extend, (until, join.id, join.token)))
        if not ours:
            return False
        sender.push(envelopes)
        crash_point("body-sent")
        return self._transact(lambda session: self._done(session, join))

    def _finish_with(self, join: Finished, envelopes: Sequence[Envelope], publishing: Publishing) -> bool:
        """Publish and finish in one transaction."""

        def work(session: Session) -> bool:
            ours = self._done(session, join)
            if ours:
                crash_point("finishing-join")
                publishing.write(session, envelopes)
            return ours

        try:
            ours = self._transact(work)
        except EncodeError as error:
            raise PublishError(f"the body of join {join.id} cannot be published: {error}") from error
        if ours:
            crash_point("join-finished")
            publishing.notify()
        return ours

    def _done(self, session: Session, join: Finished) -> bool:
        """Record that *join* is done; False when the claim has expired."""
        query = f"SELECT seq, expires FROM {self._join} WHERE id = %s AND token = %s{self._locking}"
        for seq, expires in session.ask(query, (join.id, join.token)):
            session.do(f"DELETE FROM {self._part} WHERE seq = %s", (seq,))
            session.do(
                f"UPDATE {self._join} SET size = 0, remaining = -1, due = %s, token = NULL, expires = NULL, "
                "body = %s WHERE seq = %s",
                (remembered(expires, self._clock.now()), b"", seq),
            )
            return True
        return False

    def _delete(self, session: Session, every: Sequence[int]) -> None:
        if every:
            for table in (self._part, self._join):
                session.do(f"DELETE FROM {table} WHERE seq IN ({places(every)})", every)

    def drop(self, joins: Collection[str]) -> None:
        def work(session: Session, some: Sequence[str]) -> None:
            query = f"SELECT seq, remaining FROM {self._join} WHERE id IN ({places(some)}) ORDER BY id"
            found = session.ask(query + self._locking, some)
            self._delete(session, [seq for seq, remaining in found if remaining >= 0])

        if self._database.are_there():
            for some in portions(sorted(joins), PORTION):
                self._transact(partial(work, some=some))

    def hold(self, body: str, publication: int, seconds: float) -> int:
        return self._database.hold(body, publication, seconds)

    def count(self) -> int:
        if not self._database.are_there():
            return 0
        rows = self._database.ask(f"SELECT count(*) FROM {self._join} WHERE remaining >= 0")
        return int(rows[0][0]) if rows else 0  # there is no file yet
