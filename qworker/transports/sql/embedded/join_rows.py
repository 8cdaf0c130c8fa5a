"""Joins in the file: how their parts are counted.

Comes from:  ``consumer.py``, in the transaction of the ack; ``backends/sql/joins.py``.
Goes to:     the tables ``joins`` and ``part``.
Thread:      any; within a write transaction of the caller's.

Parts refer to their join's number, ``seq``. ``remaining`` is how many are missing, and ``due`` when it may be
claimed: 0 once all are there, otherwise when it expires, or when a claim ends. Parts are only inserted here,
under the write lock, so ``remaining`` is correct. A finished join is kept without members, with -1 in
``remaining``, until it is ``due``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from qworker.process.crash_points import crash_point
from qworker.transports.join_parts import by_join
from qworker.transports.lease import Part

FIND = "SELECT seq, size FROM joins WHERE id = ?"
INSERT = "INSERT INTO part (seq, number, task_id, status) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
COUNT = """UPDATE joins SET remaining = remaining - :new,
due = CASE WHEN remaining <= :new AND token IS NULL THEN 0.0 ELSE due END WHERE seq = :seq"""


def record(connection: sqlite3.Connection, parts: Sequence[Part]) -> None:
    """Record *parts*; those of missing joins, or with too large numbers, are ignored."""
    if not parts:
        return
    for join, numbered in by_join(parts).items():
        found = connection.execute(FIND, (join,)).fetchone()
        if found is None:
            continue
        seq, size = found
        rows = [
            (seq, number, part.task_id, part.status) for number, part in numbered.items() if number < size
        ]
        new = connection.executemany(INSERT, rows).rowcount
        crash_point("recording-parts")
        if new > 0:
            connection.execute(COUNT, {"new": new, "seq": seq})
    crash_point("parts-recorded")
