"""RabbitMQ as a place for the contract suite: one prefix of queue names for each directory.

Comes from:  lease_places.
Goes to:     the RabbitMQ server of the test run.

RabbitMQ pushes messages to consumers, so a message that was just published may be in transit. The suite
expects synchronous brokers; here lease() waits until no more messages arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qworker.errors import BrokerUnavailable
from qworker.testing.contract import Assumption, Place
from qworker.transports.amqp.broker import CAPABILITIES, AMQPBroker
from qworker.transports.amqp.consumer import AMQPConsumer
from qworker.transports.amqp.inbox import MOST
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.queues import OURS, Queues
from qworker.transports.lease import MAX_LEASE_BYTES, Broker, Claim, Leased, Revocation
from tests.servers import require

QUIET = 0.05
"""Seconds without a message after which none is assumed to be in transit."""


class PatientConsumer(AMQPConsumer):
    """Reads all messages in transit before it returns."""

    def _settle_down(self) -> None:
        while self._subscription is not None and self._subscription.link.alive:
            try:
                if not self._subscription.link.read(QUIET):
                    return
            except BrokerUnavailable:
                return

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        assert self._subscription is not None
        self._subscription.inbox.prefetch.ask(MOST)  # as a worker of many short tasks
        self._subscription.resize()
        return generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        taken: list[Leased] = []
        while True:
            self._settle_down()
            claim = super().lease(queues, limit - len(taken), delayed_limit, eta_window)
            taken += claim.messages
            size = sum(len(each.body) for each in taken)
            if not claim.messages or len(taken) >= limit or size >= MAX_LEASE_BYTES:
                return claim._replace(messages=taken)

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._settle_down()
        return super().revoked_since(cursor)


class PatientBroker(AMQPBroker):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.consumer = consumer = PatientConsumer(self.server, self._publisher)
        self.revocations = self.revocations and replace(self.revocations, consumer=consumer)
        self.presence = self.presence and replace(self.presence, consumer=consumer)


class AMQPPlace(Place):
    """TEST_CLOCK: delays run on the server's clock; tests/integration/test_amqp.py waits for them.
    UPTIME, RECLAIMING: the lease is the connection, and the server requeues its messages without a notice.
    UNMARKED: every requeued message is marked as redelivered. ANY_QUEUE: a consumer reads the queues that it
    registered for. ON_DEMAND: the server pushes each message to one consumer, up to the prefetch limit, and
    notifies only that one. TEXT: headers are an AMQP table. FLUSHED: delayed messages cannot be moved early.
    """

    lacks = CAPABILITIES.lacks | {
        Assumption.ANY_QUEUE,
        Assumption.FLUSHED,
        Assumption.LEASE_SECONDS,
        Assumption.ON_DEMAND,
        Assumption.RECLAIMING,
        Assumption.TEST_CLOCK,
        Assumption.TEXT,
        Assumption.UNMARKED,
        Assumption.UPTIME,
    }
    cannot = {
        **dict.fromkeys(
            ("test_delayed_messages_do_not_block_others", "test_purge_keeps_leased_messages"),
            "it moves the test clock, and RabbitMQ uses its own",
        ),
        "test_sweep_deletes_old_dead_letters": "the server deletes them",
        "test_revocations_expire": "the stream deletes them, by its own clock",
    }

    examples = 20

    def __init__(self, directory: Path) -> None:
        self.url = require("rabbitmq")
        prefix = f"test.{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}."
        self.queues = Queues(prefix=prefix, max_priority=9)

    def open(self, **options: Any) -> Broker:
        options.pop("lease_seconds", None)
        options.pop("uptime", None)
        options.pop("revoke_expires", None)
        return PatientBroker(self.url, queues=self.queues, **options)

    def count(self) -> int:
        link = Link(address_of(self.url), 5.0)
        try:
            return sum(self.queues.look(link, queue) or 0 for queue in "qrabc")
        finally:
            link.close()

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        link = Link(address_of(self.url), 5.0)
        try:
            channel = link.channel()
            for queue in (*"qrabc", *OURS):
                link.call(channel.queue_delete, self.queues.prefix + queue)
        finally:
            link.close()
