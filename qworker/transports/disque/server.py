"""Server: connecting to Disque's nodes.

Comes from:  the URL of the broker and ``broker_transport_options``.
Goes to:     ``nodes.py``; the sender, the consumer and the administration have a connection each.
Thread:      any; immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from qworker.transports.disque.nodes import Cluster
from qworker.transports.disque.queue import AllQueues, DisqueQueue, Options, counts, every_node
from qworker.transports.disque.url import parsed
from qworker.transports.held.port import DEAD, Server, ServerQueue
from qworker.transports.lease import QueueInfo

SHELF_SECONDS = 120
"""Seconds for which a dead letter is hidden while it is being read."""
WAIT_SECONDS = 10.0


class Connection(NamedTuple):
    """waiting: for queries that wait for jobs, which block their connection. asking: for everything else."""

    asking: Cluster
    waiting: Cluster

    def release(self) -> None:
        self.asking.release()
        self.waiting.release()


class DisqueServer(Server):
    """options: of added jobs. wait_seconds: how long one query for jobs waits."""

    def __init__(
        self, url: str, options: Options, timeout: float, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        super().__init__(url, timeout)
        self.wait_seconds = wait_seconds
        self._nodes = parsed(url)
        self._options = options

    def connect(self) -> Connection:
        clusters = (Cluster(self._nodes, self.shown, self.timeout) for _ in range(2))
        connection = Connection(*clusters)
        connection.asking.connect()
        return connection

    @contextmanager
    def errors(self, connection: Connection) -> Iterator[None]:
        yield  # errors are BrokerUnavailable already

    def declare(self, connection: Connection, queue: str) -> DisqueQueue:
        options = self._options
        if queue == DEAD:
            options = options._replace(retry=SHELF_SECONDS, maxlen=None)
        return DisqueQueue(connection.asking, queue, options)

    def names(self, connection: Connection) -> set[str]:
        """Return all queues, including those that others have created."""
        answers = every_node(connection.asking, ("QSCAN", "BUSYLOOP"))
        return {name.decode("utf-8", "replace") for answer in answers for name in answer.replies[0][1]}

    def queue_infos(self, connection: Connection, queues: Sequence[str]) -> list[QueueInfo]:
        found = counts(connection.asking)
        return [QueueInfo(name, *count) for name, count in found.items() if name != DEAD]

    def sources(self, connection: Connection, queues: Sequence[ServerQueue]) -> Sequence[AllQueues]:
        return [AllQueues(connection.waiting, [one for one in queues if isinstance(one, DisqueQueue)])]
