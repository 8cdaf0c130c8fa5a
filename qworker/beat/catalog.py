"""The catalog: all entries of an app, from wherever they come.

Comes from:  the setting ``beat_schedule``, ``add_periodic_task()``, ``@app.task(schedule=...)``, and what the
             schedule store has of edits.
Goes to:     the service, which looks after them, and whoever shows them.
Thread:      any; a catalog is read, and made anew.

Settings and code are the base. What was changed by hand lies over it, field by field, until it is reset; an
entry that was added by hand is in the store alone. One that is wrong is listed with what is wrong about it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import __version__
from qworker.beat.entry import FIELDS, USUAL, Entry, read_entry
from qworker.beat.kinds import write_schedule
from qworker.beat.store import Row, State
from qworker.beat.written import from_json, read_fields
from qworker.errors import InvalidSchedule, QWorkerError

if TYPE_CHECKING:
    from qworker.app import QWorker

SETTINGS, CODE, TASK, HAND = "settings", "code", "task", "hand"
UNCHANGED: frozenset[str] = frozenset()
"""One for all entries: an empty set of its own takes 216 bytes."""


class Listed(NamedTuple):
    """An entry as it stands.

    - entry: None when it is wrong; error says why.
    - source: SETTINGS, CODE, TASK or HAND.
    - changed: the fields that were changed by hand.
    - removed: it was removed by hand, though settings or code have it.
    - born: by what one that was added by hand is told from others of its name before and after.
    """

    name: str
    entry: Entry | None
    source: str
    changed: frozenset[str] = UNCHANGED
    error: str | None = None
    removed: bool = False
    state: State | None = None
    born: str | None = None


class Edit(NamedTuple):
    """What was changed by hand. fields: as plain data. added: they are all of an entry. removed: it is not to
    be called. born: of one that was added, what no other has."""

    fields: dict[str, Any]
    added: bool = False
    removed: bool = False
    born: str | None = None

    def as_data(self) -> dict[str, Any]:
        """What is kept of it."""
        marks = {name: True for name in ("added", "removed") if getattr(self, name)}
        return {"fields": self.fields, **marks, **({"born": self.born} if self.born else {})}


def edit_of(row: Row | None) -> Edit | None:
    """Return what was changed by hand of the entry of *row*; None for nothing. Raises InvalidSchedule for
    what cannot be read, and for what is refused, which is not read."""
    if row is None or row.edit is None:
        return None
    if row.refused is not None:
        raise InvalidSchedule(
            f"entry {row.name!r:.200}: what the schedule store has of it is refused: {row.refused}. If it is "
            "yours, as from before there was a security_key, `qworker beat sign` shows it and signs it; else "
            "`qworker beat remove`, or `qworker beat reset` for one of settings or code"
        )
    return read_edit(row.edit)


def read_edit(text: bytes) -> Edit:
    """Return the edit that is kept as *text*. Raises InvalidSchedule."""
    found = from_json(text)
    fields = found.get("fields")
    if not isinstance(fields, dict):
        raise InvalidSchedule(f"{text[:80]!r} is not an edit of an entry")
    born = found.get("born")
    is_mark = isinstance(born, str) and _MARK.fullmatch(marked(born)) is not None
    return Edit(fields, found.get("added") is True, found.get("removed") is True, born if is_mark else None)


_MARK = re.compile(r" added ([0-9a-f]{16})")


def marked(born: str | None) -> str:
    """How ``State.seen`` ends for an entry that was added by hand."""
    return "" if born is None else f" added {born}"


def _born(state: State) -> str | None:
    """To which of the entries that were added by hand under one name *state* belongs; None: to none of them,
    or nobody has noted that."""
    found = _MARK.search(state.seen, max(0, len(state.seen) - len(marked("0" * 16))))
    return found and found[1]


def says_nothing(row: Row) -> bool:
    """Tell whether nothing would be lost with *row*, where settings and code have no such entry: it is what
    an entry that was added by hand has left."""
    if row.edit is not None:
        return False
    return row.state is None or row.state == State() or _born(row.state) is not None


def base_of(app: QWorker) -> dict[str, tuple[str, Any]]:
    """Return where each entry of the settings and the code comes from, and how it is described, by its
    name."""
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
    base: Mapping[str, tuple[str, Any]], rows: Iterable[Row], plain: Mapping[str, Listed] | None = None
) -> dict[str, Listed]:
    """Return every entry of *base* and *rows*, by its name.

    plain: the same without any rows, where that was made already.
    """
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


def listed(name: str, given: tuple[str, Any] | None, row: Row | None) -> Listed:
    """Return the entry *name*, of what settings or code and the store say of it."""
    source, described = given or (HAND, None)
    state = row and row.state
    try:
        edit = edit_of(row)
        born = edit and edit.born
        if born is not None and state is not None and _born(state) not in (None, born):
            state = None  # of another, which was removed
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
    except Exception as error:  # noqa: BLE001 - what settings, code and a store have may be anybody's objects
        return Listed(name, None, source, error=said(error), state=state)


def said(error: Exception) -> str:
    """Return what *error* says, with its kind where it is none of ours."""
    return str(error) if isinstance(error, QWorkerError) else f"{type(error).__name__}: {error}"


def about(plain: Mapping[str, Listed]) -> str:
    """Return JSON by which a process with other entries in its settings and code, or of another version, is
    told: ``qworker``, the version, and ``entries``, a hash.

    plain: the entries as settings and code have them: ``catalog(base, ())``.
    """
    every = [(name, _told(plain[name])) for name in sorted(plain)]
    try:
        text = _as_text(every)
    except Exception:  # noqa: BLE001 - arguments are anybody's objects; of some only the task is told
        text = _as_text([(name, _as_text_or_task(told)) for name, told in every])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return json.dumps({"qworker": __version__, "entries": digest}, sort_keys=True)


_OPTIONAL = sorted(FIELDS - {"task", "schedule", "args"})
_VALUES = attrgetter(*_OPTIONAL)
_USUAL_VALUES = tuple(USUAL[name] for name in _OPTIONAL)


def _told(found: Listed) -> tuple[Any, ...]:
    """What is another when an entry is, and the same in each process that has it; its task first."""
    if found.entry is None:
        return ("wrong",)
    entry, values = found.entry, _VALUES(found.entry)
    try:
        when: Any = write_schedule(entry.schedule)
    except InvalidSchedule:  # one of their own, whose repr() may be another in each process
        when = type(entry.schedule).__qualname__
    if values == _USUAL_VALUES:  # as of most: to write them takes longer than all else
        return entry.task, entry.args, when
    return entry.task, entry.args, when, values


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _as_text_or_task(told: tuple[Any, ...]) -> Any:
    try:
        return _as_text(told)
    except Exception:  # noqa: BLE001 - as above
        return told[0]


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else type(value).__qualname__
