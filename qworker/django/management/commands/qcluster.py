"""qcluster: runs a cluster until it is told to stop.

Comes from:  people and init systems.
Goes to:     ``Cluster.run()``.
Thread:      main.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from qworker.django.brokers import get_broker
from qworker.django.cluster import Cluster
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
        try:
            code = Cluster().run(_stop_when_idle if options["run_once"] else None)
        except QWorkerError as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)


def _stop_when_idle() -> None:
    """Have this process told to stop once nothing waits and nothing runs."""
    threading.Thread(target=_watch, name="run-once", daemon=True).start()


def _watch() -> None:
    broker, rest = get_broker(), threading.Event()
    while broker.queue_size() or broker.lock_size():
        rest.wait(IDLE_LOOK_SECONDS)
    os.kill(os.getpid(), 15)
