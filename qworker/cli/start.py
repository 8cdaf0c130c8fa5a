"""`qworker start`: runs a worker.

Comes from:  users and init systems.
Goes to:     `worker.Worker.run`, after all checks have passed.
Thread:      main; the worker starts its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qworker.app import QWorker
from qworker.cli.celery_options import celery_options
from qworker.cli.discovery import AppChoice, load_tasks
from qworker.cli.options import QUEUE_NAMES, Checked, SettingValue, app_option, open_app, process_options
from qworker.cli.reload import Reloader, start_again
from qworker.cli.spool.spooler_options import SpoolerGiven, SpoolerHelpApart, spooler_options
from qworker.cli.worker_process import Process, run_worker
from qworker.conf import mask_urls
from qworker.conf.unsupported import OPTIONS_WITHOUT_EFFECT, WORKER_OPTIONS
from qworker.conf.workers import OPTIONS
from qworker.errors import ConfigurationError
from qworker.naming import node_name

if TYPE_CHECKING:
    from qworker.components.assembly import MakeComponent, OnCrash
    from qworker.components.component import Component

# Options that are settings of the same meaning: they override every other source, and are checked with them.
_SETTINGS = {**OPTIONS, "shutdown_timeout": "worker_shutdown_timeout"}


def _setting(name: str) -> SettingValue:
    return SettingValue(_SETTINGS[name])


@click.command(
    cls=SpoolerHelpApart,
    epilog="One TERM or INT stops after the running tasks, or puts them back after --shutdown-timeout; a "
    "second one puts them back at once. Exit codes: 0 stopped, and every running task had ended; 1 "
    "could not start, or a part of the worker failed; 3 tasks were interrupted, or their end could "
    "not be reported to the broker: they run again.",
)
@click.argument("named", metavar="[APP]", required=False)
@app_option
@click.option(
    "-c",
    "--concurrency",
    type=_setting("concurrency"),
    help="Number of processes or threads; default: the number of processors.",
)
@click.option(
    "-Q",
    "--queues",
    type=QUEUE_NAMES,
    help="Queues to consume, separated by commas; default: all of task_queues.",
)
@click.option(
    "-P",
    "--pool",
    type=click.Choice(["prefork", "threads", "solo"]),
    help="What runs tasks; solo runs one at a time, whatever -c says.",
)
@click.option(
    "--prefetch-multiplier", type=_setting("prefetch_multiplier"), help="Messages held for each process."
)
@click.option(
    "-n",
    "--hostname",
    type=Checked("name", node_name),
    help="Name of this worker: name@%h. Codes: %h host, %n short host, %d domain.",
)
@process_options
@click.option(
    "--max-tasks-per-child",
    type=_setting("max_tasks_per_child"),
    help="Replace a process after this many tasks.",
)
@click.option(
    "--max-memory-per-child", type=_setting("max_memory_per_child"), help='KiB, or text such as "200MB".'
)
@click.option("--time-limit", type=_setting("time_limit"), help="Kill tasks after this long (30, 1h30m).")
@click.option("--soft-time-limit", type=_setting("soft_time_limit"), help="Interrupt tasks after this long.")
@click.option(
    "--start-method",
    type=click.Choice(["zygote", "fork", "forkserver", "spawn"]),
    help="How processes are started.",
)
@click.option(
    "--shutdown-timeout",
    type=_setting("shutdown_timeout"),
    help="How long running tasks may continue after a stop signal.",
)
@click.option(
    "--reload",
    "reload_on_change",
    is_flag=True,
    help="Restart when a Python file changes; for development.",
)
@click.option("--demo", is_flag=True, help="Demonstrate qworker; needs no app.")
@click.option("--out", type=click.Path(file_okay=False), help="Where --demo writes its report.")
@click.option("-B", "--beat", "with_beat", is_flag=True, help="Also run the schedules.")
@celery_options(OPTIONS_WITHOUT_EFFECT, WORKER_OPTIONS)
@spooler_options
def start(
    named: str | None,
    app: str | None,
    queues: tuple[str, ...] | None,
    hostname: str | None,
    loglevel: int,
    logfile: str | None,
    log_json: bool | None,
    pidfile: str | None,
    reload_on_change: bool,
    demo: bool,
    out: str | None,
    with_beat: bool,
    spooler: SpoolerGiven,
    **options: Any,
) -> int:
    """Run a worker for the app: `qworker start`, `qworker start -A proj.tasks`,
    `qworker start path/to/file.py`."""
    if demo:
        return _demo(options["concurrency"], out)
    if out is not None:
        raise click.UsageError("--out needs --demo.")
    if named is not None and app is not None:
        raise click.UsageError(f"Name the app once: {named} or -A {app}.")
    node = hostname or node_name()
    reloader = Reloader() if reload_on_change else None
    values = {setting: options[option] for option, setting in _SETTINGS.items()}
    try:
        if spooler.names_directories:
            from qworker.cli.spool.spooling import before_application

            before_application(spooler)
        choice = _prepare(app or named, queues, values)
        parts = [beat_of(choice.app)] if with_beat else []
        log_more = None
        if spooler.names_directories or choice.app.conf.spooler:
            from qworker.cli.spool.spooling import spool_in

            spooling = spool_in(choice.app, spooler, alone=False)
            parts += spooling.extras
            log_more = spooling.log_more
    except ConfigurationError as error:
        if reloader is None:
            raise
        click.echo(f"Error: {mask_urls(str(error))}\nWaiting for a Python file to change.", err=True)
        reloader.wait()
        start_again()
    return run_worker(
        choice,
        Process(node, loglevel, logfile, log_json, pidfile),
        queues=queues,
        reloader=reloader,
        extras=parts,
        log_more=log_more,
    )


def beat_of(app: QWorker) -> MakeComponent:
    """Return the factory of the scheduler of ``--beat``."""

    def make(on_crash: OnCrash) -> Component:
        from qworker.beat.service import Beat

        return Beat(app, on_crash, embedded=True)

    return make


def _prepare(app: str | None, queues: tuple[str, ...] | None, values: dict[str, Any]) -> AppChoice:
    """Return the app with the settings of the command line applied.

    Raises ConfigurationError for everything that is known to be wrong beforehand.
    """
    choice = open_app(app, tasks=False)
    conf = choice.app.conf
    conf.command_line(values)
    conf.validate()
    load_tasks(choice.app)
    declared = {*conf.task_queues, conf.task_default_queue}
    unknown = [name for name in queues or () if name not in declared]
    if unknown and not conf.task_create_missing_queues:
        raise ConfigurationError(
            f"-Q names {unknown[0]!r}, which is not in task_queues, and task_create_missing_queues is off; "
            f"use one of {', '.join(sorted(declared))}"
        )
    return choice


def _demo(concurrency: int | None, out: str | None) -> int:
    from qworker.cli.demo import run

    return run(concurrency=concurrency, out=out)
