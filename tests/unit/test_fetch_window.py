"""The fetch window: how much the listener may hold ahead of the pool."""

from __future__ import annotations

import pytest

from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.receiving.fetch_window import LOOKAHEAD_SECONDS, MAX_WINDOW, FetchWindow
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.task_bucket import TaskBucket
from qworker.testing import InlinePool
from tests.support.rooms import Rooms


class Window:
    """A FetchWindow for two processes, with an idle pool and runtimes given by the test."""

    def __init__(
        self, multiplier: int = 1, queue: ReadyQueue | None = None, rooms: Rooms | None = None
    ) -> None:
        self.rooms = rooms or Rooms()
        self.ready = ReadyQueue() if queue is None else queue
        self.pool = InlinePool(
            self.rooms.app,
            PoolSettings(2, "w@h"),
            lambda ends: None,
            lambda rows: None,
            lambda: None,
            on_demand=True,
        )
        self.waiting = 0
        self.window = FetchWindow(self.pool, self.ready, 2, multiplier, lambda: self.waiting)
        self.tag = 0

    def learn(self, seconds: float, name: str = "add") -> None:
        for _ in range(200):
            self.pool.runtimes.learn(name, seconds)

    def hold(self, count: int, task: str = "add") -> None:
        """Put *count* requests into the ready queue."""
        requests = self.rooms.requests(count, task, first=self.tag + 1)
        self.tag += count
        for request in requests:
            self.window.weigh(request)
        self.ready.put_many(requests)

    def run(self, slots: Slots) -> None:
        """Have the pool take requests for these slots."""
        assert self.pool.submit(self.ready.get_many(slots)) == []


def test_room_for_tasks_of_unknown_runtime() -> None:
    window = Window()
    assert window.window.room() == 4
    window.hold(3)
    assert window.window.room() == 1
    window.hold(3)
    assert window.window.room() == 0


@pytest.mark.parametrize(("multiplier", "room"), [(0, 2), (1, 4), (4, 10)])
def test_prefetch_multiplier_adds_to_running_tasks(multiplier: int, room: int) -> None:
    assert Window(multiplier).window.room() == room


def test_running_tasks_take_room() -> None:
    window = Window()
    window.hold(2)
    window.run(Slots(2, 0))
    assert window.window.room() == 2


def test_running_async_tasks_take_no_room() -> None:
    window = Window()
    window.hold(10, "nap")
    assert window.window.room() == 0
    window.run(Slots(0, 10))
    assert window.window.room() == 4


def test_long_tasks_are_not_fetched_ahead() -> None:
    window = Window(multiplier=0)
    window.learn(1.0)
    window.hold(2)
    window.run(Slots(2, 0))
    assert window.window.room() == 0


def test_room_for_short_tasks_covers_the_lookahead() -> None:
    window = Window()
    window.learn(0.001)
    expected = int(2 * LOOKAHEAD_SECONDS / window.pool.mean_runtime())
    assert window.window.room() == expected > 30


def test_room_is_limited_for_very_short_tasks() -> None:
    window = Window()
    window.learn(0.0)
    assert window.window.room() == MAX_WINDOW


def test_no_room_until_the_window_is_half_empty() -> None:
    window = Window()
    window.learn(0.001)
    whole = window.window.room()
    window.hold(whole * 3 // 4)
    assert window.window.room() == 0
    window.run(Slots(2, 0))
    window.pool.run()
    window.ready.get_many(Slots(whole // 2, 0))
    assert window.window.room() >= whole // 2


def test_weight_is_the_expected_or_mean_runtime() -> None:
    window = Window()
    window.learn(0.5)
    known, unknown = window.rooms.request(1), window.rooms.request(2, "boom")
    window.window.weigh(known)
    window.window.weigh(unknown)
    assert known.seconds == window.pool.expected_runtime("add")
    assert unknown.seconds == window.pool.mean_runtime()


def test_requests_of_tasks_found_to_be_long_are_surplus() -> None:
    window = Window()
    window.learn(0.0001)
    window.hold(20)
    assert window.window.surplus() == []
    window.learn(0.5, "boom")
    window.hold(10, "boom")
    surplus = window.window.surplus()
    assert [request.name for request in surplus] == ["boom"] * 10
    assert len(window.ready) == 20


def test_requests_waiting_for_a_rate_limit_take_no_room() -> None:
    rooms = Rooms()
    bucket = TaskBucket({"add": 100}, rooms.clock, lambda request, due: None)
    window = Window(queue=bucket, rooms=rooms)
    window.hold(50)
    assert len(bucket) == 50
    assert window.window.room() == 4


# -- surplus that other workers could start sooner --


def test_waiting_requests_are_surplus_while_all_processes_are_busy() -> None:
    window = Window()
    window.hold(4)
    window.run(Slots(2, 0))
    assert window.window.surplus() == []
    window.pool.busy_for_long = 2
    assert len(window.window.surplus()) == 2
    assert (len(window.ready), window.window.room()) == (0, 0)


def test_short_tasks_behind_long_ones_are_surplus() -> None:
    window = Window()
    window.learn(0.0001)
    window.hold(100)
    window.run(Slots(2, 0))
    window.pool.busy_for_long = 2
    assert len(window.window.surplus()) == 98
    assert window.window.room() == 0, "they must not be fetched again at once"


def test_async_tasks_are_not_surplus_while_processes_are_busy() -> None:
    window = Window()
    window.hold(3, "nap")
    window.hold(2)
    window.pool.busy_for_long = 2
    assert len(window.window.surplus()) == 2
    assert len(window.ready) == 3


def test_busy_process_gets_no_prefetch() -> None:
    window = Window(multiplier=4)
    window.hold(2)
    window.run(Slots(2, 0))
    assert window.window.room() == 8
    window.pool.busy_for_long = 1
    assert window.window.room() == 4


def test_prefetch_pauses_after_a_long_task_until_a_short_one() -> None:
    window = Window(multiplier=4)
    window.pool.runtimes.learn("boom", 22.0)
    assert window.window.room() == 2
    window.pool.runtimes.learn("add", 0.2)
    assert window.window.room() == 10


def test_idle_means_nothing_ready_or_running() -> None:
    window = Window()
    assert window.window.idle()
    window.hold(1)
    assert not window.window.idle()
    window.run(Slots(1, 0))
    assert not window.window.idle()
    window.pool.run()
    assert window.window.idle()


def test_released_surplus_is_not_fetched_again_at_once() -> None:
    window = Window()
    window.learn(0.5, "boom")
    window.learn(0.0001)  # recent tasks were short, so the mean is low
    window.hold(4)
    room = window.window.room()
    window.hold(room, "boom")
    assert len(window.window.surplus()) == room
    assert window.window.room() < room


def test_room_shrinks_after_a_surplus_and_recovers_gradually() -> None:
    window = Window()
    window.learn(0.5, "boom")
    for _ in range(5):
        window.learn(0.0001)
    window.hold(window.window.room(), "boom")
    assert window.window.surplus()
    window.ready.clear()
    rooms = []
    for _ in range(8):
        rooms.append(window.window.room())
        assert window.window.surplus() == []
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[-1] == rooms[-2]


@pytest.mark.parametrize("seconds", [0.0001, 10.0])
def test_results_waiting_for_an_unavailable_store_take_room(seconds: float) -> None:
    window = Window()
    window.learn(seconds)
    assert window.window.room() > 0
    window.waiting = MAX_WINDOW
    assert window.window.room() == 0
