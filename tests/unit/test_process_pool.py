"""The process pool: dying children, time limits, replacement, stopping; then all of it at random."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qworker.components.pool.child_handle import ASYNC_GRACE_SECONDS, CANCEL_SECONDS
from qworker.components.pool.children import STALLED_SECONDS
from qworker.components.pool.process_pool import CRASH_LOOP_DEATHS
from qworker.components.request import Request
from qworker.errors import QWorkerError
from qworker.tasks.outcome import (
    INTERRUPTED,
    LOST,
    TERMINATED,
    UNSTARTED,
)
from tests.support.logging_events import logged
from tests.support.rooms import tags
from tests.support.virtual_children import SHORT, Pool, VirtualChild, opened


@pytest.fixture
def pool() -> Iterator[Pool]:
    with opened() as made:
        yield made


@pytest.fixture
def one() -> Iterator[Pool]:
    """A pool of one child."""
    with opened(concurrency=1) as made:
        yield made


# -- deaths --


def test_dead_child_loses_the_running_task_and_returns_the_rest(one: Pool) -> None:
    one.submit(*one.rooms.requests(4))
    one.work()
    one.spawner.die(one.children[0], signal.SIGSEGV)
    one.step()
    assert [outcome.text for _, outcome in one.ended if outcome.kind == LOST] == ["killed by SIGSEGV"]
    assert sorted(one.ends()) == [(1, "lost"), (2, "unstarted"), (3, "unstarted"), (4, "unstarted")]
    assert one.pool.in_flight() == 0


def test_running_tasks_are_lost_with_the_zygote_and_the_pool_goes_on(pool: Pool) -> None:
    pool.submit(*pool.rooms.requests(4))
    pool.submit(*pool.rooms.requests(2, "nap", first=5))
    pool.work()
    running = [child.running[1] for child in pool.children if child.running]
    running += [job[1] for child in pool.children for job in child.loop]
    pool.spawner.lose_zygote()
    pool.step()
    ends = pool.ends()
    assert sorted(tag for tag, why in ends if why == "lost") == sorted(running)
    assert {why for tag, why in ends if tag not in running} <= {"unstarted"}
    assert len(pool.children) == 2
    assert pool.submit(pool.rooms.request(9)) == []


def test_results_sent_before_the_zygote_died_count(one: Pool) -> None:
    one.submit(*one.rooms.requests(2))
    one.work()
    one.children[0].finish()
    one.spawner.lose_zygote()
    one.step()
    assert sorted(one.ends()) == [(1, "success"), (2, "unstarted")]


def test_running_task_is_reported_lost_before_the_pool_crashes(one: Pool) -> None:
    """If the death were not counted, the task could crash the next worker, too."""
    one.submit(one.rooms.request(1))
    one.work()
    one.spawner.end()
    with pytest.raises(EOFError, match="nobody left"):
        one.pool.step(0)
    assert one.ends() == [(1, "lost")]


def test_dead_child_is_replaced_at_once(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.clock.advance(60)
    pool.spawner.die(pool.children[0], signal.SIGKILL)
    pool.step()
    assert len(pool.children) == len(pool.handles.all()) == 2
    assert sorted(child.index for child in pool.children) == [0, 1]
    assert "killed by SIGKILL, possibly because memory ran out; it is being replaced" in caplog.text
    assert pool.submit(*pool.rooms.requests(2)) == []
    pool.work()
    assert sorted(tag for child in pool.children for tag in child.started) == [1, 2]


def test_free_slots_of_a_new_child_are_announced(one: Pool) -> None:
    reported = one.room_told
    one.spawner.die(one.children[0])
    one.step()
    assert one.room_told > reported


def test_results_sent_before_a_child_died_count(one: Pool) -> None:
    one.submit(*one.rooms.requests(2))
    one.work()
    child = one.children[0]
    child.finish()
    child.work()
    child.finish()
    one.spawner.die(child)
    one.step()
    assert one.ends() == [(1, "success"), (2, "success")]


def test_tasks_sent_to_a_child_that_just_died_are_returned(one: Pool) -> None:
    one.spawner.die(one.children[0])
    assert one.submit(*one.rooms.requests(2)) == []
    one.step()
    assert sorted(one.ends()) == [(1, "unstarted"), (2, "unstarted")]


def test_async_tasks_of_a_dead_child_are_lost(one: Pool) -> None:
    one.submit(*one.rooms.requests(2, "nap"))
    one.work()
    one.submit(one.rooms.request(3))
    one.spawner.die(one.children[0])
    one.step()
    assert sorted(one.ends()) == [(1, "lost"), (2, "lost"), (3, "unstarted")]


def test_child_whose_socket_was_closed_loses_only_its_own_task(one: Pool) -> None:
    one.submit(one.rooms.request(1))
    one.work()
    child = one.children[0]
    child._socket.close()
    one.step()
    assert one.ends() == []
    child.alive = False
    os.close(child._tokens)
    one.spawner.notify("exit", child.pid, 1 << 8)
    one.step()
    assert one.ends() == [(1, "lost")]
    assert len(one.children) == 1


def test_children_that_die_at_start_are_replaced_ever_more_slowly(pool: Pool) -> None:
    pool.spawner.holds_back = True
    for _ in range(40):
        for child in pool.children:
            pool.spawner.notify("up", child.index, child.pid)
            pool.spawner.die(child)
        pool.step()
        pool.clock.advance(0.01)
    assert len(pool.spawner.children) < 20  # the first are replaced at once, then each waits longer
    pool.spawner.holds_back = False
    pool.clock.advance(10)
    pool.step()
    assert len(pool.children) == 2


def test_repeated_deaths_at_startup_stop_the_worker() -> None:
    pool = Pool(concurrency=1)
    pool.pool._ever_up = False
    pool.spawner.holds_back = True
    for _ in range(CRASH_LOOP_DEATHS - 1):
        pool.spawner.notify("up", 0, pool.children[0].pid)
        pool.spawner.die(pool.children[0], 1 << 8)
        pool.step()
    pool.spawner.notify("up", 0, pool.children[0].pid)
    pool.spawner.die(pool.children[0], 1 << 8)
    with pytest.raises(
        QWorkerError, match="5 pool processes died while starting, the last one: exited with code 1"
    ):
        pool.step()
    pool.spawner.release()


def test_failed_fork_is_retried(one: Pool) -> None:
    one.spawner.holds_back = True
    one.spawner.die(one.children[0])
    one.step()
    child = one.children[0]
    child.close()
    one.spawner.notify("exit", -child.index - 1, -1)
    one.step()
    assert len(one.children) == 1
    assert one.children[0] is not child


def test_failing_spawner_is_retried_after_a_second(one: Pool, caplog: pytest.LogCaptureFixture) -> None:
    one.spawner.failures = 1
    one.spawner.die(one.children[0])
    one.step()
    assert one.children == []
    assert "process-not-started" in logged(caplog)
    one.step()
    assert one.children == []
    one.clock.advance(1.1)
    one.step()
    assert len(one.children) == 1


def test_child_that_does_not_start_in_time_is_replaced(one: Pool) -> None:
    one.spawner.holds_back = True
    one.spawner.die(one.children[0])
    one.step()
    mute = one.children[0]
    one.spawner.notify("up", mute.index, mute.pid)
    one.step()
    assert mute.alive
    one.spawner.holds_back = False
    one.clock.advance(one.settings.alive_timeout + 0.1)
    one.step()
    assert not mute.alive
    assert len(one.children) == 1


# -- limits --


def test_hard_time_limit_kills_the_child_and_ends_only_its_task(one: Pool) -> None:
    limited = one.rooms.request(1, timelimit=(5, None))
    one.submit(limited, one.rooms.request(2))
    one.work()
    one.clock.advance(STALLED_SECONDS * 2)
    one.step()
    assert one.ends() == [(2, "unstarted")]
    one.clock.advance(4.9)
    one.step()
    assert one.children[0].signals == []
    one.clock.advance(0.1)
    one.step()
    assert one.spawner.children[0].signals == [signal.SIGKILL]
    assert one.ends() == [(1, "time limit")]
    assert len(one.children) == 1


def test_unstarted_task_does_not_exceed_its_time_limit(one: Pool) -> None:
    one.submit(one.rooms.request(1, timelimit=(5, None)))
    one.clock.advance(6)
    one.step()
    assert one.ends() == [(1, "unstarted")]


def test_child_that_does_not_start_its_task_is_replaced(one: Pool) -> None:
    one.submit(one.rooms.request(1, timelimit=(5, None)))
    one.clock.advance(4.9)
    one.step()
    assert one.children[0].signals == []
    one.clock.advance(0.2)
    one.step()
    assert one.spawner.children[0].signals == [signal.SIGKILL]
    assert len(one.children) == 1


def test_time_limit_counts_from_the_start_of_the_task(one: Pool) -> None:
    one.submit(one.rooms.request(1), one.rooms.request(2, timelimit=(5, None)))
    one.work()
    one.clock.advance(4)
    child = one.children[0]
    child.finish(4.0)
    child.work()
    one.step()
    assert one.ends() == [(1, "success")]
    one.clock.advance(4.9)
    one.step()
    assert child.signals == []
    one.clock.advance(0.2)
    one.step()
    assert child.signals == [signal.SIGKILL]
    assert one.ends() == [(2, "time limit")]


def test_async_outcomes_do_not_extend_a_time_limit(one: Pool) -> None:
    one.submit(*one.rooms.requests(3, "nap", first=11))
    one.work()
    one.submit(one.rooms.request(1, timelimit=(5, None)))
    one.work()
    for _ in range(2):
        one.clock.advance(2)
        one.children[0].finish_async()
        one.step()
    one.clock.advance(1)
    one.step()
    assert (1, "time limit") in one.ends()


def test_other_tasks_of_a_child_killed_for_a_time_limit_are_interrupted(one: Pool) -> None:
    one.submit(one.rooms.request(2, "nap"))
    one.work()
    one.submit(one.rooms.request(1, timelimit=(5, None)))
    one.work()
    one.clock.advance(5)
    one.step()
    assert sorted(one.ends()) == [(1, "time limit"), (2, "interrupted")]


def test_async_task_over_its_time_limit_gets_a_grace_period(one: Pool) -> None:
    one.submit(one.rooms.request(1, "nap", timelimit=(5, None)))
    one.work()
    one.clock.advance(5 + ASYNC_GRACE_SECONDS - 0.1)
    one.step()
    assert one.children[0].signals == []
    one.clock.advance(0.2)
    one.step()
    assert one.ends() == [(1, "time limit")]


# -- terminate, interrupt --


def test_terminate_sends_the_signal_to_the_child_of_the_task(one: Pool) -> None:
    request = one.rooms.request(1)
    one.submit(request, one.rooms.request(2))
    one.work()
    assert one.pool.terminate(request, "SIGTERM")
    one.step()
    assert one.spawner.children[0].signals == [signal.SIGTERM]
    assert sorted(one.ends()) == [(1, "terminated"), (2, "unstarted")]


def test_terminate_waits_for_the_pid_of_a_new_child(one: Pool) -> None:
    one.spawner.holds_back = True
    one.spawner.die(one.children[0])
    one.step()
    child, request = one.children[0], one.rooms.request(1)
    one.submit(request)
    one.work()
    assert one.pool.terminate(request, "SIGTERM")
    assert child.signals == []
    one.spawner.holds_back = False
    one.spawner.notify("up", child.index, child.pid)
    one.step()
    assert child.signals == [signal.SIGTERM]
    assert one.ends() == [(1, "terminated")]


def test_interrupt_waits_for_the_pid_of_a_new_child(one: Pool) -> None:
    one.spawner.holds_back = True
    one.spawner.die(one.children[0])
    one.step()
    one.submit(one.rooms.request(1))
    one.pool.interrupt()
    one.spawner.notify("up", 0, one.children[0].pid)
    one.step()
    assert one.children[0].signals == [signal.SIGUSR1]


def test_terminating_an_unknown_request_returns_false(one: Pool) -> None:
    assert not one.pool.terminate(one.rooms.request(1), "SIGTERM")
    assert one.children[0].signals == []


def test_death_after_a_nonfatal_terminate_signal_is_a_loss(one: Pool) -> None:
    request = one.rooms.request(1)
    one.submit(request)
    one.work()
    assert one.pool.terminate(request, "SIGUSR1")
    one.spawner.die(one.children[0], signal.SIGSEGV)  # later, and for another reason
    one.step()
    assert one.ends() == [(1, "lost")]


def test_terminated_async_task_is_cancelled_by_its_child(one: Pool) -> None:
    first, second = one.rooms.requests(2, "nap")
    one.submit(first, second)
    one.work()
    (child,) = one.children
    assert one.pool.terminate(first, "SIGTERM")
    assert one.pool.terminate(first, "SIGTERM")
    assert child.cancelled() == [1]
    child.finish_async(0, TERMINATED)
    one.step()
    assert one.ends() == [(1, "terminated")]
    one.clock.advance(CANCEL_SECONDS + 1)
    one.step()
    assert one.children == [child]
    assert child.signals == []


def test_child_is_killed_if_its_async_task_ignores_cancellation(one: Pool) -> None:
    """Its other tasks are interrupted, and results that came before count."""
    requests = one.rooms.requests(3, "nap")
    one.submit(*requests)
    one.work()
    (child,) = one.children
    one.pool.terminate(requests[1], "SIGKILL")
    one.clock.advance(CANCEL_SECONDS - 0.01)
    child.finish_async(0)
    one.step()
    assert child.signals == []
    one.clock.advance(0.02)
    one.step()
    assert child.signals == [signal.SIGKILL]
    assert sorted(one.ends()) == [(1, "success"), (2, "terminated"), (3, "interrupted")]


def test_unrequested_interruption_counts_as_a_loss(pool: Pool) -> None:
    pool.submit(*pool.rooms.requests(1))
    pool.work()
    pool.children[0].finish(kind=INTERRUPTED)
    pool.step()
    assert pool.ends() == [(1, "lost")]
    pool.submit(pool.rooms.request(2))
    pool.work()
    pool.pool.interrupt()
    pool.children[0].finish(kind=INTERRUPTED)
    pool.step()
    assert pool.ends() == [(2, "interrupted")]


def test_interrupt_reaches_busy_children_only(pool: Pool) -> None:
    pool.submit(pool.rooms.request(1))
    pool.work()
    pool.pool.interrupt()
    assert [child.signals for child in pool.children] == [[signal.SIGUSR1], []]


# -- retirement --


def test_child_is_replaced_after_max_tasks_per_child() -> None:
    pool = Pool(concurrency=1, max_tasks_per_child=2)
    pool.learn("add", SHORT)
    first = pool.children[0]
    assert pool.submit(*pool.rooms.requests(3)) == [3]
    pool.work()
    first.finish()
    first.work()
    pool.step()
    assert pool.slots().sync == 0
    first.finish()
    pool.step()
    first.read()
    assert first.hung_up  # it has sent all its results and may exit
    pool.spawner.die(first, 0)
    pool.step()
    assert [how for _, how in pool.ends()] == ["success", "success"]
    assert pool.submit(pool.rooms.request(3)) == []
    pool.work()
    assert pool.children[0].started == [3]
    pool.close()


def test_child_that_uses_too_much_memory_is_replaced_without_losses(
    one: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    one.submit(*one.rooms.requests(3))
    one.work()
    first = one.children[0]
    with caplog.at_level(logging.WARNING):
        first.finish(retire=True)
        one.step()
        assert one.ends() == [(1, "success"), (2, "unstarted"), (3, "unstarted")]
        first.work()
        assert first.hung_up
        assert first.started == [1]
        one.spawner.die(first, 0)
        one.step()
    assert len(one.children) == 1
    assert caplog.text == ""  # nothing that anybody should worry about


# -- frames that do not fit --


def test_large_frame_is_sent_in_several_writes(one: Pool) -> None:
    huge = one.rooms.request(1, "add", "x" * 6_000_000)
    assert one.submit(huge) == []
    child = one.children[0]
    for _ in range(500):
        child.read()
        one.pool.step(0)
        if child.arrived:
            break
    (job,) = child.arrived
    assert job[-1] == huge.leased.body
    child.work()
    child.finish()
    one.step()
    assert one.ends() == [(1, "success")]


def test_started_state_is_passed_on(one: Pool) -> None:
    request = one.rooms.request(1)
    one.submit(request)
    one.work()
    child = one.children[0]
    assert child.running is not None
    child.tell_started(child.running, ("id-1", "STARTED", b"{}", None))
    one.step()
    assert one.stored == [(request, ("id-1", "STARTED", b"{}", None))]
    assert one.pool.in_flight() == 1


# -- stopping --


def test_stop_lets_idle_children_exit_and_kills_busy_ones(pool: Pool) -> None:
    running = pool.rooms.request(1)
    pool.submit(running)
    pool.work()
    busy, idle = pool.children
    cut = pool.pool.stop(deadline=0)
    idle.read()
    assert (idle.hung_up, idle.signals, busy.signals) == (True, [], [signal.SIGKILL])
    assert cut == [running]
    assert pool.spawner.closed == 1


def test_tasks_cut_short_by_stop_are_returned(one: Pool) -> None:
    running = one.rooms.request(1)
    one.submit(running)
    one.work()
    one.pool.quiet()
    for child in one.handles.retire_all():
        child.kill(signal.SIGKILL)
    one.step()
    assert one.ends() == []
    assert one.pool.stop(deadline=0) == [running]
    assert one.children == []  # no child was replaced


def test_task_whose_child_dies_during_quiet_is_lost(one: Pool) -> None:
    one.submit(one.rooms.request(1))
    one.work()
    one.pool.quiet()
    one.spawner.die(one.children[0], signal.SIGSEGV)
    one.step()
    assert one.ends() == [(1, "lost")]


def test_file_descriptors_of_dead_children_are_closed(one: Pool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        one.clock.advance(60)
        one.spawner.die(one.children[0])
        one.step()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_info(pool: Pool) -> None:
    pool.submit(pool.rooms.request(1))
    assert pool.pool.info() == {
        "implementation": "prefork",
        "max-concurrency": 2,
        "processes": [child.pid for child in pool.children],
        "max-tasks-per-child": "N/A",
        "in-flight": 1,
    }


# -- all of it, at random --


class AtRandom(RuleBasedStateMachine):
    """Requests are submitted and recalled; children work, stall and die at any point; time limits pass.

    waiting: requests the mediator would hold. submitted: those in the pool. Whatever happens, each request is
    in one place, is reported to have ended once, and is never both taken back and started.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(concurrency=2, max_tasks_per_child=25)
        self.pool.learn("add", SHORT)
        self.pool.learn("boom", 1.0)
        self.waiting: list[Request] = []
        self.submitted: dict[int, Request] = {}
        self.ended: dict[int, str] = {}
        self.started: dict[int, int] = {}
        """tag → how many times a child began it since it was last taken back unstarted"""
        self.finished_by_child: set[int] = set()
        self.tag = 0

    # what the pool returns

    def collect(self) -> None:
        self.note_starts()
        for request, outcome in self.pool.ended:
            assert request.tag in self.submitted, "ended twice, or never submitted"
            del self.submitted[request.tag]
            if outcome.kind == UNSTARTED:
                self.take_back(request)
            else:
                assert request.tag not in self.ended
                self.ended[request.tag] = outcome.kind
                if outcome.runtime is not None:
                    assert request.tag in self.finished_by_child
        self.pool.ended.clear()

    def take_back(self, request: Request) -> None:
        assert not self.started.get(request.tag), "started, and taken back as unstarted"
        self.waiting.append(request)

    def note_starts(self) -> None:
        for child in self.pool.spawner.children:
            for tag in child.started:
                self.started[tag] = self.started.get(tag, 0) + 1
                assert self.started[tag] == 1, "started twice"
            child.started.clear()

    # what happens

    @rule(kinds=st.lists(st.sampled_from(["add", "add", "add", "add", "nap", "boom", "once"]), max_size=6))
    def submit(self, kinds: list[str]) -> None:
        for kind in kinds:
            self.tag += 1
            limits = {"timelimit": (3, None)} if self.tag % 7 == 0 else {}
            self.waiting.append(self.pool.rooms.request(self.tag, kind, **limits))
        offered, self.waiting = self.waiting, []
        refused = self.pool.pool.submit(offered)
        self.waiting = refused
        for request in offered:
            if request not in refused:
                self.submitted[request.tag] = request

    @rule(which=st.integers(0, 1), begin=st.booleans())
    def child_reads(self, which: int, begin: bool) -> None:
        child = self.child(which)
        child.read()
        if begin:
            child.begin()
        self.note_starts()

    @rule(which=st.integers(0, 1), runtime=st.sampled_from([SHORT, SHORT, 0.05, 2.0]), retire=st.booleans())
    def child_finishes(self, which: int, runtime: float, retire: bool) -> None:
        child = self.child(which)
        if child.running is not None:
            self.finished_by_child.add(child.finish(runtime, retire=retire and runtime == 2.0))
            child.begin()
            self.note_starts()

    @rule(which=st.integers(0, 1))
    def async_task_finishes(self, which: int) -> None:
        child = self.child(which)
        if child.loop:
            self.finished_by_child.add(child.finish_async())

    @rule(which=st.integers(0, 1), read_first=st.booleans(), tell=st.booleans())
    def child_dies(self, which: int, read_first: bool, tell: bool) -> None:
        child = self.child(which)
        if read_first:
            child.work()
            self.note_starts()
        if tell and child.running is not None:
            self.finished_by_child.add(child.finish())
        self.pool.spawner.die(child)

    @rule()
    def recall(self) -> None:
        self.note_starts()
        for request in self.pool.pool.recall():
            del self.submitted[request.tag]
            self.take_back(request)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def terminate(self, data: st.DataObject) -> None:
        request = self.submitted[data.draw(st.sampled_from(sorted(self.submitted)))]
        self.pool.pool.terminate(request, "SIGKILL")

    @rule(seconds=st.sampled_from([0.0, SHORT, STALLED_SECONDS * 1.5, 0.5, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.pool.clock.advance(seconds)
        self.step()

    @rule()
    def step(self) -> None:
        self.pool.step()
        self.collect()
        for child in list(self.pool.children):
            child.read()
            if child.hung_up and child.running is None and not child.loop and not child.arrived:
                self.pool.spawner.die(child, 0)  # a child exits when its socket is closed

    def child(self, which: int) -> VirtualChild:
        alive = self.pool.children
        if not alive:
            self.pool.clock.advance(10)
            self.pool.step()
            self.collect()
            alive = self.pool.children
        return alive[which % len(alive)]

    # what always holds

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        waiting = tags(self.waiting)
        places = sorted([*waiting, *self.submitted, *self.ended])
        assert places == list(range(1, self.tag + 1))

    @invariant()
    def the_pool_knows_what_it_holds(self) -> None:
        reported = {request.tag for request, _ in self.pool.ended}
        held = sorted(tag for handle in self.pool.handles.all() for tag in tags(handle.requests()))
        assert held == sorted(self.submitted.keys() - reported)
        assert self.pool.pool.in_flight() == len(held)

    @invariant()
    def the_load_is_never_negative_and_never_left_behind(self) -> None:
        for handle in self.pool.handles.all():
            assert handle.load >= -1e-9
            assert handle.sync_jobs == sum(not one.request.is_async for one in handle.jobs.values())
            if not handle.sync_jobs:
                assert handle.load == pytest.approx(0, abs=1e-9)

    @invariant()
    def nothing_is_put_behind_a_long_task(self) -> None:
        for handle in self.pool.handles.all():
            sync = [one for one in handle.jobs.values() if not one.request.is_async]
            if len(sync) > 1:
                assert all(one.seconds <= self.pool.settings.frame_seconds for one in sync)

    def teardown(self) -> None:
        """From any state, each request ends exactly once."""
        for _ in range(200):
            if not self.waiting and not self.submitted:
                break
            self.submit([])
            for child in list(self.pool.children):
                child.work()
                self.note_starts()
                while child.running is not None:
                    self.finished_by_child.add(child.finish())
                    child.work()
                    self.note_starts()
                while child.loop:
                    self.finished_by_child.add(child.finish_async())
            self.pool.clock.advance(0.1)
            self.step()
        assert not self.waiting, "a request is never accepted"
        assert not self.submitted, "a request never ends"
        assert set(self.ended) == set(range(1, self.tag + 1))
        self.pool.close()


TestAtRandom = AtRandom.TestCase
TestAtRandom.settings = settings(max_examples=40, stateful_step_count=40)
