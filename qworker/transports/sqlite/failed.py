"""Failed tasks of the embedded broker: looked at, sent again, discarded.

Comes from:  people and tools, by ``Broker.failed``; the consumer puts them there.
Goes to:     the table ``failed``; ``message`` and ``result`` when one is sent again.
Thread:      any, in turn, on the connection that publishes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, FailedTasks
from qworker.transports.sqlite import NEXT_TAG, READY, Handle, Notifier
from qworker.transports.sqlite.admin import selections

KEPT = """SELECT tag, CAST(queue AS TEXT), CAST(reason AS TEXT), CAST(died_at AS REAL),
CAST(deliveries AS INTEGER), CAST(headers AS TEXT), CAST(properties AS TEXT), CAST(body AS BLOB) FROM failed
WHERE ? IS NULL OR queue = ? ORDER BY died_at DESC, tag DESC LIMIT ?"""
FORGET_FAILURE = """DELETE FROM result WHERE status = 'FAILURE' AND task_id =
(SELECT CASE WHEN json_valid(headers) THEN json_extract(headers, '$.id') END FROM failed WHERE tag = ?)"""
SEND = f"""INSERT INTO message (tag, queue, priority, state, sent, redelivered, headers, properties, body)
SELECT {NEXT_TAG}, queue, priority, {READY}, ?, 1, ?, ?, ? FROM failed WHERE tag = ?"""


class SQLiteFailed(FailedTasks):
    """handle: the connection that publishes. notifier: tells who waits for messages."""

    def __init__(self, handle: Handle, notifier: Notifier, clock: Clock) -> None:
        self._handle = handle
        self._notifier = notifier
        self._clock = clock

    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return [Dead(*row) for row in self._handle.read(KEPT, (queue, queue, limit))]

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for tag, headers, properties, body in calls:
                connection.execute(FORGET_FAILURE, (tag,))
                count += connection.execute(SEND, (now, headers, properties, body, tag)).rowcount
                connection.execute("DELETE FROM failed WHERE tag = ?", (tag,))
            return count

        count = self._handle.write(work)
        self._notifier.notify()
        return count

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._handle.write(
            lambda connection: sum(
                connection.execute(f"DELETE FROM failed {where}", values).rowcount
                for where, values in selections(tags)
            )
        )
