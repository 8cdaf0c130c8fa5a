"""One of the two packages that are Django-Q: the same calls, whichever it is."""

import importlib
import os
from collections import deque
from typing import Any

from benchmarks.adapters import own_database
from benchmarks.adapters.services import BROKER, REDIS_URL

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.adapters.django_settings")

import django
from django.core.management import call_command

django.setup()
# Models can be imported only when Django is set up.
tasks = importlib.import_module(f"{os.environ['BENCHMARK_APP']}.tasks")
last: deque[str] = deque(maxlen=50)
"""The ids of the last calls; less than are kept of successes."""


def prepare() -> None:
    """Empty what we are about to use, and make Django's tables."""
    _empty_redis()
    if BROKER == "PostgreSQL":
        own_database.make()
    call_command("migrate", verbosity=0)


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    last.append(tasks.async_task(f"benchmarks.bodies.{task}", *args))


def kept() -> bool:
    """Whether the last calls are rows in the database."""
    return bool(tasks.Task.objects.filter(pk__in=list(last)).count() == len(last))


def finish() -> None:
    """Remove what is outside the cell's directory."""
    _empty_redis()
    if BROKER == "PostgreSQL":
        own_database.drop()


def _empty_redis() -> None:
    if BROKER == "Redis":
        import redis

        redis.Redis.from_url(REDIS_URL).flushdb()
