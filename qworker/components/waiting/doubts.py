"""Doubts: requests acked before they run, when it is unknown whether the broker still has them.

Comes from:  AckBuffer, when the answer to an ack was lost together with the lease, or the answer to a message
             sent again.
Goes to:     Listener: a request delivered here again runs; any other has failed.
Thread:      listener, except ``len``.

The broker either no longer has such a message, or delivers it again to some worker. It must not run twice, so
it only runs if the broker delivers it here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from qworker.components.request import Request

DOUBT_SECONDS = 3.0
"""Seconds to wait for a redelivery. A broker that notices a broken connection redelivers unacknowledged
messages at once."""
NO_GENERATION = 0
UNKNOWN = "the broker did not confirm the acknowledgement before the run, so the task has not run here"


class Resolved(NamedTuple):
    """again: requests that were delivered again and may run. failed: those to be given up."""

    again: list[Request]
    failed: list[Request]


class Doubts:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, Request]] = []

    def __len__(self) -> int:
        """Return the number of undecided requests. Any thread."""
        return len(self._waiting)

    def add(self, requests: Sequence[Request], until: float) -> None:
        """Add *requests*. They stay in the ledger, so that Intake recognises a redelivery and sets its
        generation. until: the monotonic time at which they are given up."""
        for request in requests:
            request.generation = NO_GENERATION
            self._waiting.append((until, request))

    def undecided(self) -> list[Request]:
        """Return the requests that were not delivered again yet."""
        return [request for _, request in self._waiting if request.generation == NO_GENERATION]

    def resolve(self, now: float) -> Resolved:
        """Return the requests that are decided at the monotonic time *now*."""
        found = Resolved([], [])
        waiting = []
        for until, request in self._waiting:
            if request.generation != NO_GENERATION:
                found.again.append(request)
            elif until <= now:
                found.failed.append(request)
            else:
                waiting.append((until, request))
        self._waiting = waiting
        return found
