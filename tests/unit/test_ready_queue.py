"""The queue of what may run now."""

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


def test_equals_are_served_as_they_came(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(3))
    queue.put_many(rooms.requests(2, first=10))
    assert tags(queue.get_many(MANY)) == [1, 2, 3, 10, 11]


def test_the_most_urgent_is_served_first(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(
        [rooms.request(tag, priority=priority) for tag, priority in ((1, 0), (2, 9), (3, 4), (4, 9))]
    )
    assert tags(queue.get_many(MANY)) == [2, 4, 3, 1]


def test_on_a_scale_that_begins_with_0_the_lowest_is_served_first(rooms: Rooms) -> None:
    queue = ReadyQueue(lowest_first=True)
    queue.put_many(
        [rooms.request(tag, priority=priority) for tag, priority in ((1, 9), (2, 0), (3, 4), (4, 0))]
    )
    assert tags(queue.get_many(Slots(2, 0))) == [2, 4]
    assert tags(queue.get_many(MANY)) == [3, 1]


def test_no_more_is_taken_than_there_are_slots(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(5))
    assert tags(queue.get_many(Slots(2, 0))) == [1, 2]
    assert len(queue) == 3
    assert tags(queue.get_many(MANY)) == [3, 4, 5]
    assert len(queue) == 0


def test_a_kind_without_slots_does_not_hold_up_the_other(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(
        [rooms.request(1, "nap", priority=9), rooms.request(2), rooms.request(3, "nap"), rooms.request(4)]
    )
    assert tags(queue.get_many(Slots(5, 0))) == [2, 4]
    assert tags(queue.get_many(Slots(0, 1))) == [1]
    assert tags(queue.get_many(Slots(0, 5))) == [3]


def test_what_is_put_back_comes_before_its_equals_in_its_order(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many(rooms.requests(4))
    taken = queue.get_many(Slots(3, 0))
    queue.put_back(taken[1:])
    assert tags(queue.get_many(MANY)) == [2, 3, 4]


def test_what_is_put_back_does_not_overtake_the_more_urgent(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([rooms.request(1, priority=5)])
    queue.put_back([rooms.request(2)])
    assert tags(queue.get_many(MANY)) == [1, 2]


def test_nothing_comes_of_an_empty_queue(queue: ReadyQueue) -> None:
    assert queue.get_many(MANY) == []


@pytest.mark.parametrize("what", ["put_many", "put_back"])
def test_who_waits_hears_of_what_comes(queue: ReadyQueue, rooms: Rooms, what: str) -> None:
    waiter = threading.Thread(target=queue.wait, args=(30, queue.changes))
    waiter.start()
    getattr(queue, what)(rooms.requests(1))
    waiter.join(10)
    assert not waiter.is_alive()


def test_nobody_is_woken_for_nothing(queue: ReadyQueue) -> None:
    seen = queue.changes
    queue.put_back([])
    assert queue.changes == seen


def test_a_wake_ends_the_wait(queue: ReadyQueue) -> None:
    waiter = threading.Thread(target=queue.wait, args=(30, queue.changes))
    waiter.start()
    queue.wake()
    waiter.join(10)
    assert not waiter.is_alive()


def test_a_change_since_there_was_nothing_to_be_had_is_not_missed(queue: ReadyQueue) -> None:
    seen = queue.changes
    queue.wake()
    queue.wait(1000, seen)  # would not end


def test_dropping_takes_what_would_run_last(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = [rooms.request(tag, priority=tag % 2) for tag in range(1, 7)]
    for request in requests:
        request.seconds = 1.0
    queue.put_many(requests)
    assert tags(queue.drop_last(3.0, keep=0)) == [6, 4, 2]
    assert queue.load == 3.0
    assert tags(queue.get_many(MANY)) == [1, 3, 5]


def test_dropping_keeps_as_many_as_asked(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = rooms.requests(4)
    for request in requests:
        request.seconds = 1.0
    queue.put_many(requests)
    assert tags(queue.drop_last(0.0, keep=3)) == [4]


def test_dropping_leaves_async_tasks(queue: ReadyQueue, rooms: Rooms) -> None:
    nap, add = rooms.request(1, "nap"), rooms.request(2)
    nap.seconds = add.seconds = 1.0
    queue.put_many([nap, add])
    assert tags(queue.drop_last(0.0, keep=0)) == [2]
    assert tags(queue.get_many(MANY)) == [1]


def test_the_load_is_that_of_the_sync_tasks_here(queue: ReadyQueue, rooms: Rooms) -> None:
    requests = [rooms.request(1), rooms.request(2), rooms.request(3, "nap")]
    for request in requests:
        request.seconds = 0.1
    queue.put_many(requests)
    assert queue.load == pytest.approx(0.2)
    queue.get_many(Slots(1, 1))
    assert queue.load == pytest.approx(0.1)
    queue.get_many(MANY)
    assert queue.load == 0.0  # exactly: rounding must not add up over a worker's life


def test_clear_takes_everything(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([*rooms.requests(3), rooms.request(9, "nap", priority=3)])
    assert sorted(tags(queue.clear())) == [1, 2, 3, 9]
    assert (len(queue), queue.load, queue.clear()) == (0, 0.0, [])


def test_the_load_follows_what_is_learned(queue: ReadyQueue, rooms: Rooms) -> None:
    queue.put_many([rooms.request(1), rooms.request(2), rooms.request(3, "nap")])
    assert queue.load == 0.0
    queue.reweigh(lambda request: 0.5)
    assert queue.load == 1.0
    queue.get_many(Slots(1, 1))
    assert queue.load == 0.5
