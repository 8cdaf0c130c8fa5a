"""The file itself: opening it, write locks, and explanations of errors.

Comes from:  ``path.py`` (the path) and ``schema.py`` (the tables).
Goes to:     ``handle.py``, which keeps a connection open; the result store.
Thread:      any; a connection belongs to the thread that opened it.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from qworker.errors import BrokerUnavailable, ConfigurationError, PublishError, QWorkerError
from qworker.process.randomness import RANDOM
from qworker.transports.sql.embedded.path import NETWORK_FILE_SYSTEMS, file_system
from qworker.transports.sql.embedded.schema import ADDED_COLUMNS, SCHEMA, SCHEMA_VERSION

BUSY_SECONDS = 30.0
"""How long a writer waits for the write lock before it gives up."""

NEW_FILE_MODE = 0o600
"""Messages hold whatever callers pass: passwords, addresses. The log and its index take their mode from the
file."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_STRICT = sqlite3.sqlite_version_info >= (3, 37)
_STRICTLY = re.compile(r" STRICT(,(?= WITHOUT)|$)")
_REFUSED = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_TEXT = partial(str, encoding="utf-8", errors="surrogateescape")
"""SQLite takes any bytes as text. One bad row must not keep others from being read; it is refused later."""


class Database:
    """The file at *path*: opens connections to it.

    synchronous: FULL (a commit is on the disk when it returns) or NORMAL (it survives the death of every
    process, not a power cut).
    """

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.path = path
        self.synchronous = synchronous
        self.pipes = Path(f"{path}-bells")
        self.owners = Path(f"{path}-owners")

    def prepare(self, mountinfo: str | None = None) -> None:
        """Create the directories. Safe to call twice, and from many processes at once.

        mountinfo: replaces the text of /proc/self/mountinfo. Raises ConfigurationError if the path is
        unusable.
        """
        self.check_place(mountinfo)
        with self._refused():
            for directory in (self.path.parent, self.pipes, self.owners):
                directory.mkdir(parents=True, exist_ok=True)

    def is_absent(self) -> bool:
        """Whether there is no file, and no log of an earlier one."""
        return not os.path.lexists(self.path) and not self._log_size()

    def check_place(self, mountinfo: str | None = None) -> None:
        """Raise the errors of prepare() if the file could not be created, without creating anything."""
        kind = file_system(self.path, mountinfo)
        if kind in NETWORK_FILE_SYSTEMS:
            raise ConfigurationError(
                f"{self.path} is on a network file system ({kind}), where SQLite's locks do not hold: "
                "use a local path, or a broker that is a server",
                setting="broker_url",
            )
        with self._refused():
            above = next(each for each in self.path.parents if each.exists())
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(above, os.W_OK) or (self.path.exists() and not os.access(self.path, os.W_OK)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Convert errors of the file system to ConfigurationError."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise _disk_full(self.path) from None
            raise ConfigurationError(
                f"cannot write to {self.path}: {error.strerror}. Set broker_url to "
                "sqlite:////a/path/you/own.db",
                setting="broker_url",
            ) from None

    def connect(self, synchronous: str | None = None) -> sqlite3.Connection:
        """Open a connection, with directories and schema in place.

        Raises ConfigurationError for an unusable path, and a file that is not a database, or of a newer
        qworker; BrokerUnavailable if the file cannot be used now: the disk is full, or another process locks
        it.
        """
        self.prepare()
        with errors_explained(self.path):
            connection = self._open()
            connection.text_factory = _TEXT
            try:
                version = _enter_wal(connection)
                connection.execute(f"PRAGMA synchronous = {synchronous or self.synchronous}")
                connection.execute("PRAGMA journal_size_limit = 67108864")
                # Keeps the log short, so that it is overwritten: growing it costs a commit more than writing.
                connection.execute("PRAGMA wal_autocheckpoint = 400")
                if version < SCHEMA_VERSION:
                    with transaction(connection):
                        create_tables(connection)
                elif version > SCHEMA_VERSION:
                    raise ConfigurationError(
                        f"{self.path} was written by a newer qworker (schema {version}, this one knows "
                        f"{SCHEMA_VERSION}): upgrade qworker, or use another file",
                        setting="broker_url",
                    )
            except BaseException:
                connection.close()
                raise
            return connection

    def _open(self) -> sqlite3.Connection:
        """Return a connection to the file; a new file can be read only by its owner."""
        uri = f"{self.path.as_uri()}?mode=rw"
        if not self.path.exists():
            self._refuse_beside_a_log()
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE))
        return sqlite3.connect(uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True)

    def _refuse_beside_a_log(self) -> None:
        """Refuse to create a file beside the log of another: SQLite would use that log for the new file, and
        overwrite it."""
        if self._log_size() and not self.path.exists():  # another process may just have created both
            log = f"{self.path.name}-wal"
            raise BrokerUnavailable(
                f"{self.path} is gone, and its log {log} still exists: restore the file, and nothing is "
                f"lost. To start with a new file, delete {log} and {self.path.name}-shm"
            )

    def _log_size(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except OSError:
            return 0


def _enter_wal(connection: sqlite3.Connection) -> int:
    """Put the file in WAL mode, and return the version of its schema. Others may be doing the same."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(connection.cursor()) as cursor:
                cursor.execute("PRAGMA journal_mode = WAL")
                return int(cursor.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.OperationalError as error:
            if not busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(RANDOM.uniform(0.0005, 0.005))


def create_tables(connection: sqlite3.Connection) -> None:
    """Create what is missing in the file, in the current transaction of *connection*, if there is one."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION:
        for table, column, kind in ADDED_COLUMNS:
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if known and column not in known:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        for statement in schema_statements():
            connection.execute(statement)


def schema_statements() -> list[str]:
    """Return the statements that create the tables of a new file, in this SQLite's syntax, and record their
    version; may be repeated."""
    made = [part if _STRICT else _STRICTLY.sub("", part) for part in SCHEMA.split(";\n") if part]
    return [*made, f"PRAGMA user_version = {SCHEMA_VERSION}"]


def busy(error: BaseException) -> bool:
    """Whether *error* only means that another process holds the lock (SQLite has several such errors)."""
    return _code(error) in _BUSY


def broken(error: BaseException) -> bool:
    """Whether a connection with this *error* should be reopened."""
    return isinstance(error, sqlite3.Error) and _code(error) not in (
        *_BUSY, *_REFUSED, 0, sqlite3.SQLITE_FULL, sqlite3.SQLITE_ERROR,
    )  # fmt: skip


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explained(error: sqlite3.Error | OSError, path: Path) -> QWorkerError:
    """Return our error that explains what is wrong with the file at *path*, and what to do."""
    code = _code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigurationError(
            f"{path} is not a sound SQLite database ({error}): move it aside and start again, or "
            "restore a copy",
            setting="broker_url",
        )
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return _disk_full(path)
    if code in _REFUSED or "binding parameter" in str(error):
        return PublishError(f"{path} cannot store this: {error}")
    if code in _BUSY:
        return BrokerUnavailable(
            f"{path} was locked by another process for too long: find the one that holds a transaction open"
        )
    return BrokerUnavailable(f"{path} cannot be used: {error}")


def _disk_full(path: Path) -> BrokerUnavailable:
    return BrokerUnavailable(f"the disk of {path} is full: free some space; nothing was written")


@contextmanager
def errors_explained(path: Path) -> Iterator[None]:
    """Convert errors of sqlite3 and the system to ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(error, path) from error


def write(connection: sqlite3.Connection, statement: str, values: Sequence[Any], timeout: float) -> None:
    """Execute *statement*, which writes or begins to, on *connection*; wait up to *timeout* seconds for our
    turn.

    Outside a transaction, the statement is a transaction by itself, at half the cost of one with BEGIN and
    COMMIT. SQLite's own waiting starts at 1 ms and grows; ours starts at 50 us, since a turn here takes some
    100 us. Raises sqlite3.Error, not converted (see errors_explained).
    """
    deadline = 0.0
    pause = 0.0001
    while True:
        try:
            connection.execute(statement, values)
            return
        except sqlite3.OperationalError as error:
            if not busy(error):
                raise
            now = time.monotonic()
            deadline = deadline or now + timeout
            if now > deadline:
                raise
            time.sleep(RANDOM.uniform(pause / 2, pause))
            pause = min(pause * 1.5, 0.005)


@contextmanager
def transaction(
    connection: sqlite3.Connection, timeout: float = BUSY_SECONDS
) -> Iterator[sqlite3.Connection]:
    """Run the block in one write transaction of *connection*; waiting and errors as for ``write``."""
    write(connection, "BEGIN IMMEDIATE", (), timeout)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.ProgrammingError):  # it is closed already
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise
