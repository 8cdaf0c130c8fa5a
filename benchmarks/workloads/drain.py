"""Rates: how fast a full queue is emptied, how fast it is filled, how much of the processor the tasks get."""

from benchmarks.cell import CONCURRENCY, Cell
from benchmarks.records import Record

BATCH = 500


def _fill(cell: Cell, task: str, count: int, *extra: float) -> tuple[int, int]:
    """Fill the queue by the quickest means the peer has. Returns base and number of the tasks."""
    base = cell.reserve(count)
    batch = BATCH if "bulk" in cell.peer.workloads else 0
    sent = cell.ask("fill", task=task, base=base, count=count, extra=list(extra), batch=batch, limit=120.0)[
        "sent"
    ]
    return base, sent


def _drain(cell: Cell, task: str, count: int, *extra: float) -> list[Record]:
    """Fill the queue, then start the worker: no rate is flattered by a slow producer."""
    base, sent = _fill(cell, task, count, *extra)
    cell.start_worker()
    return cell.await_ended(base, sent)


def _span(runs: list[Record]) -> float:
    """Seconds from the first start to the last end."""
    return (max(run.second for run in runs) - min(run.first for run in runs)) / 1e9


def noop(cell: Cell) -> dict[str, float]:
    """Tasks a second, from a full queue to an empty one."""
    runs = _drain(cell, "noop", cell.count(20_000))
    return {"noop_rate": (len(runs) - 1) / _span(runs)}


def emptied(cell: Cell) -> dict[str, float]:
    """The same, until the broker has no message left: who runs tasks faster than it deletes them is not
    done."""
    runs = _drain(cell, "noop", cell.count(20_000))
    empty = cell.ask("await_empty", patience=120.0)["at"]
    return {"emptied_rate": len(runs) / ((empty - min(run.first for run in runs)) / 1e9)}


def stored(cell: Cell) -> dict[str, float]:
    """The same, each task's return value kept in the peer's result store."""
    runs = _drain(cell, "stored", cell.count(20_000))
    return {"stored_rate": (len(runs) - 1) / _span(runs)}


def enqueue(cell: Cell) -> dict[str, float]:
    """Calls a second in a loop of one process, no worker running."""
    return {"enqueue_rate": _rate(cell, 0)}


def bulk(cell: Cell) -> dict[str, float]:
    """Calls a second by the peer's bulk call, 500 at a time, no worker running."""
    return {"bulk_rate": _rate(cell, BATCH)}


def _rate(cell: Cell, batch: int) -> float:
    # A first small lot opens connections and fills caches; it is not counted.
    cell.ask(
        "fill", task="noop", base=cell.reserve(200), count=200, extra=[], batch=batch and 200, limit=30.0
    )
    count = cell.count(20_000, least=BATCH)
    base = cell.reserve(count)
    answer = cell.ask("fill", task="noop", base=base, count=count, extra=[], batch=batch, limit=30.0)
    cell.tasks += answer["sent"]
    return float(answer["sent"] / answer["seconds"])


def cpu1(cell: Cell) -> dict[str, float]:
    """Share of two processors that tasks of 1 ms get."""
    return {"cpu1_efficiency": _efficiency(cell, 3_000, 1.0)}


def cpu10(cell: Cell) -> dict[str, float]:
    """Share of two processors that tasks of 10 ms get."""
    return {"cpu10_efficiency": _efficiency(cell, 400, 10.0)}


def _efficiency(cell: Cell, full: int, milliseconds: float) -> float:
    runs = _drain(cell, "burn", cell.count(full), milliseconds)
    return len(runs) * milliseconds / 1000.0 / (_span(runs) * CONCURRENCY)
