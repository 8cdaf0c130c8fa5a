"""The broker of a server that reserves messages, consisting of the modules in this package.

Comes from:  the ``open_broker`` of each such transport; users and tools, through ``Broker.admin``.
Goes to:     the sender, the consumer and the letters beside this module; the administration opens a
             connection for each call.
Thread:      any; one connection publishes, in turn, one belongs to the listener; neither crosses a fork.

It supports what the server supports (see ``transports/capabilities.py``).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.interrupts import undisturbed
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe
from qworker.transports.capabilities import capabilities_of
from qworker.transports.held.consumer import MESSAGE, HeldConsumer
from qworker.transports.held.letters import HeldLetters
from qworker.transports.held.port import DEAD, FAILED, PLACES, Server, close, depths
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import Admin, Broker, Kind, QueueInfo, Revocations


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
            infos = {info.queue: info for info in self._server.queue_infos(connection, sorted(names))}
        dead = Counter(letter.queue for letter in self.dead(None, sys.maxsize))
        found = [
            infos.get(name, QueueInfo(name))._replace(dead=dead[name])
            for name in sorted({*names, *infos, *dead})
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


_brokers = forgetful()


class HeldBroker(Broker):
    """sender, consumer, admin: of one server. Connects on first use."""

    sender: HeldSender
    consumer: HeldConsumer
    admin: HeldAdmin
    letters: Mapping[Kind, HeldLetters]
    missing = None

    def __init__(self, url: str, server: Server, known: Sequence[str], eta_limit: int, clock: Clock) -> None:
        wakeup = WakeupPipe()
        sender = HeldSender(server, clock, partial(wakeup.wake, MESSAGE))
        consumer = HeldConsumer(server, sender, wakeup, clock, eta_limit)
        super().__init__(
            url,
            sender,
            consumer,
            HeldAdmin(server, sender, known),
            lacks=capabilities_of(url).lacks,
            letters={
                kind: HeldLetters(server, sender, kind)
                for kind, queue in PLACES.items()
                if queue in (DEAD, *server.letters)
            },
            revocations=Revocations(sender, consumer) if server.spreads_revocations else None,
            presence=None,
            peeking=None,
            delayed=None,
            stored_results=None,
            by_queue=consumer,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        self.sender.after_fork()
        self.consumer.after_fork()
        for letters in self.letters.values():
            letters.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self.sender.close()
            self.consumer.close()


def held_broker(
    url: str,
    server: Server,
    *,
    known: Sequence[str] = (),
    eta_limit: int = 1000,
    clock: Clock = SYSTEM_CLOCK,
) -> HeldBroker:
    """Return the broker at *url*, which is *server*. known: queues to be listed. eta_limit: how many delayed
    messages a worker holds."""
    return HeldBroker(url, server, known, eta_limit, clock)
