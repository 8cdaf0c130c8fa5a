"""Our transport for kombu: any of our brokers that keeps leases, with ``qworker+`` before its URL.

Comes from:  ``kombu.Connection("qworker+postgresql://…")``; Celery's ``broker_url``.
Goes to:     a Broker for each connection, in the same queues that qworker uses.
Thread:      as in kombu; the courier's own for consuming.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import kombu
from kombu.transport import virtual as _virtual

from qworker.conf.resolved import Settings
from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, LeaseLost, TransportError
from qworker.process.wakeup import WakeupPipe
from qworker.transports.as_kombu.channel import Channel
from qworker.transports.as_kombu.courier import Courier, Terms
from qworker.transports.as_kombu.desk import Delivery
from qworker.transports.as_kombu.exchanges import Exchanges
from qworker.transports.as_kombu.options import max_deliveries_of, part, settings_of, url_of, whole
from qworker.transports.lease import Broker, Release

virtual: Any = _virtual  # only some attributes are typed, and no methods

logger = logging.getLogger(__name__)


class Transport(virtual.Transport):  # type: ignore[misc]
    """One connection: a broker, and the lease shared by its channels."""

    Channel = Channel
    can_parse_url = True
    driver_name = "qworker"
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, BrokerUnavailable, LeaseLost)
    channel_errors = virtual.Transport.channel_errors

    open_broker: Callable[[str, Settings], Broker]
    """Set by ``qworker.transports.register()``, which knows all brokers."""
    broker: Broker
    exchanges: Exchanges
    courier: Courier

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        part(client)
        self._loop: Any = None
        self._pipe = WakeupPipe()
        self._open()
        kinds = ("direct", "topic", "fanout") if self.exchanges.shared else ("direct",)
        self.implements = virtual.Transport.implements.extend(
            asynchronous=True, exchange_type=frozenset(kinds)
        )
        # Celery treats "sql" as a transport that cannot carry events.
        self.driver_type = "qworker" if self.exchanges.shared else "sql"

    def _open(self) -> None:
        """Return the broker, not connected yet."""
        url = url_of(self.client)
        conf = settings_of(self.client, url)
        self.broker = self.open_broker(url, conf)
        self.exchanges = Exchanges(self.broker.registry)
        terms = Terms(
            conf.worker_lease_seconds,
            (conf.dead_letter_expires, conf.dead_letter_max),
            max_deliveries_of(self.client),
        )
        self.courier = Courier(self.broker, self.exchanges, terms, self._pipe.wake)
        self._closed = False

    def driver_version(self) -> str:
        return str(kombu.__version__)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        prefix = f"{self.client.uri_prefix}+" if self.client.uri_prefix else ""
        uri = whole(self.client, uri)
        return prefix + (uri if include_password else mask_urls(uri))

    def establish_connection(self) -> Transport:
        if self._closed:
            self._open()
        # Connects, so that errors of the broker are reported now.
        if self.broker.delayed is not None:
            self.broker.delayed.next_due(["celery"])
        self.broker.admin.depths([])  # some servers are only contacted by one of the two
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        self._closed = True
        if self._loop is not None:
            with suppress(OSError, KeyError, ValueError):  # a restarted loop does not know it
                self._loop.remove_reader(self._pipe.fileno())
            self._loop = None
        super().close_connection(connection)
        try:
            self._leave_queues()
            self.courier.stop()
            self.broker.close()
        except TransportError as error:
            logger.warning("the connection closed without notifying the broker: %s", error)
        self._pipe.close()

    def _leave_queues(self) -> None:
        """Delete temporary queues of this connection, unless others use them."""
        if not self.courier.is_alive():
            return
        for queue in self.exchanges.ours():
            if self.exchanges.leave(queue):
                self.exchanges.forget(queue)
                self.courier.purge(queue)

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message, waiting for it up to *timeout* seconds (None: without limit); then
        socket.timeout."""
        self.courier.start()
        if timeout == 0:
            self.courier.look()
        self._hand_over(self.courier.desk.next(timeout))

    def _hand_over(self, delivery: Delivery) -> None:
        callback = delivery.inbox.callbacks.get(delivery.queue)
        if callback is None:  # another thread has cancelled it meanwhile
            self.courier.desk.settle(delivery.inbox, [Release(delivery.tag)])
        else:
            callback(delivery.envelope)

    # -- in the event loop of a Celery worker --

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        self._pipe.open()
        self._loop = loop
        loop.add_reader(self._pipe.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        """Deliver all that has arrived."""
        self._pipe.clear()
        while self.courier.desk.has_arrived():
            self._hand_over(self.courier.desk.next(0))
