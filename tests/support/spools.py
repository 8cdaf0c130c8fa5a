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

FILE_SYSTEMS = (Path("/dev/shm"), Path("/tmp"))


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
    here = os.stat(beside).st_dev
    others = [each for each in FILE_SYSTEMS if each.is_dir() and os.stat(each).st_dev != here]
    if not others:
        pytest.skip(f"no other file system is at {' or '.join(map(str, FILE_SYSTEMS))}: mount a tmpfs there")
    with TemporaryDirectory(dir=others[0]) as name:
        yield Path(name)
