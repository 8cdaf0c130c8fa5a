"""Spooling: prepares a worker's app for spool directories.

Comes from:  `qworker start --spooler` and `qworker spool run`, with the command line's values.
Goes to:     ``spooler.running.runner``, which attaches the directories to the app.
Thread:      main, before the worker starts.

The application's part of uWSGI's ini file is applied first: its variables, paths and directory are set when
it is imported, and the module ``uwsgi`` exists.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

from qworker.app import QWorker
from qworker.cli.discovery import import_story
from qworker.cli.spool.spooler_options import SpoolerGiven
from qworker.components.assembly import MakeComponent
from qworker.errors import ConfigurationError
from qworker.spooler import uwsgi_api
from qworker.spooler.ini import IniFile
from qworker.spooler.options import SpoolerOptions, is_file
from qworker.spooler.running.runner import attach
from qworker.spooler.watching.scanning import priorities_with_jobs

logger = logging.getLogger(__name__)

FORKING = ("zygote", "fork")


def before_application(given: SpoolerGiven) -> None:
    """Prepare for the import of the application. The working directory is first on the import path, as in
    uWSGI, but not by default in an installed command."""
    uwsgi_api.install()
    ini = given.ini
    if ini is not None:
        os.environ.update(ini.env)
    if ini is not None and ini.chdir is not None:
        try:
            os.chdir(ini.chdir)
        except OSError as error:
            raise ConfigurationError(f"chdir = {ini.chdir} of the ini file: {error.strerror}") from None
    added = (os.getcwd(), *(ini.pythonpath if ini is not None else ()))
    sys.path[:] = [*(path for path in added if path not in sys.path), *sys.path]


class Spooling(NamedTuple):
    """A worker's preparation for jobs. extras: factories of its additional parts, which run them. log_more:
    logs warnings, once logging is set up."""

    extras: list[MakeComponent]
    log_more: Callable[[], None]


def spool_in(app: QWorker, given: SpoolerGiven, *, alone: bool) -> Spooling:
    """Make the worker of *app* run the jobs of the directories given by the command line, an ini file or the
    settings. alone: the worker runs nothing else."""
    options = given.options(app.conf)
    conf = app.conf
    if conf.worker_pool == "prefork" and conf.worker_start_method not in FORKING:
        raise ConfigurationError(
            "the processes of a spooler are forked, so that they have the function that runs jobs: "
            f"worker_start_method cannot be {conf.worker_start_method!r} here",
            setting="worker_start_method",
        )
    if options.processes is not None and alone:
        conf.command_line({"worker_concurrency": options.processes})
    if options.max_tasks is not None and alone:
        conf.command_line({"worker_max_tasks_per_child": options.max_tasks})
    uwsgi_api.configure(options)
    not_imported = _import_application(options, given.ini)
    attached = attach(app, options, alone=alone)
    signal.signal(signal.SIGUSR1, lambda *_: attached.rescan())  # like a spooler of uWSGI

    def log_more() -> None:
        if not alone:
            logger.info("spool directories %s, in addition to the queues", ", ".join(options.directories))
        for sentence in not_imported:
            logger.error("%s", sentence)
        if given.ini is not None:
            _log_ini(given.ini)
        if options.ordered and conf.worker_concurrency != 1 and not alone:
            logger.warning(
                "spooler-ordered: this worker runs several tasks and jobs at a time, so jobs start in "
                "order and may end in another; `qworker spool run` runs one at a time"
            )
        if uwsgi_api.spooler is None and options.bridge is None:
            logger.warning("%s", uwsgi_api.no_function())
        for place in () if options.ordered else options.directories:
            if waiting := priorities_with_jobs(place):
                logger.warning(
                    "the jobs in the priority directories of %s (%s) are not run: priorities need "
                    "--spooler-ordered",
                    place,
                    ", ".join(waiting),
                )

    return Spooling(attached.extras, log_more)


def _import_application(options: SpoolerOptions, ini: IniFile | None) -> list[str]:
    """Import the modules with the function that runs jobs, and return descriptions of failed imports. The
    spooler continues without them, like uWSGI's; the jobs of their functions wait."""
    errors = []
    named = list(options.imports)
    if ini is not None:
        named = [*ini.shared_imports, *ini.imports, *filter(None, [ini.module or ini.wsgi_file]), *named]
    for name in named:
        try:
            _import(name.partition(":")[0])
        except Exception as error:  # noqa: BLE001 - the user's module is code: it may raise anything
            uwsgi_api.not_imported.append(name)
            errors.append(f"the spooler continues without {name}: {import_story(name, error)}")
    return errors


def _import(name: str) -> None:
    if not is_file(name):
        import_module(name)
        return
    own = Path(name).stem
    found = sys.modules.get(own)
    if found is not None and os.path.realpath(getattr(found, "__file__", None) or "") == os.path.realpath(
        name
    ):
        return
    spec = spec_from_file_location(own, name)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{name} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[own] = module
    spec.loader.exec_module(module)


def _log_ini(ini: IniFile) -> None:
    if ini.others:
        logger.info("ignored, because they do not concern a spooler: %s", ", ".join(ini.others))
    for sentence in ini.without_effect:
        logger.warning("%s", sentence)
