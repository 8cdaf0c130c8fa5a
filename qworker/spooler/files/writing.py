"""Writer: puts new jobs into a spool directory, atomically.

Comes from:  anything with a job for a spooler, ours or uWSGI's.
Goes to:     a spool file: written under a temporary name in the same directory, then renamed.
Thread:      any; a Writer is immutable.

A job gets its name when it is complete, and spoolers ignore other names; so no lock is needed. The due time
of a job is the file's modification time: whole seconds, rounded up, since uWSGI ignores fractions.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from functools import cache
from typing import NamedTuple, TypeAlias

from qworker.clock import SYSTEM_CLOCK, Clock, from_epoch, to_epoch
from qworker.errors import SpoolError
from qworker.process.crash_points import crash_point
from qworker.spooler.files.packet import TEMPORARY, Pairs, encode, job_name, priority_name
from qworker.spooler.files.place import prepared

logger = logging.getLogger(__name__)

STALE_SECONDS = 3600.0
"""A temporary file that has not changed for so long was left by a writer that died."""


class Sync(Enum):
    """What is synced to disk before a job counts as written."""

    NOTHING = "nothing"
    """As with uWSGI: the system writes the job within half a minute or so. The death of a process loses
    nothing."""
    FILE = "file"
    """The job, but not yet its name."""
    DIRECTORY = "directory"
    """The job and its name."""


class NewJob(NamedTuple):
    """A job to write. at: when it is due, epoch seconds or a datetime; None or 0: now. name: of its file; "":
    a new one."""

    pairs: Pairs
    body: bytes = b""
    at: float | datetime | None = None
    priority: str | bytes | int = ""
    name: str = ""


_Draft: TypeAlias = tuple[str, str, str]
"""A written job that does not have its name yet: its folder, its temporary path, and its final path."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Writer:
    """A spool directory, for writing.

    words: priorities may be other names than numbers; spoolers do not enter their directories. shared:
    everybody may write to the directory. exact: due times keep their fractions, which uWSGI ignores.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Sync = Sync.NOTHING,
        words: bool = False,
        shared: bool = False,
        exact: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path = prepared(path, shared=shared)
        self._exact = exact
        self._sync = sync
        self._words = words
        self._clock = clock

    def write(
        self,
        pairs: Pairs,
        body: bytes = b"",
        *,
        at: float | datetime | None = None,
        priority: str | bytes | int = "",
        packet: bytes = b"",
    ) -> str:
        """Write one job and return the path of its file. packet: the encoded pairs; b"": *pairs* are encoded
        here.

        SpoolError when it cannot be written; then no file is left.
        """
        drafts = [self._draft(pairs, body, at, priority, packet=packet)]
        try:
            if self._sync is not Sync.NOTHING:
                self._sync_drafts(drafts)
            self._name(drafts)
        except BaseException:
            _forget(drafts)
            raise
        return drafts[0][2]

    def write_many(self, jobs: Iterable[NewJob]) -> list[str]:
        """Write several jobs and return the paths of their files, in order. They are synced together.

        They get their names when all are written: after a SpoolError none of them exists.
        """
        return write_together([(self, jobs)])

    def _draft(
        self,
        pairs: Pairs,
        body: bytes,
        at: float | datetime | None,
        priority: str | bytes | int,
        name: str = "",
        packet: bytes = b"",
    ) -> _Draft:
        packet = packet or encode(pairs)
        due = _due(at, exact=self._exact) if at else 0
        try:
            folder = self.path
            if priority or priority == 0:
                folder = self._folder(priority_name(priority, words=self._words))
            name = name or job_name(self._clock.now())
            path = f"{folder}/{TEMPORARY}{name}"
            file = os.open(path, _NEW, 0o600)
        except OSError as error:
            raise self._failed(error) from error
        try:
            crash_point("spool file opened")
            _write(file, packet, body)
            crash_point("spool file written")
            if due:
                os.utime(file, (due, due))
        except BaseException as error:
            os.unlink(path)
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise
        finally:
            os.close(file)
        return folder, path, f"{folder}/{name}"

    def _folder(self, priority: str) -> str:
        """Return the directory of a priority, created if missing."""
        if not priority:
            return self.path
        folder = f"{self.path}/{priority}"
        with suppress(FileExistsError):
            os.mkdir(folder, stat.S_IMODE(os.stat(self.path).st_mode))  # not wider, whatever the umask
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise SpoolError(f"{folder} is not a directory, so no job of that priority can be written")
        return folder

    def _sync_drafts(self, drafts: list[_Draft]) -> None:
        if not drafts or self._sync is Sync.NOTHING:
            return
        try:
            sync_all([temporary for _, temporary, _ in drafts])
        except OSError as error:
            raise self._failed(error) from error

    def _name(self, drafts: list[_Draft]) -> None:
        """Rename each of *drafts* to its final name."""
        try:
            for _, temporary, path in drafts:
                crash_point("spool file ready")
                os.rename(temporary, path)
            crash_point("spool file named")
            if self._sync is Sync.DIRECTORY:
                # The directory itself, too: it contains the names of the priorities.
                for folder in {self.path, *(folder for folder, _, _ in drafts)}:
                    sync(folder)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> SpoolError:
        return SpoolError(
            f"no spool file can be written in {self.path}: {error.strerror or error}; nothing was enqueued"
        )


def write_together(several: Iterable[tuple[Writer, Iterable[NewJob]]]) -> list[str]:
    """Write the jobs of each writer, and return the paths of all their files, in order.

    They get their names when all are written. After a SpoolError none of them exists: files that have their
    names are removed, since the caller will write them again; a spooler may have begun one.
    """
    drafts: list[tuple[Writer, list[_Draft]]] = []
    try:
        for writer, jobs in several:
            own: list[_Draft] = []
            drafts.append((writer, own))
            for job in jobs:
                own.append(writer._draft(*job))
        for writer, own in drafts:
            writer._sync_drafts(own)
        for writer, own in drafts:
            writer._name(own)
    except BaseException:
        _forget([draft for _, own in drafts for draft in own])
        raise
    return [path for _, own in drafts for _, _, path in own]


def _forget(drafts: list[_Draft]) -> None:
    """Remove the files of *drafts*, whether they have their final names or not."""
    for _, temporary, path in drafts:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            with suppress(OSError):
                os.unlink(path)
        except OSError:
            pass


def _due(at: float | datetime | None, *, exact: bool) -> float:
    """Return when a job is due, epoch seconds, rounded up unless *exact*; 0: at once."""
    if not at:
        return 0
    try:
        due = to_epoch(at)
        from_epoch(due)
    except (TypeError, ValueError) as error:
        raise SpoolError(f"the due time of a job must be a datetime or epoch seconds: {error}") from None
    return due if exact else math.ceil(due)


def _write(file: int, packet: bytes, body: bytes) -> None:
    written = os.writev(file, (packet, body)) if body else os.write(file, packet)
    # A system writes at most 2 GB at a time, or what fits on a full disk
    if written < len(packet) + len(body):
        rest = memoryview(packet + body)[written:]
        while rest:
            rest = rest[os.write(file, rest) :]


def sweep(path: str | os.PathLike[str], *, older_than: float = STALE_SECONDS) -> int:
    """Remove the temporary files in the spool directory *path* and its priorities that no writer has touched
    for *older_than* seconds; return how many."""
    removed = 0
    latest = time.time() - older_than
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(TEMPORARY):
                with suppress(OSError):  # its writer has just renamed it
                    # The inode's change time: the modification time may be the due time.
                    if os.lstat(f"{folder}/{name}").st_ctime < latest:
                        os.unlink(f"{folder}/{name}")
                        removed += 1
    return removed


# -- Syncing files and names to the disk, to survive a power loss --

FEW = 2
"""Up to this many files are synced one by one: syncfs() also waits for other processes' writes."""


def sync(path: str) -> None:
    """Sync the file or directory *path* to the disk."""
    _with_open(path, os.fsync)


def sync_all(paths: Sequence[str]) -> None:
    """Sync all these files, which are on one file system, to the disk."""
    syncfs = _syncfs() if len(paths) > FEW else None
    if syncfs is not None:
        _with_open(paths[0], syncfs)
    else:
        for path in paths:
            sync(path)


def _with_open(path: str, call: Callable[[int], object]) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(file)
    finally:
        os.close(file)


@cache
def _syncfs() -> Callable[[int], None] | None:
    """Return the system call syncfs(); None where it is missing."""
    import ctypes  # only needed to write many jobs durably

    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    def syncfs(file: int) -> None:
        if call(file) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return syncfs
