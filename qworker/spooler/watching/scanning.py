"""Scanning: listing a spool directory, one entry at a time.

Comes from:  ``directory``, at the start and from time to time.
Goes to:     entries with their due times; files are not opened.
Thread:      the SpoolDirectory's.

Without an order, the directory's own files come as the system lists them, and no other directory is entered.
With an order, everything comes in natural order, and directories whose names are numbers are entered in their
place, at any depth.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from qworker.spooler.files.packet import PREFIX, is_priority, natural_key

logger = logging.getLogger(__name__)


class FoundFile(NamedTuple):
    """A file with a job's name: its path in the spool directory, and when it is due, epoch seconds."""

    path: str
    due: float


def scan(place: str) -> Iterator[FoundFile]:
    """Yield the files of the spool directory *place*, in no order. OSError when it cannot be read."""
    with os.scandir(place) as entries:
        for entry in entries:
            name = entry.name
            if not name.startswith(PREFIX):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it was just deleted
                continue
            if stat.S_ISREG(status.st_mode):
                yield FoundFile(name, status.st_mtime)


def scan_in_order(
    place: str, now: float, entering: Callable[[str], None], folder: str = ""
) -> Iterator[FoundFile]:
    """Yield the files in *folder* of the spool directory *place* ('': the directory itself), and in the
    priorities there, in the order in which they should run.

    A priority with a modification time after *now* is skipped. *entering* is called with the path of each
    folder before it is listed. OSError when the first one cannot be read.
    """
    entering(folder)
    depths = [iter(_listed(place, folder))]
    while depths:
        path = next(depths[-1], None)
        if path is None:
            depths.pop()
            continue
        try:
            status = os.lstat(f"{place}/{path}")
            if not stat.S_ISDIR(status.st_mode):
                if stat.S_ISREG(status.st_mode) and path.rpartition("/")[2].startswith(PREFIX):
                    yield FoundFile(path, status.st_mtime)
            elif status.st_mtime <= now and is_priority(path.rpartition("/")[2]):
                entering(path)
                depths.append(iter(_listed(place, path)))
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s/%s is skipped: %s", place, path, error.strerror)


def priorities_with_jobs(place: str) -> list[str]:
    """Return the priorities in the spool directory *place* that have jobs, in natural order."""
    found = []
    with suppress(OSError):
        for name in filter(is_priority, os.listdir(place)):
            with suppress(OSError), os.scandir(f"{place}/{name}") as entries:
                if any(entry.name.startswith(PREFIX) for entry in entries):
                    found.append(name)
    return sorted(found, key=natural_key)


def _listed(place: str, folder: str) -> list[str]:
    """Return the paths in a folder of *place* that may be jobs or priorities, in natural order."""
    names = [name for name in os.listdir(f"{place}/{folder}") if name.startswith(PREFIX) or is_priority(name)]
    names.sort(key=natural_key)
    return [f"{folder}/{name}" for name in names] if folder else names
