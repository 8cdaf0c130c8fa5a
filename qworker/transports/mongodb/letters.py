"""What the collections of dead letters and of failed tasks share: their documents, and how they are read and
deleted.

Comes from:  ``admin.py`` and ``failed.py``; the documents from ``settle.py``.
Goes to:     whichever of the two collections is passed.
Thread:      any.

A document has the fields of its message, and ``reason``, ``died_at`` and ``n`` (deliveries) besides. It keeps
the tag of the message, so that who is cut short while he moves it may do so again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qworker.transports.lease import Dead
from qworker.transports.mongodb.layout import READY, Document

PORTION = 500
"""How many are changed at once."""
NEWEST_FIRST = [("died_at", -1), ("_id", -1)]
KEPT = ("q", "u", "headers", "properties", "body")
"""The fields of a message that a letter has."""


def newest(collection: Any, queue: str | None, limit: int) -> list[Dead]:
    """The newest *limit*, newest first. queue: None for all."""
    where = {} if queue is None else {"q": queue}
    return [_dead(row) for row in collection.find(where, sort=NEWEST_FIRST, limit=limit)] if limit > 0 else []


def _dead(row: Document) -> Dead:
    told = (row["reason"], row["died_at"], row["n"], row["headers"], row["properties"])
    return Dead(int(row["_id"]), row["q"], *told, bytes(row["body"]))


def portions(collection: Any, tags: Sequence[int] | None) -> list[list[int]]:
    """*tags* (None: all), so many at a time as one step is about."""
    if tags is None:
        tags = [each["_id"] for each in collection.find({}, {"_id": 1}, sort=[("_id", 1)])]
    return [list(tags[start : start + PORTION]) for start in range(0, len(tags), PORTION)]


def discard(collection: Any, tags: Sequence[int] | None) -> int:
    """Delete those with *tags* (None: all); return how many."""
    return sum(
        int(collection.delete_many({"_id": {"$in": portion}}).deleted_count)
        for portion in portions(collection, tags)
    )


def as_message(letter: Document, now: float) -> Document:
    """The message that *letter* is when it goes back to its queue, with a clean count."""
    message = {name: letter[name] for name in ("_id", *KEPT)}
    return {**message, "s": READY, "due": None, "n": 0, "r": True, "p": 0, "sent": now}
