"""Courier: the thread of a kombu connection that has the leases: it brings messages, and settles them.

Comes from:  ``desk.py``, where channels order and settle.
Goes to:     ``Broker.consumer``, which is this thread's alone; deliveries, back to the desk.
Thread:      its own; any for what is said to start and stop it.

It works beside a worker's loop, so leases are renewed while that one is busy, for hours if need be. All that
was settled since its last turn goes to the broker in one step, and whatever there is room for comes in one
lease. So an ack is on its way when ``ack()`` returns, as it is with RabbitMQ: should the process die before
it has arrived, the message is delivered again.

A broker that does not answer is tried again and again, with what was settled kept, for as long as the lease
may stand. Then, and when the lease is lost, the connection has failed: others have what it held.
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
from qworker.transports.as_kombu.desk import Delivery, Desk, Errand, Inbox
from qworker.transports.as_kombu.envelopes import envelope_of
from qworker.transports.as_kombu.exchanges import RENEW_SECONDS, Exchanges
from qworker.transports.lease import MAX_LEASE_BYTES, Broker, DeadLetter, Leased, Release, Settlement

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 1.0
SWEEP_SECONDS = 60.0
RETRY_SECONDS = (0.1, 2.0)
"""The first pause before a broker that did not answer is tried again, and the longest."""
END_SECONDS = 10.0
"""For how long a connection that is closed waits for its last settlements."""
IDLE_SECONDS = 5.0
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
        self.desk = Desk(self._consumer.wake)
        self._start_over()
        _couriers.add(self)

    def _start_over(self) -> None:
        # Under the desk's lock:
        self._thread: threading.Thread | None = None
        self._former: threading.Thread | None = None
        """The one that has had nothing to do, and may still be about to end."""
        self._ending = False
        # The courier's own:
        self._unsettled: list[Settlement] = []
        self._generation = 0
        self._extend_at = self._housekeep_at = self._sweep_at = self._renew_at = 0.0
        self._answered_at = self._used_at = 0.0
        self._pause = 0.0

    def _after_fork(self) -> None:
        """In a forked child: the thread is the parent's, and so is all that it holds."""
        self._start_over()
        self._exchanges.after_fork()
        self.desk.changed = threading.Condition()  # who held it is not here
        self.desk.mark_in(None)  # the others are of what the parent has
        self.desk.fail(BrokerUnavailable("this connection belongs to the process that was forked"))

    # -- any thread --

    def start(self) -> None:
        """Become a consumer, if we are none yet. Raises what is wrong with the broker."""
        with self.desk.changed:
            if self._thread is not None or self.desk.failure is not None:
                return
            former, self._former = self._former, None
            thread = self._thread = threading.Thread(target=self._run, name="qworker-courier", daemon=True)
        if former is not None:
            former.join(END_SECONDS)
        thread.start()
        self.desk.ask(lambda: None)

    def is_alive(self) -> bool:
        """Whether it is a consumer of this process, and has not failed."""
        return self._thread is not None and self.desk.failure is None

    def look(self) -> None:
        """Return when what the broker has for us now has arrived, if nothing had."""

        def bring() -> None:
            self.desk.have_news()
            self._bring()

        if not self.desk.has_arrived():
            self.desk.ask(bring)

    def take_one(self, queue: str, inbox: Inbox) -> Delivery | None:
        """A message of *queue*, which *inbox* holds from now on; None when there is none."""

        def take() -> Delivery | None:
            if delivery := self.desk.take(queue, inbox):
                return delivery
            while leased := self._consumer.look(queue).messages:
                for delivery in self._read(leased, {queue: inbox}):
                    self.desk.hold(inbox, delivery.tag)
                    return delivery
                self._settle()  # what nobody is to have
            return None

        return self.desk.ask(take)

    def leave(self, queue: str) -> None:
        """Nobody here consumes *queue* any more: let others have what comes of it. Waits for nothing."""

        def unbind() -> None:
            if not self.desk.is_consumed(queue):
                self._consumer.unbind(queue)

        if self.is_alive():
            self.desk.order(unbind)

    def size(self, queue: str) -> int:
        """How many messages of *queue* wait, here and in the broker; none moves while they are counted."""

        def count() -> int:
            (info,) = self._broker.admin.depths([queue])
            return info.ready + self.desk.arrived(queue)

        return self.desk.ask(count) if self.is_alive() else count()

    def purge(self, queue: str) -> int:
        """Delete what waits in *queue*, here and in the broker; return how many messages that were."""
        if not self.is_alive():
            return self._broker.admin.purge(queue)
        return self.desk.ask(lambda: self.desk.delete(queue) + self._broker.admin.purge(queue))

    def stop(self) -> None:
        """Settle what is to be settled, and be no consumer any more. Safe to call twice."""
        with self.desk.changed:
            thread, self._thread = self._thread or self._former, None
            self._ending = True
            self.desk.tell()
            self.desk.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)
            if thread.is_alive():
                logger.warning("the broker does not hear of the last settlements; it will make them for us")

    # -- the thread --

    def _run(self) -> None:
        try:
            self._generation = self._consumer.register(f"kombu@{socket.gethostname()}", (), 0)
            self.desk.mark_in(self._consumer.running_path())
            self._answered_at = self._extend_at = self._used_at = time.monotonic()
            while not self._is_over() and not self._is_idle():
                self._step()
            self._consumer.deregister()
        except Exception as error:  # noqa: BLE001 - whoever drains the connection is to hear of it
            self._fail(error)

    def _is_over(self) -> bool:
        """Whether we are to end, and have nothing left to say."""
        return self._ending and not self._unsettled and not self.desk.has_orders()

    def _is_idle(self) -> bool:
        """Whether nobody has consumed anything for a while: then we end, until somebody does."""
        now = time.monotonic()
        with self.desk.changed:
            if self._unsettled or self.desk.is_in_use() or self._exchanges.has_ours():
                self._used_at = now
            if now - self._used_at < IDLE_SECONDS or self._ending:
                return False
            self._former, self._thread = self._thread, None
            return True

    def _step(self) -> None:
        try:
            rest = self._turn()
            self._answered_at, self._pause = time.monotonic(), 0.0
            if rest > 0 and self.desk.fall_asleep():
                try:
                    if self._consumer.wait(rest):
                        self.desk.have_news()
                finally:
                    self.desk.awake()
        except BrokerUnavailable as error:
            self._wait_for_broker(error)

    def _wait_for_broker(self, error: BrokerUnavailable) -> None:
        """Pause, if the lease may still stand by the time the broker is back. At the end it is tried once
        more, for what failed may have been a connection that was cut long ago."""
        silent = time.monotonic() - self._answered_at
        settlements, errands = self.desk.orders()
        self._unsettled += settlements
        _refuse(errands, error)
        if (self._ending and self._pause) or silent > self._terms.lease_seconds:
            raise error
        if not (self._pause or self._ending):
            logger.warning("the broker does not answer, and is tried again: %s", error)
        self.desk.have_news()
        self._pause = min(max(self._pause * 2, RETRY_SECONDS[0]), RETRY_SECONDS[1])
        with self.desk.changed:
            self.desk.changed.wait_for(lambda: self._ending, self._pause)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, QWorkerError):
            logger.exception("the connection to the broker has failed")
        elif not self._ending:
            logger.error("the connection to the broker has failed: %s", error)
        if self._generation and not isinstance(error, BrokerUnavailable | LeaseLost):
            error = BrokerUnavailable(f"{type(error).__name__}: {error}")
        _refuse(self.desk.fail(error), error)
        self._notify()

    def _turn(self) -> float:
        """Do what there is to do; return for how many seconds there is nothing more."""
        settlements, errands = self.desk.orders()
        self._unsettled += settlements
        try:
            self._settle()
            for errand in errands:
                _run_errand(errand)
        finally:
            self.desk.put_back([errand for errand in errands if not errand[1].done()])
        now = time.monotonic()
        if now >= self._extend_at:
            self._extend_at = now + self._terms.lease_seconds / 3
            self._consumer.extend()
        if now >= self._housekeep_at:
            self._housekeep(now)
        if self._bring() or self._ending:
            return 0.0
        due = self.desk.next_due()
        rest = min(self._extend_at, self._housekeep_at) - now
        return max(0.001, rest if due is None else min(rest, due - time.time()))

    def _settle(self) -> None:
        if not self._unsettled:
            return
        for tag in self._consumer.settle(self._generation, self._unsettled):
            logger.warning("message %d was no longer ours to settle: another consumer has it", tag)
        if any(isinstance(each, Release) for each in self._unsettled):
            self.desk.have_news()
        self._unsettled.clear()

    def _bring(self) -> bool:
        """Take what there is room for; return whether there may be more to do at once."""
        by_queue, limit = self.desk.wanted(time.time())
        if self._ending or not by_queue:
            return False
        claim = self._consumer.lease(list(by_queue), limit)
        more = len(claim.messages) >= limit or sum(len(each.body) for each in claim.messages) > LARGE
        self.desk.looked(by_queue.values(), more, claim.next_due)
        if claim.messages:
            unwanted = self.desk.lay_down(self._read(claim.messages, by_queue))
            self._unsettled += [Release(delivery.tag) for delivery in unwanted]
            self._notify()
        return more or bool(self._unsettled)

    def _read(self, leased: Iterable[Leased], by_queue: Mapping[str, Inbox]) -> list[Delivery]:
        """*leased* as kombu has them, but for those that nobody is to have."""
        deliveries = []
        for each in leased:
            try:
                failed = each.deliveries + each.requeued
                if 0 < self._terms.max_deliveries <= failed:
                    self._unsettled.append(DeadLetter(each.tag, f"delivered {failed} times in vain"))
                elif inbox := by_queue.get(each.queue):
                    deliveries.append(Delivery(each.tag, each.queue, envelope_of(each), inbox))
                else:  # it was taken before it was due, when somebody wanted such
                    self._unsettled.append(Release(each.tag))
            except InvalidTaskMessage as error:
                logger.error("message %d in %s cannot be read: %s", each.tag, each.queue, error)
                self._unsettled.append(DeadLetter(each.tag, f"InvalidTaskMessage: {error}"))
        return deliveries

    def _housekeep(self, now: float) -> None:
        """What a qworker worker does for all: put back what the dead held, sweep out what is too old."""
        self._housekeep_at = now + HOUSEKEEPING_SECONDS
        self.desk.have_news()  # look once in a while: who published may have died before it could notify
        for dead in self._consumer.reclaim():
            level = logging.WARNING if dead.returned else logging.INFO  # a client that ended held nothing
            logger.log(level, "%s is dead: %d of its messages are back", dead.name, dead.returned)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            self._exchanges.renew()
        if now >= self._sweep_at and not self._consumer.sweep("dead", *self._terms.dead_limits):
            self._sweep_at = now + SWEEP_SECONDS
            if self._exchanges.shared:
                self._exchanges.tidy(self._broker.admin.purge)


def _run_errand(errand: Errand) -> None:
    work, answer = errand
    if answer.cancelled():
        return
    try:
        result = work()
    except (BrokerUnavailable, LeaseLost) as error:
        _refuse([errand], error)
        if isinstance(error, LeaseLost):
            raise
    else:
        with suppress(InvalidStateError):  # who asked has given up
            answer.set_result(result)


def _refuse(errands: Iterable[Errand], error: Exception) -> None:
    for _, answer in errands:
        with suppress(InvalidStateError):
            answer.set_exception(error)
