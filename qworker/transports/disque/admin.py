"""Administration of Disque: it also lists the queues that others have made, and looks at each job there.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     the nodes, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.transports.disque.queue import counts, every_node
from qworker.transports.held.admin import RemoteAdmin
from qworker.transports.kombu.server import DEAD
from qworker.transports.lease import QueueInfo


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

    def _standing(self, queues: Sequence[str]) -> list[QueueInfo]:
        connection = self._server.connect()
        try:
            with self._server.errors(connection):
                found = counts(connection.asking)
        finally:
            connection.release()
        return [QueueInfo(name, *count) for name, count in found.items() if name != DEAD]
