"""notifications: notifies waiting callers that tasks have ended.

Comes from:  writers of rows of ``Task``.
Goes to:     the ``Source`` of ``waiting/watcher.py``, in each process that waits.
Thread:      any for notify(); a source belongs to the thread that leads the watcher.

For an SQLite file, these are the notification pipes beside it, which a cluster's acks also use; they do not
carry ids. PostgreSQL sends the ids, names and groups of tasks when the rows are committed, if anyone listens.
MySQL and MariaDB cannot notify; if Redis is the broker, it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Protocol

from django.db import connections

from qworker.backends.sql.sqlite import PipeSource
from qworker.django.conf import conf
from qworker.django.transports.databases import is_in_memory, own_connection, url_of
from qworker.interrupts import reraise_interrupt
from qworker.naming import import_object
from qworker.transports.sql.embedded import Database, NotificationPipe, Notifier, database_path
from qworker.transports.sql.result_upserts import LOOK, channel_of, lock_of

logger = logging.getLogger(__name__)

CHANNEL = "qworker.django.transports.redis_channel"
"""Needs the Redis client."""
LISTENING = "qworker.backends.sql.backend"
"""Needed only for waiting with PostgreSQL."""
MOST_BYTES = 8000
"""PostgreSQL's limit for a notification's payload."""

_notifiers: dict[str, Notifier] = {}
"""By directory of the pipes. Any thread."""


class Notifications(Protocol):
    """The notifications of a ``Source``. announced: ids, names and groups of ended tasks; None if unknown."""

    def fileno(self) -> int: ...

    def announced(self) -> Collection[str] | None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class NoNotifications:
    """Used if notifications are not supported."""

    def fileno(self) -> int:
        return -1

    def announced(self) -> Collection[str] | None:
        return ()

    def close(self) -> None:
        """Do nothing."""

    abandon = close


def notifying(insert: str, table: str) -> str:
    """Return *insert*, a statement for PostgreSQL that stores tasks in *table*, with a notification added.

    Like ``postgresql_upsert()``, it notifies only if a listener holds the shared lock, which is tried here.
    """
    where = f'"{table}"'
    return f"""WITH stored AS ({insert} RETURNING id, name, "group"),
ended AS (SELECT string_agg(concat_ws(E'\\n', id, name, "group"), E'\\n') AS texts FROM stored)
SELECT CASE WHEN texts IS NOT NULL AND NOT pg_try_advisory_xact_lock({lock_of(where)})
    THEN pg_notify({channel_of(where)}, CASE WHEN octet_length(texts) < {MOST_BYTES}
    THEN texts ELSE '{LOOK}' END)::text END FROM ended"""


def notify(connection: Any, texts: Collection[str]) -> None:
    """Notify of rows stored through Django's *connection*, once its transaction is committed, if the
    statement itself does not. texts: ids, names and groups of the tasks."""
    if connection.vendor == "sqlite" and not is_in_memory(connection.alias):
        connection.on_commit(lambda: _notifier(connection.alias).notify())
    elif _by_redis(connection.vendor):
        connection.on_commit(lambda: import_object(f"{CHANNEL}:publish")(texts))


def _by_redis(vendor: str) -> bool:
    return vendor not in ("sqlite", "postgresql") and conf.broker == "redis"


def _notifier(alias: str) -> Notifier:
    pipes = _file(alias).pipes
    return _notifiers.get(str(pipes)) or _notifiers.setdefault(str(pipes), Notifier(pipes, "result"))


def _file(alias: str) -> Database:
    return Database(database_path(url_of(alias)))


def open_notifications(alias: str, table: str) -> Notifications:
    """Return the notifications of *table* in the database *alias*; NoNotifications if not supported.

    Raises the errors of the database.
    """
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        return _listening(alias, f'"{table}"')
    if vendor == "sqlite":
        return _piped(alias)
    if _by_redis(vendor):
        found: Notifications = import_object(f"{CHANNEL}:Subscription")()
        return found
    return NoNotifications()


def _piped(alias: str) -> Notifications:
    file = _file(alias)
    try:
        file.pipes.mkdir(exist_ok=True)
        pipe = NotificationPipe(file.pipes, "result")
    except OSError as error:
        logger.info("a pipe cannot be created, so results are polled twice a second: %s", error)
        return NoNotifications()
    return PipeSource(pipe) if pipe.fileno() >= 0 else NoNotifications()


def _listening(alias: str, table: str) -> Notifications:
    if connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        return NoNotifications()  # set for transaction poolers, through which LISTEN does not work
    connection = own_connection(alias)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {channel_of(table)}")
            cursor.execute(f"LISTEN {cursor.fetchone()[0]}")
            # A writer that did not notify has committed once the lock is acquired: the next query sees its
            # rows.
            cursor.execute("BEGIN")
            cursor.execute("SET LOCAL lock_timeout = '5s'")
            cursor.execute(f"SELECT pg_advisory_lock_shared({lock_of(table)})")
            cursor.execute("COMMIT")
        found: Notifications = import_object(f"{LISTENING}:ListenConnection")(
            connection.connection, connection.close
        )
        return found
    except BaseException as error:
        reraise_interrupt(error)
        connection.close()
        raise
