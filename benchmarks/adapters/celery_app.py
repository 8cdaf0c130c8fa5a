"""Celery on the broker that BENCHMARK_BROKER names: Redis, RabbitMQ, SQS, MongoDB, PostgreSQL by the
transport that BENCHMARK_TRANSPORT names (kombu's or ours), or SQLAlchemy over SQLite where it names none."""

import datetime
import os
from typing import Any

from celery import Celery, canvas

from benchmarks import bodies
from benchmarks.adapters import nats_streams, own_database
from benchmarks.adapters.services import (
    BROKER,
    NATS_URL,
    RABBITMQ_URL,
    REDIS_URL,
    SQS_REGION,
    SQS_URL,
    STORED,
    directory,
    drop_mongodb,
    mongodb_url,
    own_name,
    plain_name,
)
from benchmarks.adapters.workflows import workflows
from qworker.transports import register


def _urls() -> dict[str, str]:
    if BROKER == "PostgreSQL":
        url = own_database.url()
        if os.environ["BENCHMARK_TRANSPORT"] == "qworker":
            register()  # we are not installed in Celery's environment
            return {"broker": f"qworker+{url}"}
        return {"broker": f"sqla+{url.replace('postgresql:', 'postgresql+psycopg:')}"}
    if BROKER == "NATS":
        register()
        return {"broker": f"qworker+{NATS_URL}"}
    if BROKER == "SQS":
        return {"broker": SQS_URL}
    if BROKER == "MongoDB":
        return {"broker": mongodb_url(), "backend": mongodb_url()}
    if BROKER:
        broker = RABBITMQ_URL if BROKER == "RabbitMQ" else REDIS_URL
        # Redis keeps RabbitMQ's results too; a worker that keeps none does not connect to it.
        return {"broker": broker, **({"backend": REDIS_URL} if STORED else {})}
    home = directory()
    return {
        "broker": f"sqla+sqlite:///{home / 'celery.db'}",
        "backend": f"db+sqlite:///{home / 'celery_results.db'}",
    }


app = Celery("benchmarks", **_urls())
app.conf.broker_connection_retry_on_startup = True
if BROKER == "SQS":
    app.conf.broker_transport_options = {"region": SQS_REGION, "is_secure": False}
if BROKER == "NATS":
    app.conf.broker_transport_options = {"stream": plain_name()}
if BROKER:
    app.conf.task_default_queue = own_name()
TASKS = {
    name: app.task(name=name, ignore_result=name not in bodies.IN_WORKFLOWS)(getattr(bodies, name))
    for name in {*bodies.TASKS, *bodies.IN_WORKFLOWS}
}
workflow = workflows(TASKS, canvas)


def prepare() -> None:
    """Make the queue, and in SQLite the tables: the workers would race for them otherwise."""
    if BROKER == "PostgreSQL":
        own_database.make()
    elif BROKER not in ("", "MongoDB", "NATS"):
        finish()
    with app.connection_for_write() as connection:
        queue = app.amqp.queues[app.conf.task_default_queue]
        queue(connection.default_channel).declare()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].delay(*args)


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    TASKS[task].apply_async(args, eta=datetime.datetime.fromtimestamp(due, datetime.UTC))


def finish() -> None:
    """Remove what is outside the cell's directory."""
    if BROKER == "PostgreSQL":
        app.pool.force_close_all()
        own_database.drop()
    if BROKER == "MongoDB":
        app.pool.force_close_all()
        drop_mongodb()
    if BROKER == "NATS":
        app.pool.force_close_all()
        nats_streams.delete(plain_name())
    if BROKER == "RabbitMQ":
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(app.conf.task_default_queue)
            connection.default_channel.exchange_delete(app.conf.task_default_queue)
    if BROKER == "Redis" or (BROKER == "RabbitMQ" and STORED):
        import redis

        redis.Redis.from_url(REDIS_URL).flushdb()
