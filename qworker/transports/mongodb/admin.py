"""Administration of a MongoDB broker: queues, dead letters and workers.

Comes from:  the command line and other tools, by ``Broker.admin``.
Goes to:     the collections of ``layout.py``.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qworker.process.owner_files import died
from qworker.transports.lease import (
    Admin,
    Delayed,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    StoredResults,
)
from qworker.transports.mongodb.claim import next_due
from qworker.transports.mongodb.layout import DELAYED, LEASED, READY, RECORD_OF_ALL, Document
from qworker.transports.mongodb.reclaim import silent_for
from qworker.transports.mongodb.server import Collections, Server, clock_of
from qworker.transports.presence import Presence, from_text

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
