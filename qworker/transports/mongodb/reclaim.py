"""Reclaiming messages of dead consumers, and deleting old data.

Comes from:  ``consumer.py``, about once a second.
Goes to:     the collections of owners and messages.
Thread:      the listener's.

On one machine the lock of a dead consumer shows its death at once (``process/owner_files.py``); elsewhere its
lease must expire, on the server's clock. A consumer that finds a dead one writes its own generation into the
dead one's record, puts back the messages, and deletes the record last: if it dies in between, another one
continues. The update that counts a delivery also puts the message back, so each is counted once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from qworker.clock import boot_id
from qworker.process import owner_files
from qworker.transports.lease import Reclaimed
from qworker.transports.mongodb.layout import ARRIVING, DELAYED, READY, RECORD_OF_ALL, Document, ready
from qworker.transports.mongodb.sender import complete
from qworker.transports.mongodb.server import Collections, clock_of, epoch_of

PORTION = 1000
"""Maximum documents deleted at once."""
SILENT_SECONDS = 3600.0
"""After so long, the record of a silent consumer without messages is deleted; and so are messages of a batch
that never came."""


def silent_for(owner: Document, server_now: float, lease_now: float | None) -> float:
    """Return for how many seconds the lease of *owner* has been expired; negative while it holds."""
    if "until" in owner:
        return -1.0 if lease_now is None else lease_now - float(owner["until"])
    return server_now - epoch_of(owner["renewed"]) - float(owner["lease"])


def reclaim(
    found: Collections, generation: int, lease_now: float | None, silent_too: bool
) -> list[Reclaimed]:
    """Put back the messages of dead consumers other than that of *generation*. lease_now: on the clock of
    leases, None: the server's. silent_too: as in ``Consumer.reclaim()``."""
    for batch in list(found.batch.find({}, {"_id": 1})):
        complete(found, batch["_id"], {READY, DELAYED})
    began = time.monotonic()
    owners = list(found.owner.find({"_id": {"$ne": RECORD_OF_ALL}}))
    others = [owner for owner in owners if owner["_id"] != generation]
    if not others:
        return []
    server_now = clock_of(found.database)
    silent_too = silent_too and time.monotonic() - began < owner_files.PROMPT_SECONDS
    ids = {owner["_id"] for owner in owners}
    reclaimed = []
    for owner in others:
        dead = owner_files.died(owner["lock"], owner["boot"])
        if not dead and "ended" not in owner:
            if not (silent_too and silent_for(owner, server_now, lease_now) > 0):
                continue
            if found.message.find_one({"owner": owner["_id"]}, {"_id": 1}) is None:
                continue
        if not _is_for_us(found, owner, generation, ids, dead):
            continue
        reclaimed.append(_put_back(found, owner))
        if dead:
            owner_files.delete_files(owner["lock"])
    return reclaimed


def _is_for_us(found: Collections, owner: Document, generation: int, ids: set[Any], dead: bool) -> bool:
    """Return whether we reclaim the messages of *owner*; from then on it can neither renew nor keep new
    messages."""
    which: Document = {"_id": owner["_id"], "ended": owner.get("ended")}
    if owner.get("ended") in ids - {generation}:
        return False  # another live consumer is doing it
    if not dead:  # it may have renewed since we read it
        which |= {name: owner[name] for name in ("until", "renewed") if name in owner}
    return bool(found.owner.update_one(which, {"$set": {"ended": generation}}).matched_count)


def _put_back(found: Collections, owner: Document) -> Reclaimed:
    id = owner["_id"]
    running = owner_files.running_tags(owner["running"]) if owner["boot"] == boot_id() else None
    tags = list(owner.get("tags", ()) if running is None else running)
    counted = 0
    if tags:
        counted = found.message.update_many(
            {"_id": {"$in": tags}, "owner": id}, {**ready(r=True), "$inc": {"n": 1}}
        ).modified_count
    returned = found.message.update_many({"owner": id}, ready(r=True)).modified_count
    found.owner.delete_one({"_id": id})
    return Reclaimed(owner["name"], counted + returned, counted)


def return_orphaned(found: Collections) -> int:
    """Put back messages of generations that do not exist: a consumer was considered dead while it claimed,
    and died before it could notice."""
    held = set(found.message.distinct("owner", {"owner": {"$exists": True}}))
    if not held:
        return 0
    known = {owner["_id"] for owner in found.owner.find({"_id": {"$in": list(held)}}, {"_id": 1})}
    lost = list(held - known)
    if not lost:
        return 0
    return int(found.message.update_many({"owner": {"$in": lost}}, ready(r=True)).modified_count)


def sweep(found: Collections, now: float) -> int:
    """Delete revocations and results that have expired by *now*, and messages of batches that never came.
    Return the number of documents, limited per call."""
    count = _delete(found.revoked, {"expires": {"$lt": now}})
    count += _delete(found.result, {"expires": {"$lte": now}})
    silent = {"s": ARRIVING, "batch": {"$exists": True}, "sent": {"$lt": now - SILENT_SECONDS}}
    return count + _delete(found.message, silent)


def sweep_letters(collection: Any, died_before: float, most: int) -> int:
    """Like sweep(), for the letters in *collection* that died before then, or exceed the newest *most* of
    their queue."""
    count = _delete(collection, {"died_at": {"$lt": died_before}})
    for group in collection.aggregate([{"$group": {"_id": "$q", "count": {"$sum": 1}}}]):
        beyond = group["count"] - most
        if beyond > 0:
            oldest = collection.find(
                {"q": group["_id"]}, {"_id": 1}, sort=[("died_at", 1), ("_id", 1)], limit=min(beyond, PORTION)
            )
            count += _delete_ids(collection, [each["_id"] for each in oldest])
    return count


def forget_silent(found: Collections) -> int:
    """Delete records of consumers that ended elsewhere, without messages and without notice."""
    now = clock_of(found.database)
    silent = [
        owner["_id"]
        for owner in found.owner.find({"renewed": {"$exists": True}}, {"renewed": 1, "lease": 1})
        if silent_for(owner, now, None) > SILENT_SECONDS
        and found.message.find_one({"owner": owner["_id"]}, {"_id": 1}) is None
    ]
    return _delete_ids(found.owner, silent)


def _delete(collection: Any, where: Document) -> int:
    return _delete_ids(
        collection, [each["_id"] for each in collection.find(where, {"_id": 1}, limit=PORTION)]
    )


def _delete_ids(collection: Any, ids: Sequence[Any]) -> int:
    return int(collection.delete_many({"_id": {"$in": list(ids)}}).deleted_count) if ids else 0
