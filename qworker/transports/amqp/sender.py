"""What any thread asks of RabbitMQ: to publish, and to call tasks off.

Comes from:  ``publishing/publisher.py``, ``control/client.py``.
Goes to:     ``publisher.py``, as messages of AMQP.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.naming import task_ids
from qworker.transports.amqp.outgoing import outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.revocations import encode
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Envelope, Sender


class AMQPSender(Sender):
    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        prefix, now = self._server.queues.prefix, self._server.clock.now()
        messages = [
            outgoing(envelope, id, prefix, now) for envelope, id in zip(envelopes, task_ids(), strict=False)
        ]
        self._publisher.send(messages, timeout)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        queues = self._server.queues
        until = self._server.clock.now() + queues.revoke_expires
        orders = [{"id": id, "terminate": terminate, "signal": signal, "expires": until} for id in ids]
        self._publisher.send(encode(orders, queues), self._server.timeout)
