"""Cluster: a worker of this project, as Django-Q calls it.

Comes from:  the command qcluster, and programs that start one.
Goes to:     ``engine.py`` and qworker's worker, in a process of its own or in this one.
Thread:      main.

What Django-Q calls the sentinel is the worker's main process with the healing of its pool; its pusher is the
Listener, its workers are the children, its monitor is what stores results with their acks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from qworker import signals
from qworker.components.component import Component
from qworker.django.brokers import Broker, get_broker
from qworker.django.conf import conf, logger
from qworker.django.engine import app, forget
from qworker.django.humanhash import humanize
from qworker.django.retention import Retention
from qworker.django.running import SENDER
from qworker.django.scheduling import Scheduler
from qworker.django.signals import post_spawn
from qworker.django.status import Stat, Status, node_of
from qworker.worker import Worker

STOP_SECONDS = 30.0
FORK = multiprocessing.get_context("fork")
"""The settings of the caller go along, also those that were changed while it runs."""


class Cluster:
    """A cluster of this project; it is nothing before start().

    broker: the one that is asked for the state; None: the project's own.
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
        """A name for people, made of its id."""
        return humanize(self.cluster_id.hex)

    def start(self) -> int:
        """Start a worker in a process of its own; return its process id once it takes tasks."""
        self.start_event, self.stop_event = FORK.Event(), FORK.Event()
        connections.close_all()
        forget()
        self.sentinel = FORK.Process(target=self._guard, name="qworker-cluster")
        self.sentinel.start()
        while not self.start_event.wait(0.1) and self.sentinel.is_alive():
            pass
        self.pid = int(self.sentinel.pid)
        return self.pid

    def stop(self) -> bool:
        """End what start() has started, after what runs; whether there was anything to end."""
        if self.sentinel is None or not self.sentinel.is_alive():
            return False
        self.stop_event.set()
        os.kill(self.sentinel.pid, signal.SIGTERM)
        self.sentinel.join(STOP_SECONDS + conf.guard_cycle)
        self.start_event = self.stop_event = None
        return True

    def _guard(self) -> None:
        os._exit(self.run())

    def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Be the cluster, in this process, until told to stop; return the exit code."""

        def ready() -> None:
            logger.info("Q Cluster %s [%s] running.", self.name, conf.cluster_name)
            if self.start_event is not None:
                self.start_event.set()
            if on_ready is not None:
                on_ready()

        self.pid = os.getpid()
        logger.info("Q Cluster %s [%s] starting.", self.name, conf.cluster_name)
        node = node_of(conf.cluster_name, self.cluster_id, self.host)
        worker = Worker(app(), hostname=node, on_ready=ready, besides=besides())
        code = worker.run()
        logger.info("Q Cluster %s [%s] has stopped.", self.name, conf.cluster_name)
        return code

    @property
    def is_starting(self) -> bool:
        """Whether it was started, and takes no tasks yet."""
        return bool(self.start_event and not self.start_event.is_set())

    @property
    def is_running(self) -> bool:
        """Whether it takes tasks."""
        return bool(self.start_event and self.start_event.is_set() and not self.stop_event.is_set())

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, and has not."""
        return bool(self.start_event and self.start_event.is_set() and self.stop_event.is_set())

    @property
    def has_stopped(self) -> bool:
        """Whether it has run, and runs no more."""
        return self.start_event is None and self.stop_event is None and self.sentinel is not None

    @property
    def stat(self) -> Status:
        """What it tells of itself."""
        return Stat.get(self.pid, self.cluster_id)


def besides() -> Sequence[Callable[[Any], Component]]:
    """Return what makes the parts of a cluster's worker that others have not."""
    makers: list[Callable[[Any], Component]] = [lambda on_crash: Retention(app(), on_crash)]
    if conf.scheduler:
        makers.append(lambda on_crash: Scheduler(app(), on_crash))
    return makers


def _spawned(**_: Any) -> None:
    """A child has begun."""
    post_spawn.send(SENDER, proc_name="worker")
    logger.info("ready for work at %d", os.getpid())


signals.worker_process_init.connect(_spawned, weak=False)
