"""Redis and Valkey as a broker, in kombu's layout, which stock Celery producers and workers share.

Comes from:  ``broker_url`` ``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://``.
Goes to:     ``sender.py``, ``consumer.py`` and ``admin.py``, which share one database.
Thread:      any.

A message is as durable as the server makes it (``appendonly``). It is there when push returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.results import options_beside
from qworker.transports.forked import forgetful
from qworker.transports.lease import Broker
from qworker.transports.redis.admin import RedisAdmin
from qworker.transports.redis.connection import Links
from qworker.transports.redis.consumer import RedisConsumer
from qworker.transports.redis.database import Database
from qworker.transports.redis.failed import RedisFailed
from qworker.transports.redis.layout import layout
from qworker.transports.redis.registry import RedisRegistry
from qworker.transports.redis.sender import RedisSender
from qworker.transports.redis.url import endpoint

if TYPE_CHECKING:
    from qworker.conf import Settings

_brokers = forgetful()


class RedisBroker(Broker):
    """The broker at *url*. Connects at the first use, not before.

    options: as in ``broker_transport_options``; results: the options of the result store, if it is here too;
    results_expire: for how many seconds it keeps what it has.
    lease_seconds: how long a silent consumer is believed to live. uptime: the clock of the leases, None: the
    server's.
    """

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
        self.url = url
        where = endpoint(url, options, use_ssl)
        keys = layout(where.db, options or {}, results or {}, results_expire)
        self.lowest_first = not keys.scale.translated
        self._links = Links(where)
        database = Database(where, keys, clock, self._links)
        self._consumer = RedisConsumer(database, lease_seconds, uptime)
        self.sender = RedisSender(database, revoke_expires)
        self.consumer = self._consumer
        self.admin = RedisAdmin(database, uptime)
        self.failed = RedisFailed(database)
        self.registry = RedisRegistry(database)
        _brokers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the parent's sockets and leases are not ours."""
        self._links.abandon()
        self._consumer.after_fork()

    def close(self) -> None:
        try:
            self._consumer.close()
        finally:
            self._links.close()


def open_broker(url: str | None, conf: Settings) -> RedisBroker:
    """The Redis broker at *url* with the settings *conf*; it is connected at the first use."""
    return RedisBroker(
        url or "redis://",
        options={"socket_connect_timeout": conf.broker_connection_timeout, **conf.broker_transport_options},
        results=options_beside(conf),
        results_expire=conf.result_expires or None,
        use_ssl=conf.broker_use_ssl,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )
