"""qworker on its embedded broker: one SQLite file for messages and results."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bodies
from qworker import QWorker

app = QWorker(
    "benchmarks",
    broker=f"sqlite:///{Path(os.environ['BENCHMARK_DIRECTORY']) / 'qworker.db'}",
    embedded_synchronous=os.environ.get("BENCHMARK_SYNCHRONOUS", "FULL"),
)
TASKS = {
    name: app.task(name=name, ignore_result=name != "stored")(getattr(bodies, name))
    for name in ("noop", "stored", "burn", "pause", "due")
}


def prepare() -> None:
    """Make the file."""
    app.broker.queues()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].delay(*args)


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many calls in one transaction."""
    TASKS[task].apply_many(calls)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].apply_async(args, eta=datetime.datetime.fromtimestamp(due, datetime.UTC))
