"""AckBuffer: what the Listener has to tell the broker, until the broker has heard it.

Comes from:  the mailbox, where whoever ended a request leaves a letter; the Listener itself.
Goes to:     the store, many letters in one step; then the ledger, which lets go of the requests.
Thread:      listener, but for the mailbox and ``len``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from qworker.components.letter import Letter
from qworker.components.mailbox import Mailbox
from qworker.crash_points import CRASHING, crash_point
from qworker.request import Request
from qworker.transports.lease import Ack, Bury, LeaseStore, Release, Store
from qworker.worker_state import WorkerState

logger = logging.getLogger(__name__)

COUNTED = {Ack: "finished", Store: "finished", Release: "returned", Bury: "buried"}


class AckBuffer:
    """flush_seconds, flush_count: for how long letters wait for others, and for how many at most."""

    def __init__(
        self,
        store: LeaseStore,
        state: WorkerState,
        wake: Callable[[], None],
        flush_seconds: float,
        flush_count: int,
    ) -> None:
        self.mailbox: Mailbox[Letter] = Mailbox(wake)
        self._store = store
        self._state = state
        self._flush_seconds = flush_seconds
        self._flush_count = flush_count
        self._letters: list[Letter] = []  # listener only, as all below
        self._oldest = 0.0

    def __len__(self) -> int:
        """How many letters the broker has not heard. Any thread."""
        return len(self._letters) + len(self.mailbox)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._letters)

    def collect(self, now: float) -> None:
        """Take in what has come by the monotonic time *now*."""
        letters = self.mailbox.take()
        if letters:
            if not self._letters:
                self._oldest = now
            self._letters.extend(letters)

    def add(self, letter: Letter) -> None:
        """The Listener's own letter."""
        self._letters.append(letter)

    def is_due(self, now: float) -> bool:
        """Whether what waits has waited long enough for others, or there is enough of it."""
        return bool(self._letters) and (
            len(self._letters) >= self._flush_count or now >= self._oldest + self._flush_seconds
        )

    def rest(self, now: float) -> float:
        """Seconds until what waits is due."""
        return max(0.0, self._oldest + self._flush_seconds - now)

    def flush(self, epoch: int) -> None:
        """Tell the broker everything. epoch: of the lease that we hold now.

        Raises BrokerUnavailable or LeaseLost; then it is all still here.
        """
        letters = self._letters
        current = [
            letter.settlement
            for letter in letters
            if letter.settlement is not None and not _is_over(letter, epoch)
        ]
        if CRASHING:
            crash_point("settling")
        lost = self._store.settle(epoch, current) if current else set()
        if any(letter.then is not None for letter in letters):
            self._store.confirm()  # an ack that got lost on its way would have the task run twice
        if CRASHING:
            crash_point("settled")
        self._letters = []
        for letter in letters:
            request, settlement = letter.request, letter.settlement
            if letter.final and (request is not None or settlement is not None):
                self._state.totals[COUNTED.get(type(settlement), "finished")] += 1
            if request is None or not (letter.final or letter.then):
                continue
            if not request.acked and (request.tag in lost or _is_over(letter, epoch)):
                self._state.leave(request)
                self._came_too_late(request, letter)
            elif letter.then is not None:
                letter.then()
            elif letter.final:
                self._state.leave(request)

    def _came_too_late(self, request: Request, letter: Letter) -> None:
        """Another worker has *request* by now; should it be delivered here again, it need not run again."""
        if not letter.final:
            logger.warning("%r is not run: its lease was lost, and another worker has it", request)
        elif isinstance(letter.settlement, Ack | Bury):
            logger.warning("%r ended after its lease was lost; another worker has it", request)
            self._state.finished_elsewhere(request.tag, letter.settlement)

    def lost_lease(self) -> None:
        """Forget what goes back without a request: it was held under the old lease, and is no longer ours to give."""
        self._letters = [letter for letter in self._letters if letter.request or not letter.settlement]


def _is_over(letter: Letter, epoch: int) -> bool:
    """Whether the lease under which this run ended was lost by then."""
    request = letter.request
    return letter.final and request is not None and not request.acked and request.epoch != epoch
