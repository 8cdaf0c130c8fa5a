"""Publishing to MongoDB, and revoking tasks.

Comes from:  ``publishing/publisher.py``, through ``MongoBroker.sender``.
Goes to:     the collections of messages, of batches and of revocations.
Thread:      any; threads that publish at the same time are served together by one of them.

One message is one insert. Several are inserted invisibly, followed by the document of their *batch*: this one
write publishes them. The publisher then makes them visible; if it dies, any worker does (``reclaim.py``), and
messages without a batch are deleted later. So all are published or none, even if the server has no
transactions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pymongo

from qworker.clock import Clock
from qworker.errors import QWorkerError
from qworker.process.crash_points import crash_point
from qworker.process.group_commit import GroupCommit
from qworker.transports.lease import Envelope, Revocation, Revoking, Sender
from qworker.transports.mongodb.layout import ARRIVING, DELAYED, READY, RECORD_OF_ALL, Document, new_tags
from qworker.transports.mongodb.server import Collections, Server

LEAST_SECONDS = 0.05


class MongoSender(Sender, Revoking):
    """revoke_expires: seconds for which a revocation is valid. published: called after each push."""

    def __init__(
        self, server: Server, clock: Clock, revoke_expires: float, published: Callable[[], None]
    ) -> None:
        self._server = server
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._published = published
        self._commits = GroupCommit(server, self._store, server.safe_url)

    def after_fork(self) -> None:
        """In a forked child: pending messages belong to the parent's threads."""
        self._commits.forget()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if envelopes:
            self._commits.push(envelopes, timeout)
            self._published()

    def _documents(self, envelopes: Sequence[Envelope]) -> list[Document]:
        now = self._clock.now()
        return [
            {
                "_id": tag,
                "q": message.queue,
                "s": DELAYED if message.due is not None and message.due > now else READY,
                "u": -message.priority,
                "due": message.due,
                "n": 0,
                "r": False,
                "p": 0,
                "sent": now,
                "headers": message.headers,
                "properties": message.properties,
                "body": message.body,
            }
            for tag, message in zip(new_tags(len(envelopes)), envelopes, strict=True)
        ]

    def _store(self, envelopes: Sequence[Envelope], deadline: float) -> Exception | None:
        """Store all by *deadline*, and return None; or return the error if none is stored."""
        documents = self._documents(envelopes)

        def work(found: Collections) -> None:
            with pymongo.timeout(max(LEAST_SECONDS, deadline - time.monotonic())):
                if len(documents) == 1:
                    found.message.insert_one(documents[0])
                else:
                    publish(found, documents)

        try:
            crash_point("publishing")
            self._server.run(work)
        except Exception as error:  # noqa: BLE001 - it is returned to the caller
            if not isinstance(error, QWorkerError):
                return error
            ids = [document["_id"] for document in documents]
            with suppress(QWorkerError):  # then the outcome is unknown, as after any lost answer
                self._server.run(lambda found: withdraw(found, documents[0].get("batch"), ids))
            return error
        crash_point("published")
        return None

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._clock.now() + self._revoke_expires
        self._server.run(lambda found: revoke(found, ids, terminate, signal, until))
        self._published()


def publish(found: Collections, documents: Sequence[Document]) -> None:
    """Store *documents* with one write that publishes all of them."""
    batch = os.urandom(12).hex()
    for document in documents:
        document["to"], document["s"], document["batch"] = document["s"], ARRIVING, batch
    found.message.insert_many(documents)
    found.batch.insert_one({"_id": batch})
    with suppress(pymongo.errors.PyMongoError):  # they are published: any worker continues
        complete(found, batch, {document["to"] for document in documents})


def complete(found: Collections, batch: str, states: set[int]) -> None:
    """Make the messages of *batch* in one of *states* visible. May be repeated."""
    for state in states:
        found.message.update_many(
            {"batch": batch, "to": state}, {"$set": {"s": state}, "$unset": {"batch": "", "to": ""}}
        )
    found.batch.delete_one({"_id": batch})


def withdraw(found: Collections, batch: str | None, ids: Sequence[int]) -> None:
    """Delete unpublished messages."""
    if batch is not None:
        found.batch.delete_one({"_id": batch})
        found.message.delete_many({"batch": batch})
    elif ids:
        found.message.delete_many({"_id": {"$in": list(ids)}, "s": {"$in": [READY, DELAYED]}})


# -- Revocations: read by all workers, including those that start later --
# Thread: any; functions, except SeenRevocations, which belongs to the listener. Numbers are assigned before
# documents are inserted, so a lower one may become visible after a higher one. Readers read those of the last
# seconds again, and the number is raised once more when they are there.

FIELD = "revoked"
LATE = 30_000_000
"""In numbers, which are microseconds: how late a revocation may become visible."""


def revoke(found: Collections, ids: Sequence[str], terminate: bool, signal: str, until: float) -> None:
    """Store the revocations of *ids*, valid until epoch second *until*."""
    if not ids:
        return
    first = found.number(FIELD, len(ids))
    found.revoked.insert_many(
        [
            {"_id": number, "task_id": task_id, "terminate": terminate, "signal": signal, "expires": until}
            for number, task_id in enumerate(ids, first)
        ]
    )
    found.owner.update_one({"_id": RECORD_OF_ALL}, {"$inc": {FIELD: 1}})


def last_number(found: Collections) -> int:
    """Return the last number assigned; 0 when there was none."""
    record = found.owner.find_one({"_id": RECORD_OF_ALL}, {FIELD: 1})
    return int((record or {}).get(FIELD, 0))


class SeenRevocations:
    """The late revocations that a consumer has seen."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def since(self, found: Collections, cursor: int, now: float) -> tuple[int, list[Revocation]]:
        """Return a new cursor, and the revocations valid *now* that were not returned up to *cursor*."""
        last = last_number(found)
        after = cursor - LATE if cursor else 0
        rows = list(found.revoked.find({"_id": {"$gt": after}, "expires": {"$gt": now}}, sort=[("_id", 1)]))
        new = [row for row in rows if row["_id"] > cursor or row["_id"] not in self._numbers]
        end = max(last, cursor, *(int(row["_id"]) for row in rows))
        self._numbers = {row["_id"] for row in rows if row["_id"] > end - LATE}
        return end, [Revocation(row["task_id"], bool(row["terminate"]), row["signal"]) for row in new]
