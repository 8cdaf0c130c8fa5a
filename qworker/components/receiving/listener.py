"""Listener: takes messages from the broker and gives it their acks.

Comes from:  the broker, and the mailbox: settlements from whoever ended a request.
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
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qworker.components.component import ThreadComponent
from qworker.components.receiving.ack_buffer import AckBuffer
from qworker.components.receiving.fetch_window import FetchWindow
from qworker.components.receiving.housekeeping import Housekeeping
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.presence_report import PresenceReport
from qworker.components.receiving.revocations import Revocations
from qworker.components.request import Request
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.worker_lease import WorkerLease
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.process.crash_points import CRASHING, crash_point
from qworker.publishing.retry import RECONNECT

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

LONGEST_REST = 1.0


class Listener(ThreadComponent):
    """lease: of this worker. state: the requests that it has on lease."""

    name = "listener"

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        lease: WorkerLease,
        state: WorkerState,
        window: FetchWindow,
        intake: Intake,
        waiting: WaitingRequests,
        acks: AckBuffer,
        presence: PresenceReport,
    ) -> None:
        super().__init__(app.clock, on_crash)
        conf = app.conf
        self._consumer = app.broker.consumer
        self._lease = lease
        self._state = state
        self._window = window
        self._intake = intake
        self._waiting = waiting
        self._acks = acks
        self._presence = presence
        self._revocations = Revocations(app, state, waiting.revoked)
        self._housekeeping = Housekeeping(
            app.clock,
            self._consumer,
            conf.worker_lease_seconds,
            (conf.dead_letter_expires, conf.dead_letter_max),
            (conf.failed_task_expires, conf.failed_task_max),
        )
        self._eta_window: float = conf.worker_eta_window
        self._eta_limit: int = conf.worker_eta_task_limit
        self._retry_on_startup: bool = conf.broker_connection_retry_on_startup
        self._quiet = False  # set by quiet(), a flag
        self._give_up_at = 0.0  # set by stop()
        self.connection = ConnectionState()  # listener only, as all below
        self._news = True
        """Whether the broker may have told of something since the last turn."""
        self._backlog = True
        """Whether the broker may have something for us."""
        self._look_at: float | None = None
        """Epoch second at which a delayed message is to be fetched."""

    @property
    def unsettled(self) -> int:
        """How many settlements wait for the broker. Any thread."""
        return len(self._acks)

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

    def step(self, now: float) -> float | None:
        try:
            try:
                rest = self._turn(now)
            except LeaseLost as error:
                self._lost_lease(error)
                rest = 0.0
        except (BrokerUnavailable, ConfigurationError) as error:
            if isinstance(error, ConfigurationError) and not self._lease.generation:
                raise  # it never took us on
            self._news = True
            return self.connection.failed(error)
        self.connection.answered(now)
        self._housekeeping.answered(now)
        return rest

    def wait(self, seconds: float | None) -> None:
        if self.connection.failing is not None:
            super().wait(seconds)
            return
        try:
            prefetch = 0 if self._quiet else self._window.room()
            rest = LONGEST_REST if seconds is None else seconds
            self._news = self._consumer.wait(rest, prefetch) or self._news
        except (BrokerUnavailable, ConfigurationError, LeaseLost):
            self._news = True  # the next turn will find out, and knows what to do
            super().wait(0.05)

    def wake(self) -> None:
        self._consumer.wake()
        super().wake()

    def look(self) -> None:
        """See at the next turn what the broker has, though it may not have told of it yet. Listener."""
        self._news = True

    def _register(self) -> None:
        self._consumer.present(self._presence.text())
        self._lease.register()

    def _turn(self, now: float) -> float | None:
        if not self._lease.generation:  # the broker was not there yet when we started
            self._register()
        if self._news:
            self._news = False
            self._backlog = self._revocations.pending = True
        if self._consumer.prefetched:  # no journey to the broker keeps a child from what is here
            self._fetch()
        self._acks.collect(now)
        self._resolve_doubts(now)
        if self._acks.waiting:
            if self._acks.is_due(now) or self._window.idle() or self._quiet:
                self._acks.flush(self._lease.generation)
            elif (
                not self._revocations.pending
                and not self._wants_to_fetch()
                and now < min(self._housekeeping.due_at, self._lease.renew_at)
            ):
                # Only a few acks, and nothing else to do: they wait for others to come along.
                return self._acks.rest(now)
        if now >= self._lease.renew_at or (
            now >= self._housekeeping.due_at and self._presence.has_changed()
        ):  # once a second at most, while what others see of us changes
            self._consumer.present(self._presence.text())
            self._lease.renew(now)
        if now >= self._housekeeping.due_at:
            self._housekeep(now)
        if self._wants_to_fetch():
            self._fetch()
        if self._revocations.pending:
            self._revocations.read()
        if self._quiet:
            self._give_back_all()
        return self._rest(now)

    def _rest(self, now: float) -> float:
        """How long nothing will have to be done, unless something wakes us."""
        if self._wants_to_fetch() or (self._quiet and self._acks.waiting):
            return 0
        rest = max(0.0, self._housekeeping.due_at - now)
        if self._acks.waiting:
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
        room = min(self._eta_limit, self._window.fits) - self._waiting.scheduled
        delayed_limit = room if room > self._eta_limit // 2 else 0
        asked = self.clock.uptime()
        claim = self._consumer.lease(self._lease.registration.queues, limit, delayed_limit, self._eta_window)
        messages = claim.messages
        if messages:  # else it may not have looked; see Consumer.lease()
            self._lease.claimed(asked)
        if CRASHING and messages:
            crash_point("claimed")
        if claim.last_revocation is not None:
            self._revocations.told(claim.last_revocation)
        if self._revocations.pending:  # before anything of the claim may run
            # What was claimed must not be forgotten: if this fails, the end of the turn will say so.
            with suppress(BrokerUnavailable, ConfigurationError):
                self._revocations.read()
        large = self._window.measure(messages)
        generation, wall = self._lease.generation, self.clock.now()
        ready: list[Request] = []
        for leased in messages:
            request = self._intake.take(leased, generation, wall)
            if request is None:
                continue
            if leased.due is not None and leased.due > wall and request.failing is None:
                self._waiting.schedule(leased.due, request)
                delayed_limit -= 1
            else:
                self._window.weigh(request)
                ready.append(request)
        # A full catch means that there is more to be had; so does one that there was no room for.
        self._backlog = limit == 0 or len(messages) >= limit or large
        if prefetched:  # it came while we waited, and what fell due may have taken its place
            self._give_back(ready[limit:])
            del ready[limit:]
        self._waiting.add(ready)
        self._look_ahead(claim.next_due, wall, delayed_limit > 0)
        if not self._quiet:  # else all that has not started goes back at the end of the turn
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
        requests = self._waiting.end_failing(requests) if self._quiet else self._waiting.keep(requests)
        self._acks.give_back(requests)
        self._backlog = self._backlog or bool(requests)

    def _give_back_all(self) -> None:
        """The worker stops: what has not started is not to start here."""
        self._give_back(self._waiting.take_all())

    def _resolve_doubts(self, now: float) -> None:
        """Have run what was delivered again after its ack got lost; give up what was not, and all of it when
        the worker stops."""
        again, failed = self._acks.doubts.resolve(math.inf if self._quiet else now)
        self._waiting.add(again)
        self._waiting.give_up(failed)

    def _lost_lease(self, error: LeaseLost) -> None:
        logger.error("%s; what had not started is left to others", error, extra={"event": "lease-lost"})
        self._lease.lost()
        self._acks.lost_lease(self._waiting.lease_lost())
        self._register()
        self._news = True

    # -- now and then --

    def _housekeep(self, now: float) -> None:
        self._backlog = True  # look once in a while: who published may have died before it could notify
        if self._housekeeping.reclaim(now):
            self._revocations.pending = True
        self._window.reweigh()
        self._give_back_surplus()
        self._housekeeping.sweep(now)

    # -- the end --

    def quiet(self) -> None:
        self._quiet = True
        self._acks.quiet()
        self._consumer.wake()

    def stop(self, deadline: float = 0.0) -> None:
        """deadline: until then the broker may be waited for."""
        self._give_up_at = deadline
        super().stop(deadline)

    def closed(self) -> None:
        """The last settlements, then the store: the listener is the last to stop, because it owns the
        acks."""
        self._quiet = True
        self._resolve_doubts(self.clock.monotonic())
        self._give_back_all()
        self._acks.end(self._lease.generation, self.clock, lambda: self._give_up_at)
        for fate, ids in self._acks.left().items():
            logger.error("%d tasks %s: %s", len(ids), fate, " ".join(ids), extra={"event": "tasks-left"})
        try:
            self._consumer.deregister()
        except (BrokerUnavailable, LeaseLost, ConfigurationError) as error:
            logger.warning("the broker does not hear that we end: %s; it will notice", error)


# -- ConnectionState: how the broker answers this worker, and how long to let it be when it does not --
# Thread: written by the listener; single attributes are read by any.


class ConnectionState:
    def __init__(self) -> None:
        self.answered_at = 0.0
        """Monotonic time of the last turn in which the broker answered; 0.0 before the first."""
        self.failing: str | None = None
        """Why the broker did not answer at the last turn; None when it did."""
        self.failures = self.reconnects = 0
        """How many turns failed, and how often the broker answered again."""
        self._in_a_row = 0

    def failed(self, error: Exception) -> float:
        """The broker did not answer; return the seconds until it is to be asked again."""
        delay = RECONNECT.delay(self._in_a_row, random.random)
        self._in_a_row += 1
        self.failures += 1
        self.failing = str(error)
        if self._in_a_row & (self._in_a_row - 1) == 0:  # the 1st, 2nd, 4th, 8th… time
            logger.error(
                "the broker does not answer: %s; trying again in %.1f s",
                error,
                delay,
                extra={"event": "broker-lost"},
            )
        return max(delay, 0.05)

    def answered(self, now: float) -> None:
        """The broker answered in a turn that began at the monotonic time *now*."""
        if self._in_a_row:
            logger.warning(
                "the broker answers again after %d failures", self._in_a_row, extra={"event": "broker-back"}
            )
            self._in_a_row = 0
            self.failing = None
            self.reconnects += 1
        self.answered_at = now
