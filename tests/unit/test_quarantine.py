"""Suspected tasks run alone, one at a time, and neither they nor other tasks wait for ever."""

from __future__ import annotations

import pytest

from qworker.components.pool.children import TRIAL_SECONDS, Quarantine
from qworker.components.request import Request, is_suspected
from tests.support.rooms import Rooms
from tests.support.virtual_children import Pool


def suspects(count: int, task: str = "add", first: int = 1) -> list[Request]:
    return Rooms().requests(count, task, first, deliveries=2)


@pytest.mark.parametrize(
    ("deaths", "limit", "quarantined"),
    [(1, 5, False), (2, 5, True), (4, 5, True), (1, 2, True), (1, 3, False), (2, 3, True), (1, 1, True),
     (1, None, False), (2, None, True)],
)  # fmt: skip
def test_task_is_suspect_after_two_deaths_or_before_its_last_one(
    deaths: int, limit: int | None, quarantined: bool
) -> None:
    assert is_suspected(deaths, limit) is quarantined


def test_suspects_run_one_at_a_time_in_order() -> None:
    quarantine = Quarantine(2)
    first, second = suspects(2)
    running = {first}
    quarantine.add(first, 0.0)
    quarantine.add(second, 0.0)
    assert quarantine.next(running.__contains__, 0.0) is first
    quarantine.begin(0.0)
    assert quarantine.next(running.__contains__, 1.0) is None
    running.clear()
    assert quarantine.next(running.__contains__, 2.0) is second
    quarantine.begin(2.0)
    assert quarantine.next(running.__contains__, 3.0) is None
    assert not quarantine


def test_trial_of_a_long_task_ends_after_trial_seconds() -> None:
    quarantine = Quarantine(2)
    first, second = suspects(2)
    quarantine.add(first, 0.0)
    quarantine.next(lambda _: True, 0.0)
    quarantine.begin(0.0)
    quarantine.add(second, 0.0)
    assert quarantine.next(lambda _: True, TRIAL_SECONDS - 0.1) is None
    assert quarantine.next(lambda _: True, TRIAL_SECONDS) is second
    assert quarantine.is_patient(TRIAL_SECONDS)
    assert quarantine.next(lambda _: True, TRIAL_SECONDS * 2) is second
    assert not quarantine.is_patient(TRIAL_SECONDS * 2)


def test_single_slot_alternates_between_suspects_and_others() -> None:
    quarantine = Quarantine(1)
    first, second = suspects(2)
    quarantine.add(first, 0.0)
    quarantine.add(second, 0.0)
    quarantine.next(lambda _: True, 0.0)
    quarantine.begin(0.0)
    assert quarantine.next(lambda _: False, 3.0) is None
    assert quarantine.next(lambda _: False, 5.9) is None
    assert quarantine.next(lambda _: False, 6.0) is second


def test_recall_returns_waiting_suspects() -> None:
    quarantine = Quarantine(2)
    both = suspects(2)
    for one in both:
        quarantine.add(one, 0.0)
    assert quarantine.recall() == both
    assert not quarantine


# -- in a pool of processes --


def test_suspect_waits_for_an_idle_process() -> None:
    pool = Pool()
    pool.learn("add", 0.0005)
    normal = pool.rooms.requests(4)
    assert pool.submit(*normal) == []
    pool.work()
    assert pool.submit(pool.rooms.request(9, deliveries=2)) == []
    pool.step()
    reserved_handle = next(handle for handle in pool.handles.all() if handle.reserved)
    assert pool.submit(*pool.rooms.requests(4, first=20)) == [], "the other process takes these"
    assert 9 not in {request.tag for request in reserved_handle.requests()}
    for child in pool.children:
        child.work()
        while child.running:
            child.finish()
            child.work()
    pool.step()
    pool.work()
    assert [request.tag for request in reserved_handle.requests()] == [9]
    assert pool.submit(pool.rooms.request(50)) == []
    assert [request.tag for request in reserved_handle.requests()] == [9]
    child = next(one for one in pool.children if one.pid == reserved_handle.pid)
    child.finish()
    pool.step()
    assert not reserved_handle.reserved
    pool.close()


def test_dying_suspect_takes_no_other_task_with_it() -> None:
    pool = Pool()
    pool.submit(*(pool.rooms.request(tag, deliveries=2) for tag in (1, 2, 3)))
    pool.submit(*pool.rooms.requests(1, "nap", first=9))
    pool.work()
    for tag in (1, 2, 3):
        (child,) = [one for one in pool.children if one.running]
        assert child.running is not None
        assert child.running[1] == tag
        pool.spawner.die(child)
        pool.step()
        pool.work()
    assert [end for end in pool.ends() if end[0] != 9] == [(1, "lost"), (2, "lost"), (3, "lost")]
    pool.close()


def test_suspect_starts_beside_long_async_tasks_after_trial_seconds() -> None:
    pool = Pool(concurrency=1)
    pool.submit(*pool.rooms.requests(2, "nap"))
    pool.work()
    pool.submit(pool.rooms.request(9, "nap", deliveries=2))
    pool.clock.advance(TRIAL_SECONDS - 1)
    pool.step()
    assert pool.pool.in_flight() == 2
    pool.clock.advance(2)
    pool.step()
    assert pool.pool.in_flight() == 3
    pool.close()


def test_quiet_pool_starts_no_suspect() -> None:
    pool = Pool(concurrency=1)
    pool.submit(pool.rooms.request(1))
    pool.work()
    waiting = pool.rooms.request(2, deliveries=2)
    pool.submit(waiting)
    pool.pool.quiet()
    pool.children[0].finish()
    pool.step()
    assert pool.pool.recall() == [waiting]
    pool.close()
