"""The embedded broker: a Broker in one SQLite file.

Comes from:  ``broker_url`` ``sqlite:///path``, or no broker_url at all.
Goes to:     the tables of ``schema``.
Thread:      one connection publishes (any thread, in turn), one belongs to the listener; neither crosses a
             fork.

Publishing is durable: the commit is on the disk (``synchronous=FULL``) before push returns; callers that wait
together share one commit. The worker's own claims and acks are NORMAL: a power failure may undo the last of
them, which only means running a task again.

A consumer with leases has a row in ``owner`` and a locked file. The kernel releases the lock with the
process, so the death of a consumer is certain and noticed at once; one that is alive but does not renew for
``lease_seconds`` is considered dead too. Leases use the clock shared by all processes of one boot, never the
wall clock.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qworker.clock import SYSTEM_CLOCK, Clock, boot_id, boottime
from qworker.process.forked import forgetful
from qworker.process.owner_files import died, lock_beside
from qworker.transports.capabilities import Capabilities
from qworker.transports.lease import (
    Admin,
    Again,
    Broker,
    Dead,
    Delayed,
    Kind,
    Letters,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    Revocations,
    StoredResults,
    Workers,
)
from qworker.transports.portions import portions
from qworker.transports.presence import Presence, from_text
from qworker.transports.registry import Registry
from qworker.transports.sql.embedded import (
    DELAYED,
    LEASED,
    NEXT_TAG,
    READY,
    Database,
    Notifier,
    database_path,
)
from qworker.transports.sql.embedded.consumer import SQLiteConsumer, StoreRows, store_rows
from qworker.transports.sql.embedded.handle import Handle
from qworker.transports.sql.embedded.sender import SQLiteSender

if TYPE_CHECKING:
    from qworker.conf import Settings

MOST_VARIABLES = 500
PAGE = """SELECT tag, CAST(queue AS TEXT), CAST(reason AS TEXT), CAST(died_at AS REAL),
CAST(deliveries AS INTEGER), CAST(headers AS TEXT), CAST(properties AS TEXT), CAST(body AS BLOB) FROM {kind}
WHERE (? IS NULL OR queue = ?){after} ORDER BY died_at DESC, tag DESC LIMIT ?"""
# As stored: in a file that was not STRICT, it may not be a number.
OLDER = " AND (died_at, tag) < (coalesce((SELECT died_at FROM {kind} WHERE tag = ?), ?), ?)"
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
        where, place = ("", ()) if after is None else (OLDER, (after.tag, after.died_at, after.tag))
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


PREFIX = "registry:"
"""Prefix of keys. The expiry is in the value: rows with ``expires`` are deleted by sweep()."""
AFTER = "registry;"
"""The first text that sorts after all keys with the prefix."""


class SQLiteRegistry(Registry):
    """handle: the connection that publishes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def entries(self) -> dict[str, float | None]:
        rows = self._handle.read(
            "SELECT CAST(key AS TEXT), CAST(value AS REAL) FROM key_value WHERE key >= ? AND key < ?",
            (PREFIX, AFTER),
        )
        return {key.removeprefix(PREFIX): expires or None for key, expires in rows}

    def put(self, entries: Mapping[str, float | None]) -> None:
        rows = [(PREFIX + entry, repr(expires or 0.0)) for entry, expires in entries.items()]
        if rows:
            self._handle.write(
                lambda connection: connection.executemany(
                    "INSERT OR REPLACE INTO key_value (key, value) VALUES (?, ?)", rows
                )
            )

    def drop(self, entries: Iterable[str]) -> None:
        rows = [(PREFIX + entry,) for entry in entries]
        if rows:
            self._handle.write(
                lambda connection: connection.executemany("DELETE FROM key_value WHERE key = ?", rows)
            )


CAPABILITIES = Capabilities(
    "SQLite (embedded)",
    ("sqlite",),
    accepted="committed to the file, on the disk (`embedded_synchronous`)",
    redelivered="at once: the kernel drops a dead worker's lock; a frozen worker's after "
    "worker_lease_seconds",
    eta="a column; fetched when due",
    priority="0 to 9",
    fanout="a table, read by all workers, including those that start later",
    dead_letters="a table",
    failed_tasks="a table",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="One host; not on a network file system. A new file can be read by its owner only; chmod "
    "gives access to others.",
)

_brokers = forgetful()


class SQLiteBroker(Broker):
    """The embedded broker. Opens the file on first use.

    url: ``sqlite:///path`` or None for the default file.
    synchronous: FULL or NORMAL, for publishing.
    lease_seconds: how long a silent consumer is considered alive.
    revoke_expires: seconds for which a revocation is valid.
    uptime: the clock for leases, in seconds: shared by all processes of this boot, and never set.
    store_rows: stores the results of settlements.
    """

    sender: SQLiteSender
    consumer: SQLiteConsumer

    def __init__(
        self,
        url: str | None = None,
        *,
        synchronous: str = "FULL",
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] = boottime,
        store_rows: StoreRows = store_rows,
    ) -> None:
        self.path = database_path(url)
        database = Database(self.path, synchronous)
        self._publishing = Handle(database)
        self._messages = Notifier(database.pipes, "message")
        self._results = Notifier(database.pipes, "result")
        kinds: tuple[Kind, ...] = ("dead", "failed")
        self._revocations = Notifier(database.pipes, "revoked")
        sender = SQLiteSender(
            self._publishing, self._messages, self._revocations, self.path, clock, revoke_expires
        )
        consumer = SQLiteConsumer(
            database, self._messages, self._results, clock, lease_seconds, uptime, store_rows
        )
        admin = SQLiteAdmin(
            self._publishing, self._messages, database.owners, lambda: uptime() - lease_seconds
        )
        super().__init__(
            f"sqlite:///{self.path}",
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: SQLiteLetters(kind, self._publishing, self._messages, clock) for kind in kinds},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin,
            by_queue=None,
            registry=SQLiteRegistry(self._publishing),
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self._database = database
        _brokers.add(self)

    @property
    def missing(self) -> str | None:
        return str(self.path) if self._database.is_absent() else None

    def _after_fork(self) -> None:
        self.sender.after_fork()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._publishing.close()
            self.consumer.close()
            self._messages.close()
            self._revocations.close()
            self._results.close()


def open_broker(url: str | None, conf: Settings) -> SQLiteBroker:
    """Return the embedded broker at *url* with the settings *conf*; the file is opened on first use."""
    return SQLiteBroker(
        url,
        synchronous=conf.embedded_synchronous,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )
