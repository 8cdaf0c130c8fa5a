"""LeaseStore: what a broker must be able to do for a qworker worker. One contract suite holds for all.

Comes from:  ``publishing/publisher.py`` (push), the Listener (everything else), the command line (queues,
             dead…).
Goes to:     the store behind it: ``transports/sqlite/broker.py``.
Thread:      push, revoke and the administration from any thread; the leasing side from the listener only.

A message is taken on a *lease*: it stays in the store, marked with its holder, until it is settled. What a
dead holder leaves behind comes back by ``reclaim``. A lease belongs to an *epoch*, which is what the holder
was given when it enlisted; a holder that was thought dead and enlists again gets a new one, and what it
settles for the old epoch finds nothing to settle. That is the fence.

A store may lose its data under a running worker, by FLUSHALL, an old backup or a database made anew, and
counters begin anew with it. So no epoch and no number of a revocation is counted from one: each is the
microseconds of the store's wall clock, or one more than the last where that is more. An old epoch never
becomes another's, and no cursor is ahead of what comes. Tags may come again; what a worker remembers of a
message it remembers by the task's id as well (``Request.key``).
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from qworker.errors import ConfigurationError, NotSupported

MARK = struct.Struct("=q")
"""One slot of the file at running_path(): the tag that a child runs, 0 for none."""
MAX_LEASE_BYTES = 32 * 1024**2
"""Of bodies in what one lease() returns: the message that goes over it is the last."""

ResultRow = tuple[str, str, bytes, float | None]
"""``(task_id, status, payload, expires)``: a result to be stored together with the ack."""


class Envelope(NamedTuple):
    """A message on its way in. headers and properties are JSON text; due and expires are epoch seconds."""

    queue: str
    headers: str
    properties: str | None
    body: bytes
    priority: int = 0
    due: float | None = None
    expires: float | None = None


class Leased(NamedTuple):
    """A message on lease. deliveries counts the runs of it that a death cut short; parked, how often it was
    put back because nobody here knew its task, or its task asked for that (``Reject(requeue=True)``)."""

    tag: int
    queue: str
    priority: int
    due: float | None
    deliveries: int
    redelivered: bool
    parked: int
    headers: str
    properties: str | None
    body: bytes


class Dead(NamedTuple):
    """A dead letter: the message as it came, and why it was given up. died_at is in epoch seconds."""

    tag: int
    queue: str
    reason: str
    died_at: float
    deliveries: int
    headers: str
    properties: str | None
    body: bytes


class QueueInfo(NamedTuple):
    """How a queue stands. oldest: epoch seconds at which the oldest ready message was sent, None if none
    is."""

    queue: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None


class Ack(NamedTuple):
    """Forget the message; store *row* (if any) in the same step."""

    tag: int
    row: ResultRow | None = None


class Release(NamedTuple):
    """Give the message back, to be leased again at epoch second *due* (None: at once).

    counted: a run of it was cut short by a death. parked: its task is not known here, or asked to be put
    back. redelivered: whoever gets it next is to know that it was delivered before (as counted says too).
    """

    tag: int
    due: float | None = None
    counted: bool = False
    parked: bool = False
    redelivered: bool = False


class Bury(NamedTuple):
    """Move the message to the dead letters, with the reason; store *row* (if any) in the same step.

    counted: as in Release.
    """

    tag: int
    reason: str
    row: ResultRow | None = None
    counted: bool = False


class Store(NamedTuple):
    """Store *row*; the message itself was settled before, or stays."""

    row: ResultRow


Settlement = Ack | Release | Bury | Store


class Reclaimed(NamedTuple):
    """What a dead holder left: its name, how many messages went back, and how many of them it was running."""

    name: str
    returned: int
    counted: int


class Revocation(NamedTuple):
    """An order not to run a task, or to end it."""

    task_id: str
    terminate: bool
    signal: str


class Sink(Protocol):
    """Something to publish to: a broker, or a transaction that the caller has open on it."""

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """See LeaseStore.push."""


class LeaseStore(ABC):
    """A broker that leases. A forked child must not use its parent's: stores see to that themselves."""

    url: str
    lacks: frozenset[str] = frozenset()
    """What this broker cannot do. workers: workers() is always []. results: rows of settlements are not
    stored (a result store of another kind is used). counts: queues() knows nothing of what is delayed or
    leased, nor since when, and depths() nothing of the dead either. whole_push: a push that raises may have
    stored some messages. revoked: workers hear of no revocations."""

    lowest_first: bool = False
    """Whether of the priorities here the lowest is the most urgent; elsewhere 9 is."""

    silent_seconds: float = math.inf
    """How long a connection may be silent before its server gives to others what it holds. inf: servers do
    not look at that; what is silent for ``worker_lease_seconds`` has lost its lease."""

    # -- any thread --

    @abstractmethod
    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Store all or none of *envelopes*; they are durable when this returns.

        Raises BrokerUnavailable when that could not be done within *timeout* seconds: then none was stored.
        Where ``lacks`` says whole_push, some may have been, and *timeout* is for each portion of very many.
        """

    def join(self, connection: Any) -> Sink:
        """Publish by *connection*, within whatever transaction it is in.

        Raises ConfigurationError when this broker is none that such a connection leads to.
        """
        raise ConfigurationError(
            "publishing_in needs a broker in the database of its connection: set broker_url to "
            "postgresql:// or mysql://; "
            f"{self.url.partition(':')[0]}:// is another kind",
            setting="broker_url",
        )

    @abstractmethod
    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        """Tell every worker, also those that start later, not to run these tasks (terminate: to end them)."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait() of this process early. Safe in a signal handler."""

    # -- the listener --

    @abstractmethod
    def enlist(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        """Become a holder of leases, under a new epoch, which is returned; what an older one held goes
        back."""

    @abstractmethod
    def lease(self, queues: Sequence[str], limit: int, near: int = 0, horizon: float = 0.0) -> list[Leased]:
        """Take up to *limit* due messages, and up to *near* that fall due within *horizon* seconds.

        Most urgent first, then oldest; [] when there is none; fewer when they are large (MAX_LEASE_BYTES).
        Raises LeaseLost when this holder was taken for
        dead: enlist again. When anything is returned, the lease stands for two thirds of its length from the
        call on: a store that renewed it longer ago renews it first.
        """

    @abstractmethod
    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        """Carry out *settlements* in one step; return the tags that were no longer ours (nothing was
        done)."""

    def confirm(self) -> None:  # noqa: B027 - most know it when settle() returns
        """Return once the broker is known to have carried out what settle() told it: a task that is
        acknowledged first starts only then. Raises BrokerUnavailable when that cannot be known."""

    @abstractmethod
    def extend(self) -> None:
        """Renew the lease on everything held. Raises LeaseLost as lease() does."""

    @abstractmethod
    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        """Put back what dead holders held; [] when all are well. Cheap enough for once a second.

        silent: whether those count as dead, too, whose lease has run out; otherwise only those whose process
        is known to have ended."""

    @abstractmethod
    def next_due(self, queues: Sequence[str]) -> float | None:
        """Epoch second at which the next delayed message falls due; None when none waits."""

    @property
    def ahead(self) -> bool:
        """Whether wait() has taken messages: lease() gives these out first, whatever its limit."""
        return False

    def expect(self, room: int) -> None:  # noqa: B027 - most find a claim of their own cheap enough
        """Say before a wait() how many messages it may take as soon as they are there, where that spares who
        finds us idle a journey to the broker and back. 0: none from now on, and what cannot be stopped any
        more goes back."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait until something was pushed or revoked (then return True), wake() was called or *timeout*
        seconds have passed (then return False). The same thing may be told twice."""

    @abstractmethod
    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """Return a new cursor and the revocations since *cursor* (0: all that still stand).

        Asked right after a lease(), it may answer by what that saw: whoever revoked since then is told of by
        wait()."""

    @abstractmethod
    def sweep(self, dead_expires: float, dead_max: int) -> int:
        """Delete dead letters older than *dead_expires* seconds or beyond the newest *dead_max* of their
        queue, old revocations and expired results; return how many rows went. Writes nothing when nothing is
        due.

        Not more than some thousand at a time, so that nobody waits for it: call it again until it returns
        0."""

    @abstractmethod
    def running_path(self) -> str | None:
        """The file in which children mark the tag that they run (see components/pool/child_main.py); None:
        not kept."""

    @abstractmethod
    def resign(self) -> None:
        """Stop being a holder; everything still held goes back, not counted. Safe to call twice."""

    # -- administration, any thread --

    @abstractmethod
    def queues(self) -> list[QueueInfo]:
        """All queues that hold anything, by name."""

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        """How each of *queues* stands, whether it holds anything or not. Cheap enough for every few
        seconds."""
        found = {info.queue: info for info in self.queues()}
        return [found.get(queue) or QueueInfo(queue) for queue in queues]

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Delete what waits in *queue* (not what is being run); return how many messages that were."""

    @abstractmethod
    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        """The newest *limit* dead letters, newest first."""

    @abstractmethod
    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        """Send dead letters (None: all) back to their queues, with a clean count; return how many."""

    @abstractmethod
    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        """Delete dead letters (None: all); return how many."""

    def push_dead(self, letters: Sequence[Dead]) -> None:
        """Store all of *letters*, which come from another broker, as dead letters with tags of their own.

        Raises NotSupported, having stored none, where dead letters cannot be taken from elsewhere.
        """
        raise NotSupported(f"{self.url} takes no dead letters from elsewhere")

    def flush_delayed(self, queue: str) -> int:
        """Make what is delayed in *queue* plain messages, due at once, which readers that know only the plain
        queue find; return how many. Their headers still say when they are meant to run.

        Raises NotSupported where delayed messages cannot be reached.
        """
        raise NotSupported(f"{self.url} gives out delayed messages when they are due, and not before")

    @abstractmethod
    def workers(self) -> list[dict[str, object]]:
        """Live workers: ``{"name", "pid", "queues", "concurrency", "started"}`` each."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Safe to call twice."""
