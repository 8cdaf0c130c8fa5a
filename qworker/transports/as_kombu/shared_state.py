"""Shared state of the channels of a kombu connection and its consumer thread, under one lock.

Comes from:  ``channel.py``: which queues are consumed, how many messages are wanted, and settlements.
Goes to:     ``consumer_thread.py``, which takes the calls and delivers messages; the code that drains the
             connection.
Thread:      any.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar

from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.process.running_file import RunningFile
from qworker.transports.lease import Ack, Release, Settlement

T = TypeVar("T")

ASK_SECONDS = 30.0
MARKS = 1024
"""Maximum held messages whose delivery is counted when this process dies."""

Call = tuple[Callable[[], Any], "Future[Any]"]
"""A call for the consumer thread, and the future for its result."""


class ChannelInbox:
    """The consumers of one channel. All attributes but the callbacks are under the shared state's lock."""

    def __init__(self) -> None:
        self.queues: tuple[str, ...] = ()
        self.prefetch = 0
        """Maximum number of messages that it may hold; 0: no limit."""
        self.ahead = 1
        """Maximum number of messages fetched ahead if there is no limit."""
        self.held: dict[int, int] = {}
        """Unsettled deliveries: the slot in the running file, by tag."""
        self.callbacks: dict[str, Callable[[dict[str, Any]], object]] = {}
        """The consumers' callbacks, by queue; belongs to the consuming thread."""
        self.arrived = 0
        """How many wait to be delivered."""
        self.news = True
        """Whether the broker may have messages for it."""
        self.due: float | None = None
        """Epoch second at which a delayed message for it is due; None: none is known."""

    def may_have(self, now: float) -> bool:
        """Whether the broker may have messages for it at epoch second *now*."""
        return self.news or (self.due is not None and self.due <= now)

    def wants(self) -> bool:
        """Whether it accepts a message now."""
        return bool(self.queues) and self.room() > 0

    def room(self) -> int:
        most = self.prefetch - len(self.held) if self.prefetch else self.ahead
        return most - self.arrived


class Delivery(NamedTuple):
    """A message in kombu's form, for the consumer of *queue*."""

    tag: int
    queue: str
    envelope: dict[str, Any]
    inbox: ChannelInbox


class SharedState:
    """wake: wakes the consumer thread. Any thread."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self.changed = threading.Condition()
        # Under that lock:
        self.inboxes: list[ChannelInbox] = []
        self.failure: Exception | None = None
        self._marks = RunningFile(None)
        self._arrived: deque[Delivery] = deque()
        self._settlements: list[Settlement] = []
        self._calls: list[Call] = []
        self._notified = False
        """Whether something was added since the consumer thread last took the calls."""
        self._asleep = False

    # -- for the channels --

    def open(self) -> ChannelInbox:
        """Return an inbox for a channel that begins to consume."""
        inbox = ChannelInbox()
        with self.changed:
            self.inboxes.append(inbox)
        return inbox

    def change(
        self,
        inbox: ChannelInbox,
        queues: Sequence[str] | None = None,
        prefetch: int | None = None,
        ahead: int | None = None,
    ) -> None:
        """Make *inbox* consume *queues*, with such limits; None: unchanged. Arrived messages of other queues
        go back."""
        with self.changed:
            if ahead is not None:
                inbox.ahead = ahead
            if queues is not None:
                inbox.queues = tuple(dict.fromkeys(queues))
                self._take_back(inbox, [each for each in self._arrived if each.inbox is inbox])
            if prefetch is not None:
                inbox.prefetch = prefetch
            inbox.news = True
            self.notify()

    def close(self, inbox: ChannelInbox) -> None:
        """Give back all messages of *inbox*, held or arrived."""
        with self.changed:
            inbox.queues = ()
            self._take_back(inbox, [each for each in self._arrived if each.inbox is inbox])
            held = [Release(tag, redelivered=True) for tag in sorted(inbox.held)]
            self._let_go(inbox)
            if inbox in self.inboxes:
                self.inboxes.remove(inbox)
            self._settlements += held
            self.notify()

    def _take_back(self, inbox: ChannelInbox, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.queue not in inbox.queues:
                self._remove(delivery)
                self._settlements.append(Release(delivery.tag))

    def is_consumed(self, queue: str) -> bool:
        """Whether any channel consumes *queue*."""
        with self.changed:
            return any(queue in inbox.queues for inbox in self.inboxes)

    def settle(self, inbox: ChannelInbox, settlements: Sequence[Settlement]) -> None:
        """Make *settlements*. Raises LeaseLost if the messages were returned to their queues."""
        with self.changed:
            if self.failure is not None:
                raise LeaseLost(f"the message has gone back to its queue: {self.failure}")
            for settlement in settlements:
                self._marks.end(inbox.held.pop(settlement.tag, -1))  # type: ignore[union-attr]
            self._settlements += settlements
            self.notify()

    def next(self, timeout: float | None) -> Delivery:
        """Return the next delivery, held by the caller's inbox. Raises TimeoutError after *timeout* seconds
        (None: never), and the error with which the connection failed."""
        with self.changed:
            if not self._arrived and self.failure is None and (timeout is None or timeout > 0):
                self.changed.wait_for(lambda: self._arrived or self.failure, timeout)
            if self.failure is not None:
                raise self.failure
            if not self._arrived:
                raise TimeoutError
            delivery = self._arrived.popleft()
            inbox = delivery.inbox
            inbox.arrived -= 1
            self.hold(inbox, delivery.tag)
            if not inbox.prefetch and inbox.arrived == inbox.ahead // 2:
                self.notify()  # there is room for many again
            return delivery

    def arrived(self, queue: str) -> int:
        """Return how many messages of *queue* wait here."""
        with self.changed:
            return sum(each.queue == queue for each in self._arrived)

    def has_arrived(self) -> bool:
        """Whether next() would return at once."""
        return bool(self._arrived or self.failure)

    def order(self, work: Callable[[], T]) -> Future[T]:
        """Run *work* on the consumer thread, after all earlier settlements. Raises the error with which the
        connection failed."""
        answer: Future[T] = Future()
        with self.changed:
            if self.failure is not None:
                raise self.failure
            self._calls.append((work, answer))
            self.notify()
        return answer

    def ask(self, work: Callable[[], T], seconds: float = ASK_SECONDS) -> T:
        """Return the result of *work* on the consumer thread, after all earlier settlements. Raises its
        error, the error with which the connection failed, and BrokerUnavailable after *seconds*."""
        answer = self.order(work)
        try:
            return answer.result(seconds)
        except FutureTimeout:
            answer.cancel()  # if it has not begun, it is not run any more
            raise BrokerUnavailable(f"the broker did not answer for {seconds:g} s") from None

    def take(self, queue: str, inbox: ChannelInbox) -> Delivery | None:
        """Take an arrived message of *queue*, to be held by *inbox*; None when there is none."""
        with self.changed:
            for delivery in self._arrived:
                if delivery.queue == queue:
                    self._remove(delivery)
                    self.hold(inbox, delivery.tag)
                    return delivery
        return None

    def delete(self, queue: str) -> int:
        """Acknowledge arrived messages of *queue*; return their number."""
        with self.changed:
            gone = [each for each in self._arrived if each.queue == queue]
            for delivery in gone:
                self._remove(delivery)
                self._settlements.append(Ack(delivery.tag))
        return len(gone)

    def hold(self, inbox: ChannelInbox, tag: int) -> None:
        """Let *inbox* hold the message *tag*, which is delivered to it."""
        with self.changed:
            inbox.held[tag] = self._marks.begin(tag)

    def _let_go(self, inbox: ChannelInbox) -> None:
        for slot in inbox.held.values():
            self._marks.end(slot)
        inbox.held.clear()

    def _remove(self, delivery: Delivery) -> None:
        self._arrived.remove(delivery)
        delivery.inbox.arrived -= 1

    def notify(self) -> None:
        """Wake the consumer thread, or keep it from sleeping."""
        with self.changed:
            self._notified = True
            if self._asleep:
                self._asleep = False
                self._wake()

    # -- for the consumer thread --

    def is_in_use(self) -> bool:
        """Whether there are consumers or calls."""
        with self.changed:
            used = any(inbox.queues or inbox.held for inbox in self.inboxes)
            return bool(used or self._settlements or self._calls)

    def mark_in(self, path: str | None) -> None:
        """Record messages held by consumers in the running file *path*, in case this process dies; None:
        nowhere."""
        with self.changed:
            self._marks = RunningFile(path, slots=MARKS)

    def has_orders(self) -> bool:
        """Whether orders() would return any."""
        with self.changed:
            return bool(self._settlements or self._calls)

    def orders(self) -> tuple[list[Settlement], list[Call]]:
        """Take the settlements and calls for the consumer thread."""
        with self.changed:
            self._notified = False
            settlements, self._settlements = self._settlements, []
            calls, self._calls = self._calls, []
        return settlements, calls

    def put_back(self, calls: Sequence[Call]) -> None:
        """Return *calls*, which could not be done yet, to the front."""
        with self.changed:
            self._calls[:0] = calls

    def have_news(self) -> None:
        """Record that the broker may have messages for every inbox."""
        with self.changed:
            for inbox in self.inboxes:
                inbox.news = True

    def has_room(self) -> bool:
        """Whether any inbox accepts a message now."""
        with self.changed:
            return any(inbox.wants() for inbox in self.inboxes)

    def wanted(self, now: float) -> tuple[dict[str, ChannelInbox], int]:
        """Return the inboxes for which the broker may have messages at epoch second *now*, by queue, and how
        many are wanted. Later notifications count again."""
        with self.changed:
            inboxes = [inbox for inbox in self.inboxes if inbox.may_have(now) and inbox.wants()]
            for inbox in inboxes:
                inbox.news = False
            by_queue = {queue: inbox for inbox in inboxes for queue in inbox.queues}
            return by_queue, min((inbox.room() for inbox in inboxes), default=0)

    def looked(self, inboxes: Iterable[ChannelInbox], more: bool, due: float | None) -> None:
        """Record a claim for *inboxes*. more: whether the broker has more for them. due: when the next
        delayed message is due, if any."""
        with self.changed:
            for inbox in inboxes:
                inbox.news, inbox.due = inbox.news or more, due

    def next_due(self) -> float | None:
        """Return the epoch second at which the next wanted message is due; None when there is none."""
        with self.changed:
            dues = [inbox.due for inbox in self.inboxes if inbox.due is not None and inbox.wants()]
        return min(dues, default=None)

    def deliver(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Add *deliveries* for next(); return those no longer wanted."""
        unwanted = []
        with self.changed:
            for delivery in deliveries:
                if delivery.queue in delivery.inbox.queues:
                    delivery.inbox.arrived += 1
                    self._arrived.append(delivery)
                else:  # it was cancelled meanwhile
                    unwanted.append(delivery)
            self.changed.notify_all()
        return unwanted

    def fall_asleep(self) -> bool:
        """Whether the consumer thread may sleep: then notify() wakes it until it has called awake()."""
        with self.changed:
            self._asleep = not self._notified
            return self._asleep

    def awake(self) -> None:
        """Record that the consumer thread is awake."""
        with self.changed:
            self._asleep = False

    def fail(self, error: Exception) -> list[Call]:
        """Record that the connection has failed with *error*, and forget all held messages. Return the calls
        that will not be done."""
        with self.changed:
            self.failure = error
            self._arrived.clear()
            for inbox in self.inboxes:
                self._let_go(inbox)
                inbox.arrived = 0
            calls, self._calls = self._calls, []
            self._settlements.clear()
            self.changed.notify_all()
        return calls
