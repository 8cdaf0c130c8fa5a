"""The broker of a server that reserves messages, consisting of the modules in this package.

Comes from:  the ``open_broker`` of each such transport.
Goes to:     the sender, the consumer, the administration and the letters beside this module.
Thread:      any; one connection publishes, in turn, one belongs to the listener; neither crosses a fork.

It supports what the server supports (see ``transports/capabilities.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe
from qworker.transports.capabilities import capabilities_of
from qworker.transports.held.admin import HeldAdmin
from qworker.transports.held.consumer import NEWS, HeldConsumer
from qworker.transports.held.letters import HeldLetters
from qworker.transports.held.port import DEAD, PLACES, Server
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import Broker, Kind, Revocations

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
        sender = HeldSender(server, clock, partial(wakeup.wake, NEWS))
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
