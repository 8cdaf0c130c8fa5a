"""Looking: when a consumer looks for something new, and how long it sleeps between two looks.

Comes from:  ``consumer.py``; ``sender.py`` of the same process, and the thread of ``watch.py``, which tell at
             once.
Goes to:     the WakeupPipe.
Thread:      the listener's, but for wake(), published() and what the Watch rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qworker.transports.mongodb.layout import Document
from qworker.transports.mongodb.watch import Watch
from qworker.transports.wakeup import WakeupPipe

QUICKEST, SLOWEST = 0.002, 0.25
"""Seconds between two looks."""
IDLE = 0.02
"""Who would sleep for so long between two looks has the server tell him, if it can."""
NEWS = b"n"


class Looking(WakeupPipe):
    """The pause between two looks grows while nothing is found, until the server has promised to tell."""

    def __init__(self) -> None:
        super().__init__()
        self._pause = QUICKEST
        self._slept_out = False
        """Nothing ended the last sleep early."""
        self._news = True
        """Somebody has told of something since the last look. Set by any thread, and cleared before a
        look."""
        self._watch = Watch(self.published)

    def open(self) -> None:
        super().open()
        self._news = True  # of all that was there before, nobody tells

    def close(self) -> None:
        self.tell_anew()
        super().close()

    def tell_anew(self) -> None:
        """What the server is to tell of has changed: what it was asked for ends."""
        self._watch.close()
        self._watch = Watch(self.published)
        self._news = True

    @property
    def is_due(self) -> bool:
        """Whether there may be something that nobody has looked for."""
        return self._news or not self._watch.stands

    def begun(self) -> None:
        """A look begins: what is told from now on, it may miss."""
        self._news = False

    def missed(self) -> None:
        """It came to nothing: the server did not answer."""
        self._news = True

    def found(self) -> None:
        """A look has found something: more may come soon."""
        self._pause, self._slept_out = QUICKEST, False

    def watch(self, database: Any, stages: Sequence[Document]) -> None:
        """A look has found nothing. Have the server tell, if nothing has happened for a while. What was told
        for nothing a moment ago, as of another queue, would be so again at once."""
        if self._slept_out and self._pause >= IDLE:
            self._watch.begin(database, stages)

    def published(self) -> None:
        """This process has published something, or the server tells of a change. Any thread."""
        self._news = True
        self.wake(NEWS)

    def rest(self, seconds: float) -> bytes:
        """Sleep until the next look, or so long; return what was said meanwhile."""
        words, _ = self.sleep(seconds if self._watch.stands else min(seconds, self._pause))
        self._slept_out = not words
        self._pause = min(self._pause * 1.5, SLOWEST)
        return words
