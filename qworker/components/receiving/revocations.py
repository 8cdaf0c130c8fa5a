"""Revocations: reads revoked tasks from the broker.

Comes from:  Listener, when there may be new ones, and before claimed messages can run.
Goes to:     the ledger; WaitingRequests, for the requests in this worker.
Thread:      listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from qworker.components.receiving.ledger import WorkerState
from qworker.components.request import Request
from qworker.control.client import verified

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)


class Revocations:
    """on_revoked: called with each affected request in this worker."""

    def __init__(self, app: QWorker, state: WorkerState, on_revoked: Callable[[Request], None]) -> None:
        self._broker = app.broker.revocations
        self._signer = app.signer
        self._state = state
        self._on_revoked = on_revoked
        self._cursor = 0
        self.pending = True
        """Whether there may be unread revocations."""

    def note_last(self, last: int) -> None:
        """Record *last*, the number of the newest revocation in the broker."""
        self.pending = last > self._cursor

    def read(self) -> None:
        """Read new revocations from the broker."""
        if self._broker is None:
            self.pending = False
            return
        self._cursor, revocations = self._broker.consumer.revoked_since(self._cursor)
        self.pending = False
        for given in revocations:
            revocation = verified(self._signer, given)
            if revocation is None:
                logger.warning(
                    "task %.80s is not revoked: the revocation is not signed with a security_key",
                    given.task_id,
                )
                continue
            for request in self._state.revoke(revocation):
                self._on_revoked(request)
