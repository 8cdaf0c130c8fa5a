"""Joins in an SQL database, stored with the results.

Comes from:  ``backend.py``.
Goes to:     ``qworker_join`` and ``qworker_part``, created when the first join is opened; the table of
             messages, if the broker is the same database.
Thread:      any; SQLAlchemy's pool gives each its connection.

If the broker is the same database, its consumer records parts itself, in the transaction of the ack
(``transports/sql/join_rows.py``), and a body is published in the transaction that deletes its join.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from qworker.backends.joins import PUSH_SECONDS, Finished, Join, Joins, Opening, fitting, remembered
from qworker.backends.sql.database import Database
from qworker.backends.sql.keys import KeyTable
from qworker.backends.sql.tables import JoinLayout
from qworker.clock import Clock
from qworker.errors import EncodeError, PublishError
from qworker.process.crash_points import CRASHING, crash_point
from qworker.transports.join_parts import check_join
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.sql.join_rows import (
    PORTION,
    JoinTables,
    Row,
    places,
    portions,
    postgresql_record,
    record,
)
from qworker.transports.sql.result_rows import place_of
from qworker.transports.sql.sender import Execute, SQLSender, TransactionalSender

T = TypeVar("T")

BEGIN = {
    "postgresql": ("BEGIN",),
    # Otherwise gaps read by one transaction are locked against inserts by others.
    "mysql": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"),
    "mariadb": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"),
    "sqlite": ("BEGIN IMMEDIATE",),
}
"""How a transaction begins, by dialect; other dialects have no joins."""


_SCHEMA = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)"
"""Finds the schema of a table in PostgreSQL."""


def _rows(joins: Sequence[Join]) -> list[Row]:
    """Return the rows for opening *joins*."""
    rows: list[Row] = []
    for join in sorted(joins, key=lambda join: join.id):
        check_join(join.id, join.size)
        due = join.expires if join.size else 0.0
        rows.append((join.id, join.size, join.size, due, join.expires, join.body))
    return rows


def _inserting(table: str, count: int, dialect: str) -> str:
    """Return the statement that inserts *count* rows into the *table* of joins, and keeps existing ones."""
    keep = (
        "ON DUPLICATE KEY UPDATE seq = seq" if dialect in ("mysql", "mariadb") else "ON CONFLICT DO NOTHING"
    )
    values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * count)
    return f"INSERT INTO {table} (id, size, remaining, due, expires, body) VALUES {values} {keep}"


class _Within(NamedTuple):
    """Opens joins in the transaction in which *execute* runs statements. table: its full name."""

    execute: Execute
    table: str
    dialect: str

    def open(self, joins: Sequence[Join]) -> None:
        for some in portions(_rows(joins)):
            values = tuple(value for row in some for value in row)
            self.execute(_inserting(self.table, len(some), self.dialect), values)

    def drop(self, joins: Collection[str]) -> None:
        for some in portions(sorted(joins)):
            self.execute(f"DELETE FROM {self.table} WHERE id IN ({places(some)})", tuple(some))


class SQLSession:
    """A SQLAlchemy connection, for statements with %s placeholders."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._marked = connection.dialect.paramstyle == "qmark"

    def _execute(self, statement: str, values: Any) -> Any:
        return self.connection.exec_driver_sql(
            statement.replace("%s", "?") if self._marked else statement, values
        )

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return list(self._execute(statement, tuple(values)))

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        return int(self._execute(statement, tuple(values)).rowcount)

    def do_many(self, statement: str, rows: Sequence[Row]) -> None:
        self._execute(statement, list(rows))

    def transact(self, work: Callable[[SQLSession], T]) -> T:
        """Return *work* applied to this, in one transaction."""
        for statement in BEGIN[self.connection.dialect.name]:
            self.do(statement)
        try:
            found = work(self)
            self.do("COMMIT")
        except BaseException:
            with suppress(Exception):  # its connection may be broken; the error was raised already
                self.do("ROLLBACK")
            raise
        return found


class SQLJoins(Joins):
    """url: of the result store; if the broker uses the same database, bodies are sent there."""

    def __init__(
        self, database: Database, layout: JoinLayout, clock: Clock, url: str, keys: KeyTable
    ) -> None:
        self._keys = keys
        self._database = database
        self._layout = layout
        self._clock = clock
        self._url = url
        self._dialect = database.engine.dialect.name
        locks = self._dialect != "sqlite"  # there a writer locks the whole file
        name = database.engine.dialect.identifier_preparer.format_table
        self._tables = JoinTables(name(layout.join), name(layout.part), " FOR UPDATE" if locks else "")
        self._skipping = " FOR UPDATE SKIP LOCKED" if locks else ""
        self._there = False

    def _run(self, work: Callable[[SQLSession], T]) -> T:
        return self._database.run(lambda connection: work(SQLSession(connection)))

    def _transact(self, work: Callable[[SQLSession], T]) -> T:
        return self._run(lambda session: session.transact(work))

    def _none_yet(self) -> bool:
        """Tell whether no join has been opened here."""
        if not self._there:
            self._there = self._database.run(self._layout.are_there, makes=False)
        return not self._there

    def open(self, joins: Sequence[Join]) -> None:
        rows = _rows(joins)
        if not rows:
            return
        self._make()
        statement = _inserting(self._tables.join, 1, self._dialect)
        self._transact(lambda session: session.do_many(statement, rows))

    def _make(self) -> None:
        """Create the tables."""
        if self._none_yet():
            self._database.run(lambda connection: self._layout.create(self._database.engine))
            self._there = True

    def within(self, sender: Sender) -> Opening | None:
        place = place_of(self._url)
        if not isinstance(sender, TransactionalSender) or place is None or place != place_of(sender.url):
            return None
        self._make()  # not in the transaction: MySQL would commit it
        return _Within(sender.execute, self._full_name(), self._dialect)

    def _full_name(self) -> str:
        """Return the full name of the table of joins: the caller's connection may have another search
        path."""
        name = self._tables.join
        if self._dialect == "postgresql":
            ((schema,),) = self._run(lambda session: session.ask(_SCHEMA, (name,)))
        else:
            ((database,),) = self._run(lambda session: session.ask("SELECT database()"))
            schema = self._database.engine.dialect.identifier_preparer.quote_identifier(database)
        return f"{schema}.{name}".replace("%", "%%")

    def grow(self, join: str, task_id: str) -> int | None:
        query = f"SELECT seq, size, remaining FROM {self._tables.join} WHERE id = %s"
        # A call added later has an additional row: -1 - its number.
        known = f"SELECT number FROM {self._tables.part} WHERE seq = %s AND number < 0 AND task_id = %s"
        adding = f"INSERT INTO {self._tables.part} (seq, number, task_id, status) VALUES (%s, %s, %s, '')"
        growth = f"UPDATE {self._tables.join} SET size = size + 1, remaining = remaining + 1 WHERE seq = %s"

        def work(session: SQLSession) -> int | None:
            for seq, size, remaining in session.ask(query + self._tables.locking, (join,)):
                for (number,) in session.ask(known, (seq, task_id)):
                    return -1 - int(number)
                if remaining > 0:
                    session.do(adding, (seq, -1 - size, task_id))
                    session.do(growth, (seq,))
                    return int(size)
            return None

        return None if self._none_yet() else self._transact(work)

    def add(self, parts: Sequence[Part]) -> None:
        if not parts or self._none_yet():
            return

        def work(session: SQLSession) -> None:
            if self._dialect == "postgresql":
                statement = postgresql_record(self._tables, parts)
                if statement is not None:
                    session.do(*statement)
            else:
                record(session, self._tables, parts)
            if CRASHING:
                crash_point("recording-parts")

        self._transact(work)
        if CRASHING:
            crash_point("parts-recorded")

    # -- claims --

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        if self._none_yet():
            return []
        now = self._clock.now()
        query = f"SELECT seq, size FROM {self._tables.join} WHERE due <= %s"
        order = f" ORDER BY due, seq LIMIT %s{self._skipping}"
        if not self._run(lambda session: session.ask(f"{query} LIMIT 1", (now,))):
            return []
        token = os.urandom(8).hex()

        def work(session: SQLSession) -> list[Finished]:
            past = session.ask(f"{query} AND remaining < 0{order}", (now, PORTION))
            self._delete(session, [seq for seq, _ in past])
            found = session.ask(f"{query} AND remaining >= 0{order}", (now, limit))
            claimed: list[int] = fitting(found)
            for some in portions(claimed):
                session.do(
                    f"UPDATE {self._tables.join} SET due = %s, token = %s WHERE seq IN ({places(some)})",
                    (now + seconds, token, *some),
                )
            return [self._claimed(session, seq, token, now) for seq in claimed]

        return self._transact(work)

    def _claimed(self, session: SQLSession, seq: int, token: str, now: float) -> Finished:
        ((name, body, remaining, expires),) = session.ask(
            f"SELECT id, body, remaining, expires FROM {self._tables.join} WHERE seq = %s", (seq,)
        )
        rows = session.ask(
            f"SELECT number, task_id, status FROM {self._tables.part} WHERE seq = %s AND number >= 0 "
            "ORDER BY number",
            (seq,),
        )
        overdue = remaining > 0 or (expires is not None and expires <= now)
        return Finished(name, token, bytes(body), [Part(name, *row) for row in rows], overdue)

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        if self._none_yet():
            return False
        place = place_of(self._url)
        if isinstance(sender, SQLSender) and place is not None and place == place_of(sender.url):
            return self._finish_with(join, envelopes, sender)
        until = self._clock.now() + PUSH_SECONDS
        extend = f"UPDATE {self._tables.join} SET due = %s WHERE id = %s AND token = %s"
        if not self._run(lambda session: session.do(extend, (until, join.id, join.token))):
            return False
        sender.push(envelopes)
        if CRASHING:
            crash_point("body-sent")
        self._transact(lambda session: self._done(session, join))
        return True

    def _finish_with(self, join: Finished, envelopes: Sequence[Envelope], sender: SQLSender) -> bool:
        """Publish and finish in one transaction."""

        def work(session: SQLSession) -> bool:
            ours = self._done(session, join)
            if ours:
                if CRASHING:
                    crash_point("finishing-join")
                sender.join(session.connection).push(envelopes)
            return ours

        try:
            ours = self._transact(work)
        except EncodeError as error:
            raise PublishError(f"the body of join {join.id} cannot be published: {error}") from error
        if ours:
            if CRASHING:
                crash_point("join-finished")
            sender.notify()
        return ours

    def _done(self, session: SQLSession, join: Finished) -> bool:
        """Record that *join* was finished; False when this claim has expired."""
        query = f"SELECT seq, expires FROM {self._tables.join} WHERE id = %s AND token = %s"
        for seq, expires in session.ask(query + self._tables.locking, (join.id, join.token)):
            session.do(f"DELETE FROM {self._tables.part} WHERE seq = %s", (seq,))
            session.do(
                f"UPDATE {self._tables.join} SET size = 0, remaining = -1, due = %s, token = NULL, "
                "expires = NULL, body = %s WHERE seq = %s",
                (remembered(expires, self._clock.now()), b"", seq),
            )
            return True
        return False

    def _forget(self, session: SQLSession, joins: Sequence[str]) -> None:
        """Delete *joins* with their parts."""
        query = f"SELECT seq, remaining FROM {self._tables.join} WHERE id IN ({places(joins)}) ORDER BY id"
        found = session.ask(query + self._tables.locking, joins)
        self._delete(session, [seq for seq, remaining in found if remaining >= 0])

    def _delete(self, session: SQLSession, every: Sequence[int]) -> None:
        if every:
            for table in (self._tables.part, self._tables.join):
                session.do(f"DELETE FROM {table} WHERE seq IN ({places(every)})", every)

    def drop(self, joins: Collection[str]) -> None:
        if self._none_yet():
            return
        for some in portions(sorted(joins)):
            self._transact(partial(self._forget, joins=some))

    def hold(self, body: str, publication: int, seconds: float) -> int:
        return self._keys.hold(f"body-{body}", publication, seconds)

    def count(self) -> int:
        if self._none_yet():
            return 0
        ((count,),) = self._run(
            lambda session: session.ask(f"SELECT count(*) FROM {self._tables.join} WHERE remaining >= 0")
        )
        return int(count)
