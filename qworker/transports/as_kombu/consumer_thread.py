"""Consumer thread of a kombu connection: it leases messages, and settles them.

Comes from:  ``shared_state.py``, with calls and settlements from channels.
Goes to:     ``Broker.consumer``, which is this thread's alone; deliveries, back to the shared state.
Thread:      its own; any for starting and stopping.

It works beside a worker's loop, so leases are renewed while that is busy, even for hours. Everything settled
since its last turn goes to the broker in one step, and messages are leased in batches. So an ack is in
transit when ``ack()`` returns, as with RabbitMQ: if the process dies before it arrives, the message is
delivered again.

A broker that does not answer is tried again, with settlements kept, for as long as the lease may hold. After
that, and when the lease is lost, the connection has failed: others have its messages.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import NamedTuple

from qworker.errors import BrokerUnavailable, InvalidTaskMessage, LeaseLost, QWorkerError
from qworker.process.forked import forgetful
from qworker.transports.as_kombu.envelopes import envelope_of
from qworker.transports.as_kombu.exchanges import RENEW_SECONDS, Exchanges
from qworker.transports.as_kombu.shared_state import Call, ChannelInbox, Delivery, SharedState
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    NO_ROOM,
    Broker,
    DeadLetter,
    Leased,
    Release,
    Settlement,
)

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 1.0
SWEEP_SECONDS = 60.0
RETRY_SECONDS = (0.1, 2.0)
"""The first pause before an unavailable broker is tried again, and the longest."""
END_SECONDS = 10.0
"""How long closing a connection waits for its last settlements."""
IDLE_SECONDS = 5.0
LARGE = MAX_LEASE_BYTES // 2
"""Bytes of bodies from which a claim may have been truncated."""

_consumer_threads = forgetful()


class Terms(NamedTuple):
    """Settings of a consumer thread. lease_seconds: how long a silent one is considered alive. dead_limits:
    for how many seconds, and how many dead letters are kept. max_deliveries: number of failed deliveries
    after which a message becomes a dead letter; 0: never."""

    lease_seconds: float
    dead_limits: tuple[float, int]
    max_deliveries: int = 0


class ConsumerThread:
    """broker: whose consumer is ours. notify: called when there are deliveries; any thread."""

    def __init__(
        self, broker: Broker, exchanges: Exchanges, terms: Terms, notify: Callable[[], object]
    ) -> None:
        self._broker = broker
        self._consumer = broker.consumer
        self._exchanges = exchanges
        self._terms = terms
        self._notify = notify
        self.shared_state = SharedState(self._consumer.wake)
        self._start_over()
        _consumer_threads.add(self)

    def _start_over(self) -> None:
        # Under the shared state's lock:
        self._thread: threading.Thread | None = None
        self._former: threading.Thread | None = None
        """A thread that was idle, and may still be ending."""
        self._ending = False
        # Only used by the consumer thread:
        self._unsettled: list[Settlement] = []
        self._generation = 0
        self._extend_at = self._housekeep_at = self._sweep_at = self._renew_at = 0.0
        self._answered_at = self._used_at = 0.0
        self._pause = 0.0

    def _after_fork(self) -> None:
        """In a forked child: the thread and everything it holds belong to the parent."""
        self._start_over()
        self._exchanges.after_fork()
        self.shared_state.changed = threading.Condition()  # the thread that held it does not exist here
        self.shared_state.mark_in(None)  # the others belong to the parent's messages
        self.shared_state.fail(
            BrokerUnavailable("this connection belongs to the process that forked this one")
        )

    # -- any thread --

    def start(self) -> None:
        """Register as a consumer, if that was not done. Raises errors of the broker."""
        with self.shared_state.changed:
            if self._thread is not None or self.shared_state.failure is not None:
                return
            former, self._former = self._former, None
            thread = self._thread = threading.Thread(
                target=self._run, name="qworker-kombu-consumer", daemon=True
            )
        if former is not None:
            former.join(END_SECONDS)
        thread.start()
        self.shared_state.ask(lambda: None)

    def is_alive(self) -> bool:
        """Whether it is a consumer of this process, and has not failed."""
        return self._thread is not None and self.shared_state.failure is None

    def look(self) -> None:
        """If nothing has arrived, return when the messages that the broker has now have arrived."""

        def bring() -> None:
            self.shared_state.have_news()
            self._bring()

        if not self.shared_state.has_arrived():
            self.shared_state.ask(bring)

    def take_one(self, queue: str, inbox: ChannelInbox) -> Delivery | None:
        """Return a message of *queue*, to be held by *inbox*; None when there is none."""

        def take() -> Delivery | None:
            if delivery := self.shared_state.take(queue, inbox):
                return delivery
            while leased := self._take(queue):
                for delivery in self._read(leased, {queue: inbox}):
                    self.shared_state.hold(inbox, delivery.tag)
                    return delivery
                self._settle()  # messages that nobody wants
            return None

        return self.shared_state.ask(take)

    def _take(self, queue: str) -> list[Leased]:
        by_queue = self._broker.by_queue
        claim = self._consumer.lease([queue], 1) if by_queue is None else by_queue.look(queue)
        return claim.messages

    def leave(self, queue: str) -> None:
        """Leave the messages of *queue*, which is no longer consumed here, to others. Does not wait."""

        by_queue = self._broker.by_queue

        def unbind() -> None:
            assert by_queue is not None
            if not self.shared_state.is_consumed(queue):
                by_queue.unbind(queue)

        if by_queue is not None and self.is_alive():
            self.shared_state.order(unbind)

    def size(self, queue: str) -> int:
        """Return how many messages of *queue* wait, here and in the broker, counted at one moment."""

        def count() -> int:
            (info,) = self._broker.admin.depths([queue])
            return info.ready + self.shared_state.arrived(queue)

        return self.shared_state.ask(count) if self.is_alive() else count()

    def purge(self, queue: str) -> int:
        """Delete the waiting messages of *queue*, here and in the broker; return their number."""
        if not self.is_alive():
            return self._broker.admin.purge(queue)
        return self.shared_state.ask(
            lambda: self.shared_state.delete(queue) + self._broker.admin.purge(queue)
        )

    def stop(self) -> None:
        """Send the last settlements, and deregister. Safe to call twice."""
        with self.shared_state.changed:
            thread, self._thread = self._thread or self._former, None
            self._ending = True
            self.shared_state.notify()
            self.shared_state.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)
            if thread.is_alive():
                logger.warning(
                    "the last settlements did not reach the broker, which will redeliver the messages"
                )

    # -- the thread --

    def _run(self) -> None:
        try:
            self._generation = self._consumer.register(f"kombu@{socket.gethostname()}", (), 0)
            self.shared_state.mark_in(self._consumer.running_path())
            self._answered_at = self._extend_at = self._used_at = time.monotonic()
            while not self._is_over() and not self._is_idle():
                self._step()
            self._consumer.deregister()
        except Exception as error:  # noqa: BLE001 - draining the connection raises it
            self._fail(error)

    def _is_over(self) -> bool:
        """Whether it should end, and nothing is left to settle."""
        return self._ending and not self._unsettled and not self.shared_state.has_orders()

    def _is_idle(self) -> bool:
        """Whether nothing was consumed for a while: then the thread ends, until it is needed."""
        now = time.monotonic()
        with self.shared_state.changed:
            if self._unsettled or self.shared_state.is_in_use() or self._exchanges.has_ours():
                self._used_at = now
            if now - self._used_at < IDLE_SECONDS or self._ending:
                return False
            self._former, self._thread = self._thread, None
            return True

    def _step(self) -> None:
        try:
            rest = self._turn()
            self._answered_at, self._pause = time.monotonic(), 0.0
            if rest > 0 and self.shared_state.fall_asleep():
                try:
                    if self._consumer.wait(rest, 0 if self.shared_state.has_room() else NO_ROOM):
                        self.shared_state.have_news()
                finally:
                    self.shared_state.awake()
        except BrokerUnavailable as error:
            self._wait_for_broker(error)

    def _wait_for_broker(self, error: BrokerUnavailable) -> None:
        """Pause, if the lease may still hold when the broker is back. At the end one more attempt is made,
        because the error may come from a connection that was cut long ago."""
        silent = time.monotonic() - self._answered_at
        settlements, calls = self.shared_state.orders()
        self._unsettled += settlements
        _refuse(calls, error)
        if (self._ending and self._pause) or silent > self._terms.lease_seconds:
            raise error
        if not (self._pause or self._ending):
            logger.warning("the broker does not answer; trying again: %s", error)
        self.shared_state.have_news()
        self._pause = min(max(self._pause * 2, RETRY_SECONDS[0]), RETRY_SECONDS[1])
        with self.shared_state.changed:
            self.shared_state.changed.wait_for(lambda: self._ending, self._pause)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, QWorkerError):
            logger.exception("the connection to the broker has failed")
        elif not self._ending:
            logger.error("the connection to the broker has failed: %s", error)
        if self._generation and not isinstance(error, BrokerUnavailable | LeaseLost):
            error = BrokerUnavailable(f"{type(error).__name__}: {error}")
        _refuse(self.shared_state.fail(error), error)
        self._notify()

    def _turn(self) -> float:
        """Do one turn; return the seconds until the next one."""
        settlements, calls = self.shared_state.orders()
        self._unsettled += settlements
        try:
            self._settle()
            for call in calls:
                _run_call(call)
        finally:
            self.shared_state.put_back([call for call in calls if not call[1].done()])
        now = time.monotonic()
        if now >= self._extend_at:
            self._extend_at = now + self._terms.lease_seconds / 3
            self._consumer.extend()
        if now >= self._housekeep_at:
            self._housekeep(now)
        if self._bring() or self._ending:
            return 0.0
        due = self.shared_state.next_due()
        rest = min(self._extend_at, self._housekeep_at) - now
        return max(0.001, rest if due is None else min(rest, due - time.time()))

    def _settle(self) -> None:
        if not self._unsettled:
            return
        for tag in self._consumer.settle(self._generation, self._unsettled):
            logger.warning("message %d could not be settled: another consumer has it", tag)
        if any(isinstance(each, Release) for each in self._unsettled):
            self.shared_state.have_news()
        self._unsettled.clear()

    def _bring(self) -> bool:
        """Lease messages for which there is room; return whether there may be more to do at once."""
        by_queue, limit = self.shared_state.wanted(time.time())
        if self._ending or not by_queue:
            return False
        claim = self._consumer.lease(list(by_queue), limit)
        more = len(claim.messages) >= limit or sum(len(each.body) for each in claim.messages) > LARGE
        self.shared_state.looked(by_queue.values(), more, claim.next_due)
        if claim.messages:
            unwanted = self.shared_state.deliver(self._read(claim.messages, by_queue))
            self._unsettled += [Release(delivery.tag) for delivery in unwanted]
            self._notify()
        return more or bool(self._unsettled)

    def _read(self, leased: Iterable[Leased], by_queue: Mapping[str, ChannelInbox]) -> list[Delivery]:
        """Return *leased* in kombu's form, except messages that must not be delivered."""
        deliveries = []
        for each in leased:
            try:
                failed = each.deliveries + each.requeued
                if 0 < self._terms.max_deliveries <= failed:
                    self._unsettled.append(DeadLetter(each.tag, f"delivered {failed} times without success"))
                elif inbox := by_queue.get(each.queue):
                    deliveries.append(Delivery(each.tag, each.queue, envelope_of(each), inbox))
                else:  # taken early, when it was still wanted
                    self._unsettled.append(Release(each.tag))
            except InvalidTaskMessage as error:
                logger.error("message %d in %s cannot be read: %s", each.tag, each.queue, error)
                self._unsettled.append(DeadLetter(each.tag, f"InvalidTaskMessage: {error}"))
        return deliveries

    def _housekeep(self, now: float) -> None:
        """Like a qworker worker: put back messages of dead consumers, delete old data."""
        self._housekeep_at = now + HOUSEKEEPING_SECONDS
        # Poll from time to time: a publisher may have died before its notification.
        self.shared_state.have_news()
        for dead in self._consumer.reclaim():
            level = logging.WARNING if dead.returned else logging.INFO  # an orderly client held nothing
            logger.log(level, "%s is dead: %d of its messages are back", dead.name, dead.returned)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            self._exchanges.renew()
        if now >= self._sweep_at and not self._consumer.sweep("dead", *self._terms.dead_limits):
            self._sweep_at = now + SWEEP_SECONDS
            if self._exchanges.shared:
                self._exchanges.tidy(self._broker.admin.purge)


def _run_call(call: Call) -> None:
    work, answer = call
    if answer.cancelled():
        return
    try:
        result = work()
    except (BrokerUnavailable, LeaseLost) as error:
        _refuse([call], error)
        if isinstance(error, LeaseLost):
            raise
    else:
        with suppress(InvalidStateError):  # the caller has given up
            answer.set_result(result)


def _refuse(calls: Iterable[Call], error: Exception) -> None:
    for _, answer in calls:
        with suppress(InvalidStateError):
            answer.set_exception(error)
