"""Where the servers are that some peers need. Only the queues named here are ever emptied."""

import os

REDIS_URL = os.environ.get("BENCHMARK_REDIS", "redis://127.0.0.1:6379/15")
RABBITMQ_URL = os.environ.get("BENCHMARK_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/")
POSTGRES_URL = os.environ.get("BENCHMARK_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")

QUEUE = "qworker_benchmarks"
"""Name of the RabbitMQ queue and of the PostgreSQL schema."""
