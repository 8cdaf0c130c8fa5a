"""Looking: how long a consumer sleeps between two looks for what nobody tells it of.

Comes from:  ``consumer.py``; ``sender.py`` of the same process, which tells at once.
Goes to:     the WakeupPipe.
Thread:      the listener's, but for wake() and told().
"""

from __future__ import annotations

from qworker.transports.wakeup import WakeupPipe

QUICKEST, SLOWEST = 0.002, 0.25
"""Seconds between two looks."""
PUBLISHED = b"p"


class Looking(WakeupPipe):
    """The pause between two looks grows while nothing is found."""

    def __init__(self) -> None:
        super().__init__()
        self._pause = QUICKEST

    def found(self) -> None:
        """A look has found something: more may come soon."""
        self._pause = QUICKEST

    def published(self) -> None:
        """This process has published something. Any thread."""
        self.wake(PUBLISHED)

    def rest(self, seconds: float) -> bytes:
        """Sleep until the next look, or so long; return what was said meanwhile."""
        words, _ = self.sleep(min(seconds, self._pause))
        self._pause = min(self._pause * 1.5, SLOWEST)
        return words
