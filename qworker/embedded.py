"""The one SQLite file that qworker needs when no server is configured.

Comes from:  a ``sqlite:///path`` URL, or nothing at all (``.qworker/qworker.db`` beside the project).
Goes to:     ``transports/sqlite.py`` (messages) and ``backends/sqlite.py`` (results), which share the file.
Thread:      any; a connection belongs to whoever opened it, and none crosses a fork.

The file is in WAL mode. Who needs to be told of a change does not poll the file: it hangs up a *bell*, a
named pipe in the directory beside it, and writers ring all bells of a kind after they commit.
"""

from __future__ import annotations

import errno
import os
import random
import select
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from qworker.errors import BrokerUnavailable, ConfigurationError

DEFAULT_PATH = ".qworker/qworker.db"
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0
"""How long a writer waits for its turn before it gives up."""

READY, DELAYED, LEASED = 0, 1, 2
"""States of a row in ``message``."""

SCHEMA = """
CREATE TABLE message (
    tag INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 0, due REAL,
    state INTEGER NOT NULL DEFAULT 0, owner INTEGER, deliveries INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0, sent REAL NOT NULL,
    headers TEXT NOT NULL, properties TEXT, body BLOB NOT NULL);
CREATE INDEX message_ready ON message (queue, priority DESC, tag) WHERE state = 0;
CREATE INDEX message_delayed ON message (queue, due) WHERE state = 1;
CREATE INDEX message_leased ON message (owner) WHERE state = 2;
CREATE TABLE dead (
    tag INTEGER PRIMARY KEY, queue TEXT NOT NULL, reason TEXT NOT NULL, died_at REAL NOT NULL,
    deliveries INTEGER NOT NULL, priority INTEGER NOT NULL, headers TEXT NOT NULL, properties TEXT, body BLOB NOT NULL);
CREATE INDEX dead_queue ON dead (queue, died_at);
CREATE TABLE owner (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, pid INTEGER NOT NULL, boot TEXT NOT NULL,
    queues TEXT NOT NULL, concurrency INTEGER NOT NULL, lease_until REAL NOT NULL, started REAL NOT NULL,
    marks TEXT NOT NULL);
CREATE TABLE revoked (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, terminate INTEGER NOT NULL, signal TEXT NOT NULL,
    expires REAL NOT NULL);
CREATE TABLE binding (
    exchange TEXT NOT NULL, routing_key TEXT NOT NULL, pattern TEXT NOT NULL, queue TEXT NOT NULL,
    PRIMARY KEY (exchange, routing_key, pattern, queue)) WITHOUT ROWID;
CREATE TABLE result (
    task_id TEXT PRIMARY KEY, status TEXT NOT NULL, payload BLOB NOT NULL, expires REAL) WITHOUT ROWID;
CREATE INDEX result_expires ON result (expires) WHERE expires IS NOT NULL;
CREATE TABLE key_value (key TEXT PRIMARY KEY, value TEXT NOT NULL, expires REAL) WITHOUT ROWID;
"""

UPSERT_RESULT = """
INSERT INTO result (task_id, status, payload, expires) VALUES (?, ?, ?, ?)
ON CONFLICT (task_id) DO UPDATE SET status = excluded.status, payload = excluded.payload, expires = excluded.expires
WHERE result.status NOT IN ('SUCCESS', 'FAILURE', 'REVOKED')
   OR (result.status <> 'SUCCESS' AND excluded.status IN ('SUCCESS', 'FAILURE', 'REVOKED'))
"""
"""Compare-and-set of ``(task_id, status, payload, expires)`` by the rule of ``states.may_replace``."""

NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs afs ceph glusterfs lustre beegfs fuse.sshfs fuse.s3fs fuse.glusterfs".split()
)

_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


def database_path(url: str | None) -> Path:
    """Return the absolute path that *url* names: ``sqlite:///relative``, ``sqlite:////absolute`` or None.

    Raises ConfigurationError for another scheme or a host in the URL.
    """
    if not url or url in ("sqlite://", "sqlite:///", "sqlite:"):
        return Path(DEFAULT_PATH).absolute()
    scheme, separator, rest = url.partition("://")
    if scheme != "sqlite" or not separator or not rest.startswith("/"):
        raise ConfigurationError(
            f"{url!r} does not name an SQLite file: write sqlite:///relative/path.db or sqlite:////absolute/path.db",
            setting="broker_url",
        )
    return Path(unquote(rest[1:].partition("?")[0])).absolute()


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """Return the type of the file system that holds *path* (``ext4``, ``nfs4``…), '' where that cannot be known."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return ""
    wanted, best, found = os.path.realpath(path), -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        inside = wanted == mount or wanted.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), right.split()[0]
    return found


def boot_id() -> str:
    """Name this boot of the machine; '' where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Database:
    """The file at *path*: opens connections to it, and gives writers their turn.

    synchronous: FULL (a commit is on the disk when it returns) or NORMAL (it survives the death of every
    process, not a power cut).
    """

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.path = path
        self.synchronous = synchronous
        self.bells = Path(f"{path}-bells")
        self.owners = Path(f"{path}-owners")

    def prepare(self) -> None:
        """Make the directories and the schema. Safe to call twice and from many processes at once.

        Raises ConfigurationError where the place is unusable.
        """
        kind = file_system(self.path.parent)
        if kind in NETWORK_FILE_SYSTEMS:
            raise ConfigurationError(
                f"{self.path} is on a network file system ({kind}), where SQLite's locks do not hold: "
                "use a local path, or a broker that is a server",
                setting="broker_url",
            )
        try:
            for directory in (self.path.parent, self.bells, self.owners):
                directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path.parent, os.W_OK) or (self.path.exists() and not os.access(self.path, os.W_OK)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to {self.path}: {error.strerror}. Set broker_url to sqlite:////a/path/you/own.db",
                setting="broker_url",
            ) from None

    def connect(self, synchronous: str | None = None) -> sqlite3.Connection:
        """Open a connection, with the schema in place.

        Raises ConfigurationError for a file that is no database or of a newer qworker, BrokerUnavailable when
        the disk does not answer.
        """
        with errors_explained(self.path):
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            deadline = time.monotonic() + BUSY_SECONDS
            while True:
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    break
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in _BUSY or time.monotonic() > deadline:
                        raise
                    time.sleep(random.uniform(0.0005, 0.005))
            connection.execute(f"PRAGMA synchronous = {synchronous or self.synchronous}")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            if version == 0:
                self._create(connection)
            elif version > SCHEMA_VERSION:
                raise ConfigurationError(
                    f"{self.path} was written by a newer qworker (schema {version}, this one knows {SCHEMA_VERSION}): "
                    "upgrade qworker, or use another file",
                    setting="broker_url",
                )
            return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        with transaction(connection):
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def errors_explained(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into ours: what is wrong with the file, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise ConfigurationError(
                f"{path} is not a sound SQLite database ({error}): move it aside and start again, or restore a copy",
                setting="broker_url",
            ) from error
        if code == sqlite3.SQLITE_FULL:
            raise BrokerUnavailable(f"the disk of {path} is full: free some space; nothing was written") from error
        if code in _BUSY:
            raise BrokerUnavailable(
                f"{path} was locked by another process for over {BUSY_SECONDS:g} s: look for one that holds a "
                "transaction open"
            ) from error
        raise BrokerUnavailable(f"{path} cannot be used: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, timeout: float = BUSY_SECONDS) -> Iterator[None]:
    """Run the block in one write transaction; wait up to *timeout* seconds for our turn.

    SQLite's own waiting starts at 1 ms and grows; ours starts at 50 us, since a turn here takes some 100 us.
    Raises sqlite3.Error as it comes (wrap in errors_explained).
    """
    deadline = 0.0
    pause = 0.0001
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            now = time.monotonic()
            deadline = deadline or now + timeout
            if now > deadline:
                raise
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 1.5, 0.005)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class Bell:
    """A named pipe that others write a byte to when there is news. Owner: one thread.

    kind: 'message' (rung by who publishes) or 'result' (rung by who stores results).
    Where the system has no named pipes, fileno() is -1 and wait() is a plain sleep of at most 50 ms.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._fd = -1
        self._path = directory / f"{kind}.{os.getpid()}.{os.urandom(4).hex()}"
        self._pid = os.getpid()
        if hasattr(os, "mkfifo"):
            # Made under another name and opened first: who rings must never see a pipe that nobody reads.
            hidden = directory / f".{self._path.name}"
            os.mkfifo(hidden, 0o600)
            # Also its own writer, so that it never reads as hung up when the last ringer leaves.
            self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.rename(hidden, self._path)

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> bool:
        """Take all rings; True if there was any."""
        if self._fd < 0:
            return False
        try:
            return bool(os.read(self._fd, 65536))
        except OSError:
            return False

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds for a ring; True if it rang."""
        if self._fd < 0:
            time.sleep(min(timeout, 0.05))
            return True
        ready = select.poll()
        ready.register(self._fd, select.POLLIN)
        return bool(ready.poll(max(0.0, timeout * 1000))) and self.drain()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._pid == os.getpid():
                self._path.unlink(missing_ok=True)


class Ringer:
    """Rings all bells of one kind in *directory*. Any thread.

    The pipes are kept open; the directory is read again only when its time stamp has changed.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._prefix = f"{kind}."
        self._lock = threading.Lock()
        self._pipes: dict[str, int] = {}  # under _lock
        self._seen = -1  # under _lock

    def ring(self) -> None:
        with self._lock:
            try:
                changed = os.stat(self._directory).st_mtime_ns
            except OSError:
                return
            if changed != self._seen:
                self._look(changed)
            for name, pipe in list(self._pipes.items()):
                try:
                    os.write(pipe, b"!")
                except BlockingIOError:
                    pass  # full: it has rung 65,536 times and is sure to look
                except OSError:
                    self._drop(name)

    def _look(self, changed: int) -> None:
        # A bell hung up in the same tick of the clock as the last change would go unseen: look again next time.
        settled = time.time_ns() - changed > 50_000_000
        names = {name for name in os.listdir(self._directory) if name.startswith(self._prefix)}
        for name in self._pipes.keys() - names:
            self._drop(name, unlink=False)
        for name in names - self._pipes.keys():
            try:
                self._pipes[name] = os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno == errno.ENXIO:  # its reader is dead
                    (self._directory / name).unlink(missing_ok=True)
        self._seen = changed if settled else -1

    def _drop(self, name: str, unlink: bool = True) -> None:
        os.close(self._pipes.pop(name))
        if unlink:
            (self._directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            for pipe in self._pipes.values():
                os.close(pipe)
            self._pipes.clear()
            self._seen = -1
