"""Schedules in a database: the embedded file, PostgreSQL, MySQL or MariaDB.

Comes from:  ``stores.py``.
Goes to:     the tables ``qworker_beat``, ``qworker_entry`` and ``qworker_slot``, created on first use; the
             table of messages, if the broker is the same database.
Thread:      any; each use is a transaction.

Making calls locks the row of the lease: no other process can take it or change slots in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from qworker.beat.store import (
    PENDING,
    SENT,
    EntryRow,
    EntryState,
    Firing,
    Lease,
    ScheduleStore,
    Slot,
    is_sayable,
    micro,
    once,
)
from qworker.clock import Clock
from qworker.errors import BackendError, LeaseLost
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Envelope, Sender
from qworker.transports.portions import portions
from qworker.transports.sql import join_rows
from qworker.transports.sql.join_rows import places

T = TypeVar("T")

Pusher = Callable[[Any, Sequence[Envelope]], None]
"""Publishes in the transaction of a Session."""

PORTION = 500
MICROSECONDS = 1_000_000


class Session(join_rows.Session, Protocol):
    """A connection in a transaction, for statements with %s placeholders."""

    def do_many(self, statement: str, rows: Sequence[Any]) -> None:
        """Run *statement* for each of *rows*."""
        ...


class ScheduleDatabase(Protocol):
    """A database. dialect: sqlite, postgresql or mysql."""

    dialect: str

    def transact(self, work: Callable[[Any], T]) -> T:
        """Return *work* applied to a Session, in one transaction. Raises BackendError."""
        ...

    def read(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of *query*, without locking; [] if the database is a missing file. Raises
        BackendError."""
        ...

    def pusher(self, sender: Sender) -> Pusher | None:
        """Return what publishes through *sender* within a transaction; None if it publishes elsewhere."""
        ...

    def pushed(self, sender: Sender) -> None:
        """Called when the messages of the pusher have been committed."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


TYPES = {
    "sqlite": {"name": "TEXT", "text": "TEXT", "bytes": "BLOB", "index": "", "end": ""},
    "postgresql": {"name": "VARCHAR(255) COLLATE \"C\"", "text": "TEXT", "bytes": "BYTEA", "index": "",
                   "end": ""},
    "mysql": {
        "name": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "text": "LONGTEXT CHARACTER SET utf8mb4",
        "bytes": "LONGBLOB",
        "index": ", INDEX qworker_slot_due (scope, pending, due)",
        "end": " ENGINE=InnoDB",
    },
}  # fmt: skip
TABLES = {
    "qworker_beat": """CREATE TABLE IF NOT EXISTS qworker_beat (scope {name} NOT NULL PRIMARY KEY,
holder {name} NOT NULL, generation BIGINT NOT NULL, beats BIGINT NOT NULL, version BIGINT NOT NULL,
about {text} NOT NULL){end}""",
    "qworker_entry": """CREATE TABLE IF NOT EXISTS qworker_entry (scope {name} NOT NULL, name {name} NOT NULL,
version BIGINT NOT NULL, edit {bytes}, seen {text}, since BIGINT, last_due BIGINT, last_run BIGINT,
task_id {text}, runs BIGINT NOT NULL, error {text}, PRIMARY KEY (scope, name)){end}""",
    "qworker_slot": """CREATE TABLE IF NOT EXISTS qworker_slot (scope {name} NOT NULL, name {name} NOT NULL,
due BIGINT NOT NULL, at BIGINT NOT NULL, task_id {text} NOT NULL, pending INTEGER NOT NULL,
PRIMARY KEY (scope, name, due){index}){end}""",
}
"""Times are microseconds since 1970."""
INDEX = "CREATE INDEX IF NOT EXISTS qworker_slot_due ON qworker_slot (scope, pending, due)"
"""For finding pending and old slots; MySQL creates it with the table."""
IGNORING = {
    "sqlite": ("INSERT INTO", "ON CONFLICT DO NOTHING"),
    "postgresql": ("INSERT INTO", "ON CONFLICT DO NOTHING"),
    "mysql": ("INSERT IGNORE INTO", ""),
}
SLOT = ("scope", "name", "due", "at", "task_id", "pending")
TEXTS = frozenset(["scope", "name", "task_id", "seen", "error"])
"""Text columns; the others are numbers."""
STATE = ("seen", "since", "last_due", "last_run", "task_id", "runs", "error")
SENT_ONE = "UPDATE qworker_slot SET pending = 0 WHERE scope = %s AND name = %s AND due = %s"
SWEPT_ONE = "DELETE FROM qworker_slot WHERE scope = %s AND name = %s AND due = %s"
_GIVEN = (
    "unnest(CAST(%s AS text[]), CAST(%s AS text[]), CAST(%s AS bigint[])) AS given (scope, name, due) "
    "WHERE slot.scope = given.scope AND slot.name = given.name AND slot.due = given.due"
)
PRUNED_ONE = "DELETE FROM qworker_entry WHERE scope = %s AND name = %s AND version = %s AND edit IS NULL"
AT_ONCE = {
    ("postgresql", SENT_ONE): f"UPDATE qworker_slot AS slot SET pending = 0 FROM {_GIVEN}",
    ("postgresql", SWEPT_ONE): f"DELETE FROM qworker_slot AS slot USING {_GIVEN}",
    ("mysql", SENT_ONE): "UPDATE qworker_slot SET pending = 0 WHERE (scope, name, due) IN %s",
    ("mysql", SWEPT_ONE): "DELETE FROM qworker_slot WHERE (scope, name, due) IN %s",
}
"""The server's equivalent for many slots."""
LEASE = "SELECT holder, generation, beats, version, about FROM qworker_beat WHERE scope = %s"
TAKE = """UPDATE qworker_beat SET holder = %s, generation = generation + 1, beats = beats + 1, about = %s
WHERE scope = %s AND holder = %s AND generation = %s AND beats = %s"""
RENEW = "UPDATE qworker_beat SET beats = beats + 1 WHERE scope = %s AND holder = %s AND generation = %s"
RESIGN = "UPDATE qworker_beat SET holder = '' WHERE scope = %s AND holder = %s AND generation = %s"
EDITED = "UPDATE qworker_beat SET version = version + 1 WHERE scope = %s"
ROWS = f"SELECT name, version, edit, {', '.join(STATE)} FROM qworker_entry WHERE scope = %s"
SLOTS = "SELECT name, due, at, task_id, pending FROM qworker_slot WHERE scope = %s"
OF_ALL = "ORDER BY name, due"


class SQLScheduleStore(ScheduleStore):
    """scope: the name that separates these entries from others in the database."""

    def __init__(self, database: ScheduleDatabase, scope: str, clock: Clock) -> None:
        self._database = database
        self._scope = scope
        self._clock = clock
        self._there = False
        self._is_file = database.dialect == "sqlite"
        self._locking = "" if self._is_file else " FOR UPDATE"
        self._in_arrays = database.dialect == "postgresql"
        insert, ignoring = IGNORING[database.dialect]
        self._begin = (
            f"{insert} qworker_beat (scope, holder, generation, beats, version, about) "
            f"VALUES (%s, '', 0, 0, 0, '') {ignoring}"
        )
        self._slot = (
            f"{insert} qworker_slot ({', '.join(SLOT)}) {_many(SLOT) if self._in_arrays else _one(SLOT)} "
            f"{ignoring}"
        )
        self._note_one = _upsert(database.dialect, ("version", *STATE), STATE, self._in_arrays)
        self._edit_one = _upsert(database.dialect, ("version", "edit", "runs"), ("version", "edit"))

    def _transact(self, work: Callable[[Session], T]) -> T:
        if not self._there:
            self._prepare()
            self._there = True
        try:
            return self._database.transact(work)
        except BackendError:
            self._there = False  # the tables may have been dropped
            raise

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of *query*; [] if the tables do not exist, because reading does not create them."""
        try:
            return self._database.read(query, values)
        except BackendError as error:
            were_there, self._there = self._there, False
            if were_there or not are_missing(str(error)):
                raise
            return []

    def _prepare(self) -> None:
        """Create the tables, if missing, and the row of the lease."""
        try:
            self._database.transact(self._probe)
        except BackendError as error:
            if not are_missing(str(error)):
                raise
            for name, table in TABLES.items():
                statements = [table.format(**TYPES[self._database.dialect])]
                if name == "qworker_slot" and self._database.dialect != "mysql":
                    statements.append(INDEX)
                with suppress(BackendError):  # another process creates it at the same time
                    self._database.transact(partial(_do, statements=statements))
            self._database.transact(self._probe)

    def _probe(self, session: Session) -> None:
        session.ask(f"SELECT 1 FROM {', '.join(TABLES)} WHERE 1 = 0")
        session.do(self._begin, (self._scope,))

    def is_with(self, sender: Sender) -> bool:
        return self._database.pusher(sender) is not None

    # -- the lease --

    def look(self) -> Lease:
        return _leases(self._read(LEASE, (self._scope,)))

    def _lease(self, session: Session, locking: str = "") -> Lease:
        found = session.ask(LEASE + locking, (self._scope,))
        if not found:
            session.do(self._begin, (self._scope,))  # the table was emptied
        return _leases(found)

    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        def work(session: Session) -> Lease:
            before = self._lease(session, self._locking)
            if before[:3] == known[:3]:
                session.do(TAKE, (holder, about, self._scope, *known[:3]))
            return self._lease(session)

        return self._transact(work)

    def renew(self, lease: Lease) -> Lease:
        def work(session: Session) -> Lease:
            session.do(RENEW, (self._scope, lease.holder, lease.generation))
            return self._lease(session)

        return self._transact(work)

    def resign(self, lease: Lease) -> None:
        self._transact(lambda session: session.do(RESIGN, (self._scope, lease.holder, lease.generation)))

    def _check(self, session: Session, lease: Lease) -> None:
        """Lock the lease until the transaction ends. Raises LeaseLost when *lease* was lost."""
        now = self._lease(session, self._locking)
        if (now.holder, now.generation) != (lease.holder, lease.generation):
            raise LeaseLost(f"{now.holder or 'no process'} is now the leader of the schedulers")

    # -- entries --

    def rows(self, after: int = -1) -> list[EntryRow]:
        query, values = f"{ROWS} AND version > %s", (self._scope, after)
        return [_row(found) for found in self._read(query, values)]

    def row(self, name: str) -> EntryRow | None:
        if not is_sayable(name):
            return None
        found = self._read(f"{ROWS} AND name = %s", (self._scope, name))
        return _row(found[0]) if found else None

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        query = "SELECT version FROM qworker_entry WHERE scope = %s AND name = %s"

        def work(session: Session) -> bool:
            self._lease(session, self._locking)
            found = session.ask(query, (self._scope, name))
            if (int(found[0][0]) if found else 0) != known:
                return False
            session.do(EDITED, (self._scope,))
            session.do(self._edit_one, (self._scope, name, self._lease(session).version, edit, 0))
            return True

        return self._transact(work)

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        def work(session: Session) -> None:
            self._check(session, lease)
            self._note(session, states)

        if states:
            self._transact(work)

    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        def work(session: Session) -> None:
            self._check(session, lease)
            for name, version in sorted(versions.items()):
                session.do(PRUNED_ONE, (self._scope, name, version))

        if versions:
            self._transact(work)

    def _note(self, session: Session, states: Mapping[str, EntryState]) -> None:
        rows = [(self._scope, name, 0, *_stored(state)) for name, state in sorted(states.items())]
        self._each(session, self._note_one, rows)

    def _each(self, session: Session, statement: str, rows: Sequence[Any]) -> None:
        """Run *statement* for all of *rows*: in one step for PostgreSQL, as arrays of columns, and where
        possible for MySQL, as lists."""
        if not rows:
            return
        for_all = AT_ONCE.get((self._database.dialect, statement))
        if self._in_arrays:
            arrays = [list(values) for values in zip(*rows, strict=True)]
            session.do(for_all or statement, arrays)
        elif for_all:
            session.do(for_all, (rows,))
        else:
            session.do_many(statement, rows)

    # -- slots --

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        push, firings = self._database.pusher(sender), once(firings)
        if not firings:
            return []

        def work(session: Session) -> list[Firing]:
            self._check(session, lease)
            taken = self._taken(session, firings)
            free = [each for each in firings if (each.name, micro(each.due)) not in taken]
            now, pending = micro(self._clock.now()), int(push is None)
            if free:
                self._each(
                    session,
                    self._slot,
                    [
                        (self._scope, each.name, micro(each.due), now, each.task_id, pending)
                        for each in sorted(free, key=lambda each: (each.name, each.due))
                    ],
                )
            self._note(session, {each.name: each.state for each in firings})
            crash_point("slots-taken")
            if push is not None and free:
                push(session, [envelope for each in free for envelope in each.envelopes])
                crash_point("entries-published")
            return free

        free = self._transact(work)
        if not free:
            return free
        if push is not None:
            self._database.pushed(sender)
        else:
            self._send(lease, free, sender)
        return free

    def prepare(self, sender: Sender) -> None:
        push = self._database.pusher(sender)
        if push is not None:
            self._transact(lambda session: push(session, []))

    def _taken(self, session: Session, firings: Sequence[Firing]) -> set[tuple[str, int]]:
        """Return (name, due in microseconds) for slots that exist already, including all those of
        *firings*."""
        found: set[tuple[str, int]] = set()
        wanted = sorted({(each.name, micro(each.due)) for each in firings})
        for some in portions(wanted, PORTION):
            names, dues = zip(*some, strict=True)
            which = f"IN ({places(some)})" if self._is_file else "= ANY(%s)"
            query = (
                f"SELECT name, due FROM qworker_slot WHERE scope = %s AND name {which} "
                "AND due BETWEEN %s AND %s"
            )
            given = names if self._is_file else (list(names),)
            values = (self._scope, *given, min(dues), max(dues))
            found.update((str(name), int(due)) for name, due in session.ask(query, values))
        return found

    def pending(self) -> list[Slot]:
        query = f"{SLOTS} AND pending = 1 {OF_ALL}"
        return [_slot(row) for row in self._read(query, (self._scope,))]

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        def work(session: Session) -> None:
            self._check(session, lease)
            self._each(session, SENT_ONE, [(self._scope, name, micro(due)) for name, due in sorted(slots)])

        if slots:
            self._transact(work)

    def slots(self, name: str, most: int = 100) -> list[Slot]:
        if not is_sayable(name):
            return []
        query = f"{SLOTS} AND name = %s ORDER BY due DESC LIMIT {int(most)}"
        return [_slot(row) for row in self._read(query, (self._scope, name))]

    def sweep(self, before: float) -> int:
        query = (
            "SELECT name, due FROM qworker_slot WHERE scope = %s AND due < %s AND pending = 0 "
            f"LIMIT {PORTION}"
        )

        def work(session: Session) -> int:
            found = [
                (self._scope, name, due) for name, due in session.ask(query, (self._scope, micro(before)))
            ]
            if found:
                self._each(session, SWEPT_ONE, sorted(found))
            return len(found)

        return self._transact(work)

    def close(self) -> None:
        self._database.close()


def are_missing(text: str) -> bool:
    """Return whether an error means that our tables are missing."""
    return any(name in text for name in TABLES)


def _leases(rows: Sequence[Any]) -> Lease:
    """Return the lease in the result of LEASE."""
    for row in rows:
        return Lease(str(row[0]), int(row[1]), int(row[2]), int(row[3]), str(row[4]))
    return Lease()


def _do(session: Session, statements: Iterable[str]) -> None:
    for statement in statements:
        session.do(statement)


def _one(columns: Sequence[str]) -> str:
    return f"VALUES ({places(columns)})"


def _many(columns: Sequence[str]) -> str:
    arrays = (f"CAST(%s AS {'text' if name in TEXTS else 'bigint'}[])" for name in columns)
    return f"SELECT * FROM unnest({', '.join(arrays)})"


def _upsert(dialect: str, columns: Sequence[str], changed: Sequence[str], in_arrays: bool = False) -> str:
    """Return the statement that inserts entries with *columns*, or sets the columns *changed* of existing
    ones."""
    columns = ("scope", "name", *columns)
    values = _many(columns) if in_arrays else _one(columns)
    insert = f"INSERT INTO qworker_entry ({', '.join(columns)}) {values}"
    if dialect == "mysql":
        return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in changed)}"
    updates = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return f"{insert} ON CONFLICT (scope, name) DO UPDATE SET {updates}"


def _row(found: Sequence[Any]) -> EntryRow:
    name, version, edit, seen, since, last_due, last_run, task_id, runs, error = found
    state = None
    if seen is not None:
        instants = map(_seconds, (since or 0, last_due, last_run))
        state = EntryState.read((seen, *instants, task_id, runs, error))
    return EntryRow(str(name), int(version), None if edit is None else bytes(edit), state)


def _slot(found: Sequence[Any]) -> Slot:
    name, due, at, task_id, pending = found
    return Slot(
        str(name), _seconds(due) or 0.0, _seconds(at) or 0.0, str(task_id), PENDING if pending else SENT
    )


def _stored(state: EntryState) -> tuple[Any, ...]:
    return (
        _plain(state.seen),
        micro(state.since),
        None if state.last_due is None else micro(state.last_due),
        None if state.last_run is None else micro(state.last_run),
        state.task_id,
        state.runs,
        None if state.error is None else _plain(state.error),
    )


def _plain(text: str) -> str:
    """Return *text* in characters that every database supports."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _seconds(micro: Any) -> float | None:
    return None if micro is None else int(micro) / MICROSECONDS
