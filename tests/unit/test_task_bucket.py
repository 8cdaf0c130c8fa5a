"""Rate limits: tokens, one queue for each task, and requests returned to the broker."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.components.pool.contract import Slots
from qworker.components.request import Request
from qworker.components.waiting.task_bucket import FORGET_SECONDS, LONGEST_WAIT, MOST_LATE, TaskBucket
from tests.support.rooms import Rooms, tags

MANY = Slots(1000, 1000)


class Bucket:
    """A TaskBucket with a limit for add, and the requests returned to the broker."""

    def __init__(self, rate: float) -> None:
        self.rooms = Rooms()
        self.clock = self.rooms.clock
        self.returned: list[tuple[int, float]] = []
        self.queue = TaskBucket({"add": rate}, self.clock, self.return_to_broker)

    def return_to_broker(self, request: Request, due: float) -> None:
        self.returned.append((request.tag, due - self.clock.now()))

    def put(self, *requests: Request) -> None:
        self.queue.put_many(requests)

    def take(self, slots: Slots = MANY) -> list[int]:
        return tags(self.queue.get_many(slots))


class Returning(Bucket):
    """at_broker: due times and tags of the requests returned to the broker."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.at_broker: list[tuple[float, int]] = []

    def return_to_broker(self, request: Request, due: float) -> None:
        self.at_broker.append((due, request.tag))


def test_runs_are_spaced_if_only_some_are_acked_first() -> None:
    """Such as one that could not be read, and came back to be acked late."""
    bucket = Bucket(rate=10)
    early, late, last = bucket.rooms.requests(3)
    early.acks_late, late.acks_late, last.acks_late = False, True, False
    bucket.put(early)
    assert bucket.take() == [early.tag]
    bucket.queue.acking([early], 1)
    bucket.clock.advance(0.3)  # until its ack is confirmed
    early.mark_acked()
    assert bucket.queue.may_start([early]) == [early]
    bucket.put(late, last)
    assert bucket.take() == []
    bucket.clock.advance(0.1)
    assert bucket.take() == [late.tag]
    last.mark_acked()
    bucket.queue.acking([last], 1)
    assert bucket.queue.may_start([last]) == []
    bucket.clock.advance(0.1)
    assert bucket.queue.may_start([last]) == [last]


def test_runs_are_spaced_by_the_interval() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3))
    assert bucket.take() == [1]
    assert bucket.take() == []
    bucket.clock.advance(0.099)
    assert bucket.take() == []
    bucket.clock.advance(0.002)
    assert bucket.take() == [2]
    bucket.clock.advance(5)  # tokens do not accumulate: there is one at most
    assert bucket.take() == [3]


def test_token_without_a_free_slot_does_not_wake_the_mediator() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(2))
    waits: list[float] = []
    bucket.queue._arrived.wait = waits.append  # type: ignore[method-assign, assignment]

    def wait() -> float:
        bucket.queue.wait(10.0, bucket.queue.changes)
        return waits.pop()

    assert bucket.take() == [1]
    assert wait() == pytest.approx(0.1)
    bucket.clock.advance(0.2)
    assert wait() == 0.0  # the token may have come after the last look
    assert bucket.take(Slots(0, 0)) == []
    assert wait() == 10.0
    assert bucket.take() == [2]


def test_taking_a_token_changes_the_wait_of_the_mediator() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(2))
    asleep_since = bucket.queue.changes
    assert bucket.take() == [1]
    assert bucket.queue.changes != asleep_since


def test_put_back_returns_the_token() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3))
    first = bucket.queue.get_many(MANY)
    bucket.queue.put_back(first)
    assert len(bucket.queue) == 3
    assert bucket.take() == tags(first) == [1]
    bucket.clock.advance(0.1)
    second = bucket.queue.get_many(MANY)
    bucket.clock.advance(3)
    bucket.queue.put_back(second)  # it is not run together with the next one
    assert bucket.take() == tags(second) == [2]
    assert bucket.take() == []


def test_no_burst_after_an_idle_period() -> None:
    bucket = Bucket(rate=10)
    bucket.clock.advance(3600)
    bucket.put(*bucket.rooms.requests(5))
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_token_is_spent_when_the_task_is_taken() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(3))
    bucket.clock.advance(1)  # no slot was free for all that time
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_limited_task_does_not_block_others() -> None:
    bucket = Bucket(rate=10)
    bucket.put(*bucket.rooms.requests(5), bucket.rooms.request(6, "boom"), bucket.rooms.request(7, "boom"))
    assert bucket.take() == [1, 6, 7]


def test_higher_priority_comes_before_a_limited_task() -> None:
    bucket = Bucket(rate=10)
    bucket.put(bucket.rooms.request(1), bucket.rooms.request(2, "boom", priority=5))
    assert bucket.take() == [2, 1]


def test_no_token_is_spent_without_slots() -> None:
    bucket = Bucket(rate=10)
    bucket.put(bucket.rooms.request(1))
    assert bucket.take(Slots(0, 5)) == []
    assert bucket.take() == [1]


def test_limited_async_task_waits_for_an_async_slot() -> None:
    bucket = Bucket(rate=10)
    bucket.queue = TaskBucket({"nap": 10}, bucket.clock, bucket.return_to_broker)
    bucket.put(bucket.rooms.request(1, "nap"))
    assert bucket.take(Slots(5, 0)) == []
    assert bucket.take(Slots(0, 1)) == [1]


def test_put_back_task_needs_no_second_token() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(2))
    taken = bucket.queue.get_many(MANY)
    bucket.queue.put_back(taken)
    assert bucket.take() == [1]
    assert bucket.take() == []


def test_excess_requests_are_returned_to_the_broker() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(5))
    assert len(bucket.queue) == 2  # one that may run now, and one that may run a second later
    assert [tag for tag, _ in bucket.returned] == [3, 4, 5]
    waits = [wait for _, wait in bucket.returned]
    assert waits == pytest.approx(
        [2.0, 3.0, 4.0]
    )  # spaced by the interval, so that they do not all return at once


def test_new_request_does_not_overtake_returned_ones() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(4))
    assert bucket.take() == [1]
    bucket.clock.advance(1)
    assert bucket.take() == [2]
    bucket.clock.advance(0.5)
    bucket.put(bucket.rooms.request(5))
    assert (bucket.take(), bucket.returned[-1]) == ([], (5, pytest.approx(2.5))), "behind 3 and 4"


def test_redelivered_requests_keep_their_place() -> None:
    bucket = Bucket(rate=8)
    bucket.put(*bucket.rooms.requests(30))
    assert [tag for tag, _ in bucket.returned] == list(range(10, 31))
    bucket.clock.advance(1.25)  # no slot was free
    bucket.put(bucket.rooms.request(10))
    bucket.put(bucket.rooms.request(11))
    ran: list[int] = []
    while len(ran) < 11:
        bucket.put(bucket.rooms.request(100 + len(ran)))
        ran += bucket.take()
        bucket.clock.advance(0.125)
    assert ran == list(range(1, 12))


def test_requests_returned_by_another_worker_come_first() -> None:
    """Not so a call with an ETA: it starts to wait only when it is due."""
    bucket = Bucket(rate=10)
    due = bucket.clock.now()
    bucket.clock.advance(1)
    eta = "2023-11-14T22:13:20+00:00"
    bucket.put(*bucket.rooms.requests(2), bucket.rooms.request(8, due=due, eta=eta))
    bucket.put(bucket.rooms.request(9, due=due))
    ran = []
    for _ in range(4):
        ran += bucket.take()
        bucket.clock.advance(0.11)
    assert ran == [9, 1, 2, 8]


def test_overlong_queue_returns_its_last_request() -> None:
    bucket = Bucket(rate=8)
    bucket.put(*bucket.rooms.requests(9))
    due = bucket.clock.now()
    bucket.clock.advance(1)
    bucket.put(*[bucket.rooms.request(tag, due=due) for tag in range(101, 101 + MOST_LATE)])
    assert bucket.returned == [(9, pytest.approx(33.0))]
    assert bucket.take() == [1]
    assert len(bucket.queue) == LONGEST_WAIT * 8 + MOST_LATE - 1


def test_returned_requests_are_forgotten_after_a_while() -> None:
    bucket = Bucket(rate=1)
    bucket.put(*bucket.rooms.requests(5))
    line = bucket.queue._buckets["add"]
    assert set(line._away) == {"id-3", "id-4", "id-5"}
    bucket.clock.advance(FORGET_SECONDS + 10)
    bucket.put(*bucket.rooms.requests(5, first=6))
    assert set(line._away) == {"id-6", "id-7", "id-8", "id-9", "id-10"}


@given(
    rate=st.floats(0.5, 50),
    arrivals=st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 6)), max_size=25),
)
def test_order_of_arrival_is_kept(rate: float, arrivals: list[tuple[float, int]]) -> None:
    """If the broker redelivers returned requests in time, tasks start in the order of arrival."""
    bucket = Returning(rate)
    at_broker = bucket.at_broker
    ran: list[int] = []
    arrived = 0

    def pass_time(seconds: float) -> None:
        end = bucket.clock.now() + seconds
        while bucket.clock.now() < end:
            nearest = min((due for due, _ in at_broker), default=end)
            step = min(end, max(nearest, bucket.clock.now() + 0.01)) - bucket.clock.now()
            bucket.clock.advance(max(0.0, min(step, 0.25 / rate)))
            back = sorted(one for one in at_broker if one[0] <= bucket.clock.now())
            for one in back:
                at_broker.remove(one)
            bucket.put(*[bucket.rooms.request(tag) for _, tag in back])
            ran.extend(bucket.take())

    for pause, count in arrivals:
        pass_time(pause)
        bucket.put(*bucket.rooms.requests(count, first=arrived + 1))
        arrived += count
        ran.extend(bucket.take())
    pass_time((arrived + 3) * 1.6 / rate)
    assert ran == list(range(1, arrived + 1))


def test_wait_ends_with_the_next_token() -> None:
    bucket = Bucket(rate=100)
    bucket.put(*bucket.rooms.requests(2))
    assert bucket.take() == [1]
    # A real wait of at most 10 ms; without regard to the token it would be a whole minute.
    assert bucket.queue._longest_wait(60) == pytest.approx(0.01)


def test_clear_includes_requests_waiting_for_tokens() -> None:
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
def test_rate_is_not_exceeded_and_no_request_is_lost(rate: float, arrivals: list[tuple[float, int]]) -> None:
    bucket = Bucket(rate)
    starts: list[float] = []
    arrived = 0
    for pause, count in arrivals:
        bucket.clock.advance(pause)
        bucket.put(*bucket.rooms.requests(count, first=arrived + 1))
        arrived += count
        taken = bucket.take()
        assert len(taken) <= 1
        starts += [bucket.clock.monotonic()] * len(taken)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(gap >= 1 / rate - 1e-9 for gap in gaps)
    assert len(bucket.queue) <= LONGEST_WAIT * rate + 2
    assert len(starts) + len(bucket.queue) + len(bucket.returned) == arrived


def test_limited_tasks_follow_the_priority_scale() -> None:
    rooms = Rooms()
    for lowest_first, order in ((False, [2, 1]), (True, [1, 2])):
        bucket = TaskBucket({"add": 10}, rooms.clock, lambda request, due: None, lowest_first)
        bucket.put_many([rooms.request(1, "once", priority=3), rooms.request(2, "add", priority=6)])
        assert tags(bucket.get_many(MANY)) == order
