"""qcluster: runs a cluster until it is told to stop.

Comes from:  people and init systems.
Goes to:     ``Cluster.run()``.
Thread:      main.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from qworker.django.brokers import get_broker
from qworker.django.cluster import Cluster
from qworker.django.conf import conf
from qworker.django.engine import app
from qworker.django.migrated import require_tables
from qworker.errors import QWorkerError

IDLE_LOOK_SECONDS = 0.2


class Command(BaseCommand):
    """See the module."""

    help = "Runs a cluster: works off tasks until it is told to stop."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--run-once", action="store_true", dest="run_once", help="Work off what waits, and stop."
        )
        parser.add_argument(
            "-n", "--name", dest="cluster_name", help="The name of the cluster, and its queue."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; the exit code is the worker's: 0 stopped, 1 failed, 3 tasks were abandoned."""
        if options["cluster_name"]:
            os.environ["Q_CLUSTER_NAME"] = options["cluster_name"]
            conf.reset()
        try:
            require_tables()
            code = Cluster().run(_stop_when_idle if options["run_once"] else None)
        except QWorkerError as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)


def _stop_when_idle() -> None:
    """Have this process told to stop once nothing waits and nothing runs."""
    threading.Thread(target=_watch, name="run-once", daemon=True).start()


def _watch() -> None:
    rest = threading.Event()
    while _has_work():
        rest.wait(IDLE_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _has_work() -> bool:
    """Whether tasks of this queue are due, or run. What is to run later is left to others."""
    if conf.broker == "custom":
        broker = get_broker()
        return bool(broker.queue_size() or broker.lock_size())
    (found,) = app().broker.admin.depths([conf.cluster_name])
    return bool(found.ready or found.leased)
