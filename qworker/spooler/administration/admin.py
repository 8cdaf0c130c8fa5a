"""SpoolAdmin: administration of a spool directory: listing, removing, retrying and moving jobs.

Comes from:  the command line.
Goes to:     the files, each changed under its lock, so that running jobs are not touched.
Thread:      any; one at a time.

A job is named by its path in the directory: the name of its file, preceded by its priority if it has one.
Links in the path are not followed.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from qworker.errors import InvalidPacket, SpoolError
from qworker.process.crash_points import crash_point
from qworker.safe_repr import safe_repr
from qworker.spooler.files.attempts import Attempts, Note, note_name, read_note, returns_of
from qworker.spooler.files.locks import FileLock, Locked, best_lock
from qworker.spooler.files.packet import (
    DEAD,
    HEADER,
    LARGEST,
    PREFIX,
    TEMPORARY,
    Packet,
    decode,
    job_name,
    job_path,
    natural_key,
    priority_name,
    read_whole,
)
from qworker.spooler.files.place import existing
from qworker.spooler.watching.scanning import scan_in_order

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Examined(NamedTuple):
    """A job with the content of its file. note: why it was set aside; None if it was not."""

    job: ListedJob
    content: Content
    note: Note | None


class _LockedFile(NamedTuple):
    """A locked file: its descriptor, that of its folder, and its name there."""

    file: int
    folder: int
    name: str


class SpoolAdmin:
    """path: an existing directory, ConfigurationError otherwise. writable: whether changes are allowed.
    lock: None for best_lock().

    Its methods raise SpoolError if something cannot be done with a job; the job is then unchanged.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, writable: bool = True, lock: FileLock | None = None
    ) -> None:
        self.path = existing(path, writable=writable)
        self._directory = os.open(self.path, _DIRECTORY)
        self._lock = best_lock(self.path) if lock is None else lock
        self._attempts = Attempts(self._directory)
        self._returns = returns_of(self._directory)

    def close(self) -> None:
        """Safe to call twice."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def waiting(self) -> Iterator[ListedJob]:
        """Yield the waiting and running jobs, in the order in which an ordered spooler would run them."""
        try:
            yield from waiting(self.path, self._directory, self._attempts, self._lock)
        except OSError as error:
            raise self._failed(self.path, error) from error

    def set_aside(self) -> Iterator[Aside]:
        """Yield the jobs that were set aside."""
        try:
            yield from jobs_set_aside(self.path, self._directory)
        except OSError as error:
            raise self._failed(DEAD, error) from error

    def set_aside_names(self) -> list[str]:
        """Return the names of the jobs that were set aside, without reading the files."""
        try:
            return aside_names(self.path)
        except OSError as error:
            raise self._failed(DEAD, error) from error

    def examine(self, name: str) -> Examined:
        """Return a job and its content, whether it waits, runs or was set aside."""
        path = job_path(name)
        own = _own(path)
        note = None
        if not self._is_there(path) and self._is_there(f"{DEAD}/{own}"):
            path, note = f"{DEAD}/{own}", read_note(self._directory, own)
        try:
            job = look(self.path, path, self._directory, self._attempts, self._lock)
            with self._folder(path) as folder:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                file = os.open(own, flags, dir_fd=folder)
            try:
                found = content(file)
            finally:
                os.close(file)
        except OSError as error:
            raise self._failed(path, error) from error
        if note is not None:
            job = job._replace(path=own, attempts=note.attempts)
        return Examined(job, found, note)

    def remove(self, name: str, *, dead: bool = False, first: Callable[[], object] = lambda: None) -> None:
        """Remove a waiting job. dead: one that was set aside, with its note. first: called when the job is
        locked and known to exist, before it is removed."""
        path = job_path(name)
        own = _own(path)
        if dead:
            path = f"{DEAD}/{own}"
        with self._held(path) as held:
            first()
            os.unlink(own, dir_fd=held.folder)
            if dead:
                self._remove_note(own)
            else:
                self._never_tried(held.file, own)

    def set_due(self, name: str, due: float) -> None:
        """Make a waiting job due at *due*, epoch seconds."""
        with self._held(job_path(name)) as held:
            os.utime(held.file, (due, due))

    def read_set_aside(self, name: str) -> tuple[int, Packet]:
        """Return the inode and the content of the file of a job that was set aside. InvalidPacket when it is
        not a job."""
        path = f"{DEAD}/{_own(job_path(name))}"
        with self._folder(path) as folder:
            try:
                file = os.open(
                    name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder
                )
            except OSError as error:
                raise self._failed(path, error) from error
            try:
                return os.fstat(file).st_ino, read_whole(file)
            finally:
                os.close(file)

    def retry(self, name: str, *, dead: bool = False, due: float | None = None, returns: int = 0) -> str:
        """Make a job run now, as if it had never been tried, and return its path. A job that was set aside
        goes back to its former place.

        dead: only a job that was set aside. due: the new time of its file; None: now. returns: how often it
        counts as given back.
        """
        times = None if due is None else (due, due)
        path = job_path(name)
        own = _own(path)
        if not dead and self._is_there(path):
            with self._held(path) as held:
                self._never_tried(held.file, own, returns)
                os.utime(held.file, times)
            return path
        if not self._is_there(f"{DEAD}/{own}"):
            raise self._failed(path, FileNotFoundError())
        with self._held(f"{DEAD}/{own}") as held:
            path = read_note(self._directory, own).path
            with self._room_for(path) as folder:
                self._never_tried(held.file, own, returns)
                os.utime(held.file, times)
                os.rename(own, own, src_dir_fd=held.folder, dst_dir_fd=folder)
            crash_point("spool job put back")
            self._remove_note(own)
        return path

    def move(self, name: str, to: SpoolAdmin, priority: str | None = None) -> str:
        """Move a waiting job to another spool directory or priority, and return its path. priority: '' for
        none, None: unchanged.

        Within one file system this is atomic. Between two, the job is complete at its destination before it
        is removed here, with its lock held; after a power loss in between it exists in both.
        """
        path = job_path(name)
        own = _own(path)
        folder_name = path.rpartition("/")[0] if priority is None else priority_name(priority)
        target = f"{folder_name}/{own}" if folder_name else own
        with self._held(path) as held, to._room_for(target) as folder:
            begun = self._attempts.read(held.file, own)
            try:
                os.rename(own, own, src_dir_fd=held.folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy(held.file, folder, own, to._attempts, begun)
                os.unlink(own, dir_fd=held.folder)
            else:
                if begun and to.path != self.path:
                    to._attempts.write(held.file, own, begun)
            if to.path != self.path:
                self._attempts.forget(own)
        return target

    @contextmanager
    def _held(self, path: str) -> Iterator[_LockedFile]:
        """Hold the lock of the file *path*, so that it is not run meanwhile."""
        called = path.removeprefix(f"{DEAD}/")
        name = _own(path)
        try:
            with self._folder(path) as folder:
                file = self._lock.acquire(name, folder)
                try:
                    status = os.fstat(file)
                    if not os.path.samestat(status, os.stat(name, dir_fd=folder, follow_symlinks=False)):
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                    if not stat.S_ISREG(status.st_mode):
                        raise SpoolError(f"{safe_repr(called)} is not a plain file, and is left alone")
                    yield _LockedFile(file, folder, name)
                finally:
                    self._lock.release(file)
        except Locked:
            raise SpoolError(
                f"{safe_repr(called)} is running, and is left alone: wait until it has ended"
            ) from None
        except OSError as error:
            raise self._failed(path, error) from error

    @contextmanager
    def _folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder that contains *path*. make: create missing folders."""
        folder = os.dup(self._directory)
        try:
            for part in path.split("/")[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, stat.S_IMODE(os.fstat(folder).st_mode), dir_fd=folder)
                inner = os.open(part, _DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _room_for(self, path: str) -> Iterator[int]:
        """Yield a descriptor of the folder for *path*, created if missing. SpoolError if *path* exists."""
        with self._folder(path, make=True) as folder:
            # Names contain a random number, so nobody creates the same one at this moment.
            with suppress(FileNotFoundError):
                os.stat(_own(path), dir_fd=folder, follow_symlinks=False)
                raise SpoolError(
                    f"{safe_repr(path)} is already in {safe_repr(self.path)}: remove one of them"
                )
            yield folder

    def _never_tried(self, file: int, name: str, returns: int = 0) -> None:
        self._attempts.reset(file, name)
        self._returns.reset(file, name)
        if returns:
            self._returns.write(file, name, returns)

    def _is_there(self, path: str) -> bool:
        try:
            with self._folder(path) as folder:
                os.stat(_own(path), dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _remove_note(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(note_name(name), dir_fd=self._directory)

    def _failed(self, path: str, error: OSError) -> SpoolError:
        called = safe_repr(path.removeprefix(f"{DEAD}/"))
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            return SpoolError(f"{called} in {safe_repr(self.path)} is left alone: {error.strerror}")
        if path.startswith(DEAD):
            return SpoolError(f"no job {called} was set aside: see `qworker spool ls --all`")
        if self._is_there(f"{DEAD}/{_own(path)}"):
            return SpoolError(
                f"{called} was set aside, and is not waiting: retry it, or remove it with --dead"
            )
        return SpoolError(f"there is no job {called}: see `qworker spool ls`")


def _own(path: str) -> str:
    """Return the name of a file without its folders."""
    return path.rpartition("/")[2]


# -- Copying a spool file to another file system, completely or not at all --


def copy(file: int, folder: int, name: str, attempts: Attempts, begun: int) -> None:
    """Write the content of the opened *file* as *name* in the directory whose descriptor is *folder*, with
    *begun* attempts. It gets its name when it is complete, and then survives a power loss. OSError when that
    fails; then the name does not exist, unless only the sync of the name failed."""
    status = os.fstat(file)
    temporary = TEMPORARY + job_name(time.time())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    written = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb", closefd=False) as source, open(written, "wb", closefd=False) as target:
            shutil.copyfileobj(source, target)
        with suppress(PermissionError):  # only root may change the owner
            os.fchown(written, status.st_uid, status.st_gid)
        os.fchmod(written, status.st_mode & 0o777)
        if begun:
            attempts.write(written, name, begun)
        os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(written)
        crash_point("spool copy written")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(written)
    os.fsync(folder)
    crash_point("spool copy named")


# -- Examining: the content of a spool file, for display --

BEGINNING = 4096
"""Maximum bytes of a body that are read."""


class Content(NamedTuple):
    """pairs: in the order of the file. beginning: of the body, which has body_length bytes. damage: why it is
    not a packet; '' if it is one."""

    pairs: dict[bytes, bytes]
    beginning: bytes
    body_length: int
    damage: str = ""


def content(file: int) -> Content:
    """Return the content of the opened file. SpoolError when it is not a plain file, OSError when it cannot
    be read."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise SpoolError("it is not a plain file")
    image = os.pread(file, HEADER + LARGEST + BEGINNING, 0)
    try:
        pairs, body = decode(image)
    except InvalidPacket as error:
        return Content({}, b"", 0, str(error))
    return Content(pairs, body[:BEGINNING], status.st_size - (len(image) - len(body)))


# -- Listing --
# The jobs in a spool directory, for display: waiting ones, and those that were set aside.


class ListedJob(NamedTuple):
    """A waiting or running job. path: its name, preceded by its priority. due: epoch seconds. running:
    whether its lock is held; None when its file may not be opened."""

    path: str
    size: int
    due: float
    attempts: int
    running: bool | None

    @property
    def priority(self) -> str:
        """Return the directory of its priority; '' for none."""
        return self.path.rpartition("/")[0]


class Aside(NamedTuple):
    """A job that was set aside."""

    name: str
    size: int
    note: Note


def waiting(place: str, directory: int, attempts: Attempts, lock: FileLock) -> Iterator[ListedJob]:
    """Yield the jobs in the spool directory *place* and in its priorities, in natural order."""
    for path, _ in scan_in_order(place, math.inf, lambda folder: None):
        with suppress(FileNotFoundError):  # it has just ended
            yield look(place, path, directory, attempts, lock)


def look(place: str, path: str, directory: int, attempts: Attempts, lock: FileLock) -> ListedJob:
    """Return one job. OSError when it does not exist."""
    status = os.stat(path, dir_fd=directory, follow_symlinks=False)
    try:
        running: bool | None = lock.is_held(path, directory)
    except FileNotFoundError:
        raise
    except OSError:
        running = None
    begun = attempts.read(f"{place}/{path}", path.rpartition("/")[2])
    return ListedJob(path, status.st_size, status.st_mtime, begun, running)


def jobs_set_aside(place: str, directory: int) -> Iterator[Aside]:
    """Yield the jobs that were set aside, in natural order. OSError when they cannot be read."""
    for name in sorted(aside_names(place), key=natural_key):
        with suppress(FileNotFoundError):  # it was just removed
            status = os.stat(f"{DEAD}/{name}", dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield Aside(name, status.st_size, read_note(directory, name))


def aside_names(place: str) -> list[str]:
    """Return the names of the jobs that were set aside, in no order, without reading the files."""
    try:
        names = set(os.listdir(f"{place}/{DEAD}"))
    except FileNotFoundError:
        return []
    # A note may exist before its file, or be left over. A job whose own name ends in .json has a note, too.
    return [
        name
        for name in names
        if name.startswith(PREFIX) and (not name.endswith(".json") or f"{name}.json" in names)
    ]
