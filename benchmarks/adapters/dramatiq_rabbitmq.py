"""Dramatiq on RabbitMQ."""

import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from benchmarks import bodies
from benchmarks.adapters.services import QUEUE, RABBITMQ_URL

broker = RabbitmqBroker(url=RABBITMQ_URL)
dramatiq.set_broker(broker)
TASKS = {
    name: dramatiq.actor(actor_name=name, queue_name=QUEUE)(getattr(bodies, name))
    for name in ("noop", "burn", "pause", "due")
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
