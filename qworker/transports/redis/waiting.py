"""Waiting for messages on Redis. Each message wakes one waiting worker, however many there are.

Comes from:  ``consumer.py``.
Goes to:     ``BZPOPMIN`` of markers, on a connection of its own; for queues that this worker watches,
             ``BLMOVE list list RIGHT RIGHT``, which moves nothing and ends when that list has something.
Thread:      the listener's, except wake().

A queue that may have messages has a marker, the sorted set ``qworker.marker.<queue>``: our publishers set it,
LEASE sets it again if it leaves messages behind, and deletes it if it leaves none. The server gives it to one
of the waiting workers, to the one that has waited longest. Each worker also has a marker of its own,
``qworker.wake.<generation>``, for revocations.

A claim waits behind BZPOPMIN on the same connection. The server carries it out as soon as the BZPOPMIN ends:
so a message for an idle worker is taken without another round trip. It is also carried out when BZPOPMIN
reaches its timeout, in case a marker was lost, with a publisher or with the worker that got it. A worker that
gets a marker without a claim behind it, and then does not claim from its queue, sets it again.

Stock publishers set no markers. One of the workers of each queue watches the queue's lists for their
messages, and sets the marker; LEASE decides which.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hiredis

from qworker.errors import BrokerUnavailable
from qworker.process.randomness import RANDOM
from qworker.process.wakeup import WakeupPipe
from qworker.transports.lease import MAX_LEASE_BYTES, Leased
from qworker.transports.redis.connection import Link, checked, is_elsewhere, pack
from qworker.transports.redis.envelope import Layout, from_payload, whole
from qworker.transports.redis.url import Endpoint

BLOCK_SECONDS = (15, 25)
"""Minimum and maximum seconds for which a worker waits for markers, before it claims without one."""
SILENCE_SECONDS = 10.0
"""If the server is so late, it is considered gone."""
MOST_WATCHED = 8
"""Of how many queues a worker watches the list with BLMOVE, which needs a connection each; it polls the
others."""
POLL_SECONDS, IDLE_POLL_SECONDS, SEEN_SECONDS = 0.25, 1.0, 60.0
"""Interval of checks for messages of stock publishers in lists that BLMOVE does not wait for: in the first
minute after there were any, and later."""
WATCH_MILLISECONDS = 30_000
"""How long a worker watches its queues after its last claim."""
CANCELLED = b"0"
"""The member of a worker's own marker that ends its wait and tells nothing."""


@dataclass(slots=True)
class PendingWait:
    """A BZPOPMIN that the server has, since when, and for how long at most. queues: whose markers it waits
    for. numbers: of the claim behind it, if there is one."""

    since: float
    seconds: float
    queues: tuple[str, ...]
    numbers: Numbers | None
    replies: list[Any] = field(default_factory=list)


class PrefetchedClaim(NamedTuple):
    """A claim that may have been carried out during a wait. answer: None when there was none, although it may
    have taken something."""

    queues: tuple[str, ...]
    numbers: Numbers
    answer: Answer | None


class WatchedLists:
    """The lists of the queues that this worker watches for messages of stock publishers."""

    def __init__(self, where: Endpoint, layout: Layout) -> None:
        self._where = where
        self._layout = layout
        self._watched: dict[str, Link | None] = {}
        """The queues, and the connection on which a BLMOVE waits."""
        self._spare: list[Link] = []
        self._poll_at = 0.0
        self._seen_at = float("-inf")
        """When a message of a stock publisher was last seen."""
        self._blocks = True
        """Whether the server lets us call BLMOVE (6.2 and later)."""

    def watch(self, queues: Sequence[str]) -> None:
        """Watch the lists of *queues*, and no others, from now on."""
        for queue in [each for each in self._watched if each not in queues]:
            if (link := self._watched.pop(queue)) is not None:
                link.close()
        for queue in queues:
            if queue not in self._watched:
                self._watched[queue] = None
                self._poll_at = 0.0

    def poll(self, link: Link) -> float:
        """Set the markers of watched queues with messages in lists for which no BLMOVE waits, if it is time;
        return the seconds until the next time. Then let BLMOVE wait for the lists that are empty. link: for
        commands."""
        now = time.monotonic()
        if not self._watched:
            return BLOCK_SECONDS[1]
        if now < self._poll_at:
            return self._poll_at - now
        link.refresh()
        queues, steps = list(self._watched), self._layout.scale.steps
        commands = [
            pack(("EXISTS", *(self._layout.list_of(queue, step) for step in steps))) for queue in queues
        ]
        counts = [checked(link, reply) for reply in link.ask(b"".join(commands), len(commands))]
        if found := [queue for queue, count in zip(queues, counts, strict=True) if count]:
            self._seen_at = now
            marks = [pack(("ZADD", self._layout.marker(queue), 0, 0)) for queue in found]
            for reply in link.ask(b"".join(marks), len(marks)):
                checked(link, reply)
        for queue in queues[:MOST_WATCHED] if self._blocks else ():
            if queue not in found and self._watched[queue] is None:
                self._block(queue)
        recent = now - self._seen_at < SEEN_SECONDS or not self._blocks
        rest = POLL_SECONDS if recent else IDLE_POLL_SECONDS
        self._poll_at = now + rest
        return rest

    def _block(self, queue: str) -> None:
        link = self._spare.pop() if self._spare else Link(self._where)
        key = self._layout.list_of(queue, 0)
        link.send(pack(("BLMOVE", key, key, "RIGHT", "RIGHT", BLOCK_SECONDS[1])))
        self._watched[queue] = link

    def unblocked(self, queue: str) -> None:
        """Read what arrived on the connection that watches *queue*; its list has, or had, something, unless
        BLMOVE has reached its timeout."""
        link = self._watched.get(queue)
        if link is None:  # a claim that came at the same time has shown that another worker watches it now
            return
        try:
            replies = link.received()
        except BrokerUnavailable:
            replies = [None]
        if replies:  # a large message takes several reads
            self._watched[queue] = None
            self._spare.append(link)
            self._poll_at = 0.0
            if isinstance(replies[0], hiredis.ReplyError):
                self._blocks = False

    def files(self) -> dict[int, str]:
        """Return the files of waiting connections, with their queues; -1: it is broken."""
        return {link.fileno(): queue for queue, link in self._watched.items() if link is not None}

    def reconnect(self) -> None:
        """Watch the same queues on other connections."""
        watched = list(self._watched)
        self.watch(())
        self.watch(watched)

    def links(self) -> list[Link]:
        """Return all connections."""
        return [*filter(None, self._watched.values()), *self._spare]

    def forget(self) -> None:
        """Watch nothing. The caller has closed the connections."""
        self._watched, self._spare = {}, []


class Waiter:
    """prefetches: claims carried out during a wait; the reader clears the list. drained: whether the last
    claim left nothing behind."""

    def __init__(self, where: Endpoint, layout: Layout) -> None:
        self._layout = layout
        self._link = Link(where)
        self._waiting: deque[PendingWait] = deque()
        """The BZPOPMINs that the server has; at most the last one has not been cancelled."""
        self._connects = 0
        """How often the connection for commands had connected when this one began to wait."""
        self._own = ""
        """The key of this worker's own marker."""
        self.lists = WatchedLists(where, layout)
        self._waker = WakeupPipe()
        self._next_due: float | None = None
        """When the next delayed message is due, by the last claim."""
        self.blocks = True
        """Whether the server lets us call BZPOPMIN."""
        self.prefetches: list[PrefetchedClaim] = []
        self.taken: set[str] = set()
        """Queues whose markers we took, or may have taken, without a claim since."""
        self.drained = False

    def open(self, generation: int) -> None:
        """Wait for the worker *generation* from now on. Raises BrokerUnavailable."""
        self.drop()
        self._own = self._layout.wake(generation)
        self._waker.open()

    def arm(
        self, link: Link, queues: tuple[str, ...], claim: Callable[[], tuple[bytes, Numbers]] | None
    ) -> None:
        """Wait for the markers of *queues*, and for the worker's own. claim: makes the packed claim to be
        carried out when there is one, and its numbers. link: for commands; if it had to connect again, the
        others are broken, too, perhaps without a sign."""
        if self._connects != (connects := link.connects):
            if self._waiting:
                self._lost()
            self.lists.reconnect()
            self._connects = connects
        current = self._waiting[-1] if self._waiting and self._link.fileno() >= 0 else None
        claims = current is not None and current.numbers is not None
        if not self.blocks or (
            current is not None and current.queues == queues and claims == (claim is not None)
        ):
            return
        if current is not None and current.numbers is not None:
            self.call_off()
        elif current is not None:  # it ends, and the next one takes its place
            link.refresh()
            checked(link, link.ask(pack(("ZADD", self._own, 0, CANCELLED)))[0])
        seconds = RANDOM.uniform(*BLOCK_SECONDS)
        keys = [self._own, *map(self._layout.marker, queues)]
        command, numbers = (b"", None) if claim is None else claim()
        self._waiting.append(PendingWait(time.monotonic(), seconds, queues, numbers))
        try:
            self._link.send(pack(("BZPOPMIN", *keys, f"{seconds:.3f}")) + command)
        except BaseException:
            self._lost()
            raise

    def call_off(self) -> None:
        """Cancel a waiting claim; the results of those already carried out are in ``prefetches``."""
        if any(each.numbers is not None for each in self._waiting):
            self._lost()

    def stop(self) -> None:
        """Cancel all that the server has."""
        self._lost()

    def _lost(self) -> None:
        """Record that the connection is gone, with whatever the server had of us."""
        self._link.close()
        for each in self._waiting:
            if each.numbers is None:
                self.taken.update(each.queues)  # the server may have given us a marker
            else:
                self.prefetches.append(PrefetchedClaim(each.queues, each.numbers, None))
        self._waiting.clear()

    def wait(self, timeout: float) -> bool | None:
        """Wait until there is something to lease (then True), wake() is called (None) or *timeout* seconds
        have passed (False)."""
        if self._waiting and self._link.fileno() < 0:
            self._lost()
            return True
        watching = self.lists.files()
        own = [self._link.fileno()] if self._waiting else []
        words, events = self._waker.sleep(timeout, *own, *(each for each in watching if each >= 0))
        news = bool(self._waiting) and self._link.fileno() in events and self._read_replies()
        if self._waiting and not news:
            first = self._waiting[0]
            if time.monotonic() - first.since > first.seconds + SILENCE_SECONDS:
                self._lost()
                news = True
        for file, queue in watching.items():
            if file in events or file < 0:
                self.lists.unblocked(queue)
        if words:
            return True if news else None
        return news

    def _read_replies(self) -> bool:
        """Read replies; return whether there is anything to do."""
        try:
            replies = self._link.received()
        except BrokerUnavailable:
            self._lost()
            return True
        news = False
        for reply in replies:
            if not self._waiting:  # lost in between
                return True
            first = self._waiting[0]
            first.replies.append(reply)
            if len(first.replies) == (1 if first.numbers is None else 2):
                self._waiting.popleft()
                news = self._ended(first) or news
        return news

    def _ended(self, waiting: PendingWait) -> bool:
        """Handle the replies to *waiting*; return whether there is anything to do about them."""
        found, *claimed = waiting.replies
        if isinstance(found, hiredis.ReplyError):
            if "unknown command" in str(found) or "NOPERM" in str(found):
                self.blocks = False  # waiting polls from time to time instead
            elif is_elsewhere(found):
                self._lost()
            news = True
        elif found is not None and found[0] == self._own.encode():
            news = found[1] != CANCELLED
        else:
            if found is not None:
                queue_of = {self._layout.marker(queue).encode(): queue for queue in waiting.queues}
                self.taken.add(queue_of[found[0]])
            news = waiting.numbers is None and bool(waiting.queues)
        if waiting.numbers is not None:
            return self._claimed(waiting.queues, waiting.numbers, claimed[0]) or news
        return news

    def _claimed(self, queues: tuple[str, ...], numbers: Numbers, reply: Any) -> bool:
        """Record the answer of a claim; return whether there is anything to do about it."""
        if isinstance(reply, list):
            answer = Answer.of(reply)
            if answer.fields:
                self.prefetches.append(PrefetchedClaim(queues, numbers, answer))
            return self.answered(queues, answer, numbers[1] - numbers[0]) or bool(answer.fields)
        if reply is not None and not str(reply).startswith("NOSCRIPT"):  # that one took nothing
            self.prefetches.append(PrefetchedClaim(queues, numbers, None))
        self.drained = False
        return True

    def answered(self, queues: Sequence[str], answer: Answer, limit: int) -> bool:
        """Take note of the *answer* of a claim of at most *limit* messages of *queues*; return whether a
        delayed message is due earlier than any before."""
        self.taken.difference_update(queues)
        if limit:
            self.drained = len(answer.fields) < limit
        if answer.watched:
            self.lists.watch([queue for queue, mine in zip(queues, answer.watched, strict=True) if mine])
        known, self._next_due = self._next_due, answer.next_due
        return answer.next_due is not None and (known is None or answer.next_due < known)

    # -- the end --

    def wake(self) -> None:
        """End a wait(). Safe in a signal handler."""
        self._waker.wake()

    def drop(self) -> None:
        """Close the connections; open() makes others."""
        for link in (self._link, *self.lists.links()):
            link.close()
        self._forget()

    def _forget(self) -> None:
        self._waiting.clear()
        self.lists.forget()
        self.prefetches, self.taken = [], set()
        self._next_due, self.drained = None, False

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        self.drop()
        self._waker.close()

    def abandon(self) -> None:
        """In a forked child: drop the connections."""
        for link in (self._link, *self.lists.links()):
            link.abandon()
        self._forget()
        self._waker.close()


# -- Claims of a consumer on Redis --
# The numbers that claims assign, the messages held, and those that may be held unknowingly. A claim names the
# numbers for the messages that it takes. Without an answer it is *orphaned*: messages with one of those
# numbers are ours without our knowledge, and must be given back.

Numbers = tuple[int, int]
"""The numbers that a claim may assign: from, up to."""


class Answer(NamedTuple):
    """The result of LEASE. next_due: of its queues. watched: for each queue, whether this worker is to watch
    it. fields, payloads: of the messages it took, in order."""

    next_due: float | None
    last_revocation: int
    watched: tuple[bool, ...]
    fields: list[bytes]
    payloads: list[bytes]

    @classmethod
    def of(cls, reply: list[bytes]) -> Answer:
        due, revocation, watched = reply[:3]
        mine = tuple(each == ord("1") for each in watched)
        return cls(float(due) if due else None, whole(revocation), mine, reply[3::2], reply[4::2])


class Claims:
    """held: tag → field of ``unacked`` of each message on lease. orphaned: the numbers of claims without an
    answer."""

    def __init__(self, layout: Layout, generation: int) -> None:
        self._layout = layout
        self._generation = generation
        self._next_number = 0
        self.held: dict[int, bytes] = {}
        self.orphaned: list[Numbers] = []

    def prepare(
        self,
        queues: Sequence[str],
        limit: int,
        delayed_limit: int = 0,
        until: float = 0.0,
        watch: bool = True,
    ) -> tuple[tuple[Any, ...], Numbers]:
        """Return the arguments of LEASE for a claim, and its numbers. until: epoch second for delayed
        ones. watch: whether this worker may be asked to watch the queues."""
        first, self._next_number = self._next_number, self._next_number + limit + delayed_limit
        steps = self._layout.scale.steps
        arguments = (
            self._generation, limit, delayed_limit, repr(until), MAX_LEASE_BYTES, first,
            WATCH_MILLISECONDS if watch else "",
            len(steps), *steps, *queues,
        )  # fmt: skip
        return arguments, (first, self._next_number)

    def take(self, answer: Answer) -> tuple[list[Leased], list[bytes]]:
        """Return the messages of *answer*, which are held from now on; and fields to acknowledge at once.

        These are duplicates: a stock consumer considered our message lost, and put it back.
        """
        names: dict[bytes, str] = {}
        copies, messages = [], []
        for each, payload in zip(answer.fields, answer.payloads, strict=True):
            queue = each.split(b":", 4)[4]
            name = names.get(queue) or names.setdefault(queue, queue.decode())
            message = from_payload(payload, self._layout.scale, name)
            if message.tag in self.held:
                copies.append(self.held[message.tag])
            self.held[message.tag] = each
            messages.append(message)
        return messages, copies
