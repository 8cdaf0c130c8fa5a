"""Which request goes to which child, and which are recalled."""

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
    """The tags of the requests of each child."""
    return [tags(handle.requests()) for handle in pool.handles.all()]


def test_first_sync_task_of_a_child_counts_as_running(one: Pool) -> None:
    one.submit(*one.rooms.requests(3))
    (begun,) = one.pool.running()
    assert begun[0].tag == 1


# -- assigning --


def test_short_tasks_are_spread_over_all_children(pool: Pool) -> None:
    assert pool.submit(*pool.rooms.requests(4)) == []
    assert running(pool) == [[1, 3], [2, 4]]


def test_child_gets_at_most_one_frame_of_work(one: Pool) -> None:
    refused = one.submit(*one.rooms.requests(20))
    taken = 20 - len(refused)
    assert taken == int(one.settings.frame_seconds / (one.pool.expected_runtime("add") or 1))
    assert 5 <= taken <= 8
    assert refused == list(range(taken + 1, 21))


def test_long_task_goes_alone_to_an_idle_child(one: Pool) -> None:
    one.learn("boom", 0.5)
    long, short = one.rooms.request(1, "boom"), one.rooms.request(2)
    assert one.submit(long, short) == [2]
    assert one.slots().sync == 0


def test_long_task_is_not_queued_behind_a_short_one(one: Pool) -> None:
    one.learn("boom", 0.5)
    assert one.submit(one.rooms.request(1), one.rooms.request(2, "boom")) == [2]


def test_later_request_does_not_overtake_a_refused_one(one: Pool) -> None:
    one.learn("boom", 0.5)
    assert one.submit(one.rooms.request(1), one.rooms.request(2, "boom"), one.rooms.request(3)) == [2, 3]


def test_task_of_unknown_runtime_is_treated_as_long(one: Pool) -> None:
    assert one.submit(one.rooms.request(1, "boom"), one.rooms.request(2)) == [2]


def test_long_task_goes_to_the_free_child(pool: Pool) -> None:
    pool.learn("boom", 0.5)
    pool.submit(pool.rooms.request(1, "boom"))
    assert pool.submit(pool.rooms.request(2, "boom")) == []
    assert running(pool) == [[1], [2]]


def test_async_tasks_are_limited_and_spread_over_children(pool: Pool) -> None:
    assert pool.slots().asynchronous == 6
    assert pool.submit(*pool.rooms.requests(8, "nap")) == [7, 8]
    assert running(pool) == [[1, 3, 5], [2, 4, 6]]
    assert pool.slots().asynchronous == 0


def test_async_tasks_do_not_take_slots_of_sync_tasks(one: Pool) -> None:
    one.submit(*one.rooms.requests(3, "nap"))
    assert one.slots().sync == MAX_JOBS
    assert one.slots_for(None).sync == 1
    assert one.submit(one.rooms.request(9)) == []


def test_many_async_tasks_do_not_take_slots_of_sync_tasks() -> None:
    pool = Pool(concurrency=1, async_concurrency=1000)
    pool.submit(*pool.rooms.requests(MAX_JOBS + 50, "nap"))
    assert pool.slots().sync == MAX_JOBS
    pool.close()


def test_async_tasks_are_not_queued_behind_a_sync_task(one: Pool) -> None:
    one.submit(one.rooms.request(1))
    assert one.submit(one.rooms.request(2, "nap")) == [2]


def test_refused_async_task_does_not_delay_a_sync_task(one: Pool) -> None:
    one.submit(*one.rooms.requests(3, "nap"))
    assert one.submit(one.rooms.request(4, "nap"), one.rooms.request(5)) == [4]


def test_idle_slots_are_children_without_tasks(pool: Pool) -> None:
    assert pool.slots_for(None).sync == 2
    pool.submit(pool.rooms.request(1))
    assert pool.slots_for(None).sync == 1


def test_slots_for_a_known_runtime_fill_a_frame(one: Pool) -> None:
    seconds = one.pool.expected_runtime("add") or 0
    fit = int(one.settings.frame_seconds / seconds)
    assert one.slots_for(seconds).sync == fit
    assert one.submit(*one.rooms.requests(fit)) == []
    assert one.slots_for(seconds).sync == 0


def test_slots_are_offered_from_half_a_frame_of_room(one: Pool) -> None:
    """Otherwise a child would get its tasks one by one; but it must not run out of work either."""
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


def test_long_task_has_a_slot_only_on_idle_children(pool: Pool) -> None:
    assert pool.slots_for(5.0).sync == 2
    pool.submit(pool.rooms.request(1))
    assert pool.slots_for(5.0).sync == 1


def test_quiet_pool_accepts_nothing(pool: Pool) -> None:
    pool.pool.quiet()
    assert pool.slots() == (0, 0)
    assert pool.submit(*pool.rooms.requests(2)) == [1, 2]


# -- outcomes --


def test_outcomes_are_reported_one_by_one(one: Pool) -> None:
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


def test_runtimes_are_learned_from_sync_tasks_only(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap"))
    one.work()
    one.children[0].finish_async()
    one.submit(one.rooms.request(2, "boom"))
    one.work()
    one.children[0].finish(runtime=0.25)
    one.step()
    assert one.pool.expected_runtime("nap") is None
    assert one.pool.expected_runtime("boom") == pytest.approx(0.25, rel=0.01)


def test_mediator_is_notified_at_half_a_frame_of_room(one: Pool) -> None:
    taken = 20 - len(one.submit(*one.rooms.requests(20)))
    one.work()
    before = one.room_told
    for _ in range(taken):
        one.children[0].finish(SHORT)
        one.children[0].work()
        one.step()
        if one.room_told > before:
            break
    assert 0 < one.pool.in_flight() <= taken / 2 + 1


def test_async_outcomes_do_not_reduce_the_load_of_sync_tasks(one: Pool) -> None:
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


def test_requests_behind_a_stalled_task_are_recalled(one: Pool) -> None:
    one.submit(*one.rooms.requests(4))
    one.work()
    one.clock.advance(STALLED_SECONDS + 0.001)
    one.step()
    assert one.ends() == [(2, "unstarted"), (3, "unstarted"), (4, "unstarted")]
    assert running(one) == [[1]]
    assert one.slots().sync == 0  # nothing is queued behind it now
    assert one.submit(one.rooms.request(5)) == [5]
    one.children[0].finish(1.0)
    one.step()
    assert one.slots().sync == MAX_JOBS


def test_requests_of_a_progressing_child_are_not_recalled(one: Pool) -> None:
    one.submit(*one.rooms.requests(4))
    one.work()
    for _ in range(3):
        one.clock.advance(STALLED_SECONDS * 0.9)
        one.children[0].finish(STALLED_SECONDS)
        one.children[0].work()
        one.step()
    assert [how for _, how in one.ends()] == ["success"] * 3
    assert running(one) == [[4]]


def test_task_stalls_only_beyond_its_known_runtime() -> None:
    """Otherwise requests behind tasks of 6 ms would be recalled and assigned again all the time."""
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


def test_task_started_after_old_async_tasks_is_not_stalled_at_once(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap"))
    one.work()
    one.clock.advance(60)
    one.submit(*one.rooms.requests(2, first=11))
    one.step()
    assert one.ends() == []


def test_timeout_of_the_pool_covers_the_next_stall(one: Pool) -> None:
    assert one.handles.timeout(one.clock.monotonic()) >= 1
    one.submit(*one.rooms.requests(2))
    assert one.handles.timeout(one.clock.monotonic()) == pytest.approx(STALLED_SECONDS)


def test_assign_asks_to_wake_an_idle_pool_thread_once(one: Pool) -> None:
    now = one.clock.monotonic()
    assert one.handles.timeout(now) >= 1
    assert one.handles.assign([one.rooms.request(1)]) == ([], False)
    assert one.handles.assign([one.rooms.request(2)]) == ([], True)
    assert one.handles.timeout(now) == pytest.approx(STALLED_SECONDS)
    assert one.handles.assign([one.rooms.request(3)]) == ([], False)


# -- recall --


def test_recall_takes_back_only_unstarted_requests(pool: Pool) -> None:
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


def test_recalled_request_runs_when_submitted_again(one: Pool) -> None:
    requests = one.rooms.requests(3)
    one.submit(*requests)
    assert len(one.pool.recall()) == 3
    one.submit(requests[1])
    one.work()
    assert one.children[0].started == [2]


def test_recalled_tasks_do_not_count_towards_max_tasks_per_child() -> None:
    pool = Pool(concurrency=1, max_tasks_per_child=3)
    pool.learn("add", SHORT)
    requests = pool.rooms.requests(3)
    pool.submit(*requests)
    assert pool.slots().sync == 0
    pool.pool.recall()
    assert pool.slots().sync > 0
    assert pool.submit(*requests) == []
    pool.close()


# -- descriptions --


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
def test_description_of_exit_statuses(status: int, words: str) -> None:
    assert describe_exit(status) == words
