"""Dramatiq on Redis."""

import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks import bodies
from benchmarks.adapters.services import QUEUE, REDIS_URL, STORED

broker = RedisBroker(url=REDIS_URL)
if STORED:
    broker.add_middleware(Results(backend=RedisBackend(url=REDIS_URL)))
dramatiq.set_broker(broker)
TASKS = {
    name: dramatiq.actor(
        actor_name=name, queue_name=QUEUE, **({"store_results": True} if name == "stored" and STORED else {})
    )(getattr(bodies, name))
    for name in bodies.TASKS
}


def prepare() -> None:
    """Empty the database that is set aside for benchmarks."""
    broker.client.flushdb()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].send(*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`; Dramatiq takes a delay in whole milliseconds."""
    TASKS[task].send_with_options(args=args, delay=max(0, round((due - time.time()) * 1000)))


finish = prepare
