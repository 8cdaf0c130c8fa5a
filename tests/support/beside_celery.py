"""Celery's app next to ours: marks for such tests, apps with equal settings, and servers for both.

Comes from:  tests that have checked that Celery is installed.
Goes to:     the servers of the tests, on which each keeps to a place of its own.
Thread:      the test's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celery
import pytest

from qworker import QWorker
from tests.contract.place_sql import PostgreSQLPlace
from tests.servers import new_prefix, require
from tests.support.rabbitmq import forget_queues

BESIDE_CELERY = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]
"""For pytestmark: ignores deprecation warnings of Celery and its dependencies."""


class Pair:
    """Celery's app and ours with the same settings. Neither is the current app."""

    def __init__(self, **settings: Any) -> None:
        self.theirs = celery.Celery("pair", set_as_current=False)
        self.theirs.conf.update(settings)
        self.ours = QWorker("pair", set_as_current=False, **settings)

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()


def redis_results(ending: str = "") -> dict[str, Any]:
    """The settings of a result store on Redis, with a unique key prefix that ends with *ending*."""
    return {
        "result_backend": require("redis"),
        "result_backend_transport_options": {"global_keyprefix": new_prefix() + ending},
    }


@contextmanager
def results_in(kind: str, path: Path) -> Iterator[dict[str, Any]]:
    """The settings of an empty result store: redis, sqlite, postgresql, file or memcached."""
    if kind == "redis":
        yield redis_results()
    elif kind == "postgresql":  # a schema, since Celery's indexes have the same names for any table
        place = PostgreSQLPlace(path)
        try:
            yield {"result_backend": place.url.replace("postgresql://", "db+postgresql+psycopg://")}
        finally:
            place.clear()
    elif kind == "memcached":
        yield {"result_backend": f"cache+{require(kind)}"}
    else:
        urls = {"sqlite": f"db+sqlite:///{path}/results.db", "file": f"file://{path}"}
        yield {"result_backend": urls[kind]}


@contextmanager
def queue_on(kind: str) -> Iterator[dict[str, Any]]:
    """The settings of a broker, redis or rabbitmq, with a unique queue."""
    url, queue = require(kind), f"beside-{uuid.uuid4().hex}"
    try:
        yield {
            "broker_url": url,
            "broker_transport_options": {"global_keyprefix": new_prefix()} if kind == "redis" else {},
            "task_default_queue": queue,
        }
    finally:
        if kind == "rabbitmq":
            forget_queues(url, queue, f"{queue}.dead")
