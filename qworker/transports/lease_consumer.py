"""LeaseConsumer: the shared code of consumers with leases of our own.

Comes from:  the Listener, through ``Consumer`` in ``lease.py``.
Goes to:     the consumers of the servers' packages, which implement claiming, settling, reclaiming and
             waiting.
Thread:      listener only, except wake().

A server implements ``_insert()`` and ``_renew()`` (the consumer's record in the server), ``_claim()``,
``_give_back()`` and ``_release_connections()``, besides the remaining abstract methods.
"""

import os
import socket
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from qworker.clock import Clock, boot_id, boottime
from qworker.errors import LeaseLost
from qworker.process.owner_files import OwnerFiles
from qworker.transports.lease import Claim, Consumer, Hearing, Leased, Presenting

NOT_REGISTERED = 0
"""Generation 0: not registered."""


class WorkerRecord(NamedTuple):
    """A consumer's record in the server, for ``Listing.workers()`` and for reclaiming its messages when it is
    dead.

    boot: the boot id of its machine. started: epoch seconds. lock, running: paths of its owner files, '' if
    there are none. presence: the worker's status, '' if there is none.
    """

    name: str
    pid: int
    host: str
    boot: str
    queues: tuple[str, ...]
    concurrency: int
    started: float
    lock: str
    running: str
    presence: str


class LeaseConsumer(Consumer, Hearing, Presenting):
    """clock: for due times. lease_seconds: how long a silent consumer is considered alive. uptime: returns
    the seconds used for leases; None: the server's clock is used. directory: returns that of the owner files;
    None: there are none. place: the name of the broker's database; see OwnerFiles."""

    def __init__(
        self,
        clock: Clock,
        lease_seconds: float,
        uptime: Callable[[], float] | None,
        directory: Callable[[], Path | None],
        place: str,
    ) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._leases_on = uptime
        self._uptime = uptime or boottime
        self._directory = directory
        self._place = place
        self._first_queue = 0
        self._start_over()

    def _start_over(self) -> None:
        """Reset to the state before registration. Subclasses add their own."""
        self._files = OwnerFiles(self._directory, self._place)
        self._generation = NOT_REGISTERED
        self._renew_at = 0.0
        self._presence = ""
        """Written with each renewal."""

    def after_fork(self) -> None:
        """In a forked child: the leases belong to the parent, and end with it."""
        self._files.let_go()
        self._abandon_connections()
        self._start_over()

    # -- what a server supplies --

    def _take_files(self) -> None:
        """Create the lock of this generation, before others can read its path."""
        self._files.take()

    @abstractmethod
    def _insert(self, record: WorkerRecord) -> int:
        """Store *record* under a new generation, which is returned. Messages of the old one go back."""

    @abstractmethod
    def _renew(self) -> None:
        """Renew the lease, and write _presence. Raises _lost() if this consumer was considered dead."""

    @abstractmethod
    def _claim(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> Claim:
        """Take messages, from the first of *queues* first, and delayed ones due by epoch second *until*. The
        lease is renewed when renewal_is_due() and something is taken."""

    @abstractmethod
    def _give_back(self) -> None:
        """Delete the record from the server; messages go back, uncounted."""

    @abstractmethod
    def _release_connections(self) -> None:
        """Close the connections; the next use opens them again."""

    @abstractmethod
    def _abandon_connections(self) -> None:
        """In a forked child: drop the connections without notifying the server."""

    # -- Consumer --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._take_files()
        record = WorkerRecord(
            name=name,
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=boot_id(),
            queues=tuple(queues),
            concurrency=concurrency,
            started=self._clock.now(),
            lock=self._files.lock,
            running=self._files.running,
            presence=self._presence,
        )
        began = self._uptime()
        self._generation = self._insert(record)
        self._renewed(began)
        return self._generation

    def present(self, text: str) -> None:
        self._presence = text

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        self._require()
        first = self._first_queue = (self._first_queue + 1) % len(queues)
        turn = (*queues[first:], *queues[:first])
        claim = self._claim(turn, limit, delayed_limit, self._clock.now() + eta_window)
        claim.messages.sort(key=self._urgency)
        return claim

    def extend(self) -> None:
        self._require()
        began = self._uptime()
        self._renew()
        self._renewed(began)

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        self.extend()  # while this consumer is not considered dead, nobody else gets its messages
        return tags

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return ()

    def confirm(self) -> None:
        """Does nothing: settlements are certain when settle() returns."""

    @property
    def prefetched(self) -> bool:
        return False

    def running_path(self) -> str | None:
        return self._files.running or None

    def deregister(self) -> None:
        try:
            with self._files.ending():  # children may have begun before registration was possible
                if self._generation != NOT_REGISTERED:
                    self._give_back()
        finally:
            self._release_connections()
            self._start_over()

    # -- for the servers --

    def renewal_is_due(self) -> bool:
        """Whether a third of the lease is over."""
        return self._uptime() >= self._renew_at

    def _renewed(self, began: float) -> None:
        """The lease now holds for its whole length from *began*, on the clock of leases."""
        self._renew_at = began + self._lease_seconds / 3

    def _require(self) -> None:
        if self._generation == NOT_REGISTERED:
            raise LeaseLost("this process holds no leases: register first")

    def _lost(self) -> LeaseLost:
        """Return the error for a lost lease: another worker considered this one dead, or the broker's data is
        gone. A lease that was renewed in time cannot have expired."""
        renewed = self._renew_at - self._lease_seconds / 3
        silent = self._uptime() - renewed
        if silent >= self._lease_seconds:
            return LeaseLost(f"this worker was silent for {silent:.0f} s and considered dead")
        return LeaseLost(
            f"the broker has no record of this worker, which renewed its lease {max(0.0, silent):.1f} s ago: "
            "its data was deleted or replaced"
        )

    def _urgency(self, leased: Leased) -> tuple[int, int]:
        """The sort key of a claim: the most urgent first, then the oldest."""
        return -leased.priority, leased.tag
