"""qworker on the broker that BENCHMARK_BROKER names; results are kept on the same server where it can keep
them.

Embedded: one SQLite file for messages and results. RabbitMQ keeps no results, so they go to Redis, as the
peers' do.
"""

import datetime
import os
from collections.abc import Sequence
from typing import Any

from benchmarks import bodies
from benchmarks.adapters import nats_streams, own_database
from benchmarks.adapters.services import (
    BROKER,
    DISQUE_URL,
    NATS_URL,
    RABBITMQ_URL,
    REDIS_URL,
    SQS_REGION,
    SQS_URL,
    STORED,
    directory,
    drop_mongodb,
    ironmq_url,
    mongodb_url,
    own_name,
    plain_name,
)
from benchmarks.adapters.workflows import workflows
from qworker import QWorker, canvas

QUEUES = [f"lane{number}" for number in range(int(os.environ.get("BENCHMARK_QUEUES", "0")))]
"""More queues than the usual one, for measuring what they cost."""

_HIDING: dict[str, tuple[str, dict[str, Any]]] = {
    "IronMQ": (ironmq_url(), {}),
    "NATS": (NATS_URL, {"stream": plain_name()}),
    "Disque": (DISQUE_URL, {}),
    "SQS": (SQS_URL, {"region": SQS_REGION}),
}
"""Servers that hide what they give out: URL and options. Names that no other cell has are all we need there,
and only NATS keeps what is left."""
_IN_DATABASE = BROKER in ("PostgreSQL", "MariaDB")


def _settings() -> dict[str, Any]:
    if BROKER == "Redis":
        return {"broker": REDIS_URL, "backend": REDIS_URL}
    if BROKER == "RabbitMQ":
        options = {
            "queue_name_prefix": f"{own_name()}.",
            "confirm_publish": os.environ.get("BENCHMARK_CONFIRM", "1") == "1",
        }
        results = {"backend": REDIS_URL} if STORED else {}
        kind = os.environ.get("BENCHMARK_QUEUE_TYPE", "classic")
        return {
            "broker": RABBITMQ_URL,
            **results,
            "broker_transport_options": options,
            "task_default_queue_type": kind,
        }
    if BROKER in _HIDING:
        url, options = _HIDING[BROKER]
        return {"broker": url, "broker_transport_options": options, "task_default_queue": plain_name()}
    if BROKER == "MongoDB":
        return {"broker": mongodb_url(), "backend": mongodb_url()}
    if _IN_DATABASE:
        return {"broker": own_database.url(), "backend": f"db+{own_database.url()}"}
    return {
        "broker": f"sqlite:///{directory() / 'qworker.db'}",
        "embedded_synchronous": os.environ.get("BENCHMARK_SYNCHRONOUS", "FULL"),
    }


app = QWorker("benchmarks", **_settings(), task_queues=QUEUES or None)
TASKS = {
    name: app.task(name=name, ignore_result=name not in bodies.IN_WORKFLOWS)(getattr(bodies, name))
    for name in {*bodies.TASKS, *bodies.IN_WORKFLOWS}
}
workflow = workflows(TASKS, canvas)


def prepare() -> None:
    """Empty what we are about to use, then look at it, which makes the embedded file or the tables."""
    _empty_redis()
    if _IN_DATABASE:
        own_database.make()
    app.broker.admin.queues()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].delay(*args)


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many calls in one transaction."""
    TASKS[task].apply_many(calls)


def send_many_to(queue: int, task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """The same, to one of QUEUES."""
    TASKS[task].apply_many(calls, queue=QUEUES[queue])


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].apply_async(args, eta=datetime.datetime.fromtimestamp(due, datetime.UTC))


def send_many_at(due: float, task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many calls for `due` in one transaction."""
    TASKS[task].apply_many(calls, eta=datetime.datetime.fromtimestamp(due, datetime.UTC))


def storage() -> dict[str, int]:
    """Bytes that the broker stores, and what it has not cleaned up; nothing for servers that do not tell."""
    if _IN_DATABASE:
        return own_database.storage()
    if BROKER == "Redis":
        import redis

        return {"bytes": redis.Redis.from_url(REDIS_URL).info("memory")["used_memory"]}
    files = list(directory().glob("qworker.db*"))
    return {"bytes": sum(path.stat().st_size for path in files)} if files else {}


def left() -> int:
    """How many messages the broker has."""
    return sum(info.ready + info.delayed + info.leased for info in app.broker.admin.queues())


def finish() -> None:
    """Remove what is outside the cell's directory."""
    if BROKER == "RabbitMQ":
        _delete_queues()
    if BROKER == "NATS":
        app.broker.close()
        nats_streams.delete(plain_name())
    _empty_redis()
    if BROKER == "MongoDB":
        app.broker.close()
        drop_mongodb()
    if _IN_DATABASE:
        app.broker.close()
        own_database.drop()


def _empty_redis() -> None:
    """Only where this cell uses it."""
    if BROKER != "Redis" and not (BROKER == "RabbitMQ" and STORED):
        return
    import redis

    redis.Redis.from_url(REDIS_URL).flushdb()


def _delete_queues() -> None:
    from kombu import Connection

    with Connection(RABBITMQ_URL, connect_timeout=5) as connection:
        for queue in {app.conf.task_default_queue, *QUEUES, "qworker.dead", "qworker.revoked"}:
            connection.default_channel.queue_delete(f"{own_name()}.{queue}")
