"""How messages are taken: looked for, and then marked by one update for many of them.

Comes from:  ``consumer.py``.
Goes to:     the collection of messages.
Thread:      the listener's.

Documents are read with all that is in them, and then updated where they are still free, and still as they
were read: another may have had one and put it back meanwhile. When all were, as almost always, that is all.
Who meets others at the front of a queue asks which he got, and goes a little further back when he got none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from qworker.transports.lease import MAX_LEASE_BYTES
from qworker.transports.mongodb.layout import DELAYED, LEASED, READY, Document
from qworker.transports.mongodb.server import Collections

TRIES = 12
"""How often to look for messages that others do not take meanwhile."""
BY_URGENCY = [("u", 1), ("_id", 1)]
BY_TIME = [("due", 1)]


def take_ready(found: Collections, generation: int, queue: str, limit: int) -> list[Document]:
    """Take up to *limit* messages that are due."""
    return _take(found, generation, {"q": queue, "s": READY}, BY_URGENCY, limit)


def take_early(found: Collections, generation: int, queue: str, limit: int, until: float) -> list[Document]:
    """Take up to *limit* messages that are due by *until*."""
    where = {"q": queue, "s": DELAYED, "due": {"$lte": until}}
    taken = _take(found, generation, where, BY_TIME, limit)
    if taken:  # another may have put one off meanwhile
        ids = [document["_id"] for document in taken]
        dues = {each["_id"]: each["due"] for each in found.message.find({"_id": {"$in": ids}}, {"due": 1})}
        for document in taken:
            document["due"] = dues.get(document["_id"], document["due"])
    return taken


def next_due(found: Collections, queues: Sequence[str]) -> float | None:
    """When the first delayed message falls due; None when there is none."""
    where = {"q": {"$in": list(queues)}, "s": DELAYED}
    first = found.message.find_one(where, {"due": 1}, sort=BY_TIME)
    return None if first is None else float(first["due"])


def promote_due(found: Collections, queues: Sequence[str], now: float) -> float | None:
    """Make ready what is due *now*; return when the next is."""
    due = next_due(found, queues)
    if due is None or due > now:
        return due
    where = {"q": {"$in": list(queues)}, "s": DELAYED, "due": {"$lte": now}}
    found.message.update_many(where, {"$set": {"s": READY}})
    return next_due(found, queues)


def _take(
    found: Collections, generation: int, where: Document, order: Sequence[Any], limit: int
) -> list[Document]:
    if limit <= 0:
        return []
    skip = 0
    for _ in range(TRIES):
        documents = _look(found, where, order, limit, skip)
        if not documents and not skip:
            return []
        ids = [document["_id"] for document in documents]
        mine = {"s": LEASED, "owner": generation}
        count = 0
        if ids:
            count = found.message.update_many(
                {"s": where["s"], "$or": _as_read(documents)}, {"$set": mine}
            ).modified_count
        if count == len(ids) > 0:
            return documents
        if count:
            ours = {each["_id"] for each in found.message.find({"_id": {"$in": ids}, **mine}, {"_id": 1})}
            return [document for document in documents if document["_id"] in ours]
        skip = random.randrange(4) * limit
    return []


def _as_read(documents: Sequence[Document]) -> list[Document]:
    """What matches *documents* while nobody has put one back since; there are seldom more than one or two."""
    tags: dict[tuple[Any, ...], list[Any]] = {}
    for each in documents:
        tags.setdefault((each["n"], each["r"], each["p"]), []).append(each["_id"])
    return [{"_id": {"$in": ids}, "n": n, "r": r, "p": p} for (n, r, p), ids in tags.items()]


def _look(found: Collections, where: Document, order: Sequence[Any], limit: int, skip: int) -> list[Document]:
    documents: list[Document] = []
    size = 0
    with found.message.find(where, sort=order, limit=limit, skip=skip) as cursor:
        for document in cursor:
            documents.append(document)
            size += len(document["body"])
            if size >= MAX_LEASE_BYTES:
                break
    return documents
