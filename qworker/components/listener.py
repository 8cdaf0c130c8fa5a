"""Listener: takes messages from the broker and gives it their acks.

Comes from:  the broker (Broker), and the mailbox: settlements from whoever ended a request.
Goes to:     EtaSchedule for what is due soon, ReadyQueue for what is due; settlements back to the broker.
Thread:      listener; owns the leasing side of the store, so every lease, ack, release and dead letter is
             made here.

When the store fails, the listener lets go of it and tries again for ever with growing, random pauses; what
runs goes on, and the settlements wait. When the store says that our lease was lost (this process was frozen,
or the machine slept), what has not started is forgotten, since others have it now, and what runs is settled
if the store ever gives it to us again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qworker.components.ack_buffer import AckBuffer
from qworker.components.component import ThreadComponent
from qworker.components.early_acks import EarlyAcks
from qworker.components.fetch_window import FetchWindow
from qworker.components.housekeeping import Housekeeping
from qworker.components.intake import Intake
from qworker.components.ledger import WorkerState
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.ready_queue import ReadyQueue
from qworker.components.request import Request
from qworker.components.schedule_controller import ScheduleController
from qworker.components.settlements import Settlements
from qworker.control.client import heard
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.publishing.retry import RECONNECT
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import Broker, Release

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

LONGEST_REST = 1.0


class Listener(ThreadComponent):
    """node: our name. queues: which to consume. offer: gives requests to who is idle, and returns the others.
    recall: takes back what is in the pool and has not begun. See FetchWindow, Intake and EarlyAcks for the
    rest."""

    name = "listener"

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        store: Broker,
        state: WorkerState,
        ready: ReadyQueue,
        schedule: ScheduleController,
        intake: Intake,
        window: FetchWindow,
        early: EarlyAcks,
        *,
        node: str,
        queues: Sequence[str],
        concurrency: int,
        offer: Callable[[list[Request]], list[Request]],
        on_revoked: Callable[[Request], None],
        recall: Callable[[], list[Request]],
    ) -> None:
        super().__init__(app.clock, on_crash)
        conf = app.conf
        self._signer = app.signer
        self._acks = AckBuffer(
            store,
            Settlements(app, store),
            state,
            early,
            conf.worker_ack_flush_seconds,
            conf.worker_ack_flush_count,
        )
        self.mailbox: Mailbox[SettlementOrder] = self._acks.mailbox
        self._consumer = store.consumer
        self._state = state
        self._ready = ready
        self._schedule = schedule
        self._intake = intake
        self._window = window
        self._early = early
        self._node = node
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._offer = offer
        self._on_revoked = on_revoked
        self._recall = recall
        self._lease_seconds: float = min(conf.worker_lease_seconds, store.silent_seconds)
        self._eta_window: float = conf.worker_eta_window
        self._eta_limit: int = conf.worker_eta_task_limit
        self._housekeeping = Housekeeping(
            app.clock, store, conf.worker_lease_seconds, (conf.dead_letter_expires, conf.dead_letter_max)
        )
        self._retry_on_startup: bool = conf.broker_connection_retry_on_startup
        self._quiet = False  # set by quiet(), a flag
        self._give_up_at = 0.0  # set by end_by()
        self._holds_until = 0.0
        """Time (as clock.uptime() has it) until which nobody can have taken us for dead. The listener
        writes."""
        self._epoch = 0  # listener only, as all below
        self._extend_at = 0.0
        self._cursor = 0
        self._rang = True
        self._unheard = True
        """Whether there may be revocations that we have not asked for."""
        self._backlog = True
        """Whether the broker may have something for us."""
        self._look_at: float | None = None
        """Epoch second at which a delayed message is to be fetched."""
        self._failures = 0
        self.last_turn = 0.0
        """Monotonic time of the last turn in which the broker answered: what health checks look at."""
        self.failing: str | None = None
        """Why the broker did not answer at the last turn; None when it did."""
        self.failures = self.reconnects = 0

    @property
    def unsettled(self) -> int:
        """How many letters wait for the broker. Any thread."""
        return len(self._acks)

    def holds_lease(self) -> bool:
        """Whether what is on lease is surely still ours, so that it may start. Any thread."""
        return self.clock.uptime() < self._holds_until

    def left(self) -> dict[str, list[str]]:
        """What the broker has not been told when we end: see AckBuffer. Any thread."""
        return self._acks.left()

    # -- the thread --

    def opened(self) -> None:
        """Say at the start what cannot be mended by waiting: a wrong URL or password, a missing extra."""
        try:
            self._register()
        except BrokerUnavailable:
            if not self._retry_on_startup:
                raise
        else:
            self._housekeeping.answered(self.clock.monotonic())

    def _register(self) -> None:
        asked = self.clock.uptime()
        self._epoch = self._consumer.register(self._node, self._queues, self._concurrency)
        self._extend_at = self.clock.monotonic() + self._lease_seconds / 3
        self._renewed(asked, self._lease_seconds)

    def _renewed(self, asked: float, seconds: float) -> None:
        """What was asked at *asked* was answered so that our lease stands for so many seconds from then."""
        lapsed = not self.holds_lease()
        self._holds_until = max(self._holds_until, asked + seconds)
        if lapsed:
            self._ready.wake()  # where it may be waited for

    def step(self, now: float) -> float | None:
        try:
            try:
                rest = self._turn(now)
            except LeaseLost as error:
                self._lost_lease(error)
                rest = 0.0
        except (BrokerUnavailable, ConfigurationError) as error:
            if isinstance(error, ConfigurationError) and not self._epoch:
                raise  # it never took us on
            delay = RECONNECT.delay(self._failures, random.random)
            self._failures += 1
            self.failures += 1
            self.failing = str(error)
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th… time
                logger.error("the broker does not answer: %s; trying again in %.1f s", error, delay)
            self._rang = True
            return max(delay, 0.05)
        if self._failures:
            logger.warning("the broker answers again after %d failures", self._failures)
            self._failures = 0
            self.failing = None
            self.reconnects += 1
        self.last_turn = now
        self._housekeeping.answered(now)
        return rest

    def wait(self, seconds: float | None) -> None:
        if self._failures:
            super().wait(seconds)
            return
        try:
            prefetch = 0 if self._quiet else self._window.room()
            rest = LONGEST_REST if seconds is None else seconds
            self._rang = self._consumer.wait(rest, prefetch) or self._rang
        except (BrokerUnavailable, ConfigurationError, LeaseLost):
            self._rang = True  # the next turn will find out, and knows what to do
            super().wait(0.05)

    def wake(self) -> None:
        self._consumer.wake()
        super().wake()

    def _turn(self, now: float) -> float | None:
        if not self._epoch:  # the broker was not there yet when we started
            self._register()
        self.mailbox.armed = False
        self._acks.collect(now)
        if self._acks.waiting:
            if self._acks.is_due(now) or self._window.idle() or self._quiet:
                self._acks.flush(self._epoch)
            elif (
                not self._rang
                and not self._wants_to_fetch()
                and now < min(self._housekeeping.due_at, self._extend_at)
            ):
                # Only a few acks, and nothing else to do: they wait for others to come along.
                self.mailbox.armed = True
                return self._acks.rest(now)
        if now >= self._extend_at and self._state.requests:
            asked = self.clock.uptime()
            self._consumer.extend()
            self._extend_at = now + self._lease_seconds / 3
            self._renewed(asked, self._lease_seconds)
        if now >= self._housekeeping.due_at:
            self._housekeep(now)
        if self._rang:
            self._rang = False
            self._backlog = self._unheard = True
        if self._wants_to_fetch() or self._consumer.prefetched:
            self._fetch()
        if self._unheard:
            self._hear_revocations()
        if self._quiet:
            self._give_back_all()
        return self._rest(now)

    def _rest(self, now: float) -> float:
        """How long nothing will have to be done, unless something wakes us."""
        if self._wants_to_fetch() or (self._quiet and self._acks.waiting):
            return 0
        rest = max(0.0, self._housekeeping.due_at - now)
        if self._acks.waiting:
            self.mailbox.armed = True
            rest = min(rest, self._acks.rest(now))
        if self._look_at is not None and not self._quiet:
            rest = min(rest, max(0.001, self._look_at - self.clock.now()))
        return min(rest, LONGEST_REST)

    # -- what comes in --

    def _wants_to_fetch(self) -> bool:
        """Whether there may be something to be had, and there is room for it."""
        if self._quiet:
            return False
        if self._look_at is not None and self._look_at <= self.clock.now():
            return True
        return self._backlog and self._window.room() > 0

    def _fetch(self) -> None:
        prefetched, limit = self._consumer.prefetched, max(0, self._window.room())
        room = min(self._eta_limit, self._window.fits) - len(self._schedule.schedule)
        near = room if room > self._eta_limit // 2 else 0
        asked = self.clock.uptime()
        claim = self._consumer.lease(self._queues, limit, near, self._eta_window)
        messages = claim.messages
        if messages:  # else it may not have looked; see Consumer.lease()
            self._renewed(asked, self._lease_seconds * 2 / 3)
        if CRASHING and messages:
            crash_point("claimed")
        if claim.last_revocation is not None:
            self._unheard = claim.last_revocation > self._cursor
        if self._unheard:  # before anything of the claim may run
            # What was claimed must not be forgotten: if this fails, the end of the turn will say so.
            with suppress(BrokerUnavailable, ConfigurationError):
                self._hear_revocations()
        large = self._window.measure(messages)
        wall = self.clock.now()
        ready: list[Request] = []
        for leased in messages:
            request = self._intake.take(leased, self._epoch, wall)
            if request is None:
                continue
            if leased.due is not None and leased.due > wall:
                if CRASHING:
                    crash_point("heap push")
                self._schedule.enter(leased.due, request)
                near -= 1
            else:
                self._window.weigh(request)
                ready.append(request)
        # A full catch means that there is more to be had; so does one that there was no room for.
        self._backlog = limit == 0 or len(messages) >= limit or large
        if prefetched:  # it came while we waited, and what fell due may have taken its place
            self._give_back(ready[limit:])
            del ready[limit:]
        if ready and (rest := self._offer(ready)):
            self._ready.put_many(rest)
        self._look_ahead(claim.next_due, wall, near > 0)
        if (
            not self._quiet
        ):  # else the worker stops, and what has not started goes back at the end of the turn
            self._give_back_surplus()

    def _look_ahead(self, due: float | None, wall: float, room: bool) -> None:
        """Note when the next delayed message, which falls *due* then, is to be fetched: ahead of time if the
        schedule has room for it."""
        if due is None:
            self._look_at = None
        elif room:
            self._look_at = due - self._eta_window
        else:
            # No room ahead: not before it is due, nor before the schedule has got emptier.
            self._look_at = max(due, wall + 0.01) if due > wall else wall + 0.01

    def _give_back_surplus(self) -> None:
        """What was fetched ahead for tasks thought short belongs to others once they turn out long."""
        self._give_back(self._window.surplus())

    def _give_back(self, requests: Sequence[Request]) -> None:
        if CRASHING and requests:
            crash_point("giving back")
        # What is acked the broker has no more.
        acked = [request for request in requests if request.acked]
        if self._quiet:
            for request in acked:
                self._acks.add(SettlementOrder(request, None, anew=True))
        else:
            self._ready.put_back(reversed(acked))
        for request in requests:
            if not request.acked:
                self._state.leave(request)
                self._acks.add(SettlementOrder(None, Release(request.tag)))
                self._backlog = True

    def _lost_lease(self, error: LeaseLost) -> None:
        logger.error("%s; what had not started is left to others", error)
        waiting = [*self._recall(), *self._ready.clear(), *self._schedule.schedule.clear()]
        self._ready.put_back(request for request in waiting if request.acked)  # these nobody else has
        for request in waiting:
            if not request.acked:
                self._state.leave(request)
        self._acks.lost_lease()
        self._register()
        self._rang = True

    def _give_back_all(self) -> None:
        """The worker stops: what has not started is not to start here."""
        self._give_back([*self._early.take(), *self._ready.clear(), *self._schedule.schedule.clear()])

    # -- now and then --

    def _housekeep(self, now: float) -> None:
        self._backlog = True  # look once in a while: who published may have died before it could ring
        self._rang = self._housekeeping.reclaim(now) or self._rang
        self._window.reweigh()
        self._give_back_surplus()
        self._housekeeping.sweep(now)

    def _hear_revocations(self) -> None:
        self._cursor, revocations = self._consumer.revoked_since(self._cursor)
        self._unheard = False
        for given in revocations:
            revocation = heard(self._signer, given)
            if revocation is None:
                logger.warning(
                    "task %.80s is not revoked: the order is not signed with a security_key", given.task_id
                )
                continue
            for request in self._state.revoke(revocation):
                self._on_revoked(request)

    # -- the end --

    def quiet(self) -> None:
        self._quiet = self._acks.ending = True
        self._consumer.wake()

    def end_by(self, deadline: float) -> None:
        """Say until when (monotonic) the broker may be waited for at the end; may be said again. Any
        thread."""
        self._give_up_at = deadline

    def closed(self) -> None:
        """The last settlements, then the store: the listener is the last to stop, because it owns the
        acks."""
        self._quiet = True
        self._give_back_all()
        self._acks.end(self._epoch, self.clock, lambda: self._give_up_at)
        for fate, ids in self._acks.left().items():
            logger.error("%d tasks %s: %s", len(ids), fate, " ".join(ids))
        try:
            self._consumer.deregister()
        except (BrokerUnavailable, LeaseLost, ConfigurationError) as error:
            logger.warning("the broker does not hear that we end: %s; it will notice", error)
