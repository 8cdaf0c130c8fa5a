"""The SQL database of a result store: connections, existing tables, and retries.

Comes from:  ``backend.py``, with SQLAlchemy's statements; ``joins.py``, through SQLJoinDatabase.
Goes to:     the database; its errors are converted.
Thread:      any; each use takes a connection of SQLAlchemy's pool, and a forked child has its own pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors

from qworker.backends.sql.joins import Publishing, Write
from qworker.backends.sql.tables import JoinLayout, Layout, Tables
from qworker.clock import Clock
from qworker.errors import BackendError, EncodeError
from qworker.interrupts import in_helper_thread
from qworker.transports.connect_errors import MYSQL, POSTGRESQL, explained
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.sql.join_rows import JoinTables, Row, Session, postgresql_record, record
from qworker.transports.sql.link import IDLE_SECONDS
from qworker.transports.sql.refusals import passing, refused
from qworker.transports.sql.result_rows import place_of
from qworker.transports.sql.sender import Execute, SQLSender, TransactionalSender

T = TypeVar("T")

CANNOT_STORE = "the database cannot store the result: "
TRIES = 3
"""Attempts of a statement when connections are lost, or other transactions conflict."""


class Database:
    """Each statement is a transaction. The first one that writes creates missing tables. safe_url: the name
    of the database in errors. file: the path of an SQLite file."""

    def __init__(
        self, engine: sa.Engine, tables: Tables, clock: Clock, safe_url: str, file: str | None = None
    ) -> None:
        self.engine = engine
        self._tables = tables
        self._clock = clock
        self._safe_url = safe_url
        self._pid = os.getpid()
        self._file = file
        self._layout: Layout | None = None
        self._made = False
        self._seen: set[str] = set()
        """Names of existing tables."""
        if engine.dialect.name in ("mysql", "mariadb"):
            sa.event.listen(engine, "connect", _limit_idle)

    def run(self, work: Callable[[sa.Connection], T], makes: bool = True) -> T:
        """Return *work* applied to a connection. makes: create missing tables first.

        Raises BackendError when the database is unavailable, EncodeError for a value that it can never store,
        and SQLAlchemy's IntegrityError for an existing key.
        """
        return in_helper_thread(lambda: self._try(work, makes))

    def _try(self, work: Callable[[sa.Connection], T], makes: bool) -> T:
        if self._pid != os.getpid():
            self.engine.dispose(close=False)  # the connections belong to the parent
            self._pid = os.getpid()
        for attempt in range(1, TRIES + 1):
            try:
                if makes and not self._made:
                    self._tables.create(self.engine)
                    self._made = True
                with self.engine.connect() as connection:
                    return work(connection)
            except sa_errors.IntegrityError:
                raise
            except sa_errors.DBAPIError as error:
                if not error.connection_invalidated and refused(error.orig):
                    raise cannot_store(error.orig) from error
                if attempt == TRIES or not (error.connection_invalidated or passing(error.orig)):
                    spelling = POSTGRESQL if self.engine.dialect.name == "postgresql" else MYSQL
                    raise BackendError(f"{self._safe_url}: {explained(str(error.orig), spelling)}") from error
                self._clock.sleep(0.02 * attempt)
            except (sa_errors.StatementError, UnicodeError, OverflowError) as error:
                raise cannot_store(error) from error  # the error occurred in this process
            except sa_errors.SQLAlchemyError as error:
                raise BackendError(f"{self._safe_url}: {error}") from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def execute(self, statement: sa.Executable, values: Any = None) -> int:
        """Run *statement*; return the number of affected rows. Raises like run()."""
        return self.run(lambda connection: connection.execute(statement, values).rowcount)

    def rows(self, statement: sa.Select[Any]) -> list[Any]:
        """Return all rows of *statement*; [] if the file or table is missing, which is not created. Raises
        like run()."""
        if not self._is_there(statement):
            return []
        return self.run(lambda connection: list(connection.execute(statement)), makes=False)

    def tasks(self, condition: sa.ColumnElement[bool]) -> list[Any]:
        """Like rows(), for tasks that match *condition*, with all existing columns."""
        task = self._tables.task
        if not self._is_there(sa.select(task.c.task_id)):
            return []
        columns = [task.c[name] for name in self._looked_at().columns]
        return self.rows(sa.select(*columns).where(condition))

    def _is_there(self, statement: sa.Select[Any]) -> bool:
        """Return whether the tables of *statement* exist."""
        names = {table.name for table in statement.get_final_froms() if isinstance(table, sa.Table)}
        unseen = names - self._seen
        if self._made or not unseen:
            return True
        if self._file is not None and not os.path.lexists(self._file):
            return False

        def found(connection: sa.Connection) -> set[str]:
            database = sa.inspect(connection)
            return {name for name in unseen if database.has_table(name)}

        self._seen |= self.run(found, makes=False)
        return names <= self._seen

    def insert(self, statement: sa.Executable, values: dict[str, Any]) -> bool:
        """Insert a row; False when its key exists."""
        try:
            self.execute(statement, values)
        except sa_errors.IntegrityError:
            return False
        return True

    def layout(self) -> Layout:
        """Return the existing columns of the table of tasks. Raises like run()."""
        if not self._made:
            self.run(lambda connection: None)
        return self._looked_at()

    def _looked_at(self) -> Layout:
        if self._layout is None:
            self._layout = self.run(self._tables.layout, makes=False)
        return self._layout

    def close(self) -> None:
        """Close connections; the next use opens new ones."""
        self.engine.dispose(close=self._pid == os.getpid())


def cannot_store(error: BaseException | None) -> EncodeError:
    """Return the error for a value that the database refused with *error*, and always will."""
    return EncodeError(f"{CANNOT_STORE}{error}")


# -- the Place of ``joins.py`` --

BEGIN = {
    "postgresql": ("BEGIN", f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"),
    # By default, gaps read by one transaction are locked against inserts by others.
    "mysql": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"),
    "mariadb": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"),
    "sqlite": ("BEGIN IMMEDIATE",),
}
"""Statements that begin a transaction, by dialect; other dialects have no joins."""
_LIMIT_IDLE = f"SET @qworker = 1 /*M!100300 , SESSION idle_transaction_timeout = {IDLE_SECONDS} */"
"""For MariaDB. MySQL has no limit for transactions alone."""

_SCHEMA = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)"
"""Finds the schema of a table in PostgreSQL."""


def _limit_idle(connection: Any, record: object) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(_LIMIT_IDLE)


class SQLSession:
    """A SQLAlchemy connection, for statements with %s placeholders."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._marked = connection.dialect.paramstyle == "qmark"

    def _execute(self, statement: str, values: Sequence[Any]) -> Any:
        statement = statement.replace("%s", "?") if self._marked else statement
        return self.connection.exec_driver_sql(statement, tuple(values))

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return list(self._execute(statement, values))

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        return int(self._execute(statement, values).rowcount)

    def transact(self, work: Callable[[Session], T]) -> T:
        """Return *work* applied to this, in one transaction."""
        for statement in BEGIN[self.connection.dialect.name]:
            self.do(statement)
        try:
            found = work(self)
            self.do("COMMIT")
        except BaseException:
            with suppress(Exception):  # the connection may be broken; the first error is raised
                self.do("ROLLBACK")
            raise
        return found


class _Executing:
    """A Session in the caller's transaction."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        raise NotImplementedError("the caller's connection is only written to")

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        self._execute(statement, tuple(values))
        return 0


class SQLJoinDatabase:
    """url: of the result store; if the broker uses the same database, bodies are sent there. hold:
    KeyTable.hold()."""

    def __init__(
        self, database: Database, layout: JoinLayout, url: str, hold: Callable[[str, int, float], int]
    ) -> None:
        self._database = database
        self._layout = layout
        self._url = url
        self._hold = hold
        self._dialect = database.engine.dialect.name
        self._there = False
        name = database.engine.dialect.identifier_preparer.format_table
        locks = self._dialect != "sqlite"  # where a writer locks the whole file
        self.tables = JoinTables(name(layout.join), name(layout.part), " FOR UPDATE" if locks else "")
        self.skipping = " FOR UPDATE SKIP LOCKED" if locks else ""
        is_mysql = self._dialect in ("mysql", "mariadb")
        self.keep = "ON DUPLICATE KEY UPDATE seq = seq" if is_mysql else "ON CONFLICT DO NOTHING"

    def are_there(self) -> bool:
        if not self._there:
            self._there = self._database.run(self._layout.are_there, makes=False)
        return self._there

    def make(self) -> None:
        if not self.are_there():
            self._database.run(lambda connection: self._layout.create(self._database.engine))
            self._there = True

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._database.run(lambda connection: SQLSession(connection).ask(statement, values))

    def transact(self, work: Callable[[Session], T]) -> T:
        return self._database.run(lambda connection: SQLSession(connection).transact(work))

    def record(self, session: Session, parts: Sequence[Part]) -> None:
        if self._dialect != "postgresql":
            record(session, self.tables, parts)
        elif (statement := postgresql_record(self.tables, parts)) is not None:
            session.do(*statement)

    def hold(self, body: str, publication: int, seconds: float) -> int:
        return self._hold(f"body-{body}", publication, seconds)

    @cached_property
    def _server(self) -> object:
        return place_of(self._url)

    def publishing(self, sender: Sender) -> Publishing | None:
        if not isinstance(sender, SQLSender) or self._server is None or self._server != place_of(sender.url):
            return None

        def write(session: Session, envelopes: Sequence[Envelope]) -> None:
            assert isinstance(session, SQLSession)
            sender.join(session.connection).push(envelopes)

        return Publishing(write, sender.notify)

    def within(self, sender: Sender) -> tuple[Write, JoinTables] | None:
        if not isinstance(sender, TransactionalSender) or self._server is None:
            return None
        if self._server != place_of(sender.url):
            return None
        self.make()  # not in the transaction: MySQL would commit it
        session = _Executing(sender.execute)
        return lambda work: work(session), self._full_names()

    def _full_names(self) -> JoinTables:
        """Return the tables with their schema, because the caller's connection may have another search
        path."""
        join, part, locking = self.tables
        if self._dialect == "postgresql":
            ((schema,),) = self.ask(_SCHEMA, (join,))
            schema = schema.replace("%", "%%")
        else:
            ((database,),) = self.ask("SELECT database()")
            schema = self._database.engine.dialect.identifier_preparer.quote_identifier(database)
        return JoinTables(f"{schema}.{join}", f"{schema}.{part}", locking)
