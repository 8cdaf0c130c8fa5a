"""The promise: what a broker must be able to do for qworker. One contract suite holds for all.

Comes from:  ``publishing/publisher.py`` (Sender), the Listener (Consumer), the command line (Admin).
Goes to:     the servers: a package each, beside this module.
Thread:      Sender and Admin from any thread; Consumer from the listener only, but for wake().

A message is taken on a *lease*: it stays in the broker, marked with its consumer, until it is settled. What a
dead consumer leaves behind comes back by ``reclaim``. A lease belongs to a *generation*, which is the number
that a consumer is given when it registers. A consumer that was thought dead and registers again gets a new
one, and what it settles for the old generation finds nothing to settle. That is the fence.

A broker may lose its data under a running worker, by FLUSHALL, an old backup or a database made anew, and
counters begin anew with it. So no generation and no number of a revocation is counted from one: each is the
microseconds of the server's wall clock, or one more than the last where that is more. An old generation never
becomes another's, and no cursor is ahead of what comes. Tags may come again; what a worker remembers of a
message it remembers by the task's id as well (``Request.key``).
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, final

from qworker.errors import ConfigurationError, NotSupported
from qworker.transports.capabilities import Capability
from qworker.transports.presence import Presence
from qworker.transports.registry import Registry

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
    """A message on lease. deliveries counts the runs of it that a death cut short; requeued, how often it was
    put back because nobody here knew its task, or its task asked for that (``Reject(requeue=True)``)."""

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


Standing = Literal["ready", "delayed", "leased"]
"""How a message stands in its queue: it waits, waits for its time, or is on lease."""


class Peeked(NamedTuple):
    """A message as it lies in its queue, without its body.

    sent: epoch second at which it was put there, None when that is not known. deliveries: as in Leased.
    worker: the name of the consumer that has it on lease; "" when none has, or nobody knows which.
    """

    queue: str
    standing: Standing
    priority: int
    due: float | None
    sent: float | None
    deliveries: int
    headers: str
    worker: str = ""


class Part(NamedTuple):
    """A member of a join has ended. number: of the member, from 0. status: its final state.

    value, body: of a join in Celery's layout, the value as Celery writes it there, and the call that follows
    as the member's message carried it. b"": the join is ours, and has both.
    """

    join: str
    number: int
    task_id: str
    status: str
    value: bytes = b""
    body: bytes = b""


class Ack(NamedTuple):
    """Forget the message; store *row* (if any) and record *parts* in the same step."""

    tag: int
    row: ResultRow | None = None
    parts: tuple[Part, ...] = ()


class Release(NamedTuple):
    """Give the message back, to be leased again at epoch second *due* (None: at once).

    counted: a run of it was cut short by a death. requeued: its task is not known here, or asked to be put
    back. redelivered: whoever gets it next is to know that it was delivered before (as counted says too).
    """

    tag: int
    due: float | None = None
    counted: bool = False
    requeued: bool = False
    redelivered: bool = False


class DeadLetter(NamedTuple):
    """Move the message to the dead letters, with the reason; store *row* (if any) and record *parts* in the
    same step.

    counted: as in Release. failed: not to the dead letters, since it has ended, but to the failed tasks; only
    for a broker that has them.
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


class Claim(NamedTuple):
    """What one lease() took, and what it saw besides.

    messages: most urgent first, then oldest; [] when there was none.
    next_due: epoch second at which the next delayed message falls due; None when none waits.
    last_revocation: the number of the newest revocation, 0 when there is none; None when that is not known
        without asking revoked_since().
    """

    messages: list[Leased]
    next_due: float | None = None
    last_revocation: int | None = None


class Again(NamedTuple):
    """A failed task that is to run again: its message as it is sent. tag: that it is kept by."""

    tag: int
    headers: str
    properties: str | None
    body: bytes


Kind = Literal["dead", "failed"]
"""Of letters: dead letters, and failed tasks."""
PORTION = 200
"""How many letters are read at a time, where that spares the server work."""


class Letters(ABC):
    """The letters of one kind that a broker keeps: the messages of dead letters, or of tasks that have failed
    for good. Any thread."""

    portion: int = PORTION
    """How many are read at a time; ``sys.maxsize`` where one look takes all of them in hand."""

    @abstractmethod
    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        """The newest *limit*, newest first; of those that follow *after*, the last of the page before, if
        there is one. queue: only those of it. There are fewer only at the end."""

    def newest(self, queue: str | None = None, limit: int | None = None) -> Iterator[Dead]:
        """The newest *limit* (None: all), newest first, read in portions as they are asked for."""
        left, after = sys.maxsize if limit is None else limit, None
        while left > 0:
            size = min(self.portion, left)
            page = self.page(queue, size, after)
            yield from page
            if len(page) < size:
                return
            left, after = left - size, page[-1]

    @abstractmethod
    def retry(self, tags: Sequence[int] | None = None) -> int:
        """Send those with *tags* (None: all) back to their queues as they came, with a clean count; return
        how many. A FAILURE that is stored beside is forgotten."""

    @abstractmethod
    def send_again(self, calls: Sequence[Again]) -> int:
        """Put each of *calls* into the queue in which it was, and keep it no longer; return how many were
        still kept: the others are not sent. In one step; a FAILURE that is stored beside is forgotten."""

    @abstractmethod
    def discard(self, tags: Sequence[int] | None = None) -> int:
        """Delete those with *tags* (None: all); return how many."""

    @abstractmethod
    def push(self, letters: Sequence[Dead]) -> None:
        """Store all of *letters*, which come from another broker, under tags of their own.

        Raises NotSupported, having stored none, where they cannot be taken from elsewhere.
        """


def page_of(letters: Iterable[Dead], limit: int, after: Dead | None) -> list[Dead]:
    """Letters.page() of all *letters*, for who takes all in hand; of those that died at one moment the first
    counts as the newest."""
    found = sorted(letters, key=lambda letter: -letter.died_at)
    tags = [] if after is None else [letter.tag for letter in found]
    start = tags.index(after.tag) + 1 if after is not None and after.tag in tags else 0
    if after is not None and not start:  # it has gone
        start = sum(letter.died_at >= after.died_at for letter in found)
    return found[start : start + limit]


class Sender(ABC):
    """What any thread asks: to publish, and to call tasks off."""

    @abstractmethod
    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Store all or none of *envelopes*; they are durable when this returns.

        Raises BrokerUnavailable when that could not be done within *timeout* seconds: then none was stored.
        Where the broker lacks WHOLE_PUSH, some may have been, and *timeout* is for each portion of very many.
        """

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        """Tell every worker, also those that start later, not to run these tasks (terminate: to end them).

        Raises NotSupported where there is no way to tell them.
        """
        raise NotSupported("there is no way here to tell all workers, so tasks cannot be revoked")

    def join(self, connection: Any) -> "Sender":
        """Publish by *connection*, within whatever transaction it is in.

        Raises ConfigurationError when this broker is none that such a connection leads to.
        """
        raise ConfigurationError(
            "publishing_in needs a broker in the database of its connection: set broker_url to postgresql:// "
            "or mysql://; this broker is of another kind",
            setting="broker_url",
        )


class Consumer(ABC):
    """What a worker's listener asks. Only wake() may be called by other threads."""

    @abstractmethod
    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        """Become a consumer under a new generation, which is returned; what an older one held goes back."""

    def present(self, text: str) -> None:  # noqa: B027 - who lists no workers has no use for it
        """Keep *text* (see ``presence.py``) to be written with the registration and with each renewal of the
        lease; it costs no exchange of its own. Nothing where the broker lacks WORKERS."""

    @abstractmethod
    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        """Take up to *limit* due messages, and up to *delayed_limit* that fall due within *eta_window*
        seconds.

        There are fewer when they are large (MAX_LEASE_BYTES). What wait() has taken comes first, whatever
        *limit* is. When there are messages, the lease stands for two thirds of its length from the call on: a
        broker that renewed it longer ago renews it first. Raises LeaseLost when this consumer was taken for
        dead: register again.
        """

    def look(self, queue: str) -> Claim:
        """One message of *queue* that is due, if the server has one now. lease() may find that only later,
        and take what comes meanwhile; this does not. It may be one of another queue that was taken before."""
        return self.lease([queue], 1)

    def unbind(self, queue: str) -> None:  # noqa: B027 - most take nothing that was not asked for
        """Take no more of *queue* until lease() or look() names it again; what has come, and was not given
        out, goes back."""

    @abstractmethod
    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        """Carry out *settlements* in one step; return the tags that were ours no longer."""

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        """Those of *tags* that settle() found to be ours no longer because it had carried them out before,
        when its answer, or that of confirm(), was lost. Where that cannot be told from what others have, none
        is. Raises LeaseLost when this consumer was taken for dead: then others may have them."""
        return ()

    def confirm(self) -> None:  # noqa: B027 - most know it when settle() returns
        """Return once the broker is known to have carried out what settle() told it: a task that is
        acknowledged first starts only then. Raises BrokerUnavailable when that cannot be known."""

    @abstractmethod
    def extend(self) -> None:
        """Renew the lease on everything held. Raises LeaseLost as lease() does."""

    @abstractmethod
    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        """Put back what dead consumers held; [] when all are well. Cheap enough for once a second.

        silent: whether those count as dead, too, whose lease has run out; otherwise only those whose process
        is known to have ended."""

    @abstractmethod
    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        """Wait until something was pushed or revoked (then return True), wake() was called or *timeout*
        seconds have passed (then return False). The same thing may be told twice. Raises BrokerUnavailable
        when the server does not answer.

        prefetch: how many messages may be taken as soon as they are there, where that spares who finds us
        idle a journey to the broker and back; lease() gives them out. 0: none, and what cannot be stopped any
        more goes back."""

    @property
    def prefetched(self) -> bool:
        """Whether wait() has taken messages that lease() is to give out."""
        return False

    @abstractmethod
    def wake(self) -> None:
        """End a wait() of this process early. Any thread; safe in a signal handler."""

    @abstractmethod
    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """Return a new cursor and the revocations since *cursor* (0: all that still stand)."""

    @abstractmethod
    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        """Delete letters of *kind* older than *expires* seconds or beyond the newest *most* of their queue;
        with dead letters also old revocations and expired results. Return how many rows went. Writes nothing
        when nothing is due.

        Not more than some thousand at a time, so that nobody waits for it: call it again until it returns
        0."""

    @abstractmethod
    def running_path(self) -> str | None:
        """The file in which children mark the tag that they run (see components/pool/child_main.py); None:
        not kept."""

    @abstractmethod
    def deregister(self) -> None:
        """Stop being a consumer; everything still held goes back, not counted. Safe to call twice."""


class Admin(ABC):
    """What people and tools ask, on any thread."""

    @property
    def purges_leased(self) -> bool:
        """Whether purge() deletes what is on lease as well, where the server counts what is delayed as
        leased, and does not tell it from what is being run."""
        return False

    @abstractmethod
    def queues(self) -> list[QueueInfo]:
        """All queues that hold anything, by name."""

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        """How each of *queues* stands, whether it holds anything or not. Cheap enough for every few
        seconds."""
        found = {info.queue: info for info in self.queues()} if queues else {}
        return [found.get(queue) or QueueInfo(queue) for queue in queues]

    @abstractmethod
    def next_due(self, queues: Sequence[str]) -> float | None:
        """Epoch second at which the next delayed message of *queues* falls due; None when none waits, or
        where the broker does not tell (it lacks COUNTS)."""

    def may_have_due_joins(self, now: float) -> bool:
        """Whether one of the joins beside this broker's results may be claimed at *now* (epoch seconds). True
        where the broker does not know."""
        return True

    def peek(self, queue: str, standing: Standing, limit: int) -> list[Peeked]:
        """The first *limit* messages of *queue* that stand so. They stay where they are, and nothing about
        them changes. What is ready comes in the order in which it is given out, what is delayed in that of
        its due times, and what is on lease in any.

        Raises NotSupported where the broker lacks PEEK.
        """
        raise NotSupported(
            "this broker shows no message without giving it out; `qworker queues` says how many there are"
        )

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Delete what waits in *queue* (not what is being run); return how many messages that were."""

    _dead_letters: Letters | None = None
    """What the three methods below are about: ``Broker`` sets it."""

    @final
    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        """The newest *limit* dead letters, newest first."""
        return [] if self._dead_letters is None else list(self._dead_letters.newest(queue, limit))

    @final
    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        """Send dead letters (None: all) back to their queues, with a clean count; return how many."""
        return 0 if self._dead_letters is None else self._dead_letters.retry(tags)

    @final
    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        """Delete dead letters (None: all); return how many."""
        return 0 if self._dead_letters is None else self._dead_letters.discard(tags)

    def flush_delayed(self, queue: str) -> int:
        """Make what is delayed in *queue* plain messages, due at once, which readers that know only the plain
        queue find; return how many. Their headers still say when they are meant to run.

        Raises NotSupported where delayed messages cannot be reached.
        """
        raise NotSupported("this broker gives out delayed messages when they are due, and not before")

    @abstractmethod
    def workers(self) -> list[Presence]:
        """Live workers, with what they last told of themselves; [] where the broker lacks WORKERS."""


class Broker(ABC):
    """A server, by what is asked of it. Nothing connects before it is used.

    A forked child must not use its parent's connections and leases: brokers see to that themselves.
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
        letters: Mapping[Kind, Letters],
    ) -> None:
        self.url = url
        self.sender = sender
        self.consumer = consumer
        self.admin = admin
        self.letters = letters
        admin._dead_letters = letters.get("dead")

    lacks: frozenset[Capability] = frozenset()
    """What it cannot do."""

    lowest_first: bool = False
    """Whether of the priorities here the lowest is the most urgent; elsewhere 9 is."""

    letters: Mapping[Kind, Letters]
    """The letters that it keeps, by kind. Where "failed" is not among them, failed tasks are acknowledged as
    others are."""

    registry: Registry | None = None
    """Where exchanges and bindings are kept for kombu's users. None: nowhere, so it has no fanout for
    them."""

    silent_seconds: float = math.inf
    """How long a connection may be silent before its server gives to others what it holds. inf: servers do
    not look at that; what is silent for ``worker_lease_seconds`` has lost its lease."""

    @property
    def missing(self) -> str | None:
        """The file or directory in which everything is kept, or "table of …", where it is not there, so that
        nothing was ever sent; None where it is, and for servers that make nothing first. What only reads
        finds nothing there, and makes nothing."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Safe to call twice."""


class Undivided(Sender, Consumer, Admin, Broker):
    """A broker whose class does all three."""

    def __init__(self, url: str, *, letters: Mapping[Kind, Letters]) -> None:
        super().__init__(url, self, self, self, letters=letters)
