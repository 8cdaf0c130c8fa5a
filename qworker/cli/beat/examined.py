"""What is wrong with schedules: entries, where they are kept, who looks after them.

Comes from:  `qworker config check` (problems), `qworker doctor` (facts), `qworker beat` (troubles).
Goes to:     the settings and tasks of the app; facts() asks the schedule store too.
Thread:      main. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from qworker import __version__
from qworker.app import QWorker
from qworker.beat.catalog import Listed, about, base_of, catalog
from qworker.beat.entry import Entry
from qworker.beat.leadership import living
from qworker.beat.overlap import hindrance
from qworker.beat.store import Lease
from qworker.beat.stores import open_store, store_url
from qworker.cli.discovery import AppChoice
from qworker.cli.output import count
from qworker.cli.servers import Fact
from qworker.conf import mask_urls
from qworker.conf.sources import Problem
from qworker.errors import ConfigurationError, InvalidSchedule, PublishError, QWorkerError
from qworker.publishing.call import check_options

_START = "start one: qworker beat, or a worker with --beat"
_SHARE = "set beat_store, as to redis://… or postgresql://…"
CANNOT_BE_CALLED = "cannot be called"
_ALONE = "schedules are kept in no store that others see: two schedulers would call everything twice"


def problems(choice: AppChoice) -> Iterator[Problem]:
    """What settings and code say alone; nothing is connected to."""
    app = choice.app
    source = app.conf.source("beat_store")
    entries = list(catalog(base_of(app), ()).values())
    try:
        shared = open_store(app).shared
    except ConfigurationError as error:
        if error.setting == "beat_store":  # another one has been told
            yield Problem("beat_store", str(error), source, "error")
    else:
        if entries and not shared:
            # Who has set memory:// knows.
            severity = "warning" if app.conf.beat_store is None else "note"
            yield Problem("beat_store", f"{_ALONE}; {_SHARE}", source, severity)
    whence = app.conf.source("beat_schedule")
    for severity, what, advice in _entries(app, entries):
        text = f"{what}; {advice}" if advice else what
        yield Problem("beat_schedule", text, whence, severity)


def facts(choice: AppChoice) -> Iterator[Fact]:
    """All entries, also those that were added by hand, and who looks after them. Raises QWorkerError when the
    store does not answer though there are entries."""
    app = choice.app
    base = base_of(app)
    schedules = app.schedules
    try:
        store = schedules.store
    except ConfigurationError as error:
        yield Fact("error", str(error))
        yield from _entries(app, list(catalog(base, ()).values()))
        return
    entries: Sequence[Listed] = []
    try:
        if base:
            entries = schedules.entries()
        else:
            with suppress(QWorkerError):  # who has no schedules need not know that they cannot be kept
                entries = schedules.entries()
        yield from _entries(app, entries)
        called = [each for each in entries if each.entry is not None and each.entry.enabled]
        if not called:
            return
        if not store.shared:
            yield Fact("warning", _ALONE, _SHARE)
            return
        lease = living(store, app.clock)
    finally:
        schedules.close()
    number = count(len(called), "entry").replace("entrys", "entries")
    where = mask_urls(store_url(app) or "")
    if lease is None:
        yield Fact("warning", f"nobody looks after the schedules ({number}, kept in {where})", _START)
        return
    yield Fact("ok", f"{lease.holder} looks after the schedules ({number}, kept in {where})")
    yield from _differences(lease, about(catalog(base, ())))


def _entries(app: QWorker, entries: Sequence[Listed]) -> Iterator[Fact]:
    """What is wrong with entries."""
    for each in entries:
        if each.error is not None:
            yield Fact("error", each.error, "until then it is not called")
        if each.entry is None:
            continue
        now = datetime.fromtimestamp(app.clock.now(), UTC)
        try:
            if each.entry.next(now) is None and each.entry.previous(now) is None:
                yield Fact(
                    "error",
                    f"the entry {each.name!r:.200} is never due",
                    "look at its start, its end and its schedule, or remove it",
                )
        except InvalidSchedule as error:
            yield Fact("error", str(error), "until then it is not called")
        found = list(troubles(app, each.entry))
        for trouble in found:
            yield Fact(trouble.severity, f"the entry {each.name!r:.200} {trouble.what}", trouble.advice)
        if (
            each.state is not None
            and each.state.error is not None
            and CANNOT_BE_CALLED not in {trouble.words for trouble in found}
        ):
            yield Fact("error", f"the entry {each.name!r:.200} could not be called: {each.state.error}")


class Trouble(NamedTuple):
    """What is wrong with the call of an entry. words: in a few. what: goes on from "the entry 'x'"."""

    severity: str
    words: str
    what: str
    advice: str = ""


def troubles(app: QWorker, entry: Entry) -> Iterator[Trouble]:
    """What would go wrong when *entry* is due, as far as settings and code tell. Nothing is connected to."""
    task = app.tasks.get(entry.task)
    if task is None:
        yield Trouble(
            "warning",
            "unknown task",
            f"calls {entry.task!r:.200}, which is not a task of this app",
            "correct its name, or import the module that has it; where only workers have it, all is well",
        )
    if why := hindrance(app, entry):
        yield Trouble("error", "overlap ignored", f"is called as with overlap='allow', since {why}")
    try:
        check_options(app, entry.task, entry.options)
        if task is not None and task.typing and task.check_arguments is not None:
            task.check_arguments(*entry.args, **entry.kwargs)
    except (PublishError, TypeError) as error:
        yield Trouble("error", CANNOT_BE_CALLED, f"cannot be called: {error}")


def _differences(lease: Lease, ours: str) -> Iterator[Fact]:
    """Whether who leads runs another version of qworker, or of the project, than we do."""
    theirs, here = _read(lease.about), _read(ours)
    if not theirs:
        return
    version = theirs.get("qworker")
    if version != here["qworker"]:
        yield Fact(
            "warning",
            f"{lease.holder} leads the schedules with qworker {version!s:.40}, and this is {__version__}",
            "run the same version everywhere",
        )
    elif theirs.get("entries") != here["entries"]:
        yield Fact(
            "warning",
            f"{lease.holder} has other entries in its settings and code than this app",
            "start it again with the present version of the project",
        )


def _read(text: str) -> dict[str, Any]:
    """What a scheduler says of itself; {} for what is none of ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
