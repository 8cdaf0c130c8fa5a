"""Schedules: the entries of an app, read and changed from Python.

Comes from:  ``app.schedules``, and the command line.
Goes to:     the catalog, and the schedule store, where the leader sees a change within a second.
Thread:      any.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

from qworker.beat.agenda import anchored, seen_as
from qworker.beat.calls import DUE_HEADER, NAME_HEADER
from qworker.beat.catalog import Edit, Listed, base_of, catalog, edit_of, listed, read_edit
from qworker.beat.entry import Entry, read_entry
from qworker.beat.overlap import hindrance
from qworker.beat.serialization import read_fields, to_json, write_fields
from qworker.beat.store import EntryRow, EntryState, Lease, ScheduleStore, Slot
from qworker.beat.stores import open_store
from qworker.clock import isoformat
from qworker.contracts import App
from qworker.errors import BackendError, EncodeError, InvalidSchedule, NoSuchEntry, NotSupported
from qworker.naming import close_matches
from qworker.results.result import AsyncResult

_OF_OVERLAP = frozenset(["overlap", "task", "options"])
"""Fields that hindrance() depends on."""
TRIES = 10
"""Attempts of an edit while other processes edit the same entry."""


class Schedules:
    """The entries of *app*, by name.

    Changes made here override settings and code, until reset() or remove(). All methods raise BackendError
    when the schedule store is unavailable. Methods that change entries raise NotSupported if there is no
    shared store.
    """

    def __init__(self, app: App, store: ScheduleStore | None = None) -> None:
        self._app = app
        self._given = store
        self._opened: ScheduleStore | None = None

    @property
    def store(self) -> ScheduleStore:
        """The schedule store."""
        if self._opened is None:
            self._opened = self._given or open_store(self._app)
        return self._opened

    # -- looking --

    def entries(self) -> list[Listed]:
        """Return all entries, ordered by name, including invalid ones."""
        found = catalog(base_of(self._app), self.store.rows())
        return [found[name] for name in sorted(found)]

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.entries())

    def get(self, name: str) -> Listed:
        """Return the entry *name*. Raises NoSuchEntry."""
        return self._find(name)[0]

    def __getitem__(self, name: str) -> Listed:
        return self.get(name)

    def _find(self, name: str) -> tuple[Listed, EntryRow | None]:
        given, row = base_of(self._app).get(name), self.store.row(name)
        if given is None and (row is None or row.edit is None):
            guesses = close_matches(name, [each.name for each in self.entries()])
            hint = f"; did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
            raise NoSuchEntry(f"there is no entry {name!r:.200}{hint}")
        return listed(name, given, row), row

    def entry(self, name: str) -> Entry:
        """Return the entry *name*. Raises NoSuchEntry, and InvalidSchedule if it is invalid."""
        return self._entry_of(name, self.get(name))

    def preview(self, name: str, count: int = 10, after: datetime | None = None) -> list[datetime]:
        """Return the next *count* due times of the entry *name* after *after*, an aware datetime; None: from
        now on. Fewer if there are no more. Raises like entry()."""
        found = self.get(name)
        self._entry_of(name, found)
        return preview(self._as_called(found), count, after or self._now())

    def next(self, found: Listed) -> datetime | None:
        """Return the next due time of *found*; None if it is paused, invalid, removed or finished. Raises
        InvalidSchedule when a custom schedule fails."""
        entry = found.entry
        runs = found.state.runs if found.state is not None else 0
        if entry is None or not entry.enabled or (entry.max_runs is not None and runs >= entry.max_runs):
            return None
        return self._as_called(found).next(self._now())

    def _as_called(self, found: Listed) -> Entry:
        """Return its entry, with intervals counted from the time it was first seen, or from now."""
        assert found.entry is not None
        state = found.state or EntryState()
        known = state.seen == seen_as(found)
        return anchored(found.entry, EntryState(since=state.since if known else self._app.clock.now()))

    def runs(self, name: str, most: int = 100) -> list[Slot]:
        """Return the last *most* due times of the entry *name* that were called, newest first."""
        return self.store.slots(name, most)

    def leader(self) -> Lease:
        """Return the lease of the leading scheduler; its holder is "" if there is none. The leader may have
        died: see ``leadership.living()``."""
        return self.store.look()

    def _now(self) -> datetime:
        timezone = self._app.conf.timezone
        return datetime.fromtimestamp(self._app.clock.now(), UTC if timezone == "UTC" else ZoneInfo(timezone))

    # -- changing --

    def add(self, name: str, task: Any, schedule: Any, **fields: Any) -> Listed:
        """Add the entry *name*, which calls *task* according to *schedule*; see ``Entry`` for *fields*.

        Raises InvalidSchedule if it is invalid, or if the entry exists.
        """
        entry = self._plain(read_entry(name, {"task": task, "schedule": schedule, **fields}))
        self._refuse_hindered(entry)
        written = _written(entry, {"task", "schedule", *fields})

        def change(found: Listed | None, edit: Edit | None) -> Edit:
            if found is not None and not found.removed:
                raise InvalidSchedule(
                    f"the entry {name!r} already exists: change it with `qworker beat set` or set()"
                )
            return Edit(written, added=True, born=secrets.token_hex(8))

        return self._edit(name, change)

    def set(self, name: str, **fields: Any) -> Listed:
        """Change *fields* of the entry *name*. Raises NoSuchEntry, and InvalidSchedule for invalid fields."""

        def change(found: Listed | None, edit: Edit | None) -> Edit:
            entry = self._entry_of(name, found)
            changed = self._plain(entry.changed(fields))
            if not _OF_OVERLAP.isdisjoint(fields):
                self._refuse_hindered(changed)
            written = _written(changed, set(fields))
            before = edit or Edit({})
            return before._replace(fields={**before.fields, **written}, removed=False)

        return self._edit(name, change)

    def pause(self, name: str) -> Listed:
        """Stop calling the entry *name* until resume(). Raises NoSuchEntry."""
        return self.set(name, enabled=False)

    def resume(self, name: str) -> Listed:
        """Call the entry *name* again. Raises NoSuchEntry."""
        return self.set(name, enabled=True)

    def reset(self, name: str) -> Listed:
        """Discard manual changes of the entry *name*, so that settings or code apply. Raises NoSuchEntry, and
        InvalidSchedule for an entry that was added by hand."""

        def change(found: Listed | None, edit: Edit | None) -> None:
            self._entry_or_wrong(name, found)
            if name not in base_of(self._app):
                raise InvalidSchedule(
                    f"the entry {name!r} was added by hand: remove it with `qworker beat remove` or remove()"
                )

        return self._edit(name, change)

    def remove(self, name: str) -> None:
        """Remove the entry *name*. An entry from settings or code is only marked as removed, until reset().
        Raises NoSuchEntry."""

        def change(found: Listed | None, edit: Edit | None) -> Edit | None:
            self._entry_or_wrong(name, found)
            return Edit({}, removed=True) if name in base_of(self._app) else None

        self._edit(name, change)

    def refused(self) -> list[Listed]:
        """Return the entries whose manual changes are refused because no key of ``security_key`` has signed
        them, with the changes applied, sorted by name."""
        base = base_of(self._app)
        rows = [row._replace(refused=None) for row in self.store.rows() if row.refused is not None]
        return sorted((listed(row.name, base.get(row.name), row) for row in rows), key=attrgetter("name"))

    def sign(self, names: Iterable[str] | None = None, accept: Iterable[Listed] = ()) -> list[str]:
        """Sign the manual changes of the entries *names*, None for all, with the first key of
        ``security_key``; return the names of those signed.

        It signs changes made with an older key, and those in *accept*, returned by refused(), if they have
        not changed since. Check these first: anyone who can write to the store may have put them there. Other
        refused changes are skipped, or raise InvalidSchedule if *names* includes them. Raises NoSuchEntry,
        and NotSupported without a key.
        """
        if self._app.signer is None:
            raise NotSupported(
                "schedules are signed with the setting security_key, which this app does not set"
            )
        accepted = {each.name: each for each in accept}
        signed = []
        for name in [row.name for row in self.store.rows()] if names is None else names:
            try:
                if self._sign(name, accepted.get(name)):
                    signed.append(name)
            except (InvalidSchedule, NoSuchEntry):
                if names is not None:
                    raise
        return signed

    def _sign(self, name: str, accepted: Listed | None) -> bool:
        for _ in range(TRIES):
            found, row = self._find(name)
            if row is None or row.edit is None:
                return False
            if row.refused is not None:
                read = listed(name, base_of(self._app).get(name), row._replace(refused=None))
                if accepted is None or read[:6] != accepted[:6]:
                    raise InvalidSchedule(found.error or "")
            if self.store.edit(name, to_json(read_edit(row.edit).as_data()), row.version):
                return True
        raise BackendError(f"other processes keep changing the entry {name!r}: try again")

    def run(self, name: str) -> AsyncResult[Any]:
        """Call the entry *name* now, regardless of its schedule; return the result. Raises like entry()."""
        entry = self.entry(name)
        headers = {
            **(entry.options.get("headers") or {}),
            NAME_HEADER: name,
            DUE_HEADER: isoformat(self._app.clock.now()),
        }
        options = {**entry.options, "headers": headers}
        task = self._app.tasks.get(entry.task)
        result: AsyncResult[Any]
        if task is None:
            result = self._app.send_task(entry.task, entry.args, dict(entry.kwargs), **options)
        else:
            result = task.apply_async(entry.args, dict(entry.kwargs), **options)
        return result

    def _plain(self, entry: Entry) -> Entry:
        """Return *entry* with arguments in the form that its task sends. Raises InvalidSchedule for invalid
        arguments."""
        task = self._app.tasks.get(entry.task)
        if task is None:
            return entry
        try:
            args, kwargs = task.dump_arguments(entry.args, dict(entry.kwargs), entry.options)
        except EncodeError as error:
            raise InvalidSchedule(f"entry {entry.name!r}: {error}") from error
        return entry.changed({"args": args, "kwargs": kwargs})

    def _refuse_hindered(self, entry: Entry) -> None:
        """Raise InvalidSchedule for an ``overlap`` that cannot work."""
        if why := hindrance(self._app, entry):
            raise InvalidSchedule(f"entry {entry.name!r}: {why}")

    def _entry_or_wrong(self, name: str, found: Listed | None) -> Listed:
        if found is None:
            self._find(name)
            raise NoSuchEntry(f"there is no entry {name!r:.200}")
        return found

    def _entry_of(self, name: str, found: Listed | None) -> Entry:
        here = self._entry_or_wrong(name, found)
        if here.entry is None:
            raise InvalidSchedule(
                here.error or f"the entry {name!r} has been removed; reset() brings it back"
            )
        return here.entry

    def _edit(self, name: str, change: Callable[[Listed | None, Edit | None], Edit | None]) -> Listed:
        """Apply *change* to the entry *name*, again if another process edits it at the same time. Return the
        changed entry."""
        if not self.store.shared:
            raise NotSupported(
                "there is no schedule store to share the change: set beat_store, for example to "
                "'redis://…' or 'postgresql://…', or change the settings"
            )
        given = base_of(self._app).get(name)
        for _ in range(TRIES):
            row = self.store.row(name)
            known = given is not None or (row is not None and row.edit is not None)
            found = listed(name, given, row) if known else None
            try:
                edit = edit_of(row)
            except InvalidSchedule:
                edit = None  # damaged data is overwritten
            changed = change(found, edit)
            text = None if changed is None else to_json(changed.as_data())
            if self.store.edit(name, text, row.version if row else 0):
                return listed(name, given, self.store.row(name))
        raise BackendError(f"other processes keep changing the entry {name!r}: try again")

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def preview(entry: Entry, count: int, after: datetime) -> list[datetime]:
    """Return the next *count* due times of *entry* after *after*, an aware datetime."""
    found: list[datetime] = []
    instant: datetime | None = after
    while len(found) < count and instant is not None and (instant := entry.next(instant)) is not None:
        found.append(instant)
    return found


def _written(entry: Entry, names: set[str]) -> dict[str, Any]:
    """Return the fields *names* of *entry* as plain data."""
    written = write_fields({name: getattr(entry, name) for name in sorted(names)})
    read_fields(written)
    return written
