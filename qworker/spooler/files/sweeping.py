"""Sweeping: removes files that dead processes left in spool directories.

Comes from:  a spooler that starts.
Goes to:     the directories: files of writers that died, attempt counts of jobs that are gone, and notes of
             jobs that were never set aside. No job is touched.
Thread:      any. Several may sweep at the same time, while spoolers are running.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from qworker.spooler.files.attempts import FOLDER as ATTEMPTS
from qworker.spooler.files.packet import DEAD, PREFIX
from qworker.spooler.files.writing import STALE_SECONDS, sweep

logger = logging.getLogger(__name__)


def sweep_all(places: Iterable[str], *, older_than: float = STALE_SECONDS) -> int:
    """Remove such files from each directory if they have not changed for *older_than* seconds; return their
    number. Files that cannot be read or removed are skipped."""
    removed = 0
    for place in places:
        found = sweep(place, older_than=older_than)
        found += _sweep_folder(place, DEAD, _names(f"{place}/{DEAD}"), older_than)
        if _names(f"{place}/{ATTEMPTS}"):  # only if the file system has no attributes
            found += _sweep_folder(place, ATTEMPTS, _jobs(place), older_than)
        if found:
            logger.info("removed %d files of dead processes in %s", found, place)
        removed += found
    return removed


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _jobs(place: str) -> set[str]:
    """Return the names of all jobs, including those in priorities and those set aside."""
    jobs: set[str] = set()
    for _, folders, names in os.walk(place):
        folders[:] = [name for name in folders if name != ATTEMPTS]
        jobs.update(name for name in names if name.startswith(PREFIX))
    return jobs


def _sweep_folder(place: str, folder: str, jobs: Collection[str], older_than: float) -> int:
    """Remove files about jobs that are not in *jobs*. Such files in DEAD end in .json."""
    removed = 0
    latest = time.time() - older_than
    known = set(jobs)
    for name in _names(f"{place}/{folder}"):
        job, dot, kind = name.rpartition(".")
        about = job if dot and kind in ("json", "returns") else name
        if not about.startswith(PREFIX) or about in known or (folder == DEAD and kind != "json"):
            continue
        with suppress(OSError):
            if os.lstat(f"{place}/{folder}/{name}").st_ctime < latest:
                os.unlink(f"{place}/{folder}/{name}")
                removed += 1
    return removed
