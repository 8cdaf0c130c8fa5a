"""Leadership: which of several processes runs the schedules.

Comes from:  the service, at each of its turns.
Goes to:     the schedule store's lease.
Thread:      beat.

See ``store.py`` for the lease. The leader need not be certain of its role: each step of the store checks the
lease.
"""

from __future__ import annotations

import logging

from qworker.beat.store import LEASE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, Lease, ScheduleStore
from qworker.clock import Clock

logger = logging.getLogger(__name__)


class Leadership:
    """holder: a unique name of this process. about: a description of it."""

    def __init__(self, store: ScheduleStore, holder: str, about: str = "") -> None:
        self._store = store
        self._holder = holder
        self._about = about
        self.lease: Lease | None = None
        """Ours; None while we are not the leader."""
        self._renewed_at = 0.0  # monotonic seconds, as all times here
        self._watched: Lease | None = None
        self._watched_since: float | None = None

    def step(self, now: float) -> Lease | None:
        """Renew the lease, or take it if possible; return ours, or None. Raises BackendError."""
        if self.lease is None:
            self._seek(now)
        elif now >= self._renewed_at + RENEW_SECONDS:  # computed like rest(), to the last bit
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
            self._watched_since = now  # not the time of the request: the answer may have taken long
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
        """Return the seconds until the lease has to be renewed."""
        return max(0.0, self._renewed_at + RENEW_SECONDS - now)

    def lost(self, holder: str = "") -> None:
        """The lease was lost."""
        self.lease = None
        logger.warning(
            "%s is now the leader of the schedulers",
            holder or "somebody else",
            extra={"event": "beat-follows"},
        )

    def resign(self) -> None:
        """Release the lease. Raises BackendError."""
        if self.lease is not None:
            lease, self.lease = self.lease, None
            self._store.resign(lease)


def living(store: ScheduleStore, clock: Clock) -> Lease | None:
    """Return the lease of *store* if its holder is alive, None if there is no leader.

    A live holder counts up; so this watches it, for at most LEASE_SECONDS. Raises BackendError.
    """
    found = first = store.look()
    until = clock.monotonic() + LEASE_SECONDS
    while found.holder and found[:3] == first[:3]:
        if clock.monotonic() >= until:
            return None
        clock.sleep(LOOK_SECONDS / 2)
        found = store.look()
    return found if found.holder else None
