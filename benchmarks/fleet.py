"""What a fleet of idle workers costs its broker, and how soon one of them starts a task.

Comes from:  ``python -m benchmarks fleet``.
Goes to:     processes of ``fleet_host``, each with 50 workers at most; a table.
Thread:      one.

First nothing is called, then one task after another. The server's processor time is what Redis reports, or
that of all processes of the server's name on this machine, so nothing else may use it meanwhile.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import SERVER_PROCESSES, seconds_of
from benchmarks.summary import percentile
from qworker import QWorker

HOSTED = 50
"""Workers in one process."""
SETTLING = 3.0
GAP = 0.02
"""Seconds between two calls."""


@dataclass
class Count:
    """What a server has done so far. cpu: seconds. requests: Redis's commands, also those of its
    scripts; None if it does not count them. connections: how many are open."""

    cpu: float
    requests: int | None = None
    connections: int | None = None


@dataclass
class Fleet:
    """*workers* on the broker of *url*.

    - idle_cpu: milliseconds a second of the server, while nothing is called; idle_requests: a second.
    - connections: of all workers together.
    - cpu: the server's milliseconds for a call; requests: for a call.
    - latency: milliseconds from a call to the start of the task, the 50th and the 99th percentile.
    - lost: tasks that did not start.
    """

    url: str
    workers: int
    idle_cpu: float
    idle_requests: float | None
    connections: int | None
    cpu: float
    requests: float | None
    latency: tuple[float, float]
    lost: int


def make_app(url: str) -> QWorker:
    """Return an app without results, with the queue of this benchmark."""
    return QWorker(
        "fleet",
        set_as_current=False,
        broker_url=url,
        broker_connection_retry_on_startup=False,
        result_backend="disabled://",
        task_default_queue="benchmark-fleet",
    )


def execute(urls: Sequence[str], sizes: Sequence[int], seconds: float, calls: int, out: Path) -> list[Fleet]:
    """Measure fleets of these *sizes* on each of *urls*, and write *out*/fleet.json. seconds: how long
    nothing is called."""
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for url in urls:
        for size in sizes:
            found.append(_measure(url, size, seconds, calls))
            print(*_row(found[-1]), file=sys.stderr, flush=True)
            (out / "fleet.json").write_text(json.dumps([asdict(each) for each in found], indent=1))
    return found


def _measure(url: str, size: int, seconds: float, calls: int) -> Fleet:
    app = make_app(url)
    call = app.signature("stamp")
    with _hosts(url, size) as hosts, _counter(url) as count:
        time.sleep(SETTLING)
        before, started = count(), time.monotonic()
        time.sleep(seconds)
        idle, span = count(), time.monotonic() - started
        called: dict[str, int] = {}
        for number in range(calls):
            called[str(number)] = time.monotonic_ns()
            call.apply_async((str(number),))
            time.sleep(GAP)
        time.sleep(1.0)
        after, busy = count(), time.monotonic() - started - span
    starts = {name: at for host in hosts for name, at in host.starts()}
    waits = [(starts[name] - at) / 1e6 for name, at in called.items() if name in starts]
    app.close()

    def rate(what: str) -> float | None:
        ends = [getattr(each, what) for each in (before, idle)]
        return None if None in ends else (ends[1] - ends[0]) / span

    def each(what: str) -> float | None:
        ends, idly = [getattr(each, what) for each in (idle, after)], rate(what)
        return None if None in ends or idly is None else (ends[1] - ends[0] - idly * busy) / calls

    return Fleet(
        url.partition("://")[0],
        size,
        1e3 * (rate("cpu") or 0.0),
        rate("requests"),
        idle.connections,
        1e3 * (each("cpu") or 0.0),
        each("requests"),
        (percentile(waits, 50), percentile(waits, 99)),
        calls - len(waits),
    )


class _Host:
    """A process with *size* workers, from number *first*."""

    def __init__(self, url: str, first: int, size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.fleet_host", url, str(first), str(size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        """Return once all its workers wait for messages."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "ready\n":
            raise SystemExit("the workers do not start: see above")

    def end(self) -> None:
        """Stop the workers, and read what they started."""
        self._told, _ = self._process.communicate()

    def starts(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the start, in monotonic nanoseconds, of each task that ran."""
        for line in self._told.splitlines():
            name, at = line.split()
            yield name, int(at)


@contextmanager
def _hosts(url: str, size: int) -> Iterator[list[_Host]]:
    hosts = [_Host(url, first, min(HOSTED, size - first)) for first in range(0, size, HOSTED)]
    try:
        for host in hosts:
            host.ready()
        yield hosts
    finally:
        for host in hosts:
            host.end()


@contextmanager
def _counter(url: str) -> Iterator[Any]:
    """Return a function that counts what the server of *url* has done."""
    scheme = url.partition("://")[0]
    process = SERVER_PROCESSES.get(scheme, "")
    if scheme == "redis":
        import redis

        server = redis.Redis.from_url(url)
        own = server.client_id()

        def count() -> Count:
            others = [each for each in server.client_list() if each["id"] != str(own)]
            told = server.info()
            cpu = told["used_cpu_user"] + told["used_cpu_sys"]
            return Count(cpu, told["total_commands_processed"], len(others))

        yield count
        server.close()
    elif scheme == "postgresql":
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:

            def count() -> Count:
                # Its statistics arrive up to ten seconds late, too late to count the statements.
                ((connections,),) = connection.execute(
                    """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
                ).fetchall()
                return Count(seconds_of(process), None, connections)

            yield count
    else:
        yield lambda: Count(seconds_of(process))


HEAD = (
    "broker", "workers", "connections", "idle: CPU, ms/s", "idle: requests/s", "a call: CPU, ms",
    "a call: requests", "p50, ms", "p99, ms",
)  # fmt: skip


def _row(each: Fleet) -> list[str]:
    def shown(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:,.{digits}f}"

    return [
        each.url,
        f"{each.workers:,}",
        shown(each.connections, 0),
        shown(each.idle_cpu, 1),
        shown(each.idle_requests, 1),
        shown(each.cpu, 2),
        shown(each.requests, 1),
        *(shown(value, 2) for value in each.latency),
        *([f"{each.lost} lost"] if each.lost else ()),
    ]


def document(found: Sequence[Fleet]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", f"|---|{'--:|' * (len(HEAD) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_row(each))} |" for each in found)])
