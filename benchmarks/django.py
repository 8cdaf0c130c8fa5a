"""Django: qworker.django beside django-q2, the same project with one or the other.

Each pair is measured in turn, ours and theirs, in cells that stand close together in time; a ratio is that of
one such pair. What is compared is the default of both, with two workers and results in the database.
"""

import datetime
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import environments
from benchmarks.adapters.services import REDIS_URL, SERVERS, answers
from benchmarks.cell import MEMORY, Cell, CellError
from benchmarks.limits.limit import noise
from benchmarks.peer import Peer
from benchmarks.run import RUNS, machine
from benchmarks.summary import median
from benchmarks.workloads import drain, lifecycle

APPS = {"qworker-django": "qworker.django", "django-q2": "django_q"}
REQUIREMENTS = (
    *("django-q2==1.11.1", "django==5.2.19", "psycopg[binary]==3.3.9", "redis==8.1.0"),
    "hiredis==3.5.0",
)
NAME = os.environ.get("BENCHMARK_NAME", "qworker_django_benchmarks")
"""The database in PostgreSQL, which is made and dropped."""
BROKERS = {"sqlite": "", "postgresql": "PostgreSQL", "redis": "Redis"}
TASKS = 10_000
MOST = {
    "sqlite": {"drain": 400, "drain-memory": 1_500, "enqueue": 1_500},
    "postgresql": {"drain": 300, "enqueue": 1_500},
    "redis": {"drain": 400, "drain-memory": 1_500, "enqueue": 4_000},
}
"""Tasks of django-q2, which would take minutes with as many as ours."""


def _peer(package: str, broker: str) -> Peer:
    theirs = package == "django-q2"
    return Peer(
        f"{package}-{broker}",
        "django-q2" if theirs else "qworker-queue",
        "django_tasks",
        ("{python}", "-m", "django", "qcluster"),
        requirements=REQUIREMENTS if theirs else (),
        workloads=(),
        most=MOST[broker] if theirs else {},
        environment={
            "DJANGO_SETTINGS_MODULE": "benchmarks.adapters.django_settings",
            "BENCHMARK_APP": APPS[package],
            "BENCHMARK_BROKER": BROKERS[broker],
            "BENCHMARK_NAME": NAME,
        },
        server=BROKERS[broker],
    )


PROJECTS: dict[str, Peer] = {
    peer.name: peer for peer in (_peer(package, broker) for broker in BROKERS for package in APPS)
}


def _drained(cell: Cell) -> dict[str, float]:
    """Tasks a second that do nothing, from the start of the first of a full queue, until the last is kept.

    Where none is kept it is until the last has run.
    """
    base = cell.reserve(count := cell.count(TASKS))
    sent = cell.ask("fill", task="noop", base=base, count=count, extra=[], batch=0, limit=60.0)["sent"]
    cell.start_worker()
    runs = cell.await_ended(base, sent, settle=0.0)
    end: int = max(run.second for run in runs)
    if cell.workload != "keep-none":
        end = cell.ask("await_kept", patience=120.0)["at"]
    return {"rate": sent * 1e9 / (end - min(run.first for run in runs))}


def _enqueued(cell: Cell) -> dict[str, float]:
    """Microseconds of one call of async_task(), one after another, no cluster running."""
    return {"microseconds": 1e6 / drain.enqueue(cell)["enqueue_rate"]}


def _started(cell: Cell) -> dict[str, float]:
    """Seconds from exec of qcluster to the first task, which waits in the queue."""
    return {"seconds": lifecycle.start(cell)["start_seconds"]}


def _worked_off_once(cell: Cell) -> dict[str, float]:
    """Processor seconds of all processes of ``qcluster --run-once``, which starts, runs a task and ends."""
    taken = []
    for _ in range(lifecycle.REPEATS):
        cell.ask("send", task="noop", args=[cell.reserve(1)])
        before = _ended_processes()
        tree = cell.start_worker("--run-once")
        try:
            code = tree.process.wait(60.0)
        except subprocess.TimeoutExpired:
            raise CellError("qcluster --run-once has not ended within a minute") from None
        if code:
            raise CellError(f"qcluster --run-once ended with {code}")
        taken.append(_ended_processes() - before)
    return {"seconds": median(taken)}


def _ended_processes() -> float:
    """Processor seconds of the processes that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Workload:
    """One line of the page for each broker.

    - figure: its name in what `measure` returns.
    - more_is_better (bool): else the ratio is turned round, so that above 1 is always ours.
    - save_limit (number): successes that are kept, as Q_CLUSTER has it.
    - ours_only (bool): what is compared is ours with ours.
    - in_memory (bool): the project's files are in memory: no commit waits for a disk.
    - brokers: those that it is measured with.
    - goals: least ratios, by broker; none for what is only told.
    """

    title: str
    measure: Callable[[Cell], dict[str, float]]
    figure: str
    more_is_better: bool = True
    save_limit: int = 250
    ours_only: bool = False
    in_memory: bool = False
    brokers: Collection[str] = frozenset(BROKERS)
    goals: Mapping[str, float] = field(default_factory=dict)


WORKLOADS: dict[str, Workload] = {
    "drain": Workload(
        "no-ops drained, results kept (tasks/s)",
        _drained,
        "rate",
        goals={"sqlite": 20.0, "postgresql": 100.0, "redis": 2.0},
    ),
    "drain-memory": Workload(
        "the same, the project's files in memory (tasks/s)",
        _drained,
        "rate",
        in_memory=True,
        brokers=frozenset(["sqlite", "redis"]),
    ),
    "enqueue": Workload(
        "async_task, one at a time (µs)",
        _enqueued,
        "microseconds",
        more_is_better=False,
        goals=dict.fromkeys(BROKERS, 3.0),
    ),
    "start": Workload(
        "qcluster to its first task (s)",
        _started,
        "seconds",
        more_is_better=False,
        goals=dict.fromkeys(BROKERS, 1.0),
    ),
    "run-once": Workload(
        "qcluster --run-once with one task, processor time (s)",
        _worked_off_once,
        "seconds",
        more_is_better=False,
        goals=dict.fromkeys(BROKERS, 1.0),
    ),
    "keep-all": Workload("drained, save_limit 0", _drained, "rate", save_limit=0, ours_only=True),
    "keep-none": Workload("drained, save_limit -1", _drained, "rate", save_limit=-1, ours_only=True),
}


@dataclass(frozen=True)
class Measured:
    """What one cell gave. value: None when it failed; `error` tells why. noise: milliseconds that the machine
    took from a loop."""

    broker: str
    workload: str
    package: str
    round: int
    value: float | None
    lost: int = 0
    noise: float = 0.0
    error: str | None = None


@dataclass
class Found:
    """One run of this benchmark, kept as django.json."""

    started: str
    machine: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cells: list[Measured] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(paths: Sequence[Path]) -> Found:
    """Read what `save` wrote, several runs as one: their rounds follow each other."""
    runs = [json.loads(path.read_text()) for path in paths]
    whole = Found(**{**runs[-1], "cells": []})
    last = 0
    for run in runs:
        cells = [Measured(**cell) for cell in run["cells"]]
        whole.cells += [Measured(**{**asdict(cell), "round": cell.round + last}) for cell in cells]
        last = max((cell.round for cell in whole.cells), default=0)
    return whole


def execute(
    packages: Sequence[str],
    brokers: Sequence[str],
    workloads: Sequence[str],
    rounds: int,
    scale: float,
    out: Path,
) -> Found:
    """Measure, and keep `out`/django.json up to date after each cell."""
    out.mkdir(parents=True, exist_ok=True)
    found = Found(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), machine())
    silent = {server for server, url in SERVERS.items() if not answers(url)}
    found.skipped = {
        broker: f"no {BROKERS[broker]} answers" for broker in brokers if BROKERS[broker] in silent
    }
    wanted = [broker for broker in brokers if broker not in found.skipped]
    for package in packages:
        peer = PROJECTS[f"{package}-sqlite"]
        environments.ensure(peer)
        found.versions[package] = environments.version(peer)
    for number in range(1, rounds + 1):
        for broker in wanted:
            for workload in workloads:
                if broker not in WORKLOADS[workload].brokers:
                    continue
                for package in packages:
                    if package == "django-q2" and WORKLOADS[workload].ours_only:
                        continue
                    found.cells.append(_measured(broker, workload, package, number, scale))
                    found.save(out / "django.json")
    return found


def _measured(broker: str, workload: str, package: str, number: int, scale: float) -> Measured:
    chosen = WORKLOADS[workload]
    environment = {"BENCHMARK_SAVE_LIMIT": str(chosen.save_limit), "BENCHMARK_REDIS": REDIS_URL}
    runs = MEMORY if chosen.in_memory else RUNS
    quiet, began = noise(), time.monotonic()
    value, error, lost = None, None, 0
    try:
        with Cell(PROJECTS[f"{package}-{broker}"], workload, scale, runs, environment=environment) as cell:
            value = chosen.measure(cell)[chosen.figure]
            lost = cell.lost
    except CellError as failure:
        error = str(failure)
    said = f"{value:,.5g}" if value is not None else f"failed: {error}"
    print(
        f"{number} {broker:10} {workload:10} {package:15} {time.monotonic() - began:6.1f} s  {said}"
        + (f"  LOST {lost}" if lost else ""),
        file=sys.stderr,
        flush=True,
    )
    return Measured(broker, workload, package, number, value, lost, quiet, error)
