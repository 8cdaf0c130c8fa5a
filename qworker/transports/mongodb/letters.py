"""Dead letters and failed tasks on MongoDB: reading, sending again, discarding.

Comes from:  people and tools, by ``Broker.letters``; the documents from ``consumer.py``.
Goes to:     the collections ``qworker_dead`` and ``qworker_failed``; those of messages and results when one
             is sent again.
Thread:      any.

A document has the fields of its message, plus ``reason``, ``died_at`` and ``n`` (deliveries). It keeps the
tag of the message, so that an interrupted move can be repeated.

Sending again is one transaction if the server supports it. On a single server the message is stored first,
under its old tag, and the letter is deleted last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from pymongo import ReplaceOne

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, Kind, Letters
from qworker.transports.mongodb import result_documents
from qworker.transports.mongodb.layout import READY, Document, new_tags
from qworker.transports.mongodb.server import Collections, Server
from qworker.transports.portions import portions

R = TypeVar("R")

CHANGED_AT_ONCE = 500
NEWEST_FIRST = [("died_at", -1), ("_id", -1)]
KEPT = ("q", "u", "headers", "properties", "body")
"""The fields of a message that a letter keeps."""


class MongoLetters(Letters):
    """published: called when something was sent."""

    def __init__(self, kind: Kind, server: Server, clock: Clock, published: Callable[[], None]) -> None:
        self._kind = kind
        self._server = server
        self._clock = clock
        self._published = published

    def _run(self, work: Callable[[Collections, Any], R]) -> R:
        """Return *work* applied to the collections, and to the one of this kind."""
        return self._server.run(lambda found: work(found, getattr(found, self._kind)))

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        where: Document = {} if queue is None else {"q": queue}
        if after is not None:
            died_at = after.died_at
            where["$or"] = [{"died_at": {"$lt": died_at}}, {"died_at": died_at, "_id": {"$lt": after.tag}}]

        def work(_: Collections, kept: Any) -> list[Dead]:
            return [_dead(row) for row in kept.find(where, sort=NEWEST_FIRST, limit=limit)]

        return self._run(work) if limit > 0 else []  # to MongoDB 0 is no limit

    def retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(found: Collections, kept: Any) -> int:
            some = _portions(kept, tags)
            return sum(found.atomically(partial(_retry, found, kept, portion, now)) for portion in some)

        return self._sent(self._run(work))

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(found: Collections, kept: Any) -> int:
            return sum(found.atomically(partial(_send, found, kept, call, now)) for call in calls)

        return self._sent(self._run(work))

    def _sent(self, count: int) -> int:
        self._published()
        return count

    def discard(self, tags: Sequence[int] | None = None) -> int:
        def work(_: Collections, kept: Any) -> int:
            return sum(
                int(kept.delete_many({"_id": {"$in": portion}}).deleted_count)
                for portion in _portions(kept, tags)
            )

        return self._run(work)

    def push(self, letters: Sequence[Dead]) -> None:
        documents = [
            {
                "_id": tag,
                "q": letter.queue,
                "u": 0,
                "reason": letter.reason,
                "died_at": letter.died_at,
                "n": letter.deliveries,
                "headers": letter.headers,
                "properties": letter.properties,
                "body": letter.body,
            }
            for tag, letter in zip(new_tags(len(letters)), letters, strict=True)
        ]

        def work(found: Collections, kept: Any) -> None:
            found.atomically(lambda session: kept.insert_many(documents, session=session))

        if documents:
            self._run(work)


def _dead(row: Document) -> Dead:
    fields = (row["reason"], row["died_at"], row["n"], row["headers"], row["properties"])
    return Dead(int(row["_id"]), row["q"], *fields, bytes(row["body"]))


def _portions(kept: Any, tags: Sequence[int] | None) -> Iterator[list[int]]:
    """Yield *tags* (None: all) in portions."""
    if tags is None:
        tags = [each["_id"] for each in kept.find({}, {"_id": 1}, sort=[("_id", 1)])]
    return portions(tags, CHANGED_AT_ONCE)


def _as_message(letter: Document, now: float) -> Document:
    """Return *letter* as a message that goes back to its queue, with reset counts."""
    message = {name: letter[name] for name in ("_id", *KEPT)}
    return {**message, "s": READY, "due": None, "n": 0, "r": True, "p": 0, "sent": now}


def _retry(found: Collections, kept: Any, tags: Sequence[int], now: float, session: Any) -> int:
    """Send the letters with *tags* back to their queues. They keep their tags, so that an interrupted call
    can be repeated."""
    chosen = list(kept.find({"_id": {"$in": list(tags)}}, session=session))
    if not chosen:
        return 0
    result_documents.forget_failures(found, [letter["headers"] for letter in chosen], session)
    messages = [_as_message(letter, now) for letter in chosen]
    found.message.bulk_write(
        [ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in messages],
        ordered=False,
        session=session,
    )
    kept.delete_many({"_id": {"$in": [letter["_id"] for letter in chosen]}}, session=session)
    return len(chosen)


def _send(found: Collections, kept: Any, call: Again, now: float, session: Any) -> int:
    """Send one; return 1, or 0 if its letter was deleted meanwhile."""
    which = {"_id": call.tag}
    letter = kept.find_one(which, session=session)
    if letter is None:
        return 0
    result_documents.forget_failures(found, [letter["headers"]], session)
    message = _as_message(letter, now)
    message |= {"headers": call.headers, "properties": call.properties, "body": call.body}
    # A message that another process has just sent may be on lease already, and is not changed.
    found.message.update_one(which, {"$setOnInsert": message}, upsert=True, session=session)
    return int(kept.delete_one(which, session=session).deleted_count)
