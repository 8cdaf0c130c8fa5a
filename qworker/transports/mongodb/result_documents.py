"""Results as documents, in the format of Celery's MongoDB store; the broker stores them with the ack.

Comes from:  ``backends/mongodb.py``, in the child that ran the task, and where results are stored;
             ``consumer.py``, with packed rows.
Goes to:     the collection ``celery_taskmeta``.
Thread:      any.

A document has Celery's fields plus ``expires``, the epoch second when it may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import bson
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError

from qworker import states
from qworker.errors import EncodeError
from qworker.transports.lease import ResultRow, latest
from qworker.transports.mongodb.layout import Document
from qworker.transports.mongodb.server import Collections
from qworker.transports.own_headers import id_in

_MARK = b"\x00bson"
_DUPLICATE = 11000
LARGEST = 16 * 1024**2 - 4096
"""Maximum bytes of a document, with room for additional fields."""


def pack(task_id: str, values: Mapping[str, Any]) -> bytes:
    """Return the payload of the row of *task_id*. Raises EncodeError for values that a document cannot
    hold."""
    try:
        data = bson.encode({**values, "_id": task_id})
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise EncodeError(f"MongoDB cannot store the result: {error}") from error
    if len(data) > LARGEST:
        raise EncodeError(f"the result takes {len(data)} bytes, and a MongoDB document has at most 16 MB")
    return _MARK + data


def unpack(row: ResultRow) -> Document:
    """Return the document of a row. Raises EncodeError for an invalid one."""
    task_id, status, payload, expires = row
    try:
        if payload.startswith(_MARK):
            found: Document = bson.decode(payload[len(_MARK) :])
        else:
            found = {
                "status": status,
                "result": payload,
                "traceback": None,
                "children": [],
                "date_done": None,
            }
        found["_id"] = task_id
        if expires is not None:
            found["expires"] = expires
        size = len(bson.encode(found))
    except (bson.errors.BSONError, AttributeError, ValueError, TypeError, OverflowError) as error:
        raise EncodeError(f"MongoDB cannot store the result: {error}") from error
    if size > LARGEST:
        raise EncodeError(f"the result takes {size} bytes, and a MongoDB document has at most 16 MB")
    return found


def store(found: Collections, rows: Sequence[ResultRow], session: Any = None) -> int:
    """Store *rows*, oldest first, without replacing final states; return how many were stored. In the
    transaction of a *session* they are not counted, and 0 is returned."""
    documents = [unpack(row) for row in latest(rows)]
    if not documents:
        return 0
    if session is None:
        return _store_guarded(found, documents)
    # A refused document would abort the transaction: so each is an update that may leave everything
    # unchanged.
    found.result.bulk_write([_unless_final(each) for each in documents], ordered=False, session=session)
    return 0


def _unless_final(document: Document) -> UpdateOne:
    """Return the write that replaces a document with *document*, unless its state must not be replaced."""
    operator, listed = _replaced_by(document["status"])
    is_listed = {"$in": [{"$ifNull": ["$status", None]}, listed]}
    new, old = {"$literal": document}, "$$ROOT"
    chosen = {"$cond": [is_listed, *((new, old) if operator == "$in" else (old, new))]}
    return UpdateOne({"_id": document["_id"]}, [{"$replaceWith": chosen}], upsert=True)


def _store_guarded(found: Collections, documents: Sequence[Document]) -> int:
    """Store each with one write that excludes final states: then the insert conflicts with the existing
    one."""
    orders = [
        ReplaceOne({"_id": each["_id"], "status": dict([_replaced_by(each["status"])])}, each, upsert=True)
        for each in documents
    ]
    count = len(orders)
    for _ in range(2):  # a state inserted by another process at the same time may be replaceable
        try:
            found.result.bulk_write(orders, ordered=False)
            return count
        except BulkWriteError as error:
            refused = error.details["writeErrors"]
            if any(each["code"] != _DUPLICATE for each in refused) or error.details["writeConcernErrors"]:
                raise
            orders = [orders[each["index"]] for each in refused]
    return count - len(orders)


def _replaced_by(status: str) -> tuple[str, list[str | None]]:
    """Return the operator and operand of the condition for the states that *status* may replace. Custom
    states cannot be listed, and None is a missing state."""
    allowed = [old for old in states.ALL_STATES if states.may_replace(old, status)]
    if states.may_replace("a custom state", status):
        return "$nin", [old for old in states.ALL_STATES if old not in allowed]
    return "$in", [None, *allowed]


def forget_failures(found: Collections, headers: Iterable[str], session: Any = None) -> None:
    """Delete the failures of these messages, so that callers that wait for a retried one see its new
    result."""
    ids = [task_id for text in headers if (task_id := id_in(text)) is not None]
    if ids:
        found.result.delete_many({"_id": {"$in": ids}, "status": states.FAILURE}, session=session)
