"""The outcome of a run: cells of peers, workloads and rounds, kept as JSON.

{"schema": 1, "started": ISO time, "scale": 1.0, "rounds": 3, "machine": {title: text},
 "peers": {name: {"version", "note", "group"}}, "skipped": {name: why}, "left_out": [cell's name],
 "limits": {title: a second}, "growth": [{"peer", "curve", "x", "figures", "error"}],
 "cells": [{"peer", "workload", "round", "figures": {metric: value}, "tasks", "lost", "repeated",
            "noise": ms, "seconds", "error": text or null}]}
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peer import EMBEDDED
from benchmarks.peers import GROUPS, PEERS
from benchmarks.summary import median

SCHEMA = 1


@dataclass
class CellResult:
    """What one cell gave. `error` tells why there are no figures; `noise` is the fixed loop's time just
    before."""

    peer: str
    workload: str
    round: int
    figures: dict[str, float] = field(default_factory=dict)
    tasks: int = 0
    lost: int = 0
    repeated: int = 0
    noise: float = 0.0
    seconds: float = 0.0
    error: str | None = None


@dataclass
class Point:
    """One point of a growth curve: `figures` in microseconds a task where `x` (messages, queues…) is so
    large."""

    peer: str
    curve: str
    x: float
    figures: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Spread:
    """Median, least and most of a figure over the rounds."""

    median: float
    least: float
    most: float


@dataclass
class Results:
    """One run of the harness."""

    started: str
    scale: float = 1.0
    rounds: int = 1
    machine: dict[str, str] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    cells: list[CellResult] = field(default_factory=list)
    growth: list[Point] = field(default_factory=list)

    def group(self, peer: str) -> str:
        """The broker that the peer ran on."""
        return self.peers.get(peer, {}).get("group", EMBEDDED)

    def groups(self) -> list[str]:
        """The brokers of this run, in the order of the table of peers."""
        found = {self.group(peer) for peer in self.peers}
        return [group for group in GROUPS.values() if group in found]

    def figure(self, metric: str, peer: str) -> Spread | None:
        """That peer's figure over all rounds, or None when it has none."""
        values = [cell.figures[metric] for cell in self.cells if cell.peer == peer and metric in cell.figures]
        return Spread(median(values), min(values), max(values)) if values else None

    def figures(self, metric: str, group: str | None = None) -> dict[str, Spread]:
        """Every peer that has the figure, in the order of the run; those of one broker if `group` names
        it."""
        peers = [peer for peer in self.peers if group is None or self.group(peer) == group]
        found = {peer: self.figure(metric, peer) for peer in peers}
        return {peer: spread for peer, spread in found.items() if spread is not None}

    def noisy(self) -> list[CellResult]:
        """Cells before which the fixed loop took more than 1.5 times its least of the run."""
        least = min((cell.noise for cell in self.cells if cell.noise), default=0.0)
        return [cell for cell in self.cells if cell.noise > 1.5 * least]

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        path.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n")


def load(path: Path) -> Results:
    """Read a JSON file that `save` wrote. Raises ValueError when it is of another schema."""
    data: dict[str, Any] = json.loads(path.read_text())
    schema = data.pop("schema", None)
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema!r}; this program reads schema {SCHEMA}")
    cells = [CellResult(**cell) for cell in data.pop("cells")]
    growth = [Point(**point) for point in data.pop("growth", [])]
    for name, peer in data.get("peers", {}).items():
        # Files of before the reports were grouped do not tell.
        peer.setdefault("group", PEERS[name].group if name in PEERS else EMBEDDED)
    return Results(**data, cells=cells, growth=growth)


def merge(runs: Sequence[Results]) -> Results:
    """Several runs as one: their cells and curves together, a later run's word on a peer or a limit before an
    earlier's.

    A cell that failed is forgotten where another run has its figures. The smallest scale and the fewest
    rounds are kept, so that the report warns of a trial among them.
    """
    whole = Results(
        ", ".join(dict.fromkeys(run.started for run in runs)), rounds=min(run.rounds for run in runs)
    )
    whole.scale = min(run.scale for run in runs)
    for run in runs:
        # Each run has its own load; the rest of the machine should be the same, and is said if it is not.
        for title, text in run.machine.items():
            known = whole.machine.setdefault(title, text)
            if text not in known.split(" | "):
                whole.machine[title] = f"{known} | {text}"
        whole.peers |= run.peers
        whole.skipped |= run.skipped
        whole.limits |= run.limits
        whole.left_out += run.left_out
        whole.cells += run.cells
        whole.growth += run.growth
    good = {(cell.peer, cell.workload) for cell in whole.cells if not cell.error}
    whole.cells = [cell for cell in whole.cells if not cell.error or (cell.peer, cell.workload) not in good]
    whole.left_out = [name for name in whole.left_out if tuple(reversed(name.split())) not in good]
    measured = {cell.peer for cell in whole.cells}
    whole.skipped = {name: why for name, why in whole.skipped.items() if name not in measured}
    return whole
