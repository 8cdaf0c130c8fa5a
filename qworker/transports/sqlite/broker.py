"""The embedded broker: a Broker in one SQLite file.

Comes from:  ``broker_url`` ``sqlite:///path``, or no broker_url at all.
Goes to:     the tables of ``embedded``.
Thread:      one connection publishes (any thread, in turn), one belongs to the listener; neither crosses a
             fork.

Publishing is durable: the commit is on the disk (``synchronous=FULL``) before push returns; callers that wait
together share one commit. The worker's own claims and acks are NORMAL: a power cut may undo the last of them,
which only means running a task again.

Who holds leases has a row in ``owner`` and a locked file. The kernel drops the lock with the process, so the
death of a holder is certain and seen at once; a holder that lives but does not renew for ``lease_seconds`` is
taken for dead too. Leases run on the clock that all processes of one boot share, never on the wall clock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qworker.clock import SYSTEM_CLOCK, Clock, boot_id, boottime
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.forked import forgetful
from qworker.transports.group_commit import GroupCommit
from qworker.transports.lease import Dead, Envelope, QueueInfo, Undivided
from qworker.transports.owner_files import died, lock_beside
from qworker.transports.sqlite import (
    DELAYED,
    NEXT_NUMBER,
    NEXT_TAG,
    READY,
    REVOKED,
    Database,
    Handle,
    Notifier,
    database_path,
    transaction,
    write,
)
from qworker.transports.sqlite.bindings import Bindings
from qworker.transports.sqlite.consumer import Holder

if TYPE_CHECKING:
    from qworker.conf import Settings

INSERT = f"""INSERT INTO message (tag, queue, priority, due, state, sent, headers, properties, body)
VALUES ({NEXT_TAG}, ?, ?, ?, ?, ?, ?, ?, ?)"""
INSERT_DEAD = """INSERT INTO dead (tag, queue, reason, died_at, deliveries, priority, headers, properties,
body)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"""
FLUSH = f"UPDATE message SET state = {READY}, due = NULL WHERE queue = ? AND state = {DELAYED}"
TO_MESSAGE = f"""INSERT INTO message (tag, queue, priority, state, sent, redelivered, headers, properties,
body)
SELECT {NEXT_TAG}, queue, priority, {READY}, ?, 1, headers, properties, body FROM dead WHERE tag = ?"""
FORGET_FAILURE = """DELETE FROM result WHERE status = 'FAILURE' AND task_id IN (
SELECT CASE WHEN json_valid(headers) THEN json_extract(headers, '$.id') END FROM dead"""
"""Who waits for a retried task is to see its new end, not the old one."""
REVOKE = f"""INSERT INTO revoked (seq, task_id, terminate, signal, expires)
VALUES ({NEXT_NUMBER.format(table="revoked")}, ?, ?, ?, ?)"""
QUEUES = """SELECT queue, 'ready', count, (SELECT sent FROM message WHERE tag = first)
FROM (SELECT queue, count(*) AS count, min(tag) AS first FROM message WHERE state = 0 GROUP BY queue)
UNION ALL SELECT queue, 'delayed', count(*), NULL FROM message WHERE state = 1 GROUP BY queue
UNION ALL SELECT queue, 'leased', count(*), NULL FROM message WHERE state = 2 GROUP BY queue
UNION ALL SELECT queue, 'dead', count(*), NULL FROM dead GROUP BY queue"""
"""Counted in the indexes alone: the messages themselves are not read."""

_stores = forgetful()


class SQLiteBroker(Holder, Bindings, Undivided):
    """The embedded broker. Opens the file at the first use, not before.

    url: ``sqlite:///path`` or None for the default file.
    synchronous: FULL or NORMAL, for publishing.
    lease_seconds: how long a silent holder is believed to live.
    uptime: seconds on a clock that all processes of this boot share and nobody sets, for the leases.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        synchronous: str = "FULL",
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] = boottime,
    ) -> None:
        self.path = database_path(url)
        self.url = f"sqlite:///{self.path}"
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._database = Database(self.path, synchronous)
        self._publisher = Handle(self._database)
        self._messages = Notifier(self._database.pipes, "message")
        self._results = Notifier(self._database.pipes, "result")
        self._commits = GroupCommit(self._publisher, self._store, str(self.path))
        super().__init__(lease_seconds, uptime)
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: what the parent was about to publish, and the leases it holds, are not ours."""
        self._commits.forget()
        self._disown()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self._commits.push(envelopes, timeout)

    def _store(self, envelopes: Sequence[Envelope], deadline: float) -> Exception | None:
        """Store *envelopes* in one transaction; return the error for which nothing of it was stored."""
        now = self._clock.now()
        rows = [
            (
                queue,
                priority,
                due,
                READY if due is None or due <= now else DELAYED,
                now,
                headers,
                properties,
                body,
            )
            for queue, headers, properties, body, priority, due, _ in envelopes
        ]

        def work(connection: sqlite3.Connection) -> None:
            if CRASHING:
                crash_point("publishing")
            if len(rows) == 1:
                write(connection, INSERT, rows[0], deadline - time.monotonic())
            else:
                with transaction(connection, deadline - time.monotonic()):
                    connection.executemany(INSERT, rows)

        try:
            self._publisher.use(work)
        except Exception as error:  # noqa: BLE001 - it is returned to who pushed
            return error
        if CRASHING:
            crash_point("published")
        self._messages.notify()
        return None

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        now = self._clock.now()
        number, until = int(now * 1_000_000), now + self._revoke_expires
        rows = [(number, task_id, terminate, signal, until) for task_id in ids]
        self._publisher.write(lambda connection: connection.executemany(REVOKE, rows))
        self._messages.notify(REVOKED)

    # -- administration --

    def next_due(self, queues: Sequence[str]) -> float | None:
        marks = ",".join("?" * len(queues))
        statement = f"SELECT min(due) FROM message WHERE state = {DELAYED} AND queue IN ({marks})"
        due = self._publisher.read(statement, tuple(queues))[0][0]
        return due if isinstance(due, float | int) else None

    def queues(self) -> list[QueueInfo]:
        rows = self._publisher.read(QUEUES)
        found: dict[str, QueueInfo] = {}
        for name, state, count, oldest in rows:
            queue = name if isinstance(name, str) else repr(name)
            info = found.get(queue) or QueueInfo(queue, 0, 0, 0, 0, None)
            found[queue] = info._replace(**{state: count, "oldest": oldest or info.oldest})
        return sorted(found.values())

    def purge(self, queue: str) -> int:
        statement = f"DELETE FROM message WHERE queue = ? AND state IN ({READY}, {DELAYED})"
        return self._publisher.write(lambda connection: connection.execute(statement, (queue,)).rowcount)

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        rows = self._publisher.read(
            "SELECT tag, CAST(queue AS TEXT), CAST(reason AS TEXT), CAST(died_at AS REAL), CAST(deliveries "
            "AS INTEGER), "
            "CAST(headers AS TEXT), CAST(properties AS TEXT), CAST(body AS BLOB) FROM dead "
            "WHERE ? IS NULL OR queue = ? ORDER BY died_at DESC, tag DESC LIMIT ?",
            (queue, queue, limit),
        )
        return [Dead(*row) for row in rows]

    def push_dead(self, letters: Sequence[Dead]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            (first,) = connection.execute(f"SELECT {NEXT_TAG}").fetchone()
            rows = [(first + offset, *letter[1:]) for offset, letter in enumerate(letters)]
            connection.executemany(INSERT_DEAD, rows)
            if rows:  # no message is to get the tag of a dead letter: it would replace it when it dies
                connection.execute("UPDATE highest SET tag = ?", (rows[-1][0],))

        self._publisher.write(work)

    def flush_delayed(self, queue: str) -> int:
        count = self._publisher.write(lambda connection: connection.execute(FLUSH, (queue,)).rowcount)
        self._messages.notify()
        return count

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for where, values in _selections(tags):
                connection.execute(f"{FORGET_FAILURE} {where})", values)
                found = connection.execute(f"SELECT tag FROM dead {where} ORDER BY tag", values).fetchall()
                connection.executemany(TO_MESSAGE, [(now, tag) for (tag,) in found])
                count += len(found)
                connection.execute(f"DELETE FROM dead {where}", values)
            return count

        count = self._publisher.write(work)
        self._messages.notify()
        return count

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        return self._publisher.write(
            lambda connection: sum(
                connection.execute(f"DELETE FROM dead {where}", values).rowcount
                for where, values in _selections(tags)
            )
        )

    def workers(self) -> list[dict[str, object]]:
        rows = self._publisher.read(
            "SELECT CAST(name AS TEXT), pid, CAST(queues AS TEXT), concurrency, started, CAST(boot AS TEXT), "
            "CAST(marks AS TEXT) FROM owner "
            "WHERE concurrency > 0 AND lease_until > ?",
            (self._uptime() - self._lease_seconds,),
        )
        return [
            {
                "name": name,
                "pid": pid,
                "queues": queues.split("\n"),
                "concurrency": concurrency,
                "started": started,
            }
            for name, pid, queues, concurrency, started, boot, marks in rows
            if boot == boot_id()
            and not died(lock_beside(str(self._database.owners / marks.replace("\0", ""))), boot)
        ]

    def close(self) -> None:
        try:
            self.deregister()
        finally:
            self._publisher.close()
            self._close_holder()
            self._messages.close()
            self._results.close()


def open_broker(url: str | None, conf: Settings) -> SQLiteBroker:
    """The embedded broker at *url* with the settings *conf*; the file is opened at the first use."""
    return SQLiteBroker(
        url,
        synchronous=conf.embedded_synchronous,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )


def _selections(tags: Sequence[int] | None) -> list[tuple[str, tuple[int, ...]]]:
    """The WHERE clauses that select *tags*, in portions that SQLite's limit of variables allows."""
    if tags is None:
        return [("", ())]
    portions = [tuple(tags[start : start + 500]) for start in range(0, len(tags), 500)]
    return [(f"WHERE tag IN ({','.join('?' * len(portion))})", portion) for portion in portions]
