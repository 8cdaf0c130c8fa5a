"""The other pools and start methods run the same tasks, with the same guarantees as far as possible."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.harness import Site, until
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import gone, kill
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

METHODS = ["forkserver", "spawn"]
POOLS = ["threads", "solo"]


def send_some(site: Site) -> None:
    for number in range(20):
        site.send("work", number, 0.005)
        site.send("work_async", number, 0.01)
        site.send("once", number)
    site.send("work", 1, countdown=0.5)
    site.send("flaky", 2)
    site.send("tracked", 1)
    site.send("misbehave", "SystemExit")
    site.send("misbehave_async", "KeyboardInterrupt")


@pytest.mark.parametrize("method", METHODS)
def test_start_methods_run_tasks(site: Site, method: str) -> None:
    worker = site.start("--start-method", method)
    send_some(site)
    site.drained()
    site.finished(*site.sent)
    worker.stop()
    check(site)
    assert "Traceback" not in worker.log.replace("SystemExit", "").partition("raised after")[0]


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_reaches_all_processes_without_traceback(site: Site, method: str) -> None:
    worker = site.start("--start-method", method, wrapper=("setsid",))
    site.finished(site.send("work", 1))
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.process.wait(PATIENCE) == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("method", METHODS)
def test_start_methods_replace_killed_children(site: Site, method: str) -> None:
    worker = site.start("--start-method", method)
    go = site.path / "go"
    id = site.send("until_file", str(go))
    (start,) = site.started(id)
    kill(start.pid)
    (again,) = site.started(id, times=2)
    assert (again.attempt, again.pid != start.pid) == (2, True)
    go.touch()
    site.finished(id)
    worker.stop()
    check(site)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("habit", ["kill group", "kill parent"])
def test_start_methods_survive_tasks_that_kill_their_group_or_parent(
    site: Site, method: str, habit: str
) -> None:
    """Each child has its own process group. The fork server may die: another one is started."""
    if (method, habit) == ("spawn", "kill parent"):
        pytest.skip("that parent is the worker itself")
    worker = site.start("-c", "1", "--start-method", method, task_max_deliveries=2)
    pill = site.send("misbehave", habit)
    site.finished(pill)
    dies = site.send("die_once")
    good = [site.send("work", number) for number in range(20)]
    site.finished(dies, *good)
    assert {site.state(id) for id in (dies, *good)} == {"SUCCESS"}
    assert site.state(pill) == ("FAILURE" if habit == "kill group" else "SUCCESS")
    assert worker.alive
    worker.stop()
    check(site)


@pytest.mark.parametrize("method", METHODS)
def test_start_methods_leave_no_orphans(site: Site, method: str) -> None:
    """kill -9 of the worker ends its child processes, including busy ones."""
    worker = site.start("--start-method", method)
    never = site.path / "never"
    ids = [site.send("until_file", str(never)) for _ in range(2)]
    pids = [record.pid for record in site.started(*ids)]
    worker.kill()
    for pid in pids:
        until(lambda pid=pid: gone(pid), "the busy processes to go", worker, seconds=5)
    never.touch()
    second = site.start(name="two")
    site.finished(*ids)
    site.drained()
    second.stop()
    check(site)


@pytest.mark.parametrize("pool", POOLS)
def test_pools_without_processes_run_tasks(site: Site, pool: str) -> None:
    worker = site.start("--pool", pool)
    send_some(site)
    site.drained()
    site.finished(*site.sent)
    worker.stop()
    check(site)
    assert {record.pid for record in site.records()} == {worker.pid}


@pytest.mark.parametrize("pool", POOLS)
def test_pools_without_processes_survive_a_kill(site: Site, pool: str) -> None:
    first = site.start("--pool", pool)
    go = site.path / "go"
    id = site.send("until_file", str(go))
    site.started(id)
    site.send_many("work", [(number,) for number in range(50)])
    first.kill()
    second = site.start("--pool", pool, name="two")
    site.started(id, times=2)
    go.touch()
    site.drained()
    second.stop()
    check(site)
    assert [record.attempt for record in site.records(id, STARTED)] == [1, 2], "its death counts"


@pytest.mark.parametrize("pool", POOLS)
def test_pools_without_processes_stop(site: Site, pool: str) -> None:
    """A warm shutdown waits; a cold one returns running tasks, since a thread only ends with its process."""
    first = site.start("--pool", pool)
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(4)]
    site.started(ids[0])
    first.signal(signal.SIGQUIT)
    assert first.wait() == 3, first.log
    assert site.query("SELECT count(*) FROM message WHERE owner IS NULL AND deliveries = 0") == [(4,)]
    second = site.start("--pool", pool, name="two")
    site.started(ids[0], times=2)
    second.signal(signal.SIGTERM)
    go.touch()
    assert second.wait() == 0, second.log
    third = site.start(name="three")
    site.finished(*ids)
    third.stop()
    check(site, overlaps=True)


def test_fork_in_a_threaded_task_ends_the_copy(site: Site) -> None:
    """Otherwise the copy would run as a second worker that holds the first one's lock."""
    worker = site.start("--pool", "threads")
    ids = [site.send(task, "fork") for task in ("misbehave", "misbehave_async")]
    site.finished(*ids)
    copies = [int(site.client.AsyncResult(id).result) for id in ids]
    assert min(copies) > 0
    site.until(lambda: all(gone(copy) for copy in copies), "the copies to end")
    site.finished(*(site.send("work", number) for number in range(10)))
    worker.stop()
    check(site)


@pytest.mark.parametrize("pool", POOLS)
def test_second_interrupt_does_not_wait_for_threads(site: Site, pool: str) -> None:
    """Threads cannot be ended: the worker reports it, returns the task, and exits with the thread running."""
    worker = site.start("--pool", pool)
    go = site.path / "go"
    id = site.send("until_file", str(go))
    site.started(id)
    worker.signal(signal.SIGINT)
    site.until(lambda: "stopping: waiting" in worker.log, "the worker to drain")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 3, worker.log
    assert "1 tasks continue in threads, which cannot be ended, until this process ends: " in worker.log
    assert "finished 0, given back 1, of these interrupted 1" in worker.log
    go.touch()
    second = site.start(name="two")
    site.finished(id)
    second.stop()
    check(site, overlaps=True)
