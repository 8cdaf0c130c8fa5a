"""The spooler beside uWSGI's own: the same jobs, the same function, the same directory, in one run.

Each figure is measured for both sides in turn, as often as there are rounds; what counts is the ratio of the
medians. uWSGI runs its spoolers at nice 19, so ours run at nice 19, too. Jobs are written as files before
the spooler starts, or by a process that is none of the spooler's; uWSGI does not hear of such a one before
its next scan, so a writer of its own is measured beside.
"""

import datetime
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cell import MEMORY, ROOT, CellError
from benchmarks.processes import Tree
from benchmarks.run import RUNS, machine
from benchmarks.spooler_app import JOB, SLOT
from benchmarks.summary import median, percentile
from qworker.spooler import NewJob, Writer

SIDES = ("uwsgi", "qworker")
PLACES = {"memory": MEMORY, "disk": RUNS}
PROCESSES = 2
LIMIT = 120.0
"""Seconds in which a spooler has to do what it is asked."""
JOBS = 5_000
FUTURE = 20_000
PAUSE = 0.02
"""Seconds between two jobs whose waking is timed."""
SETTLE = 3.0
"""Seconds after a start before a spooler is taken for idle."""
IDLE_SECONDS = 6.0
FOREIGN = 3
"""Jobs of a stranger that uWSGI is given: each waits for its scan, every 30 s."""
_UWSGI = (sys.executable, "-c", "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])", "--master", "--need-app=0")


class Figure(NamedTuple):
    """What is measured. more: whether more is better."""

    title: str
    unit: str
    digits: int
    more: bool


FIGURES = {
    "work_off": Figure("work off no-op jobs, 2 processes", "jobs/s", 0, True),
    "start": Figure("from the start to the first job", "s", 2, False),
    "enqueue": Figure("enqueue from Python, one process", "jobs/s", 0, True),
    "wake_own": Figure("an idle spooler's own writer, p50", "ms", 2, False),
    "wake_foreign": Figure("an idle spooler, another program's file, p50", "ms", 2, False),
    "future_cpu": Figure("20,000 future jobs: idle processor", "% of a core", 2, False),
    "future_wake": Figure("20,000 future jobs: a new one begins, p50", "ms", 2, False),
    "network_tcp": Figure("enqueue over TCP, 1 client", "jobs/s", 0, True),
    "network_unix": Figure("enqueue over a UNIX socket, 1 client", "jobs/s", 0, True),
}


@dataclass(frozen=True)
class Measured:
    """One figure of one side, once. value: None when there is none, and error says why."""

    side: str
    place: str
    figure: str
    value: float | None
    error: str | None = None


@dataclass
class Found:
    """One run, kept as spooler.json."""

    started: str
    machine: dict[str, str]
    jobs: int
    measured: list[Measured] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def values(self, side: str, place: str, figure: str) -> list[float]:
        """All that were measured of a figure."""
        return [
            each.value
            for each in self.measured
            if (each.side, each.place, each.figure) == (side, place, figure) and each.value is not None
        ]


def load(paths: Sequence[Path]) -> Found:
    """Read what `save` wrote, several runs as one."""
    runs = [json.loads(path.read_text()) for path in paths]
    whole = Found(runs[-1]["started"], runs[-1]["machine"], runs[-1]["jobs"])
    whole.measured = [Measured(**each) for run in runs for each in run["measured"]]
    return whole


class Room:
    """A spool directory, a place for what jobs write down, and the processes on it; gone after `with`."""

    def __init__(self, side: str, within: Path) -> None:
        within.mkdir(parents=True, exist_ok=True)
        self.side = side
        self.directory = Path(tempfile.mkdtemp(prefix="spool-", dir=within))
        self.spool = self.directory / "jobs"
        self.records = self.directory / "records"
        self.spool.mkdir(mode=0o750)
        self.records.mkdir()
        self.tree: Tree | None = None

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *_: object) -> None:
        if self.tree is not None:
            self.tree.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, do: str, command: Sequence[str], **environment: str) -> None:
        """Start a process that imports ``benchmarks.spooler_app``, to do that."""
        given = {
            "BENCHMARK_SIDE": self.side,
            "BENCHMARK_SPOOL": do,
            "BENCHMARK_RECORDS": str(self.records),
            "BENCHMARK_PLACE": str(self.spool),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        self.tree = Tree(command, {**os.environ, **given, **environment}, self.directory)

    def start(self, do: str, *words: str, **environment: str) -> None:
        """Start the spooler of the side."""
        if self.side == "uwsgi":
            command = [*_UWSGI, "--spooler", str(self.spool), f"--spooler-processes={PROCESSES}"]
            command += ["--spooler-quiet", f"--shared-import={ROOT}/benchmarks/spooler_app.py"]
        else:
            command = ["nice", "-n", "19", sys.executable, "-m", "qworker", "spool", "run", str(self.spool)]
            command += ["-A", "benchmarks.spooler_app", "--spooler-processes", str(PROCESSES)]
            command += ["--spooler-quiet", "-l", "WARNING"]
        self.run(do, [*command, *words], **environment)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = LIMIT) -> None:
        """Raises CellError when that takes longer, or the process has ended."""
        until = time.monotonic() + seconds
        assert self.tree is not None
        while not condition():
            if not self.tree.alive():
                raise CellError(f"it ended:\n{self.tree.log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() > until:
                raise CellError(f"{what} took longer than {seconds:.0f} s")
            time.sleep(0.002)

    def counts(self) -> list[tuple[int, int, int]]:
        """Of each process how many jobs it ran, and when it began the first and the last, in nanoseconds."""
        slots = [file.read_bytes() for file in self.records.iterdir()]
        return [struct.unpack("QQQ", slot) for slot in slots if len(slot) == SLOT]

    def late(self) -> list[float]:
        """How many milliseconds after it was sent each timed job began, in order."""
        file = self.records / "late"
        return [int(line) / 1e6 for line in file.read_text().split()] if file.exists() else []


def work_off(side: str, within: Path, jobs: int) -> Iterator[tuple[str, float]]:
    """All jobs are there when the spooler starts."""
    with Room(side, within) as room:
        Writer(room.spool).write_many(NewJob(JOB) for _ in range(jobs))
        room.start("counted")
        room.wait(lambda: sum(count for count, _, _ in room.counts()) >= jobs, "working off")
        time.sleep(0.2)
        counts = room.counts()
        ran = sum(count for count, _, _ in counts)
        if ran != jobs:
            raise CellError(f"{ran} jobs were run, of {jobs}")
        first = min(first for _, first, _ in counts)
        assert room.tree is not None
        yield "work_off", (jobs - 1) * 1e9 / max(1, max(last for _, _, last in counts) - first)
        yield "start", (first - room.tree.started) / 1e9


def enqueue(side: str, within: Path, jobs: int) -> Iterator[tuple[str, float]]:
    """One process writes them, and nobody works them off."""
    with Room(side, within) as room:
        file = f"{ROOT}/benchmarks/spooler_app.py"
        uwsgi = [*_UWSGI, "--workers=1", f"--spooler-external={room.spool}", f"--shared-import={file}"]
        ours = [sys.executable, "-c", "import benchmarks.spooler_app, time; time.sleep(60)"]
        command = uwsgi if side == "uwsgi" else ours
        answer = room.records / "seconds"
        room.run("enqueue", command, BENCHMARK_COUNT=str(jobs))
        room.wait(answer.exists, "enqueueing")
        there = sum(1 for _ in room.spool.iterdir())
        if there != jobs:
            raise CellError(f"{there} jobs are there, of {jobs}")
        yield "enqueue", jobs / float(answer.read_text())


def wake(side: str, within: Path, jobs: int) -> Iterator[tuple[str, float]]:
    """An idle spooler, whose own writer and another program write a job now and then."""
    with _idle(side, within, jobs, 0) as room:
        own = _own(room, jobs)
        yield "wake_own", percentile(own, 50)
        yield "wake_foreign", percentile(_foreign(room, jobs if side == "qworker" else FOREIGN), 50)


def future(side: str, within: Path, jobs: int) -> Iterator[tuple[str, float]]:
    """The same beside jobs that are due tomorrow; and what they cost a spooler that has nothing to do."""
    with _idle(side, within, jobs, FUTURE) as room:
        assert room.tree is not None
        used = room.tree.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        yield "future_cpu", 100.0 * (room.tree.cpu_seconds() - used) / IDLE_SECONDS
        yield "future_wake", percentile(_own(room, jobs), 50)


@contextmanager
def _idle(side: str, within: Path, jobs: int, later: int) -> Iterator[Room]:
    """A spooler that has done its first job and waits, with so many jobs for *later*."""
    with Room(side, within) as room:
        tomorrow = time.time() + 86_400
        writer = Writer(room.spool)
        writer.write_many(NewJob(JOB, at=tomorrow) for _ in range(later))
        writer.write({"sent": time.monotonic_ns()})
        words = [f"--mule={ROOT}/benchmarks/spooler_mule.py"] if side == "uwsgi" else []
        go = {"BENCHMARK_GO": str(room.directory / "go"), "BENCHMARK_PAUSE": str(PAUSE)}
        room.start("timed", *words, BENCHMARK_COUNT=str(jobs), **go)
        room.wait(lambda: bool(room.late()), "the first job")
        time.sleep(SETTLE)
        yield room


def _own(room: Room, jobs: int) -> list[float]:
    """How late jobs begin that the spooler's own application writes; for ours there is no difference."""
    if room.side != "uwsgi":
        return _foreign(room, jobs)
    before = len(room.late())
    (room.directory / "go").touch()
    room.wait(lambda: len(room.late()) >= before + jobs, "waking")
    return room.late()[before:]


def _foreign(room: Room, jobs: int) -> list[float]:
    """The same for jobs that this process writes, each after the one before has begun."""
    writer = Writer(room.spool)
    before = len(room.late())
    for number in range(before + 1, before + jobs + 1):
        writer.write({"sent": time.monotonic_ns()})
        room.wait(lambda number=number: len(room.late()) >= number, "waking")  # type: ignore[misc]
        time.sleep(PAUSE)
    return room.late()[before:]


def network(side: str, within: Path, jobs: int) -> Iterator[tuple[str, float]]:
    """Packets over both kinds of sockets."""
    from benchmarks import spool_network

    for kind in ("tcp", "unix"):
        yield f"network_{kind}", spool_network.measure(side, kind, 1, jobs, str(within))


WORKLOADS: Mapping[str, Callable[[str, Path, int], Iterator[tuple[str, float]]]] = {
    "work_off": work_off,
    "enqueue": enqueue,
    "wake": wake,
    "future": future,
    "network": network,
}
_WAKES = 100
"""Jobs whose waking is timed."""


def execute(workloads: Sequence[str], places: Sequence[str], rounds: int, scale: float, out: Path) -> Found:
    """Measure all, and keep `out`/spooler.json up to date."""
    if importlib.util.find_spec("pyuwsgi") is None:
        raise SystemExit("There is no uWSGI to measure beside: pip install pyuwsgi")
    out.mkdir(parents=True, exist_ok=True)
    jobs = max(20, round(JOBS * scale))
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = Found(started, machine(), jobs)
    cells: list[tuple[Any, ...]] = [
        (name, place, side) for name in workloads for place in places for _ in range(rounds) for side in SIDES
    ]
    for name, place, side in cells:
        number = max(5, round(_WAKES * scale)) if name in ("wake", "future") else jobs
        for each in _measured(name, place, side, number):
            found.measured.append(each)
            found.save(out / "spooler.json")
            value = f"{each.value:,.4g}" if each.value is not None else each.error
            print(f"{place:7} {side:8} {each.figure:14} {value}", file=sys.stderr, flush=True)
    return found


def _measured(name: str, place: str, side: str, number: int) -> Iterator[Measured]:
    try:
        for figure, value in WORKLOADS[name](side, PLACES[place], number):
            yield Measured(side, place, figure, value)
    except (CellError, ImportError, OSError, RuntimeError) as error:
        yield Measured(side, place, name, None, str(error)[-500:])


def ratio(found: Found, place: str, figure: str) -> float | None:
    """How many times as good ours is: more of what is good, or less of what costs."""
    theirs, ours = (found.values(side, place, figure) for side in SIDES)
    if not theirs or not ours:
        return None
    one, other = median(theirs), median(ours)
    if not FIGURES[figure].more:
        one, other = other, one
    return other / one if one else None
