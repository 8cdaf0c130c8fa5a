"""PollBackoff: sleeping until the database says something, and looking again and again where it says nothing
without being asked.

Comes from:  ``consumer.py``.
Goes to:     the connection's socket where notifications come by that, and the WakeupPipe.
Thread:      the listener's, but for wake().
"""

from __future__ import annotations

from qworker.transports.wakeup import WakeupPipe

QUICKEST, SLOWEST = 0.001, 0.25
"""Seconds between two looks where nothing is said without being asked."""


class PollBackoff(WakeupPipe):
    """pause: seconds until the next look; it grows while nothing is found."""

    def __init__(self) -> None:
        super().__init__()
        self.pause = QUICKEST

    def found(self) -> None:
        """A look has found something: more may come soon."""
        self.pause = QUICKEST

    def rest(self, file: int, seconds: float) -> bool:
        """Sleep until *file* has something to read (-1: until the next look), or so long; True when wake()
        was called."""
        if file < 0:
            seconds = min(seconds, self.pause)
            self.pause = min(self.pause * 1.5, SLOWEST)
        words, _ = self.sleep(seconds, file)
        return bool(words)
