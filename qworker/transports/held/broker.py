"""The broker of a server that hides what it gives out: the sides beside this module, put together.

Comes from:  the ``open_broker`` of each such transport.
Goes to:     the sender, the consumer and the administration beside this module.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.process.wakeup import WakeupPipe
from qworker.transports.held.admin import RemoteAdmin
from qworker.transports.held.consumer import RemoteConsumer
from qworker.transports.held.sender import RemoteSender
from qworker.transports.held.server import RemoteServer
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.consumer import NEWS


def remote_broker(
    url: str,
    server: RemoteServer,
    *,
    known: Sequence[str] = (),
    eta_limit: int = 1000,
    clock: Clock = SYSTEM_CLOCK,
) -> KombuBroker:
    """The broker at *url*, which is *server*. known: queues to be listed. eta_limit: how many messages that
    are not due yet a worker holds."""
    wakeup = WakeupPipe()
    sender = RemoteSender(server, clock, partial(wakeup.wake, NEWS))
    consumer = RemoteConsumer(server, sender, wakeup, clock, eta_limit)
    return KombuBroker(url, sender, consumer, RemoteAdmin(server, sender, known))
