"""RabbitMQ: a Broker whose leases are unacknowledged deliveries.

Comes from:  ``broker_url`` ``amqp://``, ``amqps://`` or ``pyamqp://``.
Goes to:     ``publisher.py`` to publish, ``consumer.py`` to consume, ``dead_letters.py`` to
             administrate.
Thread:      as Broker; one connection publishes, one belongs to the listener; neither crosses a fork.

Messages are Celery's as Celery sends them over AMQP, so its workers and ours may share a queue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.resolved import DEFAULT_SOURCE
from qworker.naming import task_id, task_ids
from qworker.transports.amqp.consumer import Holder
from qworker.transports.amqp.dead_letters import Sweeper, buried, sent_back, shelf
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.outgoing import outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import DEAD, REVOKED, Queues
from qworker.transports.amqp.revocations import encode
from qworker.transports.capabilities import capabilities_of
from qworker.transports.forked import forgetful
from qworker.transports.lease import Dead, Envelope, QueueInfo, Undivided

if TYPE_CHECKING:
    from qworker.conf import Settings

PATIENCE = 10.0
"""Seconds."""

_stores = forgetful()


class AMQPBroker(Holder, Undivided):
    """RabbitMQ at *url*. Connects at the first use, not before.

    queues: how queues are made. confirms: push waits for the server's word. timeout: seconds for connecting;
    a busy server has at least PATIENCE for an answer. heartbeat: seconds after which a silent connection is
    dead. use_ssl: as broker_use_ssl.
    """

    lacks = capabilities_of("amqp://").lacks

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
        self.url = url
        self._queues = queues or Queues()
        self._timeout = max(PATIENCE, timeout)
        self.silent_seconds = (
            heartbeat or math.inf
        )  # it waits for twice that, but for who was silent before, too
        self._clock = clock
        address = address_of(url, use_ssl)

        def connect(beats: float) -> Callable[[float], Link]:
            return lambda patience: Link(address, min(timeout, patience), beats, self._timeout)

        self._connect_plain = connect(0.0)
        self._publisher = Publisher(
            self._connect_plain, self._queues, confirms, clock.now, heartbeat or math.inf
        )
        self._sweeper = Sweeper(self._connect_plain, self._queues)
        super().__init__(connect(heartbeat))
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the parent's connections and leases are not ours."""
        self._publisher.after_fork()
        self._disown()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        prefix, now = self._queues.prefix, self._clock.now()
        messages = [
            outgoing(envelope, id, prefix, now) for envelope, id in zip(envelopes, task_ids(), strict=False)
        ]
        self._publisher.send(messages, timeout)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._clock.now() + self._queues.revoke_expires
        orders = [{"id": id, "terminate": terminate, "signal": signal, "expires": until} for id in ids]
        self._publisher.send(encode(orders, self._queues), self._timeout)

    # -- administration --

    def queues(self) -> list[QueueInfo]:
        names = {*self._queues.known(), *self._consumed, *self._publisher.targets()} - {DEAD, REVOKED}
        ready = {info.queue: info.ready for info in self.depths(list(names))}
        dead = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = [QueueInfo(name, ready.get(name, 0), dead=dead[name]) for name in {*ready, *dead}]
        return sorted(info for info in found if info.ready or info.dead)

    def next_due(self, queues: Sequence[str]) -> float | None:
        """Always None: RabbitMQ does not tell (see ``lacks``)."""
        return None

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        link = self._connect_plain(self._timeout)
        try:
            return [QueueInfo(name, self._queues.look(link, name) or 0) for name in queues]
        finally:
            link.close()

    def purge(self, queue: str) -> int:
        link = self._connect_plain(self._timeout)
        try:
            if self._queues.look(link, queue) is None:
                return 0
            channel = link.channel()
            return int(link.call(channel.queue_purge, self._queues.prefix + queue) or 0)
        finally:
            link.close()

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        with shelf(self._connect_plain, self._queues, self._timeout) as found:
            letters = [letter.dead for letter in found.letters if queue is None or letter.dead.queue == queue]
        letters.reverse()
        letters.sort(key=lambda letter: -letter.died_at)
        return letters[:limit]

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        with shelf(self._connect_plain, self._queues, self._timeout) as found:
            chosen = found.chosen(tags)
            back = [(letter, sent_back(letter, self._queues, found.frame_max)) for letter in chosen]
            self._publisher.send([message for _, message in back if message is not None], self._timeout)
            return found.remove([letter for letter, message in back if message is not None])

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        with shelf(self._connect_plain, self._queues, self._timeout) as found:
            return found.remove(found.chosen(tags))

    def push_dead(self, letters: Sequence[Dead]) -> None:
        self._publisher.send(
            [buried(letter, self._queues, task_id(), 0, {}, self._publisher.frame_max) for letter in letters],
            self._timeout,
        )

    def workers(self) -> list[dict[str, object]]:
        """Always []: RabbitMQ does not tell (see ``lacks``)."""
        return []

    def close(self) -> None:
        try:
            self.deregister()
        finally:
            self._publisher.close()
            self._close_holder()


def open_broker(url: str | None, conf: Settings) -> AMQPBroker:
    """RabbitMQ at *url* with the settings *conf*; it is connected to at the first use."""
    options = conf.broker_transport_options
    # By default queues are made without priorities, as Celery makes them: who asks for some says so.
    given = conf.source("task_queue_max_priority") != DEFAULT_SOURCE
    return AMQPBroker(
        url or "amqp://",
        queues=Queues(
            type=conf.task_default_queue_type,
            max_priority=(conf.task_queue_max_priority or None) if given else None,
            default=conf.task_default_queue,
            declared=conf.task_queues,
            dead_expires=conf.dead_letter_expires,
            revoke_expires=conf.revoke_expires,
            prefix=str(options.get("queue_name_prefix", "")),
        ),
        confirms=bool(options.get("confirm_publish", True)),
        timeout=conf.broker_connection_timeout,
        heartbeat=conf.broker_heartbeat,
        use_ssl=conf.broker_use_ssl,
    )
