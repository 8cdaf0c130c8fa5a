"""Processes that die: the worker, its pool, the zygote; and frozen workers."""

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
    everything_runs_exactly_once,
    few_early_acked_tasks_are_lost,
    few_tasks_repeat_when_workers_are_killed_at_full_speed,
    killed_worker_is_taken_over_by_another,
    short_tasks_do_not_wait_behind_a_long_one,
    two_workers_share_a_queue,
    worker_frozen_while_dispatching_starts_nothing,
    worker_thawed_after_its_lease_starts_nothing,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_everything_runs_once_without_faults(site: Site) -> None:
    """F-00: the baseline."""
    everything_runs_exactly_once(site)


def test_killed_main_process_leaves_everything_to_a_new_worker(site: Site) -> None:
    """F-02: its children die at once; only tasks that were running run again."""
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


def test_main_process_killed_while_short_tasks_stream(site: Site) -> None:
    """F-02 at full speed, three times: batches of acks may be lost with the process, but no message."""
    few_tasks_repeat_when_workers_are_killed_at_full_speed(site)


def test_kill_of_the_whole_process_tree(site: Site) -> None:
    """F-03: like a power cut."""
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


def test_task_running_at_every_death_of_its_worker_becomes_a_dead_letter(site: Site) -> None:
    """Like a poison task: after five deliveries."""
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


def test_killed_child_is_replaced_and_its_task_runs_again(site: Site) -> None:
    """F-01: at once, with a delivery count; the worker itself is not affected."""
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


def test_child_of_the_same_task_is_killed_three_times(site: Site) -> None:
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


def test_killed_idle_child_is_replaced(site: Site) -> None:
    """Before the next task needs it."""
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
def test_children_killed_every_quarter_second(site: Site) -> None:
    """F-08: a random child every 0.25 s for 6 s, and work continues."""
    worker = site.start()
    chance = random.Random(8)
    site.send_many("work", [(number, 0.02) for number in range(300)])
    pids = [worker.pid]
    most = 0
    killed: set[int] = set()
    end = time.monotonic() + 6.0
    following = time.monotonic()
    while time.monotonic() < end:
        pool = worker.pool()
        most = max(most, len(pool))
        alive = [pid for pid in pool if pid not in killed]  # a killed process may take a while to end
        if alive and time.monotonic() >= following:
            kill(pid := chance.choice(alive))
            killed.add(pid)
            following += 0.25
        time.sleep(0.01)
    assert [worker.pid] == pids
    assert worker.alive, "I-12"
    assert most <= 4, "children are replaced one for one"
    assert len(killed) > 15
    last = [site.send("work", number, 0.02) for number in range(20)]
    site.ended(*last)
    site.drained()
    worker.wait_pool()
    worker.stop()
    check(site)
    assert worker.log.count("it is being replaced") == len(killed), "I-14"


def test_children_killed_while_running_short_tasks(site: Site) -> None:
    """F-21b: a child dies with dozens of tasks in its frame: only the one that was running is counted."""
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


def test_all_children_killed_at_once(site: Site) -> None:
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


def test_killed_zygote_is_replaced(site: Site) -> None:
    """Its children die with it, and their tasks are counted; the worker continues with another zygote."""
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


def test_worker_stops_if_the_keeper_of_the_zygote_is_killed(site: Site) -> None:
    """The pool cannot recover: the worker reports it, returns all messages and exits with code 1."""
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


def test_short_tasks_do_not_wait_behind_a_long_one(site: Site) -> None:
    short_tasks_do_not_wait_behind_a_long_one(site)


def test_few_early_acked_tasks_are_lost(site: Site) -> None:
    few_early_acked_tasks_are_lost(site)


def test_early_acked_tasks_run_in_order(site: Site) -> None:
    worker = site.start("-c", "1")
    ids = site.send_many("once", [(number, 0.005) for number in range(60)])
    site.drained()
    site.ended(*ids)
    worker.stop()
    check(site)
    assert [record.id for record in site.records(kind=STARTED)] == ids


def test_worker_thawed_after_its_lease_starts_nothing(site: Site) -> None:
    worker_thawed_after_its_lease_starts_nothing(site, freeze)


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "tree"])
@pytest.mark.parametrize("point", ["dispatching", "offering"])
def test_worker_frozen_while_dispatching_starts_nothing(site: Site, point: str, whole: bool) -> None:
    worker_frozen_while_dispatching_starts_nothing(site, point, whole, freeze)


def test_hard_time_limit_kills_a_frozen_child(site: Site) -> None:
    """F-07: the child cannot run a handler, so the limit is enforced from outside."""
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


def test_frozen_idle_child_does_not_block_other_tasks(site: Site) -> None:
    """A task sent to a frozen child is killed with it at its time limit; others run meanwhile."""
    worker = site.start(task_time_limit=2)
    frozen = worker.wait_pool()[0]
    kill(frozen, signal.SIGSTOP)
    ids = [site.send("work", number, 0.02) for number in range(30)]
    site.until(lambda: len(site.states()) >= 29, "the others to run beside it")
    site.finished(*ids)
    worker.stop()
    check(site)


@pytest.mark.parametrize("what", ["tree", "main"])
def test_frozen_worker_loses_its_lease(site: Site, what: str) -> None:
    """F-06: another takes over; when the first is thawed, its late results and acks are refused."""
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
    """Stop the processes, but not while one of them holds the write lock of the database."""
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


def test_task_longer_than_the_lease_is_not_repeated(site: Site) -> None:
    """F-64: a live worker renews its lease; no other takes its running or delayed tasks (F-57)."""
    # On a busy machine a worker may stand still for most of a second, so the lease is longer than that.
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


def test_killed_worker_is_taken_over_by_another(site: Site) -> None:
    """On the same machine its messages are available within seconds, before its lease expires."""
    killed_worker_is_taken_over_by_another(site)


def test_death_is_noticed_if_a_grandchild_keeps_the_pipes_open(site: Site) -> None:
    """F-15: by waiting for the process, not by the end of a pipe."""
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


def test_stopped_worker_leaves_no_processes(site: Site) -> None:
    worker = site.start()
    site.ended(site.send("work", 1))
    below = descendants(worker.pid)
    assert len(below) == 4, "the zygote, its keeper and two children"
    worker.stop()
    assert all(gone(pid) for pid in below)
    check(site)
