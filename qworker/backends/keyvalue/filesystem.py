"""Results as files in a directory, one for each task, under Celery's names.

Comes from:  ``result_backend = "file:///directory"``.
Goes to:     that directory, which several processes of one machine may share.
Thread:      any; each operation opens its own files.

A file is written under another name, flushed to disk and renamed, so that it is replaced atomically. Its time
stamp is the time of writing; for a lock, the time of expiry.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from zlib import crc32

try:
    import fcntl
except ImportError:  # Windows: renaming is still atomic, but writers are not serialised
    fcntl = None  # type: ignore[assignment]

from qworker.backends.keyvalue.backend import KeyValueBackend
from qworker.backends.keyvalue.joins import JOIN_PREFIX, PART_PREFIX
from qworker.backends.keyvalue.keys import GROUP_PREFIX, LOCK_PREFIX, TASK_PREFIX
from qworker.clock import Clock
from qworker.errors import BackendError, ConfigurationError
from qworker.transports.connect_errors import refuse_parameters

LONGEST_NAME = 200
"""Maximum characters of a file name; longer ones end in a hash."""
JOINS = "qworker-joins"
"""The subdirectory for joins."""
LOCKS = 64
"""Number of lock files shared by all keys."""
FOR_EVER = 100 * 365 * 86400.0
_ABANDONED_SECONDS = 3600.0


class FilesystemBackend(KeyValueBackend):
    """A directory of files, created on first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        refuse_parameters(url, "result_backend")
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise ConfigurationError(
                f"{url!r} does not name a directory: write file:///absolute/path (three slashes)",
                setting="result_backend",
            )
        self.directory = Path(unquote(parts.path))
        self._prepared = False

    @contextmanager
    def _explained(self, writes: bool = False) -> Iterator[None]:
        """Convert errors of the file system to BackendError. writes: create the directory if it is
        missing."""
        try:
            if writes and not self._prepared:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._prepared = True
            yield
        except OSError as error:
            raise BackendError(
                f"results cannot be kept in {self.directory}: {error.strerror or error}"
            ) from error

    def _path(self, key: str) -> Path:
        # Joins are listed every few seconds, so they have their own directory.
        return (self.directory / JOINS if key.startswith(JOIN_PREFIX) else self.directory) / _name(key)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        with self._explained(writes=True):
            path = self.directory / f".lock-{crc32(key.encode()) % LOCKS:02d}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)  # this unlocks

    def _expires(self, name: str, written: float) -> float:
        if name.startswith(LOCK_PREFIX):
            return written
        if name.startswith((JOIN_PREFIX, PART_PREFIX)):
            return math.inf
        return written + (FOR_EVER if self.expires is None else self.expires)

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        with self._explained():
            try:
                with path.open("rb") as file:
                    written = os.fstat(file.fileno()).st_mtime
                    data = file.read()
            except FileNotFoundError:
                return None
            except (IsADirectoryError, PermissionError) as error:  # only this result is unreadable
                task_id = key.removeprefix(TASK_PREFIX)
                raise self.codec.damaged(
                    task_id, f"is in {path}, which cannot be read: {error.strerror}"
                ) from error
        return None if self._expires(path.name, written) <= self.clock.now() else data

    def write(self, key: str, value: bytes, ttl: float | None) -> None:
        path = self._path(key)
        stamp = self.clock.now()
        if key.startswith(LOCK_PREFIX):
            stamp += FOR_EVER if ttl is None else ttl
        elif key.startswith((TASK_PREFIX, GROUP_PREFIX)) and ttl is not None and self.expires is not None:
            stamp += ttl - self.expires  # later, for results that are kept longer
        draft = self.directory / f".draft-{os.getpid()}-{os.urandom(6).hex()}"
        with self._explained(writes=True):
            if key.startswith(JOIN_PREFIX):
                path.parent.mkdir(exist_ok=True)
            _replace(path, value, stamp, draft)

    def list(self, prefix: str) -> Iterable[str]:
        with self._explained():
            try:
                return [name for name in os.listdir(self.directory / JOINS) if name.startswith(prefix)]
            except FileNotFoundError:
                return []

    def remove(self, key: str) -> None:
        with self._explained():
            self._path(key).unlink(missing_ok=True)

    def sweep(self, now: float) -> int:
        count = 0
        if not self.directory.exists():
            return count
        with self._explained(), os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    written = entry.stat().st_mtime
                except FileNotFoundError:  # another process sweeps too
                    continue
                if entry.name.startswith(".draft-"):
                    # Left by a process that died while writing. Drafts have the file system's time.
                    expired = written + _ABANDONED_SECONDS <= time.time()
                else:
                    expired = entry.name.startswith(("celery-", LOCK_PREFIX)) and (
                        self._expires(entry.name, written) <= now
                    )
                if expired:
                    Path(entry.path).unlink(missing_ok=True)
                    count += 1
        return count


def _name(key: str) -> str:
    """Return the file name for *key*."""
    name = quote(key, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 65]}-{sha256(key.encode()).hexdigest()}"
    return name


def _replace(path: Path, value: bytes, stamp: float, draft: Path) -> None:
    """Write *value* to *path* via the file *draft*, with the time *stamp*."""
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
        with open(handle, "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(handle)
        os.utime(draft, (stamp, stamp))
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
