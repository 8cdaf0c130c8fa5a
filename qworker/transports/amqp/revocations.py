"""Revocations in RabbitMQ: a stream that every worker reads from its beginning.

Comes from:  ``broker.py`` (revoke), the server.
Goes to:     the listener, through ``revoked_since``.
Thread:      the listener's; encode() any.

Reading a stream removes nothing, so one queue serves all workers, including those that start later. It keeps
messages for roughly revoke_expires, so each revocation contains its own expiry.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from amqp.exceptions import ChannelError, NotFound

from qworker.errors import ConfigurationError
from qworker.naming import task_id
from qworker.transports.amqp.codec import Delivery, ack_frame, content_header, read_content
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.outgoing import Outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import REVOKED, Queues, not_served
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Revocation

logger = logging.getLogger(__name__)

CONSUMER = "qworker.revoked"
PREFETCH = 500
PAUSE_SECONDS = 0.5
"""If no marker can be sent, the stream counts as read once nothing arrives for so long."""


def encode(values: Sequence[dict[str, Any]], queues: Queues) -> list[Outgoing]:
    """Return the messages for *values*."""
    bodies = [json.dumps(value).encode() for value in values]
    return [
        Outgoing(queues.prefix + REVOKED, content_header("{}", None, len(body), task_id()), body)
        for body in bodies
    ]


class RevokedStream:
    """The contents of the stream.

    last: the number of the latest revocation, counted here, because the offsets of a recreated stream start
    again.
    """

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self.last = 0
        self._known: dict[str, float] = {}
        """Ids of messages that were read → their expiry: over each new link all are read again."""
        self._received: list[tuple[int, float, Revocation]] = []
        self._marker = ""
        self._link: Link | None = None
        self._channel = 0

    def open(self, link: Link) -> None:
        """Read the stream over *link*, and return when all of it was read. Raises NotServed while the server
        does not serve it: then it may be opened later."""
        queues = self._server.queues
        try:
            now = self._server.clock.now()
            self._known = {id: expires for id, expires in self._known.items() if expires > now}
            if queues.look(link, REVOKED) is None:
                queues.declare(link, REVOKED)
            channel = link.channel()
            link.call(channel.basic_qos, 0, PREFETCH, False)
            self._link, self._channel = link, channel.channel_id
            link.call(
                channel.basic_consume,
                queues.prefix + REVOKED,
                CONSUMER,
                arguments={"x-stream-offset": "first"},
            )
        except NotFound as error:  # it existed a moment ago
            raise not_served(link, queues.prefix + REVOKED, error) from None
        except (ConfigurationError, ChannelError) as error:
            logger.warning(
                "this worker does not receive revocations: RabbitMQ has no streams here (%s)", error
            )
            return
        if not self._publisher.is_taken():  # an alarm: the worker still runs tasks
            end = time.monotonic() + self._server.timeout
            while time.monotonic() < end and link.read(PAUSE_SECONDS):
                pass
            return
        # The server does not report the length of a stream: read until our own marker arrives.
        self._marker = task_id()
        self._publisher.send(encode([{"marker": self._marker}], queues), self._server.timeout)
        deadline = time.monotonic() + self._server.timeout
        while self._marker and (left := deadline - time.monotonic()) > 0:
            link.read(left)

    def take(self, message: Delivery) -> bool:
        """Record *message* if it is from the stream; True when it is a new revocation."""
        if message.consumer != CONSUMER or self._link is None:
            return False
        self._link.write(ack_frame(self._channel, message.number, False))
        try:
            value = json.loads(message.body)
            if value.get("marker"):
                if value["marker"] == self._marker:
                    self._marker = ""
                return False
            found = Revocation(str(value["id"]), bool(value["terminate"]), str(value["signal"]))
            expires = float(value["expires"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return False  # from another program
        id = read_content(message).message_id or repr(message.body)
        if id in self._known:
            return False
        self._known[id] = expires
        self.last += 1
        self._received.append((self.last, expires, found))
        return True

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        """See Hearing.revoked_since()."""
        now = self._server.clock.now()
        self._received = [entry for entry in self._received if entry[0] > cursor and entry[1] > now]
        return max(cursor, self.last), [entry[2] for entry in self._received]
