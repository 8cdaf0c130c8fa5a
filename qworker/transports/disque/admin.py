"""Administration of Disque: it also lists the queues that others have made.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     the nodes, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

from qworker.transports.disque.queue import every_node
from qworker.transports.kombu.server import DEAD
from qworker.transports.visibility.admin import RemoteAdmin


class DisqueAdmin(RemoteAdmin):
    """See RemoteAdmin."""

    def _names(self) -> set[str]:
        connection = self._server.connect()
        try:
            with self._server.errors(connection):
                answers = every_node(connection.asking, ("QSCAN", "BUSYLOOP"))
        finally:
            connection.release()
        found = {name.decode("utf-8", "replace") for answer in answers for name in answer.replies[0][1]}
        return (super()._names() | found) - {DEAD}
