"""Administration of RabbitMQ.

Comes from:  the command line, the worker's status.
Goes to:     the server, over a link for each call.
Thread:      any.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from qworker.transports.amqp.consumer import AMQPConsumer
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import OURS
from qworker.transports.amqp.server import Server
from qworker.transports.amqp.workers import listed
from qworker.transports.lease import Admin, Listing, QueueInfo
from qworker.transports.presence import Presence


class AMQPAdmin(Admin, Listing):
    """publisher, consumer: of this process. RabbitMQ does not list its queues, so those in the settings, and
    those that these two use, are queried."""

    purges_leased = False

    def __init__(self, server: Server, publisher: Publisher, consumer: AMQPConsumer) -> None:
        self._server = server
        self._queues = server.queues
        self._publisher = publisher
        self._consumer = consumer

    def queues(self) -> list[QueueInfo]:
        names = {*self._queues.known(), *self._consumer.queues, *self._publisher.targets()} - OURS
        ready = {info.queue: info.ready for info in self.depths(list(names))}
        dead = Counter(letter.queue for letter in self.dead(None, sys.maxsize))
        found = [QueueInfo(name, ready.get(name, 0), dead=dead[name]) for name in {*ready, *dead}]
        return sorted(info for info in found if info.ready or info.dead)

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        link = self._server.connect()
        try:
            return [QueueInfo(name, self._queues.look(link, name) or 0) for name in queues]
        finally:
            link.close()

    def purge(self, queue: str) -> int:
        link = self._server.connect()
        try:
            if self._queues.look(link, queue) is None:
                return 0
            channel = link.channel()
            return int(link.call(channel.queue_purge, self._queues.prefix + queue) or 0)
        finally:
            link.close()

    def workers(self) -> list[Presence]:
        return sorted(listed(self._server, self._publisher), key=lambda worker: worker.name)
