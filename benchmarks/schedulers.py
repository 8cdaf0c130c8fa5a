"""Schedulers: what it costs to look after many entries, and how late their calls are made.

Each point is a cell of its own: one scheduler with so many entries, nearly all of them due in months, and
some due at the beginning of every minute. Calls are seen from the broker, where no worker takes them: a
process beside the scheduler asks every millisecond how many there are.
"""

import datetime
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.adapters import own_database
from benchmarks.adapters.services import REDIS_URL
from benchmarks.cell import Cell, CellError
from benchmarks.peer import Peer
from benchmarks.peers import PEERS
from benchmarks.processes import Tree
from benchmarks.run import RUNS, machine, unreachable
from benchmarks.scheduler_app import MARKED, QUEUE
from benchmarks.summary import median, percentile

POINTS = (10, 100, 1_000, 10_000, 100_000)
MOST_AT_ONCE = 1_000
"""Entries that are due every minute, where there are as many."""
LIMIT = 120.0
"""Seconds in which a scheduler has to make its first call; one that needs longer has no such point."""
IDLE_SECONDS = 15.0
BURST_SECONDS = 50.0
"""For so long the calls of a minute are waited for. What is not there then counts as so late."""
REST = 2.0
"""Seconds between a start, what is measured of idleness, and the beginning of a minute."""
LEADERS = 5
"""How many leaders are killed for one figure."""
_QWORKER = ("{python}", "-m", "qworker", "beat", "-A", "benchmarks.scheduler_app", "-l", "WARNING")


def _scheduler(name: str, command: Sequence[str]) -> Peer:
    peer = PEERS[name]
    environment = {**peer.environment, "BENCHMARK_SCHEDULER": peer.package}
    return replace(peer, command=tuple(command), environment=environment)


SCHEDULERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        _scheduler("qworker", _QWORKER),
        _scheduler("qworker-redis", _QWORKER),
        _scheduler("qworker-postgresql", _QWORKER),
        _scheduler("qworker-mariadb", _QWORKER),
        _scheduler(
            "celery-redis", ("{bin}/celery", "-A", "benchmarks.scheduler_app", "beat", "-l", "WARNING")
        ),
        _scheduler("rq", ("{bin}/rq", "cron", "-l", "WARNING", "-u", REDIS_URL, "benchmarks.scheduler_app")),
    )
}
"""The rows of the other benchmarks, with the command of the scheduler in place of the worker's."""

SHARED = tuple(name for name, peer in SCHEDULERS.items() if peer.package == "qworker")
"""Of which several may run at once, and one takes over from another."""


@dataclass(frozen=True)
class Scheduled:
    """What one cell gave. `error` tells why figures are missing."""

    peer: str
    entries: int
    figures: dict[str, float]
    error: str | None = None


@dataclass
class Found:
    """One run of this benchmark, kept as schedulers.json."""

    started: str
    machine: dict[str, str]
    peers: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    points: list[Scheduled] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(paths: Sequence[Path]) -> Found:
    """Read what `save` wrote, several runs as one.

    Of a point that several have, each figure is the least: what a busy machine adds to it is no cost of the
    scheduler.
    """
    runs = [json.loads(path.read_text()) for path in paths]
    whole = Found(**{**runs[-1], "points": []})
    whole.peers = {name: version for run in runs for name, version in run["peers"].items()}
    points: dict[tuple[str, int], Scheduled] = {}
    for each in (Scheduled(**point) for run in runs for point in run["points"]):
        known = points.setdefault((each.peer, each.entries), each)
        figures = each.figures | known.figures
        least = {name: min(value, each.figures.get(name, value)) for name, value in figures.items()}
        points[each.peer, each.entries] = replace(each, figures=least, error=known.error and each.error)
    whole.points = list(points.values())
    return whole


# -- the broker, seen from outside --

KEYS = {"qworker": "{}\x06\x169", "celery": "{}", "rq": "rq:queue:{}"}
"""The list in Redis of those of a queue's messages that have no priority."""


def counter(cell: Cell) -> Callable[[str], int]:
    """What says how many messages a queue of the cell's broker has."""
    group = cell.peer.group
    if group == "Redis":
        import redis

        client: Any = redis.Redis.from_url(REDIS_URL)
        key = KEYS[cell.peer.package]
        return lambda queue: int(client.llen(key.format(queue)))
    if group == "embedded":
        path = cell.directory / "qworker.db"
        statement = "SELECT count(*) FROM message WHERE queue = ?"

        def count(queue: str) -> int:
            try:
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
                    return int(file.execute(statement, (queue,)).fetchone()[0])
            except sqlite3.OperationalError:  # there is no file, or no table in it: nothing was sent yet
                return 0

        return count
    cursor = own_database.connect(own_database.url(group)).cursor()
    statement = "SELECT count(*) FROM qworker_message WHERE queue = %s"

    def count(queue: str) -> int:
        cursor.execute(statement, (queue,))
        return int(cursor.fetchone()[0])

    return count


def arrivals(
    count: Callable[[], int], wanted: int, until: float, clock: Callable[[], float] = time.time
) -> list[float]:
    """The instants at which new messages were first seen, `wanted` of them, or fewer when it is `until`.

    count: how many there are now, with those that were there before.
    """
    before = count()
    seen: list[float] = []
    while len(seen) < wanted:
        there, now = count() - before, clock()
        seen += [now] * (min(there, wanted) - len(seen))
        if now >= until:
            break
        time.sleep(0.001)
    return seen


def await_call(tree: Tree, count: Callable[[], int], before: int, seconds: float) -> float:
    """When there are more messages than `before`, in seconds since the process began.

    Raises CellError when that takes longer than `seconds`, or the process has ended.
    """
    until = time.monotonic() + seconds
    while count() <= before:
        if not tree.alive():
            raise CellError(f"the scheduler ended:\n{tree.log.read_text(errors='replace')[-2000:]}")
        if time.monotonic() > until:
            raise CellError(f"no call within {seconds:.0f} s")
        time.sleep(0.001)
    return time.monotonic() - tree.started / 1e9


# -- cells --


def _started(cell: Cell, marker: bool) -> Tree:
    """A scheduler of the cell. marker: it has an entry more, which is due all the time."""
    cell.extra["BENCHMARK_MARKER"] = "1" if marker else ""
    return cell.start_worker()


def look_after(cell: Cell, minutes: int) -> Iterator[tuple[str, float]]:
    """The figures of one point, as they come: those that are there when another fails are kept."""
    burst = int(cell.extra["BENCHMARK_BURST"])
    count = counter(cell)
    if minutes:
        _await_minute_begun()
    for figure in ("first_start", "start"):
        before = count(MARKED)
        tree = _started(cell, marker=True)
        yield figure, await_call(tree, partial(count, MARKED), before, LIMIT)
        taken = time.monotonic() - tree.started / 1e9
        tree.stop(timeout=60.0)
        tree.kill()
    tree = _started(cell, marker=False)
    time.sleep(taken + REST)
    seconds = cell.seconds(IDLE_SECONDS, least=1.0)
    if minutes:
        boundary = _next_minute(seconds + REST)
        _sleep_until(boundary - seconds - REST)
    before = count(QUEUE)
    used, busy, began = tree.cpu_seconds(), _busy_seconds(), time.monotonic()
    time.sleep(seconds)
    used, busy, taken = tree.cpu_seconds() - used, _busy_seconds() - busy, time.monotonic() - began
    yield "idle_cpu", 100.0 * used / taken
    yield "others_cpu", 100.0 * (busy - used) / taken
    yield "memory", tree.pss_bytes() / 1e6
    if not minutes:
        return
    if count(QUEUE) != before:
        raise CellError("the calls of a minute take longer than a minute")
    late: list[float] = []
    spreads: list[float] = []
    used = tree.cpu_seconds()
    for _ in range(minutes):
        _sleep_until(boundary - 0.5)
        seen = arrivals(partial(count, QUEUE), burst, boundary + BURST_SECONDS)
        there = [1e3 * (each - boundary) for each in seen]
        late += there + [1e3 * BURST_SECONDS] * (burst - len(there))
        spreads.append(seen[-1] - seen[0] if len(seen) == burst else BURST_SECONDS)
        boundary += 60.0
        if len(seen) < burst:
            break
    yield "burst_cpu", (tree.cpu_seconds() - used) / len(spreads)
    yield "late_p50", percentile(late, 50)
    yield "late_p99", percentile(late, 99)
    yield "late_most", max(late)
    yield "spread", median(spreads)
    if len(seen) < burst:
        missing = f"{burst - len(seen):,} of {burst:,} calls"
        raise CellError(f"{missing} were not made within {BURST_SECONDS:.0f} s")


def take_over(cell: Cell, times: int) -> Iterator[tuple[str, float]]:
    """Kill the leader of two; seconds until a call is made again, of an entry that is due all the time."""
    count = counter(cell)
    leader = _started(cell, marker=True)
    seconds: list[float] = []
    try:
        taken = await_call(leader, partial(count, MARKED), 0, LIMIT)
        for _ in range(times):
            follower = _started(cell, marker=True)
            time.sleep(taken + REST)
            killed = time.monotonic()
            leader.process.kill()
            leader.process.wait()
            await_call(follower, partial(count, MARKED), count(MARKED), LIMIT)
            seconds.append(time.monotonic() - killed)
            leader = follower
    finally:
        leader.kill()
    yield "takeover", median(seconds)
    yield "takeover_most", max(seconds)


def _busy_seconds() -> float:
    """Processor time that everything on this machine has used so far."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _next_minute(room: float) -> float:
    """The first beginning of a minute that is at least `room` seconds away."""
    return (time.time() + room) // 60 * 60 + 60


def _await_minute_begun() -> None:
    """Wait for the next minute when little of this one is left."""
    if time.time() % 60 > 30:
        _sleep_until(_next_minute(0.0) + 1.0)


def _sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.time()))


# -- a run --


def execute(
    peers: Sequence[str], points: Sequence[int], minutes: int, leaders: int, scale: float, out: Path
) -> Found:
    """Measure every point, and keep `out`/schedulers.json up to date after each."""
    out.mkdir(parents=True, exist_ok=True)
    found = Found(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), machine())
    found.skipped = unreachable(peers)
    wanted = [name for name in peers if name not in found.skipped]
    for name in wanted:
        environments.ensure(SCHEDULERS[name])
        found.peers[name] = environments.version(SCHEDULERS[name])
    failed: dict[str, str] = {}
    for entries, name in ((entries, name) for entries in points for name in wanted):
        if name in failed:
            _keep(found, Scheduled(name, entries, {}, failed[name]), out)
            continue
        point = _measured(
            name, entries, min(entries, MOST_AT_ONCE), scale, partial(look_after, minutes=minutes)
        )
        if not point.figures:
            failed[name] = f"not tried: there was {point.error} with {entries:,}"
        _keep(found, point, out)
    for name in (name for name in wanted if leaders and name in SHARED):
        point = _measured(name, min(10_000, max(points)), 0, scale, partial(take_over, times=leaders))
        _keep(found, point, out)
    return found


def _measured(
    name: str, entries: int, burst: int, scale: float, measure: Callable[[Cell], Iterator[tuple[str, float]]]
) -> Scheduled:
    """One point. burst: how many of the entries are due every minute."""
    environment = {"BENCHMARK_ENTRIES": str(entries), "BENCHMARK_BURST": str(burst)}
    figures: dict[str, float] = {}
    error = None
    try:
        with Cell(SCHEDULERS[name], "schedulers", scale, RUNS, environment=environment) as cell:
            cell.dismiss_producer()
            for figure, value in measure(cell):
                figures[figure] = value
    except CellError as failure:
        error = str(failure)
    return Scheduled(name, entries, figures, error)


def _keep(found: Found, point: Scheduled, out: Path) -> None:
    same = [each for each in found.points if (each.peer, each.entries) == (point.peer, point.entries)]
    for each in same:
        found.points.remove(each)
        point = replace(point, figures=each.figures | point.figures, error=each.error or point.error)
    found.points.append(point)
    found.save(out / "schedulers.json")
    figures = ", ".join(f"{name} {value:,.4g}" for name, value in point.figures.items())
    failed = f"  {point.error}" if point.error else ""
    print(f"{point.entries:9,} {point.peer:20} {figures}{failed}", file=sys.stderr, flush=True)
