"""ShutdownRequests: requests to stop the worker.

Comes from:  signals, callers of ``request_stop``, and components that crash.
Goes to:     the worker's main loop, which waits here.
Thread:      any thread and signal handlers may request a stop; main reads. A request only sets a flag and
             writes one byte.
"""

from __future__ import annotations

import select
import signal
from types import FrameType
from typing import Any

from qworker.process.wakeup import WakeupPipe

RUNNING, DRAINING, SOFT, COLD = "running", "draining", "soft", "cold"
"""The phases of a worker. A request names the target phase."""
RANK = {RUNNING: 0, DRAINING: 1, SOFT: 2, COLD: 3}

INTERRUPTED_SECONDS = 1.0
"""Minimum time for interrupted tasks to clean up, whatever worker_soft_shutdown_timeout says."""

KILL_SECONDS = 5.0
"""Seconds for the pool to end, and for any part beyond its own limit."""

SIGNALS: dict[int, str] = {
    signal.SIGTERM: DRAINING,
    signal.SIGINT: DRAINING,
    signal.SIGQUIT: COLD,
    **dict.fromkeys(
        (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU),
        "",
    ),
}
"""The phase requested by each signal; '' for ignored ones."""


class ShutdownRequests:
    def __init__(self) -> None:
        self._requested: list[str] = []  # only ever appended to
        self._wakeup = WakeupPipe()
        self._wakeup.open()
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._obeyed = False  # main writes

    def __len__(self) -> int:
        return len(self._requested)

    def request(self, phase: str) -> None:
        """Request *phase*. Any thread, any time."""
        self._requested.append(phase)
        self.wake()

    def wake(self) -> None:
        """Wake the main loop. Any thread; safe in a signal handler."""
        self._wakeup.wake()

    def hardest(self, phase: str) -> str:
        """Return the hardest requested phase, or *phase* if that is harder."""
        return max((phase, *self._requested), key=RANK.__getitem__)

    def obey(self) -> None:
        """Record that the worker is stopping: the next SIGTERM or SIGINT requests COLD. Main thread."""
        self._obeyed = True

    def rest(self, seconds: float) -> None:
        """Wait up to *seconds* for wake(). Main thread."""
        for _ in self._poll.poll(seconds * 1000):
            self._wakeup.clear()

    # -- signals --

    def take_signals(self) -> dict[int, Any]:
        """Install the worker's signal handlers; return the previous ones for hand_back(). Main thread."""
        return {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def hand_back(self, previous: dict[int, Any]) -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        phase = SIGNALS[number]
        if phase == DRAINING and (self._requested or self._obeyed):
            phase = COLD
        if phase:
            self._requested.append(phase)
        self.wake()
