"""Listener: takes messages from the broker and settles them.

Comes from:  the broker, and the mailbox: settlements of ended requests.
Goes to:     EtaSchedule for messages due soon, ReadyQueue for those due now; settlements back to the broker.
Thread:      listener; owns the consumer, so every lease, ack, release and dead letter is made here.

If the store fails, the listener disconnects and retries without limit, with growing, random delays; running
tasks continue, and settlements wait. If the lease was lost because this process was frozen or the machine
slept, requests that have not started are dropped, because other workers have them now, and running ones are
settled if the store delivers them to us again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.components.receiving.ack_buffer import AckBuffer
from qworker.components.receiving.fetch_window import FetchWindow
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.presence_report import PresenceReport
from qworker.components.request import Request
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.worker_lease import WorkerLease
from qworker.control.client import verified
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.process.crash_points import crash_point
from qworker.process.randomness import RANDOM
from qworker.publishing.retry import RECONNECT
from qworker.transports.lease import NO_ROOM, Consumer, RowsLocked

if TYPE_CHECKING:
    from qworker.app import QWorker


ROUND_SECONDS = 1.0
SWEEP_SECONDS = 60.0
USUAL_SILENCE = 2.0
"""Maximum seconds between two turns of a healthy listener, which waits one at most."""


class Housekeeping:
    """Periodic work for all workers: reclaims messages of dead workers, and deletes old entries.

    A worker is dead when its process has ended or its lease has expired. A worker that was itself
    disconnected or frozen waits for the duration of a lease before it reclaims, because the others may have
    been disconnected too.

    dead_limits: the seconds for which dead letters are kept, and their maximum number per queue.
    failed_limits: the same for failed tasks.
    """

    def __init__(
        self,
        clock: Clock,
        consumer: Consumer,
        lease_seconds: float,
        dead_limits: tuple[float, int],
        failed_limits: tuple[float, int],
    ) -> None:
        self._clock = clock
        self._consumer = consumer
        self._lease_seconds = lease_seconds
        self._dead_limits = dead_limits
        self._failed_limits = failed_limits
        self.due_at = 0.0
        """Monotonic time of the next round, as all times here."""
        self._sweep_at = 0.0
        self._answered_at = -math.inf
        self._believe_at = 0.0
        """The time from which expired leases of other workers count."""

    def answered(self, now: float) -> None:
        """Record that the broker answered in a turn that began at *now*."""
        self._answered_at = now

    def reclaim(self, now: float) -> bool:
        """Put back the messages of dead workers; return whether any worker is dead."""
        self.due_at = now + ROUND_SECONDS
        found = self._consumer.reclaim(silent=self._others_could_speak(now))
        for dead in found:
            logger.warning(
                "worker %s is dead: %d of its messages are back, %d of them were running",
                dead.name,
                dead.returned,
                dead.counted,
                extra={"event": "worker-dead"},
            )
        return bool(found)

    def _others_could_speak(self, now: float) -> bool:
        now = max(now, self._clock.monotonic())  # this turn may have taken long
        if now - self._answered_at > max(self._lease_seconds / 3, USUAL_SILENCE):
            self._believe_at = now + self._lease_seconds
        return now >= self._believe_at

    def sweep(self, now: float) -> None:
        """Delete old and surplus entries, once a minute."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS  # if it fails, the worker goes on without
            swept = self._consumer.sweep("dead", *self._dead_limits)
            swept += self._consumer.sweep("failed", *self._failed_limits)
            if swept:  # it sweeps in portions
                self._sweep_at = now + ROUND_SECONDS


class RevocationReader:
    """Reads revoked tasks from the broker, when there may be new ones, and before claimed messages can run.

    on_revoked: called with each affected request in this worker.
    """

    def __init__(self, app: QWorker, state: WorkerState, on_revoked: Callable[[Request], None]) -> None:
        self._broker = app.broker.revocations
        self._signer = app.signer
        self._state = state
        self._on_revoked = on_revoked
        self._cursor = 0
        self.pending = True
        """Whether there may be unread revocations."""

    def note_last(self, last: int) -> None:
        """Record *last*, the number of the newest revocation in the broker."""
        self.pending = last > self._cursor

    def read(self) -> None:
        """Read new revocations from the broker."""
        if self._broker is None:
            self.pending = False
            return
        self._cursor, revocations = self._broker.consumer.revoked_since(self._cursor)
        self.pending = False
        for given in revocations:
            revocation = verified(self._signer, given)
            if revocation is None:
                logger.warning(
                    "task %.80s is not revoked: the revocation is not signed with a security_key",
                    given.task_id,
                )
                continue
            for request in self._state.revoke(revocation):
                self._on_revoked(request)


logger = logging.getLogger(__name__)

LONGEST_REST = 1.0


class Listener(ThreadComponent):
    """lease: of this worker. state: the requests it holds. store_left: see ResultWriter.store_left()."""

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
        store_left: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(app.clock, on_crash)
        self._store_left = store_left
        conf = app.conf
        self._consumer = app.broker.consumer
        self._lease = lease
        self._window = window
        self._intake = intake
        self._waiting = waiting
        self._acks = acks
        self._presence = presence
        self._revocations = RevocationReader(app, state, waiting.revoked)
        self._housekeeping = Housekeeping(
            app.clock,
            self._consumer,
            conf.worker_lease_seconds,
            (conf.dead_letter_expires, conf.dead_letter_max),
            (conf.failed_task_expires, conf.failed_task_max),
        )
        self._retry_on_startup: bool = conf.broker_connection_retry_on_startup
        self._give_up_at = 0.0  # set by stop()
        self.connection = ConnectionState()  # listener only, as all below
        self._news = True
        """Whether the broker may have sent a notification since the last turn."""
        self._wait_failed = False
        """Whether the lease may be lost, because waiting for notifications failed."""
        self._poll_at = 0.0
        """Monotonic time at which messages are fetched even without a notification."""
        self._plan = FetchPlan(window, conf.worker_eta_window, conf.worker_eta_task_limit)

    @property
    def look_at(self) -> float | None:
        """Epoch second at which the next delayed message is fetched; None if the broker has no delayed
        message. Any thread."""
        return self._plan.look_at

    @property
    def unsettled(self) -> int:
        """The number of settlements that wait for the broker. Any thread."""
        return len(self._acks)

    def left(self) -> dict[str, list[str]]:
        """Return the tasks whose settlements did not reach the broker; see AckBuffer.left(). Any thread."""
        return self._acks.left()

    # -- the thread --

    def opened(self) -> None:
        """Register, to report at the start errors that waiting cannot fix, such as a wrong password."""
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
                rest = self._turn_or_housekeep(now)
            except LeaseLost as error:
                self._lost_lease(error)
                rest = 0.0
        except (BrokerUnavailable, ConfigurationError) as error:
            if isinstance(error, ConfigurationError) and not self._lease.generation:
                raise  # at the first registration: waiting cannot fix it
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
            prefetch = NO_ROOM if self._acks.is_quiet else self._window.room() or NO_ROOM
            rest = LONGEST_REST if seconds is None else seconds
            self._news = self._consumer.wait(rest, prefetch) or self._news
        except (BrokerUnavailable, ConfigurationError, LeaseLost) as error:
            self._news = True  # the next turn meets the same error, and handles it
            self._wait_failed = self._wait_failed or not isinstance(error, RowsLocked)
            super().wait(0.05)

    def wake(self) -> None:
        self._consumer.wake()
        super().wake()

    def look(self) -> None:
        """Query the broker in the next turn, even without a notification. Listener thread."""
        self._news = True

    def _register(self) -> None:
        self._presence.publish()
        self._lease.register()

    def _turn_or_housekeep(self, now: float) -> float | None:
        """Do a turn. If it fails again, or meets rows that another worker has locked, do what cannot wait:
        reclaiming ends the other's session, if it is frozen."""
        try:
            return self._turn(now)
        except (BrokerUnavailable, ConfigurationError) as error:
            now = self.clock.monotonic()
            locked = isinstance(error, RowsLocked)
            if locked:
                self._housekeeping.answered(now)
            if self._lease.is_registered and (locked or self.connection.failing is not None):
                with suppress(BrokerUnavailable, ConfigurationError):
                    if now >= self._housekeeping.due_at:
                        self._housekeep(now)
                with suppress(BrokerUnavailable, ConfigurationError):
                    if self._revocations.pending:
                        self._revocations.read()
            raise

    def _turn(self, now: float) -> float | None:
        if not self._lease.is_registered:  # the last attempt failed
            self._register()
        if self._wait_failed:  # nothing may be sent under a lost lease: it would be in doubt
            self._lease.renew(now)
            self._wait_failed = False
        if self._news:
            self._news = False
            self._plan.backlog = self._revocations.pending = True
        # Pass prefetched messages to a child before any call of the broker.
        if self._consumer.prefetched:
            self._fetch()
        self._acks.collect(now)
        self._resolve_doubts(now)
        if self._acks.waiting:
            if self._acks.is_due(now) or self._window.idle() or self._acks.is_quiet:
                if self.connection.failing is not None and now >= self._lease.renew_at:
                    with suppress(RowsLocked):  # flushing may fail again, and must not cost the lease
                        self._lease.renew(now)
                self._acks.flush(self._lease.generation)
            elif (
                not self._revocations.pending
                and not self._wants_to_fetch()
                and now < min(self._housekeeping.due_at, self._lease.renew_at)
            ):
                # There are only a few acks, which wait for more.
                return self._acks.rest(now)
        if now >= self._lease.renew_at or (
            now >= self._housekeeping.due_at and self._presence.has_changed()
        ):  # also renewed when the presence has changed, at most once a second
            self._presence.publish()
            self._lease.renew(now)
        if now >= self._housekeeping.due_at:
            self._housekeep(now)
        if self._wants_to_fetch():
            self._fetch()
        if self._revocations.pending:
            self._revocations.read()
        if self._acks.is_quiet:
            self._give_back_all()
        return self._rest(now)

    def _rest(self, now: float) -> float:
        """Return the seconds until the next turn, unless the listener is woken."""
        if self._wants_to_fetch() or (self._acks.is_quiet and self._acks.waiting):
            return 0
        rest = max(0.0, self._housekeeping.due_at - now)
        if self._acks.waiting:
            rest = min(rest, self._acks.rest(now))
        if self._plan.look_at is not None and not self._acks.is_quiet:
            rest = min(rest, max(0.001, self._plan.look_at - self.clock.now()))
        return min(rest, LONGEST_REST)

    # -- fetching --

    def _wants_to_fetch(self) -> bool:
        """Whether there may be messages, and room for them."""
        return not self._acks.is_quiet and self._plan.wants(self.clock)

    def _fetch(self) -> None:
        plan, prefetched, limit = self._plan, self._consumer.prefetched, max(0, self._window.room())
        delayed_limit = plan.delayed_limit(self._waiting.scheduled)
        asked = self.clock.uptime()
        claim = self._consumer.lease(self._lease.registration.queues, limit, delayed_limit, plan.eta_window)
        messages = claim.messages
        if messages:  # otherwise it may not have checked the lease; see Consumer.lease()
            self._lease.claimed(asked)
            crash_point("claimed")
        if claim.last_revocation is not None:
            self._revocations.note_last(claim.last_revocation)
        if self._revocations.pending:  # before any claimed message can run
            # An error must not lose the claimed messages; the end of the turn reports it.
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
        # After a full batch, or without room, there may be more.
        plan.backlog = limit == 0 or len(messages) >= limit or large
        if prefetched:  # fetched during the wait; requests that fell due may have taken the room
            self._give_back(ready[limit:])
            del ready[limit:]
        self._waiting.add(ready)
        plan.look_ahead(claim.next_due, wall, delayed_limit > 0)
        if not self._acks.is_quiet:  # otherwise the end of the turn gives back all waiting requests
            self._give_back_surplus()

    def _give_back_surplus(self) -> None:
        """Give back requests that turned out to be too much work."""
        self._give_back(self._window.surplus())

    def _give_back(self, requests: Sequence[Request]) -> None:
        requests = requests if self._acks.is_quiet else self._waiting.keep(requests)
        self._acks.give_back(requests)
        self._plan.backlog = self._plan.backlog or bool(requests)

    def _give_back_all(self) -> None:
        """Give back all requests that have not started, because the worker stops."""
        self._give_back(self._waiting.take_all())
        self._acks.give_back(self._waiting.take_found_again())

    def _resolve_doubts(self, now: float) -> None:
        """Run requests in doubt that were delivered again. Give up the others after a while, or at once if
        the worker stops."""
        again, failed = self._acks.doubts.resolve(math.inf if self._acks.is_quiet else now)
        self._waiting.add(again)
        self._waiting.give_up(failed)

    def _lost_lease(self, error: LeaseLost) -> None:
        logger.error(
            "%s; tasks that had not started are left to other workers", error, extra={"event": "lease-lost"}
        )
        self._lease.lost()
        self._acks.lost_lease(self._waiting.lease_lost())
        self._register()
        self._news = True

    # -- periodic work --

    def _housekeep(self, now: float) -> None:
        if now >= self._poll_at:  # a publisher may have died before its notification
            self._poll_at = now + self._consumer.poll_seconds
            self._plan.backlog = True
        if self._housekeeping.reclaim(now):
            self._revocations.pending = True
        self._window.reweigh()
        self._give_back_surplus()
        self._housekeeping.sweep(now)

    # -- the end --

    def quiet(self) -> None:
        self._acks.quiet()
        self._consumer.wake()

    def stop(self, deadline: float = 0.0) -> None:
        """Stop. deadline: the monotonic time until which to wait for the broker."""
        self._give_up_at = deadline
        super().stop(deadline)

    def _put_back(self) -> None:
        """Give back requests whose acks were confirmed meanwhile, and end those in doubt."""
        self._resolve_doubts(self.clock.monotonic())
        self._give_back_all()
        self._acks.give_back(self._waiting.end_reports())
        self._store_left()

    def closed(self) -> None:
        """Send the last settlements, then deregister."""
        self._acks.end(self._lease.generation, lambda: self._give_up_at, self._put_back)
        for fate, ids in self._acks.left().items():
            logger.error("%d tasks %s: %s", len(ids), fate, " ".join(ids), extra={"event": "tasks-left"})
        try:
            self._consumer.deregister()
        except (BrokerUnavailable, LeaseLost, ConfigurationError) as error:
            logger.warning("the worker could not be deregistered: %s; its lease will expire", error)


# -- FetchPlan: when to fetch messages, and how many that are not due yet --
# Thread: the listener's.


class FetchPlan:
    """eta_window: the seconds before their due time at which delayed messages are fetched. eta_limit: the
    maximum number of them in this worker."""

    def __init__(self, window: FetchWindow, eta_window: float, eta_limit: int) -> None:
        self._window = window
        self.eta_window = eta_window
        self._eta_limit = eta_limit
        self.backlog = True
        """Whether the broker may have messages for us."""
        self.look_at: float | None = None
        """Epoch second at which the next delayed message is fetched."""

    def wants(self, clock: Clock) -> bool:
        """Return whether there may be messages, and room for them."""
        if self.look_at is not None and self.look_at <= clock.now():
            return True
        return self.backlog and self._window.room() > 0

    def delayed_limit(self, scheduled: int) -> int:
        """Return how many delayed messages may be fetched when *scheduled* are here: 0 until half of the
        limit is free, so that they are fetched in batches."""
        room = min(self._eta_limit, self._window.fits) - scheduled
        return room if room > self._eta_limit // 2 else 0

    def look_ahead(self, due: float | None, wall: float, room: bool) -> None:
        """Decide when to fetch the next delayed message, due at *due*: before that if the schedule has
        room."""
        if due is None:
            self.look_at = None
        elif room:
            self.look_at = due - self.eta_window
        else:
            # Without room, not before it is due.
            self.look_at = max(due, wall + 0.01) if due > wall else wall + 0.01


# -- ConnectionState: whether the broker answers, and the delay before the next attempt --
# Thread: written by the listener; any may read single attributes.


class ConnectionState:
    def __init__(self) -> None:
        self.answered_at = 0.0
        """Monotonic time of the last turn in which the broker answered; 0.0 before the first."""
        self.failing: str | None = None
        """Why the broker did not answer in the last turn; None if it did."""
        self.failures = self.reconnects = 0
        """The number of failed turns, and of recoveries after them."""
        self._in_a_row = 0

    def failed(self, error: Exception) -> float:
        """Record that the broker did not answer; return the seconds until the next attempt."""
        delay = RECONNECT.delay(self._in_a_row, RANDOM.random)
        self._in_a_row += 1
        self.failures += 1
        self.failing = str(error)
        if self._in_a_row & (self._in_a_row - 1) == 0:  # log the 1st, 2nd, 4th, 8th… failure
            logger.error(
                "the broker does not answer: %s; trying again in %.1f s",
                error,
                delay,
                extra={"event": "broker-lost"},
            )
        return max(delay, 0.05)

    def answered(self, now: float) -> None:
        """Record that the broker answered in a turn that began at the monotonic time *now*."""
        if self._in_a_row:
            logger.warning(
                "the broker answers again after %d failures", self._in_a_row, extra={"event": "broker-back"}
            )
            self._in_a_row = 0
            self.failing = None
            self.reconnects += 1
        self.answered_at = now
