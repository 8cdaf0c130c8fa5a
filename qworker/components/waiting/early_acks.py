"""EarlyAcks: requests that are acked before they run, from the order to ack them to their start.

Comes from:  Mediator, which requests the ack once there is a place to run.
Goes to:     the Listener, which acks; then back to the Mediator, in the same order.
Thread:      ask() and take() with the mediator's turn; answered() by the listener; the rest by any.

An acked request that has not run is lost if this worker is killed. So each one has a reserved place in the
pool, and no more are acked than can start at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import Slots
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Ack


class EarlyAcks:
    """mailbox: of the Listener. ready: where the Mediator waits for acks."""

    def __init__(self, mailbox: Mailbox[SettlementOrder], ready: ReadyQueue) -> None:
        self._mailbox = mailbox
        self._ready = ready
        self._asked = [0, 0]  # for sync and async requests: written by the thread with the turn, as the next
        self._longest = 0.0
        self._answered = [0, 0]  # listener
        self._acked: deque[Request] = deque()  # the listener appends, the thread with the turn takes

    def __len__(self) -> int:
        """Return the number of requests here, acked or not."""
        held = self.held
        return held.sync + held.asynchronous

    def __bool__(self) -> bool:
        return bool(self._acked) or self._asked != self._answered

    @property
    def held(self) -> Slots:
        """The number of reserved places."""
        asynchronous = sum(request.is_async for request in self._acked.copy())
        return Slots(
            self._asked[0] - self._answered[0] + len(self._acked) - asynchronous,
            self._asked[1] - self._answered[1] + asynchronous,
        )

    @property
    def longest(self) -> float:
        """The longest expected duration of the sync requests here, in seconds."""
        if not self.held.sync:
            self._longest = 0.0
        return self._longest

    def ask(self, requests: Sequence[Request], seconds: float) -> None:
        """Order the acks of *requests*. seconds: the longest of their expected durations."""
        self._longest = max(self.longest, seconds)
        for request in requests:
            self._asked[request.is_async] += 1
        self._ready.acking(requests, 1)
        self._mailbox.post_many(
            [SettlementOrder(request, Ack(request.tag), final=False, starts=True) for request in requests],
            at_once=True,
        )

    def answered(self, acked: Sequence[Request], lost: Sequence[Request]) -> None:
        """Let *acked* run, whose acks the broker has confirmed; drop *lost*, whose acks came too late."""
        if acked:
            crash_point("acked first")
        for request in acked:
            request.mark_acked()
            self._acked.append(request)
            self._answered[request.is_async] += 1
        for request in lost:
            self._answered[request.is_async] += 1
        self._ready.acking(lost, -1)
        self._ready.wake()

    def take(self) -> list[Request]:
        """Take out the requests whose acks are confirmed, in order."""
        taken = []
        while self._acked:
            try:
                taken.append(self._acked.popleft())
            except IndexError:  # while the worker stops, two threads take requests
                break
        return taken

    def take_startable(self) -> list[Request]:
        """Take out those that may start now."""
        acked = self.take()
        starting = self._ready.may_start(acked)
        if len(starting) < len(acked):
            self._acked.extendleft(request for request in reversed(acked) if request not in starting)
        return starting
