"""Faketime: a process whose wall clock is not the machine's, and can be set and made to run faster while the
process runs.

Comes from:  tests of schedules.
Goes to:     libfaketime, which stands between the process and the system's clocks.
Thread:      the test's.

Monotonic clocks stay as they are. Where faketime is missing the test is skipped; where CI is set it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.harness import REPOSITORY

SLEEPING = """
import threading, time

time.sleep = lambda seconds: threading.Event().wait(seconds) and None
"""
"""libfaketime (0.9.10) takes the monotonic instant until which Python sleeps for one of the wall clock."""


class WallClock:
    """The wall clock of processes that are started with ``environment``. path: a directory. start: epoch
    seconds, which it shows now."""

    def __init__(self, path: Path, start: float) -> None:
        self._file = path / "faketime"
        (path / "sleeping").mkdir()
        (path / "sleeping" / "sitecustomize.py").write_text(SLEEPING)
        self._ahead = start - time.time()
        self.step(0.0)
        self.environment = {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "TZ": "UTC",
            "PYTHONPATH": f"{path / 'sleeping'}:{REPOSITORY}",
        }

    def now(self) -> float:
        """What it shows, in epoch seconds, while it has not been made to run faster."""
        return time.time() + self._ahead

    def step(self, seconds: float) -> None:
        """Set it forward by so much, or back."""
        self._ahead += seconds
        self._write(f"{self._ahead:+.6f}")

    def set(self, instant: float) -> None:
        """Set it to an epoch second."""
        self.step(instant - self.now())

    def run(self, rate: float) -> None:
        """Let it run so many times faster from now on. It begins at a full second."""
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.now()))
        self._write(f"@{shown} x{rate:g}")

    def _write(self, text: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(text + "\n")
        new.replace(self._file)


def library() -> str:
    """What LD_PRELOAD is to be."""
    program = shutil.which("faketime")
    if program is None:
        message = "no faketime here: install the package faketime"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    told = subprocess.run(
        [program, "-m", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()
