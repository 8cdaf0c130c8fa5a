"""qinfo: prints figures for all clusters, or the configuration.

Comes from:  people and scripts.
Goes to:     ``monitor.py``; ``conf.py``.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from qworker import __version__
from qworker.django.brokers import get_broker
from qworker.django.conf import shown
from qworker.django.management.watching import as_json, in_a_sentence
from qworker.django.monitor import get_ids, info, info_values
from qworker.django.monitoring.overview import summary
from qworker.django.status import Stat


class Command(BaseCommand):
    """See the module."""

    help = "Prints statistics of all clusters."

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--config", action="store_true", dest="config", help="Print the configuration instead."
        )
        what.add_argument(
            "--ids", action="store_true", dest="ids", help="Print the ids of the clusters instead."
        )
        parser.add_argument("--json", action="store_true", dest="json", help="Print the output as JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the figures, the ids or the configuration. Secrets are masked."""
        if options["config"]:
            self._config(options["json"])
            return
        with in_a_sentence():
            if options["ids"]:
                if options["json"]:
                    self.stdout.write(as_json([str(each.cluster_id) for each in Stat.get_all()]))
                else:
                    get_ids(self.stdout)
            elif options["json"]:
                self.stdout.write(as_json(info_values(summary(get_broker()))))
            else:
                info(out=self.stdout)

    def _config(self, json: bool) -> None:
        values = {"VERSION": __version__, **{k: v for k, v in shown().items() if v is not None}}
        if json:
            self.stdout.write(as_json(values))
            return
        for name, value in values.items():
            self.stdout.write(f"{name}: {value}")
