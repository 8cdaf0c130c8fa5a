"""Subscription: the consumers of one worker connection, and what arrived over it.

Comes from:  ``consumer.py``, which makes one for each generation.
Goes to:     ``inbox.py``, one delivery at a time; acks and returns to the server.
Thread:      the listener's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count

from qworker.transports.amqp.codec import Delivery, ack_frame, requeue_frame
from qworker.transports.amqp.inbox import Inbox, UnackedMessage
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.revocations import RevokedStream
from qworker.transports.amqp.server import Server

logger = logging.getLogger(__name__)

CHANNEL = 1
"""The first channel of each link: messages arrive on it."""


class Subscription:
    """inbox: where messages go. revoked: where revocations go. Begins to consume *queues* at once.

    Raises like Link.call(), and ConfigurationError for a queue that cannot be created.
    """

    def __init__(
        self, server: Server, link: Link, queues: Sequence[str], inbox: Inbox, revoked: RevokedStream
    ) -> None:
        self.link = link
        self.inbox = inbox
        self.unreported = False
        """Whether a message or a revocation has arrived, or a queue was deleted, and neither a claim nor a
        wait has reported it."""
        self._server = server
        self._names = queues
        self._revoked = revoked
        self._tags = (f"qworker.{number}" for number in count(1))
        self._consumers: dict[str, str] = {}  # consumer tag → queue
        self._deleted: set[str] = set()
        link.on_message = self._arrived
        link.on_cancel = self._cancelled
        channel = link.channel()
        link.call(channel.basic_qos, 0, inbox.prefetch.size, False)
        for queue in queues:
            server.queues.declare(link, queue)
            self._consume(queue)

    def _consume(self, queue: str) -> None:
        tag = next(self._tags)
        self._consumers[tag] = queue
        channel = self.link.connection.channels[CHANNEL]
        self.link.call(channel.basic_consume, self._server.queues.prefix + queue, tag)

    def _arrived(self, message: Delivery) -> None:
        queue = self._consumers.get(message.consumer)
        if queue is not None:
            new = self.inbox.put(queue, message, self._server.clock.now())
        else:
            new = self._revoked.take(message)
        self.unreported = new or self.unreported

    def _cancelled(self, consumer: str) -> None:
        queue = self._consumers.pop(consumer, None)
        if queue is not None:
            self._deleted.add(queue)
            self.unreported = True

    def read(self) -> None:
        """Read arrived messages, as long as there is room, and recreate deleted queues."""
        while self.inbox.roomy() and self.link.read(0):
            pass
        if self.inbox.over:
            self.settle([], [])
        for queue in list(self._deleted):
            logger.warning("queue %s was deleted in RabbitMQ; it is created again", queue)
            self._server.queues.declare(self.link, queue)
            if not self.inbox.prefetch.paused:
                self._consume(queue)
            self._deleted.discard(queue)

    def settle(self, acknowledged: Sequence[UnackedMessage], returned: Sequence[UnackedMessage]) -> None:
        """Settle these messages, and acknowledge settled ones that were delivered again."""
        over, self.inbox.over = self.inbox.over, []
        if over:
            logger.info(
                "%d messages that had ended here were delivered again, and do not run again", len(over)
            )
        frames = [_ack(number, False) for number in over]
        frames += self.inbox.acks(acknowledged, _ack)
        frames += [requeue_frame(CHANNEL, self.inbox.forget(held)) for held in returned]
        if frames:
            self.link.write(b"".join(frames))

    def resize(self) -> list[UnackedMessage]:
        """Restart the consumers with another prefetch, which only applies to new consumers; quorum queues
        have no other way. Messages beyond it go back; return those that the server would drop then."""
        link, prefetch = self.link, self.inbox.prefetch
        channel = link.connection.channels[CHANNEL]
        for tag in list(self._consumers):
            link.call(channel.basic_cancel, tag)
        surplus = self.inbox.surplus()
        self.settle([], [held for held in surplus if not held.expires])
        self._consumers = {}
        if not prefetch.paused:
            link.call(channel.basic_qos, 0, prefetch.size, False)
            for queue in self._names:
                if queue not in self._deleted:
                    self._consume(queue)
        return [held for held in surplus if held.expires]

    def confirm(self) -> None:
        """Return when the server has handled all acks: they have no answer, but a later request has, and the
        server works in order."""
        channel = self.link.connection.channels[CHANNEL]
        self.link.call(channel.basic_qos, 0, self.inbox.prefetch.size, False)


def _ack(number: int, multiple: bool) -> bytes:
    return ack_frame(CHANNEL, number, multiple)
