"""Revocations: what the broker knows to be revoked, as far as this worker has heard.

Comes from:  Listener, when there may be news, and before anything of a claim may run.
Goes to:     the ledger; WaitingRequests, for the requests that are here.
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
    """on_revoked: called with each request here that is hit."""

    def __init__(self, app: QWorker, state: WorkerState, on_revoked: Callable[[Request], None]) -> None:
        self._consumer = app.broker.consumer
        self._signer = app.signer
        self._state = state
        self._on_revoked = on_revoked
        self._cursor = 0
        self.pending = True
        """Whether there may be some that we have not asked for."""

    def told(self, last: int) -> None:
        """The broker says that *last* is the number of the newest one."""
        self.pending = last > self._cursor

    def read(self) -> None:
        """Ask the broker for those since the last time."""
        self._cursor, revocations = self._consumer.revoked_since(self._cursor)
        self.pending = False
        for given in revocations:
            revocation = verified(self._signer, given)
            if revocation is None:
                logger.warning(
                    "task %.80s is not revoked: the order is not signed with a security_key", given.task_id
                )
                continue
            for request in self._state.revoke(revocation):
                self._on_revoked(request)
