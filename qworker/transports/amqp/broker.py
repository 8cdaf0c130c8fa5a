"""RabbitMQ: a Broker whose leases are unacknowledged deliveries.

Comes from:  ``broker_url`` ``amqp://``, ``amqps://`` or ``pyamqp://``.
Goes to:     ``publisher.py`` and ``consumer.py``; the administration has a link for each call.
Thread:      as Broker; one connection publishes, one belongs to the listener; neither is shared across a
         fork.

Messages have Celery's AMQP format, so its workers and ours may share a queue.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.resolved import DEFAULT_SOURCE
from qworker.naming import task_ids
from qworker.process.forked import forgetful
from qworker.transports.amqp.consumer import AMQPConsumer
from qworker.transports.amqp.letters import PLACES, AMQPLetters
from qworker.transports.amqp.link import address_of
from qworker.transports.amqp.outgoing import outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import OURS, Queues
from qworker.transports.amqp.revocations import encode
from qworker.transports.amqp.server import Server
from qworker.transports.amqp.workers import listed
from qworker.transports.capabilities import COUNTS, DELIVERY_COUNT, PEEK, RESULTS, WHOLE_PUSH, Capabilities
from qworker.transports.lease import (
    Admin,
    Broker,
    Envelope,
    Listing,
    QueueInfo,
    Revocations,
    Revoking,
    Sender,
    Workers,
)
from qworker.transports.presence import Presence

if TYPE_CHECKING:
    from qworker.conf import Settings


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


CAPABILITIES = Capabilities(
    "RabbitMQ",
    ("amqp", "amqps", "pyamqp"),
    accepted="confirmed by the server (persistent, and routed to a queue); of many messages sent "
    "together, some may be accepted although an error was raised",
    redelivered="at once, when the worker's connection is lost; if half open, after the heartbeat",
    eta="in separate queues in the server, until it is due (at most 0.2 s early in a worker; RabbitMQ 3.10)",
    priority="0 to 9 in queues declared with `x-max-priority` (set task_queue_max_priority)",
    fanout="the stream `qworker.revoked`, read by all workers, also those started later (RabbitMQ 3.9)",
    dead_letters="the queue `qworker.dead`",
    failed_tasks="the queue `qworker.failed`; sending one again first sends it and then deletes it",
    delivery_count="in a header, for running messages when a process died, or a worker on the same "
    "machine; quorum queues also count every return",
    note="The server closes a consumer that holds a message for longer than its `consumer_timeout` (30 "
    "min): raise it for longer tasks.",
    lacks=frozenset({DELIVERY_COUNT, RESULTS, COUNTS, WHOLE_PUSH, PEEK}),
    in_part={DELIVERY_COUNT: "of processes, and of workers on the same machine"},
)

ANSWER_SECONDS = 10.0
"""Minimum time for an answer of a busy server."""

_brokers = forgetful()


class AMQPBroker(Broker):
    """RabbitMQ at *url*. Connects on first use.

    queues: how queues are created. confirms: push waits for publisher confirms. timeout: seconds for
    connecting.
    heartbeat: seconds after which a silent connection is dead. use_ssl: as broker_use_ssl.
    """

    consumer: AMQPConsumer
    missing = None

    def __init__(
        self,
        url: str,
        *,
        queues: Queues | None = None,
        confirms: bool = True,
        timeout: float = 4.0,
        heartbeat: float = 20.0,
        use_ssl: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.server = server = Server(
            address_of(url, use_ssl),
            queues or Queues(),
            clock,
            connect_timeout=timeout,
            timeout=max(ANSWER_SECONDS, timeout),
            heartbeat=heartbeat,
        )
        self._publisher = Publisher(server, confirms)
        sender = AMQPSender(server, self._publisher)
        consumer = AMQPConsumer(server, self._publisher)
        admin = AMQPAdmin(server, self._publisher, consumer)
        super().__init__(
            url,
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: AMQPLetters(kind, server, self._publisher) for kind in PLACES},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=None,
            delayed=None,
            stored_results=None,
            by_queue=None,
            registry=None,
            lowest_first=False,
            # RabbitMQ waits for twice as long, but the silence may have begun before.
            silent_seconds=server.silent_seconds,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the connections and leases belong to the parent."""
        self._publisher.after_fork()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.close()
        finally:
            self._publisher.close()


def open_broker(url: str | None, conf: Settings) -> AMQPBroker:
    """Return RabbitMQ at *url* with the settings *conf*; it connects on first use."""
    options = conf.broker_transport_options
    # By default queues are created without priorities, as in Celery: priorities must be requested.
    given = conf.source("task_queue_max_priority") != DEFAULT_SOURCE
    return AMQPBroker(
        url or "amqp://",
        queues=Queues(
            type=conf.task_default_queue_type,
            max_priority=(conf.task_queue_max_priority or None) if given else None,
            default=conf.task_default_queue,
            declared=conf.task_queues,
            dead_expires=conf.dead_letter_expires,
            failed_expires=conf.failed_task_expires,
            revoke_expires=conf.revoke_expires,
            prefix=str(options.get("queue_name_prefix", "")),
        ),
        confirms=bool(options.get("confirm_publish", True)),
        timeout=conf.broker_connection_timeout,
        heartbeat=conf.broker_heartbeat,
        use_ssl=conf.broker_use_ssl,
    )


# -- The sender: publishing and revoking, on any thread --


class AMQPSender(Sender, Revoking):
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
