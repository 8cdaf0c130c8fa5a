"""One SQL database of results: its connections, its actual tables, and retried statements.

Comes from:  ``backend.py`` and ``keys.py``, with SQLAlchemy's statements.
Goes to:     the database; its errors are converted.
Thread:      any; SQLAlchemy's pool gives each its connection, and a forked child has its own pool.
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
"""How often a statement is tried after a lost connection or a conflict with another transaction."""


class Database:
    """Each statement is its own transaction. The first that writes creates missing tables. safe_url: the name
    of the database in errors. file: for SQLite."""

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

    def run(self, work: Callable[[sa.Connection], T], makes: bool = True) -> T:
        """Return *work* applied to a connection. makes: create missing tables first.

        Raises BackendError when the database is unavailable, EncodeError for a value that it can never store,
        and SQLAlchemy's IntegrityError for an existing key.
        """
        return apart(lambda: self._try(work, makes))

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
                    raise unfit(error.orig) from error
                if attempt == TRIES or not (error.connection_invalidated or passing(error.orig)):
                    spelling = POSTGRESQL if self.engine.dialect.name == "postgresql" else MYSQL
                    raise BackendError(f"{self._safe_url}: {explained(str(error.orig), spelling)}") from error
                self._clock.sleep(0.02 * attempt)
            except (sa_errors.StatementError, UnicodeError, OverflowError) as error:
                raise unfit(error) from error  # the error occurred in this process
            except sa_errors.SQLAlchemyError as error:
                raise BackendError(f"{self._safe_url}: {error}") from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def execute(self, statement: sa.Executable, values: Any = None) -> int:
        """Run *statement*; return the number of affected rows. Raises like run()."""
        return self.run(lambda connection: connection.execute(statement, values).rowcount)

    def rows(self, statement: sa.Select[Any]) -> list[Any]:
        """Return all rows of *statement*; [] if the file or table is missing (none is created). Raises like
        run()."""
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
        """Tell whether the tables of *statement* exist."""
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
        """Return the actual columns of the table of tasks. Raises like run()."""
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


def unfit(error: BaseException | None) -> EncodeError:
    """Return the error for a value that the database refused with *error*, and always will."""
    return EncodeError(f"{UNFIT}{error}")
