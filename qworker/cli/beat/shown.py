"""Entries for display: as rows, as fields, as JSON.

Comes from:  `qworker beat` and its commands.
Goes to:     standard output.
Thread:      main.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

import click

from qworker.app import QWorker
from qworker.beat.catalog import HAND, Listed
from qworker.beat.leadership import living
from qworker.beat.schedule import Schedule
from qworker.beat.serialization import as_data
from qworker.beat.store import EntryState, Slot
from qworker.beat.stores import store_url
from qworker.cli.beat.examined import problems_of
from qworker.cli.beat.options import zone_of_app
from qworker.cli.output import print_table, visible
from qworker.conf import mask_urls
from qworker.errors import InvalidSchedule
from qworker.safe_repr import safe_repr

ACTIVE, PAUSED, WRONG, REMOVED, OVER = "active", "paused", "wrong", "removed", "over"
_LONGEST = 4096
RUNS_SHOWN = 10
DUES_SHOWN = 5


def state_of(found: Listed, due: datetime | None) -> str:
    """Return ACTIVE, PAUSED, WRONG (never called), REMOVED, or OVER: it will not be due again."""
    if found.removed:
        return REMOVED
    if found.entry is None:
        return WRONG
    if not found.entry.enabled:
        return PAUSED
    return OVER if due is None else ACTIVE


def when(schedule: Schedule) -> str:
    """Return a schedule in words, with its time zone; a custom one may have none."""
    try:
        text = schedule.words() if isinstance(schedule, Schedule) else safe_repr(schedule)
    except Exception:  # noqa: BLE001 - a custom schedule may raise anything
        text = safe_repr(schedule)
    zone = getattr(schedule, "tz", None)
    return text if zone is None else f"{text} ({zone})"


def full_text(found: Listed) -> str:
    """Return all fields of an entry in one line; for an invalid one its error."""
    if found.removed:
        return "removed"
    if found.entry is None:
        return found.error or "wrong"
    return json.dumps(as_data(found.entry), default=str)


def brief(app: QWorker, found: Listed) -> dict[str, Any]:
    """Return an entry for --json. The help of `list` documents the keys."""
    entry, state = found.entry, found.state or EntryState()
    try:
        due = app.schedules.next(found)
    except InvalidSchedule as error:
        found, due = found._replace(entry=None, error=str(error)), None
    return {
        "name": found.name,
        "task": entry and entry.task,
        "when": entry and when(entry.schedule),
        "state": state_of(found, due),
        "source": found.source,
        "changed": sorted(found.changed),
        "next_due": due and due.isoformat(),
        "last_due": _iso(app, state.last_due),
        "last_run": _iso(app, state.last_run),
        "runs": state.runs,
        "error": found.error or state.error,
        "problems": [
            {"severity": each.severity, "words": each.words, "what": each.what, "advice": each.advice}
            for each in (() if entry is None else problems_of(app, entry))
        ],
    }


def whole(app: QWorker, found: Listed) -> dict[str, Any]:
    """Return an entry for `show --json`: the keys of brief(), its fields, its last runs and next due
    times."""
    shown = brief(app, found)
    dues = app.schedules.preview(found.name, DUES_SHOWN) if shown["state"] == ACTIVE else []
    last = app.schedules.runs(found.name, RUNS_SHOWN)
    return {
        **shown,
        "fields": _fields(found),
        "task_id": last[0].task_id if last else found.state and found.state.called_id,
        "next": [due.isoformat() for due in dues],
        "last": [_slot(app, slot) for slot in last],
    }


def _fields(found: Listed) -> dict[str, Any]:
    if found.entry is None:
        return {}
    try:
        return as_data(found.entry)
    except InvalidSchedule:  # a custom schedule, which cannot be stored
        plain = {name: getattr(found.entry, name) for name in ("task", "args", "kwargs", "options")}
        return {
            **plain,
            "enabled": found.entry.enabled,
            "schedule": {"other": safe_repr(found.entry.schedule)},
        }


def _slot(app: QWorker, slot: Slot) -> dict[str, Any]:
    return {
        "due": _iso(app, slot.due),
        "at": _iso(app, slot.at),
        "task_id": slot.task_id,
        "outcome": slot.outcome,
    }


def leader(app: QWorker) -> dict[str, Any]:
    """Return the leader for --json. shared: whether other processes see the leader and changes."""
    schedules = app.schedules
    if not schedules.store.shared:
        return {"leader": None, "shared": False, "store": "memory://"}
    lease = living(schedules.store, app.clock)
    return {
        "leader": lease and lease.holder,
        "shared": True,
        "store": mask_urls(store_url(app) or ""),
    }


# -- for people --


def print_entries(app: QWorker, entries: Sequence[Listed]) -> None:
    """Print a table of entries, their problems, and the leader."""
    shown = [brief(app, each) for each in entries]
    rows = [
        (
            each["name"],
            each["task"],
            each["when"],
            shown_time(app, each["next_due"]),
            shown_time(app, each["last_run"]),
            each["runs"],
            _state_words(each),
            each["source"],
        )
        for each in shown
    ]
    print_table(("name", "task", "when", "next", "last run", "runs", "state", "source"), rows, right="runs")
    for each in shown:
        if each["error"] is not None:
            whose = "" if repr(each["name"]) in each["error"] else f"{each['name']}: "
            click.echo(visible(f"{whose}{each['error']}"), err=True)
    if any(each["problems"] for each in shown):
        click.echo("Details of problems: qworker beat show NAME", err=True)


def print_leader(app: QWorker) -> None:
    """Print the leader on standard error, in one line."""
    found = leader(app)
    if not found["shared"]:
        text = "There is no shared schedule store: each `qworker beat` runs the schedules separately."
    elif found["leader"] is None:
        text = "No scheduler is running. Start one: qworker beat, or a worker with --beat."
    else:
        text = f"{visible(found['leader'])} is the leader of the schedulers."
    click.echo(text, err=True)


def print_entry(app: QWorker, found: Listed) -> None:
    """Print all of an entry, one line for each field."""
    shown = whole(app, found)
    fields, dues, runs = shown.pop("fields"), shown.pop("next"), shown.pop("last")
    shown["state"] = _state_words(shown)
    found_wrong = shown.pop("problems")
    shown.pop("changed")
    for name in ("next_due", "last_due", "last_run"):
        shown[name] = shown_time(app, shown[name])
    for name, value in shown.items():
        if value not in (None, ""):
            click.echo(f"{name.replace('_', ' ')}: {visible(str(value))}")
    for problem in found_wrong:
        click.echo(f"{problem['severity']}: it {visible(problem['what'])}")
        if problem["advice"]:
            click.echo(f"    {visible(problem['advice'])}")
    if fields:
        click.echo("fields:")
    for name, value in fields.items():
        if name != "task":
            text = json.dumps(value, ensure_ascii=False, default=safe_repr)
            cut = "…" if len(text) > _LONGEST else ""
            mark = "  (changed by hand)" if name in found.changed else ""
            click.echo(f"  {name}: {visible(text[:_LONGEST])}{cut}{mark}")
    if dues:
        click.echo("next due times:")
    for due in dues:
        click.echo(f"  {shown_time(app, due)}")
    if runs:
        click.echo("last runs:")
    for run in runs:
        late = f"called {shown_time(app, run['at'])}"
        pending = "" if run["outcome"] == "sent" else f"  {run['outcome']}"
        click.echo(f"  due {shown_time(app, run['due'])}  {late}  {visible(run['task_id'])}{pending}")


def _state_words(shown: dict[str, Any]) -> str:
    changed = bool(shown["changed"]) and shown["source"] != HAND and shown["state"] != REMOVED
    words = [shown["state"], *(["changed by hand"] if changed else [])]
    return ", ".join([*words, *(problem["words"] for problem in shown["problems"])])


def shown_time(app: QWorker, text: str | None) -> str:
    """Return an instant in the app's time zone; "" for None."""
    if text is None:
        return ""
    return in_zone(datetime.fromisoformat(text), zone_of_app(app))


def in_zone(instant: datetime, zone: tzinfo) -> str:
    """Such as 2027-01-31 08:00:00 CET; with a fraction of a second if there is one."""
    there = instant.astimezone(zone)
    thousandths = there.microsecond // 1000
    return f"{there:%Y-%m-%d %H:%M:%S}{f'.{thousandths:03}' if thousandths else ''} {there:%Z}"


def _iso(app: QWorker, seconds: float | None) -> str | None:
    """Return an epoch second in the app's time zone; None for None, and for an invalid time."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, zone_of_app(app)).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
