"""Crash points: steps between claim and ack where tests kill this process, once, or stop one of its threads.

Comes from:  the environment variables ``QWORKER_CRASH_AT`` and ``QWORKER_HOLD_AT``, "name of the point@file
             that records that it was hit".
Goes to:     ``crash_point("claimed")`` at each step. Without the variables it does nothing, in about 45 ns.
             Steps of each task test ``if CRASHING:`` before it, in 15 ns.
Thread:      any.
"""

from __future__ import annotations

import os
import signal
import time

CRASH_AT = os.environ.get("QWORKER_CRASH_AT", "")
HOLD_AT = os.environ.get("QWORKER_HOLD_AT", "")
CRASHING = bool(CRASH_AT or HOLD_AT)

if CRASHING:

    def crash_point(name: str) -> None:
        """If this is the requested point, and is hit for the first time, kill this process, or stop this
        thread until the file is no longer empty."""
        if name == HOLD_AT.partition("@")[0] and (file := _first(HOLD_AT)):
            while not os.path.getsize(file):
                time.sleep(0.01)
        if name == CRASH_AT.partition("@")[0] and _first(CRASH_AT):
            os.kill(os.getpid(), signal.SIGKILL)

else:

    def crash_point(name: str) -> None:
        """Do nothing."""


def _first(point: str) -> str:
    """Create the file of *point* and return its path; "" if it exists."""
    file = point.partition("@")[2]
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return ""
    return file
