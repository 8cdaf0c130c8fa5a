"""Transport: the broker of qworker that the settings of a project name.

Comes from:  ``engine.py``, for the worker; ``brokers``, for who publishes and looks.
Goes to:     the project's own database, Redis or SQS.
Thread:      any; nothing connects before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import connections

from qworker import QWorker
from qworker.django import task_rows
from qworker.django.conf import conf
from qworker.django.databases import url_of
from qworker.transports.lease import Broker

DEFAULT = "default"


def broker_alias() -> str:
    """Return the alias of the database that is the broker, where one is."""
    return conf.orm or DEFAULT


def database_broker(alias: str, lease_seconds: float = 15.0) -> Broker:
    """Return the broker in the database *alias*, which stores tasks with their acks where ``Task`` is there.

    Raises ConfigurationError for a database that cannot be one.
    """
    url, vendor = url_of(alias), connections[alias].vendor
    if vendor == "sqlite":
        from qworker.transports.sqlite.broker import SQLiteBroker

        return SQLiteBroker(url, lease_seconds=lease_seconds, store_rows=_store_in_file)
    from qworker.django.task_table import TaskTable
    from qworker.transports.sql.broker import SQLBroker

    return SQLBroker(url, lease_seconds=lease_seconds, results=TaskTable(vendor, 86400.0))


def _store_in_file(connection: Any, rows: Any) -> None:
    others = task_rows.store_in_file(connection, rows)
    if others:
        from qworker.transports.sqlite.consumer import store_rows

        store_rows(connection, others)


def url_and_options(kind: str) -> tuple[str, dict[str, Any]]:
    """Return the URL of a broker that is no database, and the settings of qworker that go with it."""
    return _URLS[kind]()


def _redis() -> tuple[str, dict[str, Any]]:
    if conf.django_redis:
        return _django_redis(conf.django_redis), {}
    given = conf.redis
    if isinstance(given, str):
        return given, {}
    given = dict(given or {})
    password, user = given.get("password"), given.get("username")
    who = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
    if given.get("unix_socket_path"):
        return f"redis+socket://{who}{given['unix_socket_path']}?virtual_host={given.get('db', 0)}", {}
    scheme = "rediss" if given.get("ssl") else "redis"
    host, port = given.get("host", "localhost"), given.get("port", 6379)
    return f"{scheme}://{who}{host}:{port}/{given.get('db', 0)}", {}


def _django_redis(alias: str) -> str:
    location = settings.CACHES[alias]["LOCATION"]
    first = location if isinstance(location, str) else location[0]
    return str(first).split(",")[0]


def _sqs() -> tuple[str, dict[str, Any]]:
    given = dict(conf.sqs)
    key, secret = given.get("aws_access_key_id"), given.get("aws_secret_access_key")
    who = f"{quote(key, safe='')}:{quote(secret, safe='')}@" if key and secret else ""
    options: dict[str, Any] = {"visibility_timeout": conf.retry}
    if region := given.get("aws_region") or given.get("region_name"):
        options["region"] = region
    if wait := given.get("receive_message_wait_time_seconds"):
        options["wait_time_seconds"] = wait
    where = urlsplit(given.get("endpoint_url") or "")
    if where.scheme == "https":
        options["is_secure"] = True
    return f"sqs://{who}{where.netloc}", {"broker_transport_options": options}


_URLS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {"redis": _redis, "sqs": _sqs}


def open_transport(kind: str) -> Broker:
    """Return the broker of this *kind*, for publishing and looking; what is taken by it stays for ``retry``
    seconds.

    Raises ConfigurationError for one that cannot be.
    """
    seconds = max(1.0, conf.retry)
    if kind == "orm":
        return database_broker(broker_alias(), lease_seconds=seconds)
    url, more = url_and_options(kind)
    changes = {**more, "worker_lease_seconds": seconds}
    return QWorker("django", broker=url, set_as_current=False, changes=changes).broker
