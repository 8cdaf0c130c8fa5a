"""The thread that watches the heap, turn by turn."""

from __future__ import annotations

from qworker.components.pool.contract import Slots
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import MAX_REST, ScheduleController
from tests.support.rooms import Rooms, tags


class Woken(ScheduleController):
    """wakes: how often it was woken."""

    wakes = 0

    def wake(self) -> None:
        self.wakes += 1
        super().wake()


class Watched:
    """A ScheduleController with what it puts out; no thread."""

    def __init__(self) -> None:
        self.rooms = Rooms()
        self.clock = self.rooms.clock
        self.ready = ReadyQueue()
        self.moves = 0
        self.controller = Woken(self.clock, lambda name, error: None, self.ready, self.moved)

    def moved(self) -> None:
        self.moves += 1

    def enter(self, tag: int, after: float) -> None:
        self.controller.enter(self.clock.now() + after, self.rooms.request(tag))

    def step(self) -> float | None:
        return self.controller.step(self.clock.monotonic())

    def out(self) -> list[int]:
        return tags(self.ready.get_many(Slots(99, 99)))


def test_it_rests_until_woken_while_there_is_nothing() -> None:
    assert Watched().step() is None


def test_a_request_goes_on_when_its_time_has_come_and_not_before() -> None:
    watched = Watched()
    watched.enter(1, 0.5)
    assert watched.step() == 0.5
    assert (watched.out(), watched.moves) == ([], 0)
    watched.clock.advance(0.5)
    assert watched.step() is None
    assert (watched.out(), watched.moves) == ([1], 1)


def test_requests_go_on_in_the_order_of_their_times() -> None:
    watched = Watched()
    for tag, after in ((1, 0.3), (2, 0.1), (3, 0.2), (4, 0.9)):
        watched.enter(tag, after)
    watched.clock.advance(0.5)
    assert watched.step() is not None
    assert watched.out() == [2, 3, 1]


def test_it_never_rests_so_long_that_a_clock_set_forward_goes_unnoticed() -> None:
    watched = Watched()
    watched.enter(1, 3600)
    assert watched.step() == MAX_REST
    watched.clock.jump(3600)
    watched.step()
    assert watched.out() == [1]


def test_a_clock_set_back_makes_nothing_early() -> None:
    watched = Watched()
    watched.enter(1, 1)
    watched.clock.jump(-60)
    watched.clock.advance(2)
    assert watched.step() == MAX_REST
    assert watched.out() == []
    watched.clock.jump(60)
    watched.step()
    assert watched.out() == [1]


def test_only_what_comes_first_wakes_it() -> None:
    watched = Watched()
    watched.enter(1, 10)
    watched.enter(2, 20)
    assert watched.controller.wakes == 1
    watched.enter(3, 5)
    assert watched.controller.wakes == 2
