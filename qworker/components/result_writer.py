"""ResultWriter: stores the results that the worker itself decides, in a store that is not the broker's.

Comes from:  Settler, with a letter and the metadata to store before it.
Goes to:     the result backend; then the letter goes to the Listener.
Thread:      result writer; no other thread of the worker ever waits for a result store.

A store that is away is asked for ever; the message is not settled before its result is stored.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.components.component import ThreadComponent
from qworker.components.listener import Letter
from qworker.components.mailbox import Mailbox
from qworker.errors import BackendError, EncodeError
from qworker.retry import RECONNECT

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Between two rounds of deleting expired results."""


class ResultWriter(ThreadComponent):
    name = "result writer"

    def __init__(
        self, app: QWorker, on_crash: Callable[[str, BaseException], None], post: Callable[[Letter], None]
    ) -> None:
        super().__init__(app.clock, on_crash)
        self._app = app
        self._post = post
        self.mailbox: Mailbox[tuple[Letter, dict[str, Any]]] = Mailbox(self.wake)
        self._waiting: deque[tuple[Letter, dict[str, Any]]] = deque()  # this thread only
        self._failures = 0
        self._sweep_at = 0.0
        self._patience: float = app.conf.result_store_patience

    def opened(self) -> None:
        """Say at the start what would otherwise come out with the first result."""
        backend = self._app.backend
        if not backend.supports_locks:
            return  # it stores nothing at all
        if not backend.persistent and self._app.conf.worker_pool == "prefork":
            logger.warning(
                "results are kept in memory (%s), where only the process that ran the task sees them: "
                "set result_backend, or use --pool threads",
                backend.safe_url,
            )
        probe = f"qworker-probe-{os.getpid()}"
        try:
            backend.add(probe, 1.0)
            backend.delete(probe)
        except BackendError as error:
            logger.error("results cannot be stored: %s. Tasks are not acknowledged until they can", error)

    def step(self, now: float) -> float | None:
        self._waiting.extend(self.mailbox.take())
        while self._waiting:
            letter, meta = self._waiting[0]
            try:
                self._app.backend.store(meta["task_id"], meta)
            except EncodeError:
                logger.exception("the result of %s cannot be stored", meta["task_id"])
            except BackendError as error:
                delay = RECONNECT.delay(self._failures, random.random)
                self._failures += 1
                logger.warning("the result store does not answer: %s; trying again in %.1f s", error, delay)
                return max(delay, 0.05)
            self._failures = 0
            self._waiting.popleft()
            self._post(letter)
        return self._sweep(now)

    def _sweep(self, now: float) -> float:
        """Delete expired results now and then; return the seconds until the next time."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            try:
                self._app.backend.sweep(self.clock.now())
            except BackendError as error:
                logger.warning("expired results could not be deleted: %s", error)
        return self._sweep_at - now

    def closed(self) -> None:
        """Store what still waits, within the patience of the setting: what is not stored will be decided again."""
        deadline = self.clock.monotonic() + self._patience
        while self._waiting or len(self.mailbox):
            pause = self.step(self.clock.monotonic()) or 0.0
            if self._waiting:
                if self.clock.monotonic() + pause > deadline:
                    logger.error(
                        "%d results were not stored: those tasks will come again", len(self._waiting)
                    )
                    return
                self.clock.sleep(pause)
