"""Misbehaving tasks: whatever their code does only affects their own outcome."""

from __future__ import annotations

import itertools
import os
import resource
import time

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import gone, kill, open_files

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.mark.parametrize("task", ["misbehave", "misbehave_async"])
def test_every_exception_is_the_outcome_of_its_task(site: Site, task: str) -> None:
    """F-11: even exceptions that would end a Python process are the task's failure; the process continues."""
    worker = site.start()
    before = worker.wait_pool()
    expected = {
        "sys.exit": "SystemExit",
        "SystemExit": "SystemExit",
        "KeyboardInterrupt": "KeyboardInterrupt",
        "MemoryError": "MemoryError",
        "GeneratorExit": "GeneratorExit",
        "CancelledError": "CancelledError",
        "RecursionError": "RecursionError",
        "address space": "MemoryError",
        "spiteful": "SpitefulError",
        "arguments": "ArgumentsError",
        "lambda": "EncodeError",
        "object": "EncodeError",
        "huge": "EncodeError",
    }
    ids = {habit: site.send(task, habit) for habit in expected}
    good = [site.send("work", number) for number in range(20)]
    site.finished(*ids.values(), *good)
    assert {habit: type(site.error(id)).__name__ for habit, id in ids.items()} == expected
    assert sorted(worker.pool()) == sorted(before), "no process had to be replaced"
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(site.sent), "nothing was repeated"


def test_unprintable_errors_are_described(site: Site) -> None:
    worker = site.start()
    ids = {habit: site.send("misbehave", habit) for habit in ("spiteful", "arguments", "lambda", "huge")}
    site.finished(*ids.values())
    assert "function" in str(site.error(ids["lambda"]))
    assert "bytes" in str(site.error(ids["huge"]))
    worker.stop()
    check(site)
    assert worker.log.count("SpitefulError") >= 1


@pytest.mark.parametrize("habit", ["os._exit", "segfault", "kill", "close files"])
def test_task_that_kills_its_process(site: Site, habit: str) -> None:
    """F-11, F-09: each death is counted; after three the task is given up, without affecting others."""
    worker = site.start(task_max_deliveries=3)
    id = site.send("misbehave", habit)
    good = [site.send("work", number, 0.005) for number in range(100)]
    site.finished(id, *good)
    assert type(site.error(id)).__name__ == "WorkerLost"
    worker.wait_pool()
    worker.stop()
    check(site)
    assert [record.attempt for record in site.records(id, STARTED)] == [1, 2, 3]
    assert list(site.dead()) == [id]
    said = {"os._exit": "exited with code 3", "segfault": "killed by SIGSEGV", "kill": "killed by SIGKILL"}
    assert said.get(habit, "exited with code 1") in site.dead()[id]
    assert "Traceback" not in worker.log


def test_task_of_a_dead_process_runs_again_at_once(site: Site) -> None:
    """F-09: on an idle worker, within half a second."""
    worker = site.start()
    id = site.send("die_once", 1)
    site.finished(id)
    first, second = (record.monotonic for record in site.records(id, STARTED))
    assert second - first <= 0.5, "I-10"
    worker.stop()
    check(site)


@pytest.mark.slow
def test_poison_task_does_not_delay_other_tasks(site: Site) -> None:
    """F-10: five deliveries with growing delays, then a dead letter."""
    worker = site.start()
    pill = site.send("misbehave", "kill")
    begun = time.monotonic()
    good = []
    while pill not in site.states():
        good.append(site.send("work", len(good)))
        site.finished(good[-1])
        assert time.monotonic() - begun < 60, worker.log
    worker.stop()
    check(site)
    starts = [record.monotonic for record in site.records(pill, STARTED)]
    assert len(starts) == 5
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert pauses == sorted(pauses), "patience grows"
    assert "delivery 5 of at most 5" in site.dead()[pill]
    assert len(good) > 20
    repeats = sum(len(site.records(id, STARTED)) - 1 for id in good)
    assert repeats <= 4, "a good task may have been in the process that died, and no more"


def test_task_that_forks(site: Site) -> None:
    """Both processes return from the fork; the copy is ended without a result."""
    worker = site.start()
    before = worker.wait_pool()
    ids = [site.send(task, "fork") for task in ("misbehave", "misbehave_async", "misbehave")]
    site.finished(*ids)
    copies = [site.client.AsyncResult(id).result for id in ids]
    assert all(isinstance(copy, int) and copy > 0 for copy in copies), "the parent's outcome is what is told"
    site.ended(*(site.send("work", number) for number in range(10)))
    site.until(lambda: all(gone(copy) for copy in copies), "the copies to end")
    assert sorted(worker.pool()) == sorted(before)
    worker.stop()
    check(site)


def test_task_that_closes_its_output(site: Site) -> None:
    worker = site.start("-c", "1")
    ids = [site.send("misbehave", "close stdout"), site.send("misbehave", "print")]
    ids += [site.send("work", number) for number in range(5)]
    site.finished(*ids)
    worker.stop()
    check(site)
    assert [site.state(id) for id in ids[2:]] == ["SUCCESS"] * 5


@pytest.mark.parametrize("how", ["ignore", "gil"])
def test_hard_time_limit_ends_an_unresponsive_task(site: Site, how: str) -> None:
    """F-14: a task that ignores signals, or never releases the GIL."""
    worker = site.start(task_soft_time_limit=0.2, task_time_limit=1)
    id = site.send("deaf", how)
    (start,) = site.started(id)
    site.until(lambda: gone(start.pid), "the process to be killed")
    site.finished(id)
    assert type(site.error(id)).__name__ == "TimeLimitExceeded"
    site.ended(site.send("work", 1))
    worker.wait_pool()
    worker.stop()
    check(site)
    assert len(site.records(id, STARTED)) == 1


def test_time_limits_of_each_task(site: Site) -> None:
    """Soft limits raise in the task, which may handle them; hard ones do not. Each call can have its own."""
    worker = site.start()
    caught, missed = site.send("soft_caught"), site.send("soft_missed")
    given = site.send("work", 1, 30.0, soft_time_limit=0.2)
    hard = site.send("work", 2, 30.0, time_limit=0.4)
    cancelled = site.send("work_async", 3, 30.0, soft_time_limit=0.2)
    short = site.send("work", 4, 0.01, time_limit=20, soft_time_limit=10)
    site.finished(caught, missed, given, hard, cancelled, short)
    states = site.states()
    assert states[caught] == states[short] == "SUCCESS"
    errors = {id: type(site.error(id)).__name__ for id in (missed, given, cancelled, hard)}
    assert errors == {
        missed: "SoftTimeLimitExceeded",
        given: "SoftTimeLimitExceeded",
        cancelled: "SoftTimeLimitExceeded",
        hard: "TimeLimitExceeded",
    }
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(site.sent)


def test_child_over_its_memory_limit_is_replaced(site: Site) -> None:
    """F-12: after its task, which succeeds."""
    worker = site.start("--max-memory-per-child", "150MB")
    before = worker.wait_pool()
    ids = [site.send("hog", 200) for _ in range(4)]
    ids += [site.send("work", number) for number in range(20)]
    site.finished(*ids)
    hogs = {site.client.AsyncResult(id).result for id in ids[:4]}
    assert len(hogs) == 4, "none ran a second one"
    site.until(lambda: all(gone(pid) for pid in hogs), "the hogs to be replaced")
    worker.wait_pool()
    assert set(before) & hogs
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(site.sent)


def test_one_process_per_task(site: Site) -> None:
    """F-18: hundreds of processes are started and ended; nothing leaks and nothing is lost."""
    worker = site.start("--max-tasks-per-child", "1")
    site.finished(*site.send_many("work", [(number,) for number in range(20)]))
    worker.wait_pool()
    processes = (worker.pid, worker.zygote())
    files = [open_files(pid) for pid in processes]
    site.send_many("work", [(number,) for number in range(300)])
    site.drained()
    worker.wait_pool()
    for pid, before in zip(processes, files, strict=True):
        site.until(lambda pid=pid, before=before: open_files(pid) <= before + 4, "files to be closed")
    worker.stop()
    check(site)
    pids = [record.pid for record in site.records(kind=STARTED)]
    assert len(set(pids)) == len(pids) == 320
    assert "WARNING" not in worker.log


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_children_that_fail_in_a_signal_receiver(site: Site, how: str) -> None:
    """F-17: an exception is logged, and the child works; a receiver that ends the process ends the worker."""
    worker = site.start(ready=how == "raise", environment={"FAIL_AT_BIRTH": how})
    id = site.send("work", 1)
    if how == "raise":
        site.finished(id)
        assert "this process was not born to work" in worker.log
    else:
        assert worker.wait() == 1
        assert "died while starting, the last one: exited with code 7" in worker.log
        assert "Traceback" not in worker.log
        worker = site.start(name="two")
        site.finished(id)
    worker.stop()
    check(site)


def test_children_that_cannot_import_the_app(site: Site) -> None:
    """With spawn each child imports the app; if that always fails, the worker reports the reason and
    exits."""
    module = site.path / "once_only.py"
    module.write_text(
        "import os\n"
        "from tests.acceptance.fault_tasks import app as tasks\n"
        "from qworker import QWorker\n"
        "if 'BORN' in os.environ:\n"
        "    raise ImportError('a module is missing')\n"
        "os.environ['BORN'] = 'yes'\n"
        "app = QWorker('once')\n"
        "@app.task(name='work')\n"
        "def work(number): return number\n"
    )
    worker = site.start("--start-method", "spawn", app="once_only:app", ready=False)
    assert worker.wait() == 1
    assert "died while starting" in worker.log
    assert "a module is missing" in worker.log


def test_leaked_files_do_not_end_the_worker(site: Site) -> None:
    """F-79: a task that uses up all file descriptors fails; a child without descriptors is replaced."""
    worker = site.start("-c", "1")
    ids = [site.send("leak_files", 1000) for _ in range(2)]
    good = [site.send("work", number) for number in range(50)]
    site.finished(*ids, *good)
    states = site.states()
    assert [states[id] for id in ids] == ["FAILURE"] * 2
    assert [states[id] for id in good] == ["SUCCESS"] * 50
    worker.stop()
    check(site)


def test_worker_without_free_file_descriptors(site: Site) -> None:
    """F-79: it cannot replace dead children until descriptors are free again; it waits, and logs it."""
    worker = site.start()
    worker.wait_pool()
    low = open_files(worker.pid)
    hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (low - 2, hard))
    for pid in worker.pool():
        kill(pid)
    ids = [site.send("work", number) for number in range(10)]
    site.until(lambda: "cannot start a pool process" in worker.log, "the complaint")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (hard, hard))
    site.finished(*ids)
    worker.wait_pool()
    worker.stop()
    check(site)
    assert worker.log.count("cannot start") < 20, "it does not spin"


def test_many_retries_of_failing_tasks(site: Site) -> None:
    """F-73: they wait in the broker, and every attempt is counted."""
    worker = site.start()
    site.send_many("flaky", [(3, 0.05)] * 100)
    site.drained()
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 400
    assert set(site.states().values()) == {"SUCCESS"}


def test_dead_children_leak_nothing_in_the_worker(site: Site) -> None:
    """I-11: after many deaths the worker has as many files, threads and processes as before."""
    worker = site.start()
    site.finished(*site.send_many("work", [(number,) for number in range(50)]))
    worker.wait_pool()
    files, threads = open_files(worker.pid), len(os.listdir(f"/proc/{worker.pid}/task"))
    site.finished(*site.send_many("die_once", [(number,) for number in range(25)]))
    site.drained()
    worker.wait_pool()
    site.until(lambda: open_files(worker.pid) <= files + 2, "files to be closed")
    assert len(os.listdir(f"/proc/{worker.pid}/task")) <= threads
    worker.stop()
    check(site)
