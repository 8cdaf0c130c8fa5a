"""What a transport must be able to do whose server reserves messages: whoever takes one has it alone for some
seconds.

Comes from:  the packages of such servers, which supply a Server and its ServerQueue.
Goes to:     the sender, the consumer, the administration and the letters beside this module.
Thread:      a connection belongs to who called connect(); but take(), which a LongPoll calls in a thread of
             its own, and interrupt(), which is called meanwhile.

What the methods of queues raise is what the transport's library raises, PublishError, and NotAll;
``Server.errors`` makes errors of ours of it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable
from qworker.interrupts import let_pass
from qworker.transports.held.messages import Content, Outgoing, parsed, written
from qworker.transports.lease import Kind, QueueInfo, Revocation

DEAD = "qworker.dead"
"""The queue of dead letters."""
FAILED = "qworker.failed"
"""That of failed tasks, where the server keeps it within limits."""
PLACES: Mapping[Kind, str] = {"dead": DEAD, "failed": FAILED}
"""The queues of letters, by kind."""

Item = TypeVar("Item")


class NotAll(OSError):
    """Some of what was given to one call was not carried out, and the rest was: only *left*, the places of
    those, are to be given to it again. reason: what would have been raised if it had been all. It is raised
    from nothing, so that its reason can be raised from it without a circle."""

    def __init__(self, left: Iterable[int], reason: Exception) -> None:
        super().__init__(str(reason))
        self.left = frozenset(left)
        self.reason = reason

    def divide(self, given: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Those of *given* that were carried out, and those that were not."""
        done: list[Item] = []
        left: list[Item] = []
        for place, item in enumerate(given):
            (left if place in self.left else done).append(item)
        return done, left


class QueueGone(BrokerUnavailable):
    """A queue was deleted, or the server has forgotten it: the consumer registers again."""


class ConnectionGone(BrokerUnavailable):
    """The server gives to others what was taken by this connection, which is of no use any more."""


class Entry(NamedTuple):
    """What is to be sent. text: as ServerQueue.text() wrote it. delay: whole seconds until it can be taken; 0
    up to the queue's longest_delay. id: the same, and its own, at each try; a server may store it once by
    that."""

    text: Any
    delay: int
    id: str


class Count(NamedTuple):
    """How a queue stands, about; 0 for what the server does not tell apart. ready: what can be taken now."""

    ready: int
    delayed: int = 0
    leased: int = 0


class Received:
    """A message that was taken, and is reserved for us.

    text: as it was sent, or what was in that. id: by which the server knows the message. receipt: by which it
    knows that it was given to us; an extension may change it. lease_seconds: for how long it is hidden from
    others, from when it was taken or extended; an extension may change that, too. redelivered: whether it was
    given out before.
    """

    __slots__ = (
        "acknowledged", "body", "content_encoding", "content_type", "deleted", "delivery_info",
        "delivery_tag", "expires", "headers", "lease_seconds", "properties", "queue", "receipt", "renew_at",
        "returns_at",
    )  # fmt: skip

    def __init__(
        self,
        queue: ServerQueue,
        text: str | Content,
        *,
        id: str,
        receipt: Any,
        lease_seconds: float,
        redelivered: bool,
    ) -> None:
        found = parsed(text) if isinstance(text, str) else text
        self.queue = queue
        self.receipt = receipt
        self.lease_seconds = lease_seconds
        self.renew_at = 0.0
        """The monotonic time at which it is to be hidden for longer."""
        self.expires = math.inf
        """That until which it is hidden from others."""
        self.returns_at = math.inf
        """That at which others may have it, for it may have been given back: it is not known whether."""
        self.acknowledged = False
        self.deleted = False
        """Whether the server was told to delete it, and may have done so."""
        self.headers = found.headers
        self.properties = found.properties
        self.content_type = found.content_type
        self.content_encoding = found.content_encoding
        self.body = found.body
        self.delivery_tag = id
        self.delivery_info = {**found.delivery_info, "redelivered": redelivered}

    def hidden_from(self, moment: float) -> None:
        """It was taken, or extended, at the monotonic time *moment*."""
        self.renew_at = moment + self.lease_seconds / 3
        self.expires = moment + self.lease_seconds

    def may_be_back(self, moment: float) -> None:
        """It was given back, so that others have it from the monotonic time *moment* on, or it was not."""
        self.returns_at = min(self.returns_at, moment)

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have been given back."""
        return self.returns_at < math.inf

    def is_kept(self, moment: float) -> bool:
        """Whether nobody else can have it at *moment* because it was given back. To do that again would take
        it from them."""
        return moment < self.returns_at

    def ack(self) -> None:
        """It is to be finished; who took it does that, with others."""
        self.acknowledged = True


class Source(ABC):
    """What a LongPoll asks: a queue, or several at once."""

    name: str
    batch: int
    """The most messages that go in one call, to the server or from it."""
    look_seconds = 0.0
    """For how long take() is to wait where it must not miss a message that is there."""

    @abstractmethod
    def serves(self, queue: str) -> bool:
        """Whether messages of the queue of that name come from here."""

    @abstractmethod
    def take(self, count: int, seconds: float) -> list[Received]:
        """Up to *count* messages, which is *batch* at most; waits for the first of them for so many
        *seconds*. [] when none came."""

    def interrupt(self) -> None:  # noqa: B027 - not every server's wait can be ended
        """End a take() that is under way early, where no message is lost or hidden by that. Any
        thread."""


class ServerQueue(Source):
    """The queue *name*. All that is given to a method at a time is *batch* at most."""

    longest_delay = 0
    """Seconds for which the server keeps what is sent to itself, at most; 0: it gives it out at once."""
    longest_return = 0
    """Seconds for which it keeps what is given back to itself, at most; 0: whoever asks next has it. What is
    due later goes back so where it can, and is sent anew where it cannot."""
    portion_bytes = 2**20
    """The most text in one send()."""

    def serves(self, queue: str) -> bool:
        return queue == self.name

    def text(self, message: Outgoing) -> Any:
        """*message* as send() is given it; a text, where *portion_bytes* counts."""
        return written(message)

    @abstractmethod
    def send(self, entries: Sequence[Entry]) -> None:
        """Raises PublishError when the server will never take one of them, and NotAll when it has taken the
        others. What else it raises says that it did not take all."""

    @abstractmethod
    def extend(self, messages: Sequence[Received]) -> list[Received]:
        """Hide *messages* of this queue from now on for longer; return those that are not ours any more.
        This and the next two raise NotAll when they know that only some have failed."""

    @abstractmethod
    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Let others have *messages* after *delay* seconds, which is *longest_return* at most. Those that are
        not ours any more are passed over."""

    @abstractmethod
    def finish(self, messages: Sequence[Received]) -> list[Received]:
        """Delete *messages*, which are done; return those that were not ours any more, and may run again."""

    @abstractmethod
    def count(self) -> Count:
        """How it stands."""

    @abstractmethod
    def purge(self) -> int:
        """Delete all that waits; return how many messages that were, about."""


def portions(queue: ServerQueue, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """*entries*, as many at a time as *queue* takes."""
    found: list[Entry] = []
    size = 0
    for entry in entries:
        length = len(entry.text)
        if found and (len(found) == queue.batch or size + length > queue.portion_bytes):
            yield found
            found, size = [], 0
        found.append(entry)
        size += length
    if found:
        yield found


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """*items*, up to *size* at a time."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def by_lease(messages: Iterable[Received]) -> tuple[list[Received], list[Received]]:
    """Those that are still ours, and those that others may have by now."""
    now = time.monotonic()
    ours: list[Received] = []
    gone: list[Received] = []
    for one in messages:
        (ours if now < one.expires else gone).append(one)
    return ours, gone


def by_queue(messages: Iterable[Received]) -> Iterator[tuple[ServerQueue, list[Received]]]:
    """*messages* as they may be given to the methods of their queues."""
    found: dict[ServerQueue, list[Received]] = {}
    for message in messages:
        found.setdefault(message.queue, []).append(message)
    for queue, ones in found.items():
        for batch in batches(ones, queue.batch):
            yield queue, batch


class Heard:
    """Revocations that all workers hear of: none, where a server has no way to tell them."""

    has_news = False
    """Whether there may be some that since() has not returned."""

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """As Consumer.revoked_since."""
        return cursor, []


class Server(ABC):
    """How a server is reached, and what it can do. What connect() returns connects again by itself when it
    has lost the server, so that what a consumer holds stays its own meanwhile; where it cannot, errors()
    raises ConnectionGone. timeout: seconds for connecting."""

    wait_seconds: float | None
    """How long one take() of a long poll waits. None: the server cannot wait, and is asked in the consumer's
    own thread."""
    poll_seconds = 5.0
    """Seconds after which a consumer looks, though it was told of nothing."""
    letters: Sequence[str] = (DEAD,)
    """The kinds of letters that it keeps. Dead letters are in the queue DEAD, failed tasks in FAILED; who
    looks at them has them hidden from others for a while, and does not extend that."""
    told_of_interrupts = False
    """Whether a connection that was interrupted in the midst of a send() knows it; elsewhere another thread
    sends, which nobody interrupts."""
    spreads_revocations = False
    """Whether revoke() tells all workers."""
    purges_leased = False
    """As ``Admin.purges_leased``."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self.shown = mask_urls(url)
        """The URL without what is secret."""
        self.timeout = timeout

    @abstractmethod
    def connect(self) -> Any:
        """A connection, which has release(). Raises BrokerUnavailable, or ConfigurationError when a library
        is missing or the server will not have us."""

    @abstractmethod
    def errors(self, connection: Any) -> AbstractContextManager[None]:
        """Makes BrokerUnavailable of the library's own errors; QueueGone where declare() is to be called
        again."""

    @abstractmethod
    def declare(self, connection: Any, queue: str) -> ServerQueue:
        """The queue, which there is from now on."""

    def declare_letters(self, connection: Any) -> None:
        """The queues of letters, which there are from now on: whether that is allowed is said when a worker
        starts, and not at its first letter."""
        for kind in self.letters:
            self.declare(connection, kind)

    def sources(self, connection: Any, queues: Sequence[ServerQueue]) -> Sequence[Source]:
        """What is asked for messages of *queues*, by a thread each: the queues, or one source for all where
        the server can wait for several at once."""
        return queues

    def names(self, connection: Any) -> set[str]:
        """The queues that the server knows of, where it tells."""
        return set()

    def standing(self, connection: Any, queues: Sequence[str]) -> list[QueueInfo]:
        """How *queues* stand, with all that the server tells only when it is asked for each message; it may
        be of other queues, too."""
        return depths(self, connection, queues)

    def revocations(self, connection: Any, ring: Callable[[], None]) -> Heard:
        """What is heard of revocations over *connection*. ring: called when there is news, in any thread."""
        return Heard()

    def revoke(self, connection: Any, ids: Sequence[str], terminate: bool, signal: str) -> None:
        """As Sender.revoke, where the server *spreads_revocations*."""
        raise NotImplementedError


def depths(server: Server, connection: Any, queues: Sequence[str]) -> list[QueueInfo]:
    """How each of *queues* stands, by its count."""
    return [QueueInfo(name, *server.declare(connection, name).count()) for name in queues]


def close(connection: Any) -> None:
    """Let go of *connection*, in whatever state it is."""
    try:
        connection.release()
    except Exception as error:  # noqa: BLE001 - whatever the transport raises: it is given up
        let_pass(error)
