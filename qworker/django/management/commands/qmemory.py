"""qmemory: shows how much memory the clusters of this machine use, live.

Comes from:  people.
Goes to:     ``monitor.py``.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from qworker.django.management.watching import in_a_sentence
from qworker.django.monitor import memory


class Command(BaseCommand):
    """See the module."""

    help = "Shows the memory usage of the clusters on this machine, until q is pressed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--run-once", action="store_true", dest="run_once", help="Show it once, then stop."
        )
        parser.add_argument("--workers", action="store_true", help="Also show each worker process.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show it live; once if there is no terminal."""
        with in_a_sentence():
            memory(options["run_once"], options["workers"], out=self.stdout)
