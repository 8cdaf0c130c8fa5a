"""Claims: a job is claimed by locking its file, and the claim ends in one of several ways.

Comes from:  ``directory``, which knows which file to try.
Goes to:     a ClaimedFile, held until the job has ended; or a Refusal, with the time of the next try.
Thread:      any thread may end a claim; a ClaimedFile is used by one thread at a time.

Every check is repeated under the lock: the file must still have its name, be a plain file of an allowed
owner, and be due.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, TypeAlias

from qworker.clock import Clock
from qworker.errors import InvalidPacket
from qworker.process.crash_points import crash_point
from qworker.safe_repr import printable
from qworker.spooler.files.attempts import Attempts, returns_of, set_aside
from qworker.spooler.files.locks import FileLock, Locked
from qworker.spooler.files.packet import Head, read_body, read_head

logger = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""A file that is not a packet is set aside when it has not changed for so long: its writer may be slow."""
BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EIO)
"""Temporary errors, which are not about the file."""


class Reason(Enum):
    """Why a job cannot be claimed now."""

    GONE = "gone"
    LOCKED = "locked"
    NOT_DUE = "not due"
    INCOMPLETE = "no packet, or an incomplete one"
    NO_FILE = "no plain file"
    UNTRUSTED_OWNER = "the owner may not run code here"
    UNREADABLE = "may not be read and written"
    DECLINED = "not for this process"
    ERROR = "the system failed"


Stamp: TypeAlias = "tuple[int, int, int, int]"
"""Inode, size, and times of modification and change: equal if the file is unchanged."""


class Refusal(NamedTuple):
    """until: when to try again, epoch seconds; infinity: after the file has changed or was unlocked."""

    reason: Reason
    until: float = math.inf
    stamp: Stamp | None = None


GONE = Refusal(Reason.GONE)
Ended: TypeAlias = "Callable[[str, Refusal | None], None]"
"""Called when a claim has ended, with the path, and when it may be claimed again (None: never)."""


class ClaimedFile:
    """A claimed job, whose file is locked. It ends with finish(), give_back(), give_back_for(), let_go(),
    decline() or set_aside(); a context manager calls give_back() if it has not ended.

    path: its file, relative to the spool directory. name: of the file, which is the job's id. pairs: its
    content. inode: of the file. is_over: whether it has ended, and the job no longer exists here.
    """

    __slots__ = ("_file", "_head", "_place", "inode", "is_over", "name", "pairs", "path")

    def __init__(self, path: str, file: int, inode: int, head: Head, place: ClaimedPlace) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.inode = inode
        self.is_over = False
        self.pairs = head.pairs
        self._head = head
        self._file = file
        self._place = place

    @property
    def body(self) -> bytes:
        """Return the body after the pairs. A large one is read again at each access, while the claim is
        held."""
        body = self._head.body
        return read_body(self._file, self._head.start) if body is None else body

    @property
    def attempts(self) -> int:
        """Return how many times the job was begun, as far as counted."""
        return self._place.attempts.read(self._file, self.name)

    @property
    def returns(self) -> int:
        """Return how many times the job was given back by a process that survived."""
        return self._place.returns.read(self._file, self.name)

    def changed(self) -> float:
        """Return when the file, or its attributes, last changed, epoch seconds."""
        return os.fstat(self._file).st_ctime

    @property
    def held(self) -> bool:
        """Return whether it has not ended yet."""
        return self._file >= 0

    def stamp(self) -> Stamp:
        """Return a value that changes when the file does."""
        return stamp_of(os.fstat(self._file))

    def begin_first(self) -> bool:
        """Like begin(), if this is certainly the first attempt; otherwise return False, and count nothing."""
        first = self._place.attempts.count_first(self._file)
        if first:
            crash_point("spool job begun")
        return first

    def begin(self) -> int:
        """Count an attempt and return its number, from 1. Call this before the job is run, so that a crash
        counts, too."""
        number = self._place.attempts.count(self._file, self.name)
        crash_point("spool job begun")
        return number

    def finish(self) -> bool:
        """Remove the file of the finished job. Return False, after logging a warning, if it no longer
        existed. OSError when it cannot be removed; then the claim is still held."""
        place = self._place
        try:
            os.unlink(self.path, dir_fd=place.directory)
            there = True
        except FileNotFoundError:
            there = False
            moved = os.fstat(self._file).st_nlink
            logger.warning(
                "%s was %s while its job ran", self.path, "moved, and will run again" if moved else "removed"
            )
        crash_point("spool file removed")
        place.attempts.forget(self.name)
        place.returns.forget(self.name)
        self._let_go(None)
        return there

    def count_return(self) -> None:
        """Count a return of the job, which was begun."""
        self._place.returns.count(self._file, self.name)

    def give_back(self, delay: float = 0.0, *, returned: bool = False, attempts: int | None = None) -> None:
        """Release the job, to run again in *delay* seconds; every spooler respects that, uWSGI's in whole
        seconds.

        returned: count it among its returns. attempts: how often it counts as begun; None: as it was.
        """
        self._set_attempts(attempts)
        if returned:
            self.count_return()
        now = self._place.clock.now()
        with suppress(PermissionError):  # the file of another user: then only this process respects the delay
            os.utime(self._file, (now, now + delay))
        crash_point("spool file given back")
        self._let_go(Refusal(Reason.NOT_DUE, now + delay, stamp_of(os.fstat(self._file))))

    def due(self) -> float:
        """Return when it was due, epoch seconds."""
        return os.fstat(self._file).st_mtime

    def note_returns(self, number: int) -> None:
        """Store the number of its returns."""
        self._place.returns.write(self._file, self.name, number)

    def give_back_for(self, due: float) -> None:
        """Release the job, to run again at *due*, epoch seconds."""
        os.utime(self._file, (due, due))
        crash_point("spool file given back")
        self._let_go(Refusal(Reason.NOT_DUE, due, stamp_of(os.fstat(self._file))))

    def let_go(self, attempts: int | None = None) -> None:
        """Release the job as if it had never been claimed; this process may claim it again, too. attempts:
        how often it counts as begun; None: unchanged."""
        self._set_attempts(attempts)
        now = self._place.clock.now()
        self._let_go(Refusal(Reason.NOT_DUE, now, stamp_of(os.fstat(self._file))))

    def leave_to_parent(self) -> None:
        """In a forked child: close the file, so that the lock ends with the parent."""
        file, self._file = self._file, -1
        os.close(file)

    def decline(self) -> None:
        """Leave the job to another process: it is not offered to this one again, unless its file changes."""
        self._let_go(Refusal(Reason.DECLINED, math.inf, stamp_of(os.fstat(self._file))))

    def set_aside(self, reason: str) -> None:
        """Move the file to ``.qw-dead`` with the reason; the job does not run again. OSError when that fails;
        then the claim is still held."""
        self._place.put_aside(self._file, self.path, reason)
        self._let_go(None)

    def _set_attempts(self, attempts: int | None) -> None:
        if attempts is not None and attempts != self.attempts:
            self._place.attempts.write(self._file, self.name, attempts)

    def __enter__(self) -> ClaimedFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            self.give_back()

    def _let_go(self, refusal: Refusal | None) -> None:
        file, self._file = self._file, -1
        self.is_over = refusal is None
        self._place.lock.release(file)
        self._place.ended(self.path, refusal)


class ClaimedPlace:
    """A spool directory, for claiming.

    directory: its descriptor. owners: user ids whose jobs are run. grace: see GRACE_SECONDS.
    """

    def __init__(
        self,
        directory: int,
        *,
        lock: FileLock,
        owners: Collection[int],
        grace: float,
        clock: Clock,
        ended: Ended,
    ) -> None:
        self.directory = directory
        self.lock = lock
        self.clock = clock
        self.ended = ended
        self.attempts = Attempts(directory)
        self.returns = returns_of(directory)
        self._owners = frozenset(owners)
        self._grace = grace

    def claim(self, path: str) -> ClaimedFile | Refusal:
        """Try to claim the job in the file *path*. Never waits."""
        try:
            file = self.lock.acquire(path, self.directory)
        except Locked:
            return Refusal(Reason.LOCKED)
        except OSError as error:
            return self._unopened(path, error)
        try:
            found = self._locked(path, file)
        except OSError as error:
            found = self._unopened(path, error)
        except BaseException:
            self.lock.release(file)
            raise
        if isinstance(found, Refusal):
            self.lock.release(file)
            return found
        crash_point("spool file claimed")
        return found

    def look(self, path: str, known: Refusal) -> Refusal | None:
        """Check whether the refused *path* is still refused, without opening it for writing; None if it may
        be claimed."""
        try:
            status = os.stat(path, dir_fd=self.directory, follow_symlinks=False)
            now = self.clock.now()
            if status.st_mtime > now:
                return Refusal(Reason.NOT_DUE, status.st_mtime, stamp_of(status))
            if known.reason is Reason.LOCKED:
                # until: infinity, because trying again at once would never end.
                return Refusal(Reason.LOCKED) if self.lock.is_held(path, self.directory) else None
        except OSError as error:
            return self._unopened(path, error)
        return known if known.until > now and known.stamp == stamp_of(status) else None

    def put_aside(self, file: int, path: str, reason: str) -> None:
        """Move a held file to ``.qw-dead`` and log that. OSError when that fails."""
        name = path.rpartition("/")[2]
        attempts = self.attempts.read(file, name)
        set_aside(self.directory, path, reason=reason, attempts=attempts, now=self.clock.now())
        self.attempts.forget(name)
        self.returns.forget(name)
        logger.warning("%s is set aside: %s", path, printable(reason))

    def _locked(self, path: str, file: int) -> ClaimedFile | Refusal:
        """Return the claim of a locked file, or why it cannot be run."""
        status = os.fstat(file)
        # The previous holder may have removed or moved the file since it was opened here.
        if not status.st_nlink or not os.access(path, os.F_OK, dir_fd=self.directory):
            return GONE
        if not stat.S_ISREG(status.st_mode):
            return Refusal(Reason.NO_FILE, math.inf, stamp_of(status))
        if status.st_uid not in self._owners:
            logger.warning("%s is left alone: user %d may not run code here", path, status.st_uid)
            return Refusal(Reason.UNTRUSTED_OWNER, math.inf, stamp_of(status))
        if status.st_mtime > self.clock.now():
            return Refusal(Reason.NOT_DUE, status.st_mtime, stamp_of(status))
        try:
            head = read_head(file, status.st_size)
        except InvalidPacket as error:
            return self._invalid(path, file, status, str(error))
        return ClaimedFile(path, file, status.st_ino, head, self)

    def _invalid(self, path: str, file: int, status: os.stat_result, reason: str) -> Refusal:
        until = max(status.st_ctime, status.st_mtime) + self._grace
        if until > self.clock.now():
            return Refusal(Reason.INCOMPLETE, until, stamp_of(status))
        try:
            self.put_aside(file, path, f"it is not a spool file: {reason}")
        except OSError as error:
            logger.warning("%s is not a spool file, and cannot be set aside: %s", path, error.strerror)
            return Refusal(Reason.INCOMPLETE, math.inf, stamp_of(status))
        return GONE

    def _unopened(self, path: str, error: OSError) -> Refusal:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return GONE
        if error.errno in BUSY:
            return Refusal(Reason.ERROR, self.clock.now() + 1.0)
        if error.errno in (errno.EACCES, errno.EPERM):
            reason = Reason.UNREADABLE
            logger.warning("%s is left alone: %s", path, error.strerror)
        elif error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            reason = Reason.NO_FILE
        else:
            reason = Reason.ERROR
            logger.warning("%s is left alone: %s", path, error.strerror)
        try:
            stamp = stamp_of(os.stat(path, dir_fd=self.directory, follow_symlinks=False))
        except OSError:
            return GONE
        return Refusal(reason, math.inf, stamp)


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
