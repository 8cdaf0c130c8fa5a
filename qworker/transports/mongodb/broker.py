"""MongoDB as the broker, in collections of a database that may have other contents too.

Comes from:  ``broker_url`` ``mongodb://…`` or ``mongodb+srv://…``.
Goes to:     ``sender.py``, ``consumer.py`` and ``admin.py``, which share one client.
Thread:      any; the client has a pool of connections that is not shared across a fork.

A message is in the journals of the majority when push returns. Leases use the clock of the server. Due times
are compared with the clock of the consumer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pymongo import ReplaceOne

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import ConfigurationError
from qworker.process.forked import forgetful
from qworker.transports.capabilities import Capabilities
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.lease import Broker, Kind, Revocations, Workers
from qworker.transports.mongodb.admin import MongoAdmin
from qworker.transports.mongodb.consumer import MongoConsumer
from qworker.transports.mongodb.layout import Names
from qworker.transports.mongodb.letters import MongoLetters
from qworker.transports.mongodb.sender import MongoSender
from qworker.transports.mongodb.server import Collections, Server
from qworker.transports.registry import Registry

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "MongoDB",
    ("mongodb", "mongodb+srv"),
    accepted="acknowledged by the majority of the members, from their journals (`w` and `journal` in the "
    "URL say otherwise); of a push of several, all or none",
    redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
    "(worker_lease_seconds)",
    eta="a field; fetched when due",
    priority="0 to 9",
    fanout="a collection, read by all workers, including those that start later",
    dead_letters="a collection",
    failed_tasks="a collection",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="Results are stored in the transaction of the ack on a replica set, and before it on a single "
    "server, where a worker that dies in between runs the task again. A change stream wakes idle "
    "workers on a replica set; on a single server they poll four times a second. The oldest comes "
    "first if the clocks of publishers agree.",
)

_brokers = forgetful()


class MongoBroker(Broker):
    """The broker in a database. Connects on first use.

    options: of PyMongo's client. lease_seconds: how long a silent consumer is considered alive. uptime: a
    clock for leases, None: the server's. results: the collection of results.
    """

    sender: MongoSender
    consumer: MongoConsumer
    missing = None

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        connect_timeout: float = 4.0,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        results: str = Names().result,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self._server = Server(url, options or {}, connect_timeout, Names(result=results))
        consumer = MongoConsumer(self._server, clock, lease_seconds, uptime)
        kinds: tuple[Kind, ...] = ("dead", "failed")
        sender = MongoSender(self._server, clock, revoke_expires, consumer.published)
        admin = MongoAdmin(self._server, uptime, consumer.published)
        super().__init__(
            url,
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: MongoLetters(kind, self._server, clock, consumer.published) for kind in kinds},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin,
            by_queue=None,
            registry=MongoRegistry(self._server),
            lowest_first=False,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: pending messages and leases belong to the parent."""
        self._server.abandon()
        self.sender.after_fork()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._server.close()


def open_broker(url: str | None, conf: Settings) -> MongoBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    if not url:
        raise ConfigurationError("broker_url names no server", setting="broker_url")
    refuse_setting(
        conf.broker_use_ssl, "for MongoDB it is set in the URL, with ?tls=true&tlsCAFile=/path/to/ca.pem"
    )
    return MongoBroker(
        url,
        options=conf.broker_transport_options,
        connect_timeout=conf.broker_connection_timeout,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
        results=conf.mongodb_backend_settings.get("taskmeta_collection", Names().result),
    )


# -- The registry of the MongoDB broker --


class MongoRegistry(Registry):
    """See Registry."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def entries(self) -> dict[str, float | None]:
        def work(found: Collections) -> dict[str, float | None]:
            return {row["_id"]: row["expires"] for row in found.registry.find()}

        return self._server.run(work)

    def put(self, entries: Mapping[str, float | None]) -> None:
        def work(found: Collections) -> None:
            found.registry.bulk_write(
                [
                    ReplaceOne({"_id": entry}, {"expires": expires}, upsert=True)
                    for entry, expires in entries.items()
                ]
            )

        if entries:
            self._server.run(work)

    def drop(self, entries: Iterable[str]) -> None:
        gone = list(entries)

        def work(found: Collections) -> None:
            found.registry.delete_many({"_id": {"$in": gone}})

        if gone:
            self._server.run(work)
