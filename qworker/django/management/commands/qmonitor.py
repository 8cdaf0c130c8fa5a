"""qmonitor: shows all clusters, live.

Comes from:  people.
Goes to:     ``monitor.py``.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from qworker.django.brokers import get_broker
from qworker.django.management.watching import as_json, in_a_sentence
from qworker.django.monitor import monitor, monitor_values
from qworker.django.monitoring.overview import overview


class Command(BaseCommand):
    """See the module."""

    help = "Shows all clusters and the number of waiting tasks, until q is pressed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--run-once", action="store_true", dest="run_once", help="Show them once, then stop."
        )
        parser.add_argument("--json", action="store_true", dest="json", help="Print them once, as JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show them live; once if there is no terminal."""
        with in_a_sentence():
            if options["json"]:
                self.stdout.write(as_json(monitor_values(overview(get_broker()))))
            else:
                monitor(options["run_once"], out=self.stdout)
