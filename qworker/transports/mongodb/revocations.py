"""Revocations: orders that all workers hear of, also those that start later.

Comes from:  ``sender.py``; ``consumer.py`` reads them.
Goes to:     the collection of revocations; the number of the last in the record of all.
Thread:      any; functions, but for Heard, which is the listener's.

Numbers are given before documents are there, and so a lower one may come to be seen after a higher one. Who
reads looks again at those of the last seconds, and the number is raised once more when they are there.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.transports.lease import Revocation
from qworker.transports.mongodb.layout import RECORD_OF_ALL
from qworker.transports.mongodb.server import Collections

FIELD = "revoked"
LATE = 30_000_000
"""Numbers, which are microseconds: so much later may a revocation come to be seen."""


def revoke(found: Collections, ids: Sequence[str], terminate: bool, signal: str, until: float) -> None:
    """Store the revocations of *ids*, which stand until epoch second *until*."""
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
    """The last number that was given; 0 when none was."""
    record = found.owner.find_one({"_id": RECORD_OF_ALL}, {FIELD: 1})
    return int((record or {}).get(FIELD, 0))


class Heard:
    """Which of the late ones a consumer has heard of."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def since(self, found: Collections, cursor: int, now: float) -> tuple[int, list[Revocation]]:
        """A new cursor, and what stands *now* and was not told by *cursor*."""
        last = last_number(found)
        after = cursor - LATE if cursor else 0
        rows = list(found.revoked.find({"_id": {"$gt": after}, "expires": {"$gt": now}}, sort=[("_id", 1)]))
        new = [row for row in rows if row["_id"] > cursor or row["_id"] not in self._numbers]
        end = max(last, cursor, *(int(row["_id"]) for row in rows))
        self._numbers = {row["_id"] for row in rows if row["_id"] > end - LATE}
        return end, [Revocation(row["task_id"], bool(row["terminate"]), row["signal"]) for row in new]
