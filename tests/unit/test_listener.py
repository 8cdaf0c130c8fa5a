"""The listener, step by step: fetching, flushing acks, faults, presence and shutdown."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import pytest

from qworker import __version__
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.receiving.ack_buffer import AGAIN, DOUBTFUL, LOST, UNSTORED, AckBuffer, FlushLimits
from qworker.components.receiving.fetch_window import FetchWindow
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.listener import Listener
from qworker.components.receiving.presence_report import PresenceReport
from qworker.components.receiving.settlements import PORTION_BYTES, Settlements
from qworker.components.request import Failing, Request
from qworker.components.shutdown import DRAINING, RUNNING
from qworker.components.waiting.early_acks import EarlyAcks
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import ScheduleController
from qworker.components.worker_lease import Registration, WorkerLease
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.tasks.outcome import LEASE_EXPIRED, REVOKED, TIME_LIMIT, Outcome
from qworker.tasks.outcome import LOST as KILLED
from qworker.testing import FakeClock, InlinePool, MemoryStore, StepWorker
from qworker.transports.lease import (
    NO_ROOM,
    Ack,
    Claim,
    DeadLetter,
    Envelope,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    RowsLocked,
    Settlement,
    Store,
)
from qworker.transports.presence import MAX_RUNNING, Presence, RunningTask, from_text, to_text
from tests.support.logging_events import logged
from tests.support.rooms import Rooms, tags

ROW = ("id", "SUCCESS", b"{}", None)


class ListenerRig:
    """A listener without a thread, over a broker in memory; pool and mediator are played by the test."""

    def __init__(
        self, *, prefetch: int = 1, store: MemoryStore | type[MemoryStore] = MemoryStore, **settings: Any
    ) -> None:
        self.rooms = Rooms(store=store, task_unknown_delays=(30.0,), **settings)
        self.clock, self.app, self.store = self.rooms.clock, self.rooms.app, self.rooms.store
        conf = self.app.conf
        crash: Callable[[str, BaseException], None] = lambda name, error: None  # noqa: E731
        self.state = WorkerState()
        self.ready = ReadyQueue()
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(self.store.consumer.wake)
        self.settler = Settler(self.app, self.ready, self.mailbox)
        self.pool = InlinePool(
            self.app,
            PoolSettings(4, "w@h"),
            self.settler.ended,
            self.settler.started,
            lambda: None,
            on_demand=True,
        )
        self.early = EarlyAcks(self.mailbox, self.ready)
        self.schedule = ScheduleController(self.clock, crash, self.ready, self.store.consumer.wake)
        self.lease = WorkerLease(
            self.clock,
            self.store,
            Registration("w@h", ("celery",), 2),
            conf.worker_lease_seconds,
            self.ready.wake,
        )
        self.idle = 0
        mediator: Any = self
        waiting = WaitingRequests(self.ready, self.schedule, mediator, self.settler.ended)
        acks = AckBuffer(
            self.store,
            self.mailbox,
            Settlements(self.app, self.store.consumer),
            self.state,
            self.early,
            FlushLimits(conf.worker_ack_flush_seconds, conf.worker_ack_flush_count),
            self.app.clock,
        )
        self.phase = RUNNING
        self.listener = Listener(
            self.app,
            crash,
            self.lease,
            self.state,
            FetchWindow(self.pool, self.ready, 2, prefetch, lambda: 0),
            Intake(self.app, self.state, self.settler.settle, self.settler.refuse),
            waiting,
            acks,
            PresenceReport(
                self.clock,
                self.store.presence,
                lambda: self.phase,
                self.lease,
                self.pool,
                waiting,
                acks,
                self.state,
            ),
        )
        self.listener.opened()

    def offer(self, requests: list[Request]) -> list[Request]:
        """Act as the mediator: ``idle`` processes take a request each, and only record it."""
        taken, rest = requests[: self.idle], requests[self.idle :]
        self.idle -= len(taken)
        self.given_at_once = [request.tag for request in taken]
        return rest

    def push(self, count: int, task: str = "add", **fields: Any) -> None:
        fields.setdefault("id", "pushed")
        self.store.sender.push([self.rooms.envelope(task, number, **fields) for number in range(count)])

    def step(self) -> float | None:
        """Wait without blocking, then take one step."""
        self.listener.wait(0)
        return self.listener.step(self.clock.monotonic())

    def run_until_idle(self, most: int = 50) -> float:
        """Step until the listener would wait; return for how long."""
        for _ in range(most):
            rest = self.step()
            assert rest is not None
            if rest > 0:
                return rest
        raise AssertionError("it never rests")

    def pass_time(self, seconds: int) -> None:
        """Advance the clock, with steps every second, as in a healthy worker."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.run_until_idle()

    def take(self, count: int = 99) -> list[Request]:
        """Take what the mediator would take, without giving it to the pool."""
        return self.ready.get_many(Slots(count, count))

    def run(self, count: int = 99) -> list[Request]:
        """Have the pool start up to ``count`` requests."""
        requests = self.take(count)
        assert self.pool.submit(requests) == []
        self.pool.started.extend(requests)
        return requests

    def post(self, request: Request, settlement: Settlement) -> None:
        self.mailbox.post_many([SettlementOrder(request, settlement)])

    def end(self, seconds: float = 0.0) -> None:
        """Quiet, stop and close the listener, which may take *seconds* to settle."""
        self.listener.quiet()
        self.listener.stop(self.clock.monotonic() + seconds)
        self.listener.closed()

    def waiting(self) -> int:
        """Return how many messages are in the broker, leased or not."""
        return sum(info.ready + info.delayed + info.leased for info in self.store.admin.queues())


# -- fetching --


def test_fetch_is_limited_to_the_free_room_in_the_window() -> None:
    rig = ListenerRig()
    rig.push(10)
    rig.run_until_idle()
    assert len(rig.ready) == 4
    assert len(rig.store.held) == 4
    rig.run_until_idle()
    assert len(rig.ready) == 4


def test_free_room_triggers_a_fetch_without_a_publish() -> None:
    rig = ListenerRig()
    rig.push(6)
    rig.run_until_idle()
    for request in rig.take():
        rig.post(request, Ack(request.tag))
    rig.run_until_idle()
    assert len(rig.ready) == 2


def test_empty_broker_is_not_polled_until_a_message_is_published() -> None:
    class CountingStore(MemoryStore):
        asked = 0

        def lease(self, *given: Any) -> Claim:
            self.asked += 1
            return super().lease(*given)

    rig = ListenerRig(store=(store := CountingStore()))
    rig.run_until_idle()
    before = store.asked
    rig.run_until_idle()
    assert store.asked == before
    rig.push(1)
    rig.run_until_idle()
    assert store.asked > before
    assert len(rig.ready) == 1


def test_requests_are_in_the_ledger_once_received() -> None:
    rig = ListenerRig()
    rig.push(2)
    rig.run_until_idle()
    assert set(tags(rig.state.requests.values())) == set(tags(rig.take()))


def test_highest_priority_is_fetched_first() -> None:
    rig = ListenerRig()
    rig.push(5)
    rig.push(1, priority=9)
    rig.run_until_idle()
    assert rig.take(1)[0].leased.priority == 9


def test_load_of_fetched_requests_is_their_expected_runtime() -> None:
    rig = ListenerRig()
    rig.pool.runtimes.learn("add", 0.002)
    rig.push(1)
    rig.run_until_idle()
    assert rig.ready.load == rig.pool.expected_runtime("add")


def test_idle_listener_checks_for_dead_workers_every_second() -> None:
    assert 0 < ListenerRig().run_until_idle() <= 1.0


def test_worker_full_of_async_tasks_still_fetches() -> None:
    rig = ListenerRig()
    rig.push(10, "nap")
    rig.run_until_idle()
    rig.run()
    rig.run_until_idle()
    assert len(rig.ready) == 4


# -- prefetched messages of slow tasks --


def test_prefetched_messages_of_slow_tasks_are_released() -> None:
    rig = ListenerRig()
    rig.pool.runtimes.learn("boom", 0.0001)
    rig.push(100)
    rig.run_until_idle()
    assert len(rig.ready) > 50
    rig.pool.runtimes.learn("add", 0.9)
    rig.clock.advance(1)
    rig.run_until_idle()
    rig.run_until_idle()
    assert len(rig.ready) == 4
    assert len(rig.store.held) == len(rig.state.requests) == 4
    assert rig.waiting() == 100


def test_messages_waiting_behind_long_tasks_are_released() -> None:
    rig = ListenerRig()
    rig.push(6)
    rig.run_until_idle()
    assert len(rig.run(2)) == 2
    assert len(rig.ready) == 2
    rig.pool.busy_for_long = 2
    rig.clock.advance(1)
    rig.run_until_idle()
    rig.run_until_idle()
    assert (len(rig.ready), len(rig.store.held), rig.waiting()) == (0, 2, 6)
    rig.pool.busy_for_long = 1
    rig.pool.held.pop()
    rig.pool.runtimes.learn("add", 22.0)
    rig.clock.advance(1)
    rig.run_until_idle()
    assert len(rig.ready) == 1, "of long tasks none is fetched ahead any more"


def test_surplus_acked_early_is_not_released() -> None:
    rig = ListenerRig()
    requests = rig.rooms.requests(6, "once", first=1000)
    for request in requests:
        request.acked = True
        rig.state.enter(request)
    rig.ready.put_many(requests)
    rig.pool.runtimes.learn("once", 1.0)
    rig.run_until_idle()
    assert sorted(tags(rig.ready.clear())) == [1000, 1001, 1002, 1003, 1004, 1005]
    assert rig.store.settled == []


# -- the ETA window --


def test_message_due_beyond_the_eta_window_stays_in_the_broker() -> None:
    rig = ListenerRig(worker_eta_window=5)
    rig.push(1, due=rig.clock.now() + 60)
    assert rig.run_until_idle() <= 1.0
    assert (len(rig.schedule.schedule), len(rig.ready), rig.store.held) == (0, 0, set())


def test_message_due_within_the_eta_window_takes_no_slot() -> None:
    rig = ListenerRig(worker_eta_window=5)
    rig.push(3, due=rig.clock.now() + 4)
    rig.push(4)
    rig.run_until_idle()
    assert (len(rig.schedule.schedule), len(rig.ready)) == (3, 4)


def test_message_is_fetched_once_it_enters_the_eta_window() -> None:
    rig = ListenerRig(worker_eta_window=5)
    rig.push(1, due=rig.clock.now() + 60)
    rig.run_until_idle()
    rig.clock.advance(54.5)
    rest = rig.run_until_idle()
    assert len(rig.schedule.schedule) == 0
    assert rest <= 0.5  # it wakes when the message enters the window
    rig.clock.advance(0.5)
    rig.run_until_idle()
    assert len(rig.schedule.schedule) == 1
    assert len(rig.ready) == 0
    rig.clock.advance(5)
    rig.schedule.step(rig.clock.monotonic())
    assert len(rig.ready) == 1


def test_schedule_is_bounded_by_worker_eta_task_limit() -> None:
    rig = ListenerRig(worker_eta_window=5, worker_eta_task_limit=10)
    rig.push(30, due=rig.clock.now() + 4)
    rig.run_until_idle()
    assert len(rig.schedule.schedule) == 10


def test_messages_beyond_the_schedule_limit_run_when_due() -> None:
    rig = ListenerRig(worker_eta_window=5, worker_eta_task_limit=2)
    rig.push(4, due=rig.clock.now() + 4)
    rig.run_until_idle()
    rig.clock.advance(3.9)
    assert 0 < rig.run_until_idle() <= 0.1
    assert len(rig.ready) == 0
    rig.clock.advance(0.1)
    rig.schedule.step(rig.clock.monotonic())
    rig.run_until_idle()
    assert len(rig.ready) == 4


def test_due_message_is_fetched_when_the_schedule_is_full() -> None:
    rig = ListenerRig(worker_eta_window=5, worker_eta_task_limit=1)
    rig.push(2, due=rig.clock.now() + 1)
    rig.push(4)
    rig.run_until_idle()
    rig.clock.advance(2)
    for request in rig.take():
        rig.post(request, Ack(request.tag))
    rig.run_until_idle()
    assert len(rig.ready) >= 1


# -- settlements --


def test_acks_are_batched_until_the_flush_interval_ends() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0.005)
    rig.push(4)
    rig.run_until_idle()
    one, two, *_ = rig.run()
    rig.post(one, Ack(one.tag))
    assert rig.run_until_idle() == pytest.approx(0.005)
    assert rig.store.settled == []
    rig.clock.advance(0.004)
    rig.post(two, Ack(two.tag))
    rig.run_until_idle()
    assert rig.store.settled == []
    rig.clock.advance(0.001)
    rig.run_until_idle()
    assert rig.store.settled == [Ack(one.tag), Ack(two.tag)]


def test_further_acks_do_not_wake_the_listener() -> None:
    rig = ListenerRig()
    rig.push(4)
    rig.run_until_idle()
    one, two, *_ = rig.run()
    rig.post(one, Ack(one.tag))
    rig.run_until_idle()
    assert rig.mailbox.armed
    rig.run_until_idle()
    rig.post(two, Ack(two.tag))
    assert not rig.store.consumer.wait(0)  # neither rung nor woken


def test_acks_are_flushed_at_the_flush_count() -> None:
    rig = ListenerRig(worker_ack_flush_count=3, worker_ack_flush_seconds=1)
    rig.push(4)
    rig.run_until_idle()
    requests = rig.run(4)
    for request in requests[:2]:
        rig.post(request, Ack(request.tag))
    rig.run_until_idle()
    assert rig.store.settled == []
    rig.post(requests[2], Ack(requests[2].tag))
    rig.run_until_idle()
    assert len(rig.store.settled) == 3


def test_last_ack_of_an_idle_worker_is_flushed_at_once() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=1)
    rig.push(1)
    rig.run_until_idle()
    rig.run()
    rig.pool.run()
    rig.step()
    assert [type(settlement) for settlement in rig.store.settled] == [Ack]


def test_acks_are_flushed_before_the_next_fetch() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=1)
    rig.push(6)
    rig.run_until_idle()
    for request in rig.take():
        rig.post(request, Ack(request.tag))
    rig.step()
    assert len(rig.store.settled) == 4
    assert len(rig.ready) == 2


def test_settled_requests_leave_the_ledger_and_are_counted() -> None:
    rig = ListenerRig()
    rig.push(4)
    rig.run_until_idle()
    finished, returned, rejected, stored = rig.take()
    rig.post(finished, Ack(finished.tag, ROW))
    rig.post(returned, Release(returned.tag, rig.clock.now() + 99))
    rig.post(rejected, DeadLetter(rejected.tag, "why"))
    stored.acked = True
    rig.mailbox.post(SettlementOrder(stored, None))
    rig.run_until_idle()
    assert rig.state.requests == {}
    assert rig.state.totals == {"finished": 2, "returned": 1, "dead_lettered": 1}
    assert rig.store.results == {"id": ROW}


def test_lost_and_requeued_messages_have_separate_totals() -> None:
    rig = ListenerRig()
    rig.push(2)
    rig.run_until_idle()
    died, requeued = rig.take()
    rig.post(died, Release(died.tag, rig.clock.now() + 99, counted=True))
    rig.post(requeued, Release(requeued.tag, rig.clock.now() + 99, requeued=True))
    rig.run_until_idle()
    assert rig.state.totals == {"lost": 1, "requeued": 1}


def test_request_stays_in_the_ledger_after_storing_started() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    rig.settler.started([(request, ("id", "STARTED", b"{}", None))])
    rig.run_until_idle()
    assert rig.store.settled == [Store(("id", "STARTED", b"{}", None))]
    assert rig.state.requests == {request.key: request}
    assert rig.state.totals == {}


def test_early_acked_task_starts_after_its_ack_is_confirmed() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    assert rig.early.take() == []
    rig.run_until_idle()
    assert rig.store.settled == [Ack(request.tag)]
    assert (request.acked, tags(rig.early.take())) == (True, [request.tag])
    assert rig.state.requests == {request.key: request}


# -- faults --


def test_unavailable_broker_is_retried_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.store.away = True
    with caplog.at_level(logging.ERROR):
        pauses = [rig.listener.step(rig.clock.monotonic()) for _ in range(40)]
    assert all(0.05 <= (pause or 0) <= 10 for pause in pauses)
    assert max(pause or 0 for pause in pauses) > 1  # with jitter, but not all 40 are short
    assert "broker-lost" in logged(caplog)
    assert len(caplog.records) < 10  # fewer than one line per attempt
    rig.store.away = False
    rig.run_until_idle()
    assert len(rig.ready) == 1


def test_settlements_wait_for_an_unavailable_broker() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.take()
    rig.store.away = True
    rig.post(request, Ack(request.tag))
    rig.listener.step(rig.clock.monotonic())
    assert rig.state.requests == {request.key: request}
    rig.store.away = False
    rig.run_until_idle()
    assert rig.store.settled == [Ack(request.tag)]
    assert rig.state.requests == {}


def test_answered_at_is_the_last_step_with_an_answer() -> None:
    rig = ListenerRig()
    rig.run_until_idle()
    at = rig.listener.connection.answered_at
    assert at == rig.clock.monotonic()
    rig.clock.advance(1)
    rig.store.away = True
    rig.listener.step(rig.clock.monotonic())
    assert rig.listener.connection.answered_at == at


def lose_lease(rig: ListenerRig) -> MemoryStore:
    """Let another worker reclaim this one's messages."""
    other = rig.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    rig.clock.advance(20)
    assert other.consumer.reclaim()
    return other


def test_lost_lease_drops_requests_that_have_not_started() -> None:
    rig = ListenerRig(worker_eta_window=60)
    rig.push(4)
    rig.push(2, due=rig.clock.now() + 50)
    rig.run_until_idle()
    running = rig.run(2)
    assert (len(rig.ready), len(rig.schedule.schedule)) == (2, 2)
    other = lose_lease(rig)
    taken = other.consumer.lease(["celery"], 99, 99, 60).messages
    assert len(taken) == 6
    rig.run_until_idle()
    assert (len(rig.ready), len(rig.schedule.schedule)) == (0, 0)
    assert set(tags(rig.state.requests.values())) == set(tags(running))
    assert len(rig.store.held) == 0


def test_listener_continues_with_a_new_lease_after_losing_one() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    lose_lease(rig)
    rig.run_until_idle()
    rig.run_until_idle()
    (request,) = rig.take()
    assert request.leased.redelivered
    rig.post(request, Ack(request.tag))
    rig.run_until_idle()
    assert rig.waiting() == 0


def test_run_that_ended_after_lease_loss_does_not_settle_the_new_delivery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    other = lose_lease(rig)
    (theirs,) = other.consumer.lease(["celery"], 9).messages
    rig.run_until_idle()
    rig.pool.held.clear()
    rig.post(request, Ack(request.tag, ROW))
    rig.run_until_idle()
    assert rig.store.results == {}
    assert other.held == {theirs.tag}
    assert "task-lease-lost" in logged(caplog)
    assert rig.state.requests == {}


def test_redelivered_message_of_a_finished_run_is_acked_without_running() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    other = lose_lease(rig)
    other.consumer.lease(["celery"], 9)
    rig.run_until_idle()
    rig.pool.held.clear()
    rig.post(request, Ack(request.tag, ROW))
    rig.run_until_idle()
    other.consumer.deregister()
    rig.run_until_idle()
    rig.run_until_idle()
    assert (len(rig.ready), rig.waiting()) == (0, 0)
    assert rig.store.results == {"id": ROW}


def test_message_redelivered_during_its_run_is_settled_by_that_run() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    lose_lease(rig)
    rig.run_until_idle()  # the lease is lost, and the message fetched again
    rig.run_until_idle()
    assert len(rig.ready) == 0
    assert rig.store.held == {request.tag}
    rig.pool.held.clear()
    rig.post(request, Ack(request.tag))
    rig.run_until_idle()
    assert rig.waiting() == 0


def test_early_ack_after_lease_loss_prevents_the_run() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    other = lose_lease(rig)
    assert len(other.consumer.lease(["celery"], 9).messages) == 1  # and will run it
    rig.early.ask([request], 0.0)
    rig.run_until_idle()
    assert (len(rig.early), len(rig.ready), request.acked, rig.state.requests) == (0, 0, False, {})


def test_broker_error_during_wait_is_retried() -> None:
    """The next step reports the error, if it persists."""

    class FailingStore(MemoryStore):
        errors: ClassVar = [BrokerUnavailable("the connection fell"), LeaseLost("taken for dead")]

        def wait(self, timeout: float, prefetch: int = 0) -> bool:
            if self.errors:
                raise self.errors.pop()
            return super().wait(timeout)

    rig = ListenerRig(store=(store := FailingStore()))
    rig.push(1)
    rig.step()
    rig.step()
    assert (store.errors, len(rig.ready)) == ([], 1)


class EagerStore(MemoryStore):
    """Leases as many messages as it may prefetch while it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[int] = []
        self.taken: list[Leased] = []

    @property
    def prefetched(self) -> bool:
        return bool(self.taken)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self.expected.append(prefetch)
        if prefetch and not self.taken:
            self.taken = super().lease(["celery"], prefetch).messages
        return bool(self.taken) or super().wait(timeout)

    def lease(self, *given: Any) -> Claim:
        taken, self.taken = self.taken, []
        return Claim(taken) if taken else super().lease(*given)


def test_wait_passes_the_number_of_messages_to_prefetch() -> None:
    rig = ListenerRig(store=(store := EagerStore()))
    rig.run_until_idle()
    assert store.expected[-1] == 4  # two run, and one waits behind each
    rig.push(3)
    rig.step()
    assert len(rig.ready) == 3
    rig.step()
    assert store.expected[-1] == 1
    rig.listener.quiet()
    rig.step()
    assert store.expected[-1] == NO_ROOM


def test_prefetched_messages_are_released_if_their_slots_were_taken() -> None:
    """By a task that became due, for instance. Another worker may be idle."""
    rig = ListenerRig(store=(store := EagerStore()))
    rig.run_until_idle()
    rig.push(4)
    rig.listener.wait(0)
    assert store.consumer.prefetched
    rig.ready.put_many(rig.rooms.requests(3))
    rig.run_until_idle()
    assert len(rig.ready) == 4
    assert {info.queue: (info.ready, info.leased) for info in store.admin.queues()} == {"celery": (3, 1)}


class OrderRecordingStore(EagerStore):
    """Records the order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def lease(self, *given: Any) -> Claim:
        self.asked.append("prefetched" if self.taken else "lease")
        return super().lease(*given)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.asked.append("settle")
        return super().settle(generation, settlements)


def test_prefetched_messages_are_taken_before_settling() -> None:
    """Such as the next step of a chain, which arrives as its predecessor ends."""
    rig = ListenerRig(store=(store := OrderRecordingStore()), worker_ack_flush_seconds=0)
    rig.run_until_idle()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.take()
    store.asked.clear()
    rig.push(1)
    rig.post(request, Ack(request.tag))
    rig.step()
    assert (len(rig.ready), store.asked) == (1, ["prefetched", "settle"])


class RevokingStore(MemoryStore):
    """Revokes messages during ``lease()``, unnoticed by the claim. *answers*: whether each call of
    ``revoked_since()`` succeeds."""

    def __init__(self, *answers: bool) -> None:
        super().__init__()
        self.answers = [*answers]

    def lease(self, *given: Any) -> Claim:
        claim = super().lease(*given)
        if claim.messages:
            self.revoke(["pushed"])
        return claim._replace(last_revocation=None)

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        if self.answers and not self.answers.pop(0):
            raise BrokerUnavailable("the connection fell")
        return super().revoked_since(cursor)


def test_message_revoked_during_lease_does_not_run() -> None:
    rig = ListenerRig(store=RevokingStore())
    rig.push(1)
    rig.step()
    assert (len(rig.ready), rig.state.requests) == (0, {})


def test_leased_message_is_kept_when_reading_revocations_fails() -> None:
    rig = ListenerRig(store=(store := RevokingStore(False, False)))
    rig.push(1)
    rig.step()
    assert (len(rig.ready), rig.listener.connection.failures) == (1, 1)
    rig.step()
    assert store.answers == []
    assert [request.revocation is not None for request in rig.take()] == [True], "they are asked for again"


class UnconfirmingStore(MemoryStore):
    """Applies settlements, but does not confirm them while ``unconfirmed`` is set."""

    unconfirmed = True

    def confirm(self) -> None:
        if self.unconfirmed:
            raise BrokerUnavailable("no answer")


def test_unconfirmed_early_ack_is_recognised_as_done() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0, store=(store := UnconfirmingStore()))
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.step()
    assert (rig.early.take(), store.settled) == ([], [Ack(request.tag)])
    store.unconfirmed = False
    rig.run_until_idle()
    assert (rig.early.take(), request.acked) == ([request], True)
    assert store.settled == [Ack(request.tag)]


@pytest.mark.parametrize("also", ["once", "add"])
def test_settlement_with_a_lost_answer_is_not_repeated(also: str, caplog: pytest.LogCaptureFixture) -> None:
    class LostAnswerStore(MemoryStore):
        answer_lost = False

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            lost = super().settle(generation, settlements)
            if self.answer_lost:
                raise BrokerUnavailable("the answer is lost")
            return lost

    rig = ListenerRig(worker_ack_flush_seconds=0, store=(store := LostAnswerStore()))
    rig.push(1, also)
    rig.run_until_idle()
    (request,) = rig.take()
    store.answer_lost = True
    if also == "once":
        rig.early.ask([request], 0.0)
    else:
        rig.post(request, Ack(request.tag, ROW))
    rig.step()
    assert store.settled == [Ack(request.tag, None if also == "once" else ROW)]
    store.answer_lost = False
    rig.run_until_idle()
    assert [one.tag for one in rig.early.take()] == ([request.tag] if also == "once" else [])
    assert "task-lease-lost" not in logged(caplog)
    assert len(store.settled) == 1


def request_with_doubtful_ack(rig: ListenerRig, applied: bool = True) -> Request:
    """Return a request whose early ack was sent before the lease was lost. applied: another worker leased
    what was held; otherwise the message is delivered here again."""
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.push(1, id="beside")  # it reveals the loss of the lease
    rig.run_until_idle()
    rig.early.ask([request], 0.0)
    rig.step()
    lose_lease(rig).consumer.lease(["celery"], 9 if applied else 0)
    assert isinstance(rig.store, UnconfirmingStore)
    rig.store.unconfirmed = False
    rig.run_until_idle()
    return request


def test_early_ack_in_doubt_ends_as_a_failure() -> None:
    """The broker cannot tell whether the ack was applied or another consumer has the message."""
    rig = ListenerRig(worker_ack_flush_seconds=0, store=UnconfirmingStore)
    request = request_with_doubtful_ack(rig)
    assert (len(rig.early), rig.store.results) == (0, {})
    rig.pass_time(5)
    assert (rig.early.take(), rig.state.requests) == ([], {})
    (row,) = rig.store.results.values()
    assert row[:2] == (request.id, "FAILURE")
    assert b"WorkerLost" in row[2]


def test_early_ack_is_doubted_from_the_answer_on() -> None:
    """The worker was frozen before; the message may be delivered to it again a moment later."""

    class FrozenStore(MemoryStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            tags = {each.tag for each in settlements if isinstance(each, Ack)}
            if tags:
                rig.clock.advance(70)
            return tags or super().settle(generation, settlements)

        def in_doubt(self, tags: Collection[int]) -> Collection[int]:
            return tags

    rig = ListenerRig(worker_ack_flush_seconds=0, store=FrozenStore)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.pass_time(2)
    assert request.id not in rig.store.results
    rig.pass_time(5)
    assert rig.store.results[request.id][1] == "FAILURE"


def test_early_ack_answered_after_its_lease_ends_as_a_failure() -> None:
    """It may have been carried out before; then nobody else has the message."""

    class LateStore(MemoryStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            tags = {each.tag for each in settlements if isinstance(each, Ack)}
            return tags or super().settle(generation, settlements)

        def in_doubt(self, tags: Collection[int]) -> Collection[int]:
            return tags

    rig = ListenerRig(worker_ack_flush_seconds=0, store=LateStore)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.pass_time(2)
    assert rig.early.take() == []
    rig.pass_time(5)
    assert rig.store.results[request.id][1] == "FAILURE"
    assert (rig.early.take(), rig.state.requests) == ([], {})


def test_stopping_worker_does_not_wait_for_an_early_ack_in_doubt() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0, store=UnconfirmingStore)
    request = request_with_doubtful_ack(rig)
    rig.listener.quiet()
    rig.run_until_idle()
    rig.run_until_idle()
    assert rig.store.results[request.id][1] == "FAILURE"
    assert rig.state.requests == {}


def test_unapplied_early_ack_is_repeated_on_redelivery() -> None:
    class Forgetful(UnconfirmingStore):
        """Drops unconfirmed acks, as RabbitMQ does when a connection breaks."""

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            return set() if self.unconfirmed else super().settle(generation, settlements)

    rig = ListenerRig(worker_ack_flush_seconds=0, store=Forgetful)
    request = request_with_doubtful_ack(rig, applied=False)
    rig.run_until_idle()
    assert request in rig.take()
    rig.early.ask([request], 0.0)
    rig.run_until_idle()
    assert tags(rig.early.take()) == [request.tag]
    assert (rig.store.results, rig.waiting()) == ({}, 1), "the other message remains"


def test_early_acked_message_is_acked_again_on_redelivery() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.run_until_idle()
    assert rig.early.take() == [request]
    # As after a crash that undid the ack.
    rig.store.sender.push([Envelope("celery", request.leased.headers, None, request.leased.body)])
    messages = rig.store._building.queues.messages
    (tag,) = messages
    messages[request.tag] = messages.pop(tag)
    messages[request.tag].tag = request.tag
    rig.run_until_idle()
    rig.run_until_idle()
    assert (len(rig.ready), rig.waiting(), rig.state.requests) == (0, 0, {request.key: request})


class SilentStore(MemoryStore):
    """Answers no settlement, and carries none out, while *silent*."""

    silent = True

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        if self.silent:
            raise BrokerUnavailable("no answer")
        return super().settle(generation, settlements)


def test_early_ack_of_a_lost_lease_is_not_taken_for_an_answered_one() -> None:
    """Another worker had run the task: its message was gone, as after an ack of ours without an answer."""
    rig = ListenerRig(worker_ack_flush_seconds=0, store=SilentStore)
    store: Any = rig.store
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.step()
    other = lose_lease(rig)
    (theirs,) = other.consumer.lease(["celery"], 1).messages
    assert MemoryStore.settle(other, other.consumer._generation, [Ack(theirs.tag)]) == set()
    for _ in range(3):
        rig.clock.advance(3)
        rig.step()
    store.silent = False
    for _ in range(20):
        rig.clock.advance(3)
        rig.step()
    assert rig.early.take() == []
    assert not rig.ready.get_many(Slots(9, 9))


@pytest.mark.parametrize("ends", ["answered", "stopped"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RowsLocked("locked"), None),
        (RowsLocked("locked"), RowsLocked("locked")),
        (RowsLocked("locked"), BrokerUnavailable("no answer")),
        (BrokerUnavailable("no answer to others"), BrokerUnavailable("no answer")),
    ],
)
def test_early_ack_that_was_not_sent_is_not_in_doubt(
    before: Exception, after: Exception | None, ends: str
) -> None:
    """Another worker has the message and runs it: the task must not be reported as lost here."""

    class FailingStore(MemoryStore):
        error: Exception | None = before

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            if self.error is not None:
                raise self.error
            return super().settle(generation, settlements)

    rig = ListenerRig(worker_ack_flush_seconds=0, store=FailingStore)
    store: Any = rig.store
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.mailbox.post_many([SettlementOrder(None, Store(ROW))])  # it has no lease, and is always sent
    if isinstance(before, RowsLocked):
        rig.early.ask([request], 0.0)
    rig.step()
    assert rig.early.take() == []
    if not isinstance(before, RowsLocked):
        rig.early.ask([request], 0.0)
    other = lose_lease(rig)
    assert len(other.consumer.lease(["celery"], 1).messages) == 1
    store.error = after
    for _ in range(3):
        rig.clock.advance(3)
        rig.step()
    if ends == "answered":
        store.error = None
        rig.pass_time(4)
        assert (rig.early.take(), rig.state.requests, set(store.results)) == ([], {}, {ROW[0]})
    else:
        rig.end(1)
        assert rig.listener.left() == {}
    assert "WorkerLost" not in str(store.results)


@pytest.mark.parametrize("first", ["settled", "unanswered"])
def test_early_ack_before_locked_rows_stays_in_doubt(first: str) -> None:
    """It was carried out, or perhaps; then no other worker has the message."""

    class PartlyLockedStore(MemoryStore):
        steps = 0

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            self.steps += 1
            if self.steps == 1 and first == "unanswered":
                super().settle(generation, settlements)
                raise BrokerUnavailable("no answer")
            if self.steps == 2:
                raise RowsLocked("locked")
            return super().settle(generation, settlements)

    rig = ListenerRig(worker_ack_flush_seconds=0, store=PartlyLockedStore)
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.push(1, id="beside")  # it reveals the loss of the lease
    rig.run_until_idle()
    rig.early.ask([request], 0.0)
    large = ("large", "SUCCESS", b"0" * PORTION_BYTES, None)
    for row in (large, ROW):  # the second is sent in another step
        rig.mailbox.post_many([SettlementOrder(None, Store(row))])
    rig.step()
    if first == "unanswered":
        rig.step()
    assert (rig.store.steps, rig.early.take()) == (2, [])
    other = lose_lease(rig)
    assert tags(other.consumer.lease(["celery"], 9).messages) != [request.tag]
    rig.pass_time(6)
    assert (rig.early.take(), rig.state.requests) == ([], {})
    assert rig.store.results[request.id][1] == "FAILURE"


LARGE = ("large", "SUCCESS", b"0" * PORTION_BYTES, None)
"""What follows it is sent in another step."""


class ScriptedStore(MemoryStore):
    """Raises the next of *errors* of a call; None is no error. settle() does it before if *does*."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        super().__init__(clock, **options)
        calls = ("settle", "confirm", "extend", "wait", "push", "settled_before", "register")
        self.errors: dict[str, list[Exception | None]] = {call: [] for call in calls}
        self.does = self.fetches_first = False

    @property
    def prefetched(self) -> bool:
        return self.fetches_first

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if (error := self._next("push")) is not None:
            raise error
        super().push(envelopes, timeout)

    def _next(self, call: str) -> Exception | None:
        return self.errors[call].pop(0) if self.errors[call] else None

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        error = self._next("settle")
        if error is not None and not self.does:
            raise error
        lost = super().settle(generation, settlements)
        if error is not None:
            raise error
        return lost

    def confirm(self) -> None:
        if (error := self._next("confirm")) is not None:
            raise error

    def extend(self) -> None:
        if (error := self._next("extend")) is not None:
            raise error
        super().extend()

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        if (error := self._next("wait")) is not None:
            raise error
        return super().wait(timeout, prefetch)

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        if (error := self._next("settled_before")) is not None:
            raise error
        return () if self.does else super().settled_before(tags)


def scripted() -> tuple[ListenerRig, Any]:
    """Return a rig that settles at once, and its ScriptedStore."""
    rig = ListenerRig(worker_ack_flush_seconds=0, store=ScriptedStore)
    return rig, rig.store


def unacked(rig: ListenerRig, count: int) -> list[Request]:
    """Return requests whose early acks are not asked for yet."""
    rig.push(count, "once", id="once")
    rig.run_until_idle()
    return rig.take()


def early_acked(rig: ListenerRig) -> Request:
    """Return a request that was acked before its run."""
    (request,) = unacked(rig, 1)
    rig.early.ask([request], 0.0)
    rig.step()
    assert rig.early.take() == [request]
    return request


def acked_late(rig: ListenerRig) -> Request:
    """Return a request that is acked after its run."""
    rig.push(1, id="late")
    rig.run_until_idle()
    (request,) = rig.take()
    return request


@pytest.mark.parametrize(
    ("before", "after", "errors"),
    [
        ([LARGE], [], {"settle": [BrokerUnavailable("no answer")]}),
        ([ROW], [], {"settle": [ValueError("refused"), BrokerUnavailable("no answer")]}),
        ([], [LARGE, ROW], {"settle": [None, RowsLocked("locked")], "lost": True}),
        ([], [LARGE, ROW], {"settle": [None, BrokerUnavailable("no answer")], "lost": True}),
        ([], [], {"confirm": [BrokerUnavailable("no answer")], "lost": True}),
        (
            [],
            [],
            {"wait": [LeaseLost("no connection")], "extend": [LeaseLost("no connection")], "lost": True},
        ),
    ],
    ids=[
        "not sent",
        "not sent by parts",
        "lost, then locked",
        "lost, then away",
        "lost, then unconfirmed",
        "cut",
    ],
)
def test_early_ack_without_effect_is_not_in_doubt(
    before: list[Any], after: list[Any], errors: dict[str, Any]
) -> None:
    """Another worker has the message and runs it: the task must not be reported as lost here."""
    rig, store = scripted()
    (request,) = unacked(rig, 1)
    lost = errors.pop("lost", False)
    other: Any = lose_lease(rig) if lost else None
    store.errors |= errors
    if store.errors["wait"]:
        rig.listener.wait(0)
        # As where a lost connection is the only sign of a lost lease: it raises before sending.
        store.errors["settle"] = [LeaseLost("no connection")]
    for row in before:
        rig.mailbox.post_many([SettlementOrder(None, Store(row))])
    rig.early.ask([request], 0.0)
    for row in after:
        rig.mailbox.post_many([SettlementOrder(None, Store(row))])
    rig.listener.step(rig.clock.monotonic())
    store.errors["settle"] = []
    other = other or lose_lease(rig)
    assert len(other.consumer.lease(["celery"], 1).messages) == 1
    rig.pass_time(6)
    assert request.id not in store.results
    assert (rig.early.take(), rig.state.requests) == ([], {})


def test_redelivery_proves_that_an_early_ack_had_no_effect() -> None:
    rig, store = scripted()
    (request,) = unacked(rig, 1)
    store.errors["settle"] = [BrokerUnavailable("no answer")]
    rig.early.ask([request], 0.0)
    rig.listener.step(rig.clock.monotonic())
    lose_lease(rig)  # but nobody takes the message
    store.errors["settle"] = [RowsLocked("locked")] * 9
    store.fetches_first = True
    for _ in range(4):
        rig.clock.advance(1)
        rig.listener.step(rig.clock.monotonic())
    store.fetches_first = False
    assert request.generation == rig.lease.generation
    other = lose_lease(rig)
    assert len(other.consumer.lease(["celery"], 1).messages) == 1
    store.errors["settle"] = []
    rig.pass_time(6)
    assert request.id not in store.results


@pytest.mark.parametrize("error", [LeaseLost("lost"), BrokerUnavailable("no answer"), None])
def test_early_ack_in_doubt_at_the_end_is_reported(error: Exception | None) -> None:
    """Its failure is stored, or the task is named."""
    rig, store = scripted()
    rig.early.ask(unacked(rig, 1), 0.0)
    rig.step()
    rig.push(1, "once", id="doubtful")
    rig.run_until_idle()
    (doubtful,) = rig.take()
    store.errors["settle"], store.does = [BrokerUnavailable("no answer")], True
    rig.early.ask([doubtful], 0.0)
    rig.listener.step(rig.clock.monotonic())
    if error is None:  # the listener hangs
        rig.listener.step(rig.clock.monotonic())
    else:
        store.errors["extend"] = [error] * 9
        rig.end()
    left = rig.listener.left()
    assert left[DOUBTFUL] == ["doubtful"]
    assert ("doubtful" in store.results) == isinstance(error, LeaseLost)


@pytest.mark.parametrize("end", [Release, DeadLetter])
def test_unreadable_message_is_acked_late_until_it_is_a_dead_letter(end: Callable[..., Settlement]) -> None:
    rig, _ = scripted()
    (request,) = unacked(rig, 1)
    rig.state.sent_unread(request, rig.clock.monotonic())
    rig.post(request, end(request.tag) if end is Release else end(request.tag, "why"))
    rig.run_until_idle()
    if end is DeadLetter:
        assert rig.store.admin.dead_retry() == 1
    rig.listener.look()
    rig.run_until_idle()
    (again,) = rig.take()
    assert again.acks_late == (end is Release)


@pytest.mark.parametrize("lost_by", ["extend", "settled_before"])
def test_results_are_stored_at_the_end_without_a_lease(lost_by: str) -> None:
    """And only what is not stored is reported."""
    rig, store = scripted()
    request = early_acked(rig)
    late = acked_late(rig)
    order = SettlementOrder(request, Store(("once", "SUCCESS", b"{}", None)))
    if lost_by == "settled_before":
        store.errors["settle"], store.does = [BrokerUnavailable("no answer")], True
        rig.post(late, Ack(late.tag))
        rig.mailbox.post_many([order])
        rig.listener.step(rig.clock.monotonic())
        store.errors["settled_before"] = [LeaseLost("lost")]
    else:
        store.errors["extend"] = [LeaseLost("lost")] * 9
        rig.mailbox.post_many([order, SettlementOrder(late, None, resend=True)])
    rig.end(100)
    assert store.results["once"][1] == "SUCCESS"
    assert "once" not in str(rig.listener.left())
    assert (rig.state.totals["finished"], request.key in rig.state.requests) == (1, False)


@pytest.mark.parametrize("seconds", [0, 100])
@pytest.mark.parametrize("error", [BrokerUnavailable("no answer"), RowsLocked("locked")])
def test_results_that_cannot_be_stored_at_the_end_are_reported(error: Exception, seconds: float) -> None:
    """If there is no time to try again. One that was stored is not reported."""
    rig, store = scripted()
    requests = acked, request = unacked(rig, 2)
    rig.early.ask(requests, 0.0)
    rig.step()
    assert rig.early.take() == requests
    large = SettlementOrder(acked, Store(("large", *LARGE[1:])))
    rig.mailbox.post_many([large, SettlementOrder(request, Store(("once", "SUCCESS", b"{}", None)))])
    store.errors["settle"] = [LeaseLost("lost"), None, error]
    rig.end(seconds)
    assert rig.listener.left() == ({} if seconds else {UNSTORED: ["once"]})
    assert set(store.results) == ({"large", "once"} if seconds else {"large"})


def test_results_that_need_a_lease_are_reported_at_the_end() -> None:
    rig, store = scripted()
    request = early_acked(rig)
    store.errors["settle"] = [LeaseLost("lost")] * 2
    rig.mailbox.post_many([SettlementOrder(request, Store(("once", "SUCCESS", b"{}", None)))])
    rig.end(100)
    assert (rig.listener.left(), store.results) == ({UNSTORED: ["once"]}, {})


def test_acked_task_that_cannot_be_sent_again_at_the_end_fails() -> None:
    rig, store = scripted()
    (request,) = unacked(rig, 1)
    rig.early.ask([request], 0.0)
    rig.step()
    store.errors |= {"extend": [LeaseLost("lost")], "push": [BrokerUnavailable("no answer")]}
    rig.listener.quiet()
    rig.listener.closed()
    assert rig.listener.left() == {LOST: ["once"]}
    assert store.results["once"][1] == "FAILURE"


def test_worker_that_cannot_register_again_does_nothing_else() -> None:
    class UnregisteredStore(ScriptedStore):
        calls: ClassVar[list[str]] = []

        def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
            self.calls.append("register")
            if (error := self._next("register")) is not None:
                raise error
            return super().register(name, queues, concurrency)

        def reclaim(self, silent: bool = True) -> list[Reclaimed]:
            self.calls.append("reclaim")
            return super().reclaim(silent)

    rig = ListenerRig(store=UnregisteredStore)
    store: Any = rig.store
    store.errors |= {"extend": [LeaseLost("lost")], "register": [RowsLocked("locked")] * 4}
    rig.clock.advance(6)
    rig.step()
    store.calls.clear()
    for _ in range(3):
        rig.clock.advance(6)
        rig.step()
    assert store.calls == ["register"] * 3


def test_acked_task_without_a_result_to_store_is_not_left() -> None:
    """The result was stored before, or is ignored."""
    rig, store = scripted()
    request = early_acked(rig)
    late = acked_late(rig)
    store.errors["settle"] = [BrokerUnavailable("no answer")] * 9
    rig.mailbox.post_many([SettlementOrder(late, Ack(late.tag)), SettlementOrder(request, None)])
    rig.end()
    assert rig.listener.left() == {AGAIN: ["late"]}


def test_acked_tasks_that_could_not_be_sent_again_are_not_left() -> None:
    """They end as failures, and are not kept."""
    rig, store = scripted()
    for number in range(3):
        rig.push(1, "once", id=str(number))
        rig.run_until_idle()
        (request,) = rig.take()
        rig.early.ask([request], 0.0)
        rig.step()
        assert rig.early.take() == [request]
        rig.mailbox.post_many([SettlementOrder(request, None, resend=True)])
        store.errors["push"] = [BrokerUnavailable("no answer")]
        rig.pass_time(6)
    assert {row[1] for row in rig.store.results.values()} == {"FAILURE"}
    assert len(rig.store.results) == 3
    assert rig.listener.left() == {}


@pytest.mark.parametrize("refusals", [1, 2, 9])
def test_refused_early_ack_does_not_start_the_task(refusals: int) -> None:
    """The broker keeps the message, and would deliver it again."""
    rig, store = scripted()
    (request,) = unacked(rig, 1)
    store.errors["settle"] = [ValueError("refused")] * refusals
    rig.early.ask([request], 0.0)
    rig.pass_time(6)
    assert (rig.early.take(), rig.state.requests, len(rig.early)) == ([], {}, 0)
    assert (store.messages, store.results) == (1, {})
    rig.pass_time(60)
    assert [one.id for one in rig.state.requests.values()] == (["once"] if refusals == 1 else [])


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("release", ["answered", "unanswered"])
def test_early_ack_refused_after_no_answer_does_not_start_the_task(release: str, knows: bool) -> None:
    """Nor does it fail, if the broker has taken it back. knows: whether the broker knows what was settled."""

    class RefusingStore(ScriptedStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            self.does = isinstance(settlements[0], Release)
            return super().settle(generation, settlements)

        def settled_before(self, tags: Collection[int]) -> Collection[int]:
            return tags if knows else ()

    rig = ListenerRig(worker_ack_flush_seconds=0, store=RefusingStore)
    store: Any = rig.store
    (request,) = unacked(rig, 1)
    store.errors["settle"] = [BrokerUnavailable("no answer"), ValueError("refused")]
    if release == "unanswered":
        store.errors["settle"].append(BrokerUnavailable("no answer"))
    rig.early.ask([request], 0.0)
    for _ in range(4):
        rig.listener.step(rig.clock.monotonic())
        rig.clock.advance(1)
    rig.pass_time(6)
    assert (rig.early.take(), rig.waiting()) == ([], 1)
    if release == "answered":
        assert store.results == {}


@pytest.mark.parametrize("failures", [0, 2])
def test_results_are_stored_while_the_row_of_the_worker_is_locked(failures: int) -> None:
    rig, store = scripted()
    late = acked_late(rig)
    store.errors |= {call: [RowsLocked("locked")] * 99 for call in ("wait", "extend")}
    store.errors["settle"] = [BrokerUnavailable("no answer")] * failures
    rig.post(late, Ack(late.tag, ("late", "SUCCESS", b"{}", None)))
    for _ in range(4):
        rig.clock.advance(3)
        rig.step()
    assert "late" in store.results


def test_results_are_stored_at_the_end_while_the_row_of_the_worker_is_locked() -> None:
    rig, store = scripted()
    late = acked_late(rig)
    store.errors |= {"settle": [RowsLocked("locked")], "extend": [RowsLocked("locked")] * 999}
    rig.post(late, Ack(late.tag, ("late", "SUCCESS", b"{}", None)))
    rig.end(10)
    assert "late" in store.results


@pytest.mark.parametrize("call", ["settle", "confirm"])
def test_early_ack_with_a_wrong_setting_after_it_is_recognised(call: str) -> None:
    """A new connection found that the tables lack a column, after the ack was carried out."""
    rig, store = scripted()
    (request,) = unacked(rig, 1)
    store.errors[call], store.does = [ConfigurationError("wrong", setting="broker_url")], call == "settle"
    rig.early.ask([request], 0.0)
    rig.listener.step(rig.clock.monotonic())
    store.does = False
    rig.pass_time(2)
    assert rig.early.take() == [request]


@pytest.mark.parametrize("call", ["wait", "settle", "extend"])
def test_locked_row_of_the_worker_does_not_stop_its_housekeeping(call: str) -> None:
    """Only that may end the session that has locked it."""

    class HeldStore(ScriptedStore):
        def reclaim(self, silent: bool = True) -> list[Reclaimed]:
            self.errors = {each: [] for each in self.errors}
            return super().reclaim(silent)

    rig = ListenerRig(worker_ack_flush_seconds=0, store=HeldStore)
    store: Any = rig.store
    late = acked_late(rig)
    store.errors |= {"extend": [RowsLocked("locked")] * 999, call: [RowsLocked("locked")] * 999}
    rig.post(late, Ack(late.tag, ("late", "SUCCESS", b"{}", None)))
    for _ in range(60):
        rig.step()
        rig.clock.advance(1)
    assert store.errors["extend"] == []
    assert "late" in store.results


def test_lease_is_kept_and_revocations_are_read_while_settling_fails() -> None:
    rig, store = scripted()
    rig.push(2, id="late")
    rig.run_until_idle()
    late, running = rig.run()
    store.errors["settle"] = [BrokerUnavailable("no answer")] * 40
    rig.post(late, Ack(late.tag, ("late", "SUCCESS", b"{}", None)))
    rig.step()
    store.sender.revoke([running.id], terminate=True, signal="SIGKILL")
    for _ in range(39):
        rig.clock.advance(1)
        rig.step()
    assert rig.lease.current()
    assert (running, "SIGKILL") in rig.pool.terminated
    rig.run_until_idle()
    assert "late" in store.results


def test_early_acked_request_survives_a_lost_lease() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.push(1, "once")
    rig.run_until_idle()
    (once,) = rig.take()
    rig.early.ask([once], 0.0)
    rig.run_until_idle()
    rig.ready.put_back(rig.early.take())  # as if the pool had not started it
    rig.push(1)  # it reveals the loss of the lease
    rig.run_until_idle()
    lose_lease(rig).consumer.lease(["celery"], 9)
    rig.run_until_idle()
    assert tags(rig.run()) == [once.tag]
    assert rig.state.requests == {once.key: once}  # a revocation still finds it
    rig.pool.held.clear()
    rig.post(once, Store(ROW))  # its result is stored without the lease
    rig.run_until_idle()
    assert rig.store.results == {"id": ROW}
    assert rig.state.requests == {}


def test_broker_that_fails_during_reregistration_is_retried() -> None:
    class Leaving(MemoryStore):
        times = 0

        def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
            self.times += 1
            self.away = self.times == 2
            return super().register(name, queues, concurrency)

    rig = ListenerRig(store=Leaving)
    rig.push(1)
    rig.run_until_idle()
    lose_lease(rig)
    assert (rig.listener.step(rig.clock.monotonic()) or 0) > 0
    rig.store.away = False
    rig.run_until_idle()
    assert len(rig.take()) == 1


class UnansweringStore(MemoryStore):
    """A broker that carries out some registrations without an answer: they raise *errors* (None: they do
    not)."""

    errors: ClassVar[list[Exception | None]] = []

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return generation


@pytest.mark.parametrize("error", [BrokerUnavailable("no answer"), ConfigurationError("wrong password")])
def test_worker_whose_reregistration_was_not_answered_registers_once_more(error: Exception) -> None:
    """Even if the broker has accepted it: settlements need its generation."""
    store: Any = (rig := ListenerRig(store=UnansweringStore)).store
    rig.push(2)
    rig.run_until_idle()
    (running,) = rig.run(1)
    store.errors = [error, error]
    lose_lease(rig)
    for _ in range(2):
        assert rig.step()
        assert rig.listener.connection.failing == str(error)
        assert rig.lease.current() is None
    rig.run_until_idle()
    assert rig.listener.connection.failing is None
    (waiting,) = rig.take()
    assert {running.tag, waiting.tag} == rig.store.held
    rig.pool.held.clear()
    rig.post(running, Ack(running.tag))
    rig.post(waiting, Ack(waiting.tag))
    rig.run_until_idle()
    assert (rig.waiting(), rig.state.requests) == (0, {})


def test_worker_stops_before_it_could_register_again(caplog: pytest.LogCaptureFixture) -> None:
    """A result of a task whose message was acked is stored; what others have now is left to them."""
    store: Any = (rig := ListenerRig(store=UnansweringStore)).store
    rig.push(2)
    rig.run_until_idle()
    late, early = rig.run(2)
    early.mark_acked()
    store.errors = [BrokerUnavailable("no answer")]
    lose_lease(rig)
    assert rig.step()
    rig.listener.quiet()
    rig.pool.held.clear()
    rig.post(late, Ack(late.tag))
    rig.post(early, Store(ROW))
    rig.listener.closed()
    assert rig.store.results == {"id": ROW}
    assert "1 tasks ended and will run again: pushed" in caplog.text
    assert (rig.waiting(), rig.store.held, rig.state.requests) == (2, set(), {})


# -- periodic work: renewal, presence, reclaiming, sweeping --


def test_lease_is_renewed_while_messages_are_held() -> None:
    rig = ListenerRig(worker_lease_seconds=15)
    rig.push(1)
    rig.run_until_idle()
    other = rig.store.another()
    for _ in range(10):
        rig.clock.advance(5)
        rig.run_until_idle()
        assert other.consumer.reclaim() == []
    assert len(rig.store.held) == 1


class CountingStore(MemoryStore):
    """Counts the renewals of leases."""

    renewals = 0

    def extend(self) -> None:
        self.renewals += 1
        super().extend()


def test_idle_worker_renews_every_third_of_its_lease() -> None:
    """Which also publishes its presence."""
    rig = ListenerRig(store=(store := CountingStore()), worker_lease_seconds=30.0)
    rig.run_until_idle()
    store.renewals = 0
    rig.pass_time(60)
    assert store.renewals == 6


class LockedStore(MemoryStore):
    """While *locked*, settling fails."""

    locked = True

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        if self.locked:
            raise RowsLocked("another transaction has locked rows")
        return super().settle(generation, settlements)


def test_worker_that_waits_for_locked_rows_keeps_its_lease() -> None:
    """And reclaims messages of others, since it is the only one that could end the session that locks."""
    rig = ListenerRig(store=LockedStore, worker_lease_seconds=15.0, worker_ack_flush_seconds=0)
    store: Any = rig.store
    dead = store.another()
    dead.consumer.register("dead@h", ["other"], 1)
    store.sender.push([rig.rooms.envelope("add", 0, queue="other")])
    assert len(dead.consumer.lease(["other"], 1).messages) == 1
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    rig.post(request, Ack(request.tag))
    for _ in range(40):
        rig.clock.advance(1)
        rig.step()
    assert store.settled == []
    assert rig.lease.current()
    assert {info.queue: (info.ready, info.leased) for info in store.admin.queues()} == {
        "celery": (0, 1),
        "other": (1, 0),
    }
    store.locked = False
    rig.run_until_idle()
    assert store.settled == [Ack(request.tag)]


def test_revocations_are_read_while_rows_are_locked() -> None:
    rig = ListenerRig(store=LockedStore, worker_ack_flush_seconds=0)
    rig.push(4)
    rig.run_until_idle()
    ended, running, *_ = rig.run()
    rig.post(ended, Ack(ended.tag))
    rig.step()
    rig.store.sender.revoke([running.id], terminate=True, signal="SIGKILL")
    rig.clock.advance(3)
    rig.step()
    assert (running, "SIGKILL") in rig.pool.terminated


def published_presence(rig: ListenerRig) -> Presence:
    (found,) = rig.store.another().admin.workers()
    return found


def test_presence_is_complete_when_a_worker_is_first_visible() -> None:
    rig = ListenerRig()
    assert (published_presence(rig).status, published_presence(rig).pid, published_presence(rig).host) == (
        "starting",
        0,
        socket.gethostname(),
    )
    rig.run_until_idle()
    found = published_presence(rig)
    assert (found.status, found.busy, found.waiting) == ("idle", 0, 0)
    assert (found.started, found.seen) == (rig.clock.now(), rig.clock.now())
    assert (found.version, found.python) == (__version__, platform.python_version())
    assert found.memory > 0


def test_presence_shows_running_and_waiting_tasks_within_a_second() -> None:
    rig = ListenerRig()
    rig.run_until_idle()
    rig.push(3)
    rig.run_until_idle()
    (first,) = rig.run(1)
    began = rig.clock.now()
    rig.pass_time(1)
    found = published_presence(rig)
    assert (found.status, found.busy, found.waiting, found.seen) == ("working", 1, 2, rig.clock.now())
    started = pytest.approx(began, abs=2.0)
    assert found.running == (RunningTask(first.id, first.name, started, os.getpid(), "celery"),)


def test_unchanged_presence_is_published_only_with_lease_renewals() -> None:
    rig = ListenerRig(store=(store := CountingStore()), worker_lease_seconds=3000.0)
    rig.push(1)
    rig.run_until_idle()
    rig.run(1)
    rig.pass_time(2)
    store.renewals, known = 0, published_presence(rig)
    rig.pass_time(30)
    assert (store.renewals, published_presence(rig)) == (0, known)


def test_presence_is_published_at_most_once_a_second() -> None:
    rig = ListenerRig(store=(store := CountingStore()), worker_lease_seconds=3000.0)
    rig.run_until_idle()
    store.renewals = 0
    for _ in range(4):
        rig.push(1)
        rig.run_until_idle()
    assert store.renewals == 0
    rig.pass_time(1)
    assert (store.renewals, published_presence(rig).waiting) == (1, 4)


def test_stopping_worker_publishes_its_status() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    rig.run(1)
    rig.phase = DRAINING
    rig.listener.quiet()
    rig.pass_time(1)
    assert published_presence(rig).status == "stopping"


def test_presence_is_published_on_reregistration() -> None:
    rig = ListenerRig(worker_lease_seconds=15)
    rig.run_until_idle()
    rig.push(1)
    rig.run_until_idle()
    other = rig.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    rig.clock.advance(16)
    assert [dead.name for dead in other.consumer.reclaim()] == ["w@h"]
    other.consumer.deregister()
    rig.run_until_idle()
    assert published_presence(rig).status == "idle"


def test_presence_lists_a_limited_number_of_running_tasks() -> None:
    names = [RunningTask(str(number), "proj.add", 1.0) for number in range(150)]
    record = Presence("w@h", 1, ("q",), 4, 0.0)
    text = to_text(record._replace(running=tuple(names), busy=150))
    found = from_text(text, record)
    assert (found.busy, found.running) == (150, tuple(names[:MAX_RUNNING]))


def test_messages_of_a_dead_worker_are_reclaimed(caplog: pytest.LogCaptureFixture) -> None:
    rig = ListenerRig()
    victim = rig.store.another()
    victim.consumer.register("victim@h", ["celery"], 1)
    rig.push(2)
    assert len(victim.consumer.lease(["celery"], 9).messages) == 2
    rig.run_until_idle()
    assert len(rig.ready) == 0
    rig.pass_time(20)
    assert len(rig.ready) == 2
    assert "worker victim@h is dead: 2 of its messages are back" in caplog.text


def test_reconnected_worker_waits_a_lease_before_reclaiming() -> None:
    """After a common outage, the first worker to reconnect must not reclaim the messages of the others."""
    rig = ListenerRig(worker_lease_seconds=15)
    other = rig.store.another()
    generation = other.consumer.register("other@h", ["celery"], 1)
    rig.push(2)
    held = other.consumer.lease(["celery"], 9).messages
    rig.run_until_idle()
    rig.clock.advance(60)  # the broker is unreachable, or this process is frozen
    rig.run_until_idle()
    rig.pass_time(5)
    assert len(rig.ready) == 0
    other.consumer.extend()
    rig.pass_time(14)
    assert len(rig.ready) == 0
    assert other.consumer.settle(generation, [Ack(held[0].tag)]) == set()


def test_worker_still_silent_a_lease_after_an_outage_is_reclaimed() -> None:
    rig = ListenerRig(worker_lease_seconds=15)
    other = rig.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    rig.push(2)
    other.consumer.lease(["celery"], 9)
    rig.run_until_idle()
    rig.clock.advance(60)
    rig.run_until_idle()
    rig.pass_time(16)
    assert len(rig.ready) == 2


def test_dead_letters_are_swept() -> None:
    rig = ListenerRig(dead_letter_max=3)
    rig.run_until_idle()
    rig.push(4, "nobody knows")
    holder = rig.store.another()
    generation = holder.consumer.register("h", ["celery"], 1)
    holder.consumer.settle(
        generation,
        [DeadLetter(leased.tag, "why") for leased in holder.consumer.lease(["celery"], 9).messages],
    )
    rig.run_until_idle()
    assert len(rig.store.admin.dead()) == 4
    rig.clock.advance(61)
    rig.run_until_idle()
    assert len(rig.store.admin.dead()) == 3


def test_revocations_are_read_before_the_revoked_message_is_fetched() -> None:
    rig = ListenerRig()
    rig.push(1, id="gone")
    rig.store.sender.revoke(["gone"])
    rig.run_until_idle()
    rig.run_until_idle()
    assert len(rig.ready) == 0
    assert rig.waiting() == 0


def test_revocation_of_a_running_task_is_passed_to_the_pool() -> None:
    rig = ListenerRig()
    rig.push(1, id="gone")
    rig.run_until_idle()
    (request,) = rig.run()
    rig.store.sender.revoke(["gone"], terminate=True, signal="SIGKILL")
    rig.run_until_idle()
    assert rig.pool.terminated == [(request, "SIGKILL")]
    assert (request.revocation.terminate, request.revocation.signal) == (True, "SIGKILL")


def test_report_of_an_end_is_not_terminated() -> None:
    """The calls after the task waited for ever."""
    rig = ListenerRig()
    rig.push(1, id="gone")
    rig.run_until_idle()
    (request,) = rig.run()
    request.failing = Failing(Outcome(REVOKED, text="revoked"), "REVOKED", {})
    rig.store.sender.revoke(["gone"], terminate=True)
    rig.run_until_idle()
    assert rig.pool.terminated == []


# -- quiet and close --


def test_quiet_listener_fetches_nothing_and_acks_at_once() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=1)
    rig.push(8)
    rig.push(1, due=rig.clock.now() + 1)
    rig.run_until_idle()
    one, *_ = rig.run(2)
    rig.listener.quiet()
    rig.post(one, Ack(one.tag))
    rig.clock.advance(2)
    rig.step()
    assert rig.store.settled == [Ack(one.tag)]
    rig.take()
    rig.run_until_idle()
    assert len(rig.ready) == 0


def test_closing_settles_pending_orders_and_returns_other_messages() -> None:
    rig = ListenerRig(worker_ack_flush_seconds=1)
    rig.push(4)
    rig.run_until_idle()
    one, two, *_ = rig.take()
    rig.post(one, Ack(one.tag))
    rig.post(two, Release(two.tag, counted=True))
    rig.listener.closed()
    assert rig.store.settled == [Ack(one.tag), Release(two.tag, counted=True)]
    assert rig.store.held == set()
    after = rig.store.another()
    after.consumer.register("next@h", ["celery"], 1)
    assert [leased.deliveries for leased in after.consumer.lease(["celery"], 9).messages] == [1, 0, 0]


def make_unavailable_for(rig: ListenerRig, seconds: float) -> None:
    """Make the broker unavailable for so long; the clock moves as the listener sleeps."""
    rig.store.away = True
    back = rig.clock.monotonic() + seconds

    def look() -> None:
        rig.store.away = rig.clock.monotonic() < back

    rig.clock.on_sleep = look
    rig.listener.stop(rig.clock.monotonic() + 25)


def test_closing_waits_for_an_unavailable_broker() -> None:
    rig = ListenerRig()
    rig.push(3)
    rig.run_until_idle()
    one, two, _ = rig.take()
    rig.post(one, Ack(one.tag, ROW))
    rig.post(two, Ack(two.tag))
    make_unavailable_for(rig, 3)
    rig.listener.closed()
    assert (rig.store.settled, rig.store.held) == ([Ack(one.tag, ROW), Ack(two.tag)], set())
    assert rig.listener.left() == {}


def test_closing_keeps_the_lease_while_rows_are_locked() -> None:
    class Watched(LockedStore):
        reclaimed: ClassVar[list[Any]] = []

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            self.reclaimed.extend(other.consumer.reclaim())
            return super().settle(generation, settlements)

    rig = ListenerRig(store=Watched, worker_lease_seconds=15)
    other = rig.store.another()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.run()
    rig.post(request, Ack(request.tag))
    rig.listener.stop(rig.clock.monotonic() + 40)
    rig.listener.closed()
    assert rig.clock.monotonic() >= 40
    assert Watched.reclaimed == []


def test_results_are_stored_on_close_after_the_lease_was_lost() -> None:
    """Of tasks that were acknowledged before they ran, which no other worker has."""

    class Once(LockedStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            try:
                return super().settle(generation, settlements)
            finally:
                self.locked = False
                lose_lease(rig)

    rig = ListenerRig(store=Once)
    rig.mailbox.post_many([SettlementOrder(None, Store(ROW))])
    rig.listener.stop(rig.clock.monotonic() + 40)
    rig.listener.closed()
    assert set(rig.store.results) == {ROW[0]}
    assert rig.listener.left() == {}


def test_unsent_settlements_are_logged_on_close(caplog: pytest.LogCaptureFixture) -> None:
    rig = ListenerRig()
    rig.push(4)
    rig.run_until_idle()
    one, two, three, _ = rig.take()
    rig.post(one, Ack(one.tag))
    rig.post(two, Release(two.tag))
    three.acked = True
    three.id = "acked"
    rig.mailbox.post(SettlementOrder(three, None, resend=True))
    make_unavailable_for(rig, 100)
    rig.listener.closed()
    assert logged(caplog).count("tasks-left") == 2
    assert rig.listener.left() == {AGAIN: ["pushed"], LOST: ["acked"]}
    assert rig.clock.monotonic() < 1030


def test_undecodable_message_acked_early_becomes_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    rig = ListenerRig(worker_ack_flush_seconds=0)
    rig.store.sender.push([rig.rooms.envelope("once")._replace(body=b"[[1]")])
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.run_until_idle()
    rig.settler.ended([(early, rig.pool.outcome_of(early)) for early in rig.early.take()])
    rig.pass_time(1)
    assert (rig.store.admin.dead(), rig.store.results) == ([], {})
    (again,) = rig.take()
    assert (again.acked, again.acks_late) == (False, True)
    rig.settler.ended([(again, rig.pool.outcome_of(again))])
    rig.run_until_idle()
    (dead,) = rig.store.admin.dead()
    assert (dead.body, rig.store.results["once-id"][1]) == (b"[[1]", "FAILURE")
    assert (rig.waiting(), rig.state.requests) == (0, {})
    assert "is sent again to be kept as a dead letter" in caplog.text


def test_acked_message_that_cannot_be_resent_is_reported_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryStore):
        def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
            if self.pushes:
                raise PublishError("it does not fit any more")
            super().push(envelopes, timeout)

    rig = ListenerRig(store=Refusing())
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.take()
    request.acked = True
    rig.mailbox.post(SettlementOrder(request, None, resend=True))
    rig.listener.closed()
    assert rig.listener.left() == {LOST: ["pushed"]}
    assert "tasks-left" in logged(caplog)


def test_second_stop_ends_the_wait_for_the_broker() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.take()
    rig.post(request, Ack(request.tag))
    make_unavailable_for(rig, 100)

    def order() -> None:
        rig.listener.stop(rig.clock.monotonic())

    rig.clock.on_sleep = order
    began = rig.clock.monotonic()
    rig.listener.closed()
    assert rig.clock.monotonic() - began < 1


def test_lease_loss_on_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(MemoryStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            raise LeaseLost("the connection fell")

    rig = ListenerRig(store=Lost())
    rig.push(2)
    rig.run_until_idle()
    one, acked = rig.take()
    rig.post(one, Ack(one.tag))
    acked.acked = True
    rig.mailbox.post(SettlementOrder(acked, None, resend=True))
    rig.listener.closed()
    assert "1 tasks ended and will run again: pushed" in caplog.text
    assert rig.store.pushes == 2, "the acked message is sent again"


# -- early acks when the worker stops --


def test_message_awaiting_its_early_ack_is_released_unchanged() -> None:
    rig = ListenerRig()
    rig.push(2, "once")
    rig.run_until_idle()
    requests = rig.take()
    rig.early.ask(requests, 0.0)
    rig.listener.quiet()
    rig.run_until_idle()
    assert rig.store.settled == [Release(request.tag) for request in requests]
    assert (len(rig.early), rig.store.held, rig.state.requests) == (0, set(), {})


def test_acked_message_that_has_not_started_is_sent_again() -> None:
    rig = ListenerRig()
    rig.push(1, "once", priority=4)
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.run_until_idle()
    assert rig.waiting() == 0
    rig.listener.quiet()
    rig.run_until_idle()
    assert (rig.waiting(), rig.state.requests, rig.state.totals) == (1, {}, {"returned": 1})
    other = rig.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    (leased,) = other.consumer.lease(["celery"], 9).messages
    assert (leased.headers, leased.body, leased.priority) == (request.leased.headers, request.leased.body, 4)


def test_unconfirmed_early_ack_is_not_replaced_by_a_release() -> None:
    """A release finds nothing if the ack was applied; repeating the ack shows which."""
    rig = ListenerRig(store=(store := UnconfirmingStore()))
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.step()
    rig.listener.quiet()
    store.unconfirmed = False
    rig.run_until_idle()
    assert store.settled == [Ack(request.tag)]
    assert rig.state.requests == {}


def test_message_of_an_early_ack_confirmed_on_close_is_sent_again() -> None:
    rig = ListenerRig(store=(store := UnconfirmingStore()))
    rig.push(1, "once")
    rig.run_until_idle()
    (request,) = rig.take()
    rig.early.ask([request], 0.0)
    rig.step()
    store.unconfirmed = False
    rig.listener.closed()
    assert (store.settled, rig.waiting(), store.pushes) == ([Ack(request.tag)], 1, 2)
    assert (len(rig.early), rig.state.requests, rig.listener.left()) == (0, {}, {})


@pytest.mark.parametrize("lost", [True, False])
def test_unanswered_early_ack_is_reported_on_close(lost: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is lost, or the broker does not answer before the timeout."""

    class Losing(UnconfirmingStore):
        lost = False

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            if self.lost:
                raise LeaseLost("the connection fell")
            return super().settle(generation, settlements)

    rig = ListenerRig(store=(store := Losing()))
    rig.push(2, "once")
    rig.run_until_idle()
    one, unasked = rig.take()
    rig.early.ask([one], 0.0)
    rig.step()
    one.id, unasked.id, store.lost = "one", "unasked", lost
    rig.early.ask([unasked], 0.0)
    rig.listener.stop(rig.clock.monotonic() + 5)
    rig.listener.closed()
    assert rig.listener.left() == {DOUBTFUL: ["one"]}
    assert "1 tasks were perhaps acknowledged before they ran" in caplog.text


def test_early_ack_in_doubt_is_reported_on_close() -> None:
    """Its failure may not be stored: the writer of a separate result store may have stopped already."""
    rig = ListenerRig(worker_ack_flush_seconds=0, store=UnconfirmingStore)
    request = request_with_doubtful_ack(rig)
    rig.listener.closed()
    assert rig.listener.left() == {DOUBTFUL: [request.id]}


def test_resend_of_an_early_acked_message_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    """A failed push may have reached the broker, and this task must not run twice."""

    class FailingPushStore(MemoryStore):
        tries = 0

        def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
            if envelopes[0].priority == 4:
                self.tries += 1
                raise BrokerUnavailable("no answer")
            super().push(envelopes, timeout)

    rig = ListenerRig(store=(store := FailingPushStore()))
    request = rig.rooms.request(1, "once", priority=4)
    request.acked = True
    rig.state.enter(request)
    rig.ready.put_back([request])
    rig.listener.quiet()
    rig.run_until_idle()
    rig.listener.closed()
    assert (store.tries, rig.state.requests) == (1, {})
    assert "have not run and are lost: id-1" in caplog.text
    assert store.results["id-1"][1] == "FAILURE"


# -- how long the lease is valid --


def test_lease_is_valid_only_until_it_may_have_expired() -> None:
    rig = ListenerRig(worker_lease_seconds=15)
    assert rig.lease.current()
    rig.clock.advance(14.9)
    assert rig.lease.current()
    rig.clock.advance(0.2)
    assert not rig.lease.current()
    rig.run_until_idle()
    assert rig.lease.current()


def test_shorter_silence_limit_of_the_server_shortens_the_lease() -> None:
    store = MemoryStore()
    store.silent_seconds = 5.0
    rig = ListenerRig(worker_lease_seconds=15, store=store)
    rig.clock.advance(4.9)
    assert rig.lease.current()
    rig.clock.advance(0.2)
    assert not rig.lease.current()


def test_renewed_lease_counts_from_the_start_of_the_renewal() -> None:
    class Slow(MemoryStore):
        def extend(self) -> None:
            super().extend()
            rig.clock.advance(20)

    rig = ListenerRig(worker_lease_seconds=15, store=(store := Slow()))
    store.clock = store._uptime = rig.clock  # type: ignore[assignment]
    store._uptime = rig.clock.monotonic
    rig.push(1)
    rig.run_until_idle()
    rig.clock.advance(6)
    rig.listener.step(rig.clock.monotonic())
    assert not rig.lease.current()


def test_ready_queue_is_woken_when_the_lease_is_valid_again() -> None:
    rig = ListenerRig(worker_lease_seconds=15)
    rig.push(4)
    rig.run_until_idle()
    rig.clock.advance(16)
    seen = rig.ready.changes
    rig.run_until_idle()
    assert rig.lease.current()
    assert rig.ready.changes > seen


def test_lost_lease_drops_requests_that_the_pool_has_not_started() -> None:
    rig = ListenerRig()
    rig.push(2)
    rig.run_until_idle()
    running, unbegun = rig.run(2)
    rig.pool.started.remove(unbegun)
    lose_lease(rig)
    rig.step()
    assert set(rig.state.requests) == {running.key}


def test_no_lease_is_valid_while_registering_again() -> None:
    """Whether or not the old lease would have expired."""

    class Watched(MemoryStore):
        def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
            stood.append(len(stood) > 0 and rig.lease.current() is not None)
            return super().register(name, queues, concurrency)

    stood: list[bool] = []
    servers = FakeClock()
    rig = ListenerRig(store=Watched(servers))
    rig.push(1)
    rig.run_until_idle()
    other = rig.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    servers.advance(20)
    assert other.consumer.reclaim()
    assert rig.lease.current() is not None
    rig.run_until_idle()
    assert stood == [False, False]
    assert rig.lease.current() is not None


def test_lease_expired_outcome_after_lease_loss_is_ignored() -> None:
    rig = ListenerRig()
    rig.push(1)
    rig.run_until_idle()
    (request,) = rig.take()  # taken, but not yet submitted
    other = lose_lease(rig)
    (theirs,) = other.consumer.lease(["celery"], 9).messages
    rig.run_until_idle()
    rig.settler.ended([(request, Outcome(LEASE_EXPIRED))])
    rig.run_until_idle()
    assert rig.state.requests == {}
    assert other.held == {theirs.tag}


def test_idle_process_gets_its_request_directly() -> None:
    rig = ListenerRig()
    rig.idle = 1
    rig.push(2)
    rig.step()
    assert len(rig.given_at_once) == 1
    assert len(rig.ready) == 1


# -- a broker that has not started yet --


class LateStore(MemoryStore):
    """A broker that starts after the worker."""

    there = False

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        if not self.there:
            raise BrokerUnavailable("nobody listens there")
        return super().register(name, queues, concurrency)


def test_broker_that_starts_later_is_waited_for() -> None:
    store = LateStore()
    rig = ListenerRig(store=store)
    assert rig.listener.step(rig.clock.monotonic()) is not None
    assert (rig.listener.connection.failing, rig.listener.connection.answered_at) == (
        "nobody listens there",
        0.0,
    )
    store.there = True
    rig.push(1)
    rig.listener.step(rig.clock.monotonic())
    assert rig.listener.connection.answered_at
    assert len(rig.ready) == 1


def test_missing_broker_is_an_error_without_retry_on_startup() -> None:
    with pytest.raises(BrokerUnavailable, match="nobody listens there"):
        ListenerRig(store=LateStore(), broker_connection_retry_on_startup=False)


# -- outcomes that a child has to report, while the worker stops --


def ended_while_waiting(rig: ListenerRig, outcome: Outcome, count: int = 1) -> list[Request]:
    """Return requests that ended without a run, and wait for a child to report it to the next call."""
    rig.push(count, id="gone", chain=[dict(rig.app.tasks["add"].si(1).set(task_id="next"))])
    rig.run_until_idle()
    requests = rig.take()
    rig.settler.ended([(request, outcome) for request in requests])
    assert [request.failing is not None for request in requests] == [True] * count
    assert len(rig.ready) == count
    return requests


REVOKED_OUTCOME = Outcome(REVOKED, text="revoked")


def test_unreported_revocation_is_left_to_another_worker() -> None:
    rig = ListenerRig()
    (request,) = ended_while_waiting(rig, REVOKED_OUTCOME)
    rig.store.sender.revoke(["gone"])
    rig.listener.quiet()
    rig.run_until_idle()
    assert rig.store.settled == [Release(request.tag)]
    assert rig.state.requests == rig.store.results == {}
    with StepWorker(rig.app) as other:
        other.run()
        found = rig.app.backend.get_many(["gone", "next"])
    assert {name: meta["status"] for name, meta in found.items()} == {"gone": "REVOKED", "next": "FAILURE"}
    assert rig.rooms.ran == []


TIMED_OUT = Outcome(TIME_LIMIT, text="after 9 s")


@pytest.mark.parametrize(
    ("outcome", "acked", "state"),
    [
        (REVOKED_OUTCOME, True, "REVOKED"),  # no other worker can get it
        (TIMED_OUT, True, "FAILURE"),
        (Outcome(KILLED, text="by signal 9"), False, "FAILURE"),  # it has run, and must not again
    ],
)
def test_outcome_that_no_other_worker_can_report_is_stored_on_stop(
    outcome: Outcome, acked: bool, state: str
) -> None:
    rig = ListenerRig(task_max_deliveries=1)
    (request,) = ended_while_waiting(rig, outcome)
    request.acked = acked
    rig.listener.quiet()
    rig.run_until_idle()
    assert rig.ready.reports == 1, "a child may report it until the pool stops"
    rig.listener.closed()
    assert rig.store.results["gone"][1] == state
    assert (rig.state.requests, len(rig.ready)) == ({}, 0)
    assert rig.waiting() == (1 if acked else 0)  # not acked here


def test_task_over_its_time_limit_runs_again_if_no_child_could_report_that() -> None:
    rig = ListenerRig()
    (request,) = ended_while_waiting(rig, TIMED_OUT)
    rig.listener.quiet()
    rig.listener.closed()
    assert rig.store.settled == [Release(request.tag)]
    assert rig.store.results == {}


def test_outcomes_waiting_for_a_child_are_not_released_as_surplus() -> None:
    rig = ListenerRig()
    rig.pool.runtimes.learn("add", 0.0001)
    requests = ended_while_waiting(rig, REVOKED_OUTCOME, 9)
    rig.pool.runtimes.learn("add", 22.0)
    rig.clock.advance(1)
    rig.run_until_idle()
    rig.run_until_idle()
    assert rig.ready.clear() == []
    assert rig.ready.drop_reports(lambda request: True) == requests
    assert rig.store.settled == []
