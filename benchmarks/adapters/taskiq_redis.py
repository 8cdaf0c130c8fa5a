"""taskiq on Redis: a list, or a stream where BENCHMARK_TASKIQ says so. Delays need a process more; they are
left out."""

import os
from typing import Any

import redis
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from benchmarks import bodies
from benchmarks.adapters.event_loop import body, wait
from benchmarks.adapters.services import REDIS_URL, STORED

if os.environ.get("BENCHMARK_TASKIQ") == "stream":
    broker = RedisStreamBroker(REDIS_URL, consumer_id="0")
else:
    broker = ListQueueBroker(REDIS_URL)
if STORED:
    broker = broker.with_result_backend(RedisAsyncResultBackend(REDIS_URL, result_ex_time=3600))
TASKS = {name: broker.register_task(body(name), task_name=name) for name in bodies.TASKS}


def prepare() -> None:
    """Empty the database, then connect and make the stream's consumer group."""
    redis.Redis.from_url(REDIS_URL).flushdb()
    wait(broker.startup())


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    wait(TASKS[task].kiq(*args))


def finish() -> None:
    """Empty the database."""
    redis.Redis.from_url(REDIS_URL).flushdb()
