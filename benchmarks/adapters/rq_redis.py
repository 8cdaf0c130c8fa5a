"""RQ on Redis. Its workers import the bodies by name, so this module is the producer's only."""

import datetime
from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue

from benchmarks import bodies
from benchmarks.adapters.services import REDIS_URL, STORED

RESULT_SECONDS = 500 if STORED else 0
queue = Queue(connection=Redis.from_url(REDIS_URL))


def prepare() -> None:
    """Empty the database that is set aside for benchmarks."""
    queue.connection.flushdb()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    queue.enqueue(getattr(bodies, task), args=args, result_ttl=RESULT_SECONDS)


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many calls in one pipeline."""
    function = getattr(bodies, task)
    queue.enqueue_many([Queue.prepare_data(function, args=args, result_ttl=RESULT_SECONDS) for args in calls])


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    instant = datetime.datetime.fromtimestamp(due, datetime.UTC)
    queue.enqueue_at(instant, getattr(bodies, task), args=args, result_ttl=RESULT_SECONDS)


finish = prepare
