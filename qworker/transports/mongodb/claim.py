"""Claiming messages: they are found first, and then marked with one update for many of them.

Comes from:  ``consumer.py``.
Goes to:     the collection of messages.
Thread:      the listener's.

Documents are read completely, and then updated if they are still free and unchanged: another consumer may
have taken one and put it back meanwhile. Usually all are updated. On conflicts the consumer checks which ones
it got, and tries a little further back when it got none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qworker.process.randomness import RANDOM
from qworker.transports.lease import MAX_LEASE_BYTES
from qworker.transports.mongodb.layout import DELAYED, LEASED, READY, Document
from qworker.transports.mongodb.server import Collections

TRIES = 12
"""How often to search for messages that others do not take meanwhile."""
BY_URGENCY = [("u", 1), ("_id", 1)]
BY_TIME = [("due", 1)]


def take_ready(
    found: Collections, generation: int, queue: str, limit: int, queues: Sequence[str], now: float
) -> tuple[list[Document], float | None]:
    """Take up to *limit* due messages of *queue*. Return when the first of the delayed messages of *queues*
    is due; those due *now* are made ready before."""
    dues: list[float | None] = [None]

    def look(skip: int) -> list[Document]:
        documents, dues[0] = _look_with_next_due(found, queue, limit, skip, queues)
        if dues[0] is not None and dues[0] <= now:
            promote(found, queues, now)
            documents, dues[0] = _look_with_next_due(found, queue, limit, skip, queues)
        return documents

    taken = _take(found, generation, READY, look, limit)
    return taken, dues[0]


def take_early(found: Collections, generation: int, queue: str, limit: int, until: float) -> list[Document]:
    """Take up to *limit* messages that are due by *until*."""
    where = {"q": queue, "s": DELAYED, "due": {"$lte": until}}
    taken = _take(
        found,
        generation,
        DELAYED,
        lambda skip: _read(found.message.find(where, sort=BY_TIME, limit=limit, skip=skip)),
        limit,
    )
    if taken:  # another consumer may have delayed one meanwhile
        ids = [document["_id"] for document in taken]
        dues = {each["_id"]: each["due"] for each in found.message.find({"_id": {"$in": ids}}, {"due": 1})}
        for document in taken:
            document["due"] = dues.get(document["_id"], document["due"])
    return taken


def next_due(found: Collections, queues: Sequence[str]) -> float | None:
    """Return when the first delayed message is due; None when there is none."""
    where = {"q": {"$in": list(queues)}, "s": DELAYED}
    first = found.message.find_one(where, {"due": 1}, sort=BY_TIME)
    return None if first is None else float(first["due"])


def promote_due(found: Collections, queues: Sequence[str], now: float) -> float | None:
    """Make messages ready that are due *now*; return when the next is due."""
    due = next_due(found, queues)
    if due is None or due > now:
        return due
    promote(found, queues, now)
    return next_due(found, queues)


def promote(found: Collections, queues: Sequence[str], now: float) -> None:
    """Make messages ready that are due *now*."""
    where = {"q": {"$in": list(queues)}, "s": DELAYED, "due": {"$lte": now}}
    found.message.update_many(where, {"$set": {"s": READY}})


def _take(
    found: Collections,
    generation: int,
    state: int,
    look: Callable[[int], list[Document]],
    limit: int,
) -> list[Document]:
    """look: reads up to *limit* messages in *state*, after skipping a number of them."""
    skip = 0
    for _ in range(TRIES):
        documents = look(skip)
        if not documents and not skip:
            return []
        ids = [document["_id"] for document in documents]
        mine = {"s": LEASED, "owner": generation}
        count = 0
        if ids:
            as_read = _as_read(documents)
            which = as_read[0] if len(as_read) == 1 else {"_id": {"$in": ids}, "$or": as_read}
            count = found.message.update_many({**which, "s": state}, {"$set": mine}).modified_count
        if count == len(ids) > 0:
            return documents
        if count:
            ours = {each["_id"] for each in found.message.find({"_id": {"$in": ids}, **mine}, {"_id": 1})}
            return [document for document in documents if document["_id"] in ours]
        skip = RANDOM.randrange(4) * limit
    return []


def _as_read(documents: Sequence[Document]) -> list[Document]:
    """Return a filter for unchanged *documents*; it rarely contains more than one or two."""
    tags: dict[tuple[Any, ...], list[Any]] = {}
    for each in documents:
        tags.setdefault((each["n"], each["r"], each["p"]), []).append(each["_id"])
    return [{"_id": {"$in": ids}, "n": n, "r": r, "p": p} for (n, r, p), ids in tags.items()]


def _look_with_next_due(
    found: Collections, queue: str, limit: int, skip: int, queues: Sequence[str]
) -> tuple[list[Document], float | None]:
    """Return ready messages of *queue*, the most urgent first, and next_due(), with one call."""
    first_due = [
        {"$match": {"q": {"$in": list(queues)}, "s": DELAYED}},
        {"$sort": dict(BY_TIME)},
        {"$limit": 1},
        {"$project": {"due": 1}},
    ]
    urgent = [
        {"$match": {"q": queue, "s": READY}},
        {"$sort": dict(BY_URGENCY)},
        *([{"$skip": skip}] if skip else []),
        {"$limit": limit},
    ]
    union = {"$unionWith": {"coll": found.names.message, "pipeline": urgent}}
    documents = _read(found.message.aggregate([*first_due, union]))
    dues = [float(each["due"]) for each in documents if "body" not in each]
    ready = [each for each in documents if "body" in each]
    ready.sort(key=lambda each: (each["u"], each["_id"]))  # the order of a union is not guaranteed
    return ready, min(dues, default=None)


def _read(cursor: Any) -> list[Document]:
    """Return the documents of *cursor*, up to the size of one lease."""
    documents: list[Document] = []
    size = 0
    with cursor:
        for document in cursor:
            documents.append(document)
            size += len(document.get("body", b""))
            if size >= MAX_LEASE_BYTES:
                break
    return documents
