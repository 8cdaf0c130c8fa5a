"""RabbitMQ through py-amqp: durable queue, persistent messages."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.adapters.services import RABBITMQ_URL
from benchmarks.limits.limit import BODY, QUEUE, Limit, rate

GROUP = "RabbitMQ"
FILLED = 20_000
BATCH = 500


def _connect() -> Any:
    import amqp

    parts = urlsplit(RABBITMQ_URL)
    connection = amqp.Connection(
        f"{parts.hostname or '127.0.0.1'}:{parts.port or 5672}",
        userid=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        virtual_host=unquote(parts.path[1:]) or "/",
        connect_timeout=5,
        read_timeout=10,
    )
    connection.connect()
    return connection


def _on_channel(loop: Callable[[Any, Any, float], float]) -> Callable[[Path, float], float]:
    """A measurement that is given a connection, a channel with an empty queue, and seconds."""

    def measure(directory: Path, seconds: float) -> float:
        connection = _connect()
        try:
            channel = connection.channel()
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True, auto_delete=False)
            try:
                return loop(connection, channel, seconds)
            finally:
                channel.close()  # With its consumers, which would be told that their queue is gone.
                connection.channel().queue_delete(QUEUE)
        finally:
            connection.close()

    return measure


def _publisher(channel: Any) -> Callable[[], None]:
    import amqp

    def publish() -> None:
        channel.basic_publish(amqp.Message(BODY, delivery_mode=2), routing_key=QUEUE)

    return publish


def _unconfirmed(connection: Any, channel: Any, seconds: float) -> float:
    return rate(_publisher(channel), 1, seconds)


def _confirmed(batch: int) -> Callable[[Any, Any, float], float]:
    def loop(connection: Any, channel: Any, seconds: float) -> float:
        sent = confirmed = 0

        def heard(tag: int, multiple: bool) -> None:
            nonlocal confirmed
            confirmed = max(confirmed, tag)

        channel.confirm_select()
        channel.events["basic_ack"].add(heard)
        publish = _publisher(channel)

        def step() -> None:
            nonlocal sent
            for _ in range(batch):
                publish()
            sent += batch
            while confirmed < sent:
                connection.drain_events(timeout=10)

        return rate(step, batch, seconds)

    return loop


def _consume(connection: Any, channel: Any, seconds: float) -> float:
    """Acks each message, as Celery does, at a prefetch of 200. The queue holds so much, which bounds the
    time."""
    publish = _publisher(channel)
    full = max(1_000, round(FILLED * min(1.0, seconds)))
    for _ in range(full):
        publish()
    while channel.queue_declare(QUEUE, passive=True).message_count < full:
        time.sleep(0.01)
    seen = 0

    def took(message: Any) -> None:
        nonlocal seen
        seen += 1
        channel.basic_ack(message.delivery_tag)

    channel.basic_qos(0, 200, False)
    began = time.monotonic()
    channel.basic_consume(QUEUE, callback=took)
    while seen < full:
        connection.drain_events(timeout=10)
    return seen / (time.monotonic() - began)


def _through(connection: Any, channel: Any, seconds: float) -> float:
    """A message published and delivered to a consumer that waits for it."""
    seen = sent = 0

    def took(message: Any) -> None:
        nonlocal seen
        seen += 1

    channel.basic_consume(QUEUE, no_ack=True, callback=took)
    publish = _publisher(channel)

    def step() -> None:
        nonlocal sent
        publish()
        sent += 1
        while seen < sent:
            connection.drain_events(timeout=10)

    return rate(step, 1, seconds)


LIMITS = (
    Limit("RabbitMQ publish, unconfirmed", GROUP, _on_channel(_unconfirmed)),
    Limit("RabbitMQ publish, confirmed one at a time", GROUP, _on_channel(_confirmed(1)), ("enqueue_rate",)),
    Limit(
        f"RabbitMQ publish, confirmed {BATCH} at a time",
        GROUP,
        _on_channel(_confirmed(BATCH)),
        ("bulk_rate",),
    ),
    Limit("RabbitMQ consume and ack each, prefetch 200", GROUP, _on_channel(_consume), ("noop_rate",)),
    Limit("RabbitMQ publish to delivery, one at a time", GROUP, _on_channel(_through), ("latency_p50",)),
)
