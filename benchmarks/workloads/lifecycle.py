"""A worker at rest, and how it begins and ends."""

import time

from benchmarks import records
from benchmarks.cell import Cell
from benchmarks.summary import median
from benchmarks.workloads.waiting import await_begun

REPEATS = 3


def idle(cell: Cell) -> dict[str, float]:
    """Memory, processor time and disk writes of the whole tree, warm and with nothing to do, over 10 s."""
    tree = cell.warm_worker()
    cell.dismiss_producer()
    time.sleep(3.0)
    window = cell.seconds(10.0, least=3.0)
    processor, written, began = tree.cpu_seconds(), tree.written_bytes(), time.monotonic()
    time.sleep(window)
    elapsed = time.monotonic() - began
    return {
        "idle_pss": tree.pss_bytes() / 1e6,
        "idle_processes": float(len(tree.members())),
        "idle_cpu": 100.0 * (tree.cpu_seconds() - processor) / elapsed,
        "idle_written": (tree.written_bytes() - written) / 1e3 * 20.0 / elapsed,
    }


def start(cell: Cell) -> dict[str, float]:
    """Seconds from exec to the start of the first body, a task waiting in the queue."""
    taken = []
    for _ in range(REPEATS):
        index = cell.reserve(1)
        cell.ask("send", task="noop", args=[index])
        tree = cell.start_worker()
        runs = cell.await_ended(index, 1, settle=0.0)
        taken.append((runs[0].first - tree.started) / 1e9)
        tree.kill()
    return {"start_seconds": median(taken)}


def stop(cell: Cell) -> dict[str, float]:
    """Seconds from the end of the running task to the exit of the worker, told to stop 0.2 s into a task of 1
    s.

    A worker that kills the task has no such figure; `stop_finished` is the share of tasks that were let
    finish.
    """
    beyond, finished = [], 0
    for _ in range(REPEATS):
        tree = cell.warm_worker(tasks=10)
        index = cell.reserve(1)
        cell.ask("send", task="pause", args=[index, 1.0])
        begun = await_begun(cell, index)
        time.sleep(max(0.0, 0.2 - (time.monotonic_ns() - begun) / 1e9))
        tree.stop(cell.peer.stop_signal)
        ended = time.monotonic_ns()
        runs = records.ended(records.read(cell.records), index, 1)
        cell.tasks += 1
        if runs:
            finished += 1
            beyond.append((ended - runs[0].second) / 1e9)
        tree.kill()
    figures = {"stop_finished": finished / REPEATS}
    if beyond:
        figures["stop_beyond"] = median(beyond)
    return figures
