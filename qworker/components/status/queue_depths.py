"""QueueDepths: the state of the queues that a worker consumes, for monitoring.

Comes from:  the broker, queried on demand, at most once in ASK_SECONDS.
Goes to:     ``metrics.py``.
Thread:      latest() on any, for at most ANSWER_SECONDS; the broker is queried on a separate thread, one at a
             time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qworker.conf import mask_urls
from qworker.errors import QWorkerError
from qworker.transports.lease import QueueInfo

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
ANSWER_SECONDS = 1.0
"""Maximum seconds for which a caller waits for the broker."""
KEEP_SECONDS = 60.0
"""Maximum age of an answer while the broker is slow to give the next one."""


class QueueDepths:
    """counts: whether the broker reports more than the number of ready messages. patience: seconds for which
    a caller waits for the broker."""

    def __init__(self, app: QWorker, queues: Sequence[str], patience: float = ANSWER_SECONDS) -> None:
        self.counts = "counts" not in app.broker.lacks
        self._store = app.broker
        self._queues = tuple(queues)
        self._clock = app.clock
        self._patience = patience
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None  # under _lock, as all below
        self._ask_at = app.clock.monotonic()
        self._answer: list[QueueInfo] | None = None
        self._answered = 0.0
        self._closed = False

    def latest(self) -> list[QueueInfo] | None:
        """Return the recent state of each queue; None while the broker does not answer."""
        with self._lock:
            now = self._clock.monotonic()
            if self._asking is None and now >= self._ask_at and not self._closed:
                self._ask_at = now + ASK_SECONDS
                self._asking = threading.Thread(target=self._ask, name="queue depths", daemon=True)
                self._asking.start()
            asking = self._asking
        if asking is not None:
            asking.join(self._patience)
        with self._lock:
            return self._answer if self._clock.monotonic() - self._answered <= KEEP_SECONDS else None

    def age(self, info: QueueInfo) -> float | None:
        """Return the seconds for which the oldest ready message has waited; 0 if there is none, None if
        unknown."""
        if info.oldest is not None:
            return max(0.0, self._clock.now() - info.oldest)
        return None if info.ready or not self.counts else 0.0

    def _ask(self) -> None:
        answer = None
        try:
            answer = self._store.admin.depths(self._queues)
        except QWorkerError as error:
            logger.debug("the broker does not report the state of its queues: %s", mask_urls(str(error)))
        finally:
            with self._lock:
                self._answer, self._answered, self._asking = answer, self._clock.monotonic(), None

    def close(self) -> None:
        """Stop querying; wait briefly for a pending answer. Safe to call twice."""
        with self._lock:
            self._closed = True
            asking = self._asking
        if asking is not None:
            asking.join(self._patience)
