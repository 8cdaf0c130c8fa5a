"""Administration of a server that reserves messages, and counts delayed and leased ones if it can.

Comes from:  users and tools, through ``Broker.admin``.
Goes to:     ``Server`` and ``ServerQueue``, on a connection for each question; ``letters.py``.
Thread:      any.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qworker.interrupts import undisturbed
from qworker.transports.held.port import DEAD, FAILED, Server, close, depths
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import Admin, QueueInfo


class HeldAdmin(Admin):
    """known: queues to be listed, besides those that *sender* has published to and those that the server
    knows of."""

    def __init__(self, server: Server, sender: HeldSender, known: Sequence[str]) -> None:
        self._server = server
        self._sender = sender
        self._known = frozenset(known)

    @property
    def purges_leased(self) -> bool:
        return self._server.purges_leased

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self._server.connect()
        try:
            with self._server.errors(connection):
                yield connection
        finally:
            close(connection)

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        with self._connected() as connection:
            names = {*self._known, *self._sender.known, *self._server.names(connection)} - {DEAD, FAILED}
            standing = {info.queue: info for info in self._server.standing(connection, sorted(names))}
        dead = Counter(letter.queue for letter in self.dead(None, sys.maxsize))
        found = [
            standing.get(name, QueueInfo(name))._replace(dead=dead[name])
            for name in sorted({*names, *standing, *dead})
        ]
        return [info for info in found if info.ready or info.delayed or info.leased or info.dead]

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._connected() as connection:
            return depths(self._server, connection, queues)

    @undisturbed
    def purge(self, queue: str) -> int:
        with self._connected() as connection:
            return self._server.declare(connection, queue).purge()
