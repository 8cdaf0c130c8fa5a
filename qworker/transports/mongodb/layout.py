"""The collections and documents of the MongoDB broker.

Comes from:  the modules of this package.
Goes to:     the database.
Thread:      any; constants and pure functions, except new_tags(), which takes a lock.

Fields of a message: ``q`` queue, ``u`` urgency (the negated priority, so that the most urgent come first in a
plain index), ``s`` state, ``due``, ``owner`` (a generation; only on lease), ``n`` deliveries, ``r``
redelivered, ``p`` how often it was put back, ``sent``, ``headers``, ``properties``, ``body``, and ``batch``
while it arrives. Stored names never change, because workers of several versions share them.

A tag is the microsecond of its publisher's clock, followed by twelve random bits: a counter would cost each
publisher another round trip, and make all of them wait for one document. So the oldest come first if the
clocks of publishers agree.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qworker.transports.lease import Leased

READY, DELAYED, LEASED, ARRIVING = 0, 1, 2, 3
"""States of a message. ARRIVING: part of a push of several, which becomes visible when its batch exists."""
RECORD_OF_ALL = 0
"""The document in the collection of owners without an owner: it has the last numbers used."""
DATABASE = "celery"
"""The default database of a URL, the same as for Celery's result store, so that both are in one place."""

Document = dict[str, Any]


class Names(NamedTuple):
    """The names of the collections."""

    message: str = "qworker_message"
    batch: str = "qworker_batch"
    dead: str = "qworker_dead"
    failed: str = "qworker_failed"
    owner: str = "qworker_owner"
    revoked: str = "qworker_revoked"
    registry: str = "qworker_registry"
    result: str = "celery_taskmeta"


_LETTERS: Sequence[tuple[Sequence[tuple[str, int]], Mapping[str, Any]]] = (
    ((("died_at", 1), ("_id", 1)), {}),
    ((("q", 1), ("died_at", 1), ("_id", 1)), {}),
)
INDEXES: Mapping[str, Sequence[tuple[Sequence[tuple[str, int]], Mapping[str, Any]]]] = {
    "message": (
        ((("q", 1), ("u", 1), ("_id", 1)), {"partialFilterExpression": {"s": READY}}),
        ((("q", 1), ("due", 1)), {"partialFilterExpression": {"s": DELAYED}}),
        ((("owner", 1),), {"sparse": True}),
        ((("batch", 1),), {"sparse": True}),
    ),
    "dead": _LETTERS,
    "failed": _LETTERS,
    "revoked": (((("expires", 1),), {}),),
    "result": (((("expires", 1),), {"sparse": True}),),
}
"""By collection: keys and options of each index. A message is only in the index of its own
state: taking it moves it from one index to that of owners."""

_lock = threading.Lock()
_last = 0


def new_tags(count: int) -> list[int]:
    """Return unused tags, each later than the previous ones."""
    global _last
    with _lock:
        first = max(time.time_ns() // 1000, _last + 1)
        _last = first + count - 1
    chance = int.from_bytes(os.urandom(2), "big") & 0xFFF
    return [(moment << 12) | chance for moment in range(first, first + count)]


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def leased(found: Mapping[str, Any]) -> Leased:
    """Return the message of a document."""
    return Leased(
        int(found["_id"]),  # it is an Int64, which marshal does not support
        found["q"],
        -found["u"],
        found["due"],
        found["n"],
        bool(found["r"]),
        found["p"],
        found["headers"],
        found["properties"],
        bytes(found["body"]),
    )


def ready(**fields: Any) -> Document:
    """Return the update that puts a message back to its queue."""
    return {"$set": {"s": READY, **fields}, "$unset": {"owner": ""}}
