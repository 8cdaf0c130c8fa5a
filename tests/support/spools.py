"""Spool directories of tests: a clock that stands at the file system's time, and jobs worked off."""

from __future__ import annotations

import os
import time
from pathlib import Path

from qworker.spooler.directory import SpoolDirectory
from qworker.testing import FakeClock


def clock_of_files() -> FakeClock:
    """A clock that stands still a moment from now, so that what a test writes is due."""
    return FakeClock(now=float(int(time.time()) + 2))


def work_off(directory: SpoolDirectory) -> list[dict[bytes, bytes]]:
    """Claim and finish whatever is due; what the jobs said, in order."""
    done = []
    while (claim := directory.next()) is not None:
        done.append(claim.pairs)
        claim.finish()
    return done


def files(place: Path | str) -> list[str]:
    """Every file below *place*, by its path there."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), place)
        for folder, _, names in os.walk(place)
        for name in names
    )
