"""The interface of a broker. One contract suite applies to all.

Comes from:  ``publishing/publisher.py`` (Sender), the Listener (Consumer), the command line (Admin); optional
             features are further attributes of ``Broker``, None where missing.
Goes to:     the servers: one package each, beside this module.
Thread:      Sender and Admin from any thread; Consumer from the listener only, except wake().

A message is taken on a *lease*: it stays in the broker, marked with its consumer, until it is settled.
Messages of a dead consumer are put back by ``reclaim``. A lease belongs to a *generation*, the number that a
consumer gets when it registers. A consumer that was considered dead and registers again gets a new one, and
its settlements under the old generation have no effect. This is the fencing token.

A broker may lose its data while a worker is running, by FLUSHALL, an old backup or a recreated database, and
its counters restart. So generations and numbers of revocations do not count from one: each is the
microseconds of the server's wall clock, or one more than the last if that is more. An old generation is never
given to another consumer, and no cursor is ahead of new numbers. Tags may be reused; a worker also identifies
a message by the task's id (``Request.key``).
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

from qworker import states
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.capabilities import Capability
from qworker.transports.presence import Presence
from qworker.transports.registry import Registry

NO_ROOM = -1
"""Passed to wait() by a consumer that cannot take any message now."""
MAX_LEASE_BYTES = 32 * 1024**2
"""Maximum bytes of bodies in one lease(): the message that exceeds it is the last."""

ResultRow = tuple[str, str, bytes, float | None]
"""``(task_id, status, payload, expires)``: a result to be stored together with the ack."""


def latest(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the row to store for each task in *rows*, which are oldest first. In a fixed order, against
    deadlocks."""
    last: dict[str, ResultRow] = {}
    for row in rows:
        before = last.get(row[0])
        if before is None or states.may_replace(before[1], row[1]):
            last[row[0]] = row
    return [last[task_id] for task_id in sorted(last)]


class Envelope(NamedTuple):
    """A message to be published. headers and properties are JSON text; due and expires are epoch seconds."""

    queue: str
    headers: str
    properties: str | None
    body: bytes
    priority: int = 0
    due: float | None = None
    expires: float | None = None


class Leased(NamedTuple):
    """A message on lease. deliveries counts its runs that were interrupted by a death; requeued, how often it
    was put back because its task was unknown, or its task asked for that (``Reject(requeue=True)``)."""

    tag: int
    queue: str
    priority: int
    due: float | None
    deliveries: int
    redelivered: bool
    requeued: int
    headers: str
    properties: str | None
    body: bytes


class Dead(NamedTuple):
    """A dead letter: the unchanged message, and why it was given up. died_at is in epoch seconds."""

    tag: int
    queue: str
    reason: str
    died_at: float
    deliveries: int
    headers: str
    properties: str | None
    body: bytes


class QueueInfo(NamedTuple):
    """The state of a queue. oldest: epoch seconds when the oldest ready message was sent, None if there is
    none."""

    queue: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None


MessageState = Literal["ready", "delayed", "leased"]
"""The state of a message in its queue: ready, waiting for its due time, or on lease."""


class Peeked(NamedTuple):
    """A message in its queue, without its body.

    sent: epoch second when it was published, None if unknown. deliveries: as in Leased.
    worker: the name of the consumer that holds it; "" if there is none, or it is unknown.
    """

    queue: str
    state: MessageState
    priority: int
    due: float | None
    sent: float | None
    deliveries: int
    headers: str
    worker: str = ""


class Part(NamedTuple):
    """The end of a member of a join. number: of the member, from 0. status: its final state.

    value, body: for a join in Celery's format, the value in Celery's encoding, and the body from the member's
    message. b"": the join is in our format, which has both.
    """

    join: str
    number: int
    task_id: str
    status: str
    value: bytes = b""
    body: bytes = b""


class Ack(NamedTuple):
    """Delete the message; store *row* (if any) and record *parts* in the same step."""

    tag: int
    row: ResultRow | None = None
    parts: tuple[Part, ...] = ()


class Release(NamedTuple):
    """Give the message back, to be leased again at epoch second *due* (None: at once).

    counted: a run of it was interrupted by a death. requeued: its task is unknown here, or asked to be put
    back. redelivered: the next consumer is told that it was delivered before (which counted implies).
    """

    tag: int
    due: float | None = None
    counted: bool = False
    requeued: bool = False
    redelivered: bool = False


class DeadLetter(NamedTuple):
    """Move the message to the dead letters, with the reason; store *row* (if any) and record *parts* in the
    same step.

    counted: as in Release. failed: move it to the failed tasks instead, because it has ended; only for a
    broker that has them.
    """

    tag: int
    reason: str
    row: ResultRow | None = None
    counted: bool = False
    parts: tuple[Part, ...] = ()
    failed: bool = False


class Store(NamedTuple):
    """Store *row*, if there is one, and record *parts*; the message itself was settled before, or stays."""

    row: ResultRow | None
    parts: tuple[Part, ...] = ()


Settlement = Ack | Release | DeadLetter | Store


class RowsLocked(BrokerUnavailable):
    """The broker answers, but another process has locked what is needed."""


class Reclaimed(NamedTuple):
    """The messages of a dead consumer: its name, how many were put back, and how many of them were
    running."""

    name: str
    returned: int
    counted: int


class Revocation(NamedTuple):
    """An order not to run a task, or to end it."""

    task_id: str
    terminate: bool
    signal: str


class Claim(NamedTuple):
    """The result of one lease().

    messages: most urgent first, then oldest; [] when there are none.
    next_due: epoch second when the next delayed message is due; None when there is none.
    last_revocation: the number of the newest revocation, 0 when there is none, or none that revoked_since()
        has not returned; None when that is unknown without revoked_since().
    """

    messages: list[Leased]
    next_due: float | None = None
    last_revocation: int | None = None


class Again(NamedTuple):
    """A failed task to run again: its new message. tag: of the kept message."""

    tag: int
    headers: str
    properties: str | None
    body: bytes


Kind = Literal["dead", "failed"]
"""The kinds of letters: dead letters and failed tasks."""
PORTION = 200
"""How many letters are read at a time, unless the store reads them all anyway."""


class Letters(ABC):
    """The letters of one kind that a broker keeps: the messages of dead letters, or of tasks that have failed
    for good. Any thread."""

    portion: int = PORTION
    """How many are read at a time; ``sys.maxsize`` if page() has to read all of them anyway."""

    @abstractmethod
    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        """Return up to *limit* letters, newest first: the newest, or those that follow *after*, the last one
        of the previous page. queue: only of this queue. Fewer than *limit* means that there are no more."""

    def newest(
        self, queue: str | None = None, limit: int | None = None, after: Dead | None = None
    ) -> Iterator[Dead]:
        """Yield the newest *limit* letters (None: all), newest first, reading portions as needed. queue,
        after: as in page()."""
        left = sys.maxsize if limit is None else limit
        while left > 0:
            size = min(self.portion, left)
            page = self.page(queue, size, after)
            yield from page
            if len(page) < size:
                return
            left, after = left - size, page[-1]

    @abstractmethod
    def retry(self, tags: Sequence[int] | None = None) -> int:
        """Send those with *tags* (None: all) back to their queues unchanged, with reset counts; return how
        many. A FAILURE stored in the same place is deleted."""

    @abstractmethod
    def send_again(self, calls: Sequence[Again]) -> int:
        """Send each of *calls* to its queue and delete the kept message, in one step; return how many were
        still kept: the others are not sent. A FAILURE stored in the same place is deleted."""

    @abstractmethod
    def discard(self, tags: Sequence[int] | None = None) -> int:
        """Delete those with *tags* (None: all); return their number."""

    @abstractmethod
    def push(self, letters: Sequence[Dead]) -> None:
        """Store all of *letters*, which come from another broker, under new tags.

        Raises NotSupported, with none stored, if this broker does not accept letters from elsewhere.
        """


def page_of(letters: Iterable[Dead], limit: int, after: Dead | None) -> list[Dead]:
    """Letters.page() for stores that read all *letters* at once. Of those that died at the same time, the
    first counts as the newest."""
    found = sorted(letters, key=lambda letter: -letter.died_at)
    tags = [] if after is None else [letter.tag for letter in found]
    start = tags.index(after.tag) + 1 if after is not None and after.tag in tags else 0
    if after is not None and not start:  # it was deleted meanwhile
        start = sum(letter.died_at >= after.died_at for letter in found)
    return found[start : start + limit]


class Sender(ABC):
    """The interface for publishing, on any thread."""

    @abstractmethod
    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Store all or none of *envelopes*; they are durable when this returns.

        Raises BrokerUnavailable when that takes longer than *timeout* seconds: then none was stored. If the
        broker lacks WHOLE_PUSH, some may have been, and *timeout* is for each portion of very many.
        """

    def join(self, connection: Any) -> "Sender":
        """Publish through *connection*, within its current transaction.

        Raises ConfigurationError when *connection* is not to this broker.
        """
        raise ConfigurationError(
            "publishing_in needs a broker in the database of its connection: set broker_url to postgresql:// "
            "or mysql://; this broker is of another kind",
            setting="broker_url",
        )


class Consumer(ABC):
    """The interface for a worker's listener. Only wake() may be called by other threads."""

    poll_seconds: float = 1.0
    """Seconds after which a worker with room calls lease() although wait() has reported nothing, in case a
    notification was lost. A server that wait() itself asks from time to time may have more."""

    @abstractmethod
    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        """Register under a new generation and return it; messages of an older one go back to their queues.

        If it raises, this consumer may have been registered or not. A worker calls it again before it takes
        any messages."""

    @abstractmethod
    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        """Take up to *limit* due messages, and up to *delayed_limit* that are due within *eta_window*
        seconds.

        Returns fewer when they are large (MAX_LEASE_BYTES). Messages taken by wait() come first, regardless
        of *limit*. When there are messages, the lease holds for at least two thirds of its length from the
        call: a broker renews an older one first. Raises LeaseLost when this consumer was considered
        dead: register again.
        """

    @abstractmethod
    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        """Carry out *settlements* in one step; return the tags that were no longer ours."""

    @abstractmethod
    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        """Return those of *tags* that settle() reported as no longer ours only because an earlier settle()
        had settled them, and its answer, or that of confirm(), was lost; () if this broker cannot know that.
        Raises LeaseLost when this consumer was considered dead: then others may have the messages."""

    @abstractmethod
    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        """Return those of *tags*, reported by settle() as no longer ours, that it may have settled all the
        same: the answer came after their lease, and the broker may have carried it out before. () if this
        broker always knows."""

    @abstractmethod
    def confirm(self) -> None:
        """Return once the broker has certainly carried out earlier settlements: an early-acked task starts
        only then. Raises BrokerUnavailable when that is uncertain."""

    @abstractmethod
    def extend(self) -> None:
        """Renew the lease on everything held. Raises LeaseLost like lease()."""

    @abstractmethod
    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        """Put back the messages of dead consumers; [] if there are none. Cheap enough for once a second.

        silent: also reclaim from consumers whose lease has expired; otherwise only from those whose process
        has certainly ended."""

    @abstractmethod
    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """Wait until something was pushed or revoked (then return True), wake() was called or *timeout*
        seconds have passed (then return False). The same event may be reported twice. Raises
        BrokerUnavailable when the server does not answer, and LeaseLost when that has cost the lease.

        prefetch: how many messages may be taken as soon as they arrive, if that saves a round trip; lease()
        returns them. 0: none; messages that were already requested go back. NO_ROOM: none, and messages need
        not be reported, so that a consumer that has room can be woken instead; with *timeout* 0, until the
        next call."""

    @property
    @abstractmethod
    def prefetched(self) -> bool:
        """Whether wait() has taken messages for lease() to return."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait() of this process early. Any thread; safe in a signal handler."""

    @abstractmethod
    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        """Delete letters of *kind* older than *expires* seconds or beyond the newest *most* of their queue;
        with dead letters also old revocations and expired results. Return how many rows were deleted. Writes
        nothing when nothing is due.

        At most some thousand at a time, so that others need not wait: call it again until it returns 0."""

    @abstractmethod
    def running_path(self) -> str | None:
        """The file in which children record the tag that they run (see components/pool/child_main.py); None:
        there is none."""

    @abstractmethod
    def deregister(self) -> None:
        """Stop being a consumer; everything still held goes back, uncounted. Safe to call twice."""


class Admin(ABC):
    """The interface for administration, on any thread."""

    @property
    @abstractmethod
    def purges_leased(self) -> bool:
        """Whether purge() also deletes leased messages, because the server does not distinguish them from
        delayed ones."""

    @abstractmethod
    def queues(self) -> list[QueueInfo]:
        """Return all queues that hold anything, by name."""

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        """Return the state of each of *queues*, empty or not. Cheap enough for every few seconds."""
        found = {info.queue: info for info in self.queues()} if queues else {}
        return [found.get(queue) or QueueInfo(queue) for queue in queues]

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Delete the waiting messages of *queue* (not running ones); return their number."""

    _dead_letters: Letters | None = None
    """The letters of the three methods below; set by ``Broker``."""

    @final
    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        """Return the newest *limit* dead letters, newest first."""
        return [] if self._dead_letters is None else list(self._dead_letters.newest(queue, limit))

    @final
    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        """Send dead letters (None: all) back to their queues, with reset counts; return their number."""
        return 0 if self._dead_letters is None else self._dead_letters.retry(tags)

    @final
    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        """Delete dead letters (None: all); return their number."""
        return 0 if self._dead_letters is None else self._dead_letters.discard(tags)


# -- Optional features: attributes of ``Broker``, None where missing --


class Revoking(ABC):
    """The part of a sender that revokes tasks. Any thread."""

    @abstractmethod
    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        """Tell all workers, including those that start later, not to run these tasks (terminate: and to end
        running ones)."""


class Hearing(ABC):
    """The part of a consumer that receives revocations."""

    @abstractmethod
    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """Return a new cursor and the revocations since *cursor* (0: all that are still kept)."""


@dataclass(frozen=True)
class Revocations:
    """Revoking tasks at all workers."""

    sender: Revoking
    consumer: Hearing


class Presenting(ABC):
    """The part of a consumer that publishes its worker's status."""

    @abstractmethod
    def present(self, text: str) -> None:
        """Publish *text* (see ``presence.py``) with the registration and each renewal of the lease, without
        an extra request."""


class Listing(ABC):
    """The part of the administration that lists workers. Any thread."""

    @abstractmethod
    def workers(self) -> list[Presence]:
        """Return the live workers, each with the status that it published last."""


@dataclass(frozen=True)
class Workers:
    """The status of live workers: publishing and reading it."""

    consumer: Presenting
    admin: Listing


class Peeking(ABC):
    """Reads messages without leasing them. Any thread."""

    @abstractmethod
    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        """Return the first *limit* messages of *queue* in this state, without changing them: ready ones in
        the order of delivery, delayed ones by due time, leased ones in any order."""


class Delayed(ABC):
    """Access to delayed messages before they are due. Any thread."""

    @abstractmethod
    def next_due(self, queues: Sequence[str]) -> float | None:
        """Return the epoch second when the next delayed message of *queues* is due; None if there is none."""

    @abstractmethod
    def flush_delayed(self, queue: str) -> int:
        """Make the delayed messages of *queue* ready at once, for readers that only look there; return how
        many. Their headers still contain the due time."""


class StoredResults(ABC):
    """Results that are stored in the same step as an ack. Any thread."""

    @abstractmethod
    def may_have_due_joins(self, now: float) -> bool:
        """Whether one of the joins beside these results may be claimed at *now* (epoch seconds)."""


class ByQueue(ABC):
    """The part of a consumer that reads a single queue, where the server may send messages of others
    meanwhile."""

    @abstractmethod
    def look(self, queue: str) -> Claim:
        """Lease one due message of *queue*, if the server has one now; lease() may only find it later, and
        takes others meanwhile. A message of another queue that was received before may be returned
        instead."""

    @abstractmethod
    def unbind(self, queue: str) -> None:
        """Receive no more messages of *queue* until lease() or look() names it again; those received and not
        yet returned go back."""


SHOWN = {
    Capability.FANOUT: "revocations",
    Capability.WORKERS: "presence",
    Capability.PEEK: "peeking",
    Capability.RESULTS: "stored_results",
}
LETTERS: Mapping[Capability, Kind] = {Capability.DEAD_LETTERS: "dead", Capability.FAILED_TASKS: "failed"}
"""The capability that is missing when a part is None, or letters of a kind are not kept."""


class Broker(ABC):
    """A server, as its three interfaces. Nothing connects before it is used.

    A forked child must not use its parent's connections and leases: brokers handle that themselves.
    """

    url: str
    sender: Sender
    consumer: Consumer
    admin: Admin

    def __init__(
        self,
        url: str,
        sender: Sender,
        consumer: Consumer,
        admin: Admin,
        *,
        lacks: frozenset[Capability],
        letters: Mapping[Kind, Letters],
        revocations: Revocations | None,
        presence: Workers | None,
        peeking: Peeking | None,
        delayed: Delayed | None,
        stored_results: StoredResults | None,
        by_queue: ByQueue | None,
        registry: Registry | None,
        lowest_first: bool,
        silent_seconds: float,
    ) -> None:
        """lacks: missing features other than those in SHOWN and LETTERS. The rest: see the attributes."""
        self.url = url
        self.sender = sender
        self.consumer = consumer
        self.admin = admin
        self.letters = letters
        self.revocations = revocations
        self.presence = presence
        self.peeking = peeking
        self.delayed = delayed
        self.stored_results = stored_results
        self.by_queue = by_queue
        self.registry = registry
        self.lowest_first = lowest_first
        self.silent_seconds = silent_seconds
        absent = {each for each, part in SHOWN.items() if getattr(self, part) is None}
        absent |= {each for each, kind in LETTERS.items() if kind not in letters}
        self.lacks = (lacks - SHOWN.keys() - LETTERS.keys()) | absent
        admin._dead_letters = letters.get("dead")

    lacks: frozenset[Capability]
    """Missing features."""

    letters: Mapping[Kind, Letters]
    """The letters that it keeps, by kind. Without "failed", failed tasks are acknowledged like others."""

    revocations: Revocations | None
    """None: a revocation only reaches the worker that receives the command."""

    presence: Workers | None
    """None: live workers are not known."""

    peeking: Peeking | None
    """None: messages cannot be read without leasing them."""

    delayed: Delayed | None
    """None: delayed messages cannot be reached before they are due."""

    stored_results: StoredResults | None
    """None: rows of settlements are not stored; results need a separate store."""

    by_queue: ByQueue | None
    """None: lease() only receives messages of the queues that it is asked for."""

    registry: Registry | None
    """The exchanges and bindings of kombu's users. None: not kept, so there is no fanout."""

    lowest_first: bool
    """Whether the lowest priority is the most urgent; elsewhere 9 is."""

    silent_seconds: float
    """How long a connection may be silent before its server gives its messages to others. inf: servers do not
    check it; after ``worker_lease_seconds`` of silence the lease is lost."""

    @property
    @abstractmethod
    def missing(self) -> str | None:
        """Return the missing file or directory of the broker, or "table of …", so that nothing was sent yet;
        None if it exists, and for servers that need nothing. Reading must not create it."""

    @abstractmethod
    def close(self) -> None:
        """Close everything. Safe to call twice."""


class SingleObjectBroker(Sender, Consumer, Admin, Broker):
    """A broker that implements the three interfaces in one class. parts: keyword arguments of Broker."""

    def __init__(self, url: str, **parts: Any) -> None:
        super().__init__(url, self, self, self, **parts)
