"""arq on Redis: 100 jobs at a time, looking every 10 ms, for its defaults look twice a second."""

import datetime
from typing import Any

import redis
from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.worker import func

from benchmarks import bodies
from benchmarks.adapters.event_loop import body, wait
from benchmarks.adapters.services import REDIS_URL, STORED


def _function(name: str) -> Any:
    run = body(name)

    async def job(context: Any, *args: Any) -> Any:
        return await run(*args)

    return func(job, name=name, keep_result=3600 if STORED else 0)


class WorkerSettings:
    """What arq's command reads."""

    functions = [_function(name) for name in bodies.TASKS]
    redis_settings = RedisSettings.from_dsn(REDIS_URL)
    max_jobs = 100
    poll_delay = 0.01
    job_completion_wait = 10


_pool: list[ArqRedis] = []


def _producer() -> ArqRedis:
    if not _pool:
        _pool.append(wait(create_pool(WorkerSettings.redis_settings)))
    return _pool[0]


def prepare() -> None:
    """Delete what arq keeps, whose keys all begin alike."""
    with redis.Redis.from_url(REDIS_URL) as client:
        keys = list(client.scan_iter("arq:*", count=1000))
        for start in range(0, len(keys), 1000):
            client.unlink(*keys[start : start + 1000])


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    wait(_producer().enqueue_job(task, *args))


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    instant = datetime.datetime.fromtimestamp(due, datetime.UTC)
    wait(_producer().enqueue_job(task, *args, _defer_until=instant))


finish = prepare
