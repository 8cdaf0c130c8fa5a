"""Whether a broker stays as fast as it was while millions of tasks pass through it and others wait.

Comes from:  ``python -m benchmarks steady``.
Goes to:     one cell a peer, whose worker runs all the time; a table of its first and last waves.
Thread:      one.

Messages due tomorrow are stored first. Then tasks are published and run in waves; between some of the waves,
single calls are timed with the worker idle. What a database does not clean up in time shows as growth here.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.cell import CONCURRENCY, Cell, CellError
from benchmarks.peers import PEERS
from benchmarks.processes import SERVER_PROCESSES, seconds_of
from benchmarks.run import RUNS
from benchmarks.summary import median, percentile

WAVE = 50_000
BATCH = 1_000
PROBES = 300
SAMPLES = 10
"""How many waves, evenly spread, are followed by single calls and by a look at the broker's size."""
DAY = 86_400.0


@dataclass
class Sample:
    """The broker after *done* tasks. rate: tasks a second in the waves since the previous sample. worker,
    server: microseconds of processor time that a task took there, in the server also to publish it. latency:
    milliseconds from a call to its start, the 50th and the 99th percentile. size: what storage() of the
    adapter measures."""

    done: int
    rate: float
    worker: float
    server: float
    latency: tuple[float, float]
    size: dict[str, int]


@dataclass
class Steady:
    """What was measured of *peer*. waiting: how many messages were there all the time. lost, repeated:
    tasks that did not run, or ran again."""

    peer: str
    waiting: int
    samples: list[Sample] = field(default_factory=list)
    lost: int = 0
    repeated: int = 0
    error: str = ""


def execute(peers: Sequence[str], tasks: int, waiting: int, out: Path) -> list[Steady]:
    """Let *tasks* pass through each of *peers* beside *waiting* others, and write *out*/steady.json."""
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for name in peers:
        steady = Steady(name, waiting)
        found.append(steady)
        try:
            with Cell(PEERS[name], "steady", 1.0, RUNS, CONCURRENCY) as cell:
                for sample in _waves(cell, tasks, waiting):
                    steady.samples.append(sample)
                    steady.lost, steady.repeated = cell.lost, cell.repeated
                    print(f"{name:20}", *_row(sample), file=sys.stderr, flush=True)
                    (out / "steady.json").write_text(json.dumps([asdict(each) for each in found], indent=1))
        except CellError as error:
            steady.error = str(error)
    return found


def _waves(cell: Cell, tasks: int, waiting: int) -> Iterator[Sample]:
    if waiting:
        cell.ask("fill_for", count=waiting, seconds=DAY, batch=BATCH, timeout=3600.0)
    worker = cell.warm_worker()
    server = SERVER_PROCESSES.get(cell.peer.server.lower(), "")
    used = worker.cpu_seconds(), seconds_of(server)
    number = max(SAMPLES, tasks // WAVE)
    count = tasks // number
    rates: list[float] = []
    for wave in range(1, number + 1):
        rates.append(_wave(cell, count))
        if wave * SAMPLES // number > (wave - 1) * SAMPLES // number:
            now = worker.cpu_seconds(), seconds_of(server)
            costs = [1e6 * (new - old) / (count * len(rates)) for new, old in zip(now, used, strict=True)]
            latency = _probe(cell, min(PROBES, count))
            size = cell.ask("storage", timeout=600.0)
            yield Sample(wave * count, median(rates), costs[0], costs[1], latency, size)
            rates.clear()
            used = worker.cpu_seconds(), seconds_of(server)


def _wave(cell: Cell, count: int) -> float:
    """Publish *count* tasks while they are run; return tasks a second from the first start to the last
    end."""
    os.truncate(cell.records, 0)  # earlier runs need not be read again
    base = cell.reserve(count)
    cell.ask("fill", task="noop", base=base, count=count, extra=[], batch=BATCH, limit=600.0, timeout=700.0)
    runs = cell.await_ended(base, count)
    return len(runs) / ((max(run.second for run in runs) - min(run.first for run in runs)) / 1e9)


def _probe(cell: Cell, count: int) -> tuple[float, float]:
    os.truncate(cell.records, 0)
    base = cell.reserve(count)
    calls: list[int] = cell.ask(
        "one_by_one", task="noop", base=base, count=count, extra=[], gap=0.01, patience=15.0, limit=120.0
    )["calls"]
    starts = {run.task: run.first for run in cell.await_ended(base, len(calls))}
    waits = [(starts[base + n] - called) / 1e6 for n, called in enumerate(calls) if base + n in starts]
    return percentile(waits, 50), percentile(waits, 99)


HEAD = ("tasks", "a second", "worker, µs a task", "server, µs a task", "p50, ms", "p99, ms", "storage")


def _row(sample: Sample) -> list[str]:
    size = ", ".join(f"{name} {value:,}" for name, value in sample.size.items())
    costs = [f"{value:.0f}" for value in (sample.worker, sample.server)]
    return [
        f"{sample.done:,}",
        f"{sample.rate:,.0f}",
        *costs,
        *(f"{each:.2f}" for each in sample.latency),
        size,
    ]


def document(found: Sequence[Steady]) -> str:
    """Return a Markdown table of the first and the last sample of each peer."""
    lines = [f"| peer | waiting | {' | '.join(HEAD)} |", "|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for each in found:
        for sample in (*each.samples[:1], *each.samples[1:][-1:]):
            lines.append(f"| {each.peer} | {each.waiting:,} | {' | '.join(_row(sample))} |")
        if each.error or each.lost:
            lines.append(f"| {each.peer} | {each.error or f'{each.lost} tasks were lost'} |")
    return "\n".join(lines)
