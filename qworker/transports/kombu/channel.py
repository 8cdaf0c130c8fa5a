"""Our transport for kombu: what else speaks kombu (Celery above all) shares the embedded broker with qworker.

Comes from:  ``kombu.Connection("sqlite:///path")``, once ``qworker.transports.register()`` was called.
Goes to:     ``SQLiteBroker``, one for each connection, in the rows that qworker itself reads and writes.
Thread:      as kombu has it: a channel belongs to one thread, but may be acked to from any.

What a consumer was given is a lease: it comes back when it is rejected with requeue, when the channel closes,
and at once when the process dies; never because its work takes long. A message refused for good becomes a
dead letter. Priority 9 is the most urgent. A task whose ETA says its time zone waits in the store until it is
due; any other ETA is left to the consumer. Queues that are exclusive or auto-deleted go with the connection
that declared them.
"""

from __future__ import annotations

import logging
import math
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from queue import Empty
from typing import Any

from kombu.transport import virtual as _virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from qworker.errors import BrokerUnavailable, InvalidTaskMessage, LeaseLost, TransportError
from qworker.message.kombu_envelope import from_kombu, to_kombu
from qworker.message.reading import EncodedMessage
from qworker.transports.lease import Ack, DeadLetter, Envelope, Leased, Release, Settlement
from qworker.transports.sqlite.bindings import FOREVER, Binding
from qworker.transports.sqlite.broker import SQLiteBroker

virtual: Any = _virtual  # its types are those of some attributes, and of no method

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 1.0
SWEEP_SECONDS = 60.0
DEAD_LIMITS = (604800.0, 10_000)
"""For how many seconds, and how many dead letters are kept where no qworker worker says otherwise."""
PUBLISH_SECONDS = 10.0
REFUSED = "rejected by its consumer"


class QoS(virtual.QoS):  # type: ignore[misc]
    """What this channel's consumers were given and have not settled: leases, by delivery tag."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, Ack(int(delivery_tag)))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        tag = int(delivery_tag)
        self._settle(delivery_tag, Release(tag, redelivered=True) if requeue else DeadLetter(tag, REFUSED))

    def _settle(self, delivery_tag: str, settlement: Settlement) -> None:
        self.channel.settle([settlement])
        self._quick_ack(delivery_tag)
        if self.prefetch_count:
            self.channel.store.consumer.wake()  # there may be room for another now

    def restore_unacked(self) -> list[Any]:
        self._flush()
        self.channel.settle([Release(int(tag), redelivered=True) for tag in self._delivered])
        self._delivered.clear()
        return []


class Channel(virtual.Channel):  # type: ignore[misc]
    """One consumer's or producer's view of the store."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None  # the store keeps bytes

    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.store = connection.store
        self._owned: set[str] = set()
        """Queues that go when we do."""
        self._until_cancelled: set[str] = set()
        """Those of them that go with their last consumer."""

    # -- queues and bindings --

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        ttl = (arguments or {}).get("x-message-ttl")
        owner = FOREVER
        if auto_delete or exclusive:
            owner = self.connection.registered()
            self._owned.add(queue)
            if auto_delete:
                self._until_cancelled.add(queue)
        self.store.bindings.declare_queue(queue, owner, ttl / 1000 if ttl else None)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.store.bindings.has_queue(queue)

    def _size(self, queue: str) -> int:
        return self.store.bindings.size(queue)

    def _purge(self, queue: str) -> int:
        return self.store.admin.purge(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.store.bindings.drop_queue(queue)
        self._owned.discard(queue)
        self._until_cancelled.discard(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if not (if_empty and self._size(queue)):
            self._delete(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        key, pattern, bound = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        self.store.bindings.bind(exchange, key or "", pattern or "", bound)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        self.store.bindings.unbind(exchange or "amq.direct", routing_key or "", queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.store.bindings.unbind(exchange)
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[Binding]:
        return self.store.bindings.bindings(exchange)

    # -- publishing --

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Every queue that is bound so gets its copy, or none does."""
        self._inplace_augment_message(message, exchange, routing_key)
        self._push(self._lookup(exchange, routing_key), message, kwargs.get("timeout"))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._push([queue], message, kwargs.get("timeout"))

    def _push(self, queues: Iterable[str], message: dict[str, Any], timeout: float | None) -> None:
        encoded = from_kombu(message)
        priority, due = self._get_message_priority(message), due_time(message.get("headers"))
        envelopes = [Envelope(queue, *encoded, priority, due) for queue in queues if queue]
        if envelopes:
            self.store.sender.push(envelopes, timeout or PUBLISH_SECONDS)

    # -- consuming --

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        self.connection.registered()
        super().basic_consume(
            queue, no_ack, self._forgetting(callback) if no_ack else callback, consumer_tag, **kwargs
        )

    def _forgetting(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def deliver(message: Any) -> Any:
            self.settle([Ack(int(message.delivery_tag))])
            return callback(message)

        return deliver

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._until_cancelled and queue not in self._active_queues:
            self._delete(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle([Ack(int(message.delivery_tag))])
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        return self._take([queue])[0]

    def drain_events(
        self, timeout: float | None = None, callback: Callable[[dict[str, Any], str], None] | None = None
    ) -> None:
        """Deliver one message, if there is one and we may have it; raise Empty if not."""
        queues = self.waiting_for()
        if not queues:
            raise Empty
        (callback or self.connection._deliver)(*self._take(queues))

    def waiting_for(self) -> list[str]:
        """The queues of which we would take a message now."""
        return list(dict.fromkeys(self._active_queues)) if self.qos.can_consume() else []

    def _take(self, queues: Sequence[str]) -> tuple[dict[str, Any], str]:
        self.connection.registered()
        while leased := self.store.consumer.lease(queues, 1).messages:
            try:
                return envelope_of(leased[0]), leased[0].queue
            except InvalidTaskMessage as error:
                logger.error("message %d in %s cannot be read: %s", leased[0].tag, leased[0].queue, error)
                self.settle([DeadLetter(leased[0].tag, f"InvalidTaskMessage: {error}")])
        raise Empty

    def settle(self, settlements: Sequence[Settlement]) -> None:
        if settlements:
            for tag in self.store.consumer.settle(self.connection.generation, settlements):
                logger.warning("message %d was no longer ours to settle: another consumer has it", tag)

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
            for queue in list(self._owned):
                self._delete(queue)
        except TransportError as error:
            logger.warning(
                "the channel closed without its last settlements, which will be made for it: %s", error
            )


class Transport(virtual.Transport):  # type: ignore[misc]
    """One connection: a store, and the lease that its channels share."""

    Channel = Channel
    can_parse_url = True
    driver_type = "sqlite"  # not "sql": to Celery that one cannot carry events
    driver_name = "sqlite3"
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, BrokerUnavailable)
    channel_errors = (*virtual.Transport.channel_errors, LeaseLost)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(("direct", "topic", "fanout")))

    store: SQLiteBroker
    generation = 0

    def driver_version(self) -> str:
        return sqlite3.sqlite_version

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return f"sqlite:///{self.store.path}" if self.client.connected else uri

    def establish_connection(self) -> Transport:
        self.generation = 0
        options = self.client.transport_options
        # Whether a consumer lives is told by its lock alone: it may work for hours without a word to us.
        self.store = SQLiteBroker(
            url_of(self.client), synchronous=options.get("synchronous", "FULL"), lease_seconds=math.inf
        )
        self.store.bindings.has_queue("")  # opens the file: what is wrong with it is said now
        self._housekeep_at = self._sweep_at = 0.0
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        try:
            self.store.close()
        except TransportError as error:
            logger.warning("the connection closed without a word to the broker: %s", error)

    def registered(self) -> int:
        """Our generation; from the first call on we hold leases, and are notified."""
        if not self.generation:
            self.generation = self.store.consumer.register(f"kombu@{socket.gethostname()}", (), 0)
        return self.generation

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message, waiting for it up to *timeout* seconds (None: for ever); then
        socket.timeout."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        self.registered()
        while True:
            self._housekeep()
            try:
                self.cycle.get(self._deliver)
                return
            except Empty:
                rest = end - time.monotonic()
                if rest <= 0:
                    raise TimeoutError from None
            self.store.consumer.wait(min(rest, self._next_due(), HOUSEKEEPING_SECONDS))

    def _next_due(self) -> float:
        queues = [queue for channel in self.channels for queue in channel.waiting_for()]
        due = self.store.admin.next_due(queues)
        return math.inf if due is None else max(0.001, due - time.time())

    def _housekeep(self) -> None:
        """What a qworker worker does for all: put back what the dead held, sweep out what is too old."""
        now = time.monotonic()
        if now >= self._housekeep_at:
            self._housekeep_at = now + HOUSEKEEPING_SECONDS
            for dead in self.store.consumer.reclaim():
                logger.warning("%s is dead: %d of its messages are back", dead.name, dead.returned)
            if now >= self._sweep_at and not self.store.consumer.sweep(*DEAD_LIMITS):
                self._sweep_at = now + SWEEP_SECONDS


def url_of(client: Any) -> str | None:
    """The URL in a kombu connection, which after a failover holds it in pieces."""
    if client.hostname and client.hostname.startswith("sqlite:"):
        return str(client.hostname)
    return None if client.virtual_host in (None, "", "/") else f"sqlite:///{client.virtual_host}"


def due_time(headers: Mapping[str, Any] | None) -> float | None:
    """Epoch seconds of a task's ETA; None when there is none, or only its consumer can tell which time is
    meant."""
    eta = (headers or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None  # whoever consumes it will say what is wrong with it


def envelope_of(leased: Leased) -> dict[str, Any]:
    """A leased message as kombu has it."""
    return to_kombu(
        EncodedMessage(leased.headers, leased.properties, leased.body),
        routing_key=leased.queue,
        priority=leased.priority,
        delivery_tag=str(leased.tag),
        redelivered=leased.redelivered,
    )
