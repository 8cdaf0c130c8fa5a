"""One queue on a server that hides what it gives out: what a transport must be able to do with it.

Comes from:  ``RemoteServer.declare``.
Goes to:     the server, by the calls that each transport writes for it.
Thread:      its user's; but receive(), which a LongPoll calls in a thread of its own, and interrupt(), which
             is called meanwhile.

What the methods raise is what the transport's library raises, PublishError, and NotAll; ``Server.errors``
makes errors of ours of it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from qworker.transports.held.text import content, written
from qworker.transports.kombu.messages import Outgoing

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


class Entry(NamedTuple):
    """What is to be sent. delay: whole seconds until it can be received; 0 up to the queue's
    longest_delay. id: the same, and its own, at each try; a server may store it once by that."""

    text: str
    delay: int
    id: str


class Count(NamedTuple):
    """How a queue stands, about; 0 for what the server does not tell apart. ready: what can be received
    now."""

    ready: int
    delayed: int = 0
    leased: int = 0


class Received:
    """A message that was received, with what ``kombu/messages.py`` asks of kombu's.

    text: as it was sent. id: by which the server knows the message. receipt: by which it knows that it was
    given to us; a renewal may change it. lease_seconds: for how long it is hidden from others, from its
    receipt or renewal on; a renewal may change that, too. redelivered: whether it was given out before.
    """

    __slots__ = (
        "acknowledged", "body", "content_encoding", "content_type", "deleted", "delivery_info",
        "delivery_tag", "expires", "headers", "lease_seconds", "properties", "queue", "receipt", "renew_at",
        "returns_at",
    )  # fmt: skip

    def __init__(
        self,
        queue: RemoteQueue,
        text: str,
        *,
        id: str,
        receipt: Any,
        lease_seconds: float,
        redelivered: bool,
    ) -> None:
        found = content(text)
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
        """It was received, or renewed, at the monotonic time *moment*."""
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
        """It is to be deleted; who received it does that, with others."""
        self.acknowledged = True


class Source(ABC):
    """What a LongPoll asks: a queue, or several at once."""

    name: str
    batch: int
    """The most messages that go in one call, to the server or from it."""
    look_seconds = 0.0
    """For how long receive() is to wait where it must not miss a message that is there."""

    @abstractmethod
    def serves(self, queue: str) -> bool:
        """Whether messages of the queue of that name come from here."""

    @abstractmethod
    def receive(self, count: int, seconds: float) -> list[Received]:
        """Up to *count* messages, which is *batch* at most; waits for the first of them for so many
        *seconds*. [] when none came."""

    def interrupt(self) -> None:  # noqa: B027 - not every server's wait can be ended
        """End a receive() that is under way early, where no message is lost or hidden by that. Any
        thread."""


class RemoteQueue(Source):
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

    def text(self, message: Outgoing) -> str:
        """*message* as it is sent."""
        return written(message)

    @abstractmethod
    def send(self, entries: Sequence[Entry]) -> None:
        """Raises PublishError when the server will never take one of them, and NotAll when it has taken the
        others. What else it raises says that it did not take all."""

    @abstractmethod
    def renew(self, messages: Sequence[Received]) -> list[Received]:
        """Hide *messages* of this queue from now on for longer; return those that are not ours any more.
        This and the next two raise NotAll when they know that only some have failed."""

    @abstractmethod
    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Let others have *messages* after *delay* seconds, which is *longest_return* at most. Those that are
        not ours any more are passed over."""

    @abstractmethod
    def delete(self, messages: Sequence[Received]) -> list[Received]:
        """Delete *messages*; return those that were not ours any more, and may run again."""

    @abstractmethod
    def count(self) -> Count:
        """How it stands."""

    @abstractmethod
    def purge(self) -> int:
        """Delete all that waits; return how many messages that were, about."""


def portions(queue: RemoteQueue, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
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


def by_queue(messages: Iterable[Received]) -> Iterator[tuple[RemoteQueue, list[Received]]]:
    """*messages* as they may be given to the methods of their queues."""
    found: dict[RemoteQueue, list[Received]] = {}
    for message in messages:
        found.setdefault(message.queue, []).append(message)
    for queue, ones in found.items():
        for batch in batches(ones, queue.batch):
            yield queue, batch
