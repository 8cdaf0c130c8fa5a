"""MongoDB as the broker, in collections of a database that may have other contents too.

Comes from:  ``broker_url`` ``mongodb://…`` or ``mongodb+srv://…``.
Goes to:     ``sender.py`` and ``consumer.py``, which share one client with the administration.
Thread:      any; the client has a pool of connections that is not shared across a fork.

A message is in the journals of the majority when push returns. Leases use the clock of the server. Due times
are compared with the clock of the consumer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pymongo import ReplaceOne

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import ConfigurationError
from qworker.process.forked import forgetful
from qworker.process.owner_files import died
from qworker.transports.capabilities import Capabilities
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.lease import (
    Admin,
    Broker,
    Delayed,
    Kind,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    Revocations,
    StoredResults,
    Workers,
)
from qworker.transports.mongodb.claim import next_due
from qworker.transports.mongodb.consumer import MongoConsumer
from qworker.transports.mongodb.layout import DELAYED, LEASED, READY, RECORD_OF_ALL, Document, Names
from qworker.transports.mongodb.letters import MongoLetters
from qworker.transports.mongodb.reclaim import silent_for
from qworker.transports.mongodb.sender import MongoSender
from qworker.transports.mongodb.server import Collections, Server, clock_of
from qworker.transports.presence import Presence, from_text
from qworker.transports.registry import Registry

if TYPE_CHECKING:
    from qworker.conf import Settings

_STATES: Mapping[int, MessageState] = {READY: "ready", DELAYED: "delayed", LEASED: "leased"}
_ORDERS: Mapping[MessageState, tuple[int, list[tuple[str, int]]]] = {
    "ready": (READY, [("u", 1), ("_id", 1)]),
    "delayed": (DELAYED, [("due", 1), ("_id", 1)]),
    "leased": (LEASED, [("_id", 1)]),
}


class MongoAdmin(Admin, Listing, Peeking, Delayed, StoredResults):
    """uptime: the clock for leases, None: the server's."""

    purges_leased = False

    def __init__(
        self,
        server: Server,
        uptime: Callable[[], float] | None,
        published: Callable[[], None],
    ) -> None:
        self._server = server
        self._uptime = uptime
        self._published = published

    def queues(self) -> list[QueueInfo]:
        group = {"_id": {"q": "$q", "s": "$s"}, "count": {"$sum": 1}, "oldest": {"$min": "$sent"}}
        dead = {"_id": "$q", "count": {"$sum": 1}}

        def work(found: Collections) -> tuple[list[Document], list[Document]]:
            return list(found.message.aggregate([{"$group": group}])), list(
                found.dead.aggregate([{"$group": dead}])
            )

        messages, letters = self._server.run(work)
        infos: dict[str, QueueInfo] = {}

        def note(queue: str, **values: Any) -> None:
            infos[queue] = infos.get(queue, QueueInfo(queue))._replace(**values)

        for each in messages:
            name = _STATES.get(each["_id"]["s"])
            if name is not None:
                note(each["_id"]["q"], **{name: each["count"]})
                if name == "ready":
                    note(each["_id"]["q"], oldest=each["oldest"])
        for each in letters:
            note(each["_id"], dead=each["count"])
        return sorted(infos.values(), key=lambda info: info.queue)

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._server.run(lambda found: next_due(found, queues))

    def may_have_due_joins(self, now: float) -> bool:
        return False  # joins are not kept here

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        code, order = _ORDERS[state]

        where: Document = {"q": queue, "s": code}
        if code == LEASED:
            where["owner"] = {"$exists": True}  # there is an index for it

        def work(found: Collections) -> tuple[list[Document], dict[int, str]]:
            rows = list(found.message.find(where, {"body": 0}, sort=order, limit=limit))
            owners = {row["owner"] for row in rows if "owner" in row}
            names = found.owner.find({"_id": {"$in": list(owners)}}, {"name": 1}) if owners else ()
            return rows, {each["_id"]: each["name"] for each in names}

        rows, names = self._server.run(work) if limit > 0 else ([], {})
        return [
            Peeked(
                queue, state, -row["u"], row["due"], row["sent"], row["n"], row["headers"],
                names.get(row.get("owner", 0), ""),
            )
            for row in rows
        ]  # fmt: skip

    def purge(self, queue: str) -> int:
        waiting = [{"q": queue, "s": state} for state in (READY, DELAYED)]  # each has an index of its own
        return self._server.run(
            lambda found: sum(int(found.message.delete_many(which).deleted_count) for which in waiting)
        )

    def flush_delayed(self, queue: str) -> int:
        change = {"$set": {"s": READY, "due": None}}
        delayed = {"q": queue, "s": DELAYED}
        count = self._server.run(lambda found: int(found.message.update_many(delayed, change).modified_count))
        self._published()
        return count

    def workers(self) -> list[Presence]:
        lease_now = None if self._uptime is None else self._uptime()

        def work(found: Collections) -> tuple[list[Document], float]:
            return list(found.owner.find({"_id": {"$ne": RECORD_OF_ALL}}, sort=[("_id", 1)])), clock_of(
                found.database
            )

        owners, now = self._server.run(work)
        return [
            from_text(
                each.get("presence") or "",
                Presence(
                    each["name"], each["pid"], tuple(each["queues"]), each["concurrency"], each["started"]
                ),
            )
            for each in owners
            if each["concurrency"] > 0
            and silent_for(each, now, lease_now) < each["lease"]
            and not died(each["lock"], each["boot"])
        ]


CAPABILITIES = Capabilities(
    "MongoDB",
    ("mongodb", "mongodb+srv"),
    accepted="in the journals of the majority of the members (unless `w` or `journal` in the URL says "
    "otherwise); of many messages sent together, all or none are accepted",
    redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
    "(worker_lease_seconds)",
    eta="a field; fetched when due",
    priority="0 to 9",
    fanout="a collection, read by all workers, including those that start later",
    dead_letters="a collection",
    failed_tasks="a collection",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="Results are stored in the transaction of the ack on a replica set, and before it on a single "
    "server, where the task runs again if its worker dies in between. A change stream wakes idle "
    "workers on a replica set; on a single server they poll four times a second. Messages are taken "
    "oldest first if the clocks of the publishers agree.",
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
