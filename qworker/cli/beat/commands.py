"""`qworker beat`: runs the scheduler; shows and changes entries.

Comes from:  users and init systems.
Goes to:     ``beat.service`` runs; ``app.schedules`` stores changes; ``shown`` prints.
Thread:      main, which waits for a signal or a failure of the scheduler; that has its own. Signal handlers
             set a flag and write one byte.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from qworker import __version__
from qworker.app import QWorker
from qworker.beat.api import preview as due_times
from qworker.beat.entry import read_entry
from qworker.beat.service import Beat
from qworker.beat.stores import store_url
from qworker.cli.beat.options import (
    EntryName,
    field_options,
    placed,
    read_field_options,
    read_schedule_options,
    schedule_options,
    zone_of_app,
)
from qworker.cli.beat.shown import (
    OVER,
    brief,
    full_text,
    in_zone,
    leader,
    print_entries,
    print_entry,
    print_leader,
    shown_time,
    when,
    whole,
)
from qworker.cli.call import warn_without_worker
from qworker.cli.celery_options import celery_options
from qworker.cli.completion import task_names
from qworker.cli.discovery import AppChoice, load_tasks
from qworker.cli.groups import SuggestingGroup
from qworker.cli.names import doubt_task, likely_task
from qworker.cli.options import Instant, Number, app_option, json_option, open_app, process_options
from qworker.cli.output import count, print_json, visible
from qworker.cli.process import PidFile, expand_path, set_title
from qworker.cli.purge import confirm
from qworker.components.shutdown import DRAINING, ShutdownRequests
from qworker.conf import mask_urls
from qworker.conf.unsupported import BEAT_OPTIONS, BEAT_OPTIONS_WITHOUT_EFFECT
from qworker.errors import BackendError, QWorkerError
from qworker.logs import redirected_stdouts, setup
from qworker.naming import node_name
from qworker.publishing.call import check_options, check_priority

logger = logging.getLogger(__name__)

END_SECONDS = 10.0
"""How long a stop waits for the scheduler's current turn."""
LOOK_SECONDS = 1.0


def run_until_stopped(
    app: str | None, loglevel: int, logfile: str | None, log_json: bool | None, pidfile: str | None
) -> int:
    """Run the schedules of *app*; return the exit code: 0 stopped, 1 failed.

    Raises ConfigurationError for everything that is known to be wrong beforehand.
    """
    choice = open_app(app, tasks=False)
    conf = choice.app.conf
    conf.validate()
    load_tasks(choice.app)
    node = node_name("beat@%h")
    with ExitStack() as stack:
        if pidfile is not None:
            path = expand_path(pidfile, node, "pidfile")
            stack.enter_context(PidFile(path, owner="scheduler"))
        setup(conf, loglevel, expand_path(logfile, node) if logfile else None, log_json, node)
        for problem in conf.problems():
            logger.warning("configuration: %s", problem)
        stack.enter_context(redirected_stdouts(conf))
        set_title(f"qworker: {node}")
        return _run(choice, node)


def _run(choice: AppChoice, node: str) -> int:
    crashed: list[BaseException] = []  # the scheduler's thread appends
    requests = ShutdownRequests()
    previous = requests.take_signals()

    def on_crash(name: str, error: BaseException) -> None:
        crashed.append(error)
        requests.request(DRAINING)

    try:
        service = Beat(choice.app, on_crash)
        _log_start(choice, node, service)
        service.start()
        while not len(requests):
            requests.rest(LOOK_SECONDS)
        if crashed:
            error = crashed[0]
            text = str(error) if isinstance(error, QWorkerError) else f"{type(error).__name__}: {error}"
            logger.error("the scheduler failed: %s", mask_urls(text), extra={"event": "beat-failed"})
            logger.debug("traceback of this error", exc_info=error)
        logger.info("stopping")
        service.stop()
        if not _ended(service, requests, choice):
            logger.warning(
                "the scheduler did not stop in time; another one takes over when its lease expires",
                extra={"event": "beat-left"},
            )
        logger.info("stopped: %s sent", count(service.fired, "call"), extra={"event": "beat-stopped"})
    finally:
        requests.hand_back(previous)
    return 1 if crashed else 0


def _ended(service: Beat, requests: ShutdownRequests, choice: AppChoice) -> bool:
    """Wait for the scheduler's thread; a second signal ends the wait."""
    clock, asked = choice.app.clock, len(requests)
    until = clock.monotonic() + END_SECONDS
    while not service.join(0.1):
        if clock.monotonic() >= until or len(requests) > asked:
            return False
    return True


def _log_start(choice: AppChoice, node: str, service: Beat) -> None:
    """Log the configuration. Entries added by hand are not counted, because reading the store would delay the
    start."""
    app, shared = choice.app, service.store.shared
    logger.info("qworker %s, %s, process %d", __version__, node, os.getpid())
    url = store_url(app) if shared else None
    where = "in memory" if url is None else f"in {mask_urls(url)}"
    number = count(service.declared, "entry", "entries")
    logger.info(
        "app %s (%s), %s in settings and code; schedules are kept %s",
        choice.target,
        choice.how,
        number,
        where,
        extra={"event": "beat-begins"},
    )
    if not service.declared and not _has_rows(service):
        logger.warning(
            "there are no entries: set beat_schedule, or declare tasks with schedule=%s",
            ", or run `qworker beat add`" if shared else "",
        )
    if not shared:
        logger.warning(
            "the schedule store is not shared: run only one `qworker beat`, because two would call "
            "everything twice; due times are missed while none is running. Set beat_store, for example to "
            "redis://… or postgresql://…",
            extra={"event": "beat-alone"},
        )


def _has_rows(service: Beat) -> bool:
    """Return whether there may be entries added by hand."""
    try:
        return bool(service.store.rows())
    except BackendError:  # the service reports it
        return True


_NAME = EntryName()
_MOST_DUES = 1000


@click.group(
    cls=SuggestingGroup,
    invoke_without_command=True,
    epilog="One TERM or INT stops it; a second one does not wait. Any number may run at once with a shared "
    "store: one leads, and another takes over when it dies. Exit codes: 0 stopped; 1 could not "
    "start, or failed.",
)
@app_option
@process_options
@celery_options(BEAT_OPTIONS_WITHOUT_EFFECT, BEAT_OPTIONS)
@click.pass_context
def beat(context: click.Context, /, app: str | None, **options: Any) -> int | None:
    """Run the schedules: make due calls until stopped. The subcommands show and change entries."""
    if context.invoked_subcommand is None:
        return run_until_stopped(app, **options)
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if given and option.name != "app":
            raise click.UsageError(f"{option.opts[-1]} cannot be used with {context.invoked_subcommand!r}.")
    if app is not None:
        context.find_root().obj = app
    return None


# -- looking --


@beat.command("list")
@app_option
@json_option
def list_(app: str | None, as_json: bool) -> None:
    """List the entries: tasks, schedules, next due times and problems.

    With --json: `leader` (null: none), `shared` (whether other processes see the store), `store` (its URL)
    and `entries`, each with `name`, `task`, `when` (in words), `state` (active, paused, wrong, removed or
    over), `source` (settings, code, task or hand), `changed` (fields changed by hand), `next_due`,
    `last_due`, `last_run` (times in ISO 8601, or null), `runs`, `error` (null: none) and `problems` (problems
    of its next call, each with `severity`, `words`, `what` and `advice`).
    """
    application = open_app(app).app
    entries = application.schedules.entries()
    if as_json:
        print_json({**leader(application), "entries": [brief(application, each) for each in entries]})
        return
    if entries:
        print_entries(application, entries)
    else:
        click.echo("There are no entries.")
    print_leader(application)


@beat.command()
@click.argument("name", type=_NAME)
@app_option
@json_option
def show(name: str, app: str | None, as_json: bool) -> None:
    """Show one entry in full: its fields, manual changes, its last runs, its next due times.

    With --json: the keys of `list`; `fields` (as `qworker beat set` changes them), `task_id` (of the last
    call), `next` (times), and `last`, each with `due`, `at`, `task_id` and `outcome` (sent or pending).
    """
    application = open_app(app).app
    found = application.schedules.get(name)
    if as_json:
        print_json(whole(application, found))
    else:
        print_entry(application, found)


@beat.command()
@click.argument("name", type=_NAME, required=False)
@schedule_options
@click.option(
    "-n",
    "--count",
    type=Number(1, _MOST_DUES),
    default=10,
    show_default=True,
    help="How many.",
)
@click.option("--after", type=Instant(), help="Due times after this one; default: now.")
@app_option
@json_option
def preview(
    name: str | None, count: int, after: datetime | None, app: str | None, as_json: bool, **given: Any
) -> None:
    """Show the next due times of the entry NAME, or of a schedule given here: `qworker beat preview --cron "0
    4 * * mon-fri" --tz Europe/Berlin`.

    With --json: `name` (or null), `when` (in words) and `next` (times in ISO 8601).
    """
    application = open_app(app).app
    zone = zone_of_app(application)
    after = after and placed(after, zone)
    if name is not None:
        if any(value is not None for value in given.values()):
            raise click.UsageError("Name an entry, or give a schedule, not both.")
        schedule = application.schedules.entry(name).schedule
        dues = application.schedules.preview(name, count, after)
    else:
        found = read_schedule_options(application, given, None)
        if found is None:
            raise click.UsageError(
                "Name an entry, or give a schedule: --every, --cron, --at, --rrule or --sun."
            )
        schedule = found
        entry = read_entry("preview", {"task": "preview", "schedule": schedule})
        start = after or datetime.fromtimestamp(application.clock.now(), zone)
        dues = due_times(entry, count, start)
    if as_json:
        print_json({"name": name, "when": when(schedule), "next": [due.isoformat() for due in dues]})
        return
    click.echo(f"{visible(when(schedule))}:", err=True)
    for due in dues:
        click.echo(in_zone(due, due.tzinfo or zone))
    if not dues:
        click.echo("It will not be due again.", err=True)


# -- changing --


@beat.command()
@click.argument("name", type=_NAME)
@click.argument("task", shell_complete=task_names)
@schedule_options
@field_options
@app_option
@json_option
def add(name: str, task: str, app: str | None, as_json: bool, **given: Any) -> None:
    """Add the entry NAME, which calls TASK on its schedule.

    With --json: its keys of `list`.
    """
    application = open_app(app).app
    task = likely_task(application, task)
    schedule = read_schedule_options(application, given, None)
    if schedule is None:
        raise click.UsageError("Give a schedule: --every, --cron, --at, --rrule or --sun.")
    fields = read_field_options(application, given, {})
    _check_options(application, task, fields.get("options", {}))
    _print_changed(
        application, application.schedules.add(name, task, schedule, **fields).name, "Added", as_json
    )


@beat.command("set")
@click.argument("name", type=_NAME)
@click.option("--task", metavar="TASK", shell_complete=task_names, help="What it calls.")
@schedule_options
@field_options
@app_option
@json_option
def set_(name: str, app: str | None, as_json: bool, **given: Any) -> None:
    """Change the entry NAME. Changes override settings and code, until `qworker beat reset`.

    With --json: its keys of `list`.
    """
    if all(value is None or value == () for value in given.values()):
        raise click.UsageError("Say what to change; see `qworker beat set --help`.")
    application = open_app(app).app
    before = application.schedules.entry(name)
    schedule = read_schedule_options(application, given, before.schedule)
    fields = read_field_options(application, given, before.options)
    if schedule is not None:
        fields["schedule"] = schedule
    if "task" in fields:
        fields["task"] = likely_task(application, fields["task"])
    _check_options(application, fields.get("task", before.task), fields.get("options", {}))
    application.schedules.set(name, **fields)
    _print_changed(application, name, "Changed", as_json)


@beat.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=_NAME)
@app_option
def pause(names: tuple[str, ...], app: str | None) -> None:
    """Stop calling entries, until `qworker beat resume`."""
    schedules = open_app(app).app.schedules
    for name in _existing(schedules.entry, names):
        schedules.pause(name)
        click.echo(f"Paused {visible(name)}.")


@beat.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=_NAME)
@app_option
def resume(names: tuple[str, ...], app: str | None) -> None:
    """Call paused entries again."""
    schedules = open_app(app).app.schedules
    for name in _existing(schedules.entry, names):
        schedules.resume(name)
        click.echo(f"Resumed {visible(name)}.")


@beat.command()
@click.argument("name", type=_NAME)
@app_option
def reset(name: str, app: str | None) -> None:
    """Discard manual changes of the entry NAME, or its removal."""
    open_app(app).app.schedules.reset(name)
    click.echo(f"Reset {visible(name)} to its definition in settings or code.")


@beat.command()
@click.argument("name", type=_NAME)
@app_option
def remove(name: str, app: str | None) -> None:
    """Remove the entry NAME. One from settings or code is listed as removed, until `qworker beat reset`."""
    open_app(app).app.schedules.remove(name)
    click.echo(f"Removed {visible(name)}.")


@beat.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=_NAME)
@click.option("--all", "everything", is_flag=True, help="All entries that were changed or added by hand.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@app_option
def sign(names: tuple[str, ...], everything: bool, yes: bool, app: str | None) -> None:
    """Sign manual changes with the first security_key; first show those that are not signed.

    With a security_key, entries changed or added by hand before are not called until they are signed. Anyone
    who can write to the schedule store could have added them, so check them.
    """
    if everything and names:
        raise click.UsageError("Give names or --all, not both.")
    if not (everything or names):
        raise click.UsageError("Name entries, or use --all.")
    schedules = open_app(app).app.schedules
    refused = [each for each in schedules.refused() if everything or each.name in names]
    for each in refused:
        click.echo(f"{visible(each.name)}: {visible(full_text(each))}")
    if refused:
        confirm(f"Sign {count(len(refused), 'entry', 'entries')}?", yes)
    for name in schedules.sign(None if everything else _existing(schedules.get, names), refused):
        click.echo(f"Signed {visible(name)}.")


@beat.command()
@click.argument("name", type=_NAME)
@app_option
@json_option
def run(name: str, app: str | None, as_json: bool) -> None:
    """Call the entry NAME now, regardless of its schedule."""
    application = open_app(app).app
    entry = application.schedules.entry(name)
    try:
        result = application.schedules.run(name)
    except TypeError as error:  # the arguments do not fit the task
        raise click.ClickException(str(error)) from None
    print_json({"id": result.id, "name": name, "task": entry.task}) if as_json else click.echo(result.id)
    warn_without_worker(application, result.queue)


def _existing(find: Any, names: tuple[str, ...]) -> list[str]:
    """Return the names without duplicates. Raises NoSuchEntry, before anything is changed, for an unknown
    one."""
    for name in names:
        find(name)
    return list(dict.fromkeys(names))


def _check_options(app: QWorker, task: str, options: Mapping[str, Any]) -> None:
    """Raise PublishError for call options that would be refused when the entry is due."""
    check_options(app, task, options)
    check_priority(task, options, app.conf.task_queue_max_priority)


def _print_changed(app: QWorker, name: str, done: str, as_json: bool) -> None:
    """Print what was done to an entry, and problems of its next call."""
    found = app.schedules.get(name)
    entry = found.entry
    shown = brief(app, found)
    if as_json:
        print_json(shown)
    elif entry is not None:
        next_ = f"; next: {shown_time(app, shown['next_due'])}" if shown["next_due"] else ""
        click.echo(f"{done} {visible(name)}: {visible(entry.task)}, {visible(when(entry.schedule))}{next_}.")
    if entry is None:
        return
    if shown["state"] == OVER:
        click.echo(
            "Warning: it will never be due: its time has passed, or it has had all its runs.", err=True
        )
    if entry.task not in app.tasks:
        click.echo(f"Warning: {doubt_task(app, entry.task)}", err=True)
        return
    for problem in shown["problems"]:
        click.echo(f"Warning: it {problem['what']}", err=True)
