"""Celery on SQLAlchemy and SQLite: messages and results in two files of the cell's directory."""

import datetime
import os
from pathlib import Path
from typing import Any

from celery import Celery

from benchmarks import bodies

_directory = Path(os.environ["BENCHMARK_DIRECTORY"])
app = Celery(
    "benchmarks",
    broker=f"sqla+sqlite:///{_directory / 'celery.db'}",
    backend=f"db+sqlite:///{_directory / 'celery_results.db'}",
)
app.conf.broker_connection_retry_on_startup = True
TASKS = {
    name: app.task(name=name, ignore_result=name != "stored")(getattr(bodies, name))
    for name in ("noop", "stored", "burn", "pause", "due")
}


def prepare() -> None:
    """Make the tables: both processes would race for it otherwise."""
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare(queue=app.conf.task_default_queue)


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].delay(*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].apply_async(args, eta=datetime.datetime.fromtimestamp(due, datetime.UTC))
