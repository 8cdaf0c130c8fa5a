"""Runner: a worker for spool directories, alone or in addition to the queues of its app.

Comes from:  ``qworker spool run`` and ``qworker start --spooler``, with the options of the spooler.
Goes to:     the app, which gets the directories as (part of) its broker, and the task that runs jobs.
Thread:      main, before the worker starts.

The jobs run in the processes of the worker's own pool, with its time limits and its recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qworker import signals
from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.spooler import uwsgi_api
from qworker.spooler.files.place import prepared
from qworker.spooler.files.sweeping import sweep_all
from qworker.spooler.files.writing import Writer
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.running.combined import SpoolCombined, SpoolDepths, SpoolInstead
from qworker.spooler.running.dispatch import MOST, JobDispatch, JobLane
from qworker.spooler.running.job_messages import SHOWN, job_messages
from qworker.spooler.running.jobs import add_spool_tasks
from qworker.spooler.uwsgi import job_context
from qworker.spooler.uwsgi.runtime import frequency_of
from qworker.spooler.uwsgi.timers import SignalSource
from qworker.spooler.watching.directory import SpoolDirectory

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.assembly import MakeComponent, OnCrash
    from qworker.components.component import Component


class Attached(NamedTuple):
    """extras: functions that make additional components of the worker. rescan: makes it scan all
    directories; any thread, and signal handlers."""

    extras: list[MakeComponent]
    rescan: Callable[[], None]


def attach(app: QWorker, options: SpoolerOptions, *, alone: bool) -> Attached:
    """Make a worker of *app* run the jobs in the directories of *options*, which are created if missing.
    alone: it takes no messages from the app's own broker; calls made by jobs still go there.
    ConfigurationError when there is no directory, or one cannot be used.
    """
    if not options.directories:
        raise ConfigurationError("no spool directory is configured: name one", setting="spooler")
    places = _distinct(options.directories)
    sweep_all(places)
    source = SignalSource(places, uwsgi_api.signal_table)
    consumer = JobDispatch(lambda queues: [_lane(place, options) for place in places], app.clock, source)
    add_spool_tasks(app, options, results=options.results)
    own = app.broker
    depths = SpoolDepths(own.admin, places, app.clock)
    app.stores.use_broker((SpoolInstead if alone else SpoolCombined)(own, consumer, depths))
    logging.getLogger("qworker.components.ending.outcomes").addFilter(_is_wanted)
    signals.worker_process_init.connect(partial(_begin_process, alone), weak=False, dispatch_uid=__name__)
    return Attached([partial(_server, options, app.clock)] if options.sockets else [], consumer.rescan)


def _server(options: SpoolerOptions, clock: Clock, on_crash: OnCrash) -> Component:
    """Return the server for jobs from the network, for all directories."""
    from qworker.spooler.network.framing import Limits
    from qworker.spooler.network.peers import Access
    from qworker.spooler.network.server import SpoolServer

    keys = tuple(key.encode() for key in options.socket_key)
    named = dict.fromkeys(
        (*([options.default] if options.default else []), *options.directories, *options.external)
    )
    return SpoolServer(
        options.sockets,
        [Writer(place, clock=clock) for place in named],
        limits=Limits(
            buffer_size=options.buffer_size,
            max_body=options.body_max,
            timeout=options.socket_timeout,
            extension=options.body_max > 0,
        ),
        access=Access(options.socket_allow, key=keys[0] if keys else None, older_keys=keys[1:]),
        clock=clock,
        on_crash=on_crash,
    )


def _begin_process(alone: bool, *_: object, **more: object) -> None:
    """Prepare a new process of the pool for running jobs."""
    if alone:
        job_context.become_spooler()
    uwsgi_api.run_post_fork()


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return whether to log *record*: jobs have their own log lines, so the end of a message only needs one
    for errors."""
    return not (
        record.levelno < logging.ERROR and isinstance(record.args, tuple) and record.args[:1] == (SHOWN,)
    )


def _lane(place: str, options: SpoolerOptions) -> JobLane:
    frequency = partial(frequency_of, place, options.frequency)
    directory = SpoolDirectory(place, ordered=options.ordered, frequency=frequency)
    message = job_messages(directory.path, options.harakiri, results=options.results)
    # One job for each message if its result is stored, or if a process ends after a number of messages. With
    # an order, too: the rest of a message would come after the next message.
    most = 1 if options.results or options.max_tasks or options.ordered else MOST
    return JobLane(directory, message, most, has_results=options.results)


def _distinct(directories: Sequence[str]) -> list[str]:
    """Return each directory once, however it is spelled; created if missing."""
    return list(dict.fromkeys(map(prepared, directories)))
