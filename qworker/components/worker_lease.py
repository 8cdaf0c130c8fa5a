"""WorkerLease: this worker's registration with the broker, and the time until which its lease holds.

Comes from:  Listener, which registers, and renews the lease after a third of its duration.
Goes to:     the broker; Mediator calls current() before it starts anything.
Thread:      listener; current() is for any.
"""

from collections.abc import Callable
from typing import NamedTuple

from qworker.clock import Clock
from qworker.transports.lease import Broker, Consumer


class Registration(NamedTuple):
    """A worker's description for the broker. concurrency: the number of tasks it runs at a time."""

    hostname: str
    queues: tuple[str, ...]
    concurrency: int


class CurrentLease(NamedTuple):
    """Messages received in *generation* are ours until the clock.uptime() *until*."""

    generation: int
    until: float


class WorkerLease:
    """seconds: after this time the broker considers a silent worker dead. on_regained: called when the lease
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
        self.renew_at = 0.0
        """Monotonic time at which the lease is renewed."""
        self._clock = clock
        self._consumer: Consumer = broker.consumer
        self._seconds = min(seconds, broker.silent_seconds)
        self._on_regained = on_regained
        self._held = CurrentLease(0, 0.0)
        """The lease of the latest registration. Replaced as a whole, because other threads read it."""

    @property
    def generation(self) -> int:
        """The generation of the latest successful registration; 0 before the first."""
        return self._held.generation

    @property
    def is_registered(self) -> bool:
        """Whether the latest registration succeeded, and its lease was not lost since."""
        return self._held.until > 0.0

    def register(self) -> None:
        """Register with the broker; the messages of an earlier registration are no longer ours."""
        asked = self._clock.uptime()
        generation = self._consumer.register(*self.registration)
        self.renew_at = self._clock.monotonic() + self._seconds / 3
        self._holds(CurrentLease(generation, asked + self._seconds))

    def renew(self, now: float) -> None:
        """Renew the lease. now: the monotonic time."""
        asked = self._clock.uptime()
        self._consumer.extend()
        self.renew_at = now + self._seconds / 3
        self._holds_until(asked + self._seconds)

    def claimed(self, asked: float) -> None:
        """Record that the broker returned messages for a request made at the uptime *asked*.

        The broker then renews a lease older than a third of its duration, so two thirds are left at least.
        """
        self._holds_until(asked + self._seconds * 2 / 3)

    def lost(self) -> None:
        """Record that the lease was lost: other workers have our messages."""
        self._held = CurrentLease(self.generation, 0.0)

    def _holds_until(self, until: float) -> None:
        self._holds(CurrentLease(self.generation, max(self._held.until, until)))

    def _holds(self, held: CurrentLease) -> None:
        expired = self.current() is None
        self._held = held
        if expired:
            self._on_regained()

    def current(self) -> CurrentLease | None:
        """Return the lease if it still holds, so that requests may start; otherwise None. Any thread."""
        held = self._held
        return held if self._clock.uptime() < held.until else None
