"""ShutdownRequests: how a worker is told to end.

Comes from:  signals, whoever calls ``request_stop``, and components that crash.
Goes to:     the worker's main loop, which rests here.
Thread:      given by any thread and by signal handlers, which only set a flag and write one byte; read by
             main.
"""

from __future__ import annotations

import select
import signal
from types import FrameType
from typing import Any

from qworker.process.wakeup import WakeupPipe

RUNNING, DRAINING, SOFT, COLD = "running", "draining", "soft", "cold"
"""The phases of a worker. A request names the one to go to."""
RANK = {RUNNING: 0, DRAINING: 1, SOFT: 2, COLD: 3}

INTERRUPTED_SECONDS = 1.0
"""How long interrupted tasks have at least to clean up, whatever worker_soft_shutdown_timeout says."""

KILL_SECONDS = 5.0
"""How long the pool may take to die, and any part beyond what it was given."""

SIGNALS: dict[int, str] = {
    signal.SIGTERM: DRAINING,
    signal.SIGINT: DRAINING,
    signal.SIGQUIT: COLD,
    **dict.fromkeys(
        (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU),
        "",
    ),
}
"""What a signal asks for; '' is heard and changes nothing."""


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
        """Ask the worker to go to *phase*. Any thread, any time."""
        self._requested.append(phase)
        self.wake()

    def wake(self) -> None:
        """Have the main loop look round. Any thread; safe in a signal handler."""
        self._wakeup.wake()

    def hardest(self, phase: str) -> str:
        """The hardest phase that was asked for, or *phase* if that is harder."""
        return max((phase, *self._requested), key=RANK.__getitem__)

    def obey(self) -> None:
        """The worker ends now: the next polite signal is an impatient one. Main thread."""
        self._obeyed = True

    def rest(self, seconds: float) -> None:
        """Wait up to *seconds* for somebody to call wake(). Main thread."""
        for _ in self._poll.poll(seconds * 1000):
            self._wakeup.clear()

    # -- signals --

    def take_signals(self) -> dict[int, Any]:
        """Take the worker's signals; return who had them before, for hand_back(). Main thread."""
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
