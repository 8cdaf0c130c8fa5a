"""Live workers in RabbitMQ: what they tell goes to a stream, and whether they live is seen by their queues.

Comes from:  the listener, which announces its worker every few seconds; ``admin.py``, which asks for all.
Goes to:     the stream ``qworker.workers``, and an exclusive queue for each worker, which is always empty.
Thread:      Announcement the listener's; listed() any.

RabbitMQ has no list of who consumes. But it deletes an exclusive queue with the connection that made it,
which is the one that the worker's messages are on lease by. So who stands in the stream lives as long as his
queue is there.
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
"""How often a worker announces itself, which is more seldom than a server minds."""
QUIET_SECONDS = 60.0
"""For how long it does not after that has failed: a server that takes no messages, as in a memory alarm,
keeps the listener waiting each time."""
LOOK_BACK = "180s"
"""From when on the stream is read: longer than any worker is quiet."""
PREFETCH = 500


def _send(publisher: Publisher, server: Server, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    header = content_header("{}", None, len(body), task_id())
    if not publisher.is_taken():
        raise BrokerUnavailable("RabbitMQ takes no messages now")
    publisher.send([Outgoing(server.queues.prefix + WORKERS, header, body)], server.timeout)


class Announcement:
    """What the worker of this process says of itself. A server without streams takes nothing, and a line in
    the log says so; the worker goes on."""

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher
        self._record: dict[str, Any] | None = None
        self._due = self._quiet_until = 0.0
        self.text = ""
        """What the worker has told last; it goes along with the next announcement."""

    def open(self, link: Link, name: str, queues: Sequence[str], concurrency: int) -> None:
        """Announce the worker, which lives as long as *link* does. Raises NotServed while the server has the
        stream of workers and does not serve it: then it may be opened later."""
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
        self.tell()

    def tell(self) -> None:
        """Announce it anew. Never raises: it will be told another time."""
        now = time.monotonic()
        self._due = now + EVERY_SECONDS
        if self._record is not None and now >= self._quiet_until:
            try:
                _send(self._publisher, self._server, {**self._record, "told": self.text})
            except QWorkerError as error:
                self._quiet_until = time.monotonic() + QUIET_SECONDS
                logger.debug("this worker could not be announced: %s", error)

    def tell_in_time(self) -> None:
        """Announce it anew, if that is due."""
        if time.monotonic() >= self._due:
            self.tell()


def listed(server: Server, publisher: Publisher) -> list[Presence]:
    """The workers that live, as they were announced last. Raises BrokerUnavailable."""
    link = server.connect()
    try:
        if server.queues.look(link, WORKERS) is None:
            return []
        announced = _announced(link, server, publisher)
        # Who has no room for tasks is none, but a tool that moves messages.
        workers = {queue: worker for queue, worker in announced.items() if worker.concurrency > 0}
        return [worker for queue, worker in workers.items() if _is_there(link, server.queues, queue)]
    except ChannelError as error:
        raise BrokerUnavailable(
            f"RabbitMQ at {link.address.shown} does not show its workers: {error}"
        ) from error
    finally:
        link.close()


def _announced(link: Link, server: Server, publisher: Publisher) -> dict[str, Presence]:
    """What stands in the stream of each worker, by its queue."""
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
            pass  # a stranger's

    link.on_message = read
    link.call(channel.basic_qos, 0, PREFETCH, False)
    link.call(
        channel.basic_consume,
        server.queues.prefix + WORKERS,
        arguments={"x-stream-offset": LOOK_BACK},
    )
    # The server does not say how long a stream is: read on until our own mark comes along.
    _send(publisher, server, {"marker": marker})
    deadline = time.monotonic() + server.timeout
    while not is_read:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BrokerUnavailable(
                f"RabbitMQ at {link.address.shown} has not shown its workers within {server.timeout:g} s"
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
    """Whether somebody's exclusive *queue* is there."""
    channel = link.channel()
    try:
        link.call(channel.queue_declare, queues.prefix + queue, passive=True)
    except NotFound:
        return False
    except ResourceLocked:
        return True
    link.call(channel.close)
    return True
