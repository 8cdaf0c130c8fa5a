"""Stores of schedules: open the store of an app.

Comes from:  the service, ``app.schedules`` and the command line.
Goes to:     ``store_sql``, ``store_redis``, or memory; wrapped in ``sealed`` with a security_key.
Thread:      any.

Without the setting ``beat_store``, schedules are stored with messages, if that is a database or Redis; else
with results, if possible; else in memory, with settings and code only: other processes do
not see it, and two schedulers with the same entries call them twice.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from qworker.beat.store import EntryRow, EntryState, Firing, Lease, ScheduleStore, Slot, once
from qworker.beat.store_sql import Pusher, SQLScheduleStore
from qworker.clock import Clock
from qworker.contracts import App
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.interrupts import reraise_interrupt
from qworker.transports.lease import Sender
from qworker.transports.sql.embedded import Database, Handle, database_path
from qworker.transports.sql.embedded.sender import SQLiteSender

MOST_SLOTS = 1000
"""Maximum slots kept for an entry."""


class MemoryScheduleStore(ScheduleStore):
    """shared: accept edits like a shared store, for tests."""

    def __init__(self, clock: Clock, shared: bool = False) -> None:
        self._clock = clock
        self.shared = shared
        self._lock = threading.Lock()
        self._lease = Lease()  # this and all below: changed under the lock
        self._rows: dict[str, EntryRow] = {}
        self._slots: dict[str, dict[float, Slot]] = {}

    def is_with(self, sender: Sender) -> bool:
        return False

    def look(self) -> Lease:
        return self._lease

    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        with self._lock:
            if self._lease[:3] == known[:3]:
                now = self._lease
                self._lease = now._replace(
                    holder=holder, generation=now.generation + 1, beats=now.beats + 1, about=about
                )
            return self._lease

    def renew(self, lease: Lease) -> Lease:
        with self._lock:
            if self._is(lease):
                self._lease = self._lease._replace(beats=self._lease.beats + 1)
            return self._lease

    def resign(self, lease: Lease) -> None:
        with self._lock:
            if self._is(lease):
                self._lease = self._lease._replace(holder="")

    def _is(self, lease: Lease) -> bool:
        return (self._lease.holder, self._lease.generation) == (lease.holder, lease.generation)

    def _check(self, lease: Lease) -> None:
        if not self._is(lease):
            raise LeaseLost(f"{self._lease.holder or 'no process'} is now the leader of the schedulers")

    def rows(self, after: int = -1) -> list[EntryRow]:
        with self._lock:
            return [row for row in self._rows.values() if row.version > after]

    def row(self, name: str) -> EntryRow | None:
        return self._rows.get(name)

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        with self._lock:
            row = self._rows.get(name)
            if (row.version if row else 0) != known:
                return False
            version = self._lease.version + 1
            self._lease = self._lease._replace(version=version)
            self._rows[name] = EntryRow(name, version, edit, row and row.state)
            return True

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        with self._lock:
            self._check(lease)
            self._note(states)

    def _note(self, states: Mapping[str, EntryState]) -> None:
        for name, state in states.items():
            row = self._rows.get(name)
            self._rows[name] = row._replace(state=state) if row else EntryRow(name, 0, None, state)

    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        with self._lock:
            self._check(lease)
            for name, version in versions.items():
                row = self._rows.get(name)
                if row is not None and row.edit is None and row.version == version:
                    del self._rows[name]

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        with self._lock:
            self._check(lease)
            free = [each for each in once(firings) if each.due not in self._slots.get(each.name, {})]
            for each in free:
                slots = self._slots.setdefault(each.name, {})
                slots[each.due] = Slot(each.name, each.due, self._clock.now(), each.task_id)
        try:
            sender.push([envelope for each in free for envelope in each.envelopes])
        except BaseException:
            with self._lock:
                for each in free:
                    del self._slots[each.name][each.due]
            raise
        with self._lock:
            for each in free:
                slots = self._slots[each.name]
                if len(slots) > MOST_SLOTS:
                    del slots[min(slots)]
            self._note({each.name: each.state for each in firings})
        return free

    def pending(self) -> list[Slot]:
        return []

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        """Nothing to do: slots are never pending."""

    def slots(self, name: str, most: int = 100) -> list[Slot]:
        with self._lock:
            return sorted(self._slots.get(name, {}).values(), reverse=True)[:most]

    def sweep(self, before: float) -> int:
        with self._lock:
            count = 0
            for slots in self._slots.values():
                for due in [due for due in slots if due < before]:
                    del slots[due]
                    count += 1
            return count


T = TypeVar("T")


class FileDatabase:
    """The embedded file, or a similar one."""

    dialect = "sqlite"

    def __init__(self, database: Database) -> None:
        self._database = database
        # A power failure may lose the last slots together with their messages, which are then called again.
        self._handle = Handle(database, "NORMAL")

    def transact(self, work: Callable[[Any], T]) -> T:
        return self._explained(lambda: self._handle.transact(work))

    def read(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self._explained(lambda: self._handle.read(query.replace("%s", "?"), values))

    def _explained(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (BrokerUnavailable, ConfigurationError, sqlite3.Error) as error:
            reraise_interrupt(error)
            raise BackendError(f"the schedule store: {error}") from error

    def pusher(self, sender: Sender) -> Pusher | None:
        if not isinstance(sender, SQLiteSender) or sender.path != self._database.path:
            return None
        return lambda session, envelopes: sender.insert(session.connection, envelopes)

    def pushed(self, sender: Sender) -> None:
        if isinstance(sender, SQLiteSender):
            sender.notify()

    def close(self) -> None:
        self._handle.close()


REDIS = frozenset(["redis", "rediss", "valkey", "valkeys", "unix", "sentinel"])
SQL = frozenset(["postgresql", "postgres", "mysql", "mariadb"])


def open_store(app: App, scope: str | None = None) -> ScheduleStore:
    """Return the schedule store of *app*, not connected yet. Raises ConfigurationError.

    scope: of the schedules; None: from the settings.
    """
    scope = scope or app.conf.beat_scope or app.main or "default"
    store = _open(app, scope)
    if app.signer is None:
        return store
    from qworker.beat.sealed import SealedScheduleStore

    return SealedScheduleStore(store, app.signer, scope)


def _open(app: App, scope: str) -> ScheduleStore:
    url = store_url(app)
    scheme = _scheme(url)
    if url is None or scheme == "memory":
        return MemoryScheduleStore(app.clock)
    if scheme == "sqlite":
        return SQLScheduleStore(FileDatabase(Database(database_path(url))), scope, app.clock)
    if scheme in REDIS:
        from qworker.beat.store_redis import open_redis_store

        return open_redis_store(app, url, scope)
    if scheme in SQL:
        from qworker.beat.server_database import ServerDatabase

        return SQLScheduleStore(ServerDatabase(url, app.clock), scope, app.clock)
    raise ConfigurationError(
        f"beat_store: {scheme}:// cannot store schedules: use PostgreSQL, MySQL, MariaDB, SQLite or Redis",
        setting="beat_store",
    )


def store_url(app: App) -> str | None:
    """Return the URL of the schedule store of *app*; None for memory."""
    if app.conf.beat_store is not None:
        return app.conf.beat_store
    if _keeps(app.broker.url):
        return app.broker.url
    found = app.backend.url  # last, because loading an SQL backend takes much memory
    return found if _keeps(found) else None


def _keeps(url: str) -> bool:
    return _scheme(url) in {"sqlite", *REDIS, *SQL} and ";" not in url


def _scheme(url: str | None) -> str:
    scheme = (url or "").partition(":")[0].removeprefix("db+").removeprefix("sqla+")
    return scheme.partition("+")[0].lower()
