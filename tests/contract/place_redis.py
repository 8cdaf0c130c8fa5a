"""The Redis broker as a place for the contract suite: one prefix of keys for each directory.

Comes from:  lease_places.
Goes to:     the Redis server of the test run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from qworker.testing.contract import Place
from qworker.transports.lease import Broker
from qworker.transports.redis.result_rows import STATUS_SUFFIX, TASK_PREFIX
from tests.servers import require


class RedisPlace(Place):
    """in_order: released and delayed messages lose their position. steps: Redis distinguishes four steps of
    priority."""

    in_order = False
    cannot = dict.fromkeys(
        ("test_sweep_deletes_expired_results", "test_sweep_works_in_portions"),
        "the server deletes expired results",
    )
    steps = (0, 1, 4, 7)
    """The lowest priority of each step, least urgent first."""
    examples = 20
    server = "redis"
    keys = "test.%s."
    """The prefix of keys."""

    def __init__(self, directory: Path) -> None:
        self.url = self.results_url = require(self.server)
        self.prefix = self.keys % hashlib.sha1(str(directory).encode()).hexdigest()[:12]
        self.client = client_of(self.url, self.prefix)

    def open(self, **options: Any) -> Broker:
        from qworker.transports.redis.broker import RedisBroker

        named = {"global_keyprefix": self.prefix}
        return RedisBroker(
            self.url, options={**named, **options.pop("options", {})}, results=named, **options
        )

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        key = f"{self.prefix}{TASK_PREFIX}{task_id}"
        payload = self.client.get(key)
        if payload is None:
            return None
        status = self.client.get(key + STATUS_SUFFIX) or payload.split(b'"')[3]
        return status.decode(), payload

    def count(self) -> int:
        total = 0
        for key in self.all_keys():
            kind = self.client.type(key)
            if kind == b"list":
                total += self.client.llen(key)
            elif key.startswith(f"{self.prefix}qworker.delayed.".encode()):
                total += self.client.zcard(key)
        return total + self.client.hlen(f"{self.prefix}unacked")

    def all_keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"{self.prefix}*", count=10_000))

    def lose(self) -> None:
        keys = self.all_keys()
        if keys:
            self.client.delete(*keys)

    def clear(self) -> None:
        self.lose()
        self.client.close()


class ValkeyPlace(RedisPlace):
    """Valkey, a fork of Redis."""

    examples = 6  # the code that RedisPlace searches
    server = "valkey"


class RedisClusterPlace(RedisPlace):
    """A cluster of three nodes: one hash tag for each directory."""

    examples = 6  # the code that RedisPlace searches
    server = "redis-cluster"
    keys = "{test.%s}."


def client_of(url: str, key: str) -> Any:
    """Return redis-py's client for the server at *url*; for a cluster, of the node that has *key*."""
    import redis

    if "+cluster" not in url:
        return redis.Redis.from_url(url.replace("valkey:", "redis:"))
    nodes: Any = redis.RedisCluster.from_url(url.replace("+cluster", ""))
    try:
        node = nodes.get_node_from_key(key)
        return redis.Redis(host=node.host, port=node.port)
    finally:
        nodes.close()
