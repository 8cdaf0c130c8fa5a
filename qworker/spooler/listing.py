"""Listing: what lies in a spool directory, for people: the jobs that wait, and those that were set aside.

Comes from:  ``administration``.
Goes to:     one entry for each file, as it comes; no packet is read.
Thread:      any.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from qworker.spooler.aside import Note, read_note
from qworker.spooler.attempts import Attempts
from qworker.spooler.locks import FileLock
from qworker.spooler.names import DEAD, PREFIX, natural_key
from qworker.spooler.scanning import scan_in_order


class Waiting(NamedTuple):
    """A job that waits or is run. path: its name, with its priority before it. due: epoch seconds. running:
    whether somebody has its lock; None when its file may not be opened."""

    path: str
    size: int
    due: float
    attempts: int
    running: bool | None

    @property
    def priority(self) -> str:
        """The directory that it lies in; '' for none."""
        return self.path.rpartition("/")[0]


class Aside(NamedTuple):
    """A job that was set aside."""

    name: str
    size: int
    note: Note


def waiting(place: str, directory: int, attempts: Attempts, lock: FileLock) -> Iterator[Waiting]:
    """The jobs in the spool directory *place*, and in its priorities, in natural order."""
    for path, _ in scan_in_order(place, math.inf, lambda folder: None):
        with suppress(FileNotFoundError):  # it has just been done
            yield look(place, path, directory, attempts, lock)


def look(place: str, path: str, directory: int, attempts: Attempts, lock: FileLock) -> Waiting:
    """One of them. OSError when it is not there."""
    status = os.stat(path, dir_fd=directory, follow_symlinks=False)
    try:
        running: bool | None = lock.is_held(path, directory)
    except FileNotFoundError:
        raise
    except OSError:
        running = None
    begun = attempts.read(f"{place}/{path}", path.rpartition("/")[2])
    return Waiting(path, status.st_size, status.st_mtime, begun, running)


def aside(place: str, directory: int) -> Iterator[Aside]:
    """The jobs that were set aside there, in natural order. OSError when that cannot be read."""
    for name in sorted(aside_names(place), key=natural_key):
        with suppress(FileNotFoundError):  # it has just gone
            status = os.stat(f"{DEAD}/{name}", dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield Aside(name, status.st_size, read_note(directory, name))


def aside_names(place: str) -> list[str]:
    """Their names, in no order; none is looked at."""
    try:
        names = set(os.listdir(f"{place}/{DEAD}"))
    except FileNotFoundError:
        return []
    # The note may be older than its file, or be left; a job whose own name ends so has a note besides.
    return [
        name
        for name in names
        if name.startswith(PREFIX) and (not name.endswith(".json") or f"{name}.json" in names)
    ]
