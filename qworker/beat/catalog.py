"""The catalog: all entries of an app, from all sources.

Comes from:  the setting ``beat_schedule``, ``add_periodic_task()``, ``@app.task(schedule=...)``, and edits in
             the schedule store.
Goes to:     the service, and code that shows entries.
Thread:      any; a catalog is never changed, but replaced.

Settings and code are the base. Manual changes override them field by field, until reset. An entry added by
hand is only in the store. An invalid entry is listed with its error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from qworker import __version__
from qworker.beat.entry import FIELDS, USUAL, Entry, read_entry
from qworker.beat.kinds import write_schedule
from qworker.beat.serialization import from_json, read_fields
from qworker.beat.store import EntryRow, EntryState
from qworker.contracts import App
from qworker.errors import InvalidSchedule, QWorkerError

SETTINGS, CODE, TASK, HAND = "settings", "code", "task", "hand"
UNCHANGED: frozenset[str] = frozenset()
"""Shared by all entries, because an empty set takes 216 bytes."""


class Listed(NamedTuple):
    """The current definition of an entry.

    - entry: None if it is invalid; error says why.
    - source: SETTINGS, CODE, TASK or HAND.
    - changed: fields changed by hand.
    - removed: removed by hand, although settings or code define it.
    - born: distinguishes an entry added by hand from earlier and later ones of the same name.
    """

    name: str
    entry: Entry | None
    source: str
    changed: frozenset[str] = UNCHANGED
    error: str | None = None
    removed: bool = False
    state: EntryState | None = None
    born: str | None = None


class Edit(NamedTuple):
    """A manual change. fields: as plain data. added: they define a whole entry. removed: the entry is not
    called. born: a unique text, for an added entry."""

    fields: dict[str, Any]
    added: bool = False
    removed: bool = False
    born: str | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the stored form."""
        marks = {name: True for name in ("added", "removed") if getattr(self, name)}
        return {"fields": self.fields, **marks, **({"born": self.born} if self.born else {})}


def edit_of(row: EntryRow | None) -> Edit | None:
    """Return the manual change in *row*; None if there is none. Raises InvalidSchedule if it is unreadable or
    refused."""
    if row is None or row.edit is None:
        return None
    if row.refused is not None:
        raise InvalidSchedule(
            f"entry {row.name!r:.200}: its change in the schedule store is refused: {row.refused}. If you "
            "made the change, for example before you set security_key, show and sign it with `qworker beat "
            "sign`; otherwise use `qworker beat remove`, or `qworker beat reset` for an entry of settings "
            "or code"
        )
    return read_edit(row.edit)


def read_edit(text: bytes) -> Edit:
    """Return the edit stored as *text*. Raises InvalidSchedule."""
    found = from_json(text)
    fields = found.get("fields")
    if not isinstance(fields, dict):
        raise InvalidSchedule(f"{text[:80]!r} is not an edit of an entry")
    born = found.get("born")
    is_mark = isinstance(born, str) and _MARK.fullmatch(marked(born)) is not None
    return Edit(fields, found.get("added") is True, found.get("removed") is True, born if is_mark else None)


_MARK = re.compile(r" added ([0-9a-f]{16})")


def marked(born: str | None) -> str:
    """Return the end of ``EntryState.seen`` for an entry that was added by hand."""
    return "" if born is None else f" added {born}"


def _born(state: EntryState) -> str | None:
    """Return the ``born`` of the entry added by hand that *state* belongs to; None if there is none, or it is
    unknown."""
    found = _MARK.search(state.seen, max(0, len(state.seen) - len(marked("0" * 16))))
    return found and found[1]


def is_leftover(row: EntryRow) -> bool:
    """Return whether *row* is left over from a removed entry, and can be deleted. (Only for entries that are
    not in settings or code.)"""
    if row.edit is not None:
        return False
    return row.state is None or row.state == EntryState() or _born(row.state) is not None


def base_of(app: App) -> dict[str, tuple[str, Any]]:
    """Return the source and definition of each entry in the settings and the code, by name."""
    found: dict[str, tuple[str, Any]] = {}
    for name, task in app.tasks.items():
        given = getattr(task, "schedule", None)
        if given is not None:
            found[name] = TASK, {"task": name, "schedule": given}
    for name, described in app.periodic_tasks.items():
        found[name] = CODE, described
    for name, described in (app.conf.beat_schedule or {}).items():
        found[str(name)] = SETTINGS, described
    return found


def catalog(
    base: Mapping[str, tuple[str, Any]], rows: Iterable[EntryRow], plain: Mapping[str, Listed] | None = None
) -> dict[str, Listed]:
    """Return every entry of *base* and *rows*, by name. plain: ``catalog(base, ())``, if known already."""
    known = {row.name: row for row in rows}
    found: dict[str, Listed] = {}
    for name, given in base.items():
        row = known.get(name)
        if plain is not None and (row is None or row.edit is None):
            found[name] = plain[name]._replace(state=row and row.state)
        else:
            found[name] = listed(name, given, row)
    for name, row in known.items():
        if name not in base and row.edit is not None:
            found[name] = listed(name, None, row)
    return found


def listed(name: str, given: tuple[str, Any] | None, row: EntryRow | None) -> Listed:
    """Return the entry *name*, from settings or code and the store."""
    source, described = given or (HAND, None)
    state = row and row.state
    try:
        edit = edit_of(row)
        born = edit and edit.born
        if born is not None and state is not None and _born(state) not in (None, born):
            state = None  # it belongs to another entry, which was removed
        changes = frozenset(edit.fields) if edit is not None else UNCHANGED
        if edit is not None and edit.removed:
            return Listed(name, None, source, changes, removed=True, state=state)
        if given is None or (edit is not None and edit.added):
            fields = read_fields(edit.fields) if edit is not None else {}
            return Listed(name, read_entry(name, fields), HAND, state=state, born=born)
        entry = read_entry(name, described)
        if edit is not None:
            entry = entry.changed(read_fields(edit.fields))
        return Listed(name, entry, source, changes, state=state)
    except Exception as error:  # noqa: BLE001 - settings, code and stores may contain any objects
        return Listed(name, None, source, error=error_text(error), state=state)


def error_text(error: Exception) -> str:
    """Return the text of *error*, preceded by its type unless it is a QWorkerError."""
    return str(error) if isinstance(error, QWorkerError) else f"{type(error).__name__}: {error}"


def about(plain: Mapping[str, Listed]) -> str:
    """Return JSON that is the same in processes of one version whose settings and code have the same entries:
    ``qworker``, the version, and ``entries``, a hash. plain: ``catalog(base, ())``."""
    every = [(name, _comparable(plain[name])) for name in sorted(plain)]
    try:
        text = _as_text(every)
    except Exception:  # noqa: BLE001 - arguments may be any objects: then only the task is compared
        text = _as_text([(name, _as_text_or_task(values)) for name, values in every])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return json.dumps({"qworker": __version__, "entries": digest}, sort_keys=True)


_OPTIONAL = sorted(FIELDS - {"task", "schedule", "args"})
_VALUES = attrgetter(*_OPTIONAL)
_USUAL_VALUES = tuple(USUAL[name] for name in _OPTIONAL)


def _comparable(found: Listed) -> tuple[Any, ...]:
    """Return values that are the same in each process and differ when the entry does; the task is first."""
    if found.entry is None:
        return ("wrong",)
    entry, values = found.entry, _VALUES(found.entry)
    try:
        when: Any = write_schedule(entry.schedule)
    except InvalidSchedule:  # a custom schedule, whose repr() may differ between processes
        when = type(entry.schedule).__qualname__
    if values == _USUAL_VALUES:  # most entries; writing the defaults takes the most time
        return entry.task, entry.args, when
    return entry.task, entry.args, when, values


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _as_text_or_task(values: tuple[Any, ...]) -> Any:
    try:
        return _as_text(values)
    except Exception:  # noqa: BLE001 - arguments may be any objects
        return values[0]


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else type(value).__qualname__
