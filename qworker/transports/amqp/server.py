"""Server: settings shared by all parts of a RabbitMQ broker.

Comes from:  ``broker.py``.
Goes to:     the sender, the consumer, the administration: each makes its own links to one server.
Thread:      any; immutable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qworker.clock import Clock
from qworker.transports.amqp.link import Address, Link
from qworker.transports.amqp.queues import Queues


@dataclass(frozen=True)
class Server:
    """The address of RabbitMQ, how queues are created, and timeouts.

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
        """How long a connection may be silent before the other side is considered dead."""
        return self.heartbeat or math.inf

    def connect(self, within: float = math.inf) -> Link:
        """Return a link without heartbeats, for users that cannot send them regularly."""
        return Link(self.address, min(self.connect_timeout, within), 0.0, self.timeout)

    def connect_for_long(self) -> Link:
        """Return a link with heartbeats: call its tick() often."""
        return Link(self.address, self.connect_timeout, self.heartbeat, self.timeout)
