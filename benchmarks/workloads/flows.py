"""Workflows: how long chains and chords take from the call to the last end, how fast groups go out and come
back, and the memory of who calls a large one. Every value is checked."""

from typing import Any

from benchmarks.cell import Cell, CellError
from benchmarks.summary import median

REPEATS = 5


def chord(cell: Cell) -> dict[str, float]:
    """Milliseconds from the call of a chord of 1,000 no-ops to the end of its body, which gets the list."""
    return {"chord_time": _times(cell, "chord", 1_000)}


def chain(cell: Cell) -> dict[str, float]:
    """Milliseconds from the call of a chain of 100 no-ops to the end of the last."""
    return {"chain_time": _times(cell, "chain", 100)}


def _times(cell: Cell, kind: str, full: int) -> float:
    cell.warm_worker()
    count = cell.count(full)
    _call(cell, kind, 20)
    return median([_until_the_last(cell, _call(cell, kind, count)) for _ in range(REPEATS)])


def group(cell: Cell) -> dict[str, float]:
    """Members of a group of 10,000 no-ops a second: as they are published; as their values, which are all
    there, are collected."""
    cell.warm_worker()
    count = cell.count(10_000, least=200)
    _call(cell, "group", 20)
    answers = [_call(cell, "group", count) for _ in range(3)]
    return {
        "group_publish_rate": count / median([answer["published"] for answer in answers]),
        "group_collect_rate": count / median([answer["collected"] for answer in answers]),
    }


def large_chord(cell: Cell) -> dict[str, float]:
    """A chord of 50,000 no-ops: members a second from the call to the end of the body; the memory that its
    publisher took for each at most, and for half as many."""
    cell.warm_worker()
    count = cell.count(50_000, least=1_000)
    _call(cell, "chord", 20)
    cell.dismiss_producer()  # one whose memory has never been larger
    half = _call(cell, "chord", count // 2)
    cell.dismiss_producer()
    whole = _call(cell, "chord", count)
    return {
        "large_chord_rate": count / _until_the_last(cell, whole) * 1e3,
        "large_chord_memory": whole["memory"] / count / 1e3,
        "half_chord_memory": half["memory"] / (count // 2) / 1e3,
    }


def _call(cell: Cell, kind: str, count: int) -> dict[str, Any]:
    """Have a workflow called and its value collected; what the producer answers, and the number of its first
    task. Raises CellError for a wrong value."""
    base = cell.reserve(count + 1)
    answer = cell.ask("workflow", kind=kind, base=base, count=count, patience=120.0)
    last = {"chain": base + count - 1, "chord": base + count, "group": base + count - 1}[kind]
    runs = cell.await_ended(base, last + 1 - base)
    if answer["value"] != answer["expected"]:
        raise CellError(f"the value of a {kind} of {count} is {answer['value']}, not {answer['expected']}")
    return {**answer, "ended": max(run.second for run in runs if run.task == last)}


def _until_the_last(cell: Cell, answer: dict[str, Any]) -> float:
    return float(answer["ended"] - answer["called"]) / 1e6
