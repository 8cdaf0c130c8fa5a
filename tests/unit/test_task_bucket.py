"""Rate limits: tokens, lines of their own, and going back to the broker."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.components.ready_queue import Slots
from qworker.components.task_bucket import HORIZON, TaskBucket
from qworker.request import Request
from tests.unit.rooms import Rooms, tags

MANY = Slots(1000, 1000)


class Bucket:
    """A TaskBucket with limits for add, and what went back to the broker."""

    def __init__(self, rate: float) -> None:
        self.rooms = Rooms()
        self.clock = self.rooms.clock
        self.parked: list[tuple[int, float]] = []
        self.queue = TaskBucket({"add": rate}, self.clock, self.park)

    def park(self, request: Request, due: float) -> None:
        self.parked.append((request.tag, due - self.clock.now()))

    def put(self, *requests: Request) -> None:
        self.queue.put_many(requests)

    def take(self, slots: Slots = MANY) -> list[int]:
        return tags(self.queue.get_many(slots))


def test_runs_are_at_least_an_interval_apart() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3))
    assert bucket.take() == [1]
    assert bucket.take() == []
    bucket.clock.advance(0.099)
    assert bucket.take() == []
    bucket.clock.advance(0.002)
    assert bucket.take() == [2]
    bucket.clock.advance(5)  # tokens do not pile up: one is all there is
    assert bucket.take() == [3]


def test_there_is_no_burst_after_a_pause() -> None:
    bucket = Bucket(rate=10)
    bucket.clock.advance(3600)
    bucket.put(*bucket.rooms.requests(5))
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_the_token_is_paid_when_the_task_is_taken_not_when_it_comes() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3))
    bucket.clock.advance(1)  # nobody had a slot for all that time
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_a_limited_task_holds_nobody_else_up() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(5), bucket.rooms.request(6, "boom"), bucket.rooms.request(7, "boom"))
    assert bucket.take() == [1, 6, 7]


def test_the_more_urgent_comes_first_also_beside_a_limited_one() -> None:
    bucket = Bucket(rate=10)
    bucket.put(bucket.rooms.request(1), bucket.rooms.request(2, "boom", priority=5))
    assert bucket.take() == [2, 1]


def test_without_slots_no_token_is_spent() -> None:
    bucket = Bucket(rate=10)
    bucket.put(bucket.rooms.request(1))
    assert bucket.take(Slots(0, 5)) == []
    assert bucket.take() == [1]


def test_a_limited_async_task_waits_for_an_async_slot() -> None:
    bucket = Bucket(rate=10)
    bucket.queue = TaskBucket({"nap": 10}, bucket.clock, bucket.park)
    bucket.put(bucket.rooms.request(1, "nap"))
    assert bucket.take(Slots(5, 0)) == []
    assert bucket.take(Slots(0, 1)) == [1]


def test_what_was_put_back_needs_no_second_token() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(2))
    taken = bucket.queue.get_many(MANY)
    bucket.queue.put_back(taken)
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_what_would_wait_too_long_goes_back_to_the_broker() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(5))
    assert len(bucket.queue) == 2  # the one that may run, and the one that may a second later
    assert [tag for tag, _ in bucket.parked] == [3, 4, 5]
    waits = [wait for _, wait in bucket.parked]
    assert waits == pytest.approx(
        [3.0, 4.0, 5.0]
    )  # one interval apart, so that they do not all come back at once


def test_the_wait_ends_with_the_next_token() -> None:
    bucket = Bucket(rate=100)
    bucket.put(*bucket.rooms.requests(2))
    assert bucket.take() == [1]
    # A real wait of 10 ms at the most; without the token's time in mind it would be a whole minute.
    assert bucket.queue._patience(60) == pytest.approx(0.01)


def test_clear_takes_what_waits_for_tokens_too() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3), bucket.rooms.request(4, "boom"))
    assert sorted(tags(bucket.queue.clear())) == [1, 2, 3, 4]
    assert len(bucket.queue) == 0
    bucket.clock.advance(10)
    assert bucket.take() == []


@given(
    rate=st.floats(0.5, 200),
    arrivals=st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 4)), max_size=30),
)
def test_no_rate_is_exceeded_and_nothing_is_lost(rate: float, arrivals: list[tuple[float, int]]) -> None:
    bucket = Bucket(rate)
    starts: list[float] = []
    came = 0
    for pause, count in arrivals:
        bucket.clock.advance(pause)
        bucket.put(*bucket.rooms.requests(count, first=came + 1))
        came += count
        taken = bucket.take()
        assert len(taken) <= 1
        starts += [bucket.clock.monotonic()] * len(taken)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(gap >= 1 / rate - 1e-9 for gap in gaps)
    assert len(bucket.queue) <= HORIZON * rate + 2
    assert len(starts) + len(bucket.queue) + len(bucket.parked) == came


def test_what_is_limited_stands_in_the_order_of_the_scale() -> None:
    rooms = Rooms()
    for lowest_first, order in ((False, [2, 1]), (True, [1, 2])):
        bucket = TaskBucket({"add": 10}, rooms.clock, lambda request, due: None, lowest_first)
        bucket.put_many([rooms.request(1, "once", priority=3), rooms.request(2, "add", priority=6)])
        assert tags(bucket.get_many(MANY)) == order
