"""Dramatiq on RabbitMQ; results, where they are kept, are in Redis."""

import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks import bodies
from benchmarks.adapters.services import QUEUE, RABBITMQ_URL, REDIS_URL, STORED

broker = RabbitmqBroker(url=RABBITMQ_URL)
if STORED:
    broker.add_middleware(Results(backend=RedisBackend(url=REDIS_URL)))
dramatiq.set_broker(broker)
TASKS = {
    name: dramatiq.actor(
        actor_name=name, queue_name=QUEUE, **({"store_results": True} if name == "stored" and STORED else {})
    )(getattr(bodies, name))
    for name in bodies.TASKS
}


def finish() -> None:
    """Delete the queues, the delayed and the dead one too."""
    for queue in (QUEUE, f"{QUEUE}.DQ", f"{QUEUE}.XQ"):
        broker.channel.queue_delete(queue)


def prepare() -> None:
    """Delete what an earlier run left, then declare the queues again."""
    finish()
    broker.declare_queue(QUEUE, ensure=True)


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].send(*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`; Dramatiq takes a delay in whole milliseconds."""
    TASKS[task].send_with_options(args=args, delay=max(0, round((due - time.time()) * 1000)))
