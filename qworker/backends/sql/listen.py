"""ListenConnection: a connection on which PostgreSQL announces results, using psycopg or psycopg2.

Comes from:  ``backend.py``, which has sent LISTEN on the connection.
Goes to:     the ResultWatcher.
Thread:      the leader.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from qworker.transports.sql.link import detach_socket
from qworker.transports.sql.result_upserts import LOOK

DRIVERS = ("psycopg", "psycopg2")
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class ListenConnection:
    """A Source. connection: the driver's. close: closes it."""

    def __init__(self, connection: Any, close: Callable[[], None]) -> None:
        self._connection = connection
        self._close = close
        with suppress(OSError):  # a UNIX socket
            _keep_alive(connection.fileno())

    def fileno(self) -> int:
        return int(self._connection.fileno())

    def subscribe(self, ids: Collection[str]) -> None:
        """Do nothing, because the server announces all tasks."""

    def announced(self) -> Collection[str] | None:
        announced = [task_id for payload in self._payloads() for task_id in payload.split("\n")]
        return None if LOOK in announced else announced

    def _payloads(self) -> list[str]:
        if hasattr(self._connection, "pgconn"):
            server = self._connection.pgconn
            server.consume_input()
            payloads = []
            while (notification := server.notifies()) is not None:
                payloads.append(notification.extra.decode("utf-8", "replace"))
            return payloads
        self._connection.poll()
        payloads = [notification.payload for notification in self._connection.notifies]
        self._connection.notifies.clear()
        return payloads

    def close(self) -> None:
        self._close()

    def abandon(self) -> None:
        with suppress(Exception):  # it may be closed already
            detach_socket(self.fileno())


def _keep_alive(file: int) -> None:
    """Enable TCP keepalive, because this connection only receives."""
    with socket.socket(fileno=os.dup(file)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
