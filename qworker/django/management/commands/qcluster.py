"""qcluster: runs a cluster until it is told to stop.

Comes from:  people and init systems.
Goes to:     ``management/serving.py``, imported without garbage collection.
Thread:      main.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from qworker.django.conf import conf


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection, and then exclude all existing objects from it: they live until the end.

    A Django project has some sixty thousand objects by then. Each collection would take a tenth of the
    startup time, and find nothing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


class Command(BaseCommand):
    """See the module."""

    help = "Runs a cluster, which executes tasks until it is stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--run-once", action="store_true", dest="run_once", help="Run the waiting tasks, then stop."
        )
        parser.add_argument(
            "-n", "--name", dest="cluster_name", help="The name of the cluster, and of its queue."
        )

    def check(self, *args: Any, **options: Any) -> None:
        """Run Django's checks, which import the project's views."""
        with uncollected():
            super().check(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a cluster. Exit codes: 0 stopped, 1 failed, 3 tasks were abandoned."""
        if options["cluster_name"]:
            os.environ["Q_CLUSTER_NAME"] = options["cluster_name"]
            conf.reset()
        with uncollected():
            from qworker.django.management.serving import serve
        if code := serve(options["run_once"]):
            sys.exit(code)
