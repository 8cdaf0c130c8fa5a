"""The heap of requests that are not due yet, compared with a sorted list."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from qworker.components.request import Request
from qworker.components.waiting.schedule_controller import EtaSchedule
from tests.support.rooms import Rooms, tags

ROOMS = Rooms()


def test_due_requests_are_popped_earliest_first() -> None:
    schedule = EtaSchedule()
    for tag, due in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 40.0)):
        schedule.push(due, ROOMS.request(tag))
    assert tags(schedule.pop_due(30.0)) == [2, 3, 1]
    assert schedule.pop_due(30.0) == []
    assert tags(schedule.pop_due(math.inf)) == [4]


def test_request_is_not_popped_before_it_is_due() -> None:
    schedule = EtaSchedule()
    schedule.push(10.0, ROOMS.request(1))
    assert schedule.pop_due(math.nextafter(10.0, 0)) == []
    assert tags(schedule.pop_due(10.0)) == [1]


def test_push_returns_whether_the_request_is_next() -> None:
    schedule = EtaSchedule()
    assert schedule.push(20.0, ROOMS.request(1))
    assert not schedule.push(30.0, ROOMS.request(2))
    assert schedule.push(10.0, ROOMS.request(3))
    assert schedule.next_due() == 10.0


def test_removed_request_is_not_popped() -> None:
    schedule = EtaSchedule()
    one, two = ROOMS.requests(2)
    schedule.push(10.0, one)
    schedule.push(20.0, two)
    assert schedule.remove(one)
    assert not schedule.remove(one)
    assert (len(schedule), schedule.snapshot()) == (1, [(20.0, two)])
    assert schedule.pop_due(math.inf) == [two]
    assert not schedule.remove(two)


def test_request_pushed_again_with_a_later_eta_is_not_early() -> None:
    schedule = EtaSchedule()
    first, again = ROOMS.request(1), ROOMS.request(1)
    schedule.push(10.0, first)
    schedule.remove(first)
    schedule.push(20.0, again)
    assert schedule.pop_due(15.0) == []
    assert schedule.pop_due(20.0) == [again]


def test_clear_returns_all_but_removed_requests() -> None:
    schedule = EtaSchedule()
    requests = ROOMS.requests(4)
    for request in requests:
        schedule.push(float(request.tag), request)
    schedule.remove(requests[2])
    assert tags(schedule.clear()) == [1, 2, 4]
    assert (len(schedule), schedule.clear(), schedule.next_due()) == (0, [], None)


class SortedListComparison(RuleBasedStateMachine):
    """now: the wall clock, which may step either way. model: ``(due, tag)`` → request."""

    held: Bundle[Request] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.schedule = EtaSchedule()
        self.model: dict[tuple[float, int], Request] = {}
        self.now = 1000.0
        self.tag = 0

    @rule(target=held, after=st.sampled_from([-5.0, 0.0, 0.25, 1.0, 1.0, 7.5, 300.0]))
    def push(self, after: float) -> Any:
        self.tag += 1
        request = ROOMS.request(self.tag)
        due = self.now + after
        self.model[due, self.tag] = request
        assert self.schedule.push(due, request) == (min(self.model) == (due, self.tag))
        return request

    @rule(request=consumes(held))
    def remove(self, request: Request) -> None:
        keys = [key for key, one in self.model.items() if one is request]
        assert self.schedule.remove(request) == bool(keys)
        for key in keys:
            del self.model[key]

    @rule(request=consumes(held), later=st.sampled_from([-2.0, 1.0, 50.0]))
    def reschedule(self, request: Request, later: float) -> None:
        keys = [key for key, one in self.model.items() if one is request]
        if keys and self.schedule.remove(request):
            del self.model[keys[0]]
            self.model[self.now + later, request.tag] = request
            self.schedule.push(self.now + later, request)

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 10.0, 400.0, -3.0, -500.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        due = sorted(key for key in self.model if key[0] <= self.now)
        assert self.schedule.pop_due(self.now) == [self.model.pop(key) for key in due]

    @invariant()
    def same_content(self) -> None:
        assert self.schedule.snapshot() == [(key[0], self.model[key]) for key in sorted(self.model)]
        assert len(self.schedule) == len(self.model)

    @invariant()
    def next_due_is_the_earliest(self) -> None:
        assert self.schedule.next_due() == (min(self.model)[0] if self.model else None)

    @invariant()
    def removed_entries_are_dropped(self) -> None:
        assert len(self.schedule._heap) <= 2 * len(self.schedule) + 65


TestSortedListComparison = SortedListComparison.TestCase
TestSortedListComparison.settings = settings(max_examples=40, stateful_step_count=50)


def test_removed_entries_do_not_accumulate_in_the_heap() -> None:
    schedule = EtaSchedule()
    for tag in range(1, 1000):
        request = ROOMS.request(tag)
        schedule.push(float(tag), request)
        schedule.remove(request)
    assert len(schedule._heap) <= 65
