"""Jobs of a spool directory for display: as rows, as fields, as JSON.

Comes from:  `qworker spool` and its commands.
Goes to:     standard output.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

import click

from qworker.cli.output import age, print_table, visible
from qworker.clock import from_epoch
from qworker.spooler.administration.admin import Aside, Examined, ListedJob
from qworker.spooler.files.attempts import Note

ASIDE, RUNNING, DELAYED, WAITING, UNKNOWN = "set aside", "running", "delayed", "waiting", "unknown"
_LONGEST_REASON = 60
_LONGEST_VALUE = 4096


def state_of(job: ListedJob, now: float) -> str:
    """Return RUNNING, DELAYED (due later) or WAITING; UNKNOWN when its lock must not be checked."""
    if job.running is None:
        return UNKNOWN
    return RUNNING if job.running else DELAYED if job.due > now else WAITING


def waiting_fields(job: ListedJob, now: float) -> dict[str, Any]:
    return {
        "name": job.path,
        "priority": job.priority,
        "state": state_of(job, now),
        "size": job.size,
        "due": job.due,
        "attempts": job.attempts,
    }


def aside_fields(job: Aside) -> dict[str, Any]:
    return {"name": job.name, "state": ASIDE, "size": job.size, **_note_fields(job.note)}


def _note_fields(note: Note) -> dict[str, Any]:
    return {
        "was": note.path,
        "reason": note.reason,
        "attempts": note.attempts,
        "set_aside_at": note.at or None,
    }


def examined_fields(found: Examined, now: float) -> dict[str, Any]:
    """Return all of a job. Bytes are text, with non-UTF-8 escaped."""
    job, content, note = found
    fields = waiting_fields(job, now)
    if note is not None:
        fields |= {"state": ASIDE, **_note_fields(note)}
    if content.damage:
        fields["damage"] = content.damage
    return fields | {
        "pairs": {text(key): text(value) for key, value in content.pairs.items()},
        "body_length": content.body_length,
        "body": text(content.beginning),
    }


def text(value: bytes) -> str:
    """Return bytes as text, with non-UTF-8 escaped."""
    return value.decode("utf-8", "backslashreplace")


def print_waiting(jobs: list[ListedJob], now: float) -> None:
    rows = [
        (job.path, job.priority, job.size, due_in(job.due, now), job.attempts, state_of(job, now))
        for job in jobs
    ]
    print_table(("name", "priority", "bytes", "due", "attempts", "state"), rows, right="bytes attempts")


def print_aside(jobs: list[Aside], now: float) -> None:
    rows = []
    for job in jobs:
        note = job.note
        reason = note.reason
        if len(reason) > _LONGEST_REASON:
            reason = reason[: _LONGEST_REASON - 1] + "…"
        rows.append((job.name, job.size, note.attempts, age(now - note.at if note.at else None), reason))
    print_table(("set aside", "bytes", "attempts", "age", "reason"), rows, right="bytes attempts age")


def print_examined(found: Examined, now: float) -> None:
    fields = examined_fields(found, now)
    pairs, body, length = fields.pop("pairs"), fields.pop("body"), fields.pop("body_length")
    for name, value in fields.items():
        if name in ("due", "set_aside_at") and value is not None:
            value = moment(value)
        shown = "" if value is None else visible(str(value))
        click.echo(f"{name.replace('_', ' ')}: {shown}" if shown else f"{name.replace('_', ' ')}:")
    click.echo("pairs:")
    for key, value in pairs.items():
        click.echo(f"  {visible(key)}: {_beginning(value)}")
    more = "…" if length > len(found.content.beginning) else ""
    click.echo(f"body ({length} bytes):" + (f" {visible(body)}{more}" if body else ""))


def _beginning(value: str) -> str:
    return visible(value[:_LONGEST_VALUE]) + ("…" if len(value) > _LONGEST_VALUE else "")


def due_in(due: float, now: float) -> str:
    return f"in {age(due - now)}" if due > now else "now"


def moment(seconds: float) -> str:
    """Return a time of a file. Times beyond the calendar are shown as seconds."""
    try:
        return from_epoch(seconds).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(seconds)
