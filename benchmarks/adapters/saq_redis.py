"""SAQ on Redis. It passes keyword arguments only."""

import math
from collections.abc import Callable, Coroutine
from typing import Any

import redis
from saq import Queue

from benchmarks import bodies
from benchmarks.adapters.event_loop import body, wait
from benchmarks.adapters.services import REDIS_URL, STORED

TTL = 600 if STORED else -1
"""Seconds that a job is kept when it is done; below 0 it is deleted at once."""


def _function(name: str) -> tuple[str, Callable[..., Coroutine[Any, Any, Any]]]:
    run = body(name)

    async def job(context: Any, *, args: list[Any]) -> Any:
        return await run(*args)

    return name, job


queue = Queue.from_url(REDIS_URL)
settings = {
    "queue": queue,
    "functions": [_function(name) for name in bodies.TASKS],
    # Without it a stop cancels what runs, to be tried again; it waits so long even when nothing runs.
    "shutdown_grace_period_s": 2,
}


def prepare() -> None:
    """Empty the database that is set aside for benchmarks."""
    redis.Redis.from_url(REDIS_URL).flushdb()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    wait(queue.enqueue(task, args=args, ttl=TTL, timeout=60))


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`, which SAQ takes in whole seconds: the next one, so that none is early."""
    wait(queue.enqueue(task, args=args, ttl=TTL, timeout=60, scheduled=math.ceil(due)))


finish = prepare
