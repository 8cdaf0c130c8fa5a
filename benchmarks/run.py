"""Runs the cells one after the other and gathers what they give.

Rounds go over all peers before the next round begins, so a slow spell of the machine hits them alike.
Workloads are the outer loop: the cells that are compared stand close together in time.
"""

import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import environments, limits
from benchmarks.adapters.services import SERVERS, answers
from benchmarks.cell import Cell, CellError
from benchmarks.limits.limit import noise
from benchmarks.peer import Peer
from benchmarks.peers import PEERS
from benchmarks.results import CellResult, Results
from benchmarks.workloads import WORKLOADS

RUNS = Path(__file__).resolve().parent / ".runs"


def plan(peers: Sequence[str], workloads: Sequence[str], rounds: int) -> Iterator[tuple[int, str, Peer]]:
    """The cells in the order they are run: (round, workload, peer)."""
    for number in range(1, rounds + 1):
        for workload in workloads:
            for name in peers:
                if workload in PEERS[name].workloads:
                    yield number, workload, PEERS[name]


def prepare(peers: Sequence[str], rounds: int, scale: float, out: Path) -> Results:
    """Make the environments of the peers whose server is there, and the Results of a run that begins now."""
    results = Results(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        scale=scale,
        rounds=rounds,
        machine=machine(),
    )
    results.skipped = unreachable(peers)
    for name in peers:
        if name in results.skipped:
            continue
        peer = PEERS[name]
        environments.ensure(peer)
        version = environments.version(peer)
        results.peers[name] = {"version": version, "note": peer.note, "group": peer.group}
    out.mkdir(parents=True, exist_ok=True)
    return results


def execute(
    peers: Sequence[str], workloads: Sequence[str], rounds: int, scale: float, out: Path, minutes: float
) -> Results:
    """Run every cell, and keep `out`/results.json up to date after each one.

    No cell is begun when `minutes` for each round are over; the report names those that were left out.
    """
    results = prepare(peers, rounds, scale, out)
    until = time.monotonic() + 60.0 * minutes * rounds
    results.limits = limits.measure(results.groups(), RUNS, max(0.1, min(1.0, scale)))
    cells = list(plan(list(results.peers), workloads, rounds))
    silent = _silent()
    for place, (number, workload, peer) in enumerate(cells, 1):
        if time.monotonic() > until or silent.intersection(peer.servers(workload)):
            results.left_out.append(f"{workload} {peer.name}")
            continue
        result = _cell(number, workload, peer, scale)
        results.cells.append(result)
        results.save(out / "results.json")
        print(f"[{place}/{len(cells)}] {describe(result)}", file=sys.stderr, flush=True)
    return results


def unreachable(peers: Sequence[str]) -> dict[str, str]:
    """Peers whose server is not there, and why they are left out."""
    silent = _silent()
    return {name: f"no {PEERS[name].server} answers" for name in peers if PEERS[name].server in silent}


def _silent() -> set[str]:
    return {server for server, url in SERVERS.items() if not answers(url)}


def _cell(number: int, workload: str, peer: Peer, scale: float) -> CellResult:
    result = CellResult(peer.name, workload, number, noise=noise())
    began = time.monotonic()
    try:
        with Cell(peer, workload, scale, RUNS) as cell:
            result.figures = WORKLOADS[workload](cell)
            result.tasks, result.lost, result.repeated = cell.tasks, cell.lost, cell.repeated
    except CellError as error:
        result.error = str(error)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def describe(result: CellResult) -> str:
    """One line for the terminal about a cell that is done."""
    head = f"{result.workload:12} {result.peer:18} {result.seconds:6.1f} s "
    if result.error:
        return f"{head} failed: {result.error}"
    figures = ", ".join(f"{name} {value:,.6g}" for name, value in result.figures.items())
    wrong = f"  LOST {result.lost} REPEATED {result.repeated}" if result.lost or result.repeated else ""
    return f"{head} {figures}{wrong}"


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
