"""ScheduleStore: where schedules are kept that several processes look after.

Comes from:  ``service.py`` (lead, fire); ``api.py``, which the command line uses (rows, edit).
Goes to:     the stores, a module each: ``store_memory``, ``store_sql``, ``store_redis``.
Thread:      any; the service calls from its own.

Three things are in a store. The *lease*: who leads, since when. A new leader takes a new generation, which is
the fence: what an old one does finds that it leads no more. A *row* for each entry: what was changed of it by
hand, and what has become of it so far. And the *slots*: one for each due time of an entry that was called,
which no second call can take.

No clock is compared with another. Who does not lead looks at the lease: its holder counts up a number while
it lives. A lease whose number has stood still for LEASE_SECONDS on the looker's own clock may be taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qworker.transports.lease import Envelope, Sender

LEASE_SECONDS = 1.4
RENEW_SECONDS = 0.35
LOOK_SECONDS = 0.2
"""How often who does not lead looks."""

SENT, PENDING = "sent", "pending"


class Lease(NamedTuple):
    """Who leads. holder: "" for nobody. beats: counted up by the holder. version: of the newest edit. about:
    what the holder says of itself."""

    holder: str = ""
    generation: int = 0
    beats: int = 0
    version: int = 0
    about: str = ""


class State(NamedTuple):
    """What has become of an entry. All times are epoch seconds.

    - seen (text): its schedule as it was when it was looked at last; another one begins anew.
    - since: due times later than this count.
    - last_due, last_run: the due time that was called last, and when that was.
    - task_id: of that call; None where nobody can ask for its result, or revokes it. runs: how many calls
      there were. error: what went wrong the last time.
    """

    seen: str = ""
    since: float = 0.0
    last_due: float | None = None
    last_run: float | None = None
    task_id: str | None = None
    runs: int = 0
    error: str | None = None

    @classmethod
    def read(cls, values: Sequence[Any]) -> State | None:
        """Return the state that a store has as *values*; None when it is none, so that the entry begins
        anew."""
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
"""In the year 9892: after it there is soon no calendar."""


def _instant(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < LAST_INSTANT:
        raise ValueError(f"{value!r:.100} is not an instant")
    return seconds


class Row(NamedTuple):
    """A row of the store. edit: JSON of what was changed by hand; None: nothing. refused: why nobody is to
    believe it; None: it may be believed."""

    name: str
    version: int
    edit: bytes | None
    state: State | None
    refused: str | None = None


class Firing(NamedTuple):
    """One call of an entry. due: epoch seconds. envelopes: its messages. state: what the entry's becomes."""

    name: str
    due: float
    task_id: str
    envelopes: Sequence[Envelope]
    state: State


class Slot(NamedTuple):
    """A due time that was called. at: epoch seconds. outcome: SENT, or PENDING while it is not known that the
    broker has the message."""

    name: str
    due: float
    at: float
    task_id: str
    outcome: str = SENT


def once(firings: Sequence[Firing]) -> list[Firing]:
    """Return *firings*, and of those of the same due time the first."""
    found: dict[tuple[str, int], Firing] = {}
    for each in firings:
        found.setdefault((each.name, micro(each.due)), each)
    return list(found.values())


def micro(seconds: float) -> int:
    """Return the microseconds in which stores keep instants."""
    return round(seconds * 1_000_000)


def is_sayable(name: str) -> bool:
    """Tell whether a store can be asked for an entry *name*; one of which it cannot is not there."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


class ScheduleStore(ABC):
    """All methods raise BackendError when the store does not answer."""

    shared = True
    """Whether other processes see it."""

    @abstractmethod
    def is_with(self, sender: Sender) -> bool:
        """Tell whether slots and the messages of *sender* are there together or not at all."""

    @abstractmethod
    def look(self) -> Lease:
        """Return the lease."""

    @abstractmethod
    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        """Take the lease when it is as *known*; return what it is then."""

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Count up; return the lease, which is another's when *lease* is over."""

    @abstractmethod
    def resign(self, lease: Lease) -> None:
        """Leave the lease to whoever comes, when it is still *lease*'s."""

    @abstractmethod
    def rows(self, after: int = -1) -> list[Row]:
        """Return the rows whose version is higher than *after*."""

    @abstractmethod
    def row(self, name: str) -> Row | None:
        """Return the row of the entry *name*; None when there is none."""

    @abstractmethod
    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        """Keep what was changed of the entry *name*, None for nothing; False when its row has another version
        than *known*, which is 0 where there is no row."""

    @abstractmethod
    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        """Keep what has become of entries. Raises LeaseLost when *lease* is over."""

    @abstractmethod
    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        """Forget the rows of entries, by their names, that have no edit, and the version that is given still.
        Raises LeaseLost when *lease* is over: who leads has to have seen what was removed before it is
        forgotten."""

    @abstractmethod
    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        """Make calls; return those whose slot was free, which alone were made.

        Where the broker is the same store, messages and slots are there together or not at all. Elsewhere the
        slots are PENDING until the messages are sent. Raises LeaseLost when *lease* is over, and
        BrokerUnavailable.
        """

    def prepare(self, sender: Sender) -> None:  # noqa: B027 - some need no more than they have
        """Open what fire() will need to publish by *sender*, so that the first calls are not late for it."""

    @abstractmethod
    def pending(self) -> list[Slot]:
        """Return the slots of which it is not known whether the broker has the message."""

    @abstractmethod
    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        """Say of pending slots that the broker has the message. Raises LeaseLost when *lease* is over."""

    @abstractmethod
    def slots(self, name: str, most: int = 100) -> list[Slot]:
        """Return the last slots of the entry *name*, the newest first."""

    @abstractmethod
    def sweep(self, before: float) -> int:
        """Forget the slots of due times before the epoch second *before*, a portion of them; how many that
        were."""

    def close(self) -> None:  # noqa: B027 - who has no connections has nothing to do
        """Let go of connections; the next use opens them again."""
