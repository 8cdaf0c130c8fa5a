"""adoption: moves django-q2's queue into qworker's, and back when the migrations are reversed.

Comes from:  the migrations that replace the table of django-q2's queue, and reverse the store's.
Goes to:     the store's table of messages, or django-q2's table, through Django's connection.
Thread:      the one that migrates.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from django.conf import settings

from qworker.django.labels import PREDECESSOR
from qworker.django.signing import SignedPackage
from qworker.django.tables.store import drop_tables, is_broker
from qworker.django.transports import packages
from qworker.errors import InvalidTaskMessage
from qworker.transports.sql.embedded.schema import NEXT_TAG
from qworker.transports.sql.schema import READY

logger = logging.getLogger(__name__)

_SQLITE = f"""INSERT INTO message (tag, queue, priority, due, state, sent, headers, properties, body)
VALUES ({NEXT_TAG}, %s, %s, %s, %s, %s, %s, %s, %s)"""
_SERVERS = """INSERT INTO qworker_message (queue, urgency, due, state, sent, headers, properties, body)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"""
AT_ONCE = 500
"""Rows read at once."""


def move_queue(apps: Any, schema_editor: Any) -> None:
    """Move the messages of django-q2's table into the store, oldest first, each to the queue of its key; then
    drop the table.

    Messages locked by a cluster of django-q2 wait again, or they would never be run. If the database is not
    the broker, a table with waiting messages stays, which is logged.
    """
    connection = schema_editor.connection
    old = apps.get_model(PREDECESSOR, "OrmQ")
    table = old._meta.db_table
    broker = is_broker(connection)
    there = not broker and table in connection.introspection.table_names()
    if there and (count := old.objects.using(connection.alias).count()):
        logger.warning(
            "%d tasks remain in the table %s of the database %s, which is not the broker: run them with "
            "django-q2, then drop the table",
            count,
            table,
            connection.alias,
        )
        return

    def move(cursor: Any, table: str) -> None:
        key = connection.ops.quote_name("key")
        for queue, package in _rows(cursor, table, "id", f"{key}, payload"):
            insert(cursor, connection.vendor, queue, package)

    _empty(connection, table, move if broker else lambda cursor, table: None)


def make_old_queue(apps: Any, schema_editor: Any) -> None:
    """Create the empty table of django-q2's queue."""
    model = apps.get_model(PREDECESSOR, "OrmQ")
    if model._meta.db_table not in schema_editor.connection.introspection.table_names():
        schema_editor.create_model(model)


def give_back(apps: Any, schema_editor: Any) -> None:
    """Move waiting and held packages from the store into django-q2's table, oldest first; then drop the
    store's tables. Other messages are dropped with them, which is logged."""
    connection = schema_editor.connection
    if not is_broker(connection):
        return
    old = apps.get_model(PREDECESSOR, "OrmQ").objects.using(connection.alias)

    def move(cursor: Any, table: str) -> None:
        others, packed = 0, []
        for queue, body in list(_rows(cursor, table, "tag", "queue, body", "AND state IN (0, 1, 2)")):
            try:
                packed.append(old.model(key=queue, payload=packages.text_of(bytes(body)), lock=_long_ago()))
            except InvalidTaskMessage:
                others += 1
        old.bulk_create(packed, batch_size=AT_ONCE)
        if others:
            logger.warning(
                "%d messages are not tasks of Django-Q, and are dropped with qworker's tables", others
            )

    _empty(connection, "message" if connection.vendor == "sqlite" else "qworker_message", move)
    drop_tables(apps, schema_editor)


def _empty(connection: Any, table: str, move: Callable[[Any, str], None]) -> None:
    """Call *move* with a cursor and the current name of *table*, to move its rows; then drop the table.

    The table is renamed first: this waits for transactions that have written to it, and later writers get an
    error instead of losing their rows. MySQL commits the new name and the moved rows; so an interrupted
    migration, when run again, finds all rows under one of the two names, or none. An SQLite file has one
    writer at a time, and rolls everything back.
    """
    old = table if connection.vendor == "sqlite" else f"{table}_moving"
    with connection.cursor() as cursor:
        # Otherwise commits made while RENAME waits would not be visible.
        if connection.vendor == "postgresql":
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for _ in range(2):  # first the table left by an interrupted attempt
            there = connection.introspection.table_names(cursor)
            if old not in there:
                if table not in there:
                    return
                cursor.execute(f"ALTER TABLE {table} RENAME TO {old}")
            move(cursor, old)
            cursor.execute(f"DELETE FROM {old}")
            cursor.execute(f"DROP TABLE {old}")


def _rows(cursor: Any, table: str, key: str, columns: str, more: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield the *columns* of all rows of *table* ordered by *key*, reading AT_ONCE rows at once."""
    last = 0
    while True:
        cursor.execute(
            f"SELECT {key}, {columns} FROM {table} WHERE {key} > %s {more} ORDER BY {key} LIMIT {AT_ONCE}",
            [last],
        )
        found = cursor.fetchall()
        for row in found:
            yield row[1:]
        if len(found) < AT_ONCE:
            return
        last = found[-1][0]


def _long_ago() -> datetime:
    """Return a lock time that has expired, however long ``retry`` is."""
    return datetime(2000, 1, 1, tzinfo=UTC if settings.USE_TZ else None)


def insert(cursor: Any, vendor: str, queue: str, package: str) -> None:
    """Put a signed package into the store's *queue*. vendor: Django's name for the database."""
    envelope = packages.envelope_of(package, _described(package), queue)
    is_sqlite = vendor == "sqlite"
    cursor.execute(
        _SQLITE if is_sqlite else _SERVERS,
        (
            queue,
            envelope.priority if is_sqlite else -envelope.priority,
            envelope.due,
            READY,
            time.time(),
            envelope.headers,
            envelope.properties,
            envelope.body,
        ),
    )


def _described(text: str) -> packages.Package:
    """Return the content of the package *text*; for an unreadable one a stub, which a cluster makes a dead
    letter."""
    try:
        package: packages.Package = SignedPackage.loads(text)
        packages.envelope_of(text, package, "")
    except Exception as error:  # noqa: BLE001 - a package may contain anything
        logger.warning("a task that cannot be read is moved: %s", error)
        return {"id": uuid4().hex, "func": "unreadable"}
    return package
