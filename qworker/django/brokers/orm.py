"""The broker in the project's own database.

Comes from:  ``Q_CLUSTER['orm']``, or no broker in the settings at all.
Goes to:     the tables of qworker's transport there; a package goes by Django's own connection.
Thread:      any.

A package is published in whatever transaction the caller is in: it is there exactly if the caller's data is.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from qworker import __version__
from qworker.django.brokers.transported import TransportBroker, transport
from qworker.django.transport import broker_alias
from qworker.transports.lease import Envelope


class ORM(TransportBroker):
    """A queue in a database of the project."""

    kind = "orm"
    name = "ORM"

    def _push(self, envelope: Envelope) -> None:
        publish([envelope])

    def ping(self) -> bool:
        return bool(connections[broker_alias()].is_usable()) if self.connection is not None else False

    def info(self) -> str:
        return f"ORM {broker_alias()}, by qworker {__version__}"

    @staticmethod
    def get_connection(list_key: str | None = None) -> Any:
        return connections[broker_alias()]


def publish(envelopes: list[Envelope]) -> None:
    """Publish *envelopes* in the transaction that Django's connection to the broker's database is in."""
    connection = connections[broker_alias()]
    sender: Any = transport("orm").sender
    sender.join(connection).push(envelopes)
    connection.on_commit(sender.notify)
