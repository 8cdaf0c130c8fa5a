"""Spool directories of tests: a fake clock set to the time of the file system, and running jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from qworker.spooler.watching.directory import SpoolDirectory
from qworker.testing import FakeClock

ANOTHER_FILE_SYSTEM = Path("/dev/shm")


def clock_of_files(ahead: int = 2) -> FakeClock:
    """A fake clock set that many seconds ahead: everything that a test writes until then is due."""
    return FakeClock(now=float(int(time.time()) + ahead))


def work_off(directory: SpoolDirectory) -> list[dict[bytes, bytes]]:
    """Claim and finish all due jobs; return their pairs in order."""
    done = []
    while (claim := directory.next()) is not None:
        done.append(claim.pairs)
        claim.finish()
    return done


def files(place: Path | str) -> list[str]:
    """The relative paths of all files below *place*."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), place)
        for folder, _, names in os.walk(place)
        for name in names
    )


@contextmanager
def beside_or_far(where: str, beside: Path) -> Iterator[Path]:
    """A new directory in *beside* if *where* is "beside", otherwise one on another file system."""
    if where == "beside":
        path = beside / "elsewhere"
        path.mkdir()
        yield path
        return
    if not ANOTHER_FILE_SYSTEM.is_dir() or os.stat(ANOTHER_FILE_SYSTEM).st_dev == os.stat(beside).st_dev:
        pytest.skip(f"{ANOTHER_FILE_SYSTEM} is no file system of its own: mount a tmpfs there")
    with TemporaryDirectory(dir=ANOTHER_FILE_SYSTEM) as name:
        yield Path(name)
