"""Courier: the thread of a kombu connection that has the leases: it brings messages, and settles them.

Comes from:  ``channel.py``: who consumes what, how much of it, and what has become of it.
Goes to:     ``Broker.consumer``, which is this thread's alone; deliveries, to whoever drains the connection.
Thread:      its own, and any: what is shared is under one lock.

It works beside a worker's loop, so leases are renewed while that one is busy, for hours if need be. All that
was settled since its last turn goes to the broker in one step, and whatever there is room for comes in one
lease. So an ack is on its way when ``ack()`` returns, as it is with RabbitMQ: should the process die before
it has arrived, the message is delivered again.

A broker that does not answer is tried again and again, with what was settled kept, for as long as the lease
may stand. Then, and when the lease is lost, the connection has failed: others have what it held.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar

from qworker.errors import BrokerUnavailable, InvalidTaskMessage, LeaseLost, QWorkerError
from qworker.transports.as_kombu.envelopes import envelope_of
from qworker.transports.as_kombu.exchanges import RENEW_SECONDS, Exchanges
from qworker.transports.forked import forgetful
from qworker.transports.lease import MAX_LEASE_BYTES, Ack, Broker, DeadLetter, Leased, Release, Settlement

logger = logging.getLogger(__name__)

T = TypeVar("T")

HOUSEKEEPING_SECONDS = 1.0
SWEEP_SECONDS = 60.0
RETRY_SECONDS = (0.1, 2.0)
"""The first pause before a broker that did not answer is tried again, and the longest."""
END_SECONDS = 10.0
"""For how long a connection that is closed waits for its last settlements."""
ASK_SECONDS = 30.0
LARGE = MAX_LEASE_BYTES // 2
"""Bytes of bodies after which a claim may have been cut short."""

_couriers = forgetful()


class Terms(NamedTuple):
    """What a courier goes by. lease_seconds: how long a silent one is believed to live. dead_limits: for how
    many seconds, and how many dead letters are kept. max_deliveries: after so many deliveries that failed, a
    message becomes a dead letter; 0: never."""

    lease_seconds: float
    dead_limits: tuple[float, int]
    max_deliveries: int = 0


class Inbox:
    """What one channel consumes. All attributes are under the courier's lock."""

    def __init__(self) -> None:
        self.queues: tuple[str, ...] = ()
        self.prefetch = 0
        """How many messages it may hold; 0: as many as there are."""
        self.ahead = 1
        """How many may arrive and wait when it may hold as many as there are."""
        self.held: set[int] = set()
        """What was delivered and is not settled."""
        self.arrived = 0
        """How many wait to be delivered."""
        self.news = True
        """Whether the broker may have something for it."""
        self.due: float | None = None
        """Epoch second at which a delayed message falls due for it; None: none does, that we know of."""

    def wants(self) -> bool:
        """Whether it would take a message now."""
        return bool(self.queues) and self.room() > 0

    def room(self) -> int:
        most = self.prefetch - len(self.held) if self.prefetch else self.ahead
        return most - self.arrived


class Delivery(NamedTuple):
    """A message as kombu has it, for the consumer of *queue*."""

    tag: int
    queue: str
    envelope: dict[str, Any]
    inbox: Inbox


class Courier:
    """broker: whose consumer is ours. notify: called when there is something to be drained; any thread."""

    def __init__(
        self, broker: Broker, exchanges: Exchanges, terms: Terms, notify: Callable[[], object]
    ) -> None:
        self._broker = broker
        self._consumer = broker.consumer
        self._exchanges = exchanges
        self._terms = terms
        self._notify = notify
        self._start_over()
        _couriers.add(self)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        # All of these are under _changed:
        self._inboxes: list[Inbox] = []
        self._arrived: deque[Delivery] = deque()
        self._settlements: list[Settlement] = []
        self._errands: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._thread: threading.Thread | None = None
        self._told = False
        """Whether there is something to be done since the last turn began."""
        self._asleep = False
        self._ending = False
        self._failure: Exception | None = None
        # The courier's own:
        self._unsettled: list[Settlement] = []
        self._generation = 0
        self._extend_at = self._housekeep_at = self._sweep_at = self._renew_at = 0.0
        self._answered_at = 0.0
        self._pause = 0.0

    def _after_fork(self) -> None:
        """In a forked child: the thread is the parent's, and so is all that it holds."""
        self._start_over()
        self._failure = BrokerUnavailable("this connection belongs to the process that was forked")

    # -- for the channels: any thread --

    def start(self) -> None:
        """Become a consumer, if we are none yet. Raises what is wrong with the broker."""
        with self._changed:
            if self._thread is not None or self._failure is not None:
                return
            self._thread = threading.Thread(target=self._run, name="qworker-courier", daemon=True)
        self._thread.start()
        try:
            self.ask(lambda: None)
        except BaseException:
            self._thread = None
            raise

    def is_alive(self) -> bool:
        """Whether it is a consumer of this process, and has not failed."""
        return self._thread is not None and self._failure is None

    def open(self) -> Inbox:
        """An inbox, for a channel that is to consume."""
        inbox = Inbox()
        with self._changed:
            self._inboxes.append(inbox)
        return inbox

    def change(
        self,
        inbox: Inbox,
        queues: Sequence[str] | None = None,
        prefetch: int | None = None,
        ahead: int | None = None,
    ) -> None:
        """Have *inbox* consume *queues*, and hold so many messages; None: as before. What had arrived for
        other queues goes back."""
        with self._changed:
            if ahead is not None:
                inbox.ahead = ahead
            if queues is not None:
                inbox.queues = tuple(dict.fromkeys(queues))
                self._take_back(inbox, [each for each in self._arrived if each.inbox is inbox])
            if prefetch is not None:
                inbox.prefetch = prefetch
            inbox.news = True
            self._tell()

    def close(self, inbox: Inbox) -> None:
        """Give back what *inbox* holds, and what had arrived for it."""
        with self._changed:
            inbox.queues = ()
            self._take_back(inbox, [each for each in self._arrived if each.inbox is inbox])
            held = [Release(tag, redelivered=True) for tag in sorted(inbox.held)]
            inbox.held.clear()
            if inbox in self._inboxes:
                self._inboxes.remove(inbox)
            self._settlements += held
            self._tell()

    def _take_back(self, inbox: Inbox, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.queue not in inbox.queues:
                self._arrived.remove(delivery)
                inbox.arrived -= 1
                self._settlements.append(Release(delivery.tag))

    def settle(self, inbox: Inbox, settlements: Sequence[Settlement]) -> None:
        """Have *settlements* made. Raises LeaseLost when what they are about has gone back meanwhile."""
        with self._changed:
            if self._failure is not None:
                raise LeaseLost(f"the message has gone back to its queue: {self._failure}")
            for settlement in settlements:
                inbox.held.discard(settlement.tag)  # type: ignore[union-attr]
            self._settlements += settlements
            self._tell()

    def next(self, timeout: float | None) -> Delivery:
        """The next delivery, which the caller's inbox holds from now on. Raises TimeoutError after *timeout*
        seconds (None: never), and what the connection has failed by."""
        with self._changed:
            if not self._arrived and self._failure is None and (timeout is None or timeout > 0):
                self._changed.wait_for(lambda: self._arrived or self._failure, timeout)
            if self._failure is not None:
                raise self._failure
            if not self._arrived:
                raise TimeoutError
            delivery = self._arrived.popleft()
            inbox = delivery.inbox
            inbox.arrived -= 1
            inbox.held.add(delivery.tag)
            if not inbox.prefetch and inbox.arrived == inbox.ahead // 2:
                self._tell()  # there is room again for a good many
            return delivery

    def arrived(self, queue: str) -> int:
        """How many messages of *queue* wait here to be delivered."""
        with self._changed:
            return sum(each.queue == queue for each in self._arrived)

    def has_arrived(self) -> bool:
        """Whether next() would not wait."""
        return bool(self._arrived or self._failure)

    def look(self) -> None:
        """Return when what the broker has for us now has arrived, if nothing had."""

        def bring() -> None:
            self._have_news()
            self._bring()

        if not self.has_arrived():
            self.ask(bring)

    def ask(self, work: Callable[[], T]) -> T:
        """What *work* returns on the courier's thread, after all that was settled before. Raises what it
        raises, and what the connection has failed by."""
        answer: Future[T] = Future()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._errands.append((work, answer))
            self._tell()
        try:
            return answer.result(ASK_SECONDS)
        except FutureTimeout:
            raise BrokerUnavailable(f"the broker did not answer for {ASK_SECONDS:g} s") from None

    def take_one(self, queue: str, inbox: Inbox) -> Delivery | None:
        """A message of *queue*, which *inbox* holds from now on; None when there is none."""

        def take() -> Delivery | None:
            with self._changed:
                for delivery in self._arrived:
                    if delivery.queue == queue:
                        self._arrived.remove(delivery)
                        delivery.inbox.arrived -= 1
                        inbox.held.add(delivery.tag)
                        return delivery
            while leased := self._consumer.lease([queue], 1).messages:
                for delivery in self._read(leased, lambda queue: inbox):
                    with self._changed:
                        inbox.held.add(delivery.tag)
                    return delivery
            return None

        return self.ask(take)

    def purge(self, queue: str) -> int:
        """Delete what waits in *queue*, here and in the broker; return how many messages that were."""

        def delete() -> int:
            with self._changed:
                gone = [each for each in self._arrived if each.queue == queue]
                for delivery in gone:
                    self._arrived.remove(delivery)
                    delivery.inbox.arrived -= 1
                    self._settlements.append(Ack(delivery.tag))
            return len(gone) + self._broker.admin.purge(queue)

        return self.ask(delete) if self.is_alive() else self._broker.admin.purge(queue)

    def stop(self) -> None:
        """Settle what is to be settled, and be no consumer any more. Safe to call twice."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._ending = True
            self._tell()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)
            if thread.is_alive():
                logger.warning("the broker does not hear of the last settlements; it will make them for us")

    def _tell(self) -> None:
        """With the lock: end the courier's rest, or keep it from resting."""
        self._told = True
        if self._asleep:
            self._asleep = False
            self._consumer.wake()

    # -- the thread --

    def _run(self) -> None:
        try:
            self._generation = self._consumer.register(f"kombu@{socket.gethostname()}", (), 0)
            self._answered_at = self._extend_at = time.monotonic()
            while not self._is_over():
                self._step()
            self._consumer.deregister()
        except Exception as error:  # noqa: BLE001 - whoever drains the connection is to hear of it
            self._fail(error)

    def _is_over(self) -> bool:
        """Whether we are to end, and have nothing left to say."""
        with self._changed:
            return self._ending and not self._settlements and not self._unsettled and not self._errands

    def _step(self) -> None:
        try:
            rest = self._turn()
            self._answered_at, self._pause = time.monotonic(), 0.0
            if rest > 0:
                self._rest(rest)
        except BrokerUnavailable as error:
            self._wait_for_broker(error)

    def _rest(self, seconds: float) -> None:
        with self._changed:
            if self._told:
                return
            self._asleep = True
        try:
            if self._consumer.wait(seconds):
                self._have_news()
        finally:
            with self._changed:
                self._asleep = False

    def _wait_for_broker(self, error: BrokerUnavailable) -> None:
        """Pause, if the lease may still stand by the time the broker is back."""
        silent = time.monotonic() - self._answered_at
        with self._changed:
            ending = self._ending
            errands, self._errands = self._errands, []
        for _, answer in errands:
            answer.set_exception(error)
        if ending or silent > self._terms.lease_seconds:
            raise error
        if not self._pause:
            logger.warning("the broker does not answer, and is tried again: %s", error)
        self._have_news()
        self._pause = min(max(self._pause * 2, RETRY_SECONDS[0]), RETRY_SECONDS[1])
        with self._changed:
            self._changed.wait_for(lambda: self._ending, self._pause)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if not self._ending or not isinstance(error, QWorkerError):
                log = logger.error if isinstance(error, QWorkerError) else logger.exception
                log("the connection to the broker has failed: %s", error)
            expected = isinstance(error, BrokerUnavailable | LeaseLost) or not self._generation
            self._failure = error if expected else BrokerUnavailable(f"{type(error).__name__}: {error}")
            self._arrived.clear()
            for inbox in self._inboxes:
                inbox.held.clear()
                inbox.arrived = 0
            errands, self._errands = self._errands, []
            self._settlements.clear()
            self._changed.notify_all()
        for _, answer in errands:
            answer.set_exception(error)
        self._notify()

    def _turn(self) -> float:
        """Do what there is to do; return for how many seconds there is nothing more."""
        with self._changed:
            self._told = self._ending
            self._unsettled += self._settlements
            self._settlements.clear()
            errands, self._errands = self._errands, []
        try:
            self._settle()
            for work, answer in errands:
                _run_errand(work, answer)
        finally:
            left = [errand for errand in errands if not errand[1].done()]
            if left:
                with self._changed:
                    self._errands[:0] = left
        now = time.monotonic()
        if now >= self._extend_at:
            self._extend_at = now + self._terms.lease_seconds / 3
            self._consumer.extend()
        if now >= self._housekeep_at:
            self._housekeep(now)
        return 0.0 if self._bring() else self._until_next(now)

    def _until_next(self, now: float) -> float:
        rest = min(self._extend_at, self._housekeep_at) - now
        with self._changed:
            dues = [inbox.due for inbox in self._inboxes if inbox.due is not None and inbox.wants()]
        return max(0.001, min(rest, min(dues, default=math.inf) - time.time()))

    def _settle(self) -> None:
        if not self._unsettled:
            return
        for tag in self._consumer.settle(self._generation, self._unsettled):
            logger.warning("message %d was no longer ours to settle: another consumer has it", tag)
        if any(isinstance(each, Release) for each in self._unsettled):
            self._have_news()
        self._unsettled.clear()

    def _have_news(self) -> None:
        """The broker may have something for everybody."""
        with self._changed:
            for inbox in self._inboxes:
                inbox.news = True

    def _bring(self) -> bool:
        """Take what there is room for; return whether there may be more to do at once."""
        now = time.time()
        with self._changed:
            wanting = [
                inbox
                for inbox in self._inboxes
                if (inbox.news or (inbox.due is not None and inbox.due <= now)) and inbox.wants()
            ]
            by_queue = {queue: inbox for inbox in wanting for queue in inbox.queues}
            limit = min((inbox.room() for inbox in wanting), default=0)
            for inbox in wanting:
                inbox.news = False  # what comes from now on is news again
        if self._ending or not wanting:
            return False
        claim = self._consumer.lease(list(by_queue), limit)
        more = len(claim.messages) >= limit or sum(len(each.body) for each in claim.messages) > LARGE
        with self._changed:
            for inbox in wanting:
                inbox.news, inbox.due = inbox.news or more, claim.next_due
        self._arrive(self._read(claim.messages, by_queue.__getitem__))
        return more or bool(self._unsettled)

    def _read(self, leased: Iterable[Leased], inbox: Callable[[str], Inbox]) -> list[Delivery]:
        """*leased* as kombu has them, but for those that nobody is to have."""
        deliveries = []
        for each in leased:
            try:
                failed = each.deliveries + each.requeued
                if 0 < self._terms.max_deliveries <= failed:
                    self._unsettled.append(DeadLetter(each.tag, f"delivered {failed} times in vain"))
                else:
                    deliveries.append(Delivery(each.tag, each.queue, envelope_of(each), inbox(each.queue)))
            except InvalidTaskMessage as error:
                logger.error("message %d in %s cannot be read: %s", each.tag, each.queue, error)
                self._unsettled.append(DeadLetter(each.tag, f"InvalidTaskMessage: {error}"))
        return deliveries

    def _arrive(self, deliveries: Iterable[Delivery]) -> None:
        with self._changed:
            for delivery in deliveries:
                if delivery.queue in delivery.inbox.queues:
                    delivery.inbox.arrived += 1
                    self._arrived.append(delivery)
                else:  # it was cancelled meanwhile
                    self._unsettled.append(Release(delivery.tag))
            self._changed.notify_all()
        self._notify()

    def _housekeep(self, now: float) -> None:
        """What a qworker worker does for all: put back what the dead held, sweep out what is too old."""
        self._housekeep_at = now + HOUSEKEEPING_SECONDS
        self._have_news()  # look once in a while: who published may have died before it could notify
        for dead in self._consumer.reclaim():
            logger.warning("%s is dead: %d of its messages are back", dead.name, dead.returned)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            self._exchanges.renew()
        if now >= self._sweep_at and not self._consumer.sweep(*self._terms.dead_limits):
            self._sweep_at = now + SWEEP_SECONDS
            self._exchanges.tidy(self._broker.admin.purge)


def _run_errand(work: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(work())
    except BrokerUnavailable as error:
        answer.set_exception(error)
    except LeaseLost as error:
        answer.set_exception(error)
        raise
