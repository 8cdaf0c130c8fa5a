"""`qworker spool run`: runs the jobs of spool directories, and nothing else.

Comes from:  users and init systems; uWSGI's options and ini files are accepted.
Goes to:     a worker whose tasks are the jobs of the directories.
Thread:      main; the worker starts its own.
"""

from __future__ import annotations

import logging
import os

import click

from qworker.app import QWorker
from qworker.cli.discovery import AppChoice, import_from_here, load_tasks
from qworker.cli.options import Checked, SettingValue, app_option, open_app, process_options
from qworker.cli.spool.spooler_options import SpoolerGiven, spooler_options
from qworker.cli.spool.spooling import before_application, spool_in
from qworker.cli.worker_process import Process, run_worker
from qworker.naming import node_name
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
    help="How long running jobs may continue at a stop.",
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
            logger.info("app %s (%s); what jobs send goes to its broker", choice.target, choice.how)
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
