"""django-q2 on Redis; its tables, which keep the results, are in an SQLite file of the cell's directory."""

import importlib
import os
from typing import Any

import django
import redis
from django.core.management import call_command

from benchmarks.adapters.services import REDIS_URL, STORED

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.adapters.djangoq_settings")
django.setup()
# Its models can be imported only when Django is set up.
async_task = importlib.import_module("django_q.tasks").async_task


def prepare() -> None:
    """Empty the database that is set aside for benchmarks, and make Django's tables."""
    finish()
    call_command("migrate", verbosity=0)


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    async_task(f"benchmarks.bodies.{task}", *args, save=STORED)


def finish() -> None:
    """Empty the database."""
    redis.Redis.from_url(REDIS_URL).flushdb()
