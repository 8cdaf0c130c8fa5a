"""Dead letters and failed tasks of the embedded broker: read, sent again, discarded.

Comes from:  users and tools, through ``Broker.letters``; the consumer stores them.
Goes to:     the tables ``dead`` and ``failed``; ``message`` and ``result`` when one is sent again.
Thread:      any, in turn, on the connection that publishes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, Kind, Letters
from qworker.transports.portions import portions
from qworker.transports.sql.embedded import NEXT_TAG, READY, Handle, Notifier

MOST_VARIABLES = 500
PAGE = """SELECT tag, CAST(queue AS TEXT), CAST(reason AS TEXT), CAST(died_at AS REAL),
CAST(deliveries AS INTEGER), CAST(headers AS TEXT), CAST(properties AS TEXT), CAST(body AS BLOB) FROM {kind}
WHERE (? IS NULL OR queue = ?){after} ORDER BY died_at DESC, tag DESC LIMIT ?"""
# As stored: in a file that was not STRICT, it may not be a number.
AFTER = " AND (died_at, tag) < (coalesce((SELECT died_at FROM {kind} WHERE tag = ?), ?), ?)"
INSERT = """INSERT INTO {kind} (tag, queue, reason, died_at, deliveries, priority, headers, properties, body)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"""
# So that callers that wait for a task that is sent again see its new result.
FORGET_FAILURE = """DELETE FROM result WHERE status = 'FAILURE' AND task_id IN
(SELECT CASE WHEN json_valid(headers) THEN json_extract(headers, '$.id') END FROM {kind} {where})"""
_SEND = f"""INSERT INTO message (tag, queue, priority, state, sent, redelivered, headers, properties, body)
SELECT {NEXT_TAG}, queue, priority, {READY}, ?, 1, {{message}} FROM {{kind}} WHERE tag = ?"""
SEND = _SEND.replace("{message}", "headers, properties, body")
SEND_CHANGED = _SEND.replace("{message}", "?, ?, ?")


class SQLiteLetters(Letters):
    """kind: the table. handle: the connection that publishes. notifier: notifies waiting consumers."""

    def __init__(self, kind: Kind, handle: Handle, notifier: Notifier, clock: Clock) -> None:
        self._kind = kind
        self._handle = handle
        self._notifier = notifier
        self._clock = clock

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        where, place = ("", ()) if after is None else (AFTER, (after.tag, after.died_at, after.tag))
        statement = PAGE.replace("{after}", where).format(kind=self._kind)
        rows = self._handle.read(statement, (queue, queue, *place, limit))
        return [Dead(*row) for row in rows]

    def retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for where, values in selections(tags):
                connection.execute(FORGET_FAILURE.format(kind=self._kind, where=where), values)
                statement = f"SELECT tag FROM {self._kind} {where} ORDER BY tag"
                found = connection.execute(statement, values).fetchall()
                connection.executemany(SEND.format(kind=self._kind), [(now, tag) for (tag,) in found])
                count += len(found)
                connection.execute(f"DELETE FROM {self._kind} {where}", values)
            return count

        return self._sent(self._handle.write(work))

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()
        forget = FORGET_FAILURE.format(kind=self._kind, where="WHERE tag = ?")

        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for tag, headers, properties, body in calls:
                connection.execute(forget, (tag,))
                values = (now, headers, properties, body, tag)
                count += connection.execute(SEND_CHANGED.format(kind=self._kind), values).rowcount
                connection.execute(f"DELETE FROM {self._kind} WHERE tag = ?", (tag,))
            return count

        return self._sent(self._handle.write(work))

    def _sent(self, count: int) -> int:
        self._notifier.notify()
        return count

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._handle.write(
            lambda connection: sum(
                connection.execute(f"DELETE FROM {self._kind} {where}", values).rowcount
                for where, values in selections(tags)
            )
        )

    def push(self, letters: Sequence[Dead]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            (first,) = connection.execute(f"SELECT {NEXT_TAG}").fetchone()
            rows = [(first + offset, *letter[1:]) for offset, letter in enumerate(letters)]
            connection.executemany(INSERT.format(kind=self._kind), rows)
            if rows:  # a message with the tag of a letter would replace it when it dies
                connection.execute("UPDATE highest SET tag = ?", (rows[-1][0],))

        self._handle.write(work)


def selections(tags: Sequence[int] | None) -> list[tuple[str, tuple[int, ...]]]:
    """Return the WHERE clauses that select *tags*, in portions allowed by SQLite's limit of variables."""
    if tags is None:
        return [("", ())]
    return [
        (f"WHERE tag IN ({','.join('?' * len(some))})", tuple(some))
        for some in portions(tags, MOST_VARIABLES)
    ]
