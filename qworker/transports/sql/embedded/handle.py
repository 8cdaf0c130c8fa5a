"""A connection kept open, used in turn, and never carried over a fork.

Comes from:  ``database.py``.
Goes to:     the transport (one to publish, one to lease) and the result store.
Thread:      any, in turn.

SQLite's locks belong to the process, and a child inherits the knowledge of them, but not the locks: a child
that opens the file while it has its parent's connection can lose commits, or wait forever. So every handle is
closed before a fork and reopened, on both sides, on the next use.

A file that was removed or replaced continues to exist for processes that have it open: nobody else will ever
see what they write. So every handle checks from time to time whether its file is still the one at its path,
and switches to that one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from qworker.errors import LeaseLost, QWorkerError
from qworker.interrupts import with_lock
from qworker.transports.sql.embedded.database import BUSY_SECONDS, Database, broken, explained, transaction

T = TypeVar("T")


class FileSession:
    """A connection for statements with %s placeholders, as results, joins and schedules write them for any
    database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.connection.execute(statement.replace("%s", "?"), values).fetchall()

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self.connection.execute(statement.replace("%s", "?"), values).rowcount

    def transaction(self) -> AbstractContextManager[object]:
        return transaction(self.connection)

    def do_many(self, statement: str, rows: Sequence[Any]) -> None:
        self.connection.executemany(statement.replace("%s", "?"), rows)


class Handle:
    """The connection to *database*: ``handle.run(work)`` in turn, with its errors explained; ``with handle as
    connection`` does the same on a thread that signals do not interrupt, such as the listener's.

    Opened when it is first needed. Raises ConfigurationError and BrokerUnavailable as Database.connect does.
    look_seconds: how often to check whether the file is still there (0: at every use, which takes 1 us).
    """

    def __init__(self, database: Database, synchronous: str | None = None, look_seconds: float = 0.0) -> None:
        self.lock = threading.Lock()
        """The holder of this lock has the connection."""
        self._database = database
        self._synchronous = synchronous
        self._place = str(database.path)  # a Path would be turned into text at each look
        self._look_seconds = look_seconds
        self._connection: sqlite3.Connection | None = None  # under lock, as all below
        self._look_at = 0.0
        self.file = 0
        """The inode number of the file that was opened last."""
        self.pinned: int | None = None
        """The only file that is accepted; for another, opened() raises LeaseLost. None: any."""
        with _registry:
            _handles.add(self)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return *work* applied to the connection. Unfinished or failed work is rolled back."""
        return with_lock(self.lock, None, self.use, work)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """run() in a write transaction."""

        def whole(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                return work(connection)

        return self.run(whole)

    def transact(self, work: Callable[[FileSession], T]) -> T:
        """write(), with a FileSession."""
        return self.write(lambda connection: work(FileSession(connection)))

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of *statement*; [] if there is no file: reading does not create one.

        Raises like run(), also if the file could not be created.
        """
        return with_lock(self.lock, None, self._read, statement, values)

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        if self._database.is_absent():
            self._database.check_place()
            return []
        return self.use(lambda connection: connection.execute(statement, values).fetchall())

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """run(), for the holder of the lock."""
        connection = self._opened()
        try:
            return work(connection)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        except QWorkerError:
            raise
        except BaseException:  # an interrupt: nobody can continue its work
            self._drop()
            raise
        finally:
            if connection is self._connection and connection.in_transaction:
                connection.rollback()

    def _opened(self) -> sqlite3.Connection:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._look_seconds
            if self._connection is not None and self._number() != self.file:
                self._drop()
        if self._connection is None:
            self._connection = self._database.connect(self._synchronous)
            self.file = self._number()
        if self.pinned is not None and self.pinned != self.file:
            raise LeaseLost(
                f"{self._database.path} was replaced by another file, which has no record of this worker"
            )
        return self._connection

    def _number(self) -> int:
        try:
            return os.stat(self._place).st_ino
        except OSError:
            return 0

    def _failed(self, error: sqlite3.Error | OSError) -> QWorkerError:
        """Return the error to raise for *error*; a broken connection is reopened next time."""
        if broken(error):
            self._drop()
        return explained(error, self._database.path)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> sqlite3.Connection:
        self.lock.acquire()
        try:
            return self._opened()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, sqlite3.Error | OSError):
                raise self._failed(error) from error
        finally:
            self.lock.release()

    def close(self) -> None:
        """Close the connection; the next use opens another. Safe to call twice."""
        with_lock(self.lock, None, self._drop)


_registry = threading.Lock()
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()  # under _registry
_held: list[Handle] = []  # between before and after a fork: those whose lock we hold
_inherited: list[sqlite3.Connection | None] = []
"""Connections that could not be closed before a fork, in the child: closing them there would be worse."""


def _before_fork() -> None:
    _registry.acquire()
    for handle in list(_handles):
        # Others release the lock in time, unless a signal handler forks while its own thread holds it: that
        # fork must not wait for itself.
        if handle.lock.acquire(timeout=BUSY_SECONDS + 1):
            _held.append(handle)
            handle._drop()


def _after_fork_in_parent() -> None:
    for handle in _held:
        handle.lock.release()
    _held.clear()
    _registry.release()


def _after_fork_in_child() -> None:
    for handle in list(_handles):
        if handle not in _held:
            _inherited.append(handle._connection)
            handle._connection = None
            handle.lock = threading.Lock()
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
