"""taskiq on NATS JetStream, by a consumer that pulls."""

from typing import Any

from taskiq_nats import PullBasedJetStreamBroker

from benchmarks import bodies
from benchmarks.adapters import nats_streams
from benchmarks.adapters.event_loop import body, wait
from benchmarks.adapters.services import NATS_URL, plain_name

broker = PullBasedJetStreamBroker(
    NATS_URL,
    subject=plain_name(),
    stream_name=plain_name(),
    durable=plain_name(),
    pull_consume_batch=100,
    pull_consume_timeout=1.0,
)
TASKS = {name: broker.register_task(body(name), task_name=name) for name in bodies.TASKS}


def prepare() -> None:
    """Connect, and make the stream and its consumer."""
    wait(broker.startup())


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    wait(TASKS[task].kiq(*args))


def finish() -> None:
    """Delete the stream."""
    nats_streams.delete(plain_name())
