"""Locks on spool files, shared with uWSGI: the holder of the lock runs the job.

Comes from:  ``claiming``.
Goes to:     the kernel, which frees a lock with the process that holds it.
Thread:      any.

uWSGI takes a POSIX record lock on the whole file. An OFD lock (of the open file description) and a record
lock exclude each other. An OFD lock belongs to one opening of the file; a record lock belongs to the process,
which loses it when it closes the file anywhere. So OFD locks are used where they exist: on Linux, but not on
NFS.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
from contextlib import suppress
from typing import Protocol

_FLOCK = "hhqqi0q"
"""Linux's structure: type, whence, start, length (0: to the end), process (0 for OFD locks)."""
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_REMOTE = ("nfs", "cifs", "smb", "ceph", "glusterfs", "fuse.glusterfs", "lustre", "9p")
"""Prefixes of the names of network file systems."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Locked(Exception):
    """Another process holds the lock of the file."""


class FileLock(Protocol):
    """The kind of lock for the files of a spool directory."""

    def acquire(self, path: str, directory: int) -> int:
        """Open and lock *path*, relative to the descriptor *directory*; return its descriptor. Never waits.

        Locked when another has it; OSError when it cannot be opened or locked at all.
        """

    def release(self, file: int) -> None:
        """Unlock and close what acquire() returned."""

    def is_held(self, path: str, directory: int) -> bool:
        """Return whether another process holds the lock, without causing notifications about the file.
        OSError when it cannot be opened."""


class DescriptionLock:
    """OFD locks."""

    def acquire(self, path: str, directory: int) -> int:
        file = os.open(path, os.O_RDWR | _OPEN, dir_fd=directory)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            os.close(file)
            raise Locked(path) from None
        except BaseException:
            os.close(file)
            raise
        return file

    release = staticmethod(os.close)

    def is_held(self, path: str, directory: int) -> bool:
        file = os.open(path, os.O_RDONLY | _OPEN, dir_fd=directory)
        try:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        finally:
            os.close(file)
        kind: int = struct.unpack(_FLOCK, answer)[0]
        return kind != fcntl.F_UNLCK


class RecordLock:
    """POSIX record locks, as used by uWSGI.

    Two threads of one process can both get such a lock, and both lose it when one closes the file. So a table
    of this process lists the held files, and none of them is opened again.
    """

    _table: set[tuple[int, int, int]] = set()
    _guard = threading.Lock()

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int, int]] = {}

    def acquire(self, path: str, directory: int) -> int:
        key = self._key(path, directory)
        with self._guard:
            if key in self._table:
                raise Locked(path)
            self._table.add(key)
        try:
            file = os.open(path, os.O_RDWR | _OPEN, dir_fd=directory)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                os.close(file)
                if isinstance(error, BlockingIOError | PermissionError):
                    raise Locked(path) from None
                raise
        except BaseException:
            with self._guard:
                self._table.discard(key)
            raise
        self._held[file] = key
        return file

    def release(self, file: int) -> None:
        key = self._held.pop(file)
        os.close(file)
        with self._guard:
            self._table.discard(key)

    def is_held(self, path: str, directory: int) -> bool:
        with self._guard:
            if self._key(path, directory) in self._table:
                return True
        with suppress(Locked):
            self.release(self.acquire(path, directory))
            return False
        return True

    @staticmethod
    def _key(path: str, directory: int) -> tuple[int, int, int]:
        """Return the file's key in this process: a forked child inherits no record lock."""
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
        return os.getpid(), status.st_dev, status.st_ino


def best_lock(place: str = "", mounts: str = "/proc/self/mounts") -> FileLock:
    """Return OFD locks if the system has them; record locks elsewhere, and if the directory *place* is on a
    network file system, which only supports those. mounts: the file that lists the mounts."""
    if not hasattr(fcntl, "F_OFD_SETLK") or _is_remote(os.path.realpath(place), mounts):
        return RecordLock()
    return DescriptionLock()


def _is_remote(place: str, mounts: str) -> bool:
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            found = [line.split(" ")[1:3] for line in lines if line.count(" ") >= 2]
    except OSError:
        return False
    inside = [(len(point), kind) for point, kind in map(_mount, found) if _is_below(place, point)]
    # The latest mount hides those below it.
    return bool(inside) and max(reversed(inside), key=lambda each: each[0])[1].startswith(_REMOTE)


def _mount(fields: list[str]) -> tuple[str, str]:
    """Return mount point and type, with octal escapes decoded."""
    point, kind = fields
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point), kind


def _is_below(place: str, point: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
