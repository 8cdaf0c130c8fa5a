"""Crash points: steps between claim and ack at which tests kill this process, once.

Comes from:  the environment variable ``QWORKER_CRASH_AT``, "name of the point@file that remembers that it was
             hit".
Goes to:     ``if CRASHING: crash_point("claimed")`` at each boundary; without the variable, one look at a
             constant.
Thread:      any.
"""

from __future__ import annotations

import os
import signal

CRASH_AT = os.environ.get("QWORKER_CRASH_AT", "")
CRASHING = bool(CRASH_AT)


def crash_point(name: str) -> None:
    """Die here as by kill -9, if this is the point that was asked for and no process has died of it
    before."""
    wanted, _, file = CRASH_AT.partition("@")
    if name == wanted:
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
