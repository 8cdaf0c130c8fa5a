"""The consumer of the embedded broker: leasing, settling and reclaiming messages.

Comes from:  the Listener.
Goes to:     the tables ``message``, ``owner``, ``dead`` and ``revoked`` of ``embedded``.
Thread:      listener only, except wake().
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qworker.clock import Clock, boot_id
from qworker.errors import LeaseLost
from qworker.process.crash_points import crash_point
from qworker.process.owner_files import LONG_DEAD, LocalDeaths, died, lock_beside
from qworker.process.wakeup import WakeupPipe
from qworker.safe_repr import printable
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    NO_ROOM,
    Ack,
    Claim,
    DeadLetter,
    Kind,
    Leased,
    Reclaimed,
    Release,
    ResultRow,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.lease_consumer import NOT_REGISTERED, LeaseConsumer, WorkerRecord
from qworker.transports.sql.embedded import (
    DELAYED,
    LEASED,
    NEXT_NUMBER,
    READY,
    UPSERT_RESULT,
    Database,
    FileSession,
    Handle,
    NotificationPipe,
    Notifier,
    transaction,
)
from qworker.transports.sql.embedded.damage import NO_TIME, is_strict, mend_dues, without_damaged
from qworker.transports.sql.embedded.join_rows import record
from qworker.transports.sql.reclaim import OtherConsumer, Tables, reclaim

COLUMNS = "tag, queue, priority, due, deliveries, redelivered, parked, headers, properties, body"
# The innermost select is limited before anything is summed up: a claim's cost depends on what it takes, not
# on what waits.
FITTING = f"""UPDATE message SET state = {LEASED}, owner = ? WHERE tag IN (SELECT tag FROM (
SELECT tag, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM (%s))
WHERE before < {MAX_LEASE_BYTES})
RETURNING {COLUMNS}"""
CLAIM = FITTING % (
    "SELECT tag, length(body) AS size FROM message WHERE queue = ? AND state = 0 ORDER BY priority DESC, "
    "tag LIMIT ?"
)
CLAIM_DELAYED = FITTING % (
    "SELECT tag, length(body) AS size FROM message WHERE queue = ? AND state = 1 AND due <= ? ORDER BY "
    "due LIMIT ?"
)
PROMOTE_DUE = f"""UPDATE message SET state = {READY} WHERE tag IN (
SELECT tag FROM message WHERE queue = ? AND state = 1 AND due <= ? ORDER BY due LIMIT 1000)"""
NEW_OWNER = f"""INSERT INTO owner (id, name, pid, boot, queues, concurrency, lease_until, started, marks,
presence)
VALUES ({NEXT_NUMBER.format(table="owner")}, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
CHECK_OWNER = "SELECT 1 FROM owner WHERE id = ?"
OTHERS_SECONDS = 5.0
"""How long other consumers are not read: one that registers meanwhile may have a short lease."""
ACK = "DELETE FROM message WHERE tag = ? AND owner = ?"
RELEASE = """UPDATE message SET state = ?, owner = NULL, due = coalesce(?, due), deliveries = deliveries + ?,
parked = parked + ?, redelivered = redelivered OR ? WHERE tag = ? AND owner = ?"""
DEAD_LETTER = """INSERT OR REPLACE INTO {table} (tag, queue, reason, died_at, deliveries, priority, headers,
properties, body)
SELECT tag, queue, ?, ?, deliveries + ?, priority, headers, properties, body FROM message WHERE tag = ?
AND owner = ?"""
LETTERS = {failed: DEAD_LETTER.format(table="failed" if failed else "dead") for failed in (False, True)}


def _over(table: str) -> tuple[tuple[str, str, str], ...]:
    """Return selections, as in EXPIRED, of the letters in *table* that are too old or too many."""
    return (
        (table, "tag", f"SELECT tag FROM {table} WHERE died_at < ?"),
        (
            table,
            "tag",
            f"""SELECT tag FROM (SELECT tag, row_number() OVER (
        PARTITION BY queue ORDER BY died_at DESC, tag DESC) AS place FROM {table}) WHERE place > ?""",
        ),
    )


EXPIRED = (
    ("revoked", "seq", "SELECT seq FROM revoked WHERE expires < ?"),
    ("result", "task_id", "SELECT task_id FROM result WHERE expires IS NOT NULL AND expires < ?"),
    ("key_value", "key", "SELECT key FROM key_value WHERE expires < ?"),
)  # fmt: skip
"""What sweep() deletes besides letters: table, key, and the selection by one limit."""
TABLES = Tables("message", "owner", "")  # a writer locks the whole file
OTHERS = """SELECT id, CAST(name AS TEXT), CAST(boot AS TEXT), CAST(lease_until AS REAL), CAST(marks AS TEXT)
FROM owner WHERE id <> %s"""
ANY_READY = f"SELECT 1 FROM message WHERE queue = ? AND state = {READY} LIMIT 1"
LAST_REVOCATION = "SELECT ifnull(max(seq), 0) FROM revoked"
SWEEP_ROWS = 1000
LOOK_SECONDS = 0.1
"""Interval of checks whether the file still exists."""

StoreRows = Callable[[sqlite3.Connection, Sequence[ResultRow]], object]
"""Stores results within the transaction of their acks."""


def store_rows(connection: sqlite3.Connection, rows: Sequence[ResultRow]) -> None:
    """Store *rows* in the table ``result``."""
    connection.executemany(UPSERT_RESULT, rows)


class _NotAllOursError(Exception):
    """Some messages of a batch are no longer ours."""


class SQLiteConsumer(LeaseConsumer):
    """messages, results: notify those who wait for them. uptime: the clock for leases, shared by all
    processes of this boot, and never set. store_rows: stores the results of settlements."""

    def __init__(
        self,
        database: Database,
        messages: Notifier,
        results: Notifier,
        clock: Clock,
        lease_seconds: float,
        uptime: Callable[[], float],
        store_rows: StoreRows = store_rows,
    ) -> None:
        self._store_rows = store_rows
        self._database = database
        self._messages = messages
        self._results = results
        self._handle = Handle(database, "NORMAL", LOOK_SECONDS)
        self._wakeup = WakeupPipe()
        self._pipe: NotificationPipe | None = None
        self._revoked: NotificationPipe | None = None
        self._listed: frozenset[str] = frozenset()
        """The queues of whose messages we are notified."""
        self._notified = False
        """Whether we were notified, and have not claimed since."""
        self._strict = False
        """Whether the file enforces the types of its columns."""
        super().__init__(clock, lease_seconds, uptime, lambda: database.owners, "")

    def _abandon_connections(self) -> None:
        self._release_connections()
        self._wakeup.close()

    def _release_connections(self) -> None:
        self._close_pipes()
        self._handle.close()
        self._handle.pinned = None

    def close(self) -> None:
        """Close what deregister() leaves open."""
        self._wakeup.close()
        self._handle.close()

    def _close_pipes(self) -> None:
        for pipe in (self._pipe, self._revoked):
            if pipe is not None:
                pipe.close()
        self._pipe = self._revoked = None

    # -- registration --

    def _take_files(self) -> None:
        """Does nothing: _insert() creates them within its transaction."""

    def _start_over(self) -> None:
        super()._start_over()
        self._forget_others()

    def _forget_others(self) -> None:
        self._local_deaths = LocalDeaths()
        self._look_at = 0.0
        """The time of the leases' clock until which no lease of another consumer expires."""

    def _insert(self, record: WorkerRecord) -> int:
        held_in, self._handle.pinned = self._handle.pinned, None
        try:
            with self._handle as connection:
                if self._handle.file != held_in:
                    self._generation = NOT_REGISTERED  # in this file, it may be another's
                return self._insert_by(connection, record)
        except BaseException:
            self._handle.pinned = held_in  # the old record may still be there
            raise

    def _insert_by(self, connection: sqlite3.Connection, record: WorkerRecord) -> int:
        self._close_pipes()
        self._forget_others()  # this may be another file
        self._listed = frozenset(record.queues)
        self._pipe = NotificationPipe(self._database.pipes, "message", self._listed)
        self._revoked = NotificationPipe(self._database.pipes, "revoked")
        Notifier(self._database.pipes, "revoked").tidy()
        self._wakeup.open()
        with transaction(connection):
            self._remove(connection)
            self._strict = is_strict(connection)
            if not self._strict:
                mend_dues(connection)
            row = (
                int(record.started * 1_000_000),
                record.name,
                record.pid,
                record.boot,
                "\n".join(record.queues),
                record.concurrency,
                self._uptime() + self._lease_seconds,
                record.started,
                Path(record.running).name,
                record.presence,
            )
            generation = int(connection.execute(NEW_OWNER, row).lastrowid or 0)
            crash_point("registering")
            self._files.take()
            known = [name for (name,) in connection.execute("SELECT CAST(marks AS TEXT) FROM owner")]
            # Every lock that exists has its row: both are created under the write lock, which we hold.
            self._files.tidy(known, age=0.0)
        self._handle.pinned = self._handle.file
        return generation

    def _remove(self, connection: sqlite3.Connection) -> None:
        """Within a transaction: release everything held under the old generation; uncounted."""
        if self._generation == NOT_REGISTERED:
            return
        connection.execute(
            f"UPDATE message SET state = {READY}, owner = NULL WHERE owner = ? AND state = 2",
            (self._generation,),
        )
        crash_point("deregistering")
        connection.execute("DELETE FROM owner WHERE id = ?", (self._generation,))

    def _give_back(self) -> None:
        # With a lost lease, there is nothing to give back.
        with suppress(LeaseLost), self._handle as connection, transaction(connection):
            self._remove(connection)
        self._messages.notify()

    def _held(self) -> Handle:
        self._require()
        return self._handle

    def _renew(self) -> None:
        with self._handle as connection, transaction(connection):
            self._renew_by(connection)

    def _renew_by(self, connection: sqlite3.Connection) -> None:
        crash_point("renewing")
        until = self._uptime() + self._lease_seconds
        renewed = connection.execute(
            "UPDATE owner SET lease_until = ?, presence = ? WHERE id = ?",
            (until, self._presence, self._generation),
        )
        if not renewed.rowcount:
            raise self._lost()

    # -- leasing --

    def _claim(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> Claim:
        now = self._clock.now()
        messages: list[Leased] = []
        next_due: float | None = None
        asked = limit
        if asked > 0 and self._pipe is not None:
            # First, because what is published from now on is not for others.
            self._notified |= self._pipe.become_idle()
            if not self._listed.issuperset(queues):
                self._listed |= set(queues)
                self._pipe.name_queues(self._listed)
        with self._handle as connection, transaction(connection):
            for queue in queues:
                due = _promote_due(connection, queue, now)
                if delayed_limit > 0 and due is not None and due <= until:
                    values = (self._generation, queue, until, delayed_limit)
                    rows = connection.execute(CLAIM_DELAYED, values).fetchall()
                    delayed_limit -= len(rows)
                    messages.extend(map(_leased, rows))
                    due = _earliest(connection, queue)
                if limit > 0:
                    rows = connection.execute(CLAIM, (self._generation, queue, limit)).fetchall()
                    limit -= len(rows)
                    messages.extend(map(_leased, rows))
                if due is not None and (next_due is None or due < next_due):
                    next_due = due
            (last_revocation,) = connection.execute(LAST_REVOCATION).fetchone()
            claimed = len(messages)
            left: set[str] = set()
            if 0 < asked <= claimed or sum(len(each.body) for each in messages) >= MAX_LEASE_BYTES:
                left = {queue for queue in queues if connection.execute(ANY_READY, (queue,)).fetchone()}
            if messages and not self._strict:
                messages = without_damaged(connection, messages, now)
            if messages:
                crash_point("claiming")
                if self.renewal_is_due():
                    began = self._uptime()
                    self._renew_by(connection)
                    self._renewed(began)
                elif connection.execute(CHECK_OWNER, (self._generation,)).fetchone() is None:
                    raise self._lost()  # nobody would ever reclaim these messages
        if asked > 0 and self._notified:
            self._notified = False
            left |= self._listed.difference(queues)  # it may have been for one of these
        if left:
            self._wake_another(left)
        if len(messages) < claimed:  # there may be more besides damaged ones
            messages += self._claim(queues, claimed - len(messages), 0, 0.0).messages
        return Claim(messages, next_due, last_revocation)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        acks = [settlement for settlement in settlements if type(settlement) is Ack]
        rows = [ack.row for ack in acks if ack.row is not None]
        parts = [part for ack in acks if ack.parts for part in ack.parts]
        with self._held() as connection:
            try:
                with transaction(connection):
                    if acks and connection.executemany(
                        ACK, [(ack.tag, generation) for ack in acks]
                    ).rowcount < len(acks):
                        raise _NotAllOursError
                    crash_point("acking")
                    if rows:
                        self._store_rows(connection, rows)
                    if parts:
                        record(connection, parts)
                    others = [settlement for settlement in settlements if type(settlement) is not Ack]
                    lost = self._settle_each(connection, generation, others)
            except _NotAllOursError:
                # Rolled back: settle one by one, because only messages that are still ours may store their
                # results.
                with transaction(connection):
                    lost = self._settle_each(connection, generation, settlements)
        if rows or len(acks) < len(settlements):
            self._results.notify()
        if any(type(settlement) is Release for settlement in settlements):
            self._messages.notify()
        return lost

    def _settle_each(
        self, connection: sqlite3.Connection, generation: int, settlements: Sequence[Settlement]
    ) -> set[int]:
        now = self._clock.now()
        lost = set()
        for settlement in settlements:
            if isinstance(settlement, Store):
                crash_point("storing")
                if settlement.row is not None:
                    self._store_rows(connection, (settlement.row,))
                record(connection, settlement.parts)
                continue
            tag = settlement.tag
            if isinstance(settlement, Release):
                due = settlement.due
                state = DELAYED if due is not None and due > now else READY
                crash_point("releasing")
                again = settlement.counted or settlement.redelivered
                count = connection.execute(
                    RELEASE, (state, due, settlement.counted, settlement.requeued, again, tag, generation)
                ).rowcount
            else:
                if isinstance(settlement, DeadLetter):
                    connection.execute(
                        LETTERS[settlement.failed],
                        (settlement.reason, now, settlement.counted, tag, generation),
                    )
                    crash_point("dead-lettering")
                count = connection.execute(ACK, (tag, generation)).rowcount
                if count and settlement.row is not None:
                    self._store_rows(connection, (settlement.row,))
                if count:
                    record(connection, settlement.parts)
            if not count:
                lost.add(tag)
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        self._require()
        free, now = self._local_deaths.look(self._files.running), self._uptime()
        if not free and (not silent or now < self._look_at):
            return []
        with self._held() as connection:
            session = FileSession(connection)
            others = list(self._others(session, silent))
            # No lock of the file outlasts its process.
            found, _ = reclaim(session, TABLES, others, self._messages.notify, lambda generation: None)
        if silent:
            leases = (each.until for each in others if not (each.dead or each.silent))
            self._look_at = min((now + OTHERS_SECONDS, *leases))
        self._local_deaths.ignore(free - {each.lock for each in others if each.dead})
        return found

    def _others(self, session: FileSession, silent_too: bool) -> Iterator[OtherConsumer]:
        now = self._uptime()
        for id, name, boot, until, marks in session.ask(OTHERS, (self._generation,)):
            running = str(self._database.owners / marks.replace("\0", ""))
            lock = lock_beside(running)
            dead, silent = boot != boot_id() or died(lock, boot), silent_too and until < now
            forgotten = until < now - LONG_DEAD
            yield OtherConsumer(id, printable(name), dead, silent, forgotten, until, now, lock, running, "")

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        with self._held() as connection:
            rows = connection.execute(
                "SELECT seq, CAST(task_id AS TEXT), terminate, CAST(signal AS TEXT) FROM revoked WHERE seq > "
                "? AND expires > ? ORDER BY seq",
                (cursor, self._clock.now()),
            ).fetchall()
        return (rows[-1][0] if rows else cursor), [Revocation(row[1], bool(row[2]), row[3]) for row in rows]

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        now = self._clock.now()
        more = EXPIRED if kind == "dead" else ()
        return self._sweep((*_over(kind), *more), (now - expires, most, *(now for _ in more)))

    def _sweep(self, what: Sequence[tuple[str, str, str]], limits: Sequence[float]) -> int:
        with self._held() as connection:
            due = [
                (table, key, selection, limit)
                for (table, key, selection), limit in zip(what, limits, strict=True)
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
        self._require()
        pipe, revoked = self._pipe, self._revoked
        assert pipe is not None
        assert revoked is not None
        if pipe.fileno() < 0:
            return pipe.wait(timeout)
        if prefetch == NO_ROOM:
            if pipe.become_busy() or self._notified:
                self._notified = False
                self._wake_another(self._listed)
            _, ready = self._wakeup.sleep(timeout, revoked.fileno())
        elif pipe.become_idle():
            self._notified = True
            return True
        else:
            _, ready = self._wakeup.sleep(timeout, revoked.fileno(), pipe.fileno())
            if pipe.fileno() in ready and pipe.clear():
                self._notified = True
                return True
        return bool(revoked.fileno() in ready and revoked.clear())

    def _wake_another(self, queues: Collection[str]) -> None:
        if self._pipe is not None:
            self._messages.notify_one(queues, but=self._pipe.name)

    def wake(self) -> None:
        self._wakeup.wake()


def _leased(row: tuple[Any, ...]) -> Leased:
    # Spelt out, since a star would take twice as long.
    tag, queue, priority, due, deliveries, redelivered, requeued, headers, properties, body = row
    return Leased(
        tag, queue, priority, due, deliveries, redelivered == 1, requeued, headers, properties, body
    )


def _promote_due(connection: sqlite3.Connection, queue: str, now: float) -> float | None:
    """Make due messages of *queue* ready; return when the first of the rest is due, if there is one."""
    due = _earliest(connection, queue)
    if due == NO_TIME:
        mend_dues(connection)
        due = _earliest(connection, queue)
    if due is None or due > now:
        return due
    connection.execute(PROMOTE_DUE, (queue, now))
    return _earliest(connection, queue)


def _earliest(connection: sqlite3.Connection, queue: str) -> float | None:
    """Return when the first delayed message is due: None when there is none, NO_TIME when its row is
    damaged."""
    row = connection.execute(
        "SELECT due FROM message WHERE queue = ? AND state = 1 ORDER BY due LIMIT 1", (queue,)
    ).fetchone()
    if row is None:
        return None
    return row[0] if isinstance(row[0], float | int) else NO_TIME
