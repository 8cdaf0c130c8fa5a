"""The process `qworker beat`: runs the schedules until it is told to stop.

Comes from:  `qworker beat` without a command.
Goes to:     ``beat.service``.
Thread:      main, which waits for a signal or a failure of the scheduler; the scheduler has its own. Signal
             handlers set a flag and write one byte.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from qworker import __version__
from qworker.beat.service import Beat
from qworker.beat.stores import store_url
from qworker.cli.discovery import AppChoice, load_tasks
from qworker.cli.options import open_app
from qworker.cli.output import count
from qworker.cli.process import PidFile, expand_path, set_title
from qworker.components.shutdown import DRAINING, ShutdownRequests
from qworker.conf import mask_urls
from qworker.errors import BackendError, QWorkerError
from qworker.logs import redirected_stdouts, setup
from qworker.naming import node_name

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
            logger.debug("the traceback of that", exc_info=error)
        logger.info("stopping")
        service.stop()
        if not _ended(service, requests, choice):
            logger.warning(
                "the scheduler has not ended; another one takes over when its lease expires",
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
            "everything twice; due times while none runs are lost. Set beat_store, for example to "
            "redis://… or postgresql://…",
            extra={"event": "beat-alone"},
        )


def _has_rows(service: Beat) -> bool:
    """Tell whether there may be entries added by hand."""
    try:
        return bool(service.store.rows())
    except BackendError:  # the service reports it
        return True
