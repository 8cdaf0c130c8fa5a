"""SoftLimit: tells the main thread of a child that its task has run for long enough.

Comes from:  ``child_main.py``, at the beginning and the end of each task that has a limit.
Goes to:     SIGUSR1, sent to the main thread alone, whose handler asks struck().
Thread:      the main one; and a thread of its own, which waits for the limit and is there once a task has had
             one.

The system's alarm clock (SIGALRM) is not used, because it is the task's: there is one of it, and who sets it,
as most timeout decorators do, puts off whatever it was set to before.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

SIGNAL = signal.SIGUSR1


class SoftLimit:
    """Belongs to the main thread of a process."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._deadline: list[float] = []  # written by the main thread
        """[monotonic seconds]; [] when nothing runs. Two are told apart by identity."""
        self._struck: list[float] | None = None  # this thread sets it, the main one clears it
        self._sleeps_until = math.inf  # this thread
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, seconds: float) -> None:
        """A task begins that may run for so many seconds."""
        self._deadline = [time.monotonic() + seconds]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="soft limit", daemon=True)
            self._thread.start()
        elif self._deadline[0] < self._sleeps_until:
            self._wake.put(None)

    def end(self) -> None:
        """It has ended: what strikes now is too late."""
        self._deadline = []

    def struck(self) -> bool | None:
        """For the signal's handler: whether the task that runs is to hear of its limit, once; None: the
        signal is not ours."""
        struck, self._struck = self._struck, None
        return None if struck is None else struck is self._deadline

    def _run(self) -> None:
        told: list[float] = []
        while True:
            self._sleeps_until = math.inf  # until that is said, whoever begins a task wakes us
            deadline = self._deadline
            left = math.inf if not deadline or deadline is told else deadline[0] - time.monotonic()
            if left <= 0:
                told = self._struck = deadline
                signal.pthread_kill(self._main, SIGNAL)
                continue
            self._sleeps_until = math.inf if left == math.inf else deadline[0]
            with suppress(Empty):
                self._wake.get(timeout=None if left == math.inf else left)
