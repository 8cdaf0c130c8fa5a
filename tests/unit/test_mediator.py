"""The mediator: which requests it gives to the pool, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.request import Failing, Request
from qworker.components.waiting.mediator import BATCH, Mediator
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.task_bucket import TaskBucket
from qworker.components.worker_lease import CurrentLease
from qworker.tasks.outcome import EXPIRED, LEASE_EXPIRED, REVOKED, TIME_LIMIT, Outcome
from qworker.testing import InlinePool
from qworker.transports.lease import Revocation
from tests.support.rooms import Rooms, tags

ANY = "any"


class Pool(InlinePool):
    """Holds what it takes; refuses from the first tag in *refusing* on."""

    def __init__(self, rooms: Rooms, concurrency: int = 3) -> None:
        nothing: Any = lambda *given: None  # noqa: E731
        settings = PoolSettings(concurrency, "w@h", async_concurrency=2)
        super().__init__(rooms.app, settings, nothing, nothing, nothing, on_demand=True)
        self.refusing: set[int] = set()
        self.asked: list[float | str | None] = []
        """The expected runtimes for which slots were requested; ANY: the next task was not known."""
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
    """A lease that is valid as long as ``held`` is set."""

    held: CurrentLease | None = CurrentLease(1, 500.0)

    def current(self) -> CurrentLease | None:
        return self.held


class MediatorRig:
    """A mediator without a thread."""

    def __init__(self, concurrency: int = 3, rate: float = 0.0) -> None:
        """rate: the rate limit of the task ``once``; 0: no limit."""
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
        """The tags whose acks were requested."""
        self.orders += self.mailbox.take()
        return tags(order.request for order in self.orders)

    def ack(self, count: int = 99) -> None:
        """Confirm the next *count* requested acks."""
        self.orders += self.mailbox.take()
        answered, self.orders[:] = self.orders[:count], self.orders[count:]
        self.early.answered([order.request for order in answered if order.request is not None], [])

    def put(self, *requests: Request) -> None:
        self.ready.put_many(requests)

    def step(self) -> float | None:
        return self.mediator.step(self.rooms.clock.monotonic())

    @property
    def running(self) -> list[int]:
        return tags(self.pool.held)


def test_requests_are_taken_up_to_the_free_slots() -> None:
    rig = MediatorRig(concurrency=3)
    rig.put(*rig.rooms.requests(5))
    rig.step()
    assert rig.running == [1, 2, 3]
    assert len(rig.ready) == 2


def test_request_is_chosen_by_priority_when_a_slot_is_free() -> None:
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(2))
    rig.step()
    rig.put(rig.rooms.request(9, priority=5))  # arrives last, while no slot is free
    rig.step()
    rig.pool.run(1)
    rig.step()
    assert rig.running == [9]


def test_sync_and_async_tasks_have_separate_slots() -> None:
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(2), *rig.rooms.requests(3, "nap", first=11))
    rig.step()
    assert sorted(rig.running) == [1, 11, 12]


def test_starting_an_async_task_wakes_the_listener() -> None:
    rig = MediatorRig()
    rig.put(rig.rooms.request(1))
    rig.step()
    assert rig.wakes == 0
    rig.put(rig.rooms.request(2, "nap"))
    rig.step()
    assert rig.wakes == 1


def test_requests_refused_by_the_pool_return_to_the_front() -> None:
    rig = MediatorRig()
    rig.put(*rig.rooms.requests(5))
    rig.pool.refusing = {2}
    rig.step()
    assert (rig.running, rig.pool.submitted) == ([1], [[1, 2, 3]])
    assert tags(rig.ready.clear()) == [2, 3, 4, 5]


def test_refused_task_of_unknown_runtime_waits_for_an_idle_process() -> None:
    rig = MediatorRig()
    rig.put(*rig.rooms.requests(2))
    rig.pool.refusing = {2}
    rig.step()
    rig.step()
    rig.pool.refusing = set()
    rig.step()
    rig.step()
    assert rig.pool.asked == [ANY, None, None, ANY]
    assert rig.running == [1, 2]


def test_refused_task_of_known_runtime_waits_for_enough_room() -> None:
    """Waiting for an idle child would leave it without work until the next frame arrives."""
    rig = MediatorRig()
    rig.pool.runtimes.learn("add", 0.001)
    rig.put(*rig.rooms.requests(2))
    rig.pool.refusing = {2}
    rig.step()
    rig.step()
    assert rig.pool.asked == [ANY, rig.pool.expected_runtime("add")]


def test_refused_task_uses_the_runtime_learned_since() -> None:
    """Otherwise a stream that began with a refusal would be started one by one to its end."""
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(3))
    rig.pool.refusing = {1}
    rig.step()
    rig.pool.refusing = set()
    rig.pool.runtimes.learn("add", 0.001)
    rig.step()
    assert rig.pool.asked == [ANY, rig.pool.expected_runtime("add")]


def test_slots_are_requested_for_the_task_taken_last() -> None:
    rig = MediatorRig(concurrency=1)
    rig.pool.runtimes.learn("boom", 30.0)
    rig.pool.runtimes.learn("add", 0.001)
    rig.put(rig.rooms.request(1, "boom"), rig.rooms.request(2), rig.rooms.request(3))
    rig.pool.refusing = {1}
    rig.step()
    rig.pool.refusing = set()
    for _ in range(3):
        rig.step()
        rig.pool.run()
    assert [isinstance(runtime, float) and runtime > 1 for runtime in rig.pool.asked] == [
        False,
        True,
        True,
        False,
    ]
    assert rig.running == []


def test_refused_async_task_does_not_delay_sync_tasks() -> None:
    rig = MediatorRig()
    rig.put(rig.rooms.request(1, "nap"))
    rig.pool.refusing = {1}
    rig.step()
    rig.step()
    assert rig.pool.asked == [ANY, ANY]


def test_step_takes_at_most_one_batch() -> None:
    rig = MediatorRig(concurrency=1000)
    rig.put(*rig.rooms.requests(BATCH + 10))
    rig.step()
    assert len(rig.running) == BATCH


def test_request_revoked_while_ready_does_not_run() -> None:
    rig = MediatorRig()
    requests = rig.rooms.requests(3)
    rig.put(*requests)
    requests[1].revocation = Revocation("id-2", False, "SIGTERM")
    rig.step()
    assert (rig.running, rig.ended) == ([1, 3], [(2, REVOKED)])


def test_request_that_expires_while_ready_does_not_run() -> None:
    rig = MediatorRig()
    expires = "2023-11-14T22:13:30+00:00"  # ten seconds after the fake clock's start
    rig.put(rig.rooms.request(1, expires=expires), rig.rooms.request(2))
    rig.rooms.clock.advance(10)
    rig.step()
    assert (rig.running, rig.ended) == ([2], [(1, EXPIRED)])


def test_request_that_has_not_expired_runs() -> None:
    rig = MediatorRig()
    rig.put(rig.rooms.request(1, expires="2023-11-14T22:13:30+00:00"))
    rig.rooms.clock.advance(9.9)
    rig.step()
    assert (rig.running, rig.ended) == ([1], [])


def test_task_with_early_ack_is_acked_before_it_runs() -> None:
    rig = MediatorRig()
    once = rig.rooms.request(1, "once")
    rig.put(once, rig.rooms.request(2))
    rig.step()
    assert (rig.running, rig.asked) == ([2], [1])
    rig.step()
    assert (rig.running, rig.asked) == ([2], [1])
    rig.ack()
    rig.step()
    assert (rig.running, rig.asked) == ([2, 1], [])


def test_revoked_request_is_not_acked_early() -> None:
    rig = MediatorRig()
    once = rig.rooms.request(1, "once")
    once.revocation = Revocation("id-1", False, "SIGTERM")
    rig.put(once)
    rig.step()
    assert (rig.asked, rig.ended) == ([], [(1, REVOKED)])


def test_early_acks_are_limited_to_free_slots() -> None:
    """Acked requests that have not started are lost if the worker dies."""
    rig = MediatorRig(concurrency=3)
    rig.put(*rig.rooms.requests(9, "once"))
    rig.step()
    rig.step()
    assert rig.asked == [1, 2, 3]
    rig.ack(2)
    rig.step()
    assert (rig.running, rig.asked) == ([1, 2], [3])
    rig.ack()
    rig.step()
    rig.step()
    assert (rig.running, rig.asked) == ([1, 2, 3], [])
    rig.pool.run(1)
    rig.step()
    assert (rig.running, rig.asked) == ([2, 3], [4])


def test_early_acked_requests_run_in_order_of_arrival() -> None:
    rig = MediatorRig(concurrency=4)
    rig.put(*rig.rooms.requests(8, "once"))
    ran: list[int] = []
    for _ in range(8):
        rig.step()
        rig.ack(3)
        rig.step()
        ran += rig.running
        rig.pool.run()
    assert ran == [1, 2, 3, 4, 5, 6, 7, 8]


def test_slot_is_reserved_while_its_request_is_being_acked() -> None:
    rig = MediatorRig(concurrency=2)
    rig.put(rig.rooms.request(1, "once"), *rig.rooms.requests(3, first=2))
    rig.step()
    assert (rig.running, rig.asked) == ([2], [1])
    assert rig.mediator.offer(rig.rooms.requests(1, first=9)) != []
    rig.step()
    assert rig.running == [2]
    rig.ack()
    rig.step()
    assert rig.running == [2, 1]


def test_late_acked_requests_do_not_overtake_early_acked_ones() -> None:
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(2, "once"), *rig.rooms.requests(2, first=3))
    rig.step()
    assert (rig.running, rig.asked) == ([], [1])
    assert tags(rig.ready.clear()) == [2, 3, 4]


def test_mediator_does_not_spin_while_no_slot_is_free_for_an_ack() -> None:
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(3, "once"))
    rig.step()
    seen = rig.ready.changes
    for _ in range(3):
        rig.step()
    assert rig.ready.changes == seen


def test_lost_early_ack_frees_its_slot() -> None:
    rig = MediatorRig(concurrency=1)
    rig.put(*rig.rooms.requests(2, "once"))
    rig.step()
    assert rig.asked == [1]
    (order,) = rig.orders
    assert order.request is not None
    rig.early.answered([], [order.request])
    rig.orders.clear()
    rig.step()
    assert (rig.running, rig.asked) == ([], [2])


def test_early_acks_of_async_tasks_have_separate_slots() -> None:
    rig = MediatorRig(concurrency=1)
    rig.rooms.app.tasks["nap"].acks_late = False
    rig.put(*rig.rooms.requests(3, "nap"), *rig.rooms.requests(2, "once", first=11))
    rig.step()
    assert sorted(rig.asked) == [1, 2, 11]


def test_delayed_ack_does_not_exceed_the_rate_limit() -> None:
    rig = MediatorRig(rate=10)
    rig.put(*rig.rooms.requests(3, "once"))
    for number in (1, 2, 3):
        rig.step()
        assert rig.asked == list(range(1, number + 1))
        rig.rooms.clock.advance(0.101)
    rig.ack()
    for started in ([1], [1, 2], [1, 2, 3]):
        rig.step()
        rig.step()
        assert rig.running == started
        rig.rooms.clock.advance(0.101)


def test_acked_request_keeps_its_slot_until_its_rate_limit_allows_it() -> None:
    rig = MediatorRig(concurrency=2, rate=10)
    rig.put(*rig.rooms.requests(2, "once"))
    rig.step()
    rig.rooms.clock.advance(0.101)
    rig.step()
    rig.ack()
    rig.put(*rig.rooms.requests(1, first=3))
    rig.step()
    assert rig.running == [1]
    rig.rooms.clock.advance(0.101)
    rig.step()
    assert rig.running == [1, 2]


def test_early_acks_are_limited_to_one_second_of_the_rate() -> None:
    rig = MediatorRig(concurrency=9, rate=2)
    rig.put(*rig.rooms.requests(4, "once"))
    for _ in range(5):
        rig.step()
        rig.rooms.clock.advance(0.501)
    assert rig.asked == [1, 2]
    lost = [order.request for order in rig.orders if order.request is not None]
    rig.orders.clear()
    rig.early.answered([], lost)
    rig.step()
    assert rig.asked == [3]


def test_acked_request_refused_by_the_pool_starts_when_there_is_room() -> None:
    rig = MediatorRig(rate=1)
    rig.put(*rig.rooms.requests(1, "once"))
    rig.step()
    rig.ack()
    rig.pool.refusing = {1}
    rig.step()
    assert (rig.running, len(rig.ready)) == ([], 1)
    rig.pool.refusing = set()
    rig.step()
    assert rig.running == [1]


def test_acked_request_revoked_before_its_start_does_not_run() -> None:
    rig = MediatorRig()
    once = rig.rooms.request(1, "once")
    rig.put(once)
    rig.step()
    rig.ack()
    once.revocation = Revocation("id-1", False, "SIGTERM")
    rig.step()
    assert (rig.running, rig.ended) == ([], [(1, REVOKED)])


# -- the lease --


def test_no_request_starts_without_a_valid_lease() -> None:
    """After a freeze beyond its lease, other workers may run what it holds."""
    rig = MediatorRig()
    rig.put(*rig.rooms.requests(2))
    rig.lease.held = None
    rig.step()
    rig.mediator.refill()
    late = rig.rooms.requests(1, first=9)
    assert rig.mediator.offer(late) == late
    assert (rig.running, len(rig.ready)) == ([], 2)
    rig.lease.held = CurrentLease(1, 500.0)
    rig.step()
    assert rig.running == [1, 2]


def test_requests_carry_the_end_of_the_lease_to_the_pool() -> None:
    rig = MediatorRig()
    rig.put(*rig.rooms.requests(1))
    rig.step()
    rig.lease.held = CurrentLease(1, 700.0)
    assert rig.mediator.offer(rig.rooms.requests(1, first=2)) == []
    assert [request.starts_before for request in rig.pool.held] == [500.0, 700.0]


@pytest.mark.parametrize("way", ["the pool", "an offer"])
def test_request_of_an_old_lease_ends_as_lease_expired(way: str) -> None:
    """It was in neither the ready queue nor the pool when those were cleared."""
    rig = MediatorRig()
    old = rig.rooms.requests(2)
    rig.lease.held = CurrentLease(2, 500.0)
    if way == "the pool":
        rig.ready.put_back(old)  # as the pool does if a child received it too late
        rig.step()
    else:
        assert rig.mediator.offer(old) == []
    assert (rig.running, len(rig.ready)) == ([], 0)
    assert rig.ended == [(1, LEASE_EXPIRED), (2, LEASE_EXPIRED)]


@pytest.mark.parametrize("lease", [None, CurrentLease(2, 700.0)])
def test_acked_request_starts_without_a_lease(lease: CurrentLease | None) -> None:
    rig = MediatorRig()
    rig.put(rig.rooms.request(1, "once"))
    rig.step()
    rig.ack()
    rig.lease.held = lease
    rig.step()
    assert rig.running == [1]
    assert rig.pool.held[0].starts_before == math.inf


@pytest.mark.parametrize("stop", ["quiet", "stop"])
def test_quiet_or_stopped_mediator_starts_nothing(stop: str) -> None:
    rig = MediatorRig()
    rig.put(rig.rooms.request(1))
    getattr(rig.mediator, stop)()
    rig.mediator.timeout = 0.05
    began = time.monotonic()
    rig.step()
    assert rig.running == []
    assert time.monotonic() - began >= 0.05, "it does not spin"


def test_quiet_mediator_lets_children_report_ends() -> None:
    rig = MediatorRig(concurrency=1)
    waiting, *ended = rig.rooms.requests(3)
    for request in ended:
        request.failing = Failing(Outcome(TIME_LIMIT), "FAILURE", {})
    rig.put(waiting, *ended)
    rig.mediator.quiet()
    for request in ended:
        assert rig.mediator.busy()
        rig.step()
        assert rig.running == [request.tag]
        rig.pool.run(1)
    rig.step()
    assert rig.running == []
    assert not rig.mediator.busy()
    assert rig.ready.clear() == [waiting]


def test_mediator_is_busy_while_the_pool_passes_an_end_on() -> None:
    """A child may have to report that end, so a worker that stops must wait for it."""
    rig = MediatorRig()
    assert not rig.mediator.busy()
    rig.pool.ending = 1
    assert rig.mediator.busy()


def test_empty_queue_submits_nothing_to_the_pool() -> None:
    rig = MediatorRig()
    rig.step()
    assert rig.pool.submitted == []


# -- offer --


def test_offered_requests_go_directly_to_an_idle_pool() -> None:
    rig = MediatorRig()
    one, two = rig.rooms.requests(2)
    assert rig.mediator.offer([one, two]) == []
    assert rig.running == tags([one, two])


def test_offer_of_more_requests_than_idle_processes_is_declined() -> None:
    rig = MediatorRig(concurrency=1)
    two = rig.rooms.requests(2)
    assert rig.mediator.offer(two) == two
    assert rig.running == []


def test_offer_does_not_overtake_ready_requests() -> None:
    rig = MediatorRig()
    waiting, late = rig.rooms.requests(2)
    rig.put(waiting)
    assert rig.mediator.offer([late]) == [late]
    assert rig.running == []


def test_offers_are_accepted_again_after_a_step() -> None:
    rig = MediatorRig()
    first, second = rig.rooms.requests(2)
    rig.put(first)
    rig.step()
    assert rig.mediator.offer([second]) == []
    assert rig.running == tags([first, second])


def test_offered_request_that_expired_does_not_run() -> None:
    rig = MediatorRig()
    rig.rooms.clock.advance(10)
    expired = rig.rooms.request(1, expires="2023-11-14T22:13:21+00:00")
    assert rig.mediator.offer([expired]) == []
    assert rig.ended == [(expired.tag, EXPIRED)]
    assert rig.running == []


def test_offer_returns_requests_refused_by_the_pool() -> None:
    rig = MediatorRig()
    refused = rig.rooms.request()
    rig.pool.refusing = {refused.tag}
    assert rig.mediator.offer([refused]) == [refused]


def test_quiet_mediator_declines_offers() -> None:
    rig = MediatorRig()
    rig.mediator.quiet()
    request = rig.rooms.request()
    assert rig.mediator.offer([request]) == [request]


def test_refill_submits_ready_requests() -> None:
    rig = MediatorRig(concurrency=3)
    rig.put(*rig.rooms.requests(5))
    rig.mediator.refill()
    assert rig.running == [1, 2, 3]


def test_refill_takes_one_batch_and_wakes_the_mediator() -> None:
    rig = MediatorRig(concurrency=BATCH + 10)
    rig.put(*rig.rooms.requests(BATCH + 5))
    seen = rig.ready.changes
    rig.mediator.refill()
    assert len(rig.running) == BATCH
    assert rig.ready.changes > seen, "the mediator is woken"


def test_refill_wakes_the_mediator_when_a_request_has_ended_without_a_run() -> None:
    """Its slot is still free, and the next request waited ten seconds for it."""
    rig = MediatorRig(concurrency=1)
    revoked, waiting = rig.rooms.requests(2)
    revoked.revocation = Revocation("id-1", False, "SIGTERM")
    rig.put(revoked, waiting)
    seen = rig.ready.changes
    rig.mediator.refill()
    assert rig.ended == [(revoked.tag, REVOKED)]
    assert rig.ready.changes > seen
    rig.step()
    assert rig.running == [waiting.tag]
    rig.pool.held.clear()
    seen = rig.ready.changes
    rig.mediator.refill()
    assert rig.ready.changes == seen, "a refill without ended requests wakes nobody"


def test_refill_during_another_threads_turn_wakes_the_mediator() -> None:
    rig = MediatorRig()
    rig.put(*rig.rooms.requests(2))
    seen = rig.ready.changes
    with rig.mediator._turn:
        rig.mediator.refill()
        assert rig.mediator.offer(rig.rooms.requests(1)) != []
    assert rig.running == []
    assert rig.ready.changes > seen


def test_stopped_mediator_moves_nothing() -> None:
    rig = MediatorRig()
    rig.mediator.stop()
    rig.put(*rig.rooms.requests(2))
    rig.mediator.refill()
    rig.step()
    assert rig.running == []
