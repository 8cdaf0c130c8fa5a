"""Leadership: which of several processes runs the schedules, and the loop of each.

Comes from:  the service, and the scheduler of a Django project's cluster, which are its subclasses.
Goes to:     the schedule store's lease, and its old slots.
Thread:      beat; schedules, in a cluster.

See ``store.py`` for the lease. A process may wrongly assume that it leads, because each operation of the
store checks the lease.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from qworker.beat.store import LEASE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, Lease, ScheduleStore
from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.errors import BackendError, BrokerUnavailable, LeaseLost, QWorkerError

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

MOST_REPORTED = 20
"""Maximum entries whose problems are reported by health."""
SWEEP_SECONDS = 60.0
AWAY: tuple[type[Exception], ...] = (BackendError, BrokerUnavailable)
"""Errors after which an operation is retried, because a store or a broker may be unavailable."""


class Leadership:
    """holder: a unique name of this process. about: a description of it."""

    renew_seconds = RENEW_SECONDS
    """Interval of renewing the lease."""

    def __init__(self, store: ScheduleStore, holder: str, about: str = "") -> None:
        self._store = store
        self._holder = holder
        self._about = about
        self.lease: Lease | None = None
        """This process's lease; None while it does not lead."""
        self._renewed_at = 0.0  # monotonic seconds, as all times here
        self._watched: Lease | None = None
        self._watched_since: float | None = None

    def step(self, now: float) -> Lease | None:
        """Renew the lease, or take it if possible. Return it, None if another process leads. Raises
        BackendError."""
        if self.lease is None:
            self._seek(now)
        elif now >= self._renewed_at + self.renew_seconds:  # rounds like rest()
            found = self._store.renew(self.lease)
            if found[:2] == self.lease[:2]:
                self.lease, self._renewed_at = found, now
            else:
                self.lost(found.holder)
        return self.lease

    def _seek(self, now: float) -> None:
        found = self._store.look()
        if found[:3] != (self._watched or Lease("?"))[:3]:
            if found.holder and found.holder != (self._watched or Lease()).holder:
                logger.info(
                    "%s is the leader of the schedulers; this one waits",
                    found.holder,
                    extra={"event": "beat-follows"},
                )
            self._watched, self._watched_since = found, None
        elif self._watched_since is None:
            self._watched_since = now  # from the second look on: the first answer may have taken long
        if found.holder and (self._watched_since is None or now - self._watched_since < LEASE_SECONDS):
            return
        taken = self._store.take(self._holder, found, self._about)
        if taken.holder == self._holder:
            self.lease, self._renewed_at, self._watched = taken, now, None
            after = f", after {found.holder}" if found.holder else ""
            logger.info(
                "this process is now the leader of the schedulers%s", after, extra={"event": "beat-leads"}
            )

    def rest(self, now: float) -> float:
        """Return the seconds until the lease must be renewed."""
        return max(0.0, self._renewed_at + self.renew_seconds - now)

    def lost(self, holder: str = "") -> None:
        """Record that the lease was lost to *holder*."""
        self.lease = None
        logger.warning(
            "%s is now the leader of the schedulers",
            holder or "another process",
            extra={"event": "beat-follows"},
        )

    def resign(self) -> None:
        """Release the lease. Raises BackendError."""
        if self.lease is not None:
            lease, self.lease = self.lease, None
            self._store.resign(lease)


class Scheduling(ThreadComponent):
    """The scheduler thread of one process. Subclasses know the entries and call them. about: a description of
    this process."""

    log = logger
    away = AWAY
    retry_seconds = 0.25
    longest_rest = 0.5
    """Seconds after which a turn is taken even if nothing is due: the clock may have been set."""

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        store: ScheduleStore,
        about: str = "",
    ) -> None:
        super().__init__(app.clock, on_crash)
        self.app = app
        self.store = store
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.leadership = Leadership(store, holder[-255:], about)
        self._problems: tuple[str, ...] = ()  # replaced as a whole, because other threads read it
        self._away = False
        self._held_up = False
        """Some entries wait, although others could be called."""
        self._unsure = True
        """The broker may lack the messages of slots that were taken."""
        self._sweep_at = 0.0

    def lead(self, lease: Lease, now: float) -> float:
        """Call due entries; return the seconds until the next one. Raises LeaseLost, and errors in *away*."""
        raise NotImplementedError

    def follow(self) -> None:
        """Discard the leader's data, because another process leads."""

    def wrong(self) -> Iterator[str]:
        """Yield a sentence for each entry that is not called."""
        raise NotImplementedError

    def step(self, now: float) -> float:
        try:
            lease = self.leadership.step(now)
            rest = LOOK_SECONDS if lease is None else self.lead(lease, now)
        except LeaseLost as error:
            self.log.debug("%s", error)
            if self.leadership.lease is not None:
                self.leadership.lost()
            lease, rest = None, LOOK_SECONDS
        except self.away as error:
            self._unsure = True
            if not self._away:
                self._away = True
                self.log.error("the schedules are waiting: %s", error, extra={"event": "beat-waits"})
            return self.retry_seconds
        if lease is None:
            self._unsure = True
            self.follow()
        else:
            rest = min(rest, self.leadership.rest(self.clock.monotonic()), self.longest_rest)
        self._note_problems()
        if not self._held_up:
            self._go_on()
        return max(0.0, rest)

    def _go_on(self) -> None:
        if self._away:
            self._away = False
            self.log.info("the schedules continue", extra={"event": "beat-goes-on"})

    def _go_on_leading(self) -> Lease:
        """Renew the lease during long operations, if necessary. Raises LeaseLost."""
        lease = self.leadership.step(self.clock.monotonic())
        if lease is None:
            raise LeaseLost("another process is the leader of the schedulers")
        return lease

    def _sweep(self, now: float) -> None:
        """Delete some of the old slots."""
        if now >= self._sweep_at:
            swept = self.store.sweep(self.clock.now() - self.app.conf.beat_history_expires)
            self._sweep_at = now + (1.0 if swept else SWEEP_SECONDS)

    def _note_problems(self) -> None:
        self._problems = tuple(islice(self.wrong(), MOST_REPORTED))

    def problems(self) -> Sequence[str]:
        """Return a sentence for each entry that is not called, as far as this process knows."""
        return self._problems

    def quiet(self) -> None:
        """Stop, and leave the schedules to other processes."""
        self.stop()

    def closed(self) -> None:
        try:
            self.leadership.resign()
        except QWorkerError as error:
            self.log.debug("the lease of the schedules cannot be released, and will expire: %s", error)
        self.store.close()


def living(store: ScheduleStore, clock: Clock) -> Lease | None:
    """Return the lease of *store* if its holder is alive, None if there is no leader.

    This waits until the holder renews the lease, for at most LEASE_SECONDS. Raises BackendError.
    """
    found = first = store.look()
    until = clock.monotonic() + LEASE_SECONDS
    while found.holder and found[:3] == first[:3]:
        if clock.monotonic() >= until:
            return None
        clock.sleep(LOOK_SECONDS / 2)
        found = store.look()
    return found if found.holder else None
