"""ScheduleStore: the storage for schedules shared by several processes.

Comes from:  ``service.py`` (lead, fire); ``api.py``, which the command line uses (rows, edit).
Goes to:     the stores, one module each: ``store_memory``, ``store_sql``, ``store_redis``.
Thread:      any; the service calls from its own.

A store contains three things. The *lease*: who leads, since when. A new leader takes a new generation, the
fencing token: operations of an old leader fail. A *row* for each entry: its manual changes, and its state.
And the *slots*: one for each due time that was called, which no second call can take.

Clocks are never compared. A process that does not lead watches the lease, whose live holder counts up a
number. A lease whose number has not changed for LEASE_SECONDS, by the watcher's own clock, may be taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qworker.transports.lease import Envelope, Sender

LEASE_SECONDS = 1.4
RENEW_SECONDS = 0.35
LOOK_SECONDS = 0.2
"""Interval at which other processes check the lease."""

SENT, PENDING = "sent", "pending"


class Lease(NamedTuple):
    """The leader. holder: "" if there is none. beats: counted up by the holder. version: of the newest edit.
    about: the holder's description of itself."""

    holder: str = ""
    generation: int = 0
    beats: int = 0
    version: int = 0
    about: str = ""


NO_RESULT = " without result"


class State(NamedTuple):
    """The state of an entry. All times are epoch seconds.

    - seen (text): its schedule when it was last examined; with another one the entry begins anew.
    - since: only due times after this count.
    - last_due, last_run: the due time called last, and when that was.
    - task_id: of that call; followed by NO_RESULT if its result is not available. runs: number of calls.
      error: of the last attempt.
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
        """The id of that call, without the mark."""
        return self.task_id and self.task_id.removesuffix(NO_RESULT)

    @classmethod
    def read(cls, values: Sequence[Any]) -> State | None:
        """Return the state stored as *values*; None if invalid, so that the entry begins anew."""
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


class Row(NamedTuple):
    """A row of the store. edit: JSON of manual changes; None: none. refused: why it is not trusted; None: it
    is."""

    name: str
    version: int
    edit: bytes | None
    state: State | None
    refused: str | None = None


class Firing(NamedTuple):
    """One call of an entry. due: epoch seconds. envelopes: its messages. state: the new state of the
    entry."""

    name: str
    due: float
    task_id: str
    envelopes: Sequence[Envelope]
    state: State


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
    """Return microseconds, the unit of instants in stores."""
    return round(seconds * 1_000_000)


def is_sayable(name: str) -> bool:
    """Tell whether a store can look up an entry *name*; otherwise there is none."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


class ScheduleStore(ABC):
    """All methods raise BackendError when the store is unavailable."""

    shared = True
    """Whether other processes share it."""

    @abstractmethod
    def is_with(self, sender: Sender) -> bool:
        """Tell whether slots and the messages of *sender* are stored atomically."""

    @abstractmethod
    def look(self) -> Lease:
        """Return the lease."""

    @abstractmethod
    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        """Take the lease if it equals *known*; return the current lease."""

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Count up; return the lease, which is another one if *lease* was lost."""

    @abstractmethod
    def resign(self, lease: Lease) -> None:
        """Release the lease, if it is still *lease*."""

    @abstractmethod
    def rows(self, after: int = -1) -> list[Row]:
        """Return the rows with a version higher than *after*."""

    @abstractmethod
    def row(self, name: str) -> Row | None:
        """Return the row of the entry *name*; None when there is none."""

    @abstractmethod
    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        """Store the manual changes of the entry *name*, None for none; False when its row does not have the
        version *known*, 0 for no row."""

    @abstractmethod
    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        """Store the states of entries. Raises LeaseLost when *lease* was lost."""

    @abstractmethod
    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        """Delete the rows of entries, by name, that have no edit and still the given version. Raises
        LeaseLost when *lease* was lost: the leader must see a removal before the row is deleted."""

    @abstractmethod
    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        """Make calls; return those whose slot was free; only they were made.

        If the broker is the same store, messages and slots are stored atomically. Otherwise the slots are
        PENDING until the messages are sent. Raises LeaseLost when *lease* was lost, and BrokerUnavailable.
        """

    def prepare(self, sender: Sender) -> None:  # noqa: B027 - some need no more than they have
        """Open what fire() needs to publish through *sender*, so that the first calls are not delayed."""

    @abstractmethod
    def pending(self) -> list[Slot]:
        """Return the slots whose messages the broker may not have."""

    @abstractmethod
    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        """Mark pending slots as sent. Raises LeaseLost when *lease* was lost."""

    @abstractmethod
    def slots(self, name: str, most: int = 100) -> list[Slot]:
        """Return the last slots of the entry *name*, newest first."""

    @abstractmethod
    def sweep(self, before: float) -> int:
        """Delete some of the slots of due times before the epoch second *before*; return their number."""

    def close(self) -> None:  # noqa: B027 - without connections there is nothing to do
        """Close connections; the next use opens them again."""
