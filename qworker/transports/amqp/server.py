"""Server: what all parts of a RabbitMQ broker share.

Comes from:  ``broker.py``.
Goes to:     the sender, the consumer, the administration: each makes its own links to one server.
Thread:      any; nothing changes here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qworker.clock import Clock
from qworker.transports.amqp.link import Address, Link
from qworker.transports.amqp.queues import Queues


@dataclass(frozen=True)
class Server:
    """Where RabbitMQ is, how queues are made there, and how long is waited for it.

    connect_timeout, timeout: seconds for connecting and for each answer. heartbeat: seconds, 0: none.
    """

    address: Address
    queues: Queues
    clock: Clock
    connect_timeout: float
    timeout: float
    heartbeat: float

    @property
    def silent_seconds(self) -> float:
        """How long a connection may be silent before the other side is taken for dead."""
        return self.heartbeat or math.inf

    def connect(self, within: float = math.inf) -> Link:
        """A link without heartbeats, for who is not there regularly to send them."""
        return Link(self.address, min(self.connect_timeout, within), 0.0, self.timeout)

    def connect_for_long(self) -> Link:
        """A link with heartbeats: call its tick() often."""
        return Link(self.address, self.connect_timeout, self.heartbeat, self.timeout)
