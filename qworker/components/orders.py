"""Orders: how a worker is told to end.

Comes from:  signals, and whoever calls ``request_stop``.
Goes to:     the worker's main loop, which rests here.
Thread:      given by any thread and by signal handlers, which only set a flag and write one byte; read by
             main.
"""

from __future__ import annotations

import select
import signal
from types import FrameType
from typing import Any

from qworker.transports.wakeup import WakeupPipe

RUNNING, DRAINING, SOFT, COLD = "running", "draining", "soft", "cold"
"""The phases of a worker. An order names the one to go to."""
RANK = {RUNNING: 0, DRAINING: 1, SOFT: 2, COLD: 3}

SIGNALS: dict[int, str] = {
    signal.SIGTERM: DRAINING,
    signal.SIGINT: DRAINING,
    signal.SIGQUIT: COLD,
    **dict.fromkeys(
        (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU),
        "",
    ),
}
"""What a signal orders; '' is heard and changes nothing."""


class Orders:
    def __init__(self) -> None:
        self._given: list[str] = []  # only ever appended to
        self._wakeup = WakeupPipe()
        self._wakeup.open()
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self.obeyed = False
        """The worker ends already: main writes. The next polite signal is an impatient one."""

    def __len__(self) -> int:
        return len(self._given)

    def give(self, phase: str) -> None:
        """Order the worker to go to *phase*. Any thread, any time."""
        self._given.append(phase)
        self.ring()

    def ring(self) -> None:
        """Have the main loop look round. Any thread; safe in a signal handler."""
        self._wakeup.wake()

    def hardest(self, phase: str) -> str:
        """The hardest order that was given, or *phase* if that is harder."""
        return max((phase, *self._given), key=RANK.__getitem__)

    def rest(self, seconds: float) -> None:
        """Wait up to *seconds* for somebody to ring. Main thread."""
        for _ in self._poll.poll(seconds * 1000):
            self._wakeup.clear()

    # -- signals --

    def listen(self) -> dict[int, Any]:
        """Take the worker's signals; return who had them before, for hand_back(). Main thread."""
        return {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def hand_back(self, previous: dict[int, Any]) -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        order = SIGNALS[number]
        if order == DRAINING and (self._given or self.obeyed):
            order = COLD
        if order:
            self._given.append(order)
        self.ring()
