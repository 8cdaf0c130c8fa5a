"""Cluster: Django-Q's name for a worker of this project.

Comes from:  the command qcluster, and programs that start one.
Goes to:     ``clusters/engine.py`` and qworker's worker, in a separate process or in this one.
Thread:      main.

Django-Q's sentinel is the worker's main process, its pusher the Listener, its workers the pool's children,
and its monitor the part that stores results with their acks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections

from qworker import signals
from qworker.clock import SYSTEM_CLOCK
from qworker.components.shutdown import RUNNING
from qworker.django.brokers import Broker, get_broker
from qworker.django.clusters import log as cluster_log
from qworker.django.clusters.engine import Later, app, forget
from qworker.django.conf import conf, logger
from qworker.django.execution import connections as task_connections
from qworker.django.humanhash import humanize
from qworker.django.settings.cluster import override
from qworker.django.status import Stat, Status, broker_stores_state, node_of
from qworker.django.transports.databases import url_of
from qworker.django.transports.opening import broker_alias
from qworker.errors import ConfigurationError, QWorkerError
from qworker.naming import import_object
from qworker.transports.presence import IDLE, STOPPING, WORKING, Presence
from qworker.worker import Worker

if TYPE_CHECKING:
    from qworker.components.assembly import MakeComponent, OnCrash
    from qworker.components.component import Component

FORK = multiprocessing.get_context("fork")
"""A forked child inherits the caller's settings, including changes at run time."""
LOOK_SECONDS = 0.1
ENDING = "qworker.django.clusters.ending"
"""Needed only by a cluster in a separate process."""


class Cluster:
    """A cluster of this project; nothing runs before start().

    broker: where its status is read; None for the project's.

    - pid (int): of the cluster's process; before start(), of this process.
    - host (text): its machine. cluster_id (UUID): its id, unchanged by a restart.
    - timeout (seconds, or None): how long a task may run. Changes before start() apply to this cluster.
    - sentinel (Process): the process made by start(); None before.
    - start_event (Event): set once it takes tasks. stop_event (Event): set once it was told to stop. Both are
      None before start() and after stop().
    """

    def __init__(self, broker: Broker | None = None) -> None:
        self.broker = broker or get_broker()
        self.sentinel: Any = None
        self.start_event: Any = None
        self.stop_event: Any = None
        self.host = socket.gethostname()
        self.cluster_id = uuid.uuid4()
        self.pid = os.getpid()
        self.timeout = conf.timeout

    @property
    def name(self) -> str:
        """Return a readable name made from its id."""
        return humanize(self.cluster_id.hex)

    def start(self) -> int:
        """Start a worker in a separate process; return its process id once it takes tasks.

        Does nothing if it is running. When TERM or INT ends the program, the cluster is stopped first, unless
        the program has its own handler. Connections with an open transaction stay open. Raises QWorkerError
        if it cannot be started, or ends before it takes tasks.
        """
        if self._lives:
            return self.pid
        if self.broker.kind == "orm":
            _check_database()
        self.start_event, self.stop_event = FORK.Event(), FORK.Event()
        task_connections.close_idle()
        forget()
        self.sentinel = FORK.Process(target=self._guard, name="qworker-cluster")
        self.sentinel.start()
        import_object(f"{ENDING}:with_this_program")(self)
        self.pid = int(self.sentinel.pid)
        while not self.start_event.wait(LOOK_SECONDS):
            if not self.sentinel.is_alive():
                self.start_event = self.stop_event = None
                raise QWorkerError(
                    f"the cluster {self.name} ended with exit code {self.sentinel.exitcode} before it was "
                    "ready: see its log for the reason"
                )
        return self.pid

    def stop(self) -> bool:
        """Stop the started worker after its running tasks; return whether there was one.

        Tasks that still run after ``worker_shutdown_timeout`` seconds go back to the broker.
        """
        if not self._lives:
            self.start_event = self.stop_event = None
            return False
        if not self.stop_event.is_set():  # a second signal would interrupt running tasks
            self.stop_event.set()
            os.kill(self.sentinel.pid, signal.SIGTERM)
        self.sentinel.join()
        self.start_event = self.stop_event = None
        return True

    def _guard(self) -> None:
        import_object(f"{ENDING}:leave_the_group")()
        task_connections.abandon()
        if self.timeout != conf.timeout:
            override("timeout", self.timeout)
        try:
            code = self.run()
        except QWorkerError as error:
            logger.error("Q Cluster %s cannot run: %s", self.name, error)
            code = 1
        os._exit(code)

    def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Run the cluster in this process until it is told to stop; return the worker's exit code.

        on_ready: called once it takes tasks. Raises QWorkerError if it cannot start.
        """
        title = f"{self.name} [{conf.cluster_name}]"

        def ready() -> None:
            cluster_log.log_running(title)
            if self.start_event is not None:
                import_object(f"{ENDING}:with_our_parent")(self.stop_event.is_set)
                self.start_event.set()
            if on_ready is not None:
                on_ready()

        def stopping(**_: Any) -> None:
            cluster_log.log_stopping(title)

        self.pid = os.getpid()
        cluster_log.prepare()
        cluster_log.log_start(title)
        node = node_of(conf.cluster_name, self.cluster_id, self.host)
        worker: Worker
        parts = extra_parts(self.broker, lambda: presence_of(worker, started))
        worker = Worker(app(), hostname=node, on_ready=ready, extras=parts)
        started = SYSTEM_CLOCK.now()
        signals.worker_shutting_down.connect(stopping, weak=False)
        try:
            code = worker.run()
        finally:
            signals.worker_shutting_down.disconnect(stopping)
        cluster_log.log_end(title)
        return code

    @property
    def _lives(self) -> bool:
        return self.sentinel is not None and self.sentinel.is_alive()

    @property
    def is_starting(self) -> bool:
        """Return whether it was started and does not take tasks yet."""
        return self._lives and self.start_event is not None and not self.start_event.is_set()

    @property
    def is_running(self) -> bool:
        """Return whether it takes tasks."""
        return self._has_begun and not self.stop_event.is_set()

    @property
    def is_stopping(self) -> bool:
        """Return whether it was told to stop and still runs."""
        return self._has_begun and self.stop_event.is_set()

    @property
    def has_stopped(self) -> bool:
        """Return whether it was started and has ended, in any way."""
        return self.sentinel is not None and not self._lives

    @property
    def _has_begun(self) -> bool:
        return self._lives and self.start_event is not None and self.start_event.is_set()

    @property
    def stat(self) -> Status:
        """Return its status."""
        return Stat.get(self.pid, self.cluster_id, self.broker)


def _check_database() -> None:
    """Raise ConfigurationError if no cluster can use the broker's database: for example an SQLite file on
    which the caller has a transaction, whose end the cluster would wait for."""
    alias = broker_alias()
    url_of(alias)
    if connections[alias].vendor == "sqlite" and alias in task_connections.in_transaction():
        raise ConfigurationError(
            f"this program is in a transaction on the SQLite database {alias!r}, which prevents the cluster "
            "from writing to it: start it outside the transaction (in tests: use TransactionTestCase)"
        )


def extra_parts(broker: Broker, snapshot: Callable[[], Presence]) -> Sequence[MakeComponent]:
    """Return functions that make the additional components of a cluster's worker.

    broker: the cluster's. snapshot: returns the worker's current state.
    """
    makers: list[MakeComponent] = [_retention]
    if conf.scheduler:
        makers.append(_scheduler)
    if not broker_stores_state():
        makers.append(partial(_announcer, broker, snapshot))
    return makers


def _retention(on_crash: OnCrash) -> Component:
    def make() -> Component:
        from qworker.django.clusters.retention import Retention

        return Retention(app(), on_crash)

    return Later("retention", make)


def _scheduler(on_crash: OnCrash) -> Component:
    def make() -> Component:
        from qworker.django.clusters.scheduling import Scheduler

        return Scheduler(app(), on_crash)

    return Later("schedules", make)


def _announcer(broker: Broker, snapshot: Callable[[], Presence], on_crash: OnCrash) -> Component:
    def make() -> Component:
        from qworker.django.clusters.announcing import Announcer

        return Announcer(SYSTEM_CLOCK, on_crash, broker, snapshot)

    return Later("status", make)


def presence_of(worker: Worker, started: float) -> Presence:
    """Return the presence of *worker*, for brokers that do not store it. started: epoch seconds."""
    info = worker.info()
    pool, totals = info["pool"], info["total"]
    busy = pool["in-flight"]
    status = STOPPING if worker.phase != RUNNING else WORKING if busy else IDLE
    return Presence(
        worker.hostname,
        os.getpid(),
        worker.queues,
        worker.concurrency,
        started,
        host=socket.gethostname(),
        status=status,
        pool=tuple(pid for pid in pool["processes"] if pid != os.getpid()),
        restarts=worker.parts.pool.deaths + worker.parts.pool.recycled,
        waiting=info["ready"],
        scheduled=info["scheduled"],
        busy=busy,
        totals=totals,
        seen=SYSTEM_CLOCK.now(),
    )
