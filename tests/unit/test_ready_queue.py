"""The queue of requests that may run now."""

from __future__ import annotations

import threading

import pytest

from qworker.components.pool.contract import Slots
from qworker.components.waiting.ready_queue import ReadyQueue
from tests.support.rooms import Rooms, tags

MANY = Slots(1000, 1000)


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


@pytest.fixture
def queue() -> ReadyQueue:
    return ReadyQueue()


def test_equal_priorities_are_first_in_first_out(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(3))
    queue.put_many(rooms.requests(2, first=10))
    assert tags(queue.get_many(MANY)) == [1, 2, 3, 10, 11]


def test_highest_priority_is_served_first(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(
        [rooms.request(tag, priority=priority) for tag, priority in ((1, 0), (2, 9), (3, 4), (4, 9))]
    )
    assert tags(queue.get_many(MANY)) == [2, 4, 3, 1]


def test_lowest_first_serves_the_lowest_priority_first(rooms: Rooms) -> None:
    queue = ReadyQueue(lowest_first=True)
    queue.put_many(
        [rooms.request(tag, priority=priority) for tag, priority in ((1, 9), (2, 0), (3, 4), (4, 0))]
    )
    assert tags(queue.get_many(Slots(2, 0))) == [2, 4]
    assert tags(queue.get_many(MANY)) == [3, 1]


def test_get_many_is_limited_by_slots(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(5))
    assert tags(queue.get_many(Slots(2, 0))) == [1, 2]
    assert len(queue) == 3
    assert tags(queue.get_many(MANY)) == [3, 4, 5]
    assert len(queue) == 0


def test_sync_and_async_requests_do_not_block_each_other(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(
        [rooms.request(1, "nap", priority=9), rooms.request(2), rooms.request(3, "nap"), rooms.request(4)]
    )
    assert tags(queue.get_many(Slots(5, 0))) == [2, 4]
    assert tags(queue.get_many(Slots(0, 1))) == [1]
    assert tags(queue.get_many(Slots(0, 5))) == [3]


def test_returned_requests_come_first_in_their_order(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(4))
    taken = queue.get_many(Slots(3, 0))
    queue.put_back(taken[1:])
    assert tags(queue.get_many(MANY)) == [2, 3, 4]


def test_returned_requests_do_not_overtake_higher_priorities(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([rooms.request(1, priority=5)])
    queue.put_back([rooms.request(2)])
    assert tags(queue.get_many(MANY)) == [1, 2]


def test_empty_queue_returns_nothing(queue: ReadyQueue) -> None:
    assert queue.get_many(MANY) == []


@pytest.mark.parametrize("method", ["put_many", "put_back"])
def test_wait_ends_when_requests_are_put(queue: ReadyQueue, rooms: Rooms, method: str) -> None:
    waiter = threading.Thread(target=queue.wait, args=(30, queue.changes))
    waiter.start()
    getattr(queue, method)(rooms.requests(1))
    waiter.join(10)
    assert not waiter.is_alive()


def test_empty_put_back_wakes_nobody(queue: ReadyQueue) -> None:
    seen = queue.changes
    queue.put_back([])
    assert queue.changes == seen


def test_wake_ends_the_wait(queue: ReadyQueue) -> None:
    waiter = threading.Thread(target=queue.wait, args=(30, queue.changes))
    waiter.start()
    queue.wake()
    waiter.join(10)
    assert not waiter.is_alive()


def test_wait_returns_at_once_after_a_missed_change(queue: ReadyQueue) -> None:
    seen = queue.changes
    queue.wake()
    queue.wait(1000, seen)  # would not end


def test_drop_last_takes_requests_that_would_run_last(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = [rooms.request(tag, priority=tag % 2) for tag in range(1, 7)]
    for request in requests:
        request.seconds = 1.0
    queue.put_many(requests)
    assert tags(queue.drop_last(3.0, keep=0)) == [6, 4, 2]
    assert queue.load == 3.0
    assert tags(queue.get_many(MANY)) == [1, 3, 5]


def test_drop_last_keeps_the_given_number(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = rooms.requests(4)
    for request in requests:
        request.seconds = 1.0
    queue.put_many(requests)
    assert tags(queue.drop_last(0.0, keep=3)) == [4]


def test_drop_last_keeps_async_requests(queue: ReadyQueue, rooms: Rooms) -> None:
    nap, add = rooms.request(1, "nap"), rooms.request(2)
    nap.seconds = add.seconds = 1.0
    queue.put_many([nap, add])
    assert tags(queue.drop_last(0.0, keep=0)) == [2]
    assert tags(queue.get_many(MANY)) == [1]


def test_load_is_the_sum_of_queued_sync_runtimes(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = [rooms.request(1), rooms.request(2), rooms.request(3, "nap")]
    for request in requests:
        request.seconds = 0.1
    queue.put_many(requests)
    assert queue.load == pytest.approx(0.2)
    queue.get_many(Slots(1, 1))
    assert queue.load == pytest.approx(0.1)
    queue.get_many(MANY)
    assert queue.load == 0.0  # exactly: rounding must not add up over a worker's life


def test_clear_returns_all_requests(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([*rooms.requests(3), rooms.request(9, "nap", priority=3)])
    assert sorted(tags(queue.clear())) == [1, 2, 3, 9]
    assert (len(queue), queue.load, queue.clear()) == (0, 0.0, [])


def test_reweigh_updates_the_load(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([rooms.request(1), rooms.request(2), rooms.request(3, "nap")])
    assert queue.load == 0.0
    queue.reweigh(lambda request: 0.5)
    assert queue.load == 1.0
    queue.get_many(Slots(1, 1))
    assert queue.load == 0.5
