"""A kombu channel on one of our brokers: it declares queues, publishes, and consumes.

Comes from:  kombu, and so Celery.
Goes to:     ``Broker.sender`` in the caller's thread; the consumer thread, for everything about leases.
Thread:      as in kombu: a channel belongs to one thread, but any may ack.

A delivered message is a lease: it goes back when it is rejected with requeue, when the channel closes, and
when the process dies; never because its work takes long. A message rejected for good becomes a dead letter.
Priority 9 is the most urgent. A task whose ETA has a time zone waits in the broker until it is due; any other
ETA is left to the consumer. An exclusive queue is deleted with the connection that declared it, and an
auto-delete queue with its last consumer; where that cannot be determined, it stays.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from typing import TYPE_CHECKING, Any, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu.transport import virtual as _virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from qworker.errors import LeaseLost, TransportError
from qworker.transports.as_kombu.envelopes import due_time, encoded_of
from qworker.transports.as_kombu.exchanges import EVERYTHING, Binding, matching
from qworker.transports.lease import Ack, DeadLetter, Envelope, Release, Settlement

if TYPE_CHECKING:
    from qworker.transports.as_kombu.consumer_thread import ConsumerThread
    from qworker.transports.as_kombu.exchanges import Exchanges
    from qworker.transports.lease import Broker

virtual: Any = _virtual  # only some attributes are typed, and no methods

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 10.0
AHEAD = 100
"""Messages fetched ahead, without a prefetch count, from queues that nobody else can use."""
REFUSED = "rejected by its consumer"


class Connection(Protocol):
    """What a channel needs of its connection, which is the Transport."""

    broker: Broker
    exchanges: Exchanges
    consumer_thread: ConsumerThread
    _callbacks: dict[str, Callable[..., Any]]


class QoS(virtual.QoS):  # type: ignore[misc]
    """The unsettled deliveries of this channel: leases, by delivery tag."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, Ack(int(delivery_tag)))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        tag = int(delivery_tag)
        back = Release(tag, requeued=True, redelivered=True)
        self._settle(delivery_tag, back if requeue else DeadLetter(tag, REFUSED))

    def _settle(self, delivery_tag: str, settlement: Settlement) -> None:
        self._quick_ack(delivery_tag)
        self.channel.settle(settlement)

    def up_to(self, delivery_tag: str) -> list[str]:
        """Return unsettled deliveries up to *delivery_tag*."""
        tags = list(self._delivered)
        place = tags.index(delivery_tag) if delivery_tag in tags else -1
        return [tag for tag in tags[: place + 1] if tag not in self._dirty]

    def restore_unacked(self) -> list[Any]:
        self._flush()
        for delivery_tag in list(self._delivered):
            try:
                self.channel.settle(Release(int(delivery_tag), redelivered=True))
            except LeaseLost:
                break  # all of them were returned to their queues
        self._delivered.clear()
        return []


class Channel(virtual.Channel):  # type: ignore[misc]
    """One consumer's or producer's view of the broker."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None  # brokers store bytes

    connection: Connection

    def __init__(self, connection: Connection, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._broker = connection.broker
        self._exchanges = connection.exchanges
        self._consumer_thread = connection.consumer_thread
        self._shared_state = connection.consumer_thread.shared_state
        self._inbox = self._shared_state.open()
        self._gone: set[str] = set()
        """Deleted queues of which we may hold messages."""

    # -- queues and bindings --

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Messages are only counted if requested."""
        if passive:
            return super().queue_declare(queue, passive, **kwargs)
        queue = queue or f"amq.gen-{uuid.uuid4()}"
        self._new_queue(queue, **kwargs)
        return queue_declare_ok_t(queue, 0, 0)

    def _new_queue(
        self, queue: str, auto_delete: bool = False, exclusive: bool = False, **kwargs: Any
    ) -> None:
        if exclusive:
            self._consumer_thread.start()  # it keeps the queue alive
        if auto_delete and (exclusive or self._exchanges.shared):
            expires = (kwargs.get("arguments") or {}).get("x-expires")
            self._exchanges.declare_until_left(queue, expires and expires / 1000, exclusive)
        else:
            self._exchanges.declare(queue, exclusive)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        if not self._exchanges.shared or self._exchanges.has(queue):
            return True
        (info,) = self._broker.admin.depths([queue])
        return bool(info.ready or info.delayed or info.leased)

    def _size(self, queue: str) -> int:
        return self._consumer_thread.size(queue)

    def _purge(self, queue: str) -> int:
        return self._consumer_thread.purge(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._exchanges.forget(queue)
        self._purge(queue)

    def _leave(self, queue: str) -> None:
        """Delete an auto-delete queue after its last consumer, unless others use it."""
        if self._shared_state.is_consumed(queue):
            return
        self._shared_state.ask(lambda: None)  # by then, its arrived messages were returned
        if self._exchanges.leave(queue):
            self._delete(queue)
            self._gone.add(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete *queue*. if_empty: only if no messages wait in it, not even delayed ones."""
        if if_empty:
            (info,) = self._broker.admin.depths([queue])
            if info.ready or info.delayed or self._shared_state.arrived(queue):
                return
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
        kind = self.typeof(exchange)
        key, pattern, bound = kind.prepare_bind(queue, exchange, routing_key, arguments)
        if kind.type == "fanout":
            pattern = EVERYTHING
        self._exchanges.bind(exchange, key or "", pattern or "", bound)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        self._exchanges.unbind(exchange or "amq.direct", routing_key or "", queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self._exchanges.unbind(exchange)
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[Binding]:
        return self._exchanges.table(exchange)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues for a published message."""
        if not exchange:
            return [routing_key]
        if exchange not in self.state.exchanges:
            return self._lookup_undeclared(exchange, routing_key)
        kind = self.typeof(exchange)
        # Events come by the hundred, by topic; fanout messages are rare, and use the current table.
        table = self._exchanges.table_now if kind.type == "fanout" else self._exchanges.table
        found = kind.lookup(table(exchange), exchange, routing_key, default)
        if not found:  # a binding may be new
            found = kind.lookup(self._exchanges.table_now(exchange), exchange, routing_key, default)
        if not found and not self._exchanges.shared and kind.type == "direct":
            return [routing_key]  # bindings are unknown here: better there than nowhere
        return list(dict.fromkeys(found))

    def _lookup_undeclared(self, exchange: str, routing_key: str) -> list[str]:
        """Like _lookup(), for an exchange that was declared elsewhere: its bindings show its kind."""
        found = matching(self._exchanges.table(exchange), routing_key)
        if not found or any(pattern == EVERYTHING for _, pattern, _ in self._exchanges.table(exchange)):
            found = matching(self._exchanges.table_now(exchange), routing_key)
        return found if found or self._exchanges.shared else [routing_key]

    # -- publishing --

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish to all matching queues, or to none."""
        self._inplace_augment_message(message, exchange, routing_key)
        self._push(self._lookup(exchange, routing_key), message, kwargs.get("timeout"))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._push([queue], message, kwargs.get("timeout"))

    def _push(self, queues: Iterable[str], message: dict[str, Any], timeout: float | None) -> None:
        encoded = encoded_of(message)
        priority, due = self._get_message_priority(message), due_time(message.get("headers"))
        envelopes = [Envelope(queue, *encoded, priority, due) for queue in queues if queue]
        if envelopes:
            self._broker.sender.push(envelopes, timeout or PUBLISH_SECONDS)

    # -- consuming --

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._shared_state.change(self._inbox, prefetch=prefetch_count)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        self._consumer_thread.start()
        self._exchanges.consume(queue)
        super().basic_consume(
            queue, no_ack, self._forgetting(callback) if no_ack else callback, consumer_tag, **kwargs
        )
        self._inbox.callbacks[queue] = self.connection._callbacks[queue]
        self._changed_queues()

    def _changed_queues(self) -> None:
        alone = set(self._exchanges.ours()).issuperset(self._active_queues)
        self._shared_state.change(self._inbox, self._active_queues, ahead=AHEAD if alone else 1)

    def _forgetting(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def deliver(message: Any) -> Any:
            self.settle(Ack(int(message.delivery_tag)))
            return callback(message)

        return deliver

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._changed_queues()
        if queue is None or queue in self._active_queues:
            return
        self._inbox.callbacks.pop(queue, None)
        self._consumer_thread.leave(queue)
        if self._exchanges.goes_when_left(queue):
            self._leave(queue)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        self._consumer_thread.start()
        delivery = self._consumer_thread.take_one(queue, self._inbox)
        if delivery is None:
            raise Empty
        return delivery.envelope

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle(Ack(int(message.delivery_tag)))
        return message

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """multiple: including all earlier deliveries."""
        for tag in self.qos.up_to(delivery_tag) if multiple else [delivery_tag]:
            self.qos.ack(tag)

    def settle(self, settlement: Settlement) -> None:
        """Raises LeaseLost if the message was returned to its queue."""
        self._shared_state.settle(self._inbox, [settlement])

    def close(self) -> None:
        if self.closed:
            return
        try:
            try:
                for consumer_tag in list(self._consumers):
                    self.basic_cancel(consumer_tag)
            finally:  # whatever the broker answers, our messages go back
                self._consumers.clear()
                super().close()
                self._shared_state.close(self._inbox)
            if self._consumer_thread.is_alive():
                for queue in self._gone:
                    if not self._exchanges.has(queue):
                        self._purge(queue)
        except TransportError as error:
            logger.warning("the channel closed before its last settlements, which are sent later: %s", error)
