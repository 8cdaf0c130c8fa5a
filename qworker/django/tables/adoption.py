"""adoption: what django-q2 had in its queue goes into ours; and back, for who gives qworker up again.

Comes from:  the migration that gives up the table of django-q2's queue.
Goes to:     the store's table of messages, through Django's connection; back to that of django-q2.
Thread:      the one that migrates.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from django.conf import settings

from qworker.django.signing import SignedPackage
from qworker.django.tables.store import is_broker
from qworker.django.transports import packages
from qworker.errors import InvalidTaskMessage
from qworker.transports.sql.schema import READY
from qworker.transports.sqlite.schema import NEXT_TAG

logger = logging.getLogger(__name__)

_SQLITE = f"""INSERT INTO message (tag, queue, priority, due, state, sent, headers, properties, body)
VALUES ({NEXT_TAG}, %s, %s, %s, %s, %s, %s, %s, %s)"""
_SERVERS = """INSERT INTO qworker_message (queue, urgency, due, state, sent, headers, properties, body)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"""
AT_ONCE = 500
"""Rows of the old queue that are read at once."""


def move_queue(apps: Any, schema_editor: Any) -> None:
    """Put what waits in django-q2's table into the store, oldest first, each in the queue of its key.

    What a cluster of django-q2 had locked waits again: nobody else would run it. Where the database is not
    the broker, what waits there is left behind, which is logged.
    """
    connection = schema_editor.connection
    old = apps.get_model("django_q", "OrmQ")
    if old._meta.db_table not in connection.introspection.table_names():
        return
    rows = old.objects.using(connection.alias).order_by("pk")
    if not is_broker(connection):
        if count := rows.count():
            logger.warning("%d packages in %s are left behind: it is not the broker", count, connection.alias)
        return
    with connection.cursor() as cursor:
        for row in rows.iterator(AT_ONCE):
            insert(cursor, connection.vendor, row.key, row.payload)


def move_back(apps: Any, schema_editor: Any) -> None:
    """Put the packages that wait in the store, or are held, into django-q2's table, oldest first. Other
    messages have no place there: they go with the store, which is logged."""
    connection = schema_editor.connection
    if not is_broker(connection):
        return
    old = apps.get_model("django_q", "OrmQ")
    table = "message" if connection.vendor == "sqlite" else "qworker_message"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT queue, body FROM {table} WHERE state IN (0, 1, 2) ORDER BY tag")
        messages = cursor.fetchall()
    rows, others = [], 0
    for queue, body in messages:
        try:
            rows.append(old(key=queue, payload=packages.text_of(bytes(body)), lock=_long_ago()))
        except InvalidTaskMessage:
            others += 1
    old.objects.using(connection.alias).bulk_create(rows, batch_size=AT_ONCE)
    if others:
        logger.warning("%d messages are no packages, and are lost with qworker's tables", others)


def _long_ago() -> datetime:
    """A lock that is over, however long the setting ``retry`` is."""
    return datetime(2000, 1, 1, tzinfo=UTC if settings.USE_TZ else None)


def insert(cursor: Any, vendor: str, queue: str, package: str) -> None:
    """Put a signed package into *queue* of the store. vendor: Django's name for the kind of database."""
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
    """What the package *text* holds; of one that cannot be read no more than that: a cluster makes a dead
    letter of it."""
    try:
        package: packages.Package = SignedPackage.loads(text)
        packages.envelope_of(text, package, "")
    except Exception as error:  # noqa: BLE001 - it may be anything, and the others are moved
        logger.warning("a package is moved that cannot be read: %s", error)
        return {"id": uuid4().hex, "func": "unreadable"}
    return package
