"""`qworker spool`: jobs as files in a directory, uWSGI's or ours.

Comes from:  users who manage spool directories.
Goes to:     the spooler's administration, its writer, and its client; `run` to a worker, whose tasks are the
             jobs.
Thread:      main.

Several names are handled separately: a failure is reported, and the others continue.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import BinaryIO

import click

from qworker.app import QWorker
from qworker.cli.discovery import AppChoice, import_from_here, load_tasks
from qworker.cli.groups import SuggestingGroup
from qworker.cli.options import Checked, SettingValue, app_option, json_option, open_app, process_options
from qworker.cli.output import count, print_json, visible
from qworker.cli.spool.job import due, job_options, read_pairs
from qworker.cli.spool.shown import (
    aside_fields,
    examined_fields,
    print_aside,
    print_examined,
    print_waiting,
    waiting_fields,
)
from qworker.cli.spool.spooler_options import SpoolerGiven, spooler_options
from qworker.cli.spool.spooling import before_application, spool_in
from qworker.cli.spool.watch import watch
from qworker.cli.worker_process import Process, run_worker
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import SpoolError
from qworker.naming import node_name
from qworker.spooler.administration.admin import SpoolAdmin
from qworker.spooler.files.packet import is_priority, job_path
from qworker.spooler.files.place import existing
from qworker.spooler.files.writing import Sync, Writer
from qworker.spooler.network.client import send
from qworker.spooler.network.framing import read_key
from qworker.spooler.running.job_messages import queue_name

logger = logging.getLogger(__name__)


@click.command(
    "run",
    epilog="One TERM or INT stops after the running jobs; a second one ends them, and they run again "
    "later. Exit codes as for `qworker start`.",
)
@click.argument("directories", metavar="[DIR]...", nargs=-1)
@app_option
@click.option("-n", "--hostname", type=Checked("name", node_name), help="Name of this worker: name@%h.")
@click.option("-P", "--pool", type=click.Choice(["prefork", "threads", "solo"]), help="What runs jobs.")
@click.option(
    "--shutdown-timeout",
    type=SettingValue("worker_shutdown_timeout"),
    help="How long running jobs may continue after a stop signal.",
)
@process_options
@spooler_options
def run(
    directories: tuple[str, ...],
    app: str | None,
    hostname: str | None,
    pool: str | None,
    shutdown_timeout: float | None,
    loglevel: int,
    logfile: str | None,
    log_json: bool | None,
    pidfile: str | None,
    spooler: SpoolerGiven,
) -> int:
    """Run the jobs of spool directories: `qworker spool run DIR -A proj`, `qworker spool run --ini
    uwsgi.ini`.

    Without -A there is no app: the modules of --spooler-python-import, or of the ini file, set the function
    that runs jobs, as for uWSGI.
    """
    spooler = spooler.with_directories(tuple(map(os.path.realpath, directories)))
    before_application(spooler)
    choice = _without_app() if app is None else open_app(app, tasks=False)
    conf = choice.app.conf
    conf.command_line({"worker_pool": pool, "worker_shutdown_timeout": shutdown_timeout})
    conf.validate()
    load_tasks(choice.app)
    spooling = spool_in(choice.app, spooler, alone=True)
    options = spooler.options(conf)
    queues = tuple(map(queue_name, options.directories))

    def log_start(processes: int) -> None:
        logger.info(
            "spool directories %s; %s × %d", ", ".join(options.directories), conf.worker_pool, processes
        )
        if app is not None:
            logger.info("app %s (%s); jobs send tasks to its broker", choice.target, choice.how)
        if options.harakiri is None:
            logger.info("no harakiri: a job that hangs blocks its process forever (see --spooler-harakiri)")

    return run_worker(
        choice,
        Process(hostname or node_name(), loglevel, logfile, log_json, pidfile),
        queues=queues,
        extras=spooling.extras,
        log_start=log_start,
        log_more=spooling.log_more,
    )


def _without_app() -> AppChoice:
    """Return an app without tasks and broker. Modules in the working directory can be imported, as with an
    app."""
    import_from_here()
    own = QWorker("spooler", broker="memory://", backend="disabled://")
    return AppChoice(own, "of its own", "-")


@click.command("send")
@click.argument("address")
@job_options
@click.option("--spooler", default="", metavar="DIR", help="The server's directory, as a full path.")
@click.option("--key-file", metavar="FILE", help="File with the key of the server; signs the job.")
@json_option
def send_job(
    address: str,
    pairs: tuple[str, ...],
    at: float | datetime | None,
    delay: float | None,
    priority: str,
    body: BinaryIO | None,
    spooler: str,
    key_file: str | None,
    as_json: bool,
) -> None:
    """Send a job to a spooler, ours or uWSGI's, and print its name if the server returns it.

    ADDRESS is host:port, :port on this machine, the path of a UNIX socket, or @name. Without --body and
    --key-file any uWSGI accepts the job, and returns no name.
    """
    name = send(
        address,
        read_pairs(pairs),
        b"" if body is None else body.read(),
        at=due(at, delay),
        priority=priority,
        spooler=spooler,
        key=None if key_file is None else read_key(key_file),
    )
    if as_json:
        print_json({"name": name})
    else:
        click.echo("Enqueued." if name is None else visible(name))


EXIT_SOME_FAILED = 1

directory_argument = click.argument("directory", metavar="DIR")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@click.group(cls=SuggestingGroup)
def spool() -> None:
    """Manage spool directories, uWSGI's or ours: list, add, send, remove, retry and move jobs.

    A job is named as in `qworker spool ls`, with its priority before it: 10/uwsgi_spoolfile_on_… Run this as
    the user of the spooler, which has to read added files.
    """


spool.add_command(run)
spool.add_command(send_job)


@spool.command("ls")
@directory_argument
@click.option("--all", "everything", is_flag=True, help="Include those that were set aside.")
@json_option
def list_(directory: str, everything: bool, as_json: bool) -> None:
    """List the waiting jobs, in natural order: size, due time, attempts, and whether they are running.

    Their locks are checked, but their contents are not read.
    """
    with closing(SpoolAdmin(directory, writable=False)) as admin:
        jobs = list(admin.waiting())
        dead = list(admin.set_aside()) if everything else []
        hidden = 0 if everything else _count_aside(admin)
    now = SYSTEM_CLOCK.now()
    if as_json:
        print_json([*(waiting_fields(job, now) for job in jobs), *map(aside_fields, dead)])
        return
    if jobs:
        print_waiting(jobs, now)
    else:
        click.echo("No job waits.")
    if dead:
        click.echo()
        print_aside(dead, now)
    elif hidden:
        click.echo(f"\nSet aside: {count(hidden, 'job')}. See them with --all.", err=True)


def _count_aside(admin: SpoolAdmin) -> int:
    try:
        return len(admin.set_aside_names())
    except SpoolError:  # unreadable ones only matter with --all
        return 0


@spool.command()
@directory_argument
@click.argument("name")
@json_option
def show(directory: str, name: str, as_json: bool) -> None:
    """Show one job: its state, its pairs, and the beginning of its body. Nothing is unpickled."""
    with closing(SpoolAdmin(directory, writable=False)) as admin:
        found = admin.examine(name)
    now = SYSTEM_CLOCK.now()
    if as_json:
        print_json(examined_fields(found, now))
    else:
        print_examined(found, now)


@spool.command()
@directory_argument
@job_options
@json_option
def add(
    directory: str,
    pairs: tuple[str, ...],
    at: float | datetime | None,
    delay: float | None,
    priority: str,
    body: BinaryIO | None,
    as_json: bool,
) -> None:
    """Write a job to the disk in uWSGI's format, and print its name."""
    when = due(at, delay)
    writer = Writer(existing(directory), sync=Sync.DIRECTORY)
    path = writer.write(read_pairs(pairs), b"" if body is None else body.read(), at=when, priority=priority)
    name = os.path.relpath(path, writer.path)
    if as_json:
        print_json({"name": name, "due": os.stat(path).st_mtime})
    else:
        click.echo(visible(name))


@spool.command("rm", epilog="Exit code 1: one of them is running or does not exist; the others are removed.")
@directory_argument
@names_argument
@click.option("--dead", is_flag=True, help="Remove jobs that were set aside, with their notes.")
def remove(directory: str, names: tuple[str, ...], dead: bool) -> int:
    """Remove waiting jobs, for good. A running one is refused."""
    with closing(SpoolAdmin(directory)) as admin:
        return _each(names, "Removed", lambda name: admin.remove(name, dead=dead))


@spool.command(epilog="Exit code 1: one of them is running or does not exist; the others are retried.")
@directory_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All jobs that were set aside.")
def retry(directory: str, names: tuple[str, ...], everything: bool) -> int:
    """Run jobs now, as if they had never been tried: those that were set aside, and waiting ones."""
    if everything and names:
        raise click.UsageError("Give names or --all, not both.")
    if not (everything or names):
        raise click.UsageError("Name jobs as shown by `qworker spool ls --all`, or use --all.")
    with closing(SpoolAdmin(directory)) as admin:
        chosen = tuple(job.name for job in admin.set_aside()) if everything else names
        return _each(chosen, "Put back", admin.retry)


@spool.command(epilog="Exit code 1: one of them is running or does not exist; the others are moved.")
@directory_argument
@names_argument
@click.argument("destination", metavar="DEST")
def move(directory: str, names: tuple[str, ...], destination: str) -> int:
    """Move waiting jobs to another spool directory, or to another priority, with due times and attempts.

    DEST is a spool directory, in which a job keeps its priority; or a number, another priority in DIR (./10
    would be a directory); or DIR itself, to remove the priority. Between file systems a job is removed
    only after its copy is complete.
    """
    with closing(SpoolAdmin(directory)) as admin:
        if is_priority(destination):
            return _each(names, "Moved", lambda name: admin.move(name, admin, destination))
        with closing(SpoolAdmin(destination)) as target:
            priority = "" if target.path == admin.path else None
            return _each(names, "Moved", lambda name: admin.move(name, target, priority))


def _each(names: tuple[str, ...], done: str, act: Callable[[str], object]) -> int:
    """Call *act* for each job, print how many were *done*, and return the exit code. Raises SpoolError,
    before anything is changed, for an invalid name."""
    chosen = list(dict.fromkeys(map(job_path, names)))
    succeeded = 0
    for name in chosen:
        try:
            act(name)
        except SpoolError as error:
            click.echo(f"Error: {error}", err=True)
        else:
            succeeded += 1
    click.echo(f"{done}: {count(succeeded, 'job')}.")
    return 0 if succeeded == len(chosen) else EXIT_SOME_FAILED


spool.add_command(watch)
