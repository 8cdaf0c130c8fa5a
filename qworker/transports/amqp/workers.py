"""Live workers in RabbitMQ: their states are in a stream, and their queues show whether they live.

Comes from:  the listener, which announces its worker every few seconds; ``broker.py``, which reads all.
Goes to:     the stream ``qworker.workers``, and an exclusive, always empty queue for each worker.
Thread:      PresencePublisher: the listener's; listed(): any.

RabbitMQ does not list its consumers. But it deletes an exclusive queue with the connection that created it,
the one that leases the worker's messages. So a worker in the stream is alive while its queue exists.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from amqp.exceptions import ChannelError, NotFound, ResourceLocked

from qworker.errors import BrokerUnavailable, ConfigurationError, QWorkerError
from qworker.naming import task_id
from qworker.transports.amqp.codec import Delivery, ack_frame, content_header
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.outgoing import Outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import WORKERS, Queues
from qworker.transports.amqp.server import Server
from qworker.transports.presence import Presence, from_text

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
"""How often a worker announces itself: rarely enough for the server."""
QUIET_SECONDS = 60.0
"""Pause after a failure: a server that accepts no messages, as in a memory alarm, delays the listener each
time."""
LOOK_BACK = "180s"
"""How far back the stream is read: longer than any worker is silent."""
PREFETCH = 500


def _send(publisher: Publisher, server: Server, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    header = content_header("{}", None, len(body), task_id())
    if not publisher.is_taken():
        raise BrokerUnavailable("RabbitMQ accepts no messages now")
    publisher.send([Outgoing(server.queues.prefix + WORKERS, header, body)], server.timeout)


class PresencePublisher:
    """The status of this process's worker. A server without streams keeps none, which is logged; the worker
    continues."""

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self._record: dict[str, Any] | None = None
        self._due = self._quiet_until = 0.0
        self.text = ""
        """The latest status text, sent with the next announcement."""

    def open(self, link: Link, name: str, queues: Sequence[str], concurrency: int) -> None:
        """Announce the worker, which lives as long as *link*. Raises NotServed while the server does not
        serve the stream of workers: then it may be opened later."""
        own = f"qworker.worker.{task_id()}"
        self._record, self._quiet_until = None, 0.0
        try:
            if self._server.queues.look(link, WORKERS) is None:
                self._server.queues.declare(link, WORKERS)
            channel = link.channel()
            link.call(channel.queue_declare, self._server.queues.prefix + own, exclusive=True)
            link.call(channel.close)
        except (ConfigurationError, ChannelError) as error:
            logger.warning("`qworker workers` will not show this worker: %s", error)
            return
        self._record = {
            "queue": own,
            "name": name,
            "pid": os.getpid(),
            "queues": list(queues),
            "concurrency": concurrency,
            "started": self._server.clock.now(),
        }
        self.announce()

    def announce(self) -> None:
        """Announce it again. Never raises: it will be announced another time."""
        now = time.monotonic()
        self._due = now + EVERY_SECONDS
        if self._record is not None and now >= self._quiet_until:
            try:
                _send(self._publisher, self._server, {**self._record, "told": self.text})
            except QWorkerError as error:
                self._quiet_until = time.monotonic() + QUIET_SECONDS
                logger.debug("this worker could not be announced: %s", error)

    def announce_if_due(self) -> None:
        """Announce it again, if that is due."""
        if time.monotonic() >= self._due:
            self.announce()


def listed(server: Server, publisher: Publisher) -> list[Presence]:
    """Return the live workers, as last announced. Raises BrokerUnavailable."""
    link = server.connect()
    try:
        if server.queues.look(link, WORKERS) is None:
            return []
        announced = _announced(link, server, publisher)
        # A consumer without slots is not a worker, but a tool that moves messages.
        workers = {queue: worker for queue, worker in announced.items() if worker.concurrency > 0}
        return [worker for queue, worker in workers.items() if _is_there(link, server.queues, queue)]
    except ChannelError as error:
        raise BrokerUnavailable(
            f"RabbitMQ at {link.address.shown} does not list its workers: {error}"
        ) from error
    finally:
        link.close()


def _announced(link: Link, server: Server, publisher: Publisher) -> dict[str, Presence]:
    """Return the latest announcement of each worker in the stream, by its queue."""
    found: dict[str, Presence] = {}
    marker = task_id()
    is_read = False
    channel = link.channel()

    def read(message: Delivery) -> None:
        nonlocal is_read
        link.write(ack_frame(channel.channel_id, message.number, False))
        try:
            value = json.loads(message.body)
            is_read = is_read or value.get("marker") == marker
            if "queue" in value:
                found[value["queue"]] = _presence(value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # from another program

    link.on_message = read
    link.call(channel.basic_qos, 0, PREFETCH, False)
    link.call(
        channel.basic_consume,
        server.queues.prefix + WORKERS,
        arguments={"x-stream-offset": LOOK_BACK},
    )
    # The server does not report the length of a stream: read until our own marker arrives.
    _send(publisher, server, {"marker": marker})
    deadline = time.monotonic() + server.timeout
    while not is_read:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BrokerUnavailable(
                f"RabbitMQ at {link.address.shown} has not listed its workers within {server.timeout:g} s"
            )
        link.read(left)
    return found


def _presence(value: dict[str, Any]) -> Presence:
    record = Presence(
        str(value["name"]),
        int(value["pid"]),
        tuple(map(str, value["queues"])),
        int(value["concurrency"]),
        float(value["started"]),
    )
    return from_text(str(value["told"]), record)


def _is_there(link: Link, queues: Queues, queue: str) -> bool:
    """Return whether another worker's exclusive *queue* exists."""
    channel = link.channel()
    try:
        link.call(channel.queue_declare, queues.prefix + queue, passive=True)
    except NotFound:
        return False
    except ResourceLocked:
        return True
    link.call(channel.close)
    return True
