"""Problems of schedules: entries, their store, and the scheduler.

Comes from:  `qworker config check` (problems), `qworker doctor` (facts), `qworker beat` (problems).
Goes to:     the settings and tasks of the app; facts() also queries the schedule store.
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
_SHARE = "set beat_store, for example to redis://… or postgresql://…"
CANNOT_BE_CALLED = "cannot be called"
_ALONE = "there is no shared schedule store: two schedulers would call everything twice"


def problems(choice: AppChoice) -> Iterator[Problem]:
    """Return the problems of settings and code, without connecting."""
    app = choice.app
    source = app.conf.source("beat_store")
    entries = list(catalog(base_of(app), ()).values())
    try:
        shared = open_store(app).shared
    except ConfigurationError as error:
        if error.setting == "beat_store":  # another one was reported
            yield Problem("beat_store", str(error), source, "error")
    else:
        if entries and not shared:
            # memory:// is deliberate.
            severity = "warning" if app.conf.beat_store is None else "note"
            yield Problem("beat_store", f"{_ALONE}; {_SHARE}", source, severity)
    whence = app.conf.source("beat_schedule")
    for severity, what, advice in _entries(app, entries):
        text = f"{what}; {advice}" if advice else what
        yield Problem("beat_schedule", text, whence, severity)


def facts(choice: AppChoice) -> Iterator[Fact]:
    """Return all entries, including those added by hand, and the leader. Raises QWorkerError when the store
    is unavailable although there are entries."""
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
            with suppress(QWorkerError):  # without schedules the missing store does not matter
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
    number = count(len(called), "entry", "entries")
    where = mask_urls(store_url(app) or "")
    if lease is None:
        yield Fact("warning", f"no scheduler is running ({number}, kept in {where})", _START)
        return
    yield Fact("ok", f"{lease.holder} is the leader of the schedulers ({number}, kept in {where})")
    yield from _differences(lease, about(catalog(base, ())))


def _entries(app: QWorker, entries: Sequence[Listed]) -> Iterator[Fact]:
    """Return the problems of entries."""
    for each in entries:
        if each.error is not None:
            yield Fact("error", each.error, "it is not called until this is corrected")
        if each.entry is None:
            continue
        now = datetime.fromtimestamp(app.clock.now(), UTC)
        try:
            if each.entry.next(now) is None and each.entry.previous(now) is None:
                yield Fact(
                    "error",
                    f"the entry {each.name!r:.200} will never be due",
                    "check its start, its end and its schedule, or remove it",
                )
        except InvalidSchedule as error:
            yield Fact("error", str(error), "it is not called until this is corrected")
        found = list(problems_of(app, each.entry))
        for problem in found:
            yield Fact(problem.severity, f"the entry {each.name!r:.200} {problem.what}", problem.advice)
        if (
            each.state is not None
            and each.state.error is not None
            and CANNOT_BE_CALLED not in {problem.words for problem in found}
        ):
            yield Fact("error", f"the entry {each.name!r:.200} could not be called: {each.state.error}")


class EntryProblem(NamedTuple):
    """A problem of an entry's call. words: short. what: continues "the entry 'x'"."""

    severity: str
    words: str
    what: str
    advice: str = ""


def problems_of(app: QWorker, entry: Entry) -> Iterator[EntryProblem]:
    """Return problems that *entry* will have when it is due, as far as settings and code show. Connects to
    nothing."""
    task = app.tasks.get(entry.task)
    if task is None:
        yield EntryProblem(
            "warning",
            "unknown task",
            f"calls {entry.task!r:.200}, which is not a task of this app",
            "correct its name, or import its module; if only workers have it, ignore this",
        )
    if why := hindrance(app, entry):
        yield EntryProblem("error", "overlap ignored", f"is called as with overlap='allow', because {why}")
    try:
        check_options(app, entry.task, entry.options)
        if task is not None and task.typing and task.check_arguments is not None:
            task.check_arguments(*entry.args, **entry.kwargs)
    except (PublishError, TypeError) as error:
        yield EntryProblem("error", CANNOT_BE_CALLED, f"cannot be called: {error}")


def _differences(lease: Lease, ours: str) -> Iterator[Fact]:
    """Return whether the leader runs another version of qworker, or of the project."""
    theirs, here = _read(lease.about), _read(ours)
    if not theirs:
        return
    version = theirs.get("qworker")
    if version != here["qworker"]:
        yield Fact(
            "warning",
            f"{lease.holder} leads the schedulers with qworker {version!s:.40}, but this is {__version__}",
            "run the same version everywhere",
        )
    elif theirs.get("entries") != here["entries"]:
        yield Fact(
            "warning",
            f"{lease.holder} has other entries in its settings and code than this app",
            "restart it with the current version of the project",
        )


def _read(text: str) -> dict[str, Any]:
    """Return a scheduler's description of itself; {} if it is not ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
