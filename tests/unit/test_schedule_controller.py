"""The thread that watches the heap of delayed requests, step by step."""

from __future__ import annotations

from qworker.components.pool.contract import Slots
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import MAX_REST, ScheduleController
from tests.support.rooms import Rooms, tags


class CountingController(ScheduleController):
    """Counts how often it is woken."""

    wakes = 0

    def wake(self) -> None:
        self.wakes += 1
        super().wake()


class Setup:
    """A ScheduleController without a thread, and the requests that it releases."""

    def __init__(self) -> None:
        self.rooms = Rooms()
        self.clock = self.rooms.clock
        self.ready = ReadyQueue()
        self.moves = 0
        self.controller = CountingController(
            self.clock, lambda name, error: None, self.ready, self.count_move
        )

    def count_move(self) -> None:
        self.moves += 1

    def enter(self, tag: int, after: float) -> None:
        self.controller.enter(self.clock.now() + after, self.rooms.request(tag))

    def step(self) -> float | None:
        return self.controller.step(self.clock.monotonic())

    def released(self) -> list[int]:
        return tags(self.ready.get_many(Slots(99, 99)))


def test_step_without_requests_waits_until_woken() -> None:
    assert Setup().step() is None


def test_request_is_released_when_it_is_due() -> None:
    setup = Setup()
    setup.enter(1, 0.5)
    assert setup.step() == 0.5
    assert (setup.released(), setup.moves) == ([], 0)
    setup.clock.advance(0.5)
    assert setup.step() is None
    assert (setup.released(), setup.moves) == ([1], 1)


def test_requests_are_released_in_the_order_of_their_times() -> None:
    setup = Setup()
    for tag, after in ((1, 0.3), (2, 0.1), (3, 0.2), (4, 0.9)):
        setup.enter(tag, after)
    setup.clock.advance(0.5)
    assert setup.step() is not None
    assert setup.released() == [2, 3, 1]


def test_rest_is_bounded_so_that_clock_jumps_are_noticed() -> None:
    setup = Setup()
    setup.enter(1, 3600)
    assert setup.step() == MAX_REST
    setup.clock.jump(3600)
    setup.step()
    assert setup.released() == [1]


def test_clock_set_back_releases_nothing_early() -> None:
    setup = Setup()
    setup.enter(1, 1)
    setup.clock.jump(-60)
    setup.clock.advance(2)
    assert setup.step() == MAX_REST
    assert setup.released() == []
    setup.clock.jump(60)
    setup.step()
    assert setup.released() == [1]


def test_only_an_earlier_request_wakes_the_thread() -> None:
    setup = Setup()
    setup.enter(1, 10)
    setup.enter(2, 20)
    assert setup.controller.wakes == 1
    setup.enter(3, 5)
    assert setup.controller.wakes == 2
