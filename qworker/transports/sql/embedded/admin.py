"""Administration of the embedded broker: queues, workers.

Comes from:  users and tools, through ``Broker.admin``.
Goes to:     all tables; the notification pipes of waiting consumers.
Thread:      any, in turn, on the connection that publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qworker.clock import boot_id
from qworker.process.owner_files import died, lock_beside
from qworker.transports.lease import (
    Admin,
    Delayed,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    StoredResults,
)
from qworker.transports.presence import Presence, from_text
from qworker.transports.sql.embedded import DELAYED, LEASED, READY, Handle, Notifier

FLUSH = f"UPDATE message SET state = {READY}, due = NULL WHERE queue = ? AND state = {DELAYED}"
QUEUES = """SELECT queue, 'ready', count, (SELECT sent FROM message WHERE tag = first)
FROM (SELECT queue, count(*) AS count, min(tag) AS first FROM message WHERE state = 0 GROUP BY queue)
UNION ALL SELECT queue, 'delayed', count(*), NULL FROM message WHERE state = 1 GROUP BY queue
UNION ALL SELECT queue, 'leased', count(*), NULL FROM message WHERE state = 2 GROUP BY queue
UNION ALL SELECT queue, 'dead', count(*), NULL FROM dead GROUP BY queue"""
"""Counted in the indexes alone: the messages themselves are not read."""

_PEEK = """SELECT CAST(priority AS INTEGER), CAST(due AS REAL), CAST(sent AS REAL),
CAST(deliveries AS INTEGER), CAST(headers AS TEXT),
ifnull((SELECT CAST(name AS TEXT) FROM owner WHERE id = message.owner), '')
FROM message WHERE queue = ? AND state = {state} ORDER BY {order} LIMIT ?"""
PEEK: Mapping[MessageState, str] = {
    "ready": _PEEK.format(state=READY, order="priority DESC, tag"),
    "delayed": _PEEK.format(state=DELAYED, order="due, tag"),
    "leased": _PEEK.format(state=LEASED, order="tag"),
}


class SQLiteAdmin(Admin, Listing, Peeking, Delayed, StoredResults):
    """handle: the connection that publishes. notifier: notifies waiting consumers. owners: the directory of
    owner files. silent_since: returns the time, on the clock of leases, since which a worker must have
    renewed."""

    purges_leased = False

    def __init__(
        self,
        handle: Handle,
        notifier: Notifier,
        owners: Path,
        silent_since: Callable[[], float],
    ) -> None:
        self._handle = handle
        self._notifier = notifier
        self._owners = owners
        self._silent_since = silent_since

    def may_have_due_joins(self, now: float) -> bool:
        return True  # no need to look: the joins are in the same file

    def next_due(self, queues: Sequence[str]) -> float | None:
        marks = ",".join("?" * len(queues))
        statement = f"SELECT min(due) FROM message WHERE state = {DELAYED} AND queue IN ({marks})"
        rows = self._handle.read(statement, tuple(queues))  # none if there is no file yet
        return rows[0][0] if rows else None

    def queues(self) -> list[QueueInfo]:
        rows = self._handle.read(QUEUES)
        found: dict[str, QueueInfo] = {}
        for name, state, count, oldest in rows:
            queue = name if isinstance(name, str) else repr(name)
            info = found.get(queue) or QueueInfo(queue, 0, 0, 0, 0, None)
            found[queue] = info._replace(**{state: count, "oldest": oldest or info.oldest})
        return sorted(found.values())

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        rows = self._handle.read(PEEK[state], (queue, limit))
        return [Peeked(queue, state, *row) for row in rows]

    def purge(self, queue: str) -> int:
        statement = f"DELETE FROM message WHERE queue = ? AND state IN ({READY}, {DELAYED})"
        return self._handle.write(lambda connection: connection.execute(statement, (queue,)).rowcount)

    def flush_delayed(self, queue: str) -> int:
        count = self._handle.write(lambda connection: connection.execute(FLUSH, (queue,)).rowcount)
        self._notifier.notify()
        return count

    def workers(self) -> list[Presence]:
        rows = self._handle.read(
            "SELECT CAST(name AS TEXT), pid, CAST(queues AS TEXT), concurrency, started, CAST(boot AS TEXT), "
            "CAST(marks AS TEXT), CAST(presence AS TEXT) FROM owner "
            "WHERE concurrency > 0 AND lease_until > ?",
            (self._silent_since(),),
        )
        return [
            from_text(text, Presence(name, pid, tuple(queues.split("\n")), concurrency, started))
            for name, pid, queues, concurrency, started, boot, marks, text in rows
            if boot == boot_id() and not died(lock_beside(str(self._owners / marks.replace("\0", ""))), boot)
        ]
