"""What a peer is: a row that tells how to run one task queue at concurrency 2. The rows are in
`benchmarks.peers`."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.adapters.services import STORING

EVERYTHING = (
    "noop",
    "stored",
    "enqueue",
    "bulk",
    "latency",
    "cpu1",
    "cpu10",
    "eta",
    "behind-eta",
    "beside-long",
    "idle",
    "start",
    "stop",
)

WORKFLOWS = ("chain", "chord", "group", "large-chord")
"""Of those who have chains, chords and groups."""

EMBEDDED = "embedded"
"""The group of those that need no server."""


@dataclass(frozen=True)
class Peer:
    """How to run one peer.

    `command` may hold {bin}, the environment's directory of scripts, {python}, and {concurrency}, the number
    of processes. `most` bounds the number of tasks of a workload for peers that would take minutes; `server`
    names what it needs of `services.SERVERS`, and `results` the server that keeps results, where that is
    another; `note` is what a reader of the report must know.
    """

    name: str
    package: str
    adapter: str
    command: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    workloads: tuple[str, ...] = EVERYTHING
    most: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: int = signal.SIGTERM
    server: str = ""
    results: str = ""
    note: str = ""

    @property
    def group(self) -> str:
        """The broker's name: peers of a group are compared with each other."""
        return self.server or EMBEDDED

    def servers(self, workload: str) -> tuple[str, ...]:
        """What must answer for that workload."""
        needed = (self.server, self.results if workload in STORING else "")
        return tuple(server for server in needed if server)


def without(*names: str) -> tuple[str, ...]:
    """All workloads but these."""
    return tuple(name for name in EVERYTHING if name not in names)


def twice(command: str) -> tuple[str, ...]:
    """A shell that runs the command as two processes and hands the stop signal on, for workers that are one
    process."""
    return ("sh", "-c", f'{command} & a=$!; {command} & b=$!; trap "kill $a $b" TERM; wait; wait')


def qworker(name: str, server: str = "", **row: object) -> Peer:
    """A row of ours, on the broker `server`."""
    environment = {"BENCHMARK_BROKER": server, **row.pop("environment", {})}  # type: ignore[dict-item]
    command = "{python} -m qworker start -A benchmarks.adapters.qworker_app -c {concurrency} -l WARNING"
    row.setdefault("workloads", EVERYTHING + WORKFLOWS)
    return Peer(
        name,
        "qworker",
        "qworker_app",
        tuple(command.split()),
        server=server,
        environment=environment,
        **row,  # type: ignore[arg-type]
    )


def celery(name: str, server: str = "", **row: object) -> Peer:
    """A row of Celery's, prefork with its defaults, on the broker `server`."""
    command = "{bin}/celery -A benchmarks.adapters.celery_app worker -c {concurrency} -l WARNING"
    environment = {"BENCHMARK_BROKER": server, **row.pop("environment", {})}  # type: ignore[dict-item]
    return Peer(
        name,
        "celery",
        "celery_app",
        tuple(command.split()),
        server=server,
        environment=environment,
        **row,  # type: ignore[arg-type]
    )
