"""A consumer for servers that deliver through a polling thread, for the suite of leases.

Comes from:  the places of such servers.
Goes to:     the consumer, whose polls it watches.
Thread:      the test's.

Messages of such servers arrive in a polling thread, so a message that was just published may be in transit.
The suite expects synchronous brokers, so here lease() polls until the server has no more messages. A server
may report none while it still stores one; a place can detect that with *on_its_way*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from qworker.testing.contract.waiting import until
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.consumer import HeldConsumer
from qworker.transports.held.port import ServerQueue
from qworker.transports.lease import MAX_LEASE_BYTES, Claim, Leased

LOOK_SECONDS = 0.5
"""Interval of checks before the first lease, when no polls are in progress."""
WAIT_SECONDS = 1
"""How long the server waits for a message in wait()."""
LAG_SECONDS = 2.0
"""How long lease() waits for messages in transit inside the server."""


def nothing_is_on_its_way(queue: ServerQueue) -> bool:
    """Return False, for servers that deliver a message as soon as they have confirmed it."""
    return False


class PatientConsumer:
    """A wrapper of *plain* whose lease() polls, without waiting, until there are no more messages. Only
    wait() uses polls that wait, because a poll cannot be cancelled, and would delay the end of every test."""

    def __init__(self, plain: HeldConsumer, on_its_way: Callable[[ServerQueue], bool]) -> None:
        self._plain = plain
        self._on_its_way = on_its_way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._plain._poll_seconds = LOOK_SECONDS
        return self._plain.register(name, queues, concurrency)

    def _settle_down(self) -> None:
        """Wait until no poll is in progress."""
        until(lambda: all(poll._answers.qsize() for poll in self._plain._polls if poll._under_way))

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        plain = self._plain
        for poll in plain._polls:
            poll._seconds = 0
        plain._poll_seconds = math.inf  # from now on, wait() only returns early when messages arrive
        self._settle_down()
        taken: list[Leased] = []
        asked = False
        end = time.monotonic() + LAG_SECONDS
        while True:
            known = sum(1 for _ in plain._everything())
            claim = plain.lease(queues, limit - len(taken), delayed_limit, eta_window)
            self._settle_down()
            taken += claim.messages
            came = claim.messages or sum(1 for _ in plain._everything()) > known
            if len(taken) >= limit or sum(len(each.body) for each in taken) >= MAX_LEASE_BYTES:
                return claim._replace(messages=taken)
            if came or not asked:
                asked = True
            elif self._lags(queues, end):
                asked = False  # the next lease starts a poll, and the one after it gets the messages
            else:
                return claim._replace(messages=taken)

    def _lags(self, queues: Sequence[str], end: float) -> bool:
        """Return whether a message may still be in transit."""
        plain = self._plain
        if plain._holdings.full or time.monotonic() >= end:
            return False
        return any(self._on_its_way(plain._bound[queue]) for queue in queues)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """Start polls that wait for messages, and wait for one of them."""
        plain = self._plain
        if timeout > 0 and plain._poll_seconds == math.inf:
            for poll in plain._polls:
                poll.collect(0)
                poll._seconds = WAIT_SECONDS
                poll.ask(poll.source.batch)
        return any(True for _ in plain._polls.arrived) or plain.wait(timeout, prefetch)


def patient(
    store: HeldBroker, on_its_way: Callable[[ServerQueue], bool] = nothing_is_on_its_way
) -> HeldBroker:
    """Wrap the consumer of *store* in a PatientConsumer; return the store. on_its_way: returns whether the
    server has undelivered messages of a queue."""
    assert isinstance(store.consumer, HeldConsumer)
    store.consumer = cast(HeldConsumer, PatientConsumer(store.consumer, on_its_way))
    return store
