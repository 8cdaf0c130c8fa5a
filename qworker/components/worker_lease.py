"""WorkerLease: this worker's registration with the broker, and until when what it holds is surely its own.

Comes from:  Listener, which registers, and renews the lease at a third of its time.
Goes to:     the broker; Mediator asks holds() before it starts anything.
Thread:      listener; holds() is for any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qworker.clock import Clock
from qworker.transports.lease import Broker, Consumer


class Registration(NamedTuple):
    """What a worker tells the broker of itself. concurrency: how many tasks it runs at a time."""

    hostname: str
    queues: tuple[str, ...]
    concurrency: int


class WorkerLease:
    """seconds: for how long the broker believes a silent worker to live. on_regained: called when the lease
    holds again."""

    def __init__(
        self,
        clock: Clock,
        broker: Broker,
        registration: Registration,
        seconds: float,
        on_regained: Callable[[], None],
    ) -> None:
        self.registration = registration
        self.generation = 0
        """Of the latest registration; 0 before the first."""
        self.renew_at = 0.0
        """Monotonic time at which the lease is to be renewed if anything is held."""
        self._clock = clock
        self._consumer: Consumer = broker.consumer
        self._seconds = min(seconds, broker.silent_seconds)
        self._on_regained = on_regained
        self._holds_until = 0.0
        """Time (as clock.uptime() has it) until which nobody can have taken us for dead."""

    def register(self) -> None:
        """Tell the broker that we are here; what was held under an earlier registration is not ours any
        more."""
        asked = self._clock.uptime()
        self.generation = self._consumer.register(*self.registration)
        self.renew_at = self._clock.monotonic() + self._seconds / 3
        self._holds(asked + self._seconds)

    def renew(self, now: float) -> None:
        """Ask for the whole time once more. now: the monotonic time."""
        asked = self._clock.uptime()
        self._consumer.extend()
        self.renew_at = now + self._seconds / 3
        self._holds(asked + self._seconds)

    def claimed(self, asked: float) -> None:
        """The broker gave us messages when it was asked at the uptime *asked*. It renews by that a lease that
        is older than a third of its time."""
        self._holds(asked + self._seconds * 2 / 3)

    def _holds(self, until: float) -> None:
        lapsed = not self.holds()
        self._holds_until = max(self._holds_until, until)
        if lapsed:
            self._on_regained()

    def holds(self) -> bool:
        """Whether what is on lease is surely still ours, so that it may start. Any thread."""
        return self._clock.uptime() < self._holds_until
