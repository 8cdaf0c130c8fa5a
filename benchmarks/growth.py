"""How the cost of a task grows: with messages that wait, with queues, with children, with the size of the
body.

A flat line is what one hopes for. Each point is a cell of its own; the figures are microseconds a task of
wall-clock
time: to publish one, and to run one from a queue that is full.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cell import CONCURRENCY, Cell, CellError
from benchmarks.judgement import ours
from benchmarks.peers import PEERS
from benchmarks.records import Record
from benchmarks.results import Point, Results
from benchmarks.run import RUNS, prepare

OURS = [name for name, peer in PEERS.items() if ours(name) and "noop" in peer.workloads]
"""Those who are measured when nobody else is asked for."""

TASKS = 5_000
BATCH = 500
MOST_WAITING = 1_000_000
LARGEST = 10_000_000
"""Bytes of arguments in one bulk call."""
SECONDS = 240.0
SLOWEST = 10_000.0
"""The longest that one filling may take, or messages a second if that is longer; a peer that needs longer has
no such point."""


@dataclass(frozen=True)
class Curve:
    """`points` along the x axis; `measure` takes a cell and a point and returns figures; `needs` is a
    function of the adapter without which a peer has no such curve."""

    name: str
    title: str
    points: tuple[int, ...]
    measure: Callable[[Cell, int], dict[str, float]]
    needs: str = ""


def _fill(
    cell: Cell, task: str, count: int, *extra: object, queue: int | None = None
) -> tuple[int, int, float]:
    """Enqueue by the quickest means. Returns the base, how many there are, and microseconds for each.

    Raises CellError when it takes too long.
    """
    base = cell.reserve(count)
    room = sum(len(item) for item in extra if isinstance(item, str))
    batch = min(BATCH, max(1, LARGEST // (room + 1))) if "bulk" in cell.peer.workloads else 0
    lane = {} if queue is None else {"queue": queue}
    limit = max(SECONDS, count / SLOWEST)
    answer = cell.ask(
        "fill",
        task=task,
        base=base,
        count=count,
        extra=list(extra),
        batch=batch,
        limit=limit,
        timeout=limit + 60.0,
        **lane,
    )
    if answer["sent"] < count:
        raise CellError(f"only {answer['sent']:,} of {count:,} messages were in after {limit:.0f} s")
    return base, answer["sent"], 1e6 * answer["seconds"] / answer["sent"]


def _drain(cell: Cell, base: int, count: int) -> float:
    """Start the worker and wait for `count` tasks; microseconds a task from the first start to the last
    end."""
    cell.start_worker()
    runs = cell.await_ended(base, count)
    return _each(runs)


def _each(runs: Sequence[Record]) -> float:
    span = max(run.second for run in runs) - min(run.first for run in runs)
    return span / 1e3 / max(1, len(runs) - 1)


def queued(cell: Cell, waiting: int) -> dict[str, float]:
    """The first 5,000 of a queue of `waiting` messages; publishing one more at a time on top of them; and the
    bytes that the broker needs for each, where its adapter can tell."""
    before = cell.ask("storage").get("bytes", 0)
    base, sent, bulk = _fill(cell, "noop", waiting)
    after = cell.ask("storage").get("bytes")
    # Files grow in steps: a few messages say nothing.
    size = {} if after is None or waiting < 100_000 else {"bytes": (after - before) / sent}
    count = min(cell.count(TASKS, least=200), sent)
    more = cell.reserve(1_000)
    one = cell.ask("fill", task="noop", base=more, count=1_000, extra=[], batch=0, limit=SECONDS)
    cell.start_worker()
    runs = cell.await_ended(base, count)
    return {"run": _each(runs), "publish": 1e6 * one["seconds"] / one["sent"], "publish_bulk": bulk, **size}


def queues(cell: Cell, number: int) -> dict[str, float]:
    """5,000 tasks spread over `number` queues that one worker has."""
    share = max(1, cell.count(TASKS, least=200) // number)
    bases = [_fill(cell, "noop", share, queue=queue)[0] for queue in range(number)]
    return {"run": _drain(cell, bases[0], share * number)}


def children(cell: Cell, number: int) -> dict[str, float]:
    """5,000 tasks over `number` child processes."""
    base, sent, _ = _fill(cell, "noop", cell.count(TASKS, least=200))
    return {"run": _drain(cell, base, sent)}


def size(cell: Cell, length: int) -> dict[str, float]:
    """Tasks with an argument of that many bytes; fewer of the large, 100 MB at most."""
    count = min(cell.count(TASKS, least=200), max(20, 100_000_000 // length))
    base, sent, publish = _fill(cell, "sized", count, "x" * length)
    return {"run": _drain(cell, base, sent), "publish_bulk": publish}


CURVES: dict[str, Curve] = {
    curve.name: curve
    for curve in (
        Curve(
            "queued", "messages waiting", (1_000, 10_000, 100_000, 1_000_000, 10_000_000), queued, "send_many"
        ),
        Curve("queues", "queues", (1, 4, 16, 64), queues, "send_many_to"),
        Curve("children", "child processes", (1, 2, 4, 8, 16, 32), children),
        Curve("size", "bytes of an argument", (100, 1_000, 10_000, 100_000, 1_000_000), size),
    )
}

FIGURES = {
    "run": "run one",
    "publish": "publish one",
    "publish_bulk": "publish one, in bulk",
    "bytes": "bytes stored for each",
}
"""What the figures of a point are: microseconds a task, except bytes."""


def execute(peers: Sequence[str], curves: Sequence[str], scale: float, out: Path, minutes: float) -> Results:
    """Measure the curves, and keep `out`/growth.json up to date after each point.

    No point is begun when `minutes` are over; the report names those that were left out.
    """
    results = prepare(peers, 1, scale, out)
    until = time.monotonic() + 60.0 * minutes
    for curve, x, peer in plan(list(results.peers), curves, scale):
        if time.monotonic() > until:
            results.left_out.append(f"{curve.name} at {x:,} {peer}")
            continue
        point = _point(peer, curve, x, scale)
        results.growth.append(point)
        results.save(out / "growth.json")
        print(describe(point), file=sys.stderr, flush=True)
    return results


def plan(peers: Sequence[str], curves: Sequence[str], scale: float) -> Iterator[tuple[Curve, int, str]]:
    """The points in the order they are measured: those that are compared stand close together in time."""
    for name in curves:
        for x in _points(CURVES[name], scale):
            for peer in peers:
                if has(peer, CURVES[name]):
                    yield CURVES[name], x, peer


def _points(curve: Curve, scale: float) -> tuple[int, ...]:
    """A trial leaves out the longest queues, which take minutes to fill; a scale of 10 has the longest."""
    if curve.name != "queued":
        return curve.points
    return tuple(x for x in curve.points if x <= max(curve.points[0], MOST_WAITING * scale))


def has(peer: str, curve: Curve) -> bool:
    """Whether the curve can be measured of that peer."""
    if "noop" not in PEERS[peer].workloads:
        return False
    if curve.name == "children":
        return any("{concurrency}" in part for part in PEERS[peer].command)
    adapter = Path(__file__).parent / "adapters" / f"{PEERS[peer].adapter}.py"
    return f"def {curve.needs}(" in adapter.read_text() if curve.needs else True


def _point(peer: str, curve: Curve, x: int, scale: float) -> Point:
    point = Point(peer, curve.name, float(x))
    concurrency = x if curve.name == "children" else CONCURRENCY
    environment = {"BENCHMARK_QUEUES": str(x)} if curve.name == "queues" else {}
    try:
        with Cell(PEERS[peer], f"growth-{curve.name}", scale, RUNS, concurrency, environment) as cell:
            point.figures = curve.measure(cell, x)
            if cell.lost:
                point.error = f"{cell.lost} of {cell.tasks} tasks did not run in time"
    except CellError as error:
        point.error = str(error)
    return point


def describe(point: Point) -> str:
    """One line for the terminal about a point that is done."""
    head = f"{point.curve:9} {point.x:12,.0f} {point.peer:28}"
    figures = ", ".join(
        f"{FIGURES[name]} {value:,.1f}{'' if name == 'bytes' else ' µs'}"
        for name, value in point.figures.items()
    )
    return f"{head} {figures}{f'  failed: {point.error}' if point.error else ''}"
