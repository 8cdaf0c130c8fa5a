"""Deaths: which messages of RabbitMQ were running when a worker on this machine died.

Comes from:  the files that workers leave behind (``transports/owner_files.py``).
Goes to:     ``inbox.py``, which counts them for what is delivered again.
Thread:      the listener's.

The server gives back what a dead worker held, and does not say what of it was running. The files of the dead
do, for a day. Each worker here reads them; a message that is sent anew says which deaths are in its count
already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from qworker.transports.owner_files import OwnerFiles, left_by_the_dead

LOOK_SECONDS = 0.002
"""For how long a look counts: many messages come back at once."""


class Deaths:
    """files: of this process, beside which the others' are."""

    def __init__(self, files: OwnerFiles) -> None:
        self._files = files
        self._known: set[str] = set()
        self._running: dict[int, list[str]] = {}
        self._looked_at = float("-inf")

    def of(self, tag: int) -> Sequence[str]:
        """The workers that died while they ran the message *tag*, by the names of their files; most often
        none."""
        now = time.monotonic()
        if self._files.running and now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            for name, tags in left_by_the_dead(self._files.running, self._known):
                self._known.add(name)
                for each in tags:
                    self._running.setdefault(each, []).append(name)
        return self._running.get(tag, ())
