"""Damaged rows: SQLite accepts text in a column of numbers, unless its table is STRICT.

Comes from:  ``consumer.py``, for files that were made by an older version of SQLite, or of ours.
Goes to:     the tables ``message`` and ``dead``.
Thread:      the listener's.

Anybody may write to the file, and a bad row must not stop every worker that reads it: it becomes a dead
letter.
"""

from __future__ import annotations

import logging
import math
import sqlite3

from qworker.transports.lease import Leased
from qworker.transports.sql.embedded import DELAYED, READY

logger = logging.getLogger(__name__)

STRICT = "SELECT sql LIKE '%STRICT%' FROM sqlite_master WHERE type = 'table' AND name = 'message'"
# The headers contain the due time as well; without one in the row the worker uses them.
MEND = f"""UPDATE message SET state = {READY}, due = NULL
WHERE state = {DELAYED} AND typeof(due) NOT IN ('real', 'integer')"""
DEAD_LETTER = """INSERT OR REPLACE INTO dead (tag, queue, reason, died_at, deliveries, priority, headers,
properties, body)
SELECT tag, queue, ?, ?, CAST(deliveries AS INTEGER), CAST(priority AS INTEGER), CAST(headers AS TEXT),
CAST(properties AS TEXT), CAST(body AS BLOB) FROM message WHERE tag = ?"""
NO_TIME = -math.inf
"""Replaces the due time of a damaged row."""
_NUMBERS = (float, int)


def is_strict(connection: sqlite3.Connection) -> bool:
    """Whether column types are enforced."""
    (strict,) = connection.execute(STRICT).fetchone()
    return bool(strict)


def mend_dues(connection: sqlite3.Connection) -> None:
    """Within a transaction: make delayed messages without a valid due time ready."""
    connection.execute(MEND)


def without_damaged(connection: sqlite3.Connection, rows: list[Leased], now: float) -> list[Leased]:
    """Within the transaction that claimed *rows*: make dead letters of the damaged ones, and return the
    others."""
    sound = []
    for row in rows:
        wrong = _wrong(row)
        if not wrong:
            sound.append(row)
            continue
        reason = f"its row is damaged: {wrong} is {type(getattr(row, wrong)).__name__}"
        logger.error("message %d in %s becomes a dead letter: %s", row.tag, row.queue, reason)
        connection.execute(DEAD_LETTER, (reason, now, row.tag))
        connection.execute("DELETE FROM message WHERE tag = ?", (row.tag,))
    return sound


def _wrong(row: Leased) -> str:
    """Return the first column with a wrong type; '' if there is none."""
    _, _, priority, due, deliveries, _, requeued, headers, properties, body = row
    for name, well in (
        ("priority", type(priority) is int),
        ("due", due is None or type(due) in _NUMBERS),
        ("deliveries", type(deliveries) is int),
        ("requeued", type(requeued) is int),
        ("headers", type(headers) is str),
        ("properties", properties is None or type(properties) is str),
        ("body", type(body) is bytes),
    ):
        if not well:
            return name
    return ""
