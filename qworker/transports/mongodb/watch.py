"""Watch: a thread that waits for a change in the database with a change stream, while a consumer is idle.

Comes from:  the consumer, when polling has found nothing for a while.
Goes to:     the server, if it is a replica set or a sharded cluster; ``notify`` of the waiting consumer.
Thread:      its own, except begin() and close(), which are the listener's.

The stream is only open until the first change: a busy consumer needs no more. Its start and its end also
notify: a consumer that polls after that has missed nothing. A server that refuses streams is tried again from
time to time, because it may be another one by then.
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
"""How long the server keeps a query for changes open; the thread may outlive close() by as much."""
AGAIN_SECONDS = 15.0
"""Pause after a stream that broke or was refused."""

_log = logging.getLogger(__name__)


def changes(names: Names, queues: Sequence[str], revoked: str) -> list[Document]:
    """Return the stages that select the changes for a consumer of *queues*: messages that arrive, or come
    back, and revocations. revoked: the field of the common record with their number."""
    waiting = {"$in": [READY, DELAYED]}
    messages = {"ns.coll": names.message}
    record = {"ns.coll": names.owner, "documentKey._id": RECORD_OF_ALL}
    watched: list[Document] = [
        {**messages, "fullDocument.q": {"$in": list(queues)}, "fullDocument.s": waiting},
        {**messages, "updateDescription.updatedFields.s": waiting},
        {**record, f"updateDescription.updatedFields.{revoked}": {"$exists": True}},
    ]
    return [{"$match": {"$or": watched}}, {"$project": {"_id": 1}}]


class Watch:
    """notify: called when there may be something new. Any thread."""

    def __init__(self, notify: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._notify = notify
        self._clock = clock
        self._orders: SimpleQueue[tuple[Any, Sequence[Document]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # of the listener, as the next
        self._asked = self._closed = False
        self._not_before = 0.0  # of the thread, as the next
        self._warned = False
        self.active = False
        """Whether changes notify from now on. Written by the thread, and by close(), after which nobody reads
        it."""

    def begin(self, database: Any, stages: Sequence[Document]) -> None:
        """Notify at the first change in *database* selected by *stages*, unless that is active already, or
        has failed recently."""
        if self._closed or self._asked or self._clock() < self._not_before:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mongodb watch", daemon=True)
            self._thread.start()
        self._asked = True
        self._orders.put((database, stages))

    def close(self) -> None:
        """Stop notifying. Does not wait for the thread."""
        self._closed = True
        self.active = False
        self._orders.put(None)

    def _run(self) -> None:
        while order := self._orders.get():
            try:
                self._wait(*order)
            except Exception as error:  # noqa: BLE001 - after any error, the consumer polls instead
                self._not_before = self._clock() + AGAIN_SECONDS
                self._warn(error)
            self.active = self._asked = False
            if self._closed:
                return
            self._notify()

    def _wait(self, database: Any, stages: Sequence[Document]) -> None:
        """Wait until something changes, this is closed or the stream ends."""
        with database.watch(list(stages), max_await_time_ms=int(AWAIT_SECONDS * 1000)) as stream:
            self.active = True
            self._notify()
            while not self._closed and stream.try_next() is None:
                if not stream.alive:  # its database was dropped
                    self._not_before = self._clock() + AGAIN_SECONDS
                    return

    def _warn(self, error: Exception) -> None:
        if not (self._warned or self._closed):
            self._warned = True
            _log.info("MongoDB announces no changes (%s): polling instead", type(error).__name__)


# -- Looking: when a consumer polls, and how long it sleeps in between --
# Thread: the listener's, except wake(), published() and calls of the Watch.

QUICKEST, SLOWEST = 0.002, 0.25
"""Seconds between two polls."""
IDLE = 0.02
"""When the pause between polls reaches this, the server is asked to announce changes, if it can."""
MESSAGE = b"n"


class Looking(WakeupPipe):
    """The pause between polls grows while nothing is found, until the server announces changes."""

    def __init__(self) -> None:
        super().__init__()
        self._pause = QUICKEST
        self._slept_out = False
        """Whether the last sleep was not ended early."""
        self._news = True
        """Whether there was a notification since the last poll. Set by any thread, and cleared before a
        poll."""
        self._watch = Watch(self.published)

    def open(self) -> None:
        super().open()
        self._news = True  # earlier changes are not announced

    def close(self) -> None:
        self.end_watch()
        super().close()

    def end_watch(self) -> None:
        """End the current watch, because other changes must be announced."""
        self._watch.close()
        self._watch = Watch(self.published)
        self._news = True

    @property
    def is_due(self) -> bool:
        """Whether there may be something that was not read."""
        return self._news or not self._watch.active

    def begun(self) -> None:
        """Record that a poll begins: it may not cover later notifications."""
        self._news = False

    def missed(self) -> None:
        """Record that the poll failed: the server did not answer."""
        self._news = True

    def found(self) -> None:
        """Record that a poll has found something: more may come soon."""
        self._pause, self._slept_out = QUICKEST, False

    def watch(self, database: Any, stages: Sequence[Document]) -> None:
        """After a poll that has found nothing: start watching, if nothing has happened for a while. After a
        recent false alarm, such as for another queue, another one would be likely."""
        if self._slept_out and self._pause >= IDLE:
            self._watch.begin(database, stages)

    def published(self) -> None:
        """Record that this process has published a message, or the server announces a change. Any thread."""
        self._news = True
        self.wake(MESSAGE)

    def rest(self, seconds: float) -> bytes:
        """Sleep until the next poll, at most *seconds*; return the words passed to wake()."""
        words, _ = self.sleep(seconds if self._watch.active else min(seconds, self._pause))
        self._slept_out = not words
        self._pause = min(self._pause * 1.5, SLOWEST)
        return words
