"""Huey on Redis: `RedisHuey` with its defaults."""

import datetime
from typing import Any

from huey import RedisHuey

from benchmarks import bodies
from benchmarks.adapters.services import REDIS_URL

huey = RedisHuey(url=REDIS_URL)
TASKS = {name: huey.task(name=name)(getattr(bodies, name)) for name in bodies.TASKS}


def prepare() -> None:
    """Empty the database that is set aside for benchmarks."""
    huey.storage.conn.flushdb()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task](*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].schedule(args, eta=datetime.datetime.fromtimestamp(due))


finish = prepare
