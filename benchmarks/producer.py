"""The enqueueing process of one cell, run in the peer's environment: `python -m benchmarks.producer ADAPTER`.

Takes one JSON object a line on standard input ({"do": name, ...}), answers one a line on standard output, and
ends at end of file. What the adapter prints goes to standard error. Loops that are timed run here, so that
nothing of the harness stands between two calls.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

from benchmarks.bodies import RECORD


def _records() -> int:
    try:
        return os.stat(os.environ["BENCHMARK_RECORDS"]).st_size // RECORD.size
    except FileNotFoundError:
        return 0


def _await_records(expected: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _records() < expected:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def prepare(adapter: ModuleType) -> dict[str, Any]:
    """Make what the peer needs. Answers whether it has a bulk call."""
    adapter.prepare()
    return {"bulk": hasattr(adapter, "send_many")}


def fill(
    adapter: ModuleType,
    task: str,
    base: int,
    count: int,
    extra: list[Any],
    batch: int,
    limit: float,
    queue: int | None = None,
) -> dict[str, Any]:
    """Enqueue `count` calls, one at a time when `batch` is 0; stops after `limit` seconds. Answers how many,
    how long.

    queue: the number of one of the adapter's additional queues, where it has some.
    """
    send_many: Any = getattr(adapter, "send_many", None)
    if queue is not None:
        send_many = partial(adapter.send_many_to, queue)
    indices = iter(range(base, base + count))
    sent = 0
    began = time.monotonic()
    while sent < count and time.monotonic() - began < limit:
        # The clock is read once in so many calls, to cost nothing.
        chunk = list(islice(indices, batch or 200))
        if batch:
            send_many(task, [(index, *extra) for index in chunk])
        else:
            for index in chunk:
                adapter.send(task, index, *extra)
        sent += len(chunk)
    return {"sent": sent, "seconds": time.monotonic() - began}


def send(adapter: ModuleType, task: str, args: list[Any]) -> dict[str, Any]:
    """Enqueue one call. Answers the monotonic time just before it, in nanoseconds."""
    called = time.monotonic_ns()
    adapter.send(task, *args)
    return {"called": called}


def one_by_one(
    adapter: ModuleType,
    task: str,
    base: int,
    count: int,
    extra: list[Any],
    gap: float,
    patience: float,
    limit: float,
) -> dict[str, Any]:
    """Enqueue a call, wait for its record, rest about `gap` seconds, and again. Answers the times of the
    calls."""
    calls: list[int] = []
    began = time.monotonic()
    for index in range(base, base + count):
        seen = _records()
        called = time.monotonic_ns()
        adapter.send(task, index, *extra)
        calls.append(called)
        if not _await_records(seen + 1, patience) or time.monotonic() - began > limit:
            break
        # A varying rest, lest it keeps step with a poll of the peer.
        time.sleep(gap * (0.5 + (index * 0.618) % 1.0))
    return {"calls": calls}


def schedule(
    adapter: ModuleType, task: str, base: int, count: int, first: float, rate: float
) -> dict[str, Any]:
    """Enqueue `count` calls due from `first` (epoch seconds) on, `rate` a second; a rate of 0 makes all due
    at once."""
    began = time.monotonic()
    for offset in range(count):
        due = first + (offset / rate if rate else 0.0)
        adapter.send_at(due, task, base + offset, due)
    return {"seconds": time.monotonic() - began}


def fill_for(adapter: ModuleType, count: int, seconds: float, batch: int) -> dict[str, Any]:
    """Enqueue *count* calls due in *seconds*, *batch* at a time."""
    due = time.time() + seconds
    for first in range(0, count, batch):
        adapter.send_many_at(due, "noop", [(index,) for index in range(first, min(first + batch, count))])
    return {}


def storage(adapter: ModuleType) -> dict[str, Any]:
    """Answer how much the broker stores, by what is counted; nothing where the adapter cannot tell."""
    found: dict[str, Any] = getattr(adapter, "storage", dict)()
    return found


def workflow(adapter: ModuleType, kind: str, base: int, count: int, patience: float) -> dict[str, Any]:
    """Call a workflow and collect its value. Answers the monotonic time just before the call, how long that
    took, the value (of a group their sum) and what it is to be, how long it took to collect, and by how many
    bytes the memory of this process grew at most until it was published, the workflow itself included.

    The values of a group are collected once all are there, else nobody could tell that from waiting.
    """
    before, seen = _peak(), _records()
    made, expected = adapter.workflow(kind, base, count)
    called = time.monotonic_ns()
    result = made.apply_async()
    published = time.monotonic_ns()
    memory = _peak(reset=False) - before
    if kind == "group":
        _await_records(seen + count, patience)
        time.sleep(0.3)
    began = time.monotonic_ns()
    value = result.get(timeout=patience)
    collected = time.monotonic_ns() - began
    return {
        "called": called,
        "published": (published - called) / 1e9,
        "collected": collected / 1e9,
        "value": sum(value) if kind == "group" else value,
        "expected": expected,
        "memory": memory,
    }


def _peak(reset: bool = True) -> int:
    """The most bytes that this process has held at a time since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
            switch.write("5")
    with open("/proc/self/status", encoding="ascii") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def await_kept(adapter: ModuleType, patience: float) -> dict[str, Any]:
    """Wait until what the last calls returned is kept. Answers the monotonic time of that, in nanoseconds."""
    until = time.monotonic() + patience
    while not adapter.kept():
        if time.monotonic() > until:
            raise TimeoutError(f"results are not kept within {patience:.0f} s")
        time.sleep(0.01)
    return {"at": time.monotonic_ns()}


def await_empty(adapter: ModuleType, patience: float) -> dict[str, Any]:
    """Wait until the broker has no message left. Answers the monotonic time of that, in nanoseconds."""
    until = time.monotonic() + patience
    while adapter.left():
        if time.monotonic() > until:
            raise TimeoutError(f"messages are left after {patience:.0f} s")
        time.sleep(0.01)
    return {"at": time.monotonic_ns()}


def finish(adapter: ModuleType) -> dict[str, Any]:
    """Remove what `prepare` made outside the cell's directory."""
    getattr(adapter, "finish", lambda: None)()
    return {}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        prepare,
        fill,
        fill_for,
        send,
        one_by_one,
        schedule,
        storage,
        workflow,
        await_kept,
        await_empty,
        finish,
    )
}


def main() -> None:
    """Serve commands until the harness closes our input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    adapter = importlib.import_module(f"benchmarks.adapters.{sys.argv[1]}")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = COMMANDS[request.pop("do")](adapter, **request)
        except Exception as error:  # noqa: BLE001 - the benchmark is told of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
