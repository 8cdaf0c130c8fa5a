"""What faults cost: the same faults done to qworker and to its peers, on servers of their own.

    python -m benchmarks.faults --write docs/explanation/faults.md
    python -m benchmarks.faults --systems qworker --brokers redis --jobs 1

Needs:  redis-server, rabbitmq-server and postgres on this machine; the peers' environments are made when
missing. Each cell is a process of its own: a new server, a link to it that can be cut, one worker with two
processes, a producer with eight calls a second of tasks that take 0.2 s; then the fault; then what the tasks
themselves have written down.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.environments import ensure, interpreter
from benchmarks.fault_page import page
from benchmarks.peer import Peer
from tests.acceptance.brokers import Broken
from tests.acceptance.private_servers import serving
from tests.acceptance.processes import children, descendants, gone, kill

PATIENCE = 45.0
"""Seconds after the last call in which everything accepted must have run, or is counted as lost."""
PAUSE = 1.0
"""Seconds without a start of a task that are part of the fault, and not of the work."""
SETTLE = 8.0
"""Seconds for which calls go on after the fault."""
CELERY = ("celery==5.7.0", "packaging==26.0", "redis==8.1.0", "hiredis==3.5.0")
DRAMATIQ = ("dramatiq[rabbitmq]==2.2.1", "redis==8.1.0", "hiredis==3.5.0")


@dataclass(frozen=True)
class System:
    """command may hold {python} and {bin}."""

    name: str
    command: tuple[str, ...]
    brokers: tuple[str, ...]
    requirements: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return interpreter(self.peer)

    @property
    def peer(self) -> Peer:
        return Peer(self.name, self.name, "", (), self.requirements)


_CELERY = ("{bin}/celery", "-A", "benchmarks.fault_app", "worker", "-c", "2", "-l", "WARNING")
SYSTEMS = {
    system.name: system
    for system in (
        System(
            "qworker",
            ("{python}", "-m", "qworker", "start", "-A", "benchmarks.fault_app:app", "-c", "2"),
            ("redis", "rabbitmq", "postgresql"),
        ),
        System("celery", _CELERY, ("redis", "rabbitmq"), CELERY),
        System("celery late", _CELERY, ("redis", "rabbitmq"), CELERY),
        System(
            "dramatiq",
            ("{bin}/dramatiq", "benchmarks.fault_app", "-p", "2", "-t", "1"),
            ("redis", "rabbitmq"),
            DRAMATIQ,
        ),
    )
}


@dataclass
class Outcome:
    """recovered: seconds from the end of the fault until tasks start one after the other again; None: not
    within PATIENCE."""

    system: str
    broker: str
    fault: str
    accepted: int = 0
    refused: int = 0
    lost: int = 0
    repeated: int = 0
    recovered: float | None = None
    hung: bool = False
    """The producer's call did not return, so nothing came that a worker could have run."""


@dataclass
class Cell:
    """A worker and a producer on a broker that is about to be broken. A worker that ends is started again
    after a second, as a supervisor does."""

    system: System
    broken: Broken
    directory: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: float = 0.0
    """When the last call was made."""
    closed: threading.Event = field(default_factory=threading.Event)

    def supervise(self) -> None:
        self.start()
        while not self.closed.wait(0.1):
            if self.workers[-1].poll() is not None and not self.closed.wait(1.0):
                self.start()

    def __post_init__(self) -> None:
        self.supervisor = threading.Thread(target=self.supervise, name="supervisor", daemon=True)

    def environment(self) -> dict[str, str]:
        # Each runs from this directory; a peer's environment has nothing of ours but these two modules.
        return {
            **os.environ,
            "FAULT_SYSTEM": self.system.name,
            "FAULT_BROKER": self.broken.url,
            "FAULT_LEDGER": str(self.directory / "ledger"),
            "FAULT_PAUSE": "0.125",
            "QWORKER_BROKER_URL": self.broken.url,
        }

    def start(self) -> None:
        words = {"python": str(self.system.python), "bin": str(self.system.python.parent)}
        with (self.directory / f"worker{len(self.workers)}.log").open("wb") as log:
            self.workers.append(
                subprocess.Popen(
                    [word.format(**words) for word in self.system.command],
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def produce(self) -> "subprocess.Popen[str]":
        self.accepted = self.directory / "accepted"
        self.refused = self.directory / "refused"
        with self.accepted.open("w") as accepted, self.refused.open("w") as refused:
            return subprocess.Popen(
                [str(self.system.python), "-m", "benchmarks.fault_app"],
                env=self.environment(), stdin=subprocess.PIPE, stdout=accepted, stderr=refused, text=True,
            )  # fmt: skip

    def records(self) -> list[tuple[str, int, int, float]]:
        """Kind, number, process and time of all that was recorded."""
        try:
            lines = (self.directory / "ledger").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [
            (kind, int(number), int(pid), float(at))
            for kind, number, pid, at in (line.split() for line in lines)
        ]

    def busy(self) -> int:
        """A process that runs a task now."""
        while True:
            running: dict[int, int] = {}
            for kind, number, pid, _ in self.records():
                if kind == "S":
                    running[number] = pid
                else:
                    running.pop(number, None)
            for pid in running.values():
                if not gone(pid):
                    return pid
            time.sleep(0.01)

    def close(self) -> None:
        self.closed.set()
        self.supervisor.join()
        for worker in self.workers:
            for pid in (worker.pid, *descendants(worker.pid), *_orphans(self.directory)):
                kill(pid)
            worker.consumer.wait()


def _orphans(directory: Path) -> list[int]:
    """What outlived its worker: processes whose ledger is this one's."""
    wanted = f"FAULT_LEDGER={directory / 'ledger'}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# -- faults: each returns the instant from which work should go on --


def child_killed(cell: Cell) -> float:
    kill(cell.busy())
    return time.time()


def worker_killed(cell: Cell) -> float:
    """The main process alone, while tasks run."""
    cell.busy()
    kill(cell.workers[-1].pid)
    time.sleep(1.0)
    return time.time()


def broker_killed(cell: Cell) -> float:
    cell.broken.server.kill()
    time.sleep(3.0)
    cell.broken.server.start()
    return time.time()


def broker_frozen(cell: Cell) -> float:
    cell.broken.server.freeze()
    time.sleep(10.0)
    cell.broken.server.thaw()
    return time.time()


def connections_reset(cell: Cell) -> float:
    for _ in range(5):
        cell.broken.proxy.cut()
        time.sleep(0.5)
    return time.time()


def connections_silent(cell: Cell) -> float:
    cell.broken.proxy.strand()
    return time.time()


FAULTS: dict[str, Callable[[Cell], float]] = {
    "a pool process is killed": child_killed,
    "the worker is killed, and started again after 1 s": worker_killed,
    "the broker is killed, and started again after 3 s": broker_killed,
    "the broker is frozen for 10 s": broker_frozen,
    "all connections are reset, five times": connections_reset,
    "open connections fall silent for good": connections_silent,
}


def measure(system: System, broker: str, fault: str) -> Outcome:
    """Run one cell."""
    outcome = Outcome(system.name, broker, fault)
    directory = Path(tempfile.mkdtemp(prefix="qworker-faults-"))
    with serving(broker) as server:
        broken = Broken(server)
        with broken.exposed():
            cell = Cell(system, broken, directory)
            try:
                cell.supervisor.start()
                _until(lambda: bool(cell.workers and children(cell.workers[0].pid)), 20.0)
                time.sleep(4.0)  # all of them are ready by then; Dramatiq and Celery declare their queues
                producer = cell.produce()
                if not _until(lambda: len(cell.records()) > 20, 30.0):
                    raise RuntimeError(f"{system.name} does not work on {broker}: see {directory}")
                over = FAULTS[fault](cell)
                _until(
                    lambda: any(kind == "S" and at > over + 0.01 for kind, _, _, at in cell.records()),
                    PATIENCE,
                )
                time.sleep(SETTLE)
                cell.ended = time.time()
                try:
                    producer.communicate("\n", timeout=PATIENCE)
                except subprocess.TimeoutExpired:  # a call that never returns
                    outcome.hung = True
                    producer.kill()
                    producer.communicate()
                accepted = set(map(int, cell.accepted.read_text().split()))
                _until(
                    lambda: accepted <= {number for kind, number, _, _ in cell.records() if kind == "E"},
                    PATIENCE,
                )
                _judge(outcome, cell, accepted, over)
            finally:
                cell.close()
    return outcome


def _judge(outcome: Outcome, cell: Cell, accepted: set[int], over: float) -> None:
    records = cell.records()
    starts = Counter(number for kind, number, _, _ in records if kind == "S")
    ended = {number for kind, number, _, _ in records if kind == "E"}
    times = sorted(at for kind, _, _, at in records if kind == "S")
    outcome.accepted = len(accepted)
    outcome.refused = len(cell.refused.read_text().splitlines())
    outcome.lost = len(accepted - ended)
    outcome.repeated = sum(count - 1 for count in starts.values())
    if times[-1] > cell.ended - 2.0:  # otherwise it did not keep up to the end, or not begin again
        pauses = [after for before, after in pairwise(times) if after > over and after - before > PAUSE]
        first = next((at for at in times if at > over), over)
        outcome.recovered = round(max([first, *pauses]) - over, 1)


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--brokers", nargs="*", default=["redis", "rabbitmq", "postgresql"])
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    parser.add_argument("--write", type=Path, help="the page to make of it")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        print(json.dumps(asdict(measure(SYSTEMS[given.cell[0]], *given.cell[1:]))))
        return 0
    wanted = [
        (name, broker, fault)
        for broker in given.brokers for fault in given.faults for name in given.systems
        if broker in SYSTEMS[name].brokers
    ]  # fmt: skip
    for name in given.systems:
        ensure(SYSTEMS[name].peer)
    with ThreadPoolExecutor(given.jobs) as executor:
        outcomes = [found for found in executor.map(_cell, wanted) if found is not None]
    text = page([asdict(outcome) for outcome in outcomes], list(given.faults))
    if given.write:
        given.write.write_text(text)
    else:
        print(text)
    return 0 if len(outcomes) == len(wanted) else 1


def _cell(which: tuple[str, str, str]) -> Outcome | None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", "--cell", *which], capture_output=True, text=True
    )
    if done.returncode:
        print(f"{which}: {done.stderr[-2000:]}", file=sys.stderr)
        return None
    outcome = Outcome(**json.loads(done.stdout.splitlines()[-1]))
    print(outcome, file=sys.stderr, flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
