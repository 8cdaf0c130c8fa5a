"""Spoolers that are killed while they run jobs, jobs that kill or block their process, and shutdowns: no
job is lost, no finished job runs again, and failing jobs are set aside with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.harness import PATIENCE, REPOSITORY, WorkerProcess
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import gone
from tests.acceptance.spool_site import SpoolSite
from tests.acceptance.test_crash_points import CALL

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

STEPS = ["spool file claimed", "spool job begun", "spool file removed", "spool file given back"]
"""Crash points in the process that runs a job."""
WORKER = [
    name
    for path in sorted((REPOSITORY / "qworker" / "components").rglob("*.py"))
    for name in CALL.findall(path.read_text(encoding="utf-8"))
    if name not in ("acked first", "join-claimed", "body-made", "heap push", "started")
]
"""Crash points in the worker around them. Jobs are not early-acked, are no joins, wait in their directory
until they are due, and do not report that they have started."""


def twice(spool: SpoolSite) -> set[str]:
    """The jobs that ended more than once."""
    return {id for id, times in spool.runs().items() if times > 1}


def is_idle(worker: WorkerProcess) -> bool:
    """Whether it uses almost no CPU time for a while."""
    before = worker.cpu_seconds()
    time.sleep(0.5)
    return worker.cpu_seconds() - before < 0.05


# -- kill -9 --


@pytest.mark.parametrize("which", ["child", "zygote", "keeper", "worker"])
def test_process_is_killed_while_jobs_run(spool: SpoolSite, which: str) -> None:
    """Running jobs are started again, with their attempt counted; waiting ones run once."""
    worker = spool.work()
    go = spool.path / "go"
    held = [spool.job(id, "wait", file=str(go)) for id in ("one", "two")]
    spool.begun("one", "two")
    assert [spool.attempts(name) for name in held] == [1, 1]
    spool.jobs(range(50))
    pids = worker.tree()
    worker.seen.update(pids)
    victims = {
        "child": worker.pool()[0],
        "zygote": worker.zygote(),
        "keeper": worker.keeper(),
        "worker": worker.pid,
    }
    os.kill(victims[which], signal.SIGKILL)
    if which in ("keeper", "worker"):
        worker.process.wait(PATIENCE)
        spool.until(lambda: all(map(gone, pids)), "all of its processes to end")
        worker = spool.work(name="again")
    again = 1 if which == "child" else 2
    spool.until(lambda: sum(spool.attempts(name) for name in held) == 2 + again, "another attempt")
    go.touch()
    spool.empty()
    assert spool.runs() == {"one": 1, "two": 1} | {str(id): 1 for id in range(50)}
    begun = spool.runs(STARTED)
    assert begun["one"] + begun["two"] == 2 + again
    worker.stop()


@pytest.mark.parametrize("point", STEPS)
def test_child_dies_at_point(spool: SpoolSite, point: str) -> None:
    hit = spool.path / "hit"
    spool.job("first", "fail once", file=str(spool.path / "failed"))
    spool.jobs(range(100))
    worker = spool.work(environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    spool.until(hit.exists, f"{point} to be reached")
    spool.empty()
    assert spool.runs() == {"first": 1} | {str(id): 1 for id in range(100)}
    assert sum(spool.runs(STARTED).values()) == 102, "only the first is begun twice, since it failed"
    worker.stop()
    assert spool.aside() == {}


@pytest.mark.parametrize("point", WORKER)
def test_worker_dies_at_point(spool: SpoolSite, point: str) -> None:
    """At every crash point between a file and the end of its job, in its main process and its children."""
    hit = spool.path / "hit"
    spool.jobs(range(30))
    one_by_one = "--spooler-max-tasks=1000"
    worker = spool.work(one_by_one, ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})

    def over() -> bool:
        return hit.exists() or not worker.alive

    spool.until(lambda: over() or not spool.files(), "the crash, or the end of the work")
    if not hit.exists():  # a point of starting a new process
        spool.job("killed", "kill once", file=str(spool.path / "killed"))
        spool.until(lambda: over() or not spool.files(), "a process to be replaced")
    if not hit.exists():  # a point of the shutdown
        spool.jobs(range(30, 40), do="wait", file=str(spool.path / "never"))
        spool.until(
            lambda: over() or len(set(spool.runs(STARTED)) & {*map(str, range(30, 40))}) == 2, "two to run"
        )
        for _ in range(2):
            worker.signal(signal.SIGTERM)
        spool.until(over, "the worker to end")
    assert hit.exists(), f"{point} was never reached"
    (spool.path / "never").touch()
    spool.until(lambda: not worker.alive or not spool.files(), "the worker to end, or the work")
    worker.seen.update(worker.tree())
    worker.process.terminate()
    assert worker.wait() in (0, -signal.SIGKILL), "it may be about to die at that point"
    again = spool.work(name="again")
    spool.empty()
    again.stop()
    assert set(spool.runs()) >= {str(id) for id in range(30)} | set(spool.runs(STARTED))
    assert len(twice(spool)) <= 2, "one in each process"
    assert spool.aside() == {}


# -- jobs that affect their process --

DIED = "it was started 3 times, and its process died before it ended"


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("kill", DIED),
        ("segfault", DIED),
        ("leave", DIED),
        ("hang", DIED),
        ("exit", "attempt 3, the last: SystemExit: 3"),
        ("fail", "attempt 3, the last: ValueError: as asked for"),
    ],
)
def test_poison_job_is_set_aside(spool: SpoolSite, do: str, reason: str) -> None:
    """Without affecting the jobs in the same frame."""
    spool.jobs(range(100))
    bad = spool.job("bad", do)
    spool.jobs(range(100, 200))
    worker = spool.work("--spooler-max-attempts=3", "--spooler-harakiri=0.3")
    spool.empty()
    assert spool.runs() == {str(id): 1 for id in range(200)}
    begun = spool.runs(STARTED)
    assert begun == spool.runs() | {"bad": 3}
    (note,) = spool.aside().items()
    assert note[0] == bad
    assert (note[1]["reason"], note[1]["attempts"]) == (reason, 3)
    worker.stop()


def test_dead_job_runs_again_after_a_retry(spool: SpoolSite) -> None:
    bad = spool.job("bad", "kill once", file=str(spool.path / "killed"))
    worker = spool.work("--spooler-max-attempts=1")
    spool.until(lambda: bad in spool.aside(), "the job to be set aside")
    spool.run("spool", "retry", str(spool.place), bad)
    spool.empty()
    assert spool.runs() == {"bad": 1}
    assert spool.aside() == {}
    worker.stop()


def test_process_left_by_a_job_blocks_nothing(spool: SpoolSite) -> None:
    """Neither the next jobs nor the shutdown of the spooler."""
    go = spool.path / "go"
    spool.job("parent", "leave a child", file=str(go))
    spool.jobs(range(50))
    worker = spool.work()
    spool.empty()
    assert spool.runs() == {"parent": 1} | {str(id): 1 for id in range(50)}
    worker.stop()
    go.touch()


def test_process_left_by_a_dead_job_does_not_keep_its_lock(spool: SpoolSite) -> None:
    """As with uWSGI, locks are not inherited."""
    go = spool.path / "go"
    spool.job("parent", "leave a child and die", file=str(go))
    worker = spool.work()
    spool.empty()
    assert spool.runs() == {"parent": 1}
    assert spool.runs(STARTED) == {"parent": 2}
    go.touch()
    worker.stop()


@pytest.mark.parametrize("how", ["return", "exit", "raise"])
def test_job_that_returns_in_two_processes_counts_once(spool: SpoolSite, how: str) -> None:
    """The copy has no effect and runs no other job; its parent gets its exit code."""
    spool.job("fork", "come back twice", how=how)
    spool.jobs(range(50))
    worker = spool.work("--spooler-max-attempts=1")
    spool.empty()
    expected = {"return": 0, "exit": 7, "raise": 1}[how]
    assert spool.runs() == {"fork": 1, f"copy-ended-with-{expected}": 1} | {str(id): 1 for id in range(50)}
    pool = worker.pool()
    assert {record.pid for record in spool.records()} <= set(pool)
    assert spool.aside() == {}
    worker.stop()


def test_spoolers_stay_idle_while_another_runs_a_long_job(spool: SpoolSite) -> None:
    """The second one runs all other jobs."""
    go = spool.path / "go"
    spool.job("long", "wait", file=str(go))
    one = spool.work("--spooler-processes=1")
    spool.begun("long")
    two = spool.work(name="two")
    spool.jobs(range(50))
    spool.until(lambda: len(spool.files()) == 1, "all but the long one to be done")
    spool.until(lambda: is_idle(two), "the other to rest")
    spool.job("new")
    spool.until(lambda: spool.runs()["new"] == 1, "it to be heard of")
    go.touch()
    spool.empty()
    assert spool.runs() == dict.fromkeys(["long", "new", *map(str, range(50))], 1)
    for worker in (one, two):
        worker.stop()


# -- return values --


@pytest.mark.parametrize("value", ["-1", "None", "True", "1", "-3", "'-2'", "object()"])
def test_job_that_does_not_return_ok_is_retried(spool: SpoolSite, value: str) -> None:
    """-1 is SPOOL_RETRY; everything except SPOOL_OK and SPOOL_IGNORE has the same effect."""
    name = spool.job("bad", **{"return": value})
    worker = spool.work("--spooler-max-attempts=3")
    spool.until(lambda: name in spool.aside(), "it to be set aside")
    assert spool.runs() == {"bad": 3}
    assert spool.aside()[name]["reason"].startswith("attempt 3, the last: SpoolError: it returned ")
    worker.stop()


def test_ignored_job_stays_for_others(spool: SpoolSite) -> None:
    name = spool.job("other's", **{"return": "0"})
    spool.jobs(range(10))
    worker = spool.work("--spooler-frequency=0.2")
    spool.until(lambda: spool.files() == [name], "the others to be done")
    spool.until(lambda: "is not for this spooler" in worker.log, "a warning")
    assert spool.attempts(name) == 0
    worker.stop()
    assert spool.runs()["other's"] <= 2, "once in each process, as long as it does not change"
    assert spool.files() == [name]


def test_jobs_stay_without_a_spooler_function(spool: SpoolSite) -> None:
    name = spool.job("one")
    worker = spool.start(
        str(spool.place), "--spooler-backoff=60", command=("spool", "run"), app="tests.acceptance.no_jobs:app"
    )
    spool.until(lambda: "no function runs jobs" in worker.log, "it to be told")
    worker.stop()
    assert spool.files() == [name]
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("command", [("spool", "run"), ("start",)])
def test_spooler_without_its_module_logs_the_reason(spool: SpoolSite, command: tuple[str, ...]) -> None:
    name = spool.job("one")
    module = spool.place.parent / "broken_jobs.py"
    module.write_text("import nosuchmodule\n")
    log = spool.path / "worker.log"
    worker = spool.start(
        f"--spooler={spool.place}", f"--spooler-python-import={module}", f"--logfile={log}", command=command,
        app="tests.acceptance.no_jobs:app", ready=False,
    )  # fmt: skip
    advice = f"no function runs jobs, because {module} could not be imported: correct that and restart the "
    spool.until(lambda: log.exists() and f"job {name} waits: {advice}" in log.read_text(), "it to be told")
    worker.stop()
    told = log.read_text()
    assert (f"spool directories {spool.place}, in addition to the queues" in told) == (command == ("start",))
    assert f"the spooler continues without {module}: cannot import {module}" in told
    assert f"WARNING/MainProcess] {advice}" in told
    assert "--spooler-python-import" not in told
    assert spool.files() == [name]


def test_import_error_shows_only_the_lines_of_the_module(spool: SpoolSite) -> None:
    module = spool.place.parent / "broken_jobs.py"
    module.write_text("import nosuchmodule\n")
    worker = spool.start(
        str(spool.place), f"--spooler-python-import={module}", command=("spool", "run"),
        app="tests.acceptance.no_jobs:app",
    )  # fmt: skip
    spool.until(lambda: "No module named 'nosuchmodule'" in worker.log, "it to be told")
    worker.stop()
    assert f'File "{module}", line 1' in worker.log
    assert "importlib" not in worker.log


def test_module_in_the_working_directory_is_imported_without_an_app(tmp_path: Path) -> None:
    (tmp_path / "jobs_here.py").write_text("import uwsgi\nuwsgi.spooler = lambda env: uwsgi.SPOOL_OK\n")
    (tmp_path / "sp").mkdir()
    arguments = ["spool", "run", "sp", "--spooler-python-import", "jobs_here"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [Path(sys.executable).with_name("qworker"), *arguments]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if "ready" in line:
                process.terminate()
    assert "jobs_here" not in told
    assert "no function runs jobs" not in told


# -- shutdown --


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_spooler_stops_after_the_running_jobs(spool: SpoolSite, number: int) -> None:
    """Waiting jobs stay, without counted attempts."""
    go = spool.path / "go"
    for id in ("one", "two"):
        spool.job(id, "wait", file=str(go))
    worker = spool.work()
    spool.begun("one", "two")
    waiting = [spool.job(n) for n in range(20)]
    worker.signal(number)
    spool.until(lambda: "stopping" in worker.log or "shut" in worker.log, "it to hear of it")
    go.touch()
    assert worker.wait() == 0
    assert spool.runs() == {"one": 1, "two": 1}
    assert spool.files() == sorted(waiting)
    assert [spool.attempts(name) for name in waiting] == [0] * 20
    worker = spool.work(name="again")
    spool.empty()
    worker.stop()
    assert spool.runs() == {"one": 1, "two": 1} | {str(n): 1 for n in range(20)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_returns_the_running_jobs(spool: SpoolSite, number: int) -> None:
    """Without counted attempts, even if they cannot be interrupted; they run again later."""
    go = spool.path / "go"
    names = [spool.job(id, "wait", file=str(go)) for id in ("one", "two")]
    worker = spool.work("--spooler-max-attempts=1")
    spool.begun("one", "two")
    worker.signal(number)
    spool.until(lambda: "stopping" in worker.log or "shut" in worker.log, "it to hear of it")
    worker.signal(number)
    assert worker.wait() == 3, "it had to cut jobs short"
    assert spool.files() == sorted(names)
    assert [spool.attempts(name) for name in names] == [0, 0]
    go.touch()
    worker = spool.work("--spooler-max-attempts=1", name="again")
    spool.empty()
    worker.stop()
    assert spool.runs() == {"one": 1, "two": 1}
    assert spool.aside() == {}
