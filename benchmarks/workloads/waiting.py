"""Waits: how long a call takes to become a running task when the worker is idle, or busy with long tasks."""

import time

from benchmarks import records
from benchmarks.cell import Cell, CellError
from benchmarks.summary import percentile


def latency(cell: Cell) -> dict[str, float]:
    """Milliseconds from the call to the start of the body; one call at a time, the worker idle in between."""
    cell.warm_worker()
    time.sleep(1.0)
    count = cell.count(500)
    base = cell.reserve(count)
    answer = cell.ask(
        "one_by_one",
        task="noop",
        base=base,
        count=count,
        extra=[],
        gap=0.01,
        patience=15.0,
        limit=120.0,
        timeout=180.0,
    )
    calls = answer["calls"]
    starts = {run.task: run.first for run in cell.await_ended(base, len(calls))}
    waits = [
        (starts[base + place] - called) / 1e6 for place, called in enumerate(calls) if base + place in starts
    ]
    return {f"latency_p{rank}": percentile(waits, rank) for rank in (50, 95, 99)}


def beside_long(cell: Cell) -> dict[str, float]:
    """The longest wait of a short task while one child runs a task of 1 s and the other is idle, in
    milliseconds.

    In each round one short task is sent right behind the long one, the rest while it runs. All are the same
    function, so knowing its usual duration does not help.
    """
    cell.warm_worker()
    rounds, shorts = cell.count(5, least=2), 6
    for _ in range(2):
        _short(cell)
    waits: list[float] = []
    for _ in range(rounds):
        long = cell.reserve(1)
        cell.ask("send", task="pause", args=[long, 1.0])
        waits.append(_short(cell))
        await_begun(cell, long)
        for _ in range(shorts):
            time.sleep(0.05)
            waits.append(_short(cell))
        cell.await_ended(long, 1, settle=0.0)
    return {"beside_worst": max(waits), "beside_p50": percentile(waits, 50)}


def _short(cell: Cell) -> float:
    """Send one task of 1 ms and return its wait in milliseconds."""
    index = cell.reserve(1)
    called = cell.ask("send", task="pause", args=[index, 0.001])["called"]
    runs = cell.await_ended(index, 1, settle=0.0)
    return float(runs[0].first - called) / 1e6


def await_begun(cell: Cell, index: int) -> int:
    """Wait until the pause of that number has begun; its start, monotonic nanoseconds."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        for record in records.read(cell.records):
            if record.task == index:
                return record.first
        time.sleep(0.002)
    raise CellError("the long task did not begin within 30 s")
