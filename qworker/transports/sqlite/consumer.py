"""The leasing side of the embedded broker: who holds which message, and what becomes of a dead holder's.

Comes from:  the Listener.
Goes to:     the tables ``message``, ``owner``, ``dead`` and ``revoked`` of ``embedded``.
Thread:      listener only, but for wake().
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qworker.clock import Clock, boot_id
from qworker.errors import LeaseLost
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Ack,
    Bury,
    Claim,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.owner_files import OwnerFiles
from qworker.transports.sqlite import (
    DELAYED,
    LEASED,
    NEXT_NUMBER,
    READY,
    UPSERT_RESULT,
    Database,
    Handle,
    NotificationPipe,
    Notifier,
    transaction,
)
from qworker.transports.sqlite.bindings import drop_queues_of
from qworker.transports.sqlite.damage import NO_TIME, is_strict, mend_dues, without_damaged
from qworker.transports.sqlite.reclaim import reclaim
from qworker.transports.wakeup import WakeupPipe

COLUMNS = "tag, queue, priority, due, deliveries, redelivered, parked, headers, properties, body"
# The innermost select is cut by its limit before anything is summed up: a claim costs what it takes, not what
# waits.
FITTING = f"""UPDATE message SET state = {LEASED}, owner = ? WHERE tag IN (SELECT tag FROM (
SELECT tag, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM (%s))
WHERE before < {MAX_LEASE_BYTES})
RETURNING {COLUMNS}"""
CLAIM = FITTING % (
    "SELECT tag, length(body) AS size FROM message WHERE queue = ? AND state = 0 ORDER BY priority DESC, "
    "tag LIMIT ?"
)
CLAIM_NEAR = FITTING % (
    "SELECT tag, length(body) AS size FROM message WHERE queue = ? AND state = 1 AND due <= ? ORDER BY "
    "due LIMIT ?"
)
RIPEN = f"""UPDATE message SET state = {READY} WHERE tag IN (
SELECT tag FROM message WHERE queue = ? AND state = 1 AND due <= ? ORDER BY due LIMIT 1000)"""
NEW_OWNER = f"""INSERT INTO owner (id, name, pid, boot, queues, concurrency, lease_until, started, marks)
VALUES ({NEXT_NUMBER.format(table="owner")}, ?, ?, ?, ?, ?, ?, ?, ?)"""
ACK = "DELETE FROM message WHERE tag = ? AND owner = ?"
RELEASE = """UPDATE message SET state = ?, owner = NULL, due = coalesce(?, due), deliveries = deliveries + ?,
parked = parked + ?, redelivered = redelivered OR ? WHERE tag = ? AND owner = ?"""
BURY = """INSERT OR REPLACE INTO dead (tag, queue, reason, died_at, deliveries, priority, headers,
properties, body)
SELECT tag, queue, ?, ?, deliveries + ?, priority, headers, properties, body FROM message WHERE tag = ?
AND owner = ?"""
EXPIRED = (
    ("dead", "tag", "SELECT tag FROM dead WHERE died_at < ?"),
    ("dead", "tag", """SELECT tag FROM (SELECT tag, row_number() OVER (
        PARTITION BY queue ORDER BY died_at DESC, tag DESC) AS place FROM dead) WHERE place > ?"""),
    ("revoked", "seq", "SELECT seq FROM revoked WHERE expires < ?"),
    ("result", "task_id", "SELECT task_id FROM result WHERE expires IS NOT NULL AND expires < ?"),
    ("message", "tag", f"""SELECT tag FROM queue CROSS JOIN message ON message.queue = queue.name
        WHERE ttl IS NOT NULL AND state = {READY} AND sent < ? - ttl"""),
    ("key_value", "key", "SELECT key FROM key_value WHERE expires < ?"),
)  # fmt: skip
"""What sweep() deletes: table, key, and the selection by one limit."""
SWEEP_ROWS = 1000
LOOK_SECONDS = 0.1
"""How often to see whether the file is still there."""


class _NotAllOursError(Exception):
    """Some tags of a batch are held by another by now."""


class Holder:
    """The leasing half of SQLiteBroker, which supplies path, clock and notifiers."""

    path: Path
    _clock: Clock
    _database: Database
    _messages: Notifier
    _results: Notifier

    def __init__(self, lease_seconds: float, uptime: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._uptime = uptime
        self._handle = Handle(self._database, "NORMAL", LOOK_SECONDS)
        self._waker = WakeupPipe()
        self._turn_of_queues = 0
        self._new_holder()

    def _new_holder(self) -> None:
        self._pipe: NotificationPipe | None = None
        self._epoch = 0  # 0: no holder
        self._strict = False
        """Whether the file keeps what it is given to the types of its columns."""
        owners = self._database.owners
        self._files = OwnerFiles(lambda: owners)
        self._renew_at = 0.0

    def _disown(self) -> None:
        """In a forked child: what the parent holds stays its own, and dies with it."""
        if self._pipe is not None:
            self._pipe.close()
        self._files.let_go()
        self._close_holder()
        self._handle.pinned = None
        self._new_holder()

    def _close_holder(self) -> None:
        self._waker.close()
        self._handle.close()

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        held_in, self._handle.pinned = self._handle.pinned, None
        with self._handle as connection:
            if self._handle.file != held_in:
                self._epoch = 0  # which may be somebody else's in this file
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = NotificationPipe(self._database.pipes, "message")
            self._waker.open()
            now = self._uptime()
            with transaction(connection):
                self._give_back(connection)
                self._strict = is_strict(connection)
                if not self._strict:
                    mend_dues(connection)
                cursor = connection.execute(
                    NEW_OWNER,
                    (int(self._clock.now() * 1_000_000), name, os.getpid(), boot_id(), "\n".join(queues),
                    concurrency, now + self._lease_seconds,
                     self._clock.now(), Path(self._files.running).name),
                )  # fmt: skip
                epoch = int(cursor.lastrowid or 0)
                if CRASHING:
                    crash_point("registering")
                self._files.take()
                known = [marks for (marks,) in connection.execute("SELECT CAST(marks AS TEXT) FROM owner")]
                # There is no lock whose row is still to come: who makes one has the turn to write, as we
                # have.
                self._files.tidy(known, age=0.0)
            self._epoch, self._handle.pinned = epoch, self._handle.file
        self._renew_at = now + self._lease_seconds / 3
        return self._epoch

    def _held(self) -> Handle:
        if not self._epoch:
            raise LeaseLost("this process holds no leases: register first")
        return self._handle

    def running_path(self) -> str | None:
        return self._files.running

    # -- leasing --

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        messages = self._lease(queues, limit, delayed_limit, eta_window)
        with self._held() as connection:
            dues = [_earliest(connection, queue) for queue in queues]
            (last,) = connection.execute("SELECT ifnull(max(seq), 0) FROM revoked").fetchone()
        return Claim(messages, min((due for due in dues if due is not None), default=None), last)

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        start = self._turn_of_queues = (self._turn_of_queues + 1) % len(queues)
        order = (*queues[start:], *queues[:start])
        now = self._clock.now()
        rows: list[Leased] = []
        with self._held() as connection, transaction(connection):
            for queue in order:
                due = _earliest(connection, queue)
                if due == NO_TIME:
                    mend_dues(connection)
                    due = _earliest(connection, queue)
                if due is not None and due <= now:
                    connection.execute(RIPEN, (queue, now))
                    due = _earliest(connection, queue)
                if near > 0 and due is not None and due <= now + horizon:
                    found = connection.execute(
                        CLAIM_NEAR, (self._epoch, queue, now + horizon, near)
                    ).fetchall()
                    near -= len(found)
                    rows.extend(map(_leased, found))
                if limit > 0:
                    found = connection.execute(CLAIM, (self._epoch, queue, limit)).fetchall()
                    limit -= len(found)
                    rows.extend(map(_leased, found))
            claimed = len(rows)
            if rows and not self._strict:
                rows = without_damaged(connection, rows, now)
            if CRASHING and rows:
                crash_point("claiming")
            if rows and self._uptime() >= self._renew_at:
                self._renew(connection)
        if len(rows) < claimed:  # there may be more in the place of what was damaged
            rows += self._lease(queues, claimed - len(rows), 0, 0.0)
        rows.sort(key=_urgency)
        return rows

    def extend(self) -> None:
        with self._held() as connection, transaction(connection):
            self._renew(connection)

    def _renew(self, connection: sqlite3.Connection) -> None:
        if CRASHING:
            crash_point("renewing")
        now = self._uptime()
        changed = connection.execute(
            "UPDATE owner SET lease_until = ? WHERE id = ?", (now + self._lease_seconds, self._epoch)
        ).rowcount
        if not changed:
            raise LeaseLost(
                f"worker {self._epoch} was silent for over {self._lease_seconds:g} s and taken for dead"
            )
        self._renew_at = now + self._lease_seconds / 3

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        acks = [settlement for settlement in settlements if type(settlement) is Ack]
        rows = [ack.row for ack in acks if ack.row is not None]
        with self._held() as connection:
            try:
                with transaction(connection):
                    if acks and connection.executemany(
                        ACK, [(ack.tag, epoch) for ack in acks]
                    ).rowcount < len(acks):
                        raise _NotAllOursError
                    if CRASHING:
                        crash_point("acking")
                    connection.executemany(UPSERT_RESULT, rows)
                    others = [settlement for settlement in settlements if type(settlement) is not Ack]
                    lost = self._settle_each(connection, epoch, others)
            except _NotAllOursError:
                # Rolled back: go one by one, since only what is still ours may store its result.
                with transaction(connection):
                    lost = self._settle_each(connection, epoch, settlements)
        if rows or len(acks) < len(settlements):
            self._results.notify()
        if any(type(settlement) is Release for settlement in settlements):
            self._messages.notify()
        return lost

    def _settle_each(
        self, connection: sqlite3.Connection, epoch: int, settlements: Sequence[Settlement]
    ) -> set[int]:
        now = self._clock.now()
        lost = set()
        for settlement in settlements:
            if isinstance(settlement, Store):
                if CRASHING:
                    crash_point("storing")
                connection.execute(UPSERT_RESULT, settlement.row)
                continue
            tag = settlement.tag
            if isinstance(settlement, Release):
                due = settlement.due
                state = DELAYED if due is not None and due > now else READY
                if CRASHING:
                    crash_point("releasing")
                again = settlement.counted or settlement.redelivered
                count = connection.execute(
                    RELEASE, (state, due, settlement.counted, settlement.parked, again, tag, epoch)
                ).rowcount
            else:
                if isinstance(settlement, Bury):
                    connection.execute(BURY, (settlement.reason, now, settlement.counted, tag, epoch))
                    if CRASHING:
                        crash_point("burying")
                count = connection.execute(ACK, (tag, epoch)).rowcount
                if count and settlement.row is not None:
                    connection.execute(UPSERT_RESULT, settlement.row)
            if not count:
                lost.add(tag)
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        with self._held() as connection:
            found = reclaim(connection, self._database, self._epoch, self._uptime(), silent)
        if any(dead.returned for dead in found):
            self._messages.notify()
        return found

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._held() as connection:
            rows = connection.execute(
                "SELECT seq, CAST(task_id AS TEXT), terminate, CAST(signal AS TEXT) FROM revoked WHERE seq > "
                "? AND expires > ? ORDER BY seq",
                (cursor, self._clock.now()),
            ).fetchall()
        return (rows[-1][0] if rows else cursor), [Revocation(row[1], bool(row[2]), row[3]) for row in rows]

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        now = self._clock.now()
        limits = (now - dead_expires, dead_max, now, now, now, now)
        with self._held() as connection:
            due = [
                (table, key, selection, limit)
                for (table, key, selection), limit in zip(EXPIRED, limits, strict=True)
                if connection.execute(f"{selection} LIMIT 1", (limit,)).fetchone()
            ]
            if not due:
                return 0
            with transaction(connection):
                return sum(
                    connection.execute(
                        f"DELETE FROM {table} WHERE {key} IN ({selection} LIMIT {SWEEP_ROWS})", (limit,)
                    ).rowcount
                    for table, key, selection, limit in due
                )

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        if self._pipe is None:
            raise LeaseLost("this process holds no leases: register first")
        if self._pipe.fileno() < 0:
            return self._pipe.wait(timeout)
        _, ready = self._waker.sleep(timeout, self._pipe.fileno())
        words = self._pipe.clear() if self._pipe.fileno() in ready else b""
        return bool(words)

    def wake(self) -> None:
        self._waker.wake()

    def deregister(self) -> None:
        if not self._epoch:
            with self._files.ending():
                return  # children may have begun before we could register
        try:
            # A lease that is lost leaves nothing to give back.
            with (
                self._files.ending(),
                suppress(LeaseLost),
                self._held() as connection,
                transaction(connection),
            ):
                self._give_back(connection)
        finally:
            if self._pipe is not None:
                self._pipe.close()
            self._handle.close()
            self._handle.pinned = None
            self._new_holder()
        self._messages.notify()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        """Hold nothing any more, under the epoch that was; not counted."""
        if not self._epoch:
            return
        connection.execute(
            f"UPDATE message SET state = {READY}, owner = NULL WHERE owner = ? AND state = 2", (self._epoch,)
        )
        if CRASHING:
            crash_point("deregistering")
        connection.execute("DELETE FROM owner WHERE id = ?", (self._epoch,))
        drop_queues_of(connection, self._epoch)


def _leased(row: tuple[Any, ...]) -> Leased:
    # Spelt out, since a star would take twice as long.
    tag, queue, priority, due, deliveries, redelivered, parked, headers, properties, body = row
    return Leased(tag, queue, priority, due, deliveries, redelivered == 1, parked, headers, properties, body)


def _earliest(connection: sqlite3.Connection, queue: str) -> float | None:
    """When the first of the delayed messages is due: None when there is none, NO_TIME when its row does not
    say."""
    row = connection.execute(
        "SELECT due FROM message WHERE queue = ? AND state = 1 ORDER BY due LIMIT 1", (queue,)
    ).fetchone()
    if row is None:
        return None
    return row[0] if isinstance(row[0], float | int) else NO_TIME


def _urgency(leased: Leased) -> tuple[int, int]:
    return (-leased.priority, leased.tag)
