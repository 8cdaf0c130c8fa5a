"""QueueDepths: how the queues that a worker consumes stand, for whoever watches it.

Comes from:  the broker, which is asked when somebody wants to know, and not more often than once in
             ASK_SECONDS.
Goes to:     ``metrics.py``.
Thread:      latest() on any, and never for longer than ANSWER_SECONDS; the broker is asked on a thread of its
             own, of which there is one at a time.
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
"""How long who wants to know waits for the broker."""
KEEP_SECONDS = 60.0
"""How old an answer may be while the broker takes its time over the next one."""


class QueueDepths:
    """counts: whether the broker knows more of its queues than what is ready in them."""

    def __init__(self, app: QWorker, queues: Sequence[str]) -> None:
        self.counts = "counts" not in app.broker.lacks
        self._store = app.broker
        self._queues = tuple(queues)
        self._clock = app.clock
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None  # under _lock, as all below
        self._ask_at = app.clock.monotonic()
        self._answer: list[QueueInfo] | None = None
        self._answered = 0.0
        self._closed = False

    def latest(self) -> list[QueueInfo] | None:
        """How each queue stands, or stood a moment ago; None while the broker does not say."""
        with self._lock:
            now = self._clock.monotonic()
            if self._asking is None and now >= self._ask_at and not self._closed:
                self._ask_at = now + ASK_SECONDS
                self._asking = threading.Thread(target=self._ask, name="queue depths", daemon=True)
                self._asking.start()
            asking = self._asking
        if asking is not None:
            asking.join(ANSWER_SECONDS)
        with self._lock:
            return self._answer if self._clock.monotonic() - self._answered <= KEEP_SECONDS else None

    def age(self, info: QueueInfo) -> float | None:
        """Seconds that the oldest ready message has waited, 0 when none does; None when that is not known."""
        if info.oldest is not None:
            return max(0.0, self._clock.now() - info.oldest)
        return None if info.ready or not self.counts else 0.0

    def _ask(self) -> None:
        answer = None
        try:
            answer = self._store.admin.depths(self._queues)
        except QWorkerError as error:
            logger.debug("the broker does not say how its queues stand: %s", mask_urls(str(error)))
        finally:
            with self._lock:
                self._answer, self._answered, self._asking = answer, self._clock.monotonic(), None

    def close(self) -> None:
        """Ask no more; wait a moment for an answer that is on its way. Safe to call twice."""
        with self._lock:
            self._closed = True
            asking = self._asking
        if asking is not None:
            asking.join(ANSWER_SECONDS)
