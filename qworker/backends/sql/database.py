"""One SQL database of results: its connections, its tables as they really are, and statements tried again.

Comes from:  ``backend.py`` and ``keys.py``, with SQLAlchemy's statements.
Goes to:     the database; its errors come back as ours.
Thread:      any; SQLAlchemy's pool gives each its connection, and a forked child a pool of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors

from qworker.backends.sql.tables import Layout, Tables
from qworker.clock import Clock
from qworker.errors import BackendError, EncodeError
from qworker.interrupts import apart
from qworker.transports.connect_errors import MYSQL, POSTGRESQL, explained
from qworker.transports.sql.refusals import passing, refused

T = TypeVar("T")

UNFIT = "the database cannot take the result: "
TRIES = 3
"""How often a statement is tried when the connection was lost, or another transaction was in the way."""


class Database:
    """Each statement is a transaction of its own. The first that changes anything makes the tables that are
    not there. safe_url: what errors call the database. file: which it is, of SQLite's."""

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
        """Names of tables that are there."""

    def run(self, work: Callable[[sa.Connection], T], makes: bool = True) -> T:
        """Return what *work* makes of a connection. makes: make the tables that are not there first.

        Raises BackendError when the database does not answer, EncodeError for a value that it can never
        take, and SQLAlchemy's IntegrityError for a key that is there already.
        """
        return apart(lambda: self._try(work, makes))

    def _try(self, work: Callable[[sa.Connection], T], makes: bool) -> T:
        if self._pid != os.getpid():
            self.engine.dispose(close=False)  # the connections are the parent's
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
                    raise unfit(error.orig) from error
                if attempt == TRIES or not (error.connection_invalidated or passing(error.orig)):
                    spelling = POSTGRESQL if self.engine.dialect.name == "postgresql" else MYSQL
                    raise BackendError(f"{self._safe_url}: {explained(str(error.orig), spelling)}") from error
                self._clock.sleep(0.02 * attempt)
            except (sa_errors.StatementError, UnicodeError, OverflowError) as error:
                raise unfit(error) from error  # it never left this process
            except sa_errors.SQLAlchemyError as error:
                raise BackendError(f"{self._safe_url}: {error}") from error
        raise AssertionError("unreachable: the last try returns or raises")

    def execute(self, statement: sa.Executable, values: Any = None) -> int:
        """Run *statement*; return how many rows it touched. Raises as run() does."""
        return self.run(lambda connection: connection.execute(statement, values).rowcount)

    def rows(self, statement: sa.Select[Any]) -> list[Any]:
        """All rows of *statement*; [] where there is no file or no table, and none is made. Raises as run()
        does."""
        if not self._is_there(statement):
            return []
        return self.run(lambda connection: list(connection.execute(statement)), makes=False)

    def tasks(self, condition: sa.ColumnElement[bool]) -> list[Any]:
        """As rows(), those of tasks for which *condition* holds, with all columns that there are."""
        task = self._tables.task
        if not self._is_there(sa.select(task.c.task_id)):
            return []
        columns = [task.c[name] for name in self._looked_at().columns]
        return self.rows(sa.select(*columns).where(condition))

    def _is_there(self, statement: sa.Select[Any]) -> bool:
        """Whether there are the tables that *statement* reads."""
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
        """Insert a row; False when its key is there already."""
        try:
            self.execute(statement, values)
        except sa_errors.IntegrityError:
            return False
        return True

    def layout(self) -> Layout:
        """How the table of tasks is really laid out. Raises as run() does."""
        if not self._made:
            self.run(lambda connection: None)
        return self._looked_at()

    def _looked_at(self) -> Layout:
        if self._layout is None:
            self._layout = self.run(self._tables.layout, makes=False)
        return self._layout

    def close(self) -> None:
        """Let go of the connections; the next use opens new ones."""
        self.engine.dispose(close=self._pid == os.getpid())


def unfit(error: BaseException | None) -> EncodeError:
    """The error for a value that the database refused with *error*, and always will."""
    return EncodeError(f"{UNFIT}{error}")
