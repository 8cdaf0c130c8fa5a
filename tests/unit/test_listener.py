"""The listener, turn by turn: what it fetches and when, how acks leave, what a fault does to it."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from qworker import __version__
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.receiving.ack_buffer import AGAIN, DOUBTFUL, LOST, AckBuffer, FlushLimits
from qworker.components.receiving.fetch_window import FetchWindow
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.listener import Listener
from qworker.components.receiving.presence_report import PresenceReport
from qworker.components.receiving.settlements import Settlements
from qworker.components.request import Request
from qworker.components.shutdown import DRAINING, RUNNING
from qworker.components.waiting.early_acks import EarlyAcks
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import ScheduleController
from qworker.components.worker_lease import Registration, WorkerLease
from qworker.errors import BrokerUnavailable, LeaseLost, PublishError
from qworker.tasks.outcome import LEASE_EXPIRED, REVOKED, TIME_LIMIT, Outcome
from qworker.testing import FakeClock, InlinePool, MemoryStore, StepWorker
from qworker.transports.lease import (
    Ack,
    Claim,
    DeadLetter,
    Envelope,
    Leased,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.presence import MAX_RUNNING, Presence, RunningTask, from_text, to_text
from tests.support.logging_events import logged
from tests.support.rooms import Rooms, tags

ROW = ("id", "SUCCESS", b"{}", None)


class Ears:
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
            PresenceReport(self.clock, lambda: self.phase, self.lease, self.pool, waiting, acks, self.state),
        )
        self.listener.opened()

    def offer(self, requests: list[Request]) -> list[Request]:
        """As a mediator: as many processes are idle as a test says; they only remember what they were
        given."""
        taken, rest = requests[: self.idle], requests[self.idle :]
        self.idle -= len(taken)
        self.given_at_once = [request.tag for request in taken]
        return rest

    def push(self, count: int, task: str = "add", **fields: Any) -> None:
        fields.setdefault("id", "pushed")
        self.store.sender.push([self.rooms.envelope(task, number, **fields) for number in range(count)])

    def turn(self) -> float | None:
        """One turn, after whatever the wait before it would have heard."""
        self.listener.wait(0)
        return self.listener.step(self.clock.monotonic())

    def turns(self, most: int = 50) -> float:
        """Turns until the listener would rest; for how long."""
        for _ in range(most):
            rest = self.turn()
            assert rest is not None
            if rest > 0:
                return rest
        raise AssertionError("it never rests")

    def pass_time(self, seconds: int) -> None:
        """Let time go by as it does for a worker that is well: it looks around every second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.turns()

    def take(self, count: int = 99) -> list[Request]:
        """What the mediator would take; held by nobody then."""
        return self.ready.get_many(Slots(count, count))

    def run(self, count: int = 99) -> list[Request]:
        """Let the pool take so many, and have them running."""
        requests = self.take(count)
        assert self.pool.submit(requests) == []
        self.pool.started.extend(requests)
        return requests

    def post(self, request: Request, settlement: Settlement) -> None:
        self.mailbox.post_many([SettlementOrder(request, settlement)])

    def waiting(self) -> int:
        """How many messages are in the broker, leased or not."""
        return sum(info.ready + info.delayed + info.leased for info in self.store.admin.queues())


# -- fetching --


def test_it_fetches_as_much_as_the_window_has_room_for_and_no_more() -> None:
    ears = Ears()
    ears.push(10)
    ears.turns()
    assert len(ears.ready) == 4
    assert len(ears.store.held) == 4
    ears.turns()
    assert len(ears.ready) == 4


def test_it_fetches_again_when_there_is_room_though_nothing_was_published() -> None:
    ears = Ears()
    ears.push(6)
    ears.turns()
    for request in ears.take():
        ears.post(request, Ack(request.tag))
    ears.turns()
    assert len(ears.ready) == 2


def test_it_does_not_ask_an_empty_broker_again_until_the_bell_rings() -> None:
    class Counting(MemoryStore):
        asked = 0

        def lease(self, *given: Any) -> Claim:
            self.asked += 1
            return super().lease(*given)

    ears = Ears(store=(store := Counting()))
    ears.turns()
    before = store.asked
    ears.turns()
    assert store.asked == before
    ears.push(1)
    ears.turns()
    assert store.asked > before
    assert len(ears.ready) == 1


def test_requests_are_in_the_ledger_from_their_receipt() -> None:
    ears = Ears()
    ears.push(2)
    ears.turns()
    assert set(tags(ears.state.requests.values())) == set(tags(ears.take()))


def test_the_most_urgent_are_fetched_first() -> None:
    ears = Ears()
    ears.push(5)
    ears.push(1, priority=9)
    ears.turns()
    assert ears.take(1)[0].leased.priority == 9


def test_what_is_fetched_weighs_what_its_task_takes() -> None:
    ears = Ears()
    ears.pool.runtimes.learn("add", 0.002)
    ears.push(1)
    ears.turns()
    assert ears.ready.load == ears.pool.expected_runtime("add")


def test_it_rests_no_longer_than_a_second_so_that_it_hears_of_the_dead() -> None:
    assert 0 < Ears().turns() <= 1.0


def test_a_worker_full_of_async_tasks_still_fetches() -> None:
    ears = Ears()
    ears.push(10, "nap")
    ears.turns()
    ears.run()
    ears.turns()
    assert len(ears.ready) == 4


# -- what was fetched ahead and turns out long --


def test_what_was_fetched_ahead_and_turns_out_long_goes_back_to_the_broker() -> None:
    ears = Ears()
    ears.pool.runtimes.learn("boom", 0.0001)
    ears.push(100)
    ears.turns()
    assert len(ears.ready) > 50
    ears.pool.runtimes.learn("add", 0.9)
    ears.clock.advance(1)
    ears.turns()
    ears.turns()
    assert len(ears.ready) == 4
    assert len(ears.store.held) == len(ears.state.requests) == 4
    assert ears.waiting() == 100


def test_what_waits_behind_long_tasks_goes_back_for_others_to_run() -> None:
    ears = Ears()
    ears.push(6)
    ears.turns()
    assert len(ears.run(2)) == 2
    assert len(ears.ready) == 2
    ears.pool.busy_for_long = 2
    ears.clock.advance(1)
    ears.turns()
    ears.turns()
    assert (len(ears.ready), len(ears.store.held), ears.waiting()) == (0, 2, 6)
    ears.pool.busy_for_long = 1
    ears.pool.held.pop()
    ears.pool.runtimes.learn("add", 22.0)
    ears.clock.advance(1)
    ears.turns()
    assert len(ears.ready) == 1, "of long tasks none is fetched ahead any more"


def test_surplus_that_was_acked_early_stays() -> None:
    ears = Ears()
    requests = ears.rooms.requests(6, "once", first=1000)
    for request in requests:
        request.acked = True
        ears.state.enter(request)
    ears.ready.put_many(requests)
    ears.pool.runtimes.learn("once", 1.0)
    ears.turns()
    assert sorted(tags(ears.ready.clear())) == [1000, 1001, 1002, 1003, 1004, 1005]
    assert ears.store.settled == []


# -- near and far --


def test_a_far_message_stays_in_the_broker() -> None:
    ears = Ears(worker_eta_window=5)
    ears.push(1, due=ears.clock.now() + 60)
    assert ears.turns() <= 1.0
    assert (len(ears.schedule.schedule), len(ears.ready), ears.store.held) == (0, 0, set())


def test_a_near_message_waits_in_the_schedule_and_takes_no_slot() -> None:
    ears = Ears(worker_eta_window=5)
    ears.push(3, due=ears.clock.now() + 4)
    ears.push(4)
    ears.turns()
    assert (len(ears.schedule.schedule), len(ears.ready)) == (3, 4)


def test_a_far_message_is_fetched_when_it_gets_near() -> None:
    ears = Ears(worker_eta_window=5)
    ears.push(1, due=ears.clock.now() + 60)
    ears.turns()
    ears.clock.advance(54.5)
    rest = ears.turns()
    assert len(ears.schedule.schedule) == 0
    assert rest <= 0.5  # it will look just then
    ears.clock.advance(0.5)
    ears.turns()
    assert len(ears.schedule.schedule) == 1
    assert len(ears.ready) == 0
    ears.clock.advance(5)
    ears.schedule.step(ears.clock.monotonic())
    assert len(ears.ready) == 1


def test_the_schedule_is_bounded() -> None:
    ears = Ears(worker_eta_window=5, worker_eta_task_limit=10)
    ears.push(30, due=ears.clock.now() + 4)
    ears.turns()
    assert len(ears.schedule.schedule) == 10


def test_what_found_no_room_in_the_schedule_runs_when_it_is_due() -> None:
    ears = Ears(worker_eta_window=5, worker_eta_task_limit=2)
    ears.push(4, due=ears.clock.now() + 4)
    ears.turns()
    ears.clock.advance(3.9)
    assert 0 < ears.turns() <= 0.1
    assert len(ears.ready) == 0
    ears.clock.advance(0.1)
    ears.schedule.step(ears.clock.monotonic())
    ears.turns()
    assert len(ears.ready) == 4


def test_a_message_that_fell_due_is_fetched_though_the_schedule_is_full_and_the_pool_busy() -> None:
    ears = Ears(worker_eta_window=5, worker_eta_task_limit=1)
    ears.push(2, due=ears.clock.now() + 1)
    ears.push(4)
    ears.turns()
    ears.clock.advance(2)
    for request in ears.take():
        ears.post(request, Ack(request.tag))
    ears.turns()
    assert len(ears.ready) >= 1


# -- what goes back --


def test_acks_wait_for_each_other() -> None:
    ears = Ears(worker_ack_flush_seconds=0.005)
    ears.push(4)
    ears.turns()
    one, two, *_ = ears.run()
    ears.post(one, Ack(one.tag))
    assert ears.turns() == pytest.approx(0.005)
    assert ears.store.settled == []
    ears.clock.advance(0.004)
    ears.post(two, Ack(two.tag))
    ears.turns()
    assert ears.store.settled == []
    ears.clock.advance(0.001)
    ears.turns()
    assert ears.store.settled == [Ack(one.tag), Ack(two.tag)]


def test_while_acks_wait_more_of_them_wake_nobody() -> None:
    ears = Ears()
    ears.push(4)
    ears.turns()
    one, two, *_ = ears.run()
    ears.post(one, Ack(one.tag))
    ears.turns()
    assert ears.mailbox.armed
    ears.turns()
    ears.post(two, Ack(two.tag))
    assert not ears.store.consumer.wait(0)  # neither rung nor woken


def test_many_acks_do_not_wait() -> None:
    ears = Ears(worker_ack_flush_count=3, worker_ack_flush_seconds=1)
    ears.push(4)
    ears.turns()
    requests = ears.run(4)
    for request in requests[:2]:
        ears.post(request, Ack(request.tag))
    ears.turns()
    assert ears.store.settled == []
    ears.post(requests[2], Ack(requests[2].tag))
    ears.turns()
    assert len(ears.store.settled) == 3


def test_the_last_ack_of_an_idle_worker_does_not_wait() -> None:
    ears = Ears(worker_ack_flush_seconds=1)
    ears.push(1)
    ears.turns()
    ears.run()
    ears.pool.run()
    ears.turn()
    assert [type(settlement) for settlement in ears.store.settled] == [Ack]


def test_acks_go_before_the_fetch_that_they_make_room_for() -> None:
    ears = Ears(worker_ack_flush_seconds=1)
    ears.push(6)
    ears.turns()
    for request in ears.take():
        ears.post(request, Ack(request.tag))
    ears.turn()
    assert len(ears.store.settled) == 4
    assert len(ears.ready) == 2


def test_settled_requests_leave_the_ledger_and_are_counted() -> None:
    ears = Ears()
    ears.push(4)
    ears.turns()
    finished, returned, rejected, stored = ears.take()
    ears.post(finished, Ack(finished.tag, ROW))
    ears.post(returned, Release(returned.tag, ears.clock.now() + 99))
    ears.post(rejected, DeadLetter(rejected.tag, "why"))
    stored.acked = True
    ears.mailbox.post(SettlementOrder(stored, None))
    ears.turns()
    assert ears.state.requests == {}
    assert ears.state.totals == {"finished": 2, "returned": 1, "dead_lettered": 1}
    assert ears.store.results == {"id": ROW}


def test_deaths_and_what_tasks_put_back_are_counted_apart() -> None:
    ears = Ears()
    ears.push(2)
    ears.turns()
    died, requeued = ears.take()
    ears.post(died, Release(died.tag, ears.clock.now() + 99, counted=True))
    ears.post(requeued, Release(requeued.tag, ears.clock.now() + 99, requeued=True))
    ears.turns()
    assert ears.state.totals == {"lost": 1, "requeued": 1}


def test_an_order_that_is_not_the_last_leaves_the_request_here() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1)
    ears.turns()
    (request,) = ears.run()
    ears.settler.started([(request, ("id", "STARTED", b"{}", None))])
    ears.turns()
    assert ears.store.settled == [Store(("id", "STARTED", b"{}", None))]
    assert ears.state.requests == {request.key: request}
    assert ears.state.totals == {}


def test_what_must_not_run_twice_runs_once_its_ack_is_in_the_broker() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    assert ears.early.take() == []
    ears.turns()
    assert ears.store.settled == [Ack(request.tag)]
    assert (request.acked, tags(ears.early.take())) == (True, [request.tag])
    assert ears.state.requests == {request.key: request}


# -- faults --


def test_a_broker_that_is_away_is_asked_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()
    ears.push(1)
    ears.store.away = True
    with caplog.at_level(logging.ERROR):
        pauses = [ears.listener.step(ears.clock.monotonic()) for _ in range(40)]
    assert all(0.05 <= (pause or 0) <= 10 for pause in pauses)
    assert max(pause or 0 for pause in pauses) > 1  # at random, but not all 40 are short
    assert "broker-lost" in logged(caplog)
    assert len(caplog.records) < 10  # not a line for each
    ears.store.away = False
    ears.turns()
    assert len(ears.ready) == 1


def test_settlements_wait_for_a_broker_that_is_away() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1)
    ears.turns()
    (request,) = ears.take()
    ears.store.away = True
    ears.post(request, Ack(request.tag))
    ears.listener.step(ears.clock.monotonic())
    assert ears.state.requests == {request.key: request}
    ears.store.away = False
    ears.turns()
    assert ears.store.settled == [Ack(request.tag)]
    assert ears.state.requests == {}


def test_health_is_the_last_turn_in_which_the_broker_answered() -> None:
    ears = Ears()
    ears.turns()
    at = ears.listener.connection.answered_at
    assert at == ears.clock.monotonic()
    ears.clock.advance(1)
    ears.store.away = True
    ears.listener.step(ears.clock.monotonic())
    assert ears.listener.connection.answered_at == at


def lose_lease(ears: Ears) -> MemoryStore:
    """Let another worker take this one for dead."""
    other = ears.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    ears.clock.advance(20)
    assert other.consumer.reclaim()
    return other


def test_a_lost_lease_leaves_what_has_not_started_to_others() -> None:
    ears = Ears(worker_eta_window=60)
    ears.push(4)
    ears.push(2, due=ears.clock.now() + 50)
    ears.turns()
    running = ears.run(2)
    assert (len(ears.ready), len(ears.schedule.schedule)) == (2, 2)
    other = lose_lease(ears)
    taken = other.consumer.lease(["celery"], 99, 99, 60).messages
    assert len(taken) == 6
    ears.turns()
    assert (len(ears.ready), len(ears.schedule.schedule)) == (0, 0)
    assert set(tags(ears.state.requests.values())) == set(tags(running))
    assert len(ears.store.held) == 0


def test_after_a_lost_lease_it_goes_on_under_a_new_one() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    lose_lease(ears)
    ears.turns()
    ears.turns()
    (request,) = ears.take()
    assert request.leased.redelivered
    ears.post(request, Ack(request.tag))
    ears.turns()
    assert ears.waiting() == 0


def test_a_run_that_ended_under_a_lost_lease_settles_nothing_of_the_new_holders(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    (request,) = ears.run()
    other = lose_lease(ears)
    (theirs,) = other.consumer.lease(["celery"], 9).messages
    ears.turns()
    ears.pool.held.clear()
    ears.post(request, Ack(request.tag, ROW))
    ears.turns()
    assert ears.store.results == {}
    assert other.held == {theirs.tag}
    assert "task-lease-lost" in logged(caplog)
    assert ears.state.requests == {}


def test_a_finished_run_whose_message_comes_again_is_acked_and_not_run_again() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    (request,) = ears.run()
    other = lose_lease(ears)
    other.consumer.lease(["celery"], 9)
    ears.turns()
    ears.pool.held.clear()
    ears.post(request, Ack(request.tag, ROW))
    ears.turns()
    other.consumer.deregister()
    ears.turns()
    ears.turns()
    assert (len(ears.ready), ears.waiting()) == (0, 0)
    assert ears.store.results == {"id": ROW}


def test_a_message_that_comes_again_while_it_runs_here_is_settled_by_that_run() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    (request,) = ears.run()
    lose_lease(ears)
    ears.turns()  # the lease is lost, and the message fetched again
    ears.turns()
    assert len(ears.ready) == 0
    assert ears.store.held == {request.tag}
    ears.pool.held.clear()
    ears.post(request, Ack(request.tag))
    ears.turns()
    assert ears.waiting() == 0


def test_an_early_ack_that_came_too_late_lets_nothing_run() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    other = lose_lease(ears)
    assert len(other.consumer.lease(["celery"], 9).messages) == 1  # and will run it
    ears.early.ask([request], 0.0)
    ears.turns()
    assert (len(ears.early), len(ears.ready), request.acked, ears.state.requests) == (0, 0, False, {})


def test_a_broker_that_fails_while_it_is_waited_for_is_asked_again() -> None:
    """To wait is no reason to give up; what is wrong is said by the next turn."""

    class Moody(MemoryStore):
        moods: ClassVar = [BrokerUnavailable("the connection fell"), LeaseLost("taken for dead")]

        def wait(self, timeout: float, prefetch: int = 0) -> bool:
            if self.moods:
                raise self.moods.pop()
            return super().wait(timeout)

    ears = Ears(store=(store := Moody()))
    ears.push(1)
    ears.turn()
    ears.turn()
    assert (store.moods, len(ears.ready)) == ([], 1)


class EagerStore(MemoryStore):
    """Claims as much as is expected while it waits."""

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


def test_it_says_how_many_messages_may_be_claimed_while_it_waits() -> None:
    ears = Ears(store=(store := EagerStore()))
    ears.turns()
    assert store.expected[-1] == 4  # two run, and each has one behind it
    ears.push(3)
    ears.turn()
    assert len(ears.ready) == 3
    ears.turn()
    assert store.expected[-1] == 1
    ears.listener.quiet()
    ears.turn()
    assert store.expected[-1] == 0


def test_what_was_claimed_meanwhile_goes_back_if_its_place_was_taken() -> None:
    """By a task that fell due, for instance: it would wait here,
    and another worker may have nothing to do."""
    ears = Ears(store=(store := EagerStore()))
    ears.turns()
    ears.push(4)
    ears.listener.wait(0)
    assert store.consumer.prefetched
    ears.ready.put_many(ears.rooms.requests(3))
    ears.turns()
    assert len(ears.ready) == 4
    assert {info.queue: (info.ready, info.leased) for info in store.admin.queues()} == {"celery": (3, 1)}


class Order(EagerStore):
    """Keeps in which order it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def lease(self, *given: Any) -> Claim:
        self.asked.append("prefetched" if self.taken else "lease")
        return super().lease(*given)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.asked.append("settle")
        return super().settle(generation, settlements)


def test_what_was_claimed_meanwhile_waits_for_no_journey_to_the_broker() -> None:
    """As the next of a chain does, which comes with the end of the one before it."""
    ears = Ears(store=(store := Order()), worker_ack_flush_seconds=0)
    ears.turns()
    ears.push(1)
    ears.turns()
    (request,) = ears.take()
    store.asked.clear()
    ears.push(1)
    ears.post(request, Ack(request.tag))
    ears.turn()
    assert (len(ears.ready), store.asked) == (1, ["prefetched", "settle"])


class Revoking(MemoryStore):
    """Somebody revokes as we claim, and the claim does not tell. *answers*: whether revocations can be had
    just then."""

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


def test_what_is_revoked_until_it_is_claimed_does_not_run() -> None:
    ears = Ears(store=Revoking())
    ears.push(1)
    ears.turn()
    assert (len(ears.ready), ears.state.requests) == (0, {})


def test_what_is_claimed_is_not_lost_when_revocations_cannot_be_heard() -> None:
    ears = Ears(store=(store := Revoking(False, False)))
    ears.push(1)
    ears.turn()
    assert (len(ears.ready), ears.listener.connection.failures) == (1, 1)
    ears.turn()
    assert store.answers == []
    assert [request.revocation is not None for request in ears.take()] == [True], "they are asked for again"


class Deaf(MemoryStore):
    """Carries out what it is told, and does not say so while it is deaf."""

    deaf = True

    def confirm(self) -> None:
        if self.deaf:
            raise BrokerUnavailable("no answer")


def test_an_early_ack_that_was_answered_and_not_confirmed_is_known_to_be_done() -> None:
    ears = Ears(worker_ack_flush_seconds=0, store=(store := Deaf()))
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turn()
    assert (ears.early.take(), store.settled) == ([], [Ack(request.tag)])
    store.deaf = False
    ears.turns()
    assert (ears.early.take(), request.acked) == ([request], True)
    assert store.settled == [Ack(request.tag)]


@pytest.mark.parametrize("also", ["once", "add"])
def test_a_settlement_whose_answer_was_lost_is_known_to_be_done(
    also: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(MemoryStore):
        mute = False

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            lost = super().settle(generation, settlements)
            if self.mute:
                raise BrokerUnavailable("the answer is lost")
            return lost

    ears = Ears(worker_ack_flush_seconds=0, store=(store := Mute()))
    ears.push(1, also)
    ears.turns()
    (request,) = ears.take()
    store.mute = True
    if also == "once":
        ears.early.ask([request], 0.0)
    else:
        ears.post(request, Ack(request.tag, ROW))
    ears.turn()
    assert store.settled == [Ack(request.tag, None if also == "once" else ROW)]
    store.mute = False
    ears.turns()
    assert [one.tag for one in ears.early.take()] == ([request.tag] if also == "once" else [])
    assert "task-lease-lost" not in logged(caplog)
    assert len(store.settled) == 1


def doubtful(ears: Ears, heard: bool = True) -> Request:
    """A request whose early ack was told, and then the lease was lost. heard: what was held went to another;
    otherwise it comes again."""
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.push(1, id="beside")  # by which it notices
    ears.turns()
    ears.early.ask([request], 0.0)
    ears.turn()
    lose_lease(ears).consumer.lease(["celery"], 9 if heard else 0)
    assert isinstance(ears.store, Deaf)
    ears.store.deaf = False
    ears.turns()
    return request


def test_an_early_ack_of_which_nobody_knows_ends_as_a_failure() -> None:
    """The broker has heard it, and says no more whether it was that or that others have the message."""
    ears = Ears(worker_ack_flush_seconds=0, store=Deaf)
    request = doubtful(ears)
    assert (len(ears.early), ears.store.results) == (0, {})
    ears.pass_time(5)
    assert (ears.early.take(), ears.state.requests) == ([], {})
    (row,) = ears.store.results.values()
    assert row[:2] == (request.id, "FAILURE")
    assert b"WorkerLost" in row[2]


def test_a_worker_that_stops_does_not_wait_for_what_becomes_of_an_early_ack() -> None:
    ears = Ears(worker_ack_flush_seconds=0, store=Deaf)
    request = doubtful(ears)
    ears.listener.quiet()
    ears.turns()
    ears.turns()
    assert ears.store.results[request.id][1] == "FAILURE"
    assert ears.state.requests == {}


def test_an_early_ack_that_was_not_heard_is_given_when_the_message_comes_again() -> None:
    class Forgetful(Deaf):
        """Forgets what it did not confirm, as RabbitMQ does the acks of a connection that broke."""

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            return set() if self.deaf else super().settle(generation, settlements)

    ears = Ears(worker_ack_flush_seconds=0, store=Forgetful)
    request = doubtful(ears, heard=False)
    ears.turns()
    assert request in ears.take()
    ears.early.ask([request], 0.0)
    ears.turns()
    assert tags(ears.early.take()) == [request.tag]
    assert (ears.store.results, ears.waiting()) == ({}, 1), "the other one is there"


def test_a_message_that_comes_again_though_it_was_acked_before_it_ran_is_acked_again() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turns()
    assert ears.early.take() == [request]
    # As after a crash that undid the ack.
    ears.store.sender.push([Envelope("celery", request.leased.headers, None, request.leased.body)])
    messages = ears.store._building.queues.messages
    (tag,) = messages
    messages[request.tag] = messages.pop(tag)
    messages[request.tag].tag = request.tag
    ears.turns()
    ears.turns()
    assert (len(ears.ready), ears.waiting(), ears.state.requests) == (0, 0, {request.key: request})


def test_what_was_acked_early_survives_a_lost_lease() -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.push(1, "once")
    ears.turns()
    (once,) = ears.take()
    ears.early.ask([once], 0.0)
    ears.turns()
    ears.ready.put_back(ears.early.take())  # as what was in the pool and had not begun
    ears.push(1)  # by which it notices
    ears.turns()
    lose_lease(ears).consumer.lease(["celery"], 9)
    ears.turns()
    assert tags(ears.run()) == [once.tag]
    assert ears.state.requests == {once.key: once}  # where a revocation still finds it
    ears.pool.held.clear()
    ears.post(once, Store(ROW))  # its result is stored, whatever became of the lease
    ears.turns()
    assert ears.store.results == {"id": ROW}
    assert ears.state.requests == {}


def test_a_broker_that_goes_away_with_the_lease_is_waited_for() -> None:
    class Leaving(MemoryStore):
        times = 0

        def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
            self.times += 1
            self.away = self.times == 2
            return super().register(name, queues, concurrency)

    ears = Ears(store=Leaving)
    ears.push(1)
    ears.turns()
    lose_lease(ears)
    assert (ears.listener.step(ears.clock.monotonic()) or 0) > 0
    ears.store.away = False
    ears.turns()
    assert len(ears.take()) == 1


# -- now and then --


def test_leases_are_renewed_while_something_is_held() -> None:
    ears = Ears(worker_lease_seconds=15)
    ears.push(1)
    ears.turns()
    other = ears.store.another()
    for _ in range(10):
        ears.clock.advance(5)
        ears.turns()
        assert other.consumer.reclaim() == []
    assert len(ears.store.held) == 1


class Counting(MemoryStore):
    """Counts the renewals of leases."""

    renewals = 0

    def extend(self) -> None:
        self.renewals += 1
        super().extend()


def test_an_idle_worker_renews_every_third_of_its_lease_and_no_more_often() -> None:
    """So that it is seen, with everything that others read of it."""
    ears = Ears(store=(store := Counting()), worker_lease_seconds=30.0)
    ears.turns()
    store.renewals = 0
    ears.pass_time(60)
    assert store.renewals == 6


def told(ears: Ears) -> Presence:
    (found,) = ears.store.another().admin.workers()
    return found


def test_a_worker_has_told_of_itself_when_it_is_first_seen() -> None:
    ears = Ears()
    assert (told(ears).status, told(ears).pid, told(ears).host) == ("starting", 0, socket.gethostname())
    ears.turns()
    found = told(ears)
    assert (found.status, found.busy, found.waiting) == ("idle", 0, 0)
    assert (found.started, found.seen) == (ears.clock.now(), ears.clock.now())
    assert (found.version, found.python) == (__version__, platform.python_version())
    assert found.memory > 0


def test_what_runs_and_waits_is_told_within_a_second() -> None:
    ears = Ears()
    ears.turns()
    ears.push(3)
    ears.turns()
    (first,) = ears.run(1)
    began = ears.clock.now()
    ears.pass_time(1)
    found = told(ears)
    assert (found.status, found.busy, found.waiting, found.seen) == ("working", 1, 2, ears.clock.now())
    started = pytest.approx(began, abs=2.0)
    assert found.running == (RunningTask(first.id, first.name, started, os.getpid(), "celery"),)


def test_what_does_not_change_is_not_told_again_before_the_lease_is_renewed() -> None:
    ears = Ears(store=(store := Counting()), worker_lease_seconds=3000.0)
    ears.push(1)
    ears.turns()
    ears.run(1)
    ears.pass_time(2)
    store.renewals, known = 0, told(ears)
    ears.pass_time(30)
    assert (store.renewals, told(ears)) == (0, known)


def test_changes_are_told_once_a_second_however_many_they_are() -> None:
    ears = Ears(store=(store := Counting()), worker_lease_seconds=3000.0)
    ears.turns()
    store.renewals = 0
    for _ in range(4):
        ears.push(1)
        ears.turns()
    assert store.renewals == 0
    ears.pass_time(1)
    assert (store.renewals, told(ears).waiting) == (1, 4)


def test_who_stops_says_so() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    ears.run(1)
    ears.phase = DRAINING
    ears.listener.quiet()
    ears.pass_time(1)
    assert told(ears).status == "stopping"


def test_who_registers_again_tells_of_itself_at_once() -> None:
    ears = Ears(worker_lease_seconds=15)
    ears.turns()
    ears.push(1)
    ears.turns()
    other = ears.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    ears.clock.advance(16)
    assert [dead.name for dead in other.consumer.reclaim()] == ["w@h"]
    other.consumer.deregister()
    ears.turns()
    assert told(ears).status == "idle"


def test_no_more_than_a_hundred_running_tasks_are_named() -> None:
    names = [RunningTask(str(number), "proj.add", 1.0) for number in range(150)]
    record = Presence("w@h", 1, ("q",), 4, 0.0)
    text = to_text(record._replace(running=tuple(names), busy=150))
    found = from_text(text, record)
    assert (found.busy, found.running) == (150, tuple(names[:MAX_RUNNING]))


def test_what_a_dead_worker_held_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()
    victim = ears.store.another()
    victim.consumer.register("victim@h", ["celery"], 1)
    ears.push(2)
    assert len(victim.consumer.lease(["celery"], 9).messages) == 2
    ears.turns()
    assert len(ears.ready) == 0
    ears.pass_time(20)
    assert len(ears.ready) == 2
    assert "worker victim@h is dead: 2 of its messages are back" in caplog.text


def test_who_was_cut_off_itself_gives_the_others_a_lease_to_speak() -> None:
    """After an outage for all, the first one back must not take the others for dead."""
    ears = Ears(worker_lease_seconds=15)
    other = ears.store.another()
    generation = other.consumer.register("other@h", ["celery"], 1)
    ears.push(2)
    held = other.consumer.lease(["celery"], 9).messages
    ears.turns()
    ears.clock.advance(60)  # nobody reaches the broker, or this process stands still
    ears.turns()
    ears.pass_time(5)
    assert len(ears.ready) == 0
    other.consumer.extend()
    ears.pass_time(14)
    assert len(ears.ready) == 0
    assert other.consumer.settle(generation, [Ack(held[0].tag)]) == set()


def test_who_stays_silent_after_an_outage_is_dead() -> None:
    ears = Ears(worker_lease_seconds=15)
    other = ears.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    ears.push(2)
    other.consumer.lease(["celery"], 9)
    ears.turns()
    ears.clock.advance(60)
    ears.turns()
    ears.pass_time(16)
    assert len(ears.ready) == 2


def test_dead_letters_are_swept() -> None:
    ears = Ears(dead_letter_max=3)
    ears.turns()
    ears.push(4, "nobody knows")
    holder = ears.store.another()
    generation = holder.consumer.register("h", ["celery"], 1)
    holder.consumer.settle(
        generation,
        [DeadLetter(leased.tag, "why") for leased in holder.consumer.lease(["celery"], 9).messages],
    )
    ears.turns()
    assert len(ears.store.admin.dead()) == 4
    ears.clock.advance(61)
    ears.turns()
    assert len(ears.store.admin.dead()) == 3


def test_revocations_are_heard_before_what_they_revoke_is_fetched() -> None:
    ears = Ears()
    ears.push(1, id="gone")
    ears.store.sender.revoke(["gone"])
    ears.turns()
    ears.turns()
    assert len(ears.ready) == 0
    assert ears.waiting() == 0


def test_a_revocation_of_what_is_here_is_passed_on() -> None:
    ears = Ears()
    ears.push(1, id="gone")
    ears.turns()
    (request,) = ears.run()
    ears.store.sender.revoke(["gone"], terminate=True, signal="SIGKILL")
    ears.turns()
    assert ears.pool.terminated == [(request, "SIGKILL")]
    assert (request.revocation.terminate, request.revocation.signal) == (True, "SIGKILL")


# -- the end --


def test_a_quiet_listener_fetches_nothing_and_acks_at_once() -> None:
    ears = Ears(worker_ack_flush_seconds=1)
    ears.push(8)
    ears.push(1, due=ears.clock.now() + 1)
    ears.turns()
    one, *_ = ears.run(2)
    ears.listener.quiet()
    ears.post(one, Ack(one.tag))
    ears.clock.advance(2)
    ears.turn()
    assert ears.store.settled == [Ack(one.tag)]
    ears.take()
    ears.turns()
    assert len(ears.ready) == 0


def test_the_last_orders_are_settled_and_the_rest_goes_back() -> None:
    ears = Ears(worker_ack_flush_seconds=1)
    ears.push(4)
    ears.turns()
    one, two, *_ = ears.take()
    ears.post(one, Ack(one.tag))
    ears.post(two, Release(two.tag, counted=True))
    ears.listener.closed()
    assert ears.store.settled == [Ack(one.tag), Release(two.tag, counted=True)]
    assert ears.store.held == set()
    after = ears.store.another()
    after.consumer.register("next@h", ["celery"], 1)
    assert [leased.deliveries for leased in after.consumer.lease(["celery"], 9).messages] == [1, 0, 0]


def away_for(ears: Ears, seconds: float) -> None:
    """Let the broker be away for so long from now on; the clock moves as the listener rests."""
    ears.store.away = True
    back = ears.clock.monotonic() + seconds

    def look() -> None:
        ears.store.away = ears.clock.monotonic() < back

    ears.clock.on_sleep = look
    ears.listener.stop(ears.clock.monotonic() + 25)


def test_at_the_end_a_broker_that_is_away_is_waited_for() -> None:
    ears = Ears()
    ears.push(3)
    ears.turns()
    one, two, _ = ears.take()
    ears.post(one, Ack(one.tag, ROW))
    ears.post(two, Ack(two.tag))
    away_for(ears, 3)
    ears.listener.closed()
    assert (ears.store.settled, ears.store.held) == ([Ack(one.tag, ROW), Ack(two.tag)], set())
    assert ears.listener.left() == {}


def test_what_the_broker_is_not_told_by_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()
    ears.push(4)
    ears.turns()
    one, two, three, _ = ears.take()
    ears.post(one, Ack(one.tag))
    ears.post(two, Release(two.tag))
    three.acked = True
    three.id = "acked"
    ears.mailbox.post(SettlementOrder(three, None, anew=True))
    away_for(ears, 100)
    ears.listener.closed()
    assert logged(caplog).count("tasks-left") == 2
    assert ears.listener.left() == {AGAIN: ["pushed"], LOST: ["acked"]}
    assert ears.clock.monotonic() < 1030


def test_what_was_acked_and_cannot_be_read_becomes_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears(worker_ack_flush_seconds=0)
    ears.store.sender.push([ears.rooms.envelope("once")._replace(body=b"[[1]")])
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turns()
    ears.settler.ended([(early, ears.pool.outcome_of(early)) for early in ears.early.take()])
    ears.pass_time(1)
    assert (ears.store.admin.dead(), ears.store.results) == ([], {})
    (again,) = ears.take()
    assert (again.acked, again.acks_late) == (False, True)
    ears.settler.ended([(again, ears.pool.outcome_of(again))])
    ears.turns()
    (dead,) = ears.store.admin.dead()
    assert (dead.body, ears.store.results["once-id"][1]) == (b"[[1]", "FAILURE")
    assert (ears.waiting(), ears.state.requests) == (0, {})
    assert "is sent again to be kept as a dead letter" in caplog.text


def test_what_was_acked_and_is_refused_when_it_goes_back_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryStore):
        def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
            if self.pushes:
                raise PublishError("it does not fit any more")
            super().push(envelopes, timeout)

    ears = Ears(store=Refusing())
    ears.push(1)
    ears.turns()
    (request,) = ears.take()
    request.acked = True
    ears.mailbox.post(SettlementOrder(request, None, anew=True))
    ears.listener.closed()
    assert ears.listener.left() == {LOST: ["pushed"]}
    assert "tasks-left" in logged(caplog)


def test_who_is_impatient_ends_the_wait_for_the_broker() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    (request,) = ears.take()
    ears.post(request, Ack(request.tag))
    away_for(ears, 100)

    def order() -> None:
        ears.listener.stop(ears.clock.monotonic())

    ears.clock.on_sleep = order
    began = ears.clock.monotonic()
    ears.listener.closed()
    assert ears.clock.monotonic() - began < 1


def test_a_lease_that_is_lost_at_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(MemoryStore):
        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            raise LeaseLost("the connection fell")

    ears = Ears(store=Lost())
    ears.push(2)
    ears.turns()
    one, acked = ears.take()
    ears.post(one, Ack(one.tag))
    acked.acked = True
    ears.mailbox.post(SettlementOrder(acked, None, anew=True))
    ears.listener.closed()
    assert "1 tasks ended and will run again: pushed" in caplog.text
    assert ears.store.pushes == 2, "nobody has what was acked"


# -- what is acked before it runs, when the worker stops --


def test_what_was_to_be_acked_before_it_ran_is_given_back_as_it_came() -> None:
    ears = Ears()
    ears.push(2, "once")
    ears.turns()
    requests = ears.take()
    ears.early.ask(requests, 0.0)
    ears.listener.quiet()
    ears.turns()
    assert ears.store.settled == [Release(request.tag) for request in requests]
    assert (len(ears.early), ears.store.held, ears.state.requests) == (0, set(), {})


def test_what_was_acked_and_has_not_started_is_sent_again() -> None:
    ears = Ears()
    ears.push(1, "once", priority=4)
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turns()
    assert ears.waiting() == 0
    ears.listener.quiet()
    ears.turns()
    assert (ears.waiting(), ears.state.requests, ears.state.totals) == (1, {}, {"returned": 1})
    other = ears.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    (leased,) = other.consumer.lease(["celery"], 9).messages
    assert (leased.headers, leased.body, leased.priority) == (request.leased.headers, request.leased.body, 4)


def test_an_early_ack_that_may_have_been_heard_is_not_taken_back() -> None:
    """To release it would find nothing to release, if it was heard; to ack it once more tells."""
    ears = Ears(store=(store := Deaf()))
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turn()
    ears.listener.quiet()
    store.deaf = False
    ears.turns()
    assert store.settled == [Ack(request.tag)]
    assert ears.state.requests == {}


def test_an_early_ack_that_is_answered_as_the_worker_closes_is_sent_again() -> None:
    ears = Ears(store=(store := Deaf()))
    ears.push(1, "once")
    ears.turns()
    (request,) = ears.take()
    ears.early.ask([request], 0.0)
    ears.turn()
    store.deaf = False
    ears.listener.closed()
    assert (store.settled, ears.waiting(), store.pushes) == ([Ack(request.tag)], 1, 2)
    assert (len(ears.early), ears.state.requests, ears.listener.left()) == (0, {}, {})


@pytest.mark.parametrize("lost", [True, False])
def test_an_early_ack_of_which_nobody_knows_at_the_end_is_named(
    lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is lost, or the broker does not answer until the time is over."""

    class Losing(Deaf):
        lost = False

        def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
            if self.lost:
                raise LeaseLost("the connection fell")
            return super().settle(generation, settlements)

    ears = Ears(store=(store := Losing()))
    ears.push(2, "once")
    ears.turns()
    one, unasked = ears.take()
    ears.early.ask([one], 0.0)
    ears.turn()
    one.id, unasked.id, store.lost = "one", "unasked", lost
    ears.early.ask([unasked], 0.0)
    ears.listener.stop(ears.clock.monotonic() + 5)
    ears.listener.closed()
    assert ears.listener.left() == {DOUBTFUL: ["one"]}
    assert "1 tasks were perhaps acknowledged before they ran" in caplog.text


def test_an_early_ack_in_doubt_is_named_when_the_worker_closes() -> None:
    """Its failure may not be stored any more: results may have a store whose writer has stopped."""
    ears = Ears(worker_ack_flush_seconds=0, store=Deaf)
    request = doubtful(ears)
    ears.listener.closed()
    assert ears.listener.left() == {DOUBTFUL: [request.id]}


def test_what_is_sent_again_is_sent_once(caplog: pytest.LogCaptureFixture) -> None:
    """A push that fails may have come through, and this task must not run twice."""

    class Deaf(MemoryStore):
        tries = 0

        def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
            if envelopes[0].priority == 4:
                self.tries += 1
                raise BrokerUnavailable("no answer")
            super().push(envelopes, timeout)

    ears = Ears(store=(store := Deaf()))
    request = ears.rooms.request(1, "once", priority=4)
    request.acked = True
    ears.state.enter(request)
    ears.ready.put_back([request])
    ears.listener.quiet()
    ears.turns()
    ears.listener.closed()
    assert (store.tries, ears.state.requests) == (1, {})
    assert "have not run and are lost: id-1" in caplog.text
    assert store.results["id-1"][1] == "FAILURE"


# -- the lease, as others see it --


def test_others_are_told_for_how_long_the_lease_surely_stands() -> None:
    ears = Ears(worker_lease_seconds=15)
    assert ears.lease.standing()
    ears.clock.advance(14.9)
    assert ears.lease.standing()
    ears.clock.advance(0.2)
    assert not ears.lease.standing()
    ears.turns()
    assert ears.lease.standing()


def test_a_server_that_gives_up_the_silent_sooner_is_heeded() -> None:
    store = MemoryStore()
    store.silent_seconds = 5.0
    ears = Ears(worker_lease_seconds=15, store=store)
    ears.clock.advance(4.9)
    assert ears.lease.standing()
    ears.clock.advance(0.2)
    assert not ears.lease.standing()


def test_a_renewed_lease_stands_from_when_it_was_asked_for() -> None:
    class Slow(MemoryStore):
        def extend(self) -> None:
            super().extend()
            ears.clock.advance(20)

    ears = Ears(worker_lease_seconds=15, store=(store := Slow()))
    store.clock = store._uptime = ears.clock  # type: ignore[assignment]
    store._uptime = ears.clock.monotonic
    ears.push(1)
    ears.turns()
    ears.clock.advance(6)
    ears.listener.step(ears.clock.monotonic())
    assert not ears.lease.standing()


def test_who_waits_for_the_lease_is_woken_when_it_stands_again() -> None:
    ears = Ears(worker_lease_seconds=15)
    ears.push(4)
    ears.turns()
    ears.clock.advance(16)
    seen = ears.ready.changes
    ears.turns()
    assert ears.lease.standing()
    assert ears.ready.changes > seen


def test_a_lost_lease_leaves_what_the_pool_has_not_begun_to_others() -> None:
    ears = Ears()
    ears.push(2)
    ears.turns()
    running, unbegun = ears.run(2)
    ears.pool.started.remove(unbegun)
    lose_lease(ears)
    ears.turn()
    assert set(ears.state.requests) == {running.key}


def test_nothing_starts_between_the_loss_of_a_lease_and_the_next() -> None:
    """Whether or not the time of the old one is over."""

    class Watched(MemoryStore):
        def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
            stood.append(len(stood) > 0 and ears.lease.standing() is not None)
            return super().register(name, queues, concurrency)

    stood: list[bool] = []
    servers = FakeClock()
    ears = Ears(store=Watched(servers))
    ears.push(1)
    ears.turns()
    other = ears.store.another()
    other.consumer.register("other@h", ["celery"], 1)
    servers.advance(20)
    assert other.consumer.reclaim()
    assert ears.lease.standing() is not None
    ears.turns()
    assert stood == [False, False]
    assert ears.lease.standing() is not None


def test_what_comes_out_of_the_pool_after_the_lease_was_lost_is_forgotten() -> None:
    ears = Ears()
    ears.push(1)
    ears.turns()
    (request,) = ears.take()  # into somebody's hand
    other = lose_lease(ears)
    (theirs,) = other.consumer.lease(["celery"], 9).messages
    ears.turns()
    ears.settler.ended([(request, Outcome(LEASE_EXPIRED))])
    ears.turns()
    assert ears.state.requests == {}
    assert other.held == {theirs.tag}


def test_an_idle_process_gets_its_request_without_the_ready_queue() -> None:
    rig = Ears()
    rig.idle = 1
    rig.push(2)
    rig.turn()
    assert len(rig.given_at_once) == 1
    assert len(rig.ready) == 1


# -- a broker that is not there yet --


class LateStore(MemoryStore):
    """A broker that is started after us."""

    there = False

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        if not self.there:
            raise BrokerUnavailable("nobody listens there")
        return super().register(name, queues, concurrency)


def test_a_broker_that_is_started_later_is_waited_for() -> None:
    store = LateStore()
    rig = Ears(store=store)
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


def test_where_it_is_not_waited_for_the_worker_ends() -> None:
    with pytest.raises(BrokerUnavailable, match="nobody listens there"):
        Ears(store=LateStore(), broker_connection_retry_on_startup=False)


# -- ends that a child is to tell of, while the worker stops --


def ended_while_waiting(ears: Ears, outcome: Outcome, count: int = 1) -> list[Request]:
    """Requests that ended without a run of their own, and wait for a child that tells the call after them."""
    ears.push(count, id="gone", chain=[dict(ears.app.tasks["add"].si(1).set(task_id="next"))])
    ears.turns()
    requests = ears.take()
    ears.settler.ended([(request, outcome) for request in requests])
    assert [request.failing is not None for request in requests] == [True] * count
    assert len(ears.ready) == count
    return requests


REVOKED_OUTCOME = Outcome(REVOKED, text="revoked")


def test_a_revoked_call_that_waits_when_the_worker_stops_ends_in_another() -> None:
    ears = Ears()
    (request,) = ended_while_waiting(ears, REVOKED_OUTCOME)
    ears.store.sender.revoke(["gone"])
    ears.listener.quiet()
    ears.turns()
    assert ears.store.settled == [Release(request.tag)]
    assert ears.state.requests == ears.store.results == {}
    with StepWorker(ears.app) as other:
        other.run()
        found = ears.app.backend.get_many(["gone", "next"])
    assert {name: meta["status"] for name, meta in found.items()} == {"gone": "REVOKED", "next": "FAILURE"}
    assert ears.rooms.ran == []


@pytest.mark.parametrize(
    ("outcome", "acked", "state"),
    [
        (REVOKED_OUTCOME, True, "REVOKED"),  # no other worker gets it
        (Outcome(TIME_LIMIT, text="after 9 s"), False, "FAILURE"),  # it has run, and must not again
    ],
)
def test_what_no_other_worker_would_end_so_ends_here(outcome: Outcome, acked: bool, state: str) -> None:
    ears = Ears()
    (request,) = ended_while_waiting(ears, outcome)
    request.acked = acked
    ears.listener.quiet()
    ears.turns()
    ears.turns()
    assert ears.store.results["gone"][1] == state
    assert (ears.state.requests, len(ears.ready)) == ({}, 0)
    assert ears.waiting() == (1 if acked else 0)  # nobody has acked it here


def test_an_end_that_waits_is_no_surplus() -> None:
    ears = Ears()
    ears.pool.runtimes.learn("add", 0.0001)
    requests = ended_while_waiting(ears, REVOKED_OUTCOME, 9)
    ears.pool.runtimes.learn("add", 22.0)
    ears.clock.advance(1)
    ears.turns()
    ears.turns()
    assert sorted(tags(ears.ready.clear())) == tags(requests)
    assert ears.store.settled == []
