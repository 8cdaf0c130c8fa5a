"""Changes to a spool directory while a spooler runs, spoolers beside other workers, and results of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from qworker.errors import SpoolError
from qworker.spooler.files.packet import PREFIX, encode
from qworker.spooler.files.writing import Writer
from tests.acceptance.brokers import Broken
from tests.acceptance.faketime import WallClock
from tests.acceptance.ledger import ENDED, STARTED
from tests.acceptance.proxy import REFUSE
from tests.acceptance.spool_site import JOBS, SpoolSite
from tests.acceptance.test_disk_full import APART
from tests.acceptance.test_spool_running import is_idle

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


# -- the directory --


@pytest.mark.parametrize("how", ["removed", "moved away"])
def test_recreated_directory_is_noticed(spool: SpoolSite, how: str) -> None:
    worker = spool.work("--spooler-frequency=0.5")
    spool.job("before")
    spool.empty()
    if how == "removed":
        shutil.rmtree(spool.place)
    else:
        spool.place.rename(spool.path / "moved")
    spool.until(lambda: "cannot be read" in worker.log, "it to be missed")
    spool.until(lambda: is_idle(worker), "the spooler to rest")
    spool.writer = Writer(spool.place)
    spool.jobs(range(20))
    spool.empty()
    assert spool.runs() == {"before": 1} | {str(n): 1 for n in range(20)}
    worker.stop()


def test_running_job_whose_directory_is_replaced(spool: SpoolSite) -> None:
    """It continues to its end; the new directory is processed."""
    go = spool.path / "go"
    spool.job("long", "wait", file=str(go))
    worker = spool.work("--spooler-frequency=0.5")
    spool.begun("long")
    spool.place.rename(spool.path / "moved")
    spool.writer = Writer(spool.place)
    spool.jobs(range(20))
    spool.empty()
    go.touch()
    spool.until(lambda: not list((spool.path / "moved").glob(f"{PREFIX}*")), "the long one's file to go")
    assert spool.runs() == {"long": 1} | {str(n): 1 for n in range(20)}
    worker.stop()


def test_running_job_whose_file_is_removed_or_moved(spool: SpoolSite) -> None:
    """The spooler survives; a moved file is a job in its new directory."""
    go = spool.path / "go"
    removed, moved = (spool.job(id, "wait", file=str(go)) for id in ("removed", "moved"))
    worker = spool.work()
    spool.begun("removed", "moved")
    (spool.place / removed).unlink()
    (spool.place / moved).rename(spool.path / moved)
    go.touch()
    spool.job("after")
    spool.until(lambda: spool.runs() == {"removed": 1, "moved": 1, "after": 1}, "all to end")
    for message in ("was moved, and will run again", "was removed while its job ran"):
        spool.until(lambda message=message: message in worker.log, message)  # type: ignore[misc]
    (spool.path / moved).rename(spool.place / moved)
    spool.empty()
    assert spool.runs()["moved"] == 2
    worker.stop()


def test_waiting_job_whose_file_is_removed_or_moved(spool: SpoolSite) -> None:
    go = spool.path / "go"
    for id in ("one", "two"):
        spool.job(id, "wait", file=str(go))
    worker = spool.work()
    spool.begun("one", "two")
    removed, moved = (spool.job(id) for id in ("removed", "moved"))
    (spool.place / removed).unlink()
    (spool.place / moved).rename(spool.path / moved)
    go.touch()
    spool.empty()
    worker.stop()
    assert spool.runs() == {"one": 1, "two": 1}


def immutable(path: Path, yes: bool) -> None:
    done = subprocess.run(["chattr", "+i" if yes else "-i", str(path)], capture_output=True)
    if done.returncode and yes:
        pytest.skip("no file can be made unchangeable here: chattr of e2fsprogs, as root")


def test_unwritable_file_does_not_block_other_jobs(spool: SpoolSite) -> None:
    """It waits until it becomes writable."""
    name = spool.job("fixed")
    immutable(spool.place / name, True)
    try:
        spool.jobs(range(20))
        worker = spool.work("--spooler-frequency=0.5")
        spool.until(lambda: spool.files() == [name], "the others to be done")
        assert spool.runs() == {str(n): 1 for n in range(20)}
    finally:
        immutable(spool.place / name, False)
    spool.empty()
    assert spool.runs()["fixed"] == 1
    worker.stop()


def test_jobs_that_cannot_be_removed_do_not_run_again(spool: SpoolSite) -> None:
    """As long as the process that ran them lives."""
    worker = spool.work("--spooler-frequency=0.3", "--spooler-processes=1")
    go = spool.path / "go"
    names = [spool.job(n, "wait", file=str(go)) for n in range(5)]
    spool.until(lambda: spool.runs(STARTED), "the first to be begun")
    immutable(spool.place, True)
    try:
        go.touch()
        spool.until(lambda: len(spool.runs()) == 5, "all to be done")
        spool.until(lambda: worker.log.count("cannot be removed, so it stays locked") == 5, "that to be told")
        spool.until(lambda: is_idle(worker), "the spooler to rest")
        assert spool.runs() == {str(n): 1 for n in range(5)}
        assert spool.files() == sorted(names)
    finally:
        immutable(spool.place, False)
    worker.stop()


FULL = """
import os, subprocess, sys, time
from qworker.spooler import Writer
disk, ledger = sys.argv[1:]
writer = Writer(f"{disk}/spool")
for number in range(20):
    writer.write({"id": number})
writer.write({"id": "poison", "do": "fail"})
with open(f"{disk}/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
worker = subprocess.Popen(
    [sys.executable, "-m", "qworker", "spool", "run", writer.path, "-A", "tests.acceptance.spool_jobs:app",
     "--spooler-max-attempts=2", "--spooler-backoff=0.05"],
    env={**os.environ, "LEDGER": ledger},
)
deadline = time.monotonic() + 40
while any(name.startswith("uwsgi_spoolfile") for name in os.listdir(writer.path)):
    assert time.monotonic() < deadline and worker.poll() is None
    time.sleep(0.05)
worker.terminate()
sys.exit(worker.wait())
"""


def test_full_disk_does_not_keep_jobs_from_running(spool: SpoolSite) -> None:
    disk = spool.path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=1m none "{disk}" && exec "$@"'
    if subprocess.run([*APART, "sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
        pytest.skip("a file system of its own can be mounted by nobody here: allow user namespaces")
    ended = subprocess.run(
        [*APART, "sh", "-c", mount, "sh", sys.executable, "-c", FULL, str(disk), str(spool.ledger_path)],
        capture_output=True,
        text=True,
        env=spool.environment(),
        cwd=spool.path,
    )
    assert ended.returncode == 0, ended.stderr
    assert spool.runs() == {str(n): 1 for n in range(20)}


@pytest.mark.slow
def test_a_hundred_thousand_delayed_jobs(spool: SpoolSite) -> None:
    """Jobs that are due run at once; the others use no CPU time."""
    now = time.time()
    image = encode({"id": "later"})
    for number in range(100_000):
        path = spool.place / f"{PREFIX}later_{number}"
        path.write_bytes(image)
        os.utime(path, (now, now + 86400))
    spool.jobs(range(100))
    begun = time.monotonic()
    worker = spool.work("--spooler-frequency=3600", "--spooler-quiet")
    spool.until(lambda: len(spool.runs()) == 100, "what is due")
    took = time.monotonic() - begun
    spool.until(lambda: is_idle(worker), "the spooler to rest")
    spool.job("new")
    spool.until(lambda: spool.runs()["new"] == 1, "what comes later")
    assert is_idle(worker)
    worker.stop()
    assert len(spool.files()) == 100_000
    assert took < 30, "some seconds, on a busy machine"


def test_wall_clock_changes(spool: SpoolSite) -> None:
    """A job is due according to the current wall clock; nothing runs twice."""
    start = time.time()
    clock = WallClock(spool.path, start)
    worker = spool.work("--spooler-frequency=1", environment=clock.environment)
    spool.writer.write({"id": "tomorrow"}, at=start + 86400)
    spool.job("now")
    spool.until(lambda: spool.runs() == {"now": 1}, "what is due")
    clock.step(86400.0)
    spool.until(lambda: spool.runs()["tomorrow"] == 1, "what is due by the new time")
    clock.step(-2 * 86400.0)
    past = spool.writer.write({"id": "past"}, at=start - 3 * 86400)
    assert past
    spool.until(lambda: spool.runs()["past"] == 1, "what is due by the time before")
    clock.step(2 * 86400.0)
    spool.job("again")
    spool.empty()
    worker.stop()
    assert spool.runs() == dict.fromkeys(["now", "tomorrow", "past", "again"], 1)


# -- with an app's own broker --


def test_jobs_and_tasks_in_one_worker(spool: SpoolSite) -> None:
    worker = spool.beside()
    other = spool.work(name="two")
    for number in range(100):
        spool.jobs(range(number * 5, number * 5 + 5))
        spool.send("work", number)
    spool.empty()
    spool.drained()
    for each in (worker, other):
        each.stop()
    runs = spool.runs()
    assert runs == {str(n): 1 for n in range(500)} | dict.fromkeys(spool.sent, 1)
    in_worker = {record.id for record in spool.records(kind=ENDED) if record.pid in worker.seen}
    assert in_worker & set(map(str, range(500)))
    assert set(spool.sent) <= in_worker, "alone, a spooler takes no tasks"


@pytest.mark.parametrize("broken", ["redis"], indirect=True)
def test_broker_outage_does_not_stop_jobs(tmp_path: Path, broken: Broken) -> None:
    """Jobs and tasks continue in the same process."""
    with broken.exposed(), closing(SpoolSite(tmp_path, broker=broken.url)) as spool:
        worker = spool.beside()
        spool.jobs(range(20))
        spool.empty()
        broken.proxy.mode = REFUSE
        broken.proxy.cut()
        spool.until(lambda: "broker" in worker.log.partition("ready; broker")[2], "it to be missed")
        spool.jobs(range(20, 40))
        time.sleep(0.5)
        broken.proxy.heal()
        spool.empty()
        sent = spool.client.send_task("work", (1,)).id
        spool.until(lambda: spool.runs()[sent] == 1, "a task")
        worker.stop()
        assert spool.runs() == {str(n): 1 for n in range(40)} | {sent: 1}


# -- results and bridges --


def test_results_of_jobs(spool: SpoolSite) -> None:
    worker = spool.work("--spooler-results", "--spooler-max-attempts=2")
    good, bad = spool.job("good"), spool.job("bad", "fail")
    dead = spool.job("dead", "kill")
    assert spool.client.AsyncResult(good).get(timeout=40) == -2
    with pytest.raises(ValueError, match="as asked for"):
        spool.client.AsyncResult(bad).get(timeout=40)
    with pytest.raises(SpoolError, match="died before it ended"):
        spool.client.AsyncResult(dead).get(timeout=40)
    once = spool.job("once", "kill once", file=str(spool.path / "killed"))
    assert spool.client.AsyncResult(once).get(timeout=40) == -2, "and nothing before"
    assert spool.aside().keys() == {bad, dead}
    assert "-2" in spool.run("result", "-A", JOBS, good)
    spool.empty()
    assert spool.client.AsyncResult(bad).state == "FAILURE"
    assert spool.runs(STARTED) == {"good": 1, "bad": 2, "dead": 2, "once": 2}
    worker.stop()


def test_bridge_turns_jobs_into_tasks(spool: SpoolSite) -> None:
    """With the job's name as the id; jobs for which it returns None run as jobs."""
    bridge = spool.work("--spooler-bridge=tests.acceptance.spool_jobs:to_task")
    names = [spool.job(f"t{n}", number=n) for n in range(20)]
    spool.jobs(range(5))
    spool.empty()
    assert spool.runs() == {str(n): 1 for n in range(5)}, "nobody takes tasks yet"
    bridge.stop()
    worker = spool.start(name="two", app=JOBS)
    assert [spool.client.AsyncResult(name).get(timeout=40) for name in names] == list(range(20))
    worker.stop()
    assert spool.runs() == {str(n): 1 for n in range(5)} | dict.fromkeys(names, 1)


@pytest.mark.parametrize("point", ["spool job begun", "publishing", "published", "spool file removed"])
def test_bridge_that_dies_sends_at_most_one_copy(spool: SpoolSite, point: str) -> None:
    """With the same id."""
    hit = spool.path / "hit"
    names = [spool.job(f"t{n}", number=n) for n in range(10)]
    bridge = spool.work(
        "--spooler-bridge=tests.acceptance.spool_jobs:to_task",
        environment={"QWORKER_CRASH_AT": f"{point}@{hit}"},
    )
    spool.until(hit.exists, f"{point} to be reached")
    spool.empty()
    bridge.stop()
    worker = spool.start(name="two", app=JOBS)
    spool.drained()
    worker.stop()
    runs = spool.runs(ENDED)
    assert set(runs) == set(names)
    assert sum(runs.values()) == (11 if point == "published" else 10)
