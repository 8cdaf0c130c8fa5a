"""opening: opens the qworker broker that a project's settings name.

Comes from:  ``clusters/engine.py``, for the worker; ``brokers``, for publishing and reading.
Goes to:     the project's own database, or the server that the settings name.
Thread:      any; nothing connects before it is used.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from qworker import QWorker
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.django.conf import conf
from qworker.django.transports import task_rows
from qworker.django.transports.databases import url_of
from qworker.django.transports.urls import url_and_options
from qworker.transports.lease import Broker

DEFAULT = "default"


def broker_alias() -> str:
    """Return the alias of the database that is the broker, if one is."""
    return conf.orm or DEFAULT


def database_broker(alias: str, lease_seconds: float = 15.0, clock: Clock = SYSTEM_CLOCK) -> Broker:
    """Return the broker in the database *alias*; it stores tasks with their acks if ``Task`` is there.

    Raises ConfigurationError if the database cannot be the broker.
    """
    url, vendor = url_of(alias), connections[alias].vendor
    if vendor == "sqlite":
        from qworker.transports.sql.embedded.broker import SQLiteBroker

        return SQLiteBroker(
            url, lease_seconds=lease_seconds, clock=clock, uptime=clock.uptime, store_rows=_store_in_file
        )
    from qworker.django.transports.task_table import TaskTable
    from qworker.transports.sql.broker import SQLBroker

    return SQLBroker(url, lease_seconds=lease_seconds, clock=clock, results=TaskTable(vendor, 86400.0))


def _store_in_file(connection: Any, rows: Any) -> None:
    others = task_rows.store_in_file(connection, rows)
    if others:
        from qworker.transports.sql.embedded.consumer import store_rows

        store_rows(connection, others)


def open_transport(kind: str) -> Broker:
    """Return the broker of this *kind*, for publishing and reading. Messages that it takes are held for
    ``retry`` seconds.

    Raises ConfigurationError for invalid settings.
    """
    seconds = max(1.0, conf.retry)
    if kind == "orm":
        return database_broker(broker_alias(), lease_seconds=seconds)
    url, more = url_and_options(kind)
    changes = {**more, "worker_lease_seconds": seconds}
    return QWorker("django", broker=url, set_as_current=False, changes=changes).broker
