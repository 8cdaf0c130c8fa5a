"""orm: the broker in the project's own database.

Comes from:  ``Q_CLUSTER['orm']``, or settings that name no broker.
Goes to:     the tables of qworker's transport; packages are published through Django's connection.
Thread:      any.

A package is published in the caller's transaction, if any, and committed or rolled back with it.
"""

import weakref
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from qworker import __version__
from qworker.clock import SYSTEM_CLOCK
from qworker.django.brokers.transported import TransportBroker, transport
from qworker.django.conf import logger
from qworker.django.models import OrmQ
from qworker.django.transports.databases import is_in_memory
from qworker.django.transports.opening import broker_alias
from qworker.naming import import_object
from qworker.transports.lease import Envelope, Sender
from qworker.transports.sql.schema import LEASED

SQLITE = "qworker.transports.sql.embedded.sender"
"""Needed only for SQLite."""


class Joined(NamedTuple):
    """A sender that publishes through a connection of Django's.

    driver: the driver's connection that it was made for. sender: the transport's sender.
    """

    driver: Any
    sender: Any
    joined: Sender


_joined: weakref.WeakKeyDictionary[Any, Joined] = weakref.WeakKeyDictionary()
"""By Django's connection; each thread has its own."""


class ORM(TransportBroker):
    """A queue in a database of the project."""

    kind = "orm"
    name = "ORM"

    def _push(self, envelope: Envelope) -> None:
        publish([envelope])

    def queue_size(self) -> int:
        return int(self._waiting().exclude(state=LEASED).count())

    def lock_size(self) -> int | None:
        return int(self._waiting().filter(state=LEASED).count())

    def _waiting(self) -> Any:
        """Return the messages of this queue, as the caller's transaction sees them."""
        return OrmQ.objects.using(broker_alias()).filter(key=self.list_key)

    def delete(self, task_id: Any) -> None:
        """Like the base class. The id of a task, which is text, deletes its message from the queue."""
        if isinstance(task_id, str):
            self._waiting().filter(headers__contains=f'"id":"{task_id}"').delete()
        else:
            super().delete(task_id)

    def purge_queue(self) -> Any:
        if is_in_memory(broker_alias()):
            return self._waiting().exclude(state=LEASED).delete()[0]
        return super().purge_queue()

    def ping(self) -> bool:
        connection = connections[broker_alias()]
        try:
            connection.ensure_connection()
        except DatabaseError:
            return False
        return bool(connection.is_usable())

    def info(self) -> str:
        connection = connections[broker_alias()]
        version = ".".join(map(str, connection.get_database_version()))
        return f"ORM {broker_alias()}, {connection.display_name} {version}, by qworker {__version__}"

    @staticmethod
    def get_connection(list_key: str | None = None) -> Any:
        return connections[broker_alias()]


def publish(envelopes: list[Envelope]) -> None:
    """Publish *envelopes* through Django's connection to the broker's database, in its transaction."""
    connection = connections[broker_alias()]
    if is_in_memory(broker_alias()):
        _keep_in_memory(connection, envelopes)
        return
    sender: Any = transport("orm").sender
    _join(connection, sender).push(envelopes)
    if connection.in_atomic_block or connection.get_autocommit():
        connection.on_commit(sender.notify)
    else:  # without autocommit, Django does not see the commit: workers find the message by polling
        sender.notify()


def _keep_in_memory(connection: Any, envelopes: list[Envelope]) -> None:
    """Store *envelopes* in this process's database in memory, for a project's tests."""
    connection.ensure_connection()
    with connection.wrap_database_errors:
        import_object(f"{SQLITE}:insert")(connection.connection, envelopes, SYSTEM_CLOCK.now())


def _join(connection: Any, sender: Any) -> Sender:
    """Return the sender for *connection*: the same one until it reconnects, or the transport changes."""
    connection.ensure_connection()
    found = _joined.get(connection)
    if found is None or found.driver is not connection.connection or found.sender is not sender:
        if connection.vendor == "sqlite":
            _enter_wal(connection)
        # A proxy: a reference would keep the key, and connections of ended threads, alive.
        found = Joined(connection.connection, sender, sender.join(weakref.proxy(connection)))
        _joined[connection] = found
    return found.joined


def _enter_wal(connection: Any) -> None:
    """Put an SQLite file in WAL mode, as its first cluster does: a commit then waits for the disk once, not
    four times. Does nothing in a transaction, or while others use the file."""
    if connection.in_atomic_block:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")
    except DatabaseError as error:
        logger.debug("the database %s keeps its journal mode: %s", connection.alias, error)
