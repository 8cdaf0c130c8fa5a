"""First free slots, then the best requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.request import Request
from qworker.components.waiting.mediator import BATCH, Mediator
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.task_bucket import TaskBucket
from qworker.components.worker_lease import Held
from qworker.tasks.outcome import EXPIRED, LEASE_EXPIRED, REVOKED
from qworker.testing import InlinePool
from qworker.transports.lease import Revocation
from tests.support.rooms import Rooms, tags

ANY = "any"


class Pool(InlinePool):
    """Holds what it takes; refuses the tags in *refusing*, and what comes after them of the same kind."""

    def __init__(self, rooms: Rooms, concurrency: int = 3) -> None:
        nothing: Any = lambda *given: None  # noqa: E731
        settings = PoolSettings(concurrency, "w@h", async_concurrency=2)
        super().__init__(rooms.app, settings, nothing, nothing, nothing, on_demand=True)
        self.refusing: set[int] = set()
        self.asked: list[float | str | None] = []
        """For which expected runtime there were to be slots; ANY: it was not known what comes."""
        self.submitted: list[list[int]] = []

    def free_slots(self) -> Slots:
        self.asked.append(ANY)
        return super().free_slots()

    def free_slots_for(self, runtime: float | None) -> Slots:
        self.asked.append(runtime)
        return super().free_slots()

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        self.submitted.append(tags(requests))
        first = [position for position, request in enumerate(requests) if request.tag in self.refusing]
        cut = min(first, default=len(requests))
        return super().submit(requests[:cut]) + list(requests[cut:])


class Lease:
    """Stands while a test says so."""

    held: Held | None = Held(1, 500.0)

    def standing(self) -> Held | None:
        return self.held


class Desk:
    """A mediator without a thread."""

    def __init__(self, concurrency: int = 3, rate: float = 0.0) -> None:
        """rate: of the task once; 0: no limit."""
        self.rooms = Rooms()
        clock = self.rooms.clock
        self.ready = TaskBucket({"once": rate}, clock, lambda *far: None) if rate else ReadyQueue()
        self.pool = Pool(self.rooms, concurrency)
        self.ended: list[tuple[int, str]] = []
        self.wakes = 0
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(self.wake)
        self.lease = Lease()
        lease: Any = self.lease
        self.mediator = Mediator(
            self.rooms.clock,
            lambda name, error: None,
            self.ready,
            self.mailbox,
            lease,
            lambda ends: self.ended.extend((request.tag, outcome.kind) for request, outcome in ends),
            lambda on_room: self.pool,
        )
        self.mediator.timeout = 0
        self.early = self.mediator.early
        self.orders: list[SettlementOrder] = []

    def wake(self) -> None:
        self.wakes += 1

    @property
    def asked(self) -> list[int]:
        """Whose acks were asked for."""
        self.orders += self.mailbox.take()
        return tags(order.request for order in self.orders)

    def ack(self, count: int = 99) -> None:
        """Let the broker have the next acks that were asked for."""
        self.orders += self.mailbox.take()
        heard, self.orders[:] = self.orders[:count], self.orders[count:]
        self.early.answered([order.request for order in heard if order.request is not None], [])

    def put(self, *requests: Request) -> None:
        self.ready.put_many(requests)

    def step(self) -> float | None:
        return self.mediator.step(self.rooms.clock.monotonic())

    @property
    def running(self) -> list[int]:
        return tags(self.pool.held)


def test_no_more_is_taken_than_there_are_slots() -> None:
    desk = Desk(concurrency=3)
    desk.put(*desk.rooms.requests(5))
    desk.step()
    assert desk.running == [1, 2, 3]
    assert len(desk.ready) == 2


def test_the_best_are_chosen_when_there_is_a_slot_and_not_before() -> None:
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(2))
    desk.step()
    desk.put(desk.rooms.request(9, priority=5))  # comes last, while nobody is free
    desk.step()
    desk.pool.run(1)
    desk.step()
    assert desk.running == [9]


def test_sync_and_async_tasks_have_slots_of_their_own() -> None:
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(2), *desk.rooms.requests(3, "nap", first=11))
    desk.step()
    assert sorted(desk.running) == [1, 11, 12]


def test_room_beside_async_tasks_is_told_to_the_listener() -> None:
    desk = Desk()
    desk.put(desk.rooms.request(1))
    desk.step()
    assert desk.wakes == 0
    desk.put(desk.rooms.request(2, "nap"))
    desk.step()
    assert desk.wakes == 1


def test_what_the_pool_refuses_is_put_back_in_front() -> None:
    desk = Desk()
    desk.put(*desk.rooms.requests(5))
    desk.pool.refusing = {2}
    desk.step()
    assert (desk.running, desk.pool.submitted) == ([1], [[1, 2, 3]])
    assert tags(desk.ready.clear()) == [2, 3, 4, 5]


def test_after_a_refusal_of_an_unknown_task_it_waits_for_a_process_that_has_nothing_else() -> None:
    desk = Desk()
    desk.put(*desk.rooms.requests(2))
    desk.pool.refusing = {2}
    desk.step()
    desk.step()
    desk.pool.refusing = set()
    desk.step()
    desk.step()
    assert desk.pool.asked == [ANY, None, None, ANY]
    assert desk.running == [1, 2]


def test_after_a_refusal_of_a_known_task_it_waits_for_room_for_that() -> None:
    """A child that had to be idle first would have nothing to do until the next frame is there."""
    desk = Desk()
    desk.pool.runtimes.learn("add", 0.001)
    desk.put(*desk.rooms.requests(2))
    desk.pool.refusing = {2}
    desk.step()
    desk.step()
    assert desk.pool.asked == [ANY, desk.pool.expected_runtime("add")]


def test_what_was_unknown_when_it_was_refused_is_asked_for_by_what_was_learned_since() -> None:
    """Else a stream that began with a refusal would go one by one for as long as it lasts."""
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(3))
    desk.pool.refusing = {1}
    desk.step()
    desk.pool.refusing = set()
    desk.pool.runtimes.learn("add", 0.001)
    desk.step()
    assert desk.pool.asked == [ANY, desk.pool.expected_runtime("add")]


def test_it_asks_for_room_for_the_task_that_it_took_last() -> None:
    desk = Desk(concurrency=1)
    desk.pool.runtimes.learn("boom", 30.0)
    desk.pool.runtimes.learn("add", 0.001)
    desk.put(desk.rooms.request(1, "boom"), desk.rooms.request(2), desk.rooms.request(3))
    desk.pool.refusing = {1}
    desk.step()
    desk.pool.refusing = set()
    for _ in range(3):
        desk.step()
        desk.pool.run()
    assert [isinstance(runtime, float) and runtime > 1 for runtime in desk.pool.asked] == [
        False,
        True,
        True,
        False,
    ]
    assert desk.running == []


def test_a_refused_async_task_does_not_make_sync_ones_wait_for_an_idle_process() -> None:
    desk = Desk()
    desk.put(desk.rooms.request(1, "nap"))
    desk.pool.refusing = {1}
    desk.step()
    desk.step()
    assert desk.pool.asked == [ANY, ANY]


def test_one_turn_takes_a_batch_at_most() -> None:
    desk = Desk(concurrency=1000)
    desk.put(*desk.rooms.requests(BATCH + 10))
    desk.step()
    assert len(desk.running) == BATCH


def test_a_revocation_counts_until_the_last_moment() -> None:
    desk = Desk()
    requests = desk.rooms.requests(3)
    desk.put(*requests)
    requests[1].revocation = Revocation("id-2", False, "SIGTERM")
    desk.step()
    assert (desk.running, desk.ended) == ([1, 3], [(2, REVOKED)])


def test_what_expires_while_it_waits_is_not_run() -> None:
    desk = Desk()
    expires = "2023-11-14T22:13:30+00:00"  # ten seconds after the fake clock's start
    desk.put(desk.rooms.request(1, expires=expires), desk.rooms.request(2))
    desk.rooms.clock.advance(10)
    desk.step()
    assert (desk.running, desk.ended) == ([2], [(1, EXPIRED)])


def test_what_expires_later_is_run() -> None:
    desk = Desk()
    desk.put(desk.rooms.request(1, expires="2023-11-14T22:13:30+00:00"))
    desk.rooms.clock.advance(9.9)
    desk.step()
    assert (desk.running, desk.ended) == ([1], [])


def test_what_must_not_run_twice_is_acked_before_it_runs() -> None:
    desk = Desk()
    once = desk.rooms.request(1, "once")
    desk.put(once, desk.rooms.request(2))
    desk.step()
    assert (desk.running, desk.asked) == ([2], [1])
    desk.step()
    assert (desk.running, desk.asked) == ([2], [1])
    desk.ack()
    desk.step()
    assert (desk.running, desk.asked) == ([2, 1], [])


def test_a_revoked_one_is_not_acked_to_run() -> None:
    desk = Desk()
    once = desk.rooms.request(1, "once")
    once.revocation = Revocation("id-1", False, "SIGTERM")
    desk.put(once)
    desk.step()
    assert (desk.asked, desk.ended) == ([], [(1, REVOKED)])


def test_no_more_is_acked_than_can_start_at_once() -> None:
    """What is acked and has not started is lost with the worker."""
    desk = Desk(concurrency=3)
    desk.put(*desk.rooms.requests(9, "once"))
    desk.step()
    desk.step()
    assert desk.asked == [1, 2, 3]
    desk.ack(2)
    desk.step()
    assert (desk.running, desk.asked) == ([1, 2], [3])
    desk.ack()
    desk.step()
    desk.step()
    assert (desk.running, desk.asked) == ([1, 2, 3], [])
    desk.pool.run(1)
    desk.step()
    assert (desk.running, desk.asked) == ([2, 3], [4])


def test_what_is_acked_runs_in_the_order_in_which_it_came() -> None:
    desk = Desk(concurrency=4)
    desk.put(*desk.rooms.requests(8, "once"))
    ran: list[int] = []
    for _ in range(8):
        desk.step()
        desk.ack(3)
        desk.step()
        ran += desk.running
        desk.pool.run()
    assert ran == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_place_of_what_is_being_acked_is_kept_for_it() -> None:
    desk = Desk(concurrency=2)
    desk.put(desk.rooms.request(1, "once"), *desk.rooms.requests(3, first=2))
    desk.step()
    assert (desk.running, desk.asked) == ([2], [1])
    assert desk.mediator.offer(desk.rooms.requests(1, first=9)) != []
    desk.step()
    assert desk.running == [2]
    desk.ack()
    desk.step()
    assert desk.running == [2, 1]


def test_what_waits_for_a_place_is_not_overtaken_by_what_needs_no_ack() -> None:
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(2, "once"), *desk.rooms.requests(2, first=3))
    desk.step()
    assert (desk.running, desk.asked) == ([], [1])
    assert tags(desk.ready.clear()) == [2, 3, 4]


def test_while_nothing_can_be_acked_the_mediator_rests() -> None:
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(3, "once"))
    desk.step()
    seen = desk.ready.changes
    for _ in range(3):
        desk.step()
    assert desk.ready.changes == seen


def test_an_ack_that_came_too_late_frees_its_place() -> None:
    desk = Desk(concurrency=1)
    desk.put(*desk.rooms.requests(2, "once"))
    desk.step()
    assert desk.asked == [1]
    (order,) = desk.orders
    assert order.request is not None
    desk.early.answered([], [order.request])
    desk.orders.clear()
    desk.step()
    assert (desk.running, desk.asked) == ([], [2])


def test_async_tasks_that_are_acked_first_have_places_of_their_own() -> None:
    desk = Desk(concurrency=1)
    desk.rooms.app.tasks["nap"].acks_late = False
    desk.put(*desk.rooms.requests(3, "nap"), *desk.rooms.requests(2, "once", first=11))
    desk.step()
    assert sorted(desk.asked) == [1, 2, 11]


def test_what_is_acked_late_starts_no_sooner_after_another_than_its_rate_allows() -> None:
    desk = Desk(rate=10)
    desk.put(*desk.rooms.requests(3, "once"))
    for number in (1, 2, 3):
        desk.step()
        assert desk.asked == list(range(1, number + 1))
        desk.rooms.clock.advance(0.101)
    desk.ack()
    for started in ([1], [1, 2], [1, 2, 3]):
        desk.step()
        desk.step()
        assert desk.running == started
        desk.rooms.clock.advance(0.101)


def test_what_is_acked_late_leaves_its_place_to_no_other_until_it_may_start() -> None:
    desk = Desk(concurrency=2, rate=10)
    desk.put(*desk.rooms.requests(2, "once"))
    desk.step()
    desk.rooms.clock.advance(0.101)
    desk.step()
    desk.ack()
    desk.put(*desk.rooms.requests(1, first=3))
    desk.step()
    assert desk.running == [1]
    desk.rooms.clock.advance(0.101)
    desk.step()
    assert desk.running == [1, 2]


def test_no_more_is_acked_ahead_than_may_start_within_a_second() -> None:
    desk = Desk(concurrency=9, rate=2)
    desk.put(*desk.rooms.requests(4, "once"))
    for _ in range(5):
        desk.step()
        desk.rooms.clock.advance(0.501)
    assert desk.asked == [1, 2]
    lost = [order.request for order in desk.orders if order.request is not None]
    desk.orders.clear()
    desk.early.answered([], lost)
    desk.step()
    assert desk.asked == [3]


def test_what_was_acked_and_is_refused_starts_as_soon_as_there_is_a_place() -> None:
    desk = Desk(rate=1)
    desk.put(*desk.rooms.requests(1, "once"))
    desk.step()
    desk.ack()
    desk.pool.refusing = {1}
    desk.step()
    assert (desk.running, len(desk.ready)) == ([], 1)
    desk.pool.refusing = set()
    desk.step()
    assert desk.running == [1]


def test_what_was_acked_and_is_revoked_does_not_run() -> None:
    desk = Desk()
    once = desk.rooms.request(1, "once")
    desk.put(once)
    desk.step()
    desk.ack()
    once.revocation = Revocation("id-1", False, "SIGTERM")
    desk.step()
    assert (desk.running, desk.ended) == ([], [(1, REVOKED)])


# -- the lease --


def test_nothing_is_started_when_the_lease_may_have_been_lost() -> None:
    """A worker that wakes after its lease: others have what it holds, and run it."""
    desk = Desk()
    desk.put(*desk.rooms.requests(2))
    desk.lease.held = None
    desk.step()
    desk.mediator.refill()
    late = desk.rooms.requests(1, first=9)
    assert desk.mediator.offer(late) == late
    assert (desk.running, len(desk.ready)) == ([], 2)
    desk.lease.held = Held(1, 500.0)
    desk.step()
    assert desk.running == [1, 2]


def test_the_pool_is_told_until_when_the_lease_stands() -> None:
    desk = Desk()
    desk.put(*desk.rooms.requests(1))
    desk.step()
    desk.lease.held = Held(1, 700.0)
    assert desk.mediator.offer(desk.rooms.requests(1, first=2)) == []
    assert [request.starts_before for request in desk.pool.held] == [500.0, 700.0]


@pytest.mark.parametrize("way", ["the pool", "an offer"])
def test_what_was_on_its_way_when_the_lease_was_lost_is_left_to_others(way: str) -> None:
    """It is neither in the ready queue nor in the pool when those are emptied."""
    desk = Desk()
    old = desk.rooms.requests(2)
    desk.lease.held = Held(2, 500.0)
    if way == "the pool":
        desk.ready.put_back(old)  # as a child that was given it too late has the pool do
        desk.step()
    else:
        assert desk.mediator.offer(old) == []
    assert (desk.running, len(desk.ready)) == ([], 0)
    assert desk.ended == [(1, LEASE_EXPIRED), (2, LEASE_EXPIRED)]


@pytest.mark.parametrize("lease", [None, Held(2, 700.0)])
def test_what_was_acked_needs_no_lease(lease: Held | None) -> None:
    desk = Desk()
    desk.put(desk.rooms.request(1, "once"))
    desk.step()
    desk.ack()
    desk.lease.held = lease
    desk.step()
    assert desk.running == [1]
    assert desk.pool.held[0].starts_before == math.inf


@pytest.mark.parametrize("stop", ["quiet", "stop"])
def test_quiet_takes_nothing_more(stop: str) -> None:
    desk = Desk()
    desk.put(desk.rooms.request(1))
    getattr(desk.mediator, stop)()
    rest = desk.step()
    assert desk.running == []
    assert rest is not None
    assert rest > 0  # and does not spin


def test_an_empty_queue_costs_no_submission() -> None:
    desk = Desk()
    desk.step()
    assert desk.pool.submitted == []


# -- offer --


def test_an_idle_pool_gets_what_is_offered_at_once() -> None:
    desk = Desk()
    one, two = desk.rooms.requests(2)
    assert desk.mediator.offer([one, two]) == []
    assert desk.running == tags([one, two])


def test_more_than_there_are_idle_processes_goes_the_long_way() -> None:
    desk = Desk(concurrency=1)
    two = desk.rooms.requests(2)
    assert desk.mediator.offer(two) == two
    assert desk.running == []


def test_an_offer_overtakes_nobody() -> None:
    desk = Desk()
    waiting, late = desk.rooms.requests(2)
    desk.put(waiting)
    assert desk.mediator.offer([late]) == [late]
    assert desk.running == []


def test_after_a_step_offers_are_taken_again() -> None:
    desk = Desk()
    first, second = desk.rooms.requests(2)
    desk.put(first)
    desk.step()
    assert desk.mediator.offer([second]) == []
    assert desk.running == tags([first, second])


def test_offers_are_looked_at_like_everything_else() -> None:
    desk = Desk()
    desk.rooms.clock.advance(10)
    expired = desk.rooms.request(1, expires="2023-11-14T22:13:21+00:00")
    assert desk.mediator.offer([expired]) == []
    assert desk.ended == [(expired.tag, EXPIRED)]
    assert desk.running == []


def test_what_the_pool_refuses_comes_back_from_an_offer() -> None:
    desk = Desk()
    refused = desk.rooms.request()
    desk.pool.refusing = {refused.tag}
    assert desk.mediator.offer([refused]) == [refused]


def test_a_quiet_mediator_takes_no_offer() -> None:
    desk = Desk()
    desk.mediator.quiet()
    request = desk.rooms.request()
    assert desk.mediator.offer([request]) == [request]


def test_a_refill_gives_the_pool_what_is_ready() -> None:
    desk = Desk(concurrency=3)
    desk.put(*desk.rooms.requests(5))
    desk.mediator.refill()
    assert desk.running == [1, 2, 3]


def test_of_very_much_a_refill_leaves_the_rest_to_the_mediator() -> None:
    desk = Desk(concurrency=BATCH + 10)
    desk.put(*desk.rooms.requests(BATCH + 5))
    seen = desk.ready.changes
    desk.mediator.refill()
    assert len(desk.running) == BATCH
    assert desk.ready.changes > seen, "else the mediator would sleep on"


def test_a_refill_while_another_has_the_turn_has_that_one_look_again() -> None:
    desk = Desk()
    desk.put(*desk.rooms.requests(2))
    seen = desk.ready.changes
    with desk.mediator._turn:
        desk.mediator.refill()
        assert desk.mediator.offer(desk.rooms.requests(1)) != []
    assert desk.running == []
    assert desk.ready.changes > seen


def test_nothing_is_moved_once_the_mediator_is_to_be_quiet() -> None:
    desk = Desk()
    desk.mediator.stop()
    desk.put(*desk.rooms.requests(2))
    desk.mediator.refill()
    desk.step()
    assert desk.running == []
