"""Results on their way to the queues of those who called.

Comes from:  ``rpc.py`` in a worker.
Goes to:     the broker, by ``rpc_connection.py``.
Thread:      any; each has a connection of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from qworker.backends.rpc_connection import Connector, let_go
from qworker.errors import BackendError

_TRANSIENT = 1


class Reply(NamedTuple):
    """queue: what the call named in ``reply_to``. correlation: its correlation id."""

    queue: str
    correlation: str
    body: bytes


class ReplySender:
    """content: the type and the encoding that all bodies have."""

    def __init__(self, connector: Connector, content: tuple[str, str]) -> None:
        self._connector = connector
        self._content = content
        self._mine = threading.local()  # pid, connection and producer of each thread

    def send(self, replies: Iterable[Reply]) -> None:
        """Send them in their order. Raises BackendError: some may have been sent."""
        content_type, content_encoding = self._content
        with self._producer() as producer:
            for reply in replies:
                producer.publish(
                    reply.body,
                    exchange="",
                    routing_key=reply.queue,
                    correlation_id=reply.correlation,
                    content_type=content_type,
                    content_encoding=content_encoding,
                    delivery_mode=_TRANSIENT,
                    retry=False,
                )

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """The producer of this thread; errors of the broker are BackendError, and end its connection."""
        mine = self._mine
        if getattr(mine, "pid", None) != os.getpid():
            mine.pid, mine.connection = os.getpid(), None
        try:
            if mine.connection is None:
                mine.connection = self._connector.connect()
                mine.producer = mine.connection.Producer(auto_declare=False)
            yield mine.producer
        except self._connector.broken as error:
            let_go(mine.connection)
            mine.connection = None
            raise BackendError(f"{self._connector.safe_url}: {error}") from error

    def close(self) -> None:
        """Close the connection of this thread. May be called twice."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None and self._mine.pid == os.getpid():
            let_go(connection)
            self._mine.connection = None
