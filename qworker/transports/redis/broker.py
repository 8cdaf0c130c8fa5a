"""Redis and Valkey as a broker, in kombu's format, which stock Celery producers and workers share.

Comes from:  ``broker_url`` ``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://``,
             ``redis+cluster://``.
Goes to:     ``sender.py``, ``consumer.py`` and ``admin.py``, which share one database.
Thread:      any.

A message is as durable as the server makes it (``appendonly``). It is stored when push returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.results import options_beside
from qworker.process.forked import forgetful
from qworker.transports.capabilities import Capabilities
from qworker.transports.lease import Broker, Kind, Revocations, Workers
from qworker.transports.redis.admin import RedisAdmin
from qworker.transports.redis.connection import Links, checked, pack
from qworker.transports.redis.consumer import RedisConsumer
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import layout
from qworker.transports.redis.letters import RedisLetters
from qworker.transports.redis.sender import RedisSender
from qworker.transports.redis.url import endpoint
from qworker.transports.registry import Registry

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "Redis, Valkey",
    ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "redis+cluster", "rediss+cluster"),
    accepted="the server has it; on its disk according to its `appendfsync` (everysec: up to 1 s may "
    "be lost in a power failure)",
    redelivered="when the worker's lease expires (worker_lease_seconds)",
    eta="a sorted set; fetched when due",
    priority="0 to 9",
    fanout="kept for all workers, including those that start later",
    dead_letters="kept in the server",
    failed_tasks="kept in the server",
    delivery_count="counted for every death",
    note="A failover loses what was not replicated. `maxmemory-policy` must be noeviction. On Redis Cluster "
    "all keys of an app are in one slot, so on one node; see [Redis Cluster]"
    "(../how-to/redis.md#redis-cluster).",
)

_brokers = forgetful()


class RedisBroker(Broker):
    """The broker at *url*. Connects on first use.

    options: as in ``broker_transport_options``; results: the options of the result store, if it is here too;
    results_expire: how many seconds results are kept.
    lease_seconds: how long a silent consumer is considered alive. uptime: the clock for leases, None: the
    server's.
    """

    consumer: RedisConsumer
    missing = None

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        results_expire: float | None = None,
        use_ssl: Any = None,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        where = endpoint(url, options, use_ssl)
        keys = layout(where, options or {}, results or {}, results_expire)
        self._links = Links(where)
        database = Database(where, keys, clock, self._links)
        kinds: tuple[Kind, ...] = ("dead", "failed")
        sender = RedisSender(database, revoke_expires)
        consumer = RedisConsumer(database, lease_seconds, uptime)
        admin = RedisAdmin(database, uptime)
        super().__init__(
            url,
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: RedisLetters(kind, database) for kind in kinds},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin if keys.has_results else None,
            by_queue=None,
            registry=RedisRegistry(database),
            lowest_first=not keys.scale.translated,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: sockets and leases belong to the parent."""
        self._links.abandon()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.close()
        finally:
            self._links.close()


def open_broker(url: str | None, conf: Settings) -> RedisBroker:
    """Return the Redis broker at *url* with the settings *conf*; it connects on first use."""
    return RedisBroker(
        url or "redis://",
        options={"socket_connect_timeout": conf.broker_connection_timeout, **conf.broker_transport_options},
        results=options_beside(conf),
        results_expire=conf.result_expires or None,
        use_ssl=conf.broker_use_ssl,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )


# -- The registry of the Redis broker --

NEVER = b"never"


class RedisRegistry(Registry):
    """database: its links may be used by any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = database.layout.key("registry")

    def entries(self) -> dict[str, float | None]:
        found = self._ask("HGETALL", self._key)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {entry.decode(): None if value == NEVER else float(value) for entry, value in pairs}

    def put(self, entries: Mapping[str, float | None]) -> None:
        fields: list[Any] = []
        for entry, expires in entries.items():
            fields += (entry, NEVER if expires is None else repr(expires))
        if fields:
            self._ask("HSET", self._key, *fields)

    def drop(self, entries: Iterable[str]) -> None:
        fields = list(entries)
        if fields:
            self._ask("HDEL", self._key, *fields)

    def _ask(self, *command: Any) -> Any:
        with self._database.links.lent() as link:
            (reply,) = link.ask(pack(command))
            return checked(link, reply)
