"""Attempts: how often a job was begun, and given back, stored with its file, so that it survives crashes.

Comes from:  ``claiming`` and ``administration``, under the job's lock.
Goes to:     an extended attribute of the file, which moves with it; a file below ``.qw-attempts`` where the
             file system has no attributes.
Thread:      the holder of the claim.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from contextlib import suppress
from typing import NamedTuple

from qworker.clock import from_epoch, parse_iso
from qworker.errors import SpoolError
from qworker.process.crash_points import crash_point
from qworker.spooler.files.packet import DEAD, job_path

logger = logging.getLogger(__name__)

ATTRIBUTE = "user.qworker.attempts"
RETURNS = "user.qworker.returns"
FOLDER = ".qw-attempts"
_NONE_HERE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)


class Attempts:
    """The attempts of the jobs in one spool directory, whose descriptor is *directory*. attribute: its name.
    suffix: of the file that replaces the attribute where it is not supported."""

    def __init__(
        self,
        directory: int,
        *,
        attribute: str = ATTRIBUTE,
        suffix: str = "",
        attributes: bool = hasattr(os, "setxattr"),
    ) -> None:
        self._directory = directory
        self._attribute = attribute
        self._suffix = suffix
        self._attributes = attributes

    def read(self, file: int | str, name: str) -> int:
        """Return how many times the job was begun; 0 when unknown. file: its descriptor, or its absolute
        path."""
        if self._attributes:
            try:
                return _number(os.getxattr(file, self._attribute))
            except OSError as error:
                if error.errno not in _NONE_HERE:
                    return 0
                self._attributes = False
        with suppress(OSError):
            noted = os.open(
                self._noted(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._directory
            )
            with open(noted, "rb") as stream:
                return _number(stream.read(20))
        return 0

    def count_first(self, file: int) -> bool:
        """Count the first attempt, in one step; False, with nothing counted, if it may not be the first."""
        if self._attributes:
            try:
                os.setxattr(file, self._attribute, b"1", os.XATTR_CREATE)
                return True
            except OSError:  # it exists, is not supported, or the disk is full: count() reports
                pass
        return False

    def count(self, file: int, name: str) -> int:
        """Count one more attempt, and return its number."""
        if self.count_first(file):
            return 1
        number = self.read(file, name) + 1
        self.write(file, name, number)
        return number

    def write(self, file: int, name: str, attempts: int) -> None:
        """Store the number of attempts. If that fails, as on a full disk, the job still runs."""
        try:
            if self._attributes:
                try:
                    os.setxattr(file, self._attribute, b"%d" % attempts)
                    return
                except OSError as error:
                    if error.errno not in _NONE_HERE:
                        raise
                    self._attributes = False
            with suppress(FileExistsError):
                os.mkdir(FOLDER, 0o700, dir_fd=self._directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            noted = os.open(self._noted(name), flags, 0o600, dir_fd=self._directory)
            try:
                os.write(noted, b"%010d" % attempts)  # always the same length, so it replaces the old number
            finally:
                os.close(noted)
        except OSError as error:
            logger.warning("attempt %d of %s cannot be recorded: %s", attempts, name, error.strerror)

    def _noted(self, name: str) -> str:
        return f"{FOLDER}/{name}{self._suffix}"

    def reset(self, file: int, name: str) -> None:
        """Set the count to 0. OSError when that cannot be stored."""
        if self.read(file, name) and self._attributes:
            os.removexattr(file, self._attribute)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Remove the count of a deleted job; an attribute was deleted with its file."""
        if not self._attributes:
            with suppress(OSError):
                os.unlink(self._noted(name), dir_fd=self._directory)


def returns_of(directory: int) -> Attempts:
    """Return the counter of returns: if a job was begun more often than returned, its process has died."""
    return Attempts(directory, attribute=RETURNS, suffix=".returns")


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


# -- Files that were set aside: they cannot be run, or have failed too often; kept with the reason --
# Thread: the holder of the claim.
# No spooler reads that directory. A file that is moved back is a job again.

LONGEST_NOTE = 65_536


class Note(NamedTuple):
    """The note of a file that was set aside. path: its former path. at: epoch seconds; 0.0 when unknown."""

    path: str
    reason: str = "nothing was noted"
    attempts: int = 0
    at: float = 0.0


def set_aside(directory: int, path: str, *, reason: str, attempts: int, now: float) -> None:
    """Set *path* aside, in the spool directory whose descriptor is *directory*, and write a note with the
    reason. OSError when that fails; then the file is still in its place."""
    name = path.rpartition("/")[2]
    note = {"path": path, "reason": reason, "attempts": attempts, "at": from_epoch(now).isoformat()}
    with suppress(FileExistsError):
        os.mkdir(DEAD, 0o700, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(note_name(name), flags, 0o600, dir_fd=directory)
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(note, stream)
    crash_point("spool note written")
    os.rename(path, f"{DEAD}/{name}", src_dir_fd=directory, dst_dir_fd=directory)


def note_name(name: str) -> str:
    """Return the path of the note beside the file *name*."""
    return f"{DEAD}/{name}.json"


def read_note(directory: int, name: str) -> Note:
    """Return the note of the set-aside file *name*. A note that cannot be read, or whose path is not a job's,
    counts as missing."""
    try:
        file = os.open(note_name(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
        with open(file, "rb") as stream:
            noted = json.loads(stream.read(LONGEST_NOTE))
        path, reason, attempts = noted["path"], noted["reason"], noted["attempts"]
        if job_path(path).rpartition("/")[2] == name and isinstance(reason, str):
            return Note(path, reason, int(attempts), parse_iso(noted["at"]).timestamp())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, SpoolError):
        pass
    return Note(name)
