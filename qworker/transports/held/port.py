"""The interface of a transport whose server reserves messages: a consumer has one exclusively for some
seconds.

Comes from:  the packages of such servers, which implement a Server and its ServerQueue.
Goes to:     the sender, the consumer, the administration and the letters beside this module.
Thread:      a connection belongs to the caller of connect(); but take() is called by a LongPoll in its own
             thread, and interrupt() meanwhile.

Methods of queues raise the errors of the transport's library, PublishError, and NotAll; ``Server.errors``
converts them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable
from qworker.interrupts import reraise_interrupt
from qworker.transports.held.messages import Content, Outgoing, parsed, written
from qworker.transports.lease import Kind, QueueInfo, Revocation
from qworker.transports.portions import portions

DEAD = "qworker.dead"
"""The queue of dead letters."""
FAILED = "qworker.failed"
"""The queue of failed tasks, if the server keeps it within limits."""
PLACES: Mapping[Kind, str] = {"dead": DEAD, "failed": FAILED}
"""The queues of letters, by kind."""

Item = TypeVar("Item")


class NotAll(OSError):
    """Only some items of a call were carried out. left: the positions of the others, which must be repeated.
    reason: their error. It is raised without a cause, so that its reason can be raised from it without a
    cycle."""

    def __init__(self, left: Iterable[int], reason: Exception) -> None:
        super().__init__(str(reason))
        self.left = frozenset(left)
        self.reason = reason

    def divide(self, given: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Return those of *given* that were carried out, and those that were not."""
        done: list[Item] = []
        left: list[Item] = []
        for place, item in enumerate(given):
            (left if place in self.left else done).append(item)
        return done, left


class QueueGone(BrokerUnavailable):
    """A queue was deleted, or the server has forgotten it: the consumer registers again."""


class ConnectionGone(BrokerUnavailable):
    """The server gives the messages of this connection to others; the connection is unusable."""


class NewMessage(NamedTuple):
    """A message to be sent. text: written by ServerQueue.text(). delay: whole seconds until it can be taken;
    at most the queue's longest_delay. id: unique, and the same at each attempt; a server may use it to store
    a message once."""

    text: Any
    delay: int
    id: str


class Count(NamedTuple):
    """The approximate state of a queue; 0 for what the server does not distinguish. ready: what can be taken
    now."""

    ready: int
    delayed: int = 0
    leased: int = 0


class Received:
    """A message that was taken, and is reserved for us.

    text: as sent, or its contents. id: the server's id of the message. receipt: identifies this delivery; an
    extension may change it. lease_seconds: how long it is hidden from others, from its delivery or extension;
    an extension may change that, too. redelivered: whether it was delivered before.
    """

    __slots__ = (
        "acknowledged", "body", "content_encoding", "content_type", "deleted", "delivery_info",
        "delivery_tag", "expires", "headers", "in_doubt", "lease_seconds", "properties", "queue", "receipt",
        "renew_at", "returns_at",
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
        """The monotonic time at which it must be extended."""
        self.expires = math.inf
        """The monotonic time until which it is hidden from others."""
        self.returns_at = math.inf
        """The monotonic time from which others may have it, because it may have been given back; inf: it was
        not."""
        self.acknowledged = False
        self.deleted = False
        """Whether the server was asked to delete it, and may have done so."""
        self.in_doubt = False
        """Whether its reservation ended while the server was asked to delete it."""
        self.headers = found.headers
        self.properties = found.properties
        self.content_type = found.content_type
        self.content_encoding = found.content_encoding
        self.body = found.body
        self.delivery_tag = id
        self.delivery_info = {**found.delivery_info, "redelivered": redelivered}

    def hidden_from(self, moment: float) -> None:
        """Record that it was taken, or extended, at the monotonic time *moment*."""
        self.renew_at = moment + self.lease_seconds / 3
        self.expires = moment + self.lease_seconds

    def may_be_back(self, moment: float) -> None:
        """Record that it may have been given back, so that others may have it from the monotonic time
        *moment* on."""
        self.returns_at = min(self.returns_at, moment)

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have been given back."""
        return self.returns_at < math.inf

    def is_kept(self, moment: float) -> bool:
        """Whether it was given back with a delay that has not ended at *moment*. Giving it back again would
        take it from others."""
        return moment < self.returns_at

    def ack(self) -> None:
        """Mark it as acknowledged; its consumer finishes it, together with others."""
        self.acknowledged = True


class PollSource(ABC):
    """A source for a LongPoll: a queue, or several at once."""

    name: str
    batch: int
    """Maximum messages per call, to the server or from it."""
    look_seconds = 0.0
    """How long take() must wait in order not to miss an available message."""

    @abstractmethod
    def serves(self, queue: str) -> bool:
        """Whether messages of the queue of that name come from here."""

    @abstractmethod
    def take(self, count: int, seconds: float) -> list[Received]:
        """Return up to *count* messages, at most *batch*; waits at most *seconds* for the first of them.
        [] when there was none."""

    def interrupt(self) -> None:  # noqa: B027 - not every server's wait can be ended
        """End an active take() early, if no message is lost or hidden by that. Any thread."""


class ServerQueue(PollSource):
    """The queue *name*. Each method takes at most *batch* items at a time."""

    longest_delay = 0
    """Maximum seconds for which the server delays a sent message; 0: it cannot."""
    longest_return = 0
    """Maximum seconds for which it delays a message that is given back; 0: the next consumer gets it. A
    delayed message is given back if possible, and otherwise sent again."""
    portion_bytes = 2**20
    """Maximum text in one send()."""

    def serves(self, queue: str) -> bool:
        return queue == self.name

    def text(self, message: Outgoing) -> Any:
        """Return *message* as send() takes it; its length counts for *portion_bytes*."""
        return written(message)

    @abstractmethod
    def send(self, entries: Sequence[NewMessage]) -> None:
        """Send *entries*. Raises PublishError when the server will never accept one of them, and NotAll when
        it has accepted some. Any other error means that it may have accepted only some."""

    @abstractmethod
    def extend(self, messages: Sequence[Received]) -> list[Received]:
        """Extend the reservation of *messages*, counted from now; return those that are no longer ours.
        This and the next two raise NotAll when they know that only some have failed."""

    @abstractmethod
    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Let others have *messages* after *delay* seconds, at most *longest_return*. Those that are no
        longer ours are ignored."""

    @abstractmethod
    def finish(self, messages: Sequence[Received]) -> list[Received]:
        """Delete *messages*, which are done; return those that were no longer ours, and may run again."""

    @abstractmethod
    def count(self) -> Count:
        """Return the approximate state."""

    @abstractmethod
    def purge(self) -> int:
        """Delete all waiting messages; return roughly how many there were."""


def by_lease(messages: Iterable[Received]) -> tuple[list[Received], list[Received]]:
    """Return those that are still ours, and those that others may have by now."""
    now = time.monotonic()
    ours: list[Received] = []
    gone: list[Received] = []
    for one in messages:
        (ours if now < one.expires else gone).append(one)
    return ours, gone


def expired_leases(messages: Iterable[Received]) -> list[Received]:
    """Return those that others may have by now. For an extension or deletion that was sent in time, and
    answered after the lease had ended: a server that does not check whose message it is has carried it out,
    perhaps after it gave the message to another consumer."""
    return by_lease(messages)[1]


def by_queue(messages: Iterable[Received]) -> Iterator[tuple[ServerQueue, list[Received]]]:
    """Yield each queue with batches of its *messages*, as its methods take them."""
    found: dict[ServerQueue, list[Received]] = {}
    for message in messages:
        found.setdefault(message.queue, []).append(message)
    for queue, ones in found.items():
        for batch in portions(ones, queue.batch):
            yield queue, batch


class ReceivedRevocations:
    """Revocations received from the server: none, if it cannot broadcast."""

    has_news = False
    """Whether there may be some that since() has not returned."""

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """See Hearing.revoked_since()."""
        return cursor, []


class Server(ABC):
    """How to connect to a server, and what it supports. A connection reconnects by itself after a loss, so
    that the messages of a consumer stay reserved; if it cannot, errors() raises ConnectionGone. timeout:
    seconds for connecting."""

    wait_seconds: float | None
    """How long one take() of a long poll waits. None: the server cannot wait, and is queried in the
    consumer's own thread."""
    poll_seconds = 5.0
    """Seconds after which a consumer polls, even without a notification."""
    letters: Sequence[str] = (DEAD,)
    """The kinds of letters that it keeps. Dead letters are in the queue DEAD, failed tasks in FAILED; a
    reader hides them from others for a while, and does not extend that."""
    notices_interrupts = False
    """Whether a connection can be interrupted during a send() and notices it; otherwise another thread sends,
    which is not interrupted."""
    spreads_revocations = False
    """Whether revoke() reaches all workers."""
    purges_leased = False
    """See ``Admin.purges_leased``."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self.shown = mask_urls(url)
        """The URL without secrets."""
        self.timeout = timeout

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection, which has release(). Raises BrokerUnavailable, or ConfigurationError when a
        library is missing or the server refuses us."""

    @abstractmethod
    def errors(self, connection: Any) -> AbstractContextManager[None]:
        """Return a context that converts the library's errors to BrokerUnavailable, or to QueueGone where
        declare() must be called again."""

    @abstractmethod
    def declare(self, connection: Any, queue: str) -> ServerQueue:
        """Return the queue, after creating it."""

    def declare_letters(self, connection: Any) -> None:
        """Create the queues of letters: missing permissions are reported when a worker starts, and not at its
        first letter."""
        for kind in self.letters:
            self.declare(connection, kind)

    def sources(self, connection: Any, queues: Sequence[ServerQueue]) -> Sequence[PollSource]:
        """Return the sources for messages of *queues*, with a thread for each: the queues, or one source for
        all if the server can wait for several at once."""
        return queues

    def names(self, connection: Any) -> set[str]:
        """Return the queues known to the server, if it lists them."""
        return set()

    def queue_infos(self, connection: Any, queues: Sequence[str]) -> list[QueueInfo]:
        """Return the states of *queues*, including details that require reading each message; other queues
        may be included."""
        return depths(self, connection, queues)

    def revocations(self, connection: Any, notify: Callable[[], None]) -> ReceivedRevocations:
        """Return the revocations received over *connection*. notify: called when there are new ones, in any
        thread."""
        return ReceivedRevocations()

    def revoke(self, connection: Any, ids: Sequence[str], terminate: bool, signal: str) -> None:
        """See Revoking.revoke(), if the server *spreads_revocations*."""
        raise NotImplementedError


def depths(server: Server, connection: Any, queues: Sequence[str]) -> list[QueueInfo]:
    """Return the state of each of *queues*, by its count."""
    return [QueueInfo(name, *server.declare(connection, name).count()) for name in queues]


def close(connection: Any) -> None:
    """Close *connection*, in any state."""
    try:
        connection.release()
    except Exception as error:  # noqa: BLE001 - whatever the transport raises: it is given up
        reraise_interrupt(error)
