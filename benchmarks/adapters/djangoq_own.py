"""Django-Q on a broker where each cell has a queue of its own; its tables, which keep the results, are in an
SQLite file of the cell's directory. The row names its settings."""

import importlib
from typing import Any

import django
from django.core.management import call_command

from benchmarks.adapters.services import STORED

django.setup()
# Its models can be imported only when Django is set up.
async_task = importlib.import_module("django_q.tasks").async_task
get_broker = importlib.import_module("django_q.brokers").get_broker


def prepare() -> None:
    """Make Django's tables. The project is new."""
    call_command("migrate", verbosity=0)


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    async_task(f"benchmarks.bodies.{task}", *args, save=STORED)


def left() -> int:
    """How many messages the broker has."""
    return int(get_broker().queue_size())
