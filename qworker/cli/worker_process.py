"""A worker as a process: its log, its pid file, its title, and the worker itself until it ends.

Comes from:  `qworker start` and `qworker spool run`, with an app whose settings are final.
Goes to:     `worker.Worker.run`.
Thread:      main; the worker starts its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from qworker import __version__
from qworker.cli.discovery import AppChoice
from qworker.cli.output import count
from qworker.cli.process import PidFile, expand_path, raise_open_files_limit, set_title
from qworker.cli.reload import Reloader, start_again
from qworker.conf import mask_urls
from qworker.logs import redirected_stdouts, setup
from qworker.naming import own_tasks

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.assembly import MakeComponent

logger = logging.getLogger(__name__)


class Process(NamedTuple):
    """The command line's options for the process. node: the worker's name. File names may be None."""

    node: str
    loglevel: int
    logfile: str | None
    log_json: bool | None
    pidfile: str | None


def run_worker(
    choice: AppChoice,
    process: Process,
    *,
    queues: tuple[str, ...] | None,
    reloader: Reloader | None = None,
    extras: Sequence[MakeComponent] = (),
    log_start: Callable[[int], None] | None = None,
    log_more: Callable[[], None] | None = None,
) -> int:
    """Run a worker of the app until it is told to stop, and return the exit code.

    - queues: to consume; None for those of the settings.
    - extras: factories of additional parts.
    - log_start: logs what will run, given the number of processes; None: tasks and queues.
    - log_more: logs details about its parts.
    """
    conf = choice.app.conf
    node = process.node
    with ExitStack() as stack:
        if process.pidfile is not None:
            stack.enter_context(PidFile(expand_path(process.pidfile, node, "pidfile")))
        logfile = expand_path(process.logfile, node) if process.logfile else None
        setup(conf, process.loglevel, logfile, process.log_json, node)
        for problem in conf.problems():
            logger.warning("configuration: %s", problem)
        stack.enter_context(redirected_stdouts(conf))
        raise_open_files_limit()
        set_title(f"qworker: {node}")
        return _run(choice, node, queues, reloader, extras, log_start, log_more)


def _run(
    choice: AppChoice,
    node: str,
    queues: tuple[str, ...] | None,
    reloader: Reloader | None,
    extras: Sequence[MakeComponent],
    log_start: Callable[[int], None] | None,
    log_more: Callable[[], None] | None,
) -> int:
    from qworker.worker import Worker

    conf = choice.app.conf

    def ready() -> None:
        # Only now: the worker forks before any thread begins and before its broker is opened.
        if log_start is not None:
            logger.info("ready", extra={"event": "worker-ready"})
        else:
            logger.info(
                "ready; broker %s, results %s, queues %s, pool %s × %d",
                mask_urls(choice.app.broker.url),
                where_results_go(choice.app),
                ", ".join(worker.queues),
                conf.worker_pool,
                worker.concurrency,
                extra={"event": "worker-ready"},
            )
        if reloader is not None:
            reloader.start(lambda: worker.request_stop("warm"))

    worker = Worker(choice.app, hostname=node, queues=queues, on_ready=ready, extras=extras)
    logger.info("qworker %s, %s, process %d", __version__, node, os.getpid())
    if log_start is not None:
        log_start(worker.concurrency)
    else:
        _log_app(choice, reloader is not None)
    if log_more is not None:
        log_more()
    code = worker.run()
    if reloader is not None and reloader.changed:
        start_again()
    return code


def where_results_go(app: QWorker) -> str:
    """Return where results are kept, as the end of "results …"."""
    place = app.stores.place
    if place.why_none:
        return "not kept"
    if place.replies:
        return "sent to the caller (rpc://)"
    return "beside the messages" if app.conf.result_backend is None else mask_urls(place.url)


def _log_app(choice: AppChoice, reload_on_change: bool) -> None:
    """Log what will run, the first thing to check if something unexpected happens."""
    app, conf = choice.app, choice.app.conf
    names_of_tasks = own_tasks(app.tasks)
    listed = ", ".join(names_of_tasks[:8]) + (", …" if len(names_of_tasks) > 8 else "")
    logger.info(
        "app %s (%s), %s: %s", choice.target, choice.how, count(len(names_of_tasks), "task"), listed or "none"
    )
    if conf.task_time_limit is None:
        logger.info("no time limit: a task that hangs occupies its slot forever (see --time-limit)")
    if reload_on_change:
        logger.info("restarting when a Python file changes")
    if not names_of_tasks:
        logger.warning("%s has no tasks; does it import their modules?", choice.target)
