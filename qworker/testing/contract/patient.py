"""A consumer of servers that hide what they give out, for the suite of leases.

Comes from:  the places of such servers.
Goes to:     the consumer, of which it looks at the polls.
Thread:      the test's.

Their messages come by a thread that waits for them: what was published a moment ago is on its way. Here
lease() asks until the server has no more, so that the suite, which expects of brokers that they are asked,
can be held against it. A server may say that it has nothing while it has what it has just stored; a place
that knows better says so.
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
from qworker.transports.lease import Claim, Leased

LOOK_SECONDS = 0.5
"""Between looks of who has not leased yet, and so has no polls under way."""
WAIT_SECONDS = 1
"""How long the server waits for a message that a wait() asks for."""
LAG_SECONDS = 2.0
"""How long a lease() asks for what is on its way inside the server."""


def nothing_is_on_its_way(queue: ServerQueue) -> bool:
    """Of a server that gives out what it has stored as soon as it has said so."""
    return False


class PatientConsumer:
    """*plain*, which it asks at once, and until it has no more, before it answers. Only wait() has the server
    wait: a poll under way cannot be ended, and every test would wait for that in the end."""

    def __init__(self, plain: HeldConsumer, on_its_way: Callable[[ServerQueue], bool]) -> None:
        self._plain = plain
        self._on_its_way = on_its_way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._plain._poll_seconds = LOOK_SECONDS
        return self._plain.register(name, queues, concurrency)

    def _settle_down(self) -> None:
        """Wait until no poll is under way."""
        until(lambda: all(poll._answers.qsize() for poll in self._plain._polls if poll._under_way))

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        plain = self._plain
        for poll in plain._polls:
            poll._seconds = 0
        plain._poll_seconds = math.inf  # from now on a wait ends by what comes, and by nothing else
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
            if len(taken) >= limit:
                return claim._replace(messages=taken)
            if came or not asked:
                asked = True
            elif self._lags(queues, end):
                asked = False  # what is asked for now comes with the lease after the next
            else:
                return claim._replace(messages=taken)

    def _lags(self, queues: Sequence[str], end: float) -> bool:
        """Whether something is to come yet that may be asked for."""
        plain = self._plain
        if plain._holdings.full or time.monotonic() >= end:
            return False
        return any(self._on_its_way(plain._bound[queue]) for queue in queues)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """With polls under way, as they are after a lease."""
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
    """*store*, with a consumer that is patient. on_its_way: whether the server has messages of a queue that
    it has given to nobody."""
    assert isinstance(store.consumer, HeldConsumer)
    store.consumer = cast(HeldConsumer, PatientConsumer(store.consumer, on_its_way))
    return store
