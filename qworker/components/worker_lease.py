"""WorkerLease: this worker's registration with the broker, and until when what it holds is surely its own.

Comes from:  Listener, which registers, and renews the lease at a third of its time.
Goes to:     the broker; Mediator asks standing() before it starts anything.
Thread:      listener; standing() is for any.
"""

from collections.abc import Callable
from typing import NamedTuple

from qworker.clock import Clock
from qworker.transports.lease import Broker, Consumer


class Registration(NamedTuple):
    """What a worker tells the broker of itself. concurrency: how many tasks it runs at a time."""

    hostname: str
    queues: tuple[str, ...]
    concurrency: int


class Held(NamedTuple):
    """What was received in *generation* is surely ours before *until*, a time as clock.uptime() has it."""

    generation: int
    until: float


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
        self.renew_at = 0.0
        """Monotonic time at which the lease is to be renewed."""
        self._clock = clock
        self._consumer: Consumer = broker.consumer
        self._seconds = min(seconds, broker.silent_seconds)
        self._on_regained = on_regained
        self._held = Held(0, 0.0)
        """Of the latest registration. Replaced as a whole, since other threads read it."""

    @property
    def generation(self) -> int:
        """Of the latest registration; 0 before the first."""
        return self._held.generation

    def register(self) -> None:
        """Tell the broker that we are here; what was held under an earlier registration is not ours any
        more."""
        asked = self._clock.uptime()
        generation = self._consumer.register(*self.registration)
        self.renew_at = self._clock.monotonic() + self._seconds / 3
        self._holds(Held(generation, asked + self._seconds))

    def renew(self, now: float) -> None:
        """Ask for the whole time once more. now: the monotonic time."""
        asked = self._clock.uptime()
        self._consumer.extend()
        self.renew_at = now + self._seconds / 3
        self._holds_until(asked + self._seconds)

    def claimed(self, asked: float) -> None:
        """The broker gave us messages when it was asked at the uptime *asked*. It renews by that a lease that
        is older than a third of its time."""
        self._holds_until(asked + self._seconds * 2 / 3)

    def lost(self) -> None:
        """The broker says that others have what we held."""
        self._held = Held(self.generation, 0.0)

    def _holds_until(self, until: float) -> None:
        self._holds(Held(self.generation, max(self._held.until, until)))

    def _holds(self, held: Held) -> None:
        lapsed = self.standing() is None
        self._held = held
        if lapsed:
            self._on_regained()

    def standing(self) -> Held | None:
        """What is surely still ours, so that it may start; None while nothing is. Any thread."""
        held = self._held
        return held if self._clock.uptime() < held.until else None
