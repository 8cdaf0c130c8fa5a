"""Doubts: requests acked before they run, of which nobody knows whether the broker has them still.

Comes from:  AckBuffer, when the answer to an ack was lost and the lease with it, or the answer to what was
             sent anew.
Goes to:     Listener: what is delivered here again runs after all; what is not has failed.
Thread:      listener, but for ``len``.

Such a message is gone from the broker, or somebody gets it again. It must not run twice, so it is not run
unless the broker delivers it here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from qworker.components.request import Request

DOUBT_SECONDS = 3.0
"""For how long a request is expected to be delivered again. A broker that has noticed that a connection is
gone gives back at once what was not acknowledged on it."""
NO_GENERATION = 0
UNKNOWN = (
    "it was to be acknowledged before it ran, and the broker did not say what became of its message; "
    "it has not run here"
)


class Resolved(NamedTuple):
    """again: were delivered once more, and may run. failed: what has to be given up."""

    again: list[Request]
    failed: list[Request]


class Doubts:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, Request]] = []

    def __len__(self) -> int:
        """How many requests wait to be known of. Any thread."""
        return len(self._waiting)

    def add(self, requests: Sequence[Request], until: float) -> None:
        """*requests* stay in the ledger, so that Intake knows them again: it gives them the generation under
        which they were delivered. until: the monotonic time at which they are given up."""
        for request in requests:
            request.generation = NO_GENERATION
            self._waiting.append((until, request))

    def resolve(self, now: float) -> Resolved:
        """Those of which it is known by the monotonic time *now* what becomes of them."""
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
