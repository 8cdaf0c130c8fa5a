"""ScheduleStore: the storage for schedules shared by several processes.

Comes from:  ``service.py`` (lead, fire); ``api.py``, which the command line uses (rows, edit).
Goes to:     ``store_sql``, ``store_redis``, or the memory of one process (``stores``).
Thread:      any; the service calls from its own.

A store contains the *lease*, the rows and the slots. The lease names the leader. Each new leader gets a new
generation, a fencing token: operations of an old leader fail. There is a *row* for each entry, with its
manual changes and its state, and a *slot* for each due time that was called: no other call can take it.

Clocks are never compared. The leader increments a number in the lease. Other processes watch it, and one of
them may take the lease when the number has not changed for LEASE_SECONDS by its own clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qworker.process.crash_points import crash_point
from qworker.transports.lease import Envelope, Sender

LEASE_SECONDS = 1.4
RENEW_SECONDS = 0.35
LOOK_SECONDS = 0.2
"""Interval at which other processes check the lease."""

SENT, PENDING = "sent", "pending"


class Lease(NamedTuple):
    """The leader. holder: "" if there is none. beats: incremented by the holder. version: of the newest edit.
    about: a description of the holder."""

    holder: str = ""
    generation: int = 0
    beats: int = 0
    version: int = 0
    about: str = ""


NO_RESULT = " without result"


class EntryState(NamedTuple):
    """The state of an entry. All times are epoch seconds.

    - seen (text): its schedule when it was last examined; if it has changed, the entry starts afresh.
    - since: due times up to this do not count.
    - last_due: the last due time handled, even if it was not called. last_run: the time of the last call.
    - task_id: of that call, followed by NO_RESULT if it stores no result. runs: number of calls.
    - error: of the last attempt; None if it succeeded.
    """

    seen: str = ""
    since: float = 0.0
    last_due: float | None = None
    last_run: float | None = None
    task_id: str | None = None
    runs: int = 0
    error: str | None = None

    @property
    def called_id(self) -> str | None:
        """The id of the last call, without the mark NO_RESULT."""
        return self.task_id and self.task_id.removesuffix(NO_RESULT)

    @classmethod
    def read(cls, values: Sequence[Any]) -> EntryState | None:
        """Return the state stored as *values*; None if invalid, so that the entry starts afresh."""
        try:
            seen, since, last_due, last_run, task_id, runs, error = values
            return cls(
                str(seen),
                _instant(since),
                None if last_due is None else _instant(last_due),
                None if last_run is None else _instant(last_run),
                None if task_id is None else str(task_id),
                int(runs),
                None if error is None else str(error),
            )
        except (ValueError, TypeError, OverflowError):
            return None


LAST_INSTANT = 250_000_000_000.0
"""In the year 9892, shortly before the end of the calendar."""


def _instant(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < LAST_INSTANT:
        raise ValueError(f"{value!r:.100} is not an instant")
    return seconds


class EntryRow(NamedTuple):
    """A row of the store. edit: manual changes as JSON; None if there are none. refused: why the edit is not
    trusted; None if it is."""

    name: str
    version: int
    edit: bytes | None
    state: EntryState | None
    refused: str | None = None


class Firing(NamedTuple):
    """One call of an entry. due: epoch seconds. envelopes: its messages. state: the new state of the
    entry."""

    name: str
    due: float
    task_id: str
    envelopes: Sequence[Envelope]
    state: EntryState


class Slot(NamedTuple):
    """A due time that was called. at: epoch seconds. outcome: SENT, or PENDING while the broker may not have
    the message."""

    name: str
    due: float
    at: float
    task_id: str
    outcome: str = SENT


def once(firings: Sequence[Firing]) -> list[Firing]:
    """Return *firings* without duplicates of the same due time; the first is kept."""
    found: dict[tuple[str, int], Firing] = {}
    for each in firings:
        found.setdefault((each.name, micro(each.due)), each)
    return list(found.values())


def micro(seconds: float) -> int:
    """Return microseconds, the unit of times in stores."""
    return round(seconds * 1_000_000)


def is_sayable(name: str) -> bool:
    """Return whether a store can look up *name*. If not, there is no such entry."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


class ScheduleStore(ABC):
    """All methods raise BackendError when the store is unavailable."""

    shared = True
    """Whether other processes see its contents."""

    @abstractmethod
    def is_with(self, sender: Sender) -> bool:
        """Return whether slots and the messages of *sender* are stored atomically."""

    @abstractmethod
    def look(self) -> Lease:
        """Return the lease."""

    @abstractmethod
    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        """Take the lease if it equals *known*; return the current lease."""

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Increment the beats; return the current lease, which is another one if *lease* was lost."""

    @abstractmethod
    def resign(self, lease: Lease) -> None:
        """Release the lease, if it is still *lease*."""

    @abstractmethod
    def rows(self, after: int = -1) -> list[EntryRow]:
        """Return the rows with a version higher than *after*."""

    @abstractmethod
    def row(self, name: str) -> EntryRow | None:
        """Return the row of the entry *name*; None when there is none."""

    @abstractmethod
    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        """Store the manual changes of the entry *name* (None: delete them). Return False if the version of
        its row is not *known*, 0 for no row."""

    @abstractmethod
    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        """Store the states of entries. Raises LeaseLost when *lease* was lost."""

    @abstractmethod
    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        """Delete the rows of these entries that have no edit and still the given version. Raises LeaseLost
        when *lease* was lost: the leader must see a removal before the row is deleted."""

    @abstractmethod
    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        """Make the calls whose slots are free; return these.

        If the broker is the same store, messages and slots are stored atomically. Otherwise the slots are
        PENDING until the messages are sent. Raises LeaseLost when *lease* was lost, and BrokerUnavailable.
        """

    def _send(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> None:
        """Send the messages of *firings*, whose slots are pending, and mark these as sent."""
        crash_point("slots-pending")
        sender.push([envelope for each in firings for envelope in each.envelopes])
        crash_point("entries-sent")
        self.sent(lease, [(each.name, each.due) for each in firings])

    def prepare(self, sender: Sender) -> None:  # noqa: B027 - optional
        """Open what fire() needs to publish through *sender*, so that the first calls are not delayed."""

    @abstractmethod
    def pending(self) -> list[Slot]:
        """Return the slots whose messages the broker may not have."""

    @abstractmethod
    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        """Mark pending slots as sent. Raises LeaseLost when *lease* was lost."""

    @abstractmethod
    def slots(self, name: str, most: int = 100) -> list[Slot]:
        """Return the last *most* slots of the entry *name*, newest first."""

    @abstractmethod
    def sweep(self, before: float) -> int:
        """Delete some of the slots of due times before the epoch second *before*; return their number."""

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections; the next use opens them again."""
