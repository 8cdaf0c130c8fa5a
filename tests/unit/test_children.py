"""Which request goes to which child, and what is taken back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.components.pool.child_handle import MAX_JOBS, describe_exit
from qworker.components.pool.children import STALLED_SECONDS
from tests.support.rooms import tags
from tests.support.virtual_children import SHORT, Pool, opened


@pytest.fixture
def pool() -> Iterator[Pool]:
    with opened() as made:
        yield made


@pytest.fixture
def one() -> Iterator[Pool]:
    """A pool of one child."""
    with opened(concurrency=1) as made:
        yield made


def running(pool: Pool) -> list[list[int]]:
    """The tags in each child's hands."""
    return [tags(handle.requests()) for handle in pool.handles.all()]


def test_of_the_sync_tasks_of_a_child_the_first_has_begun(one: Pool) -> None:
    one.submit(*one.rooms.requests(3))
    (begun,) = one.pool.running()
    assert begun[0].tag == 1


# -- assigning --


def test_short_tasks_go_to_all_children(pool: Pool) -> None:
    assert pool.submit(*pool.rooms.requests(4)) == []
    assert running(pool) == [[1, 3], [2, 4]]


def test_a_child_gets_no_more_than_a_frame_of_work(one: Pool) -> None:
    refused = one.submit(*one.rooms.requests(20))
    taken = 20 - len(refused)
    assert taken == int(one.settings.frame_seconds / (one.pool.expected_runtime("add") or 1))
    assert 5 <= taken <= 8
    assert refused == list(range(taken + 1, 21))


def test_a_long_task_goes_alone_to_a_child_that_has_nothing_else(one: Pool) -> None:
    one.learn("boom", 0.5)
    long, short = one.rooms.request(1, "boom"), one.rooms.request(2)
    assert one.submit(long, short) == [2]
    assert one.slots().sync == 0


def test_a_long_task_is_not_put_behind_a_short_one(one: Pool) -> None:
    one.learn("boom", 0.5)
    assert one.submit(one.rooms.request(1), one.rooms.request(2, "boom")) == [2]


def test_what_comes_after_a_refused_one_does_not_overtake_it(one: Pool) -> None:
    one.learn("boom", 0.5)
    assert one.submit(one.rooms.request(1), one.rooms.request(2, "boom"), one.rooms.request(3)) == [2, 3]


def test_an_unknown_task_is_taken_for_long(one: Pool) -> None:
    assert one.submit(one.rooms.request(1, "boom"), one.rooms.request(2)) == [2]


def test_a_long_task_goes_to_the_child_that_is_free(pool: Pool) -> None:
    pool.learn("boom", 0.5)
    pool.submit(pool.rooms.request(1, "boom"))
    assert pool.submit(pool.rooms.request(2, "boom")) == []
    assert running(pool) == [[1], [2]]


def test_async_tasks_are_bounded_and_spread(pool: Pool) -> None:
    assert pool.slots().asynchronous == 6
    assert pool.submit(*pool.rooms.requests(8, "nap")) == [7, 8]
    assert running(pool) == [[1, 3, 5], [2, 4, 6]]
    assert pool.slots().asynchronous == 0


def test_async_tasks_do_not_take_the_room_of_sync_ones(one: Pool) -> None:
    one.submit(*one.rooms.requests(3, "nap"))
    assert one.slots().sync == MAX_JOBS
    assert one.slots_for(None).sync == 1
    assert one.submit(one.rooms.request(9)) == []


def test_many_async_tasks_do_not_either() -> None:
    pool = Pool(concurrency=1, async_concurrency=1000)
    pool.submit(*pool.rooms.requests(MAX_JOBS + 50, "nap"))
    assert pool.slots().sync == MAX_JOBS
    pool.close()


def test_async_tasks_are_not_put_behind_a_sync_one(one: Pool) -> None:
    one.submit(one.rooms.request(1))
    assert one.submit(one.rooms.request(2, "nap")) == [2]


def test_a_refused_async_task_does_not_hold_up_a_sync_one(one: Pool) -> None:
    one.submit(*one.rooms.requests(3, "nap"))
    assert one.submit(one.rooms.request(4, "nap"), one.rooms.request(5)) == [4]


def test_idle_slots_are_children_that_run_nothing(pool: Pool) -> None:
    assert pool.slots_for(None).sync == 2
    pool.submit(pool.rooms.request(1))
    assert pool.slots_for(None).sync == 1


def test_there_are_as_many_slots_as_tasks_of_known_length_fit(one: Pool) -> None:
    seconds = one.pool.expected_runtime("add") or 0
    fit = int(one.settings.frame_seconds / seconds)
    assert one.slots_for(seconds).sync == fit
    assert one.submit(*one.rooms.requests(fit)) == []
    assert one.slots_for(seconds).sync == 0


def test_there_are_none_until_there_is_half_a_frame_of_room(one: Pool) -> None:
    """Else a child would get its tasks one by one; it must not run dry meanwhile either."""
    seconds = one.pool.expected_runtime("add") or 0
    fit = int(one.settings.frame_seconds / seconds)
    one.submit(*one.rooms.requests(fit))
    one.work()
    (child,) = one.children
    while (free := one.slots_for(seconds).sync) == 0:
        child.finish(seconds)
        child.work()
        one.step()
    assert 0 < one.pool.in_flight() <= fit / 2
    assert one.submit(*[one.rooms.request(100 + number) for number in range(free)]) == []
    assert one.slots_for(seconds).sync == 0


def test_a_long_task_has_a_slot_only_where_nothing_runs(pool: Pool) -> None:
    assert pool.slots_for(5.0).sync == 2
    pool.submit(pool.rooms.request(1))
    assert pool.slots_for(5.0).sync == 1


def test_a_quiet_pool_takes_nothing(pool: Pool) -> None:
    pool.pool.quiet()
    assert pool.slots() == (0, 0)
    assert pool.submit(*pool.rooms.requests(2)) == [1, 2]


# -- outcomes --


def test_outcomes_come_back_one_by_one(one: Pool) -> None:
    one.submit(*one.rooms.requests(3))
    one.work()
    (child,) = one.children
    for tag in (1, 2, 3):
        assert child.finish() == tag
        child.work()
        one.step()
        assert one.ends() == [(tag, "success")]
    assert one.pool.in_flight() == 0
    assert one.handles.all()[0].load == 0.0


def test_runs_are_learned_from_but_not_those_of_async_tasks(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap"))
    one.work()
    one.children[0].finish_async()
    one.submit(one.rooms.request(2, "boom"))
    one.work()
    one.children[0].finish(runtime=0.25)
    one.step()
    assert one.pool.expected_runtime("nap") is None
    assert one.pool.expected_runtime("boom") == pytest.approx(0.25, rel=0.01)


def test_the_mediator_hears_of_room_when_there_is_half_a_frame_of_it(one: Pool) -> None:
    taken = 20 - len(one.submit(*one.rooms.requests(20)))
    one.work()
    told = one.room_told
    for _ in range(taken):
        one.children[0].finish(SHORT)
        one.children[0].work()
        one.step()
        if one.room_told > told:
            break
    assert 0 < one.pool.in_flight() <= taken / 2 + 1


def test_async_outcomes_are_not_taken_off_the_load_of_sync_tasks(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap"))
    one.work()
    one.learn("boom", 0.5)
    one.submit(one.rooms.request(2, "boom"))
    load = one.handles.all()[0].load
    one.work()
    one.children[0].finish_async()
    one.step()
    assert one.handles.all()[0].load == load


# -- stalls --


def test_what_waits_behind_a_task_that_turns_out_long_is_recalled(one: Pool) -> None:
    one.submit(*one.rooms.requests(4))
    one.work()
    one.clock.advance(STALLED_SECONDS + 0.001)
    one.step()
    assert one.ends() == [(2, "unstarted"), (3, "unstarted"), (4, "unstarted")]
    assert running(one) == [[1]]
    assert one.slots().sync == 0  # nothing goes behind it now
    assert one.submit(one.rooms.request(5)) == [5]
    one.children[0].finish(1.0)
    one.step()
    assert one.slots().sync == MAX_JOBS


def test_a_child_that_goes_on_is_left_alone(one: Pool) -> None:
    one.submit(*one.rooms.requests(4))
    one.work()
    for _ in range(3):
        one.clock.advance(STALLED_SECONDS * 0.9)
        one.children[0].finish(STALLED_SECONDS)
        one.children[0].work()
        one.step()
    assert [how for _, how in one.ends()] == ["success"] * 3
    assert running(one) == [[4]]


def test_a_task_is_given_the_time_that_it_is_known_to_take() -> None:
    """Else what waits behind tasks of 6 ms would be taken back, and given again, all the time."""
    seconds = 2 * STALLED_SECONDS
    one = Pool(concurrency=1, frame_seconds=3 * seconds)
    one.learn("add", seconds)
    assert one.submit(*one.rooms.requests(2)) == []
    one.work()
    one.clock.advance(seconds * 1.2)
    one.step()
    assert one.ends() == []
    one.clock.advance(seconds)
    one.step()
    assert one.ends() == [(2, "unstarted")]
    one.close()


def test_async_outcomes_do_not_hide_a_stalled_task(one: Pool) -> None:
    one.submit(*one.rooms.requests(2, "nap"))
    one.work()
    one.submit(*one.rooms.requests(3, first=11))
    one.work()
    one.clock.advance(STALLED_SECONDS * 0.9)
    one.children[0].finish_async()
    one.step()
    one.ends()
    one.clock.advance(STALLED_SECONDS * 0.2)
    one.step()
    assert one.ends() == [(12, "unstarted"), (13, "unstarted")]


def test_a_task_that_starts_beside_old_async_ones_is_not_stalled_at_once(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap"))
    one.work()
    one.clock.advance(60)
    one.submit(*one.rooms.requests(2, first=11))
    one.step()
    assert one.ends() == []


def test_the_pool_looks_in_time(one: Pool) -> None:
    assert one.handles.timeout(one.clock.monotonic()) >= 1
    one.submit(*one.rooms.requests(2))
    assert one.handles.timeout(one.clock.monotonic()) == pytest.approx(STALLED_SECONDS)


def test_an_idle_pool_thread_is_told_once_that_something_waits(one: Pool) -> None:
    now = one.clock.monotonic()
    assert one.handles.timeout(now) >= 1
    assert one.handles.assign([one.rooms.request(1)]) == ([], False)
    assert one.handles.assign([one.rooms.request(2)]) == ([], True)
    assert one.handles.timeout(now) == pytest.approx(STALLED_SECONDS)
    assert one.handles.assign([one.rooms.request(3)]) == ([], False)


# -- recall --


def test_recall_takes_back_what_has_not_started_and_no_more(pool: Pool) -> None:
    pool.submit(*pool.rooms.requests(6))
    pool.work()
    assert sorted(tags(pool.pool.recall())) == [3, 4, 5, 6]
    assert running(pool) == [[1], [2]]
    pool.work()
    assert [child.started for child in pool.children] == [[1], [2]]
    for child in pool.children:
        child.finish()
        child.work()
    pool.step()
    assert sorted(pool.ends()) == [(1, "success"), (2, "success")]
    assert [child.started for child in pool.children] == [[1], [2]]


def test_a_recalled_job_may_come_again_and_then_runs(one: Pool) -> None:
    requests = one.rooms.requests(3)
    one.submit(*requests)
    assert len(one.pool.recall()) == 3
    one.submit(requests[1])
    one.work()
    assert one.children[0].started == [2]


def test_recalled_tasks_do_not_wear_a_child_out() -> None:
    pool = Pool(concurrency=1, max_tasks_per_child=3)
    pool.learn("add", SHORT)
    requests = pool.rooms.requests(3)
    pool.submit(*requests)
    assert pool.slots().sync == 0
    pool.pool.recall()
    assert pool.slots().sync > 0
    assert pool.submit(*requests) == []
    pool.close()


# -- words --


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with code 0"),
        (3 << 8, "exited with code 3"),
        (11, "killed by SIGSEGV"),
        (9, "killed by SIGKILL, possibly because memory ran out"),
        (64, "killed by SIGRTMAX"),
        (35, "killed by signal 35"),
        (-1, "could not be forked: too many processes, or no memory"),
    ],
)
def test_how_a_process_ended_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words
