"""Our transport for kombu: any of our brokers that keeps leases, with ``qworker+`` before its URL.

Comes from:  ``kombu.Connection("qworker+postgresql://…", transport_options=…)``; Celery's ``broker_url`` and
             ``broker_transport_options``.
Goes to:     a Broker for each connection, in the same queues that qworker uses.
Thread:      as in kombu; the consumer thread's own for consuming.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
from kombu.transport import virtual as _virtual
from kombu.utils.url import parse_url

from qworker.conf.resolved import Settings
from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, TransportError
from qworker.process.wakeup import WakeupPipe
from qworker.transports.as_kombu.channel import Channel
from qworker.transports.as_kombu.consumer_thread import ConsumerThread, Terms
from qworker.transports.as_kombu.exchanges import Exchanges
from qworker.transports.as_kombu.shared_state import Delivery
from qworker.transports.capabilities import warn
from qworker.transports.lease import Broker, Release

SETTINGS = {
    "lease_seconds": "worker_lease_seconds",
    "synchronous": "embedded_synchronous",
    "dead_letter_expires": "dead_letter_expires",
    "dead_letter_max": "dead_letter_max",
}
"""Our setting for each option of the transport."""
OWN = ("max_deliveries",)
"""Options used by the transport itself."""
KOMBUS = (
    "max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout", "errback",
    "callback", "polling_interval", "confirm_publish", "client_properties",
)  # fmt: skip
"""Options used by kombu or Celery, for any transport."""
HIDING = ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "sqs", "ironmq")
"""Schemes of brokers with a ``visibility_timeout``; others have leases and ignore it."""
NATIVE = ("amqp", "amqps", "pyamqp")
"""Schemes of brokers that kombu supports in the same format."""
TOKENS = ("nats", "tls")
"""Schemes of a broker that may have a token in place of a user without a password."""
PREFIX = "qworker+"


def url_of(client: Any) -> str:
    """Return the URL of our broker in a kombu connection. After a failover the connection only has its parts:
    then it is the alternate with these parts."""
    if client.hostname and "://" in client.hostname:
        return _allowed(whole(client, client.hostname.removeprefix(PREFIX)))
    for url in client.alt or ():
        pieces = parse_url(url)
        if all(getattr(client, name) == pieces[name] for name in _COMPARED if pieces.get(name) is not None):
            return _allowed(url.removeprefix(PREFIX))
    raise ConfigurationError(
        "a connection to one of our brokers needs its complete URL, such as qworker+postgresql://host/name",
        setting="broker_url",
    )


def part(client: Any) -> None:
    """Separate the password of a kombu connection from the URL: Celery sends everything but the password with
    its statistics."""
    url = client.hostname or ""
    user, colon, password = _user_of(url).partition(":")
    if client.password:
        return
    if colon:
        client.hostname = url.replace(f"{user}:{password}@", f"{user}@", 1)
        client.password = password
    elif user and _has_token(url):
        client.hostname = url.replace(f"{user}@", "", 1)
        client.password = user


def whole(client: Any, url: str) -> str:
    """Return *url* of a kombu connection with its password."""
    user = _user_of(url)
    if not isinstance(client.password, str) or ":" in user or "://" not in url:
        return url
    start = url.index("://") + len("://")
    if not user and _has_token(url):
        return f"{url[:start]}{client.password}@{url[start:]}"
    return f"{url[:start]}{user}:{client.password}@{url[start:].removeprefix(f'{user}@')}"


def _has_token(url: str) -> bool:
    return url.removeprefix(PREFIX).partition("://")[0] in TOKENS


def _user_of(url: str) -> str:
    """Return the user and password in *url*; "" for none."""
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[0]


_COMPARED = ("hostname", "port", "userid", "virtual_host")


def _allowed(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme.partition("+")[0] in NATIVE:
        raise ConfigurationError(
            f"kombu itself supports RabbitMQ, and shares queues with our workers: write {scheme}:// without "
            f"{PREFIX}",
            setting="broker_url",
        )
    return url


def max_deliveries_of(client: Any) -> int:
    """Return how many failed deliveries a message may have; 0: no limit. Raises ConfigurationError for an
    invalid number."""
    given = client.transport_options.get("max_deliveries") or 0
    if isinstance(given, int) and given >= 0:
        return given
    raise ConfigurationError(
        f"broker_transport_options: max_deliveries must be a whole number, 0 for no limit, not {given!r}",
        setting="broker_transport_options",
    )


def settings_of(client: Any, url: str) -> Settings:
    """Return our settings for a kombu connection to *url*: options that are our settings, and all others as
    options of the broker's transport. QWORKER_* and pyproject.toml are ignored."""
    options = {name: value for name, value in client.transport_options.items() if name not in KOMBUS + OWN}
    if url.partition("://")[0].partition("+")[0] not in HIDING:
        options.pop("visibility_timeout", None)
    values: dict[str, Any] = {
        setting: options.pop(option) for option, setting in SETTINGS.items() if option in options
    }
    warn(url, options, (*SETTINGS, *OWN))
    values["broker_transport_options"] = options
    if client.ssl:
        values["broker_use_ssl"] = client.ssl
    if client.connect_timeout:
        values["broker_connection_timeout"] = max(0.1, float(client.connect_timeout))
    return Settings(values, label="broker_transport_options", environ={}, directory=Path(os.devnull))


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
    consumer_thread: ConsumerThread

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
        """Open the broker, which connects on first use, and its consumer thread."""
        url = url_of(self.client)
        conf = settings_of(self.client, url)
        self.broker = self.open_broker(url, conf)
        self.exchanges = Exchanges(self.broker.registry)
        terms = Terms(
            conf.worker_lease_seconds,
            (conf.dead_letter_expires, conf.dead_letter_max),
            max_deliveries_of(self.client),
        )
        self.consumer_thread = ConsumerThread(self.broker, self.exchanges, terms, self._pipe.wake)
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
            self.consumer_thread.stop()
            self.broker.close()
        except TransportError as error:
            logger.warning("the connection closed without notifying the broker: %s", error)
        self._pipe.close()

    def _leave_queues(self) -> None:
        """Delete temporary queues of this connection, unless others use them."""
        if not self.consumer_thread.is_alive():
            return
        for queue in self.exchanges.ours():
            if self.exchanges.leave(queue):
                self.exchanges.forget(queue)
                self.consumer_thread.purge(queue)

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message, waiting for it up to *timeout* seconds (None: without limit); then
        socket.timeout."""
        self.consumer_thread.start()
        if timeout == 0:
            self.consumer_thread.look()
        self._hand_over(self.consumer_thread.shared_state.next(timeout))

    def _hand_over(self, delivery: Delivery) -> None:
        callback = delivery.inbox.callbacks.get(delivery.queue)
        if callback is None:  # another thread has cancelled it meanwhile
            self.consumer_thread.shared_state.settle(delivery.inbox, [Release(delivery.tag)])
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
        while self.consumer_thread.shared_state.has_arrived():
            self._hand_over(self.consumer_thread.shared_state.next(0))
