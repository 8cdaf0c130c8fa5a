"""Where the servers are that some peers need, and which of them this cell uses. Only what is named here is
ever emptied."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

REDIS_URL = os.environ.get("BENCHMARK_REDIS", "redis://127.0.0.1:6379/15")
RABBITMQ_URL = os.environ.get("BENCHMARK_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/")
POSTGRES_URL = os.environ.get("BENCHMARK_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
MARIADB_URL = os.environ.get("BENCHMARK_MARIADB", "mysql://root@127.0.0.1:3306/test")

IRONMQ_URL = os.environ.get("BENCHMARK_IRONMQ", "ironmq+http://benchmarks:t0ken-of-tests@127.0.0.1:8080")
"""``python -m tests.support.ironmq_server`` is one; it needs no emptying, for each cell has a project of its
own."""

NATS_URL = os.environ.get("BENCHMARK_NATS", "nats://127.0.0.1:4222")
DISQUE_URL = os.environ.get("BENCHMARK_DISQUE", "disque://127.0.0.1:7711")
"""``python -m tests.support.disque_server --port 7711`` is one."""
SQS_URL = os.environ.get("BENCHMARK_SQS", "sqs://key:secret@127.0.0.1:9324/")
"""``python -m tests.acceptance.sqs_server --port 9324`` is one."""
SQS_REGION = "us-east-1"
MONGODB_URL = os.environ.get("BENCHMARK_MONGODB", "mongodb://127.0.0.1:27017")
"""Its host alone: each cell has a database of its own."""

QUEUE = os.environ.get("BENCHMARK_NAME", "qworker_benchmarks")
"""Begins the name of every queue in RabbitMQ; name of the database in PostgreSQL and MariaDB, and of the
peers' schema."""

SERVERS = {
    "Redis": REDIS_URL,
    "RabbitMQ": RABBITMQ_URL,
    "PostgreSQL": POSTGRES_URL,
    "MariaDB": MARIADB_URL,
    "IronMQ": IRONMQ_URL,
    "NATS": NATS_URL,
    "Disque": DISQUE_URL,
    "SQS": SQS_URL,
    "MongoDB": MONGODB_URL,
}
PORTS = {
    "redis": 6379,
    "amqp": 5672,
    "postgresql": 5432,
    "mysql": 3306,
    "ironmq+http": 8080,
    "nats": 4222,
    "disque": 7711,
    "sqs": 9324,
    "mongodb": 27017,
}

BROKER = os.environ.get("BENCHMARK_BROKER", "")
"""The server of this cell for adapters that know several: a name in SERVERS, or empty for the embedded
broker."""

STORING = frozenset({"stored", "chain", "chord", "group", "large-chord"})
"""The workloads that keep results."""

STORED = os.environ.get("BENCHMARK_WORKLOAD", "") in STORING
"""Whether this cell keeps results."""


def directory() -> Path:
    """The cell's own directory, which is gone afterwards."""
    return Path(os.environ["BENCHMARK_DIRECTORY"])


def own_name() -> str:
    """A name that no other cell has: what an earlier one left in a server cannot come to this one."""
    return f"{QUEUE}.{directory().name}"


def plain_name() -> str:
    """The same for servers whose names hold no dots."""
    return own_name().replace(".", "-")


def ironmq_url() -> str:
    """The URL of IRONMQ_URL, with a project that no other cell has."""
    scheme, _, rest = IRONMQ_URL.partition("://")
    return f"{scheme}://{own_name()}:{rest.partition(':')[2]}"


def mongodb_url() -> str:
    """The URL of a database that no other cell has."""
    return f"{MONGODB_URL}/{own_name().replace('.', '_')}"


def drop_mongodb() -> None:
    """Drop it."""
    import pymongo

    client: pymongo.MongoClient[dict[str, object]] = pymongo.MongoClient(mongodb_url())
    client.drop_database(client.get_default_database())
    client.close()


def answers(url: str) -> bool:
    """Whether something listens where the URL points."""
    parts = urlsplit(url)
    try:
        with socket.create_connection(
            (parts.hostname or "localhost", parts.port or PORTS[parts.scheme]), 2.0
        ):
            return True
    except OSError:
        return False
