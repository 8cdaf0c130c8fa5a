"""Redis through redis-py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.adapters.services import REDIS_URL
from benchmarks.limits.limit import BODY, QUEUE, Limit, rate

GROUP = "Redis"
BATCH = 100


def _loop(
    make: Callable[[Any], Callable[[], object]], each: int, filled: int = 0
) -> Callable[[Path, float], float]:
    def measure(directory: Path, seconds: float) -> float:
        import redis

        client = redis.Redis.from_url(REDIS_URL, socket_timeout=5.0)
        try:
            client.delete(QUEUE)
            step = make(client)
            for _ in range(filled // BATCH):
                client.lpush(QUEUE, *[BODY] * BATCH)
            return rate(step, each, seconds)
        finally:
            client.delete(QUEUE)
            client.close()

    return measure


def _pipelined(client: Any) -> Callable[[], object]:
    def step() -> None:
        with client.pipeline(transaction=False) as pipe:
            for _ in range(BATCH):
                pipe.lpush(QUEUE, BODY)
            pipe.execute()

    return step


LIMITS = (
    Limit("Redis PING, a round trip", GROUP, _loop(lambda client: client.ping, 1), ("latency_p50",)),
    Limit(
        "Redis LPUSH, one at a time",
        GROUP,
        _loop(lambda client: lambda: client.lpush(QUEUE, BODY), 1),
        ("enqueue_rate",),
    ),
    Limit(f"Redis LPUSH, pipelines of {BATCH}", GROUP, _loop(_pipelined, BATCH)),
    Limit(
        "Redis LPUSH, 100 values to a command",
        GROUP,
        _loop(lambda client: lambda: client.lpush(QUEUE, *[BODY] * BATCH), BATCH),
        ("bulk_rate",),
    ),
    Limit(
        "Redis RPOP, one at a time",
        GROUP,
        _loop(lambda client: lambda: client.rpop(QUEUE) is not None, 1, filled=20_000),
    ),
    Limit(
        f"Redis RPOP, {BATCH} at a time",
        GROUP,
        _loop(lambda client: lambda: bool(client.rpop(QUEUE, BATCH)), BATCH, filled=100_000),
        ("noop_rate",),
    ),
)
