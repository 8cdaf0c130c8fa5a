"""Administration of JetStream, which knows all its queues: each has a consumer.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     JetStream, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

from typing import Any

from qworker.transports.kombu.server import close
from qworker.transports.nats.client import Connection
from qworker.transports.nats.server import NatsServer
from qworker.transports.visibility.admin import RemoteAdmin
from qworker.transports.visibility.server import QueueGone


class NatsAdmin(RemoteAdmin):
    """See RemoteAdmin."""

    _server: NatsServer

    @property
    def purges_leased(self) -> bool:
        return True

    def _names(self) -> set[str]:
        connection: Connection = self._server.connect()
        try:
            with self._server.errors(connection):
                return super()._names() | set(self._there(connection))
        except QueueGone:
            return super()._names()
        finally:
            close(connection)

    def _there(self, connection: Connection) -> list[str]:
        """The names of all queues that the server has a consumer of."""
        found: list[str] = []
        total = 1
        seen = 0
        while seen < total:
            answer: dict[str, Any] = connection.ask(
                f"CONSUMER.LIST.{self._server.layout.stream}", {"offset": seen}
            )
            consumers = answer.get("consumers") or []
            total, seen = int(answer["total"]), seen + len(consumers)
            found += [str(one["config"].get("description") or one["name"]) for one in consumers]
            if not consumers:
                break
        return found
