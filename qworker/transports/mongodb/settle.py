"""Settling messages: deleting them, or moving them back to their queue or to the letters.

Comes from:  ``consumer.py``.
Goes to:     the collections of messages, dead letters, failed tasks and results.
Thread:      the listener's.

This is one transaction if the server supports it, as a replica set does. On a single server the writes have
an order: results first, then letters, and the deletion of a message last. After an interruption another
consumer stores the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from pymongo import ReplaceOne, UpdateOne

from qworker.process.crash_points import crash_point
from qworker.transports.lease import Ack, DeadLetter, Release, ResultRow, Settlement, Store
from qworker.transports.mongodb import result_documents
from qworker.transports.mongodb.layout import DELAYED, READY, Document
from qworker.transports.mongodb.letters import KEPT
from qworker.transports.mongodb.server import Collections


def forget(found: Collections, generation: int, tags: Collection[int]) -> set[int]:
    """Acknowledge *tags* without results; return those that *generation* does not hold."""
    if not tags:
        return set()
    ids = list(tags)
    crash_point("acking")
    count = found.message.delete_many({"_id": {"$in": ids}, "owner": generation}).deleted_count
    if count == len(ids):
        return set()
    others = {int(each["_id"]) for each in found.message.find({"_id": {"$in": ids}}, {"_id": 1})}
    # Of those that nobody holds any more, some had ended before, and it is unknown which.
    return others if count + len(others) == len(ids) else set(ids)


def settle(
    found: Collections, generation: int, held: Collection[int], settlements: Sequence[Settlement], now: float
) -> set[int]:
    """Carry out *settlements*; return the tags that *generation* does not hold, among those in *held*."""
    lost: set[int] = set()
    orders: dict[int, Ack | Release | DeadLetter] = {}
    stores: list[Store] = []
    for each in settlements:
        if isinstance(each, Store):
            stores.append(each)
        elif each.tag not in held or each.tag in orders:
            lost.add(each.tag)
        else:
            orders[each.tag] = each
    plain = [each.tag for each in orders.values() if type(each) is Ack and each.row is None]
    if len(plain) == len(orders) and not stores:
        return lost | forget(found, generation, plain)
    acks = [each for each in orders.values() if isinstance(each, Ack)]
    if found.replicated and len(acks) == len(orders):
        with suppress(_NotAllOurs):
            rows = [each.row for each in stores if each.row is not None]
            rows += [each.row for each in acks if each.row is not None]
            found.atomically(lambda session: _acknowledge(found, generation, list(orders), rows, session))
            return lost
    return lost | found.atomically(lambda session: _settle(found, generation, orders, stores, now, session))


class _NotAllOurs(Exception):
    """Others hold some of the acknowledged messages, and it is unknown which: the transaction is rolled
    back."""


def _acknowledge(
    found: Collections, generation: int, tags: Sequence[int], rows: Sequence[ResultRow], session: Any
) -> None:
    """Acknowledge *tags*, and store *rows*, if *generation* holds all of them; this is determined by
    deleting, not by reading before."""
    crash_point("acking")
    which = {"_id": {"$in": list(tags)}, "owner": generation}
    if tags and found.message.delete_many(which, session=session).deleted_count != len(tags):
        raise _NotAllOurs
    if rows:
        crash_point("storing")
    result_documents.store(found, rows, session)


def _settle(
    found: Collections,
    generation: int,
    orders: dict[int, Ack | Release | DeadLetter],
    stores: Sequence[Store],
    now: float,
    session: Any,
) -> set[int]:
    dying = [tag for tag, each in orders.items() if isinstance(each, DeadLetter)]
    ours = (
        {
            each["_id"]: each
            for each in found.message.find(
                {"_id": {"$in": list(orders)}, "owner": generation},
                None if dying else {"_id": 1},
                session=session,
            )
        }
        if orders
        else {}
    )
    rows: list[ResultRow] = [store.row for store in stores if store.row is not None]
    dead: list[Any] = []
    failed: list[Any] = []
    releases: list[Any] = []
    gone: list[int] = []
    for tag, each in orders.items():
        if tag not in ours:
            continue
        if isinstance(each, Release):
            releases.append(UpdateOne({"_id": tag, "owner": generation}, _release(each, now)))
            continue
        if each.row is not None:
            rows.append(each.row)
        if isinstance(each, DeadLetter):
            letter = ReplaceOne({"_id": tag}, _letter(ours[tag], each, now), upsert=True)
            (failed if each.failed else dead).append(letter)
        gone.append(tag)
    if rows:
        crash_point("storing")
    result_documents.store(found, rows, session)
    for collection, letters in ((found.dead, dead), (found.failed, failed)):
        if letters:
            collection.bulk_write(letters, ordered=False, session=session)
    if dead or failed:
        crash_point("dead-lettering")
    if releases:
        crash_point("releasing")
        found.message.bulk_write(releases, ordered=False, session=session)
    if gone:
        crash_point("acking")
        found.message.delete_many({"_id": {"$in": gone}, "owner": generation}, session=session)
    return orders.keys() - ours.keys()


def _release(order: Release, now: float) -> Document:
    due = order.due
    changes: Document = {"s": DELAYED if due is not None and due > now else READY}
    if due is not None:
        changes["due"] = due
    if order.counted or order.redelivered:
        changes["r"] = True
    added = {"n": int(order.counted), "p": int(order.requeued)}
    return {"$set": changes, "$inc": added, "$unset": {"owner": ""}}


def _letter(message: Document, order: DeadLetter, now: float) -> Document:
    kept = {name: message[name] for name in KEPT}
    return {**kept, "reason": order.reason, "died_at": now, "n": message["n"] + int(order.counted)}
