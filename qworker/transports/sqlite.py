"""The embedded broker: a LeaseStore in one SQLite file.

Comes from:  ``broker_url`` ``sqlite:///path``, or no broker_url at all.
Goes to:     the tables of ``embedded``.
Thread:      one connection publishes (any thread, in turn), one belongs to the listener; neither crosses a fork.

Publishing is durable: the commit is on the disk (``synchronous=FULL``) before push returns; callers that wait
together share one commit. The worker's own claims and acks are NORMAL: a power cut may undo the last of them,
which only means running a task again.

Who holds leases has a row in ``owner`` and a locked file. The kernel drops the lock with the process, so the
death of a holder is certain and seen at once; a holder that lives but does not renew for ``lease_seconds`` is
taken for dead too. Leases run on the clock that all processes of one boot share, never on the wall clock.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from qworker.clock import SYSTEM_CLOCK, Clock, boottime
from qworker.crash_points import CRASHING, crash_point
from qworker.embedded import DELAYED, READY, Database, Handle, Ringer, database_path, transaction
from qworker.errors import BrokerUnavailable
from qworker.transports.lease import Dead, Envelope, LeaseStore, QueueInfo
from qworker.transports.sqlite_bindings import Bindings
from qworker.transports.sqlite_holder import Holder
from qworker.transports.sqlite_reclaim import lives, lock_path

INSERT = """INSERT INTO message (queue, priority, due, state, sent, headers, properties, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
TO_MESSAGE = f"""INSERT INTO message (queue, priority, state, sent, redelivered, headers, properties, body)
SELECT queue, priority, {READY}, ?, 1, headers, properties, body FROM dead"""
FORGET_FAILURE = """DELETE FROM result WHERE status = 'FAILURE' AND task_id IN (
SELECT CASE WHEN json_valid(headers) THEN json_extract(headers, '$.id') END FROM dead"""
"""Who waits for a retried task is to see its new end, not the old one."""
REVOKE = "INSERT INTO revoked (task_id, terminate, signal, expires) VALUES (?, ?, ?, ?)"
QUEUES = """SELECT queue, sum(state = 0), sum(state = 1), sum(state = 2), 0, min(CASE state WHEN 0 THEN sent END)
FROM message GROUP BY queue UNION ALL SELECT queue, 0, 0, 0, count(*), NULL FROM dead GROUP BY queue"""

_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()


class _Pending:
    """Envelopes of one push that wait for the next commit."""

    __slots__ = ("done", "envelopes", "error")

    def __init__(self, envelopes: Sequence[Envelope]) -> None:
        self.envelopes = envelopes
        self.done = False
        self.error: Exception | None = None


class SQLiteStore(Holder, Bindings, LeaseStore):
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
        self._messages = Ringer(self._database.bells, "message")
        self._results = Ringer(self._database.bells, "result")
        self._pending: deque[_Pending] = (
            deque()
        )  # filled by any thread, emptied by who has the publisher's turn
        super().__init__(lease_seconds, uptime)
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: what the parent was about to publish, and the leases it holds, are not ours."""
        self._pending = deque()
        self._disown()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        mine = _Pending(envelopes)
        self._pending.append(mine)
        turn = self._publisher.turn
        deadline = time.monotonic() + timeout
        if not turn.acquire(timeout=timeout):
            try:
                self._pending.remove(mine)
            except ValueError:
                pass  # its commit is under way: only that can tell
            else:
                raise BrokerUnavailable(
                    f"{self.path} took no message within {timeout:g} s; nothing was published"
                )
            turn.acquire()
        try:
            if not mine.done:
                self._publish(mine, deadline)
        finally:
            turn.release()
        if mine.error is not None:
            raise mine.error

    def _publish(self, mine: _Pending, deadline: float) -> None:
        """Store all that is pending in one transaction: the caller's, and what others brought meanwhile."""
        others: list[_Pending] = []
        while self._pending:
            pending = self._pending.popleft()
            if pending is not mine:
                others.append(pending)
        batch = [mine, *others]
        error = self._store(batch, deadline)
        if error is not None and others:
            # One bad message, or one caller's short patience, is not the others' failure: they try for themselves.
            self._pending.extendleft(reversed(others))
            batch = [mine]
            error = self._store(batch, deadline)
        for pending in batch:
            pending.error, pending.done = error, True
        if error is None:
            self._messages.ring()

    def _store(self, batch: Sequence[_Pending], deadline: float) -> Exception | None:
        """Store *batch* in one transaction; return the error for which nothing of it was stored."""
        now = self._clock.now()
        try:
            with transaction(self._publisher.opened(), max(0.0, deadline - time.monotonic())) as connection:
                connection.executemany(
                    INSERT,
                    [
                        (
                            message.queue,
                            message.priority,
                            message.due,
                            DELAYED if message.due is not None and message.due > now else READY,
                            now,
                            message.headers,
                            message.properties,
                            message.body,
                        )
                        for pending in batch
                        for message in pending.envelopes
                    ],
                )
                if CRASHING:
                    crash_point("publishing")
        except Exception as error:
            return self._publisher.failed(error)
        if CRASHING:
            crash_point("published")
        return None

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._clock.now() + self._revoke_expires
        with self._publisher as connection, transaction(connection):
            connection.executemany(REVOKE, [(task_id, terminate, signal, until) for task_id in ids])
        self._messages.ring()

    # -- administration --

    def queues(self) -> list[QueueInfo]:
        with self._publisher as connection:
            rows = connection.execute(QUEUES).fetchall()
        found: dict[str, QueueInfo] = {}
        for row in rows:
            known = found.get(row[0])
            found[row[0]] = known._replace(dead=row[4]) if known else QueueInfo(*row)
        return sorted(found.values())

    def purge(self, queue: str) -> int:
        with self._publisher as connection, transaction(connection):
            return connection.execute(
                f"DELETE FROM message WHERE queue = ? AND state IN ({READY}, {DELAYED})", (queue,)
            ).rowcount

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        with self._publisher as connection:
            rows = connection.execute(
                "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM dead "
                "WHERE ? IS NULL OR queue = ? ORDER BY died_at DESC, tag DESC LIMIT ?",
                (queue, queue, limit),
            ).fetchall()
        return [Dead(*row) for row in rows]

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()
        with self._publisher as connection, transaction(connection):
            count = 0
            for where, values in _selections(tags):
                connection.execute(f"{FORGET_FAILURE} {where})", values)
                count += connection.execute(f"{TO_MESSAGE} {where} ORDER BY tag", (now, *values)).rowcount
                connection.execute(f"DELETE FROM dead {where}", values)
        self._messages.ring()
        return count

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        with self._publisher as connection, transaction(connection):
            return sum(
                connection.execute(f"DELETE FROM dead {where}", values).rowcount
                for where, values in _selections(tags)
            )

    def workers(self) -> list[dict[str, object]]:
        with self._publisher as connection:
            rows = connection.execute(
                "SELECT id, name, pid, queues, concurrency, started FROM owner WHERE concurrency > 0"
            ).fetchall()
        return [
            {
                "name": name,
                "pid": pid,
                "queues": queues.split("\n"),
                "concurrency": concurrency,
                "started": started,
            }
            for id, name, pid, queues, concurrency, started in rows
            if lives(lock_path(self._database, id))
        ]

    def close(self) -> None:
        try:
            self.resign()
        finally:
            self._publisher.close()
            self._close_holder()
            self._messages.close()
            self._results.close()


def _selections(tags: Sequence[int] | None) -> list[tuple[str, tuple[int, ...]]]:
    """The WHERE clauses that select *tags*, in portions that SQLite's limit of variables allows."""
    if tags is None:
        return [("", ())]
    portions = [tuple(tags[start : start + 500]) for start in range(0, len(tags), 500)]
    return [(f"WHERE tag IN ({','.join('?' * len(portion))})", portion) for portion in portions]


def _forked() -> None:
    for store in list(_stores):
        store._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
