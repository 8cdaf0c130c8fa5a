"""The outcome of a run: cells of peers, workloads and rounds, kept as JSON.

{"schema": 1, "started": ISO time, "scale": 1.0, "rounds": 3, "machine": {title: text},
 "peers": {name: {"version", "note"}}, "limits": {title: rows a second},
 "cells": [{"peer", "workload", "round", "figures": {metric: value}, "tasks", "lost", "repeated",
            "noise": ms, "seconds", "error": text or null}]}
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.summary import median

SCHEMA = 1


@dataclass
class CellResult:
    """What one cell gave. `error` tells why there are no figures; `noise` is the fixed loop's time just before."""

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
    limits: dict[str, float] = field(default_factory=dict)
    cells: list[CellResult] = field(default_factory=list)

    def figure(self, metric: str, peer: str) -> Spread | None:
        """That peer's figure over all rounds, or None when it has none."""
        values = [cell.figures[metric] for cell in self.cells if cell.peer == peer and metric in cell.figures]
        return Spread(median(values), min(values), max(values)) if values else None

    def figures(self, metric: str) -> dict[str, Spread]:
        """Every peer that has the figure, in the order of the run."""
        found = {peer: self.figure(metric, peer) for peer in self.peers}
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
    return Results(**data, cells=cells)
