"""Processes that die: the worker, its pool, the one that forks them; and a worker that is frozen."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from tests.acceptance.harness import Site, until
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import descendants, gone, kill
from tests.acceptance.together import (
    another_takes_over_from_who_is_killed,
    everything_runs_exactly_once,
    little_is_lost_that_must_not_run_twice,
    little_runs_again_when_workers_are_killed_at_full_speed,
    nobody_waits_behind_a_long_task,
    two_workers_share_a_queue,
    who_is_frozen_on_the_way_to_the_pool_starts_nothing,
    who_wakes_after_its_lease_starts_nothing,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_nothing_happens(site: Site) -> None:
    """F-00: the anchor. Without a fault everything runs exactly once and all is clean."""
    everything_runs_exactly_once(site)


def test_main_is_killed_with_work_in_flight(site: Site) -> None:
    """F-02: its children go at once; a new worker has everything back; only what ran is run again."""
    first = site.start()
    go = site.path / "go"
    long = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*long)
    short = site.send_many("work", [(number, 0.002) for number in range(200)])
    later = [site.send("work", number, countdown=1.5) for number in range(5)]
    first.kill()
    for pid in first.seen:
        until(lambda pid=pid: gone(pid), "the children to go with their worker", first, seconds=5)
    second = site.start(name="two")
    site.started(*long, times=2)
    go.touch()
    site.drained()
    second.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(site.sent) + 2, "only what was running ran twice"
    assert {record.attempt for id in long for record in site.records(id, STARTED)} == {1, 2}, (
        "the death counts"
    )
    assert "worker one@test is dead" in second.log
    assert set(site.states().values()) == {"SUCCESS"}
    assert len(site.states()) == len(short) + len(later) + 2


def test_main_is_killed_while_short_tasks_stream(site: Site) -> None:
    """F-02 at full speed, three times over: batches of acks are lost with the process, never a message."""
    little_runs_again_when_workers_are_killed_at_full_speed(site)


def test_the_whole_tree_is_killed(site: Site) -> None:
    """F-03: a power cut, as far as processes go."""
    first = site.start()
    ids = [site.send("work", number, 0.3) for number in range(6)]
    site.started(ids[0])
    for pid in first.tree():
        kill(pid)
    first.wait()
    second = site.start(name="two")
    site.drained()
    second.stop()
    check(site)


def test_main_is_killed_again_and_again_under_the_same_task(site: Site) -> None:
    """A task that was running at every death of its worker is poison too: five deliveries, no more."""
    id = site.send("until_file", str(site.path / "never"))
    for attempt in range(5):
        worker = site.start(name=f"worker{attempt}")
        site.started(id, times=attempt + 1)
        worker.kill()
    good = site.send("work", 1)
    last = site.start(name="last")
    site.finished(id, good)
    site.drained()
    last.stop()
    check(site)
    assert "each of 5 deaths" in site.dead()[id]
    assert site.states() == {id: "FAILURE", good: "SUCCESS"}


def test_a_busy_child_is_killed(site: Site) -> None:
    """F-01: noticed at once, run again at once, counted; the worker itself is not disturbed."""
    worker = site.start()
    go = site.path / "go"
    id = site.send("until_file", str(go))
    before = worker.wait_pool()
    (start,) = site.started(id)
    assert start.pid in before
    kill(start.pid)
    killed = time.monotonic()
    (again,) = site.started(id, times=2)
    assert again.monotonic - killed <= 0.5, "I-10"
    assert (start.attempt, again.attempt) == (1, 2)
    after = worker.wait_pool()
    assert len(set(after) - set(before)) == 1
    go.touch()
    site.drained()
    worker.stop()
    check(site)
    assert worker.log.count(f"pool process {start.pid} ended: killed by SIGKILL") == 1, "I-14"


def test_a_busy_child_is_killed_three_times(site: Site) -> None:
    worker = site.start()
    go = site.path / "go"
    id = site.send("until_file", str(go))
    for times in (1, 2, 3):
        (start,) = site.started(id, times=times)
        kill(start.pid)
    site.started(id, times=4)
    go.touch()
    site.drained()
    worker.stop()
    check(site)
    assert [record.attempt for record in site.records(id, STARTED)] == [1, 2, 3, 4]


def test_an_idle_child_is_killed(site: Site) -> None:
    """Nobody has asked it for anything, and still its place is filled before the next task comes."""
    worker = site.start()
    for _ in range(3):
        before = worker.wait_pool()
        kill(before[0])
        site.until(
            lambda before=before: len(worker.pool()) == 2 and worker.pool() != before,
            "the child to be replaced",
        )
        site.finished(*(site.send("work", number, 0.05) for number in range(2)))
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 6, "nothing was repeated"


@pytest.mark.slow
def test_a_storm_of_kills(site: Site) -> None:
    """F-08: a random child every 0.25 s for 6 s, and work goes on."""
    worker = site.start()
    chance = random.Random(8)
    site.send_many("work", [(number, 0.02) for number in range(300)])
    pids = [worker.pid]
    most = 0
    kills = 0
    end = time.monotonic() + 6.0
    following = time.monotonic()
    while time.monotonic() < end:
        pool = worker.pool()
        most = max(most, len(pool))
        if pool and time.monotonic() >= following:
            kill(chance.choice(pool))
            kills += 1
            following += 0.25
        time.sleep(0.01)
    assert [worker.pid] == pids
    assert worker.alive, "I-12"
    assert most <= 4, "children are replaced one for one"
    assert kills > 15
    last = [site.send("work", number, 0.02) for number in range(20)]
    site.ended(*last)
    site.drained()
    worker.wait_pool()
    worker.stop()
    check(site)
    assert worker.log.count("it is being replaced") == kills, "I-14"


def test_kills_among_short_tasks(site: Site) -> None:
    """F-21b: a child dies with dozens of tasks in its hands: one of them was running, and only that one is
    counted."""
    worker = site.start()
    chance = random.Random(21)
    kills = 0
    for _ in range(4):
        site.send_many("work", [(number,) for number in range(1000)])
        while site.waiting():
            pool = worker.pool()
            if pool:
                kill(chance.choice(pool))
                kills += 1
            time.sleep(0.05)
    worker.wait_pool()
    worker.stop()
    check(site)
    assert kills >= 4
    assert site.dead() == {}
    starts = site.records(kind=STARTED)
    assert sum(record.attempt > 1 for record in starts) <= kills
    assert len(starts) <= 4000 + kills * 130, "what a child had done and not yet told is one frame at most"


def test_every_child_is_killed_at_once(site: Site) -> None:
    worker = site.start()
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*ids)
    for pid in worker.pool():
        kill(pid)
    site.started(*ids, times=2)
    go.touch()
    site.drained()
    worker.stop()
    check(site)


def test_the_zygote_is_killed(site: Site) -> None:
    """Its children die with it, and what they ran counts; the worker goes on with another zygote."""
    worker = site.start()
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*ids)
    before, zygote = worker.wait_pool(), worker.zygote()
    kill(zygote)
    site.until(lambda: all(gone(pid) for pid in before), "the children to die")
    starts = site.started(*ids, times=2)
    assert {start.attempt for start in starts} == {2}
    assert worker.zygote() != zygote
    go.touch()
    site.drained()
    worker.stop()
    check(site)


def test_the_keeper_of_the_zygote_is_killed(site: Site) -> None:
    """Without it the pool could not heal: the worker says so, gives everything back and ends with code 1."""
    worker = site.start()
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(6)]
    site.started(*ids[:2])
    worker.pool()
    kill(worker.keeper())
    assert worker.wait() == 1
    assert (
        "the pool failed, so the worker stops: the process that forks the pool's children has died"
        in worker.log
    )
    assert "Traceback" not in worker.log
    assert site.query("SELECT count(*) FROM message WHERE state = 0") == [(6,)], "all went back"
    second = site.start(name="two")
    site.started(*ids[:2], times=2)
    go.touch()
    site.drained()
    second.stop()
    check(site)
    attempts = {id: [start.attempt for start in site.records(id, STARTED)] for id in ids}
    assert [attempts[id] for id in ids] == [[1, 2], [1, 2], [1], [1], [1], [1]], (
        "the deaths count, and nothing else"
    )


def test_nobody_waits_behind_a_long_task(site: Site) -> None:
    nobody_waits_behind_a_long_task(site)


def test_little_is_lost_that_must_not_run_twice(site: Site) -> None:
    little_is_lost_that_must_not_run_twice(site)


def test_what_must_not_run_twice_runs_in_its_order(site: Site) -> None:
    worker = site.start("-c", "1")
    ids = site.send_many("once", [(number, 0.005) for number in range(60)])
    site.drained()
    site.ended(*ids)
    worker.stop()
    check(site)
    assert [record.id for record in site.records(kind=STARTED)] == ids


def test_who_wakes_after_its_lease_starts_nothing(site: Site) -> None:
    who_wakes_after_its_lease_starts_nothing(site, freeze)


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "tree"])
@pytest.mark.parametrize("point", ["dispatching", "offering"])
def test_who_is_frozen_on_the_way_to_the_pool_starts_nothing(site: Site, point: str, whole: bool) -> None:
    who_is_frozen_on_the_way_to_the_pool_starts_nothing(site, point, whole, freeze)


def test_a_frozen_child_under_a_hard_limit(site: Site) -> None:
    """F-07: it can run no handler any more; the limit is kept from outside."""
    worker = site.start(task_time_limit=1)
    id = site.send("until_file", str(site.path / "never"))
    (start,) = site.started(id)
    kill(start.pid, signal.SIGSTOP)
    site.finished(id)
    site.until(lambda: gone(start.pid), "the frozen process to be killed")
    assert type(site.error(id)).__name__ == "TimeLimitExceeded"
    worker.wait_pool()
    site.ended(site.send("work", 1))
    worker.stop()
    check(site)


def test_a_frozen_idle_child_holds_up_nobody_for_ever(site: Site) -> None:
    """A task that was handed to a frozen process is killed with it at its limit; the others run meanwhile."""
    worker = site.start(task_time_limit=2)
    frozen = worker.wait_pool()[0]
    kill(frozen, signal.SIGSTOP)
    ids = [site.send("work", number, 0.02) for number in range(30)]
    site.until(lambda: len(site.states()) >= 29, "the others to run beside it")
    site.finished(*ids)
    worker.stop()
    check(site)


@pytest.mark.parametrize("what", ["tree", "main"])
def test_a_frozen_worker_loses_its_lease(site: Site, what: str) -> None:
    """F-06: another takes over; when the first wakes, its late results and acks are refused."""
    site.settings["worker_lease_seconds"] = 1
    first = site.start()
    ids = [site.send("work", number, 0.4) for number in range(6)]
    site.started(ids[0])
    frozen = first.tree() if what == "tree" else [first.pid]
    freeze(site, frozen)
    second = site.start(name="two")
    site.drained()
    taken = len(site.records(kind=STARTED))
    stored = dict(site.query("SELECT task_id, payload FROM result"))
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    site.until(lambda: "silent for over 1 s" in first.log or "lease was lost" in first.log, "it to notice")
    site.finished(*(site.send("work", number, 0.05) for number in range(10)))
    site.drained()
    site.until(
        lambda: len(site.records(kind=STARTED)) == len(site.records(kind="E")), "the thawed tasks to end"
    )
    first.stop()
    second.stop()
    check(site, overlaps=True)
    after = dict(site.query("SELECT task_id, payload FROM result"))
    assert {id: after[id] for id in stored} == stored, "I-4: a late result replaced nothing"
    assert len(site.records(kind=STARTED)) <= taken + 10 + 2, (
        "what had not started when it froze is not run twice"
    )


def freeze(site: Site, pids: list[int]) -> None:
    """Stop the processes, but not while one of them is writing: then nobody could write until it goes on."""
    while True:
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        with closing(sqlite3.connect(site.database, isolation_level=None, timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                for pid in pids:
                    kill(pid, signal.SIGCONT)
            else:
                return


def test_a_task_longer_than_the_lease(site: Site) -> None:
    """F-64: a live worker renews; nobody else takes what it runs, or what it holds for later (F-57)."""
    # A crowded machine has let a worker stand still for most of a second: two of them are more than that.
    site.settings["worker_lease_seconds"] = 2
    workers = [site.start(name=name) for name in ("one", "two")]
    ids = [site.send("work", number, 5.0) for number in range(3)]
    later = [site.send("work", number, countdown=4.0) for number in range(10)]
    site.finished(*ids, *later)
    site.drained()
    for worker in workers:
        worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(site.sent)


def test_two_workers_share_a_file(site: Site) -> None:
    two_workers_share_a_queue(site)


def test_a_worker_is_killed_beside_another(site: Site) -> None:
    """On the same machine its messages are back within seconds: no lease has to run out."""
    another_takes_over_from_who_is_killed(site)


def test_a_grandchild_that_keeps_the_pipes_open(site: Site) -> None:
    """F-15: death is seen by the kernel's word, not by the end of a stream that others may hold open."""
    worker = site.start()
    id = site.send("leave_grandchild")
    site.started(id, times=2)
    file = site.path / "grandchildren"
    site.until(lambda: file.exists() and file.read_text().count("\n") == 2, "two grandchildren")
    left = list(map(int, file.read_text().split()))
    try:
        site.drained()
        assert any(not gone(pid) for pid in left)
        worker.stop()
    finally:
        for pid in left:
            kill(pid)
    check(site)


def test_nothing_is_left_of_a_stopped_worker(site: Site) -> None:
    worker = site.start()
    site.ended(site.send("work", 1))
    below = descendants(worker.pid)
    assert len(below) == 4, "the zygote, its keeper and two children"
    worker.stop()
    assert all(gone(pid) for pid in below)
    check(site)
