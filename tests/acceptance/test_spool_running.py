"""Spoolers that are killed while they run jobs, jobs that kill or hold their process, and how a spooler ends:
nothing is lost, nothing that was done is done again, and what cannot be done is set aside with the reason."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.acceptance.harness import PATIENCE, REPOSITORY
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import gone
from tests.acceptance.spool_site import SpoolSite
from tests.acceptance.test_crash_points import CALL

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

STEPS = ["spool file claimed", "spool job begun", "spool file removed", "spool file given back"]
"""In the process that runs a job."""
WORKER = [
    name
    for folder in ("components", "components/pool")
    for path in sorted((REPOSITORY / "qworker" / folder).glob("*.py"))
    for name in CALL.findall(path.read_text(encoding="utf-8"))
    if name not in ("acked first", "join-claimed", "body-made", "heap push", "started")
]
"""In the worker around them. Jobs are not acked before they run, are no joins, wait in their directory until they
are due, and nobody is told that they have started."""
def twice(spool: SpoolSite) -> set[str]:
    """The jobs that ended more than once."""
    return {id for id, times in spool.runs().items() if times > 1}


# -- kill -9 --


@pytest.mark.parametrize("which", ["child", "zygote", "keeper", "worker"])
def test_a_process_is_killed_while_jobs_run(spool: SpoolSite, which: str) -> None:
    """What ran is begun again, and had its attempt counted; what waited runs once."""
    worker = spool.work()
    go = spool.path / "go"
    held = [spool.job(id, "wait", file=str(go)) for id in ("one", "two")]
    spool.begun("one", "two")
    assert [spool.attempts(name) for name in held] == [1, 1]
    spool.jobs(range(50))
    pids = worker.tree()
    worker.seen.update(pids)
    victims = {"child": worker.pool()[0], "zygote": worker.zygote(), "keeper": worker.keeper(), "worker": worker.pid}
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
def test_a_child_dies_at(spool: SpoolSite, point: str) -> None:
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
def test_a_worker_dies_at(spool: SpoolSite, point: str) -> None:
    """Every step of a worker between a file and the end of its job, in its main process and in its children."""
    hit = spool.path / "hit"
    spool.jobs(range(30))
    worker = spool.work(ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})

    def over() -> bool:
        return hit.exists() or not worker.alive

    spool.until(lambda: over() or not spool.files(), "the crash, or the end of the work")
    if not hit.exists():  # a point on the way to a new process
        spool.job("killed", "kill once", file=str(spool.path / "killed"))
        spool.until(lambda: over() or not spool.files(), "a process to be replaced")
    if not hit.exists():  # a point of the shutdown
        spool.jobs(range(30, 40), do="wait", file=str(spool.path / "never"))
        spool.until(lambda: over() or len(set(spool.runs(STARTED)) & {*map(str, range(30, 40))}) == 2, "two to run")
        for _ in range(2):
            worker.signal(signal.SIGTERM)
        spool.until(over, "the worker to end")
    assert hit.exists(), f"{point} was never reached"
    (spool.path / "never").touch()
    spool.until(lambda: not worker.alive or not spool.files(), "the worker to end, or the work")
    if worker.alive:
        worker.stop()
    again = spool.work(name="again")
    spool.empty()
    again.stop()
    assert set(spool.runs()) >= {str(id) for id in range(30)} | set(spool.runs(STARTED))
    assert len(twice(spool)) <= 2, "one in each process"
    assert spool.aside() == {}
