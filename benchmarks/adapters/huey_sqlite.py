"""Huey on SQLite: `SqliteHuey` with its defaults, results stored when a task returns something."""

import datetime
import os
from pathlib import Path
from typing import Any

from huey import SqliteHuey

from benchmarks import bodies

huey = SqliteHuey(filename=str(Path(os.environ["BENCHMARK_DIRECTORY"]) / "huey.db"))
TASKS = {name: huey.task(name=name)(getattr(bodies, name)) for name in bodies.TASKS}


def prepare() -> None:
    """Empty the queue."""
    huey.flush()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task](*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].schedule(args, eta=datetime.datetime.fromtimestamp(due))
