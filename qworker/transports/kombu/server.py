"""Server: connecting to a broker that kombu has a transport for, its errors, and its queues.

Comes from:  the URL of the broker and ``broker_transport_options``.
Goes to:     kombu; the sender, the consumer and the administration each open their own connection.
Thread:      any; immutable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import kombu as untyped_kombu

from qworker.errors import ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.naming import task_id
from qworker.transports.connect_errors import explained
from qworker.transports.held.messages import Content, Outgoing, as_text, mapping
from qworker.transports.held.port import ConnectionGone, Count, NewMessage, Received, Server, ServerQueue

virtual: Any = import_module("kombu.transport.virtual")  # which has no types
COMPRESSION = "compression"


class KombuQueue(ServerQueue):
    """bound: kombu's queue, bound to a channel."""

    batch = 1

    def __init__(self, bound: Any) -> None:
        self.name = bound.name
        self._bound = bound
        self._producer: Any = None

    def text(self, message: Outgoing) -> Outgoing:
        return message  # kombu writes it itself

    def send(self, entries: Sequence[NewMessage]) -> None:
        if self._producer is None:
            self._producer = kombu.Producer(self._bound.channel)
        for message, _, _ in entries:
            queue, body, options = message[:3]
            self._producer.publish(body, exchange="", routing_key=queue, serializer=None, **options)

    def take(self, count: int, seconds: float) -> list[Received]:
        message = self._bound.get(no_ack=False)
        return [] if message is None else [self._received(with_way_back(message, self.name))]

    def _received(self, message: Any) -> Received:
        info = mapping(message.delivery_info)
        return Received(
            self,
            Content(
                message.headers,
                message.properties,
                message.content_type,
                message.content_encoding,
                message.body,
                info,
            ),
            id=str(message.delivery_tag),
            receipt=message,
            lease_seconds=math.inf,
            redelivered=bool(info.get("redelivered")),
        )

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        return []

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        for message in messages:
            message.receipt.requeue()

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        for message in messages:
            message.receipt.ack()
        return []

    def count(self) -> Count:
        return Count(int(self._bound.queue_declare(passive=True).message_count or 0))

    def purge(self) -> int:
        return int(self._bound.purge() or 0)


def take_anything(channel: Any) -> None:
    """Make *channel*, of kombu's own transport, return any content of a queue, which it has removed by then:
    unreadable content comes as a body without headers, for the dead letters. Compressed bodies stay
    compressed: that is what was signed, and workers limit the decompressed size."""
    kind = channel.Message
    if issubclass(kind, virtual.Message) and not issubclass(kind, _Anything):
        channel.Message = type(kind.__name__, (_Anything, kind), {})


class _Compressed:
    """Keeps a compressed body as it is: kombu would decompress it, and drop the header that says so."""

    headers: Any

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        make: Any = super().__init__
        compression = mapping(mapping(payload).get("headers")).get(COMPRESSION)
        if compression is None:
            make(payload, channel=channel, **more)
            return
        headers = {name: value for name, value in payload["headers"].items() if name != COMPRESSION}
        make({**payload, "headers": headers}, channel=channel, **more)
        self.headers = {**self.headers, COMPRESSION: compression}

    def serializable(self) -> Any:
        """Return the form that is written when it goes back."""
        origin: Any = super()
        written = origin.serializable()
        if COMPRESSION in self.headers:
            written["headers"] = {**written["headers"], COMPRESSION: self.headers[COMPRESSION]}
        return written


class _Anything(_Compressed):
    delivery_tag: Any

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        make: Any = super().__init__
        try:
            make(payload, channel=channel, **more)
            if not isinstance(self.headers, dict) or not isinstance(self.delivery_tag, str | int):
                raise TypeError("no message")
        except Exception:  # noqa: BLE001 - anybody may send anything
            raw = {"body": as_text(payload), "properties": {"delivery_tag": task_id()}}
            make(raw, channel=channel, **more)


def with_way_back(message: Any, queue: str) -> Any:
    """Return kombu's *message*, extended so that it can be put back into *queue* if it lacks its own
    address."""
    info = message.delivery_info
    if not (
        isinstance(info, Mapping)
        and isinstance(info.get("exchange"), str)
        and isinstance(info.get("routing_key"), str)
    ):
        message.delivery_info = {**mapping(info), "exchange": "", "routing_key": queue}
    return message


kombu: Any = untyped_kombu

EXTRAS = {"kafka": "confluentkafka", "sqla": "sqlalchemy", "pyro": "pyro4"}
"""Extras of kombu whose name differs from the scheme."""
LATE = {"pyro": "Pyro4", "slmq": "softlayer_messaging"}
"""Modules whose absence kombu's transports only notice when something is sent."""
UNUSABLE = (ImportError, NameError, TypeError, AttributeError)
"""Errors of transports with missing libraries."""
UNKNOWN_URL = "ArgumentError"
"""The name of SQLAlchemy's error, in any version: it is not imported here."""


class KombuServer(Server):
    """url: with a scheme of kombu's. options: transport_options for kombu. poll: seconds between polls.
    use_ssl: as the setting broker_use_ssl."""

    wait_seconds = None

    def __init__(
        self, url: str, options: dict[str, Any], timeout: float, use_ssl: Any = None, poll: float = 0.2
    ) -> None:
        super().__init__(url, timeout)
        self.poll_seconds = poll
        self._options = options
        self._use_ssl = use_ssl

    def look_for_library(self) -> None:
        """Raise ConfigurationError if the transport's library is missing, without connecting."""
        try:
            with self._usable():
                connection = kombu.Connection(self.url, transport_options=self._options)
                _ = connection.transport
                if (name := _name_of(self.url)) in LATE:
                    import_module(LATE[name])
                elif name == "sqla":  # it looks for the driver of the database
                    import_module("sqlalchemy").create_engine(connection.hostname)
        except RuntimeError as error:  # raised by qpid
            raise _missing(self.url, error) from error

    def connect(self) -> Any:
        with self._usable():
            connection = kombu.Connection(
                self.url,
                transport_options=self._options,
                connect_timeout=self.timeout,
                ssl=self._use_ssl or False,
            )
            with self.errors(connection):
                connection.ensure_connection(max_retries=1, timeout=self.timeout)
        return connection

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Raise ConfigurationError for errors of a transport without its library, or with a URL that it
        cannot use. Some only notice when they declare a queue."""
        try:
            yield
        except Exception as error:
            reraise_interrupt(error)
            is_other = any(kind.__name__ == UNKNOWN_URL for kind in type(error).__mro__)
            if not is_other and not isinstance(error, UNUSABLE):
                raise
            raise _missing(self.url, error) from error

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            yield
        except (
            *connection.connection_errors,
            *connection.channel_errors,
            kombu.exceptions.OperationalError,
            OSError,
        ) as error:
            raise ConnectionGone(f"{self.shown}: {explained(f'{type(error).__name__}: {error}')}") from error

    def declare_letters(self, connection: Any) -> None:
        """Does nothing: declaring a queue may create a topic or a subscription, so this waits for the first
        letter."""

    def declare(self, connection: Any, queue: str) -> KombuQueue:
        bound = kombu.Queue(queue, exchange=kombu.Exchange(""), routing_key=queue, durable=True)(
            connection.default_channel
        )
        with self._usable():
            bound.queue_declare()
        take_anything(connection.default_channel)
        return KombuQueue(bound)


def _missing(url: str, error: Exception) -> ConfigurationError:
    scheme, name = url.partition(":")[0], _name_of(url)
    if isinstance(error, NameError):  # raised by the transport's own code, for a failed import
        why = ""
    elif isinstance(error, ImportError | RuntimeError):
        why = f" ({error})"
    else:
        why = f", or the URL is invalid ({type(error).__name__}: {error})"
    advice = f'pip install "kombu[{EXTRAS.get(name, name)}]"'
    if name == "sqla" and isinstance(error, ImportError) and error.name != "sqlalchemy":
        advice = "install this driver, or name another, as in sqla+postgresql+psycopg://"
    return ConfigurationError(
        f"broker_url: {scheme}:// needs a library that is not installed{why}: {advice}",
        setting="broker_url",
    )


def _name_of(url: str) -> str:
    """Return kombu's name of the transport for *url*."""
    return url.partition(":")[0].partition("+")[0].lower()
