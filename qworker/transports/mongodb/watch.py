"""Watch: a thread that waits for one change in the database, by a change stream, while a consumer is idle.

Comes from:  ``watch.py``, when looks have found nothing for a while.
Goes to:     the server, if it is a replica set or a sharded cluster; ``ring`` of whoever waits.
Thread:      one of its own, but for begin() and close(), which are the listener's.

The stream is open no longer than until the first change: who has enough to do need not hear of more. Whatever
ends it rings as well, and so does its beginning: whoever looks after that has missed nothing. A server that
refuses streams is asked again now and then, as it may be another one by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from qworker.process.wakeup import WakeupPipe
from qworker.transports.mongodb.layout import DELAYED, READY, RECORD_OF_ALL, Document, Names

AWAIT_SECONDS = 5.0
"""For how long the server keeps one question for changes; so long the thread may outlive close()."""
AGAIN_SECONDS = 15.0
"""After a stream that broke or was refused, how long to do without."""

_log = logging.getLogger(__name__)


def changes(names: Names, queues: Sequence[str], revoked: str) -> list[Document]:
    """The stages that let through what a consumer of *queues* is to hear of: a message that comes, or comes
    back, and a revocation. revoked: the field of the record of all that has its number."""
    waiting = {"$in": [READY, DELAYED]}
    messages = {"ns.coll": names.message}
    record = {"ns.coll": names.owner, "documentKey._id": RECORD_OF_ALL}
    heard: list[Document] = [
        {**messages, "fullDocument.q": {"$in": list(queues)}, "fullDocument.s": waiting},
        {**messages, "updateDescription.updatedFields.s": waiting},
        {**record, f"updateDescription.updatedFields.{revoked}": {"$exists": True}},
    ]
    return [{"$match": {"$or": heard}}, {"$project": {"_id": 1}}]


class Watch:
    """ring: called when there may be something new. Any thread."""

    def __init__(self, ring: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._orders: SimpleQueue[tuple[Any, Sequence[Document]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # of the listener, as the next
        self._asked = self._closed = False
        self._not_before = 0.0  # of the thread, as the next
        self._warned = False
        self.stands = False
        """Whether what happens now will ring. Written by the thread."""

    def begin(self, database: Any, stages: Sequence[Document]) -> None:
        """Ring at the first change in *database* that *stages* let through, unless that is under way, or has
        failed a moment ago."""
        if self._closed or self._asked or self._clock() < self._not_before:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mongodb watch", daemon=True)
            self._thread.start()
        self._asked = True
        self._orders.put((database, stages))

    def close(self) -> None:
        """Ring no more. Does not wait for the thread."""
        self._closed = True
        self.stands = False
        self._orders.put(None)

    def _run(self) -> None:
        while order := self._orders.get():
            try:
                self._wait(*order)
            except Exception as error:  # noqa: BLE001 - whatever it is, there are looks instead
                self._not_before = self._clock() + AGAIN_SECONDS
                self._warn(error)
            self.stands = self._asked = False
            if self._closed:
                return
            self._ring()

    def _wait(self, database: Any, stages: Sequence[Document]) -> None:
        """Until something changes, this is closed or the stream ends."""
        with database.watch(list(stages), max_await_time_ms=int(AWAIT_SECONDS * 1000)) as stream:
            self.stands = True
            self._ring()
            while not self._closed and stream.try_next() is None:
                if not stream.alive:  # its database was dropped
                    self._not_before = self._clock() + AGAIN_SECONDS
                    return

    def _warn(self, error: Exception) -> None:
        if not (self._warned or self._closed):
            self._warned = True
            _log.info("MongoDB tells of no changes (%s): looking for them instead", type(error).__name__)


# -- Looking: when a consumer looks for something new, and how long it sleeps between two looks --
# Thread: the listener's, but for wake(), published() and what the Watch rings.

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
