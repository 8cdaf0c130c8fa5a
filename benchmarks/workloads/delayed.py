"""Tasks with an ETA: how late or early they run, what holding them costs, whether they hold up others."""

import time

from benchmarks.cell import Cell, CellError
from benchmarks.summary import percentile

RATE = 2_500.0
ENQUEUEING = 30.0
"""Seconds that the producer may take for all of them."""


def eta(cell: Cell) -> dict[str, float]:
    """Up to 50,000 tasks of distinct ETA, 2,500 a second for 20 s, the worker running all the while."""
    tree = cell.warm_worker()
    # Small lots tell how long enqueueing will take, so that all are in the queue before the first is due; the
    # first of them warms the producer up.
    for sample in (100, cell.count(1_000, least=100)):
        trial = cell.reserve(sample)
        first = time.time() + 1.0
        seconds = cell.ask("schedule", task="due", base=trial, count=sample, first=first, rate=0)["seconds"]
        cell.await_ended(trial, sample)
    time.sleep(1.0)
    before = tree.pss_bytes()

    # A slow producer gets fewer, or the cell would take many minutes.
    count = min(cell.count(50_000), max(200, int(ENQUEUEING * sample / seconds)))
    base = cell.reserve(count)
    lead = 4.0 + 1.8 * seconds / sample * count
    first = time.time() + lead
    answer = cell.ask("schedule", task="due", base=base, count=count, first=first, rate=RATE)
    left = first - time.time()
    if left < 0:
        raise CellError(
            "enqueueing took so long that tasks were due before the last was in: the machine is too busy"
        )
    time.sleep(max(0.0, left / 2))
    held = tree.pss_bytes()
    patience = max(0.0, first - time.time()) + count / RATE + 20.0
    runs = cell.await_ended(base, count, quiet=patience, limit=patience + 60.0)
    late = [(run.first - run.second) / 1e6 for run in runs]
    return {
        "eta_tasks": float(count),
        "eta_late_p50": percentile(late, 50),
        "eta_late_p99": percentile(late, 99),
        "eta_earliest": min(late),
        "eta_accept_rate": count / answer["seconds"],
        "eta_lead_left": left,
        "eta_pss_before": before / 1e6,
        "eta_pss_growth": (held - before) / 1e6,
    }


def behind_eta(cell: Cell) -> dict[str, float]:
    """Milliseconds that one plain task waits right behind 500 tasks that are due in 5 minutes."""
    cell.warm_worker()
    ahead = cell.count(500)
    base = cell.reserve(ahead)
    cell.ask("schedule", task="due", base=base, count=ahead, first=time.time() + 300.0, rate=0)
    plain = cell.reserve(1)
    called = cell.ask("send", task="noop", args=[plain])["called"]
    runs = cell.await_ended(plain, 1, quiet=60.0)
    return {"behind_eta": (runs[0].first - called) / 1e6}
