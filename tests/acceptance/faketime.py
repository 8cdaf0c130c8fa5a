"""Faketime: processes whose wall clock differs from the machine's; it can be set and sped up while they
run.

Comes from:  tests of schedules.
Goes to:     libfaketime, which intercepts the clock functions of the process.
Thread:      the test's.

Monotonic clocks are not changed. Without faketime the test is skipped; if CI is set it fails.
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
"""libfaketime (0.9.10) mistakes the monotonic deadline of Python's sleep() for one of the wall clock."""


class WallClock:
    """The wall clock of processes that are started with ``environment``. path: a directory. start: its
    time now, in epoch seconds."""

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
        """Its time in epoch seconds, unless run() has changed its speed."""
        return time.time() + self._ahead

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self._ahead += seconds
        self._write(f"{self._ahead:+.6f}")

    def set(self, instant: float) -> None:
        """Set it to an epoch second."""
        self.step(instant - self.now())

    def run(self, rate: float) -> None:
        """Let it run *rate* times faster from now on. It begins at a full second."""
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.now()))
        self._write(f"@{shown} x{rate:g}")

    def _write(self, text: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(text + "\n")
        new.replace(self._file)


def library() -> str:
    """The value for LD_PRELOAD."""
    program = shutil.which("faketime")
    if program is None:
        message = "no faketime here: install the package faketime"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    printed = subprocess.run(
        [program, "-m", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return printed.stdout.strip()
