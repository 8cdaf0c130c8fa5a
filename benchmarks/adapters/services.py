"""Where the servers are that some peers need. Only the queues named here are ever emptied."""

import os
import socket
from urllib.parse import urlsplit

REDIS_URL = os.environ.get("BENCHMARK_REDIS", "redis://127.0.0.1:6379/15")
RABBITMQ_URL = os.environ.get("BENCHMARK_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/")
POSTGRES_URL = os.environ.get("BENCHMARK_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")

QUEUE = "qworker_benchmarks"
"""Name of the RabbitMQ queue and of the PostgreSQL schema."""

SERVERS = {"Redis": REDIS_URL, "RabbitMQ": RABBITMQ_URL, "PostgreSQL": POSTGRES_URL}
PORTS = {"redis": 6379, "amqp": 5672, "postgresql": 5432}


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
