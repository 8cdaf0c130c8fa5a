"""Metrics: a worker's metrics in the text format of Prometheus.

Comes from:  Health and parts of the worker, as snapshots; QueueDepths, which queries the broker.
Goes to:     ``http_status.py``.
Thread:      any.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from qworker.components.receiving.ledger import WorkerState
from qworker.components.status.counters import BUCKETS, Counters
from qworker.components.status.health import Health
from qworker.components.status.queue_depths import QueueDepths
from qworker.components.waiting.inventory import WaitingRequests
from qworker.naming import VERSION
from qworker.process.memory import resident

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Metrics:
    """state, waiting: of the worker. counters: of ended runs."""

    def __init__(
        self,
        health: Health,
        depths: QueueDepths,
        state: WorkerState,
        waiting: WaitingRequests,
        counters: Counters,
    ) -> None:
        self.depths = depths
        self._started = time.time()
        self._health = health
        self._state = state
        self._waiting = waiting
        self._counters = counters

    def render(self) -> bytes:
        """Return the whole page."""
        lines = (*self._lines(), *_queues(self.depths))
        return "".join(line + "\n" for line in lines).encode()

    def _lines(self) -> Iterable[str]:
        health = self._health
        connection = health.listener.connection
        pool, listener, info = health.pool, health.listener, health.pool.info()
        silence = health.silence()
        yield from _family("qworker_info", "gauge", "This worker.",
                           [({"version": VERSION, "worker": health.hostname}, 1)])  # fmt: skip
        yield from _family(
            "qworker_up", "gauge", "Whether the worker accepts tasks.", _one(not health.not_ready())
        )
        yield from _runs(self._counters)
        gauges = (
            ("qworker_tasks_running", "Tasks in the pool, running or about to run.", pool.in_flight()),
            ("qworker_tasks_ready", "Tasks in the worker that wait for a free process.", self._waiting.ready),
            ("qworker_tasks_scheduled", "Tasks in the worker that are not due yet.", self._waiting.scheduled),
            ("qworker_tasks_reserved", "Tasks that the worker holds on lease.", len(self._state.requests)),
            ("qworker_settlements_pending", "Acknowledgements that wait for the broker.", listener.unsettled),
            ("qworker_pool_size", "Configured processes or threads of the pool.", info["max-concurrency"]),
            ("qworker_pool_processes", "Actual processes of the pool.", len(info["processes"])),
        )  # fmt: skip
        for name, text, value in gauges:
            yield from _family(name, "gauge", text, _one(value))
        if silence is not None:
            text = "Time since the broker last answered."
            yield from _family("qworker_broker_silence_seconds", "gauge", text, _one(silence))
        counters = (
            ("qworker_broker_failures_total", "Failed calls to the broker.", connection.failures),
            (
                "qworker_broker_reconnects_total",
                "How often the broker became available again.",
                connection.reconnects,
            ),
            ("qworker_pool_process_starts_total", "Processes started by the pool.", pool.starts),
            (
                "qworker_pool_process_deaths_total",
                "Processes that died early, including those killed by a limit.",
                pool.deaths,
            ),
        )
        for name, text, value in counters:
            yield from _family(name, "counter", text, _one(value))
        yield from _process(self._started, [pid for pid in info["processes"] if pid != os.getpid()])


def _runs(counters: Counters) -> Iterable[str]:
    ends = sorted(counters.ends().items())
    yield from _family("qworker_tasks_total", "counter", "Ended tasks, by kind of end.",
                       [({"task": name, "outcome": how}, number) for (name, how),
                       number in ends])  # fmt: skip
    name = "qworker_task_runtime_seconds"
    counts, total, seconds = counters.runtimes()
    yield from _head(name, "histogram", "Run times of tasks.")
    for bound, number in zip(BUCKETS, counts, strict=True):
        yield _sample(f"{name}_bucket", {"le": repr(bound)}, number)
    yield _sample(f"{name}_bucket", {"le": "+Inf"}, total)
    yield _sample(f"{name}_sum", {}, seconds)
    yield _sample(f"{name}_count", {}, total)


def _queues(depths: QueueDepths) -> Iterable[str]:
    """Render the broker's queues. Unknown values are left out, because 0 would be wrong."""
    found = depths.latest()
    known = found is not None
    yield from _family(
        "qworker_queues_known", "gauge", "Whether the broker reports the state of its queues.", _one(known)
    )
    if found is None:
        return
    figures: list[tuple[str, str, list[int | float | None]]] = [
        ("messages_ready", "Messages waiting in a queue.", [info.ready for info in found])
    ]
    if depths.counts:
        figures += [
            (
                "messages_delayed",
                "Messages in a queue that wait for their due time.",
                [info.delayed for info in found],
            ),
            ("messages_dead", "Dead letters of a queue.", [info.dead for info in found]),
            (
                "oldest_message_seconds",
                "How long the oldest message has waited.",
                [depths.age(info) for info in found],
            ),
        ]
    for name, text, values in figures:
        samples = [
            ({"queue": info.queue}, value)
            for info, value in zip(found, values, strict=True)
            if value is not None
        ]
        yield from _family(f"qworker_queue_{name}", "gauge", text, samples)


def _process(started: float, children: list[int]) -> Iterable[str]:
    """Render Prometheus's standard process metrics for the main process, and the memory of the children."""
    spent = time.process_time()
    yield from _family("process_start_time_seconds", "gauge", "When the worker started, in epoch seconds.",
                       _one(started))  # fmt: skip
    yield from _family(
        "process_cpu_seconds_total", "counter", "Processor time of the main process.", _one(spent)
    )
    own = resident(os.getpid())
    if own is None:  # a system without /proc
        return
    yield from _family("process_resident_memory_bytes", "gauge", "Memory of the main process.", _one(own))
    total = sum(resident(pid) or 0 for pid in children)
    text = "Memory of the pool's processes; shared pages count for each."
    yield from _family("qworker_pool_resident_memory_bytes", "gauge", text, _one(total))


def _one(value: Any) -> list[Sample]:
    return [({}, value)]


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterable[str]:
    yield from _head(name, kind, text)
    for labels, value in samples:
        yield _sample(name, labels, value)


def _head(name: str, kind: str, text: str) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}"
