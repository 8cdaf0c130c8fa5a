"""Link: one connection to RabbitMQ, read in large pieces, with a time limit for every wait.

Comes from:  ``publisher.py`` and ``consumer.py``, which have one each.
Goes to:     py-amqp, for the handshake, TLS and rare methods; the socket itself, for messages and acks.
Thread:      one at a time. A forked child must ``abandon()`` it.

py-amqp reads a frame in three pieces, each with its own time limit, which is most of the cost. Here all
available data is read, and frames are taken from it. Any error becomes BrokerUnavailable, and closes the
link: a new one is needed.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, NamedTuple

import amqp
from amqp import method_framing, transport
from amqp.exceptions import AMQPError, ChannelError, UnexpectedFrame
from kombu.utils.url import parse_url

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.amqp.codec import DELIVER, Delivery, body_size, delivery, whole_delivery
from qworker.transports.amqp.table import read_short
from qworker.transports.connect_errors import INVALID_HOST, RABBITMQ, explained, while_connecting
from qworker.transports.tls import Tls, of_rabbitmq

_HEAD = Struct(">BHI")
_CONFIRM = Struct(">QB")
RECEIVE_BYTES = 64 * 1024
"""Less than the size for which malloc() uses a system call each time."""
MOST_FRAME = 16 * 1024**2
"""Bytes; by default servers use frames of 128 KiB."""
_RETURN, _ACK, _NACK, _CANCEL = (
    b"\x00\x3c\x00\x32", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78", b"\x00\x3c\x00\x1e",
)  # fmt: skip
AMQP_VERSIONS = ">=5.1.1,<6"
"""Versions of py-amqp whose internals are known here, as in ``pyproject.toml``."""
_INSIDES = (
    (amqp.Connection, ("Transport", "blocking_read", "collect", "heartbeat_tick")),
    (transport.TCPTransport, ("having_timeout",)),
    (transport.SSLTransport, ("_wrap_socket", "_shutdown_transport")),
    (method_framing, ("frame_handler",)),
)
"""Undocumented parts that are replaced or called here."""
CLIENT = {"product": "qworker", "connection_name": "qworker"}


class Address(NamedTuple):
    """The address of RabbitMQ, and the login. shown: the URL without its password. name: the name in its
    certificate, for TLS."""

    shown: str
    host: str
    port: int
    user: str
    password: str
    virtual_host: str
    tls: Tls | None
    name: str


def address_of(url: str, use_ssl: Any = None) -> Address:
    """Return the parts of *url*; use_ssl: as the setting broker_use_ssl. ConfigurationError for an invalid
    URL, or unusable files of certificates."""
    try:
        parts = parse_url(url.partition("?")[0])
        port = parts.get("port")
    except ValueError:
        text = f"broker_url: {mask_urls(url)}: {INVALID_HOST}"
        raise ConfigurationError(text, setting="broker_url") from None
    host = parts.get("hostname") or "127.0.0.1"
    tls, name, _ = of_rabbitmq(url, use_ssl, host)
    if tls is not None:
        tls.checked("broker_url")
    return Address(
        mask_urls(url),
        host,
        int(port or (5671 if tls is not None else 5672)),
        parts.get("userid") or "guest",
        parts.get("password") or "guest",
        parts.get("virtual_host") or "/",
        tls,
        name,
    )


def _unknown(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"this version of py-amqp ({amqp.__version__}) is not compatible with qworker: {what}. "
        f'Install one that fits: pip install "amqp{AMQP_VERSIONS}"'
    )


def _check_insides() -> None:
    for owner, names in _INSIDES:
        for name in names:
            if not hasattr(owner, name):
                raise _unknown(f"{owner.__name__} has no {name}")


class Frames:
    """Splits the data of one read into frames."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    @property
    def used(self) -> bool:
        """Whether anything was ever read."""
        return bool(self._data)

    def whole(self) -> bool:
        """Whether a frame can be taken without reading."""
        left = len(self._data) - self._at
        return left >= 8 and left >= 8 + _HEAD.unpack_from(self._data, self._at)[2]

    def fill(self, sock: Any) -> None:
        """Read once. OSError when the other side is gone, or silent for the socket's time limit."""
        received = sock.recv(RECEIVE_BYTES)
        if not received:
            raise OSError("the server has closed the connection")
        self._data = self._data[self._at :] + received if self._at < len(self._data) else received
        self._at = 0
        if len(self._data) >= 7 and _HEAD.unpack_from(self._data)[2] > MOST_FRAME:
            raise OSError("the server announces a frame longer than the maximum: it is not RabbitMQ")

    def pop(self) -> tuple[int, int, bytes]:
        kind, channel, size = _HEAD.unpack_from(self._data, self._at)
        start = self._at + 7
        end = start + size
        if self._data[end] != 0xCE:
            raise UnexpectedFrame("a frame without its end")
        self._at = end + 1
        return kind, channel, self._data[start:end]

    def message(self) -> Delivery | None:
        """Take out a message, if the next frames are one, and complete."""
        found = whole_delivery(self._data, self._at)
        if found is None:
            return None
        message, self._at = found
        return message


class _TLS(transport.SSLTransport):  # type: ignore[misc]
    def _wrap_socket(self, sock: Any, tls: Tls, name: str) -> Any:
        return tls.context().wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)

    def _shutdown_transport(self) -> None:
        pass  # TLS has a closing handshake, whose answer could delay us


class _Connection(amqp.Connection):  # type: ignore[misc]
    """carrier: the transport, which has the socket. frames: the data read from it."""

    carrier: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frames = Frames()

    def Transport(
        self, host: str, connect_timeout: float, ssl: Any = False, *times: Any, socket_settings: Any = None
    ) -> Any:
        options: dict[str, Any] = {"connect_timeout": connect_timeout, "socket_settings": socket_settings}
        self.carrier = _TLS(host, ssl=ssl, **options) if ssl else transport.TCPTransport(host, **options)
        return self.carrier

    def blocking_read(self, timeout: float | None = None) -> Any:
        with self.transport.having_timeout(timeout) as sock:
            while not self.frames.whole():
                self.frames.fill(sock)
        return self.on_inbound_frame(self.frames.pop())


class Link:
    """Connects at once. connect_timeout: seconds. heartbeat: seconds; 0: none. timeout: seconds for each
    answer.

    Raises BrokerUnavailable, and ConfigurationError for an unsupported version of py-amqp.

    on_message: called with each Delivery. on_return: with the exchange and the routing key of a message that
    no queue accepted.
    on_confirm: with (number, multiple, whether it was stored). on_cancel: with the tag of a consumer whose
    queue is gone.
    """

    def __init__(
        self, address: Address, connect_timeout: float, heartbeat: float = 0.0, timeout: float = 10.0
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.blocked = ""
        """Why the server accepts no messages now; "" if it does."""
        self.on_message: Callable[[Delivery], None] = _ignore
        self.on_return: Callable[[str, str], None] = _ignore
        self.on_confirm: Callable[[int, bool, bool], None] = _ignore
        self.on_cancel: Callable[[str], None] = _ignore
        _check_insides()
        self._framed = False
        """Whether py-amqp has requested its frame handler."""
        self._pid = os.getpid()
        self._poll = select.poll()
        self.connection: Any = None
        connection = _Connection(
            f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}",
            userid=address.user,
            password=address.password,
            login_method="PLAIN" if address.tls is None or not address.tls.certfile else None,
            virtual_host=address.virtual_host,
            ssl=False if address.tls is None else {"tls": address.tls, "name": address.name},
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            client_properties=CLIENT,
            on_blocked=self._set_blocked,
            on_unblocked=self._set_unblocked,
            frame_handler=self._frame_handler,
            socket_settings={
                getattr(socket, "TCP_USER_TIMEOUT", 18): int(max(connect_timeout, heartbeat, 5.0) * 1000)
            },
        )
        self.connection = connection
        with self._guarded(connecting=True):
            connection.connect()
            if connection.carrier is None or not connection.frames.used or not self._framed:
                self.drop()
                raise _unknown("its connect() does not use the expected socket")
            connection.carrier.sock.settimeout(timeout)
            self._poll.register(connection.carrier.sock.fileno(), select.POLLIN)

    @property
    def alive(self) -> bool:
        connection = self.connection
        return connection is not None and self._pid == os.getpid()

    @contextmanager
    def _guarded(self, channel_errors: bool = False, connecting: bool = False) -> Iterator[None]:
        """Converts errors to BrokerUnavailable. channel_errors: errors that only end a channel are not
        converted."""
        try:
            yield
        except (OSError, AMQPError, AttributeError, TypeError) as error:
            if channel_errors and isinstance(error, ChannelError):
                raise
            connection = self.connection
            if isinstance(error, AttributeError | TypeError) and getattr(connection, "channels", None):
                raise  # else it is py-amqp's way to report a closed connection
            self.drop()
            words = _words(error)
            if connecting:
                words = while_connecting(words, self.address.tls is not None)
            raise BrokerUnavailable(
                f"RabbitMQ at {self.address.shown}: {explained(words, RABBITMQ)}"
            ) from error

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of py-amqp that waits for an answer, with the time limit. Errors that only end the
        channel (amqp.exceptions.ChannelError) are unchanged, everything else is BrokerUnavailable."""
        if not self.alive:
            raise BrokerUnavailable(f"the connection to RabbitMQ at {self.address.shown} is closed")
        with self._guarded(channel_errors=True):
            self.connection.carrier.sock.settimeout(self.timeout)
            return function(*args, **options)

    def channel(self) -> Any:
        """Return a new channel."""
        return self.call(lambda: self.connection.channel())

    # -- messages --

    def write(self, data: bytes, timeout: float | None = None) -> None:
        """Send frames; BrokerUnavailable when that takes longer than *timeout* seconds."""
        with self._guarded():
            sock = self.connection.carrier.sock
            sock.settimeout(max(0.001, self.timeout if timeout is None else timeout))
            sock.sendall(data)
            self.connection.bytes_sent += 1

    def read(self, timeout: float, wakeup: int = -1) -> bool:
        """Handle all received frames; wait up to *timeout* seconds for one. True if there was one.

        wakeup: a file that ends the wait when it is readable.
        """
        with self._guarded():
            connection = self.connection
            frames = connection.frames
            if not frames.whole():
                sock = connection.carrier.sock
                if not self._readable(sock, timeout, wakeup):
                    return False
                sock.settimeout(self.timeout)
                frames.fill(sock)
            seen = False
            while True:
                if (message := frames.message()) is not None:
                    connection.bytes_recv += 1
                    self.on_message(message)
                elif frames.whole():
                    connection.on_inbound_frame(frames.pop())
                else:
                    return seen
                seen = True

    def check(self) -> None:
        """Raise BrokerUnavailable if the connection is lost, without reading."""
        with self._guarded():
            if not self.alive:
                raise ConnectionResetError("the connection was closed")
            found = select.poll()
            found.register(self.connection.carrier.sock, getattr(select, "POLLRDHUP", 0))
            if found.poll(0):
                raise ConnectionResetError("the connection was closed by the server")

    def _readable(self, sock: Any, timeout: float, wakeup: int) -> bool:
        pending = getattr(sock, "pending", None)
        if pending is not None and pending() > 0:
            return True
        if wakeup < 0:
            return bool(self._poll.poll(max(0.0, timeout) * 1000))
        ready = select.poll()
        own = sock.fileno()
        ready.register(own, select.POLLIN)
        ready.register(wakeup, select.POLLIN)
        return any(file == own for file, _ in ready.poll(max(0.0, timeout) * 1000))

    def tick(self) -> None:
        """Send a heartbeat when one is due; BrokerUnavailable when the server's are missing."""
        with self._guarded():
            self.connection.heartbeat_tick()

    def _frame_handler(self, connection: Any, callback: Any) -> Callable[[tuple[int, int, bytes]], bool]:
        """Return py-amqp's handler of frames: messages and confirms are handled here, the rest by py-amqp."""
        self._framed = True
        usual = method_framing.frame_handler(connection, callback)
        partial: dict[int, list[Any]] = {}  # channel → [method, header, body still missing, *pieces]

        def message(channel: int) -> None:
            method, header, _, *pieces = partial.pop(channel)
            if method[:4] == DELIVER:
                self.on_message(delivery(method, header, b"".join(pieces) if len(pieces) != 1 else pieces[0]))
            else:
                at = 4 + 2
                at += 1 + method[at]
                exchange, at = read_short(method, at)
                self.on_return(exchange, read_short(method, at)[0])

        def on_frame(frame: tuple[int, int, bytes]) -> bool:
            kind, channel, payload = frame
            if kind == 3 and channel in partial:
                found = partial[channel]
                found.append(payload)
                found[2] -= len(payload)
                if found[2] <= 0:
                    message(channel)
            elif kind == 2 and channel in partial:
                found = partial[channel]
                found[1] = payload
                found[2] = body_size(payload)
                if not found[2]:
                    message(channel)
            elif kind == 1:
                method = payload[:4]
                if method in (DELIVER, _RETURN):
                    partial[channel] = [payload, b"", 0]
                elif method in (_ACK, _NACK):
                    number, bits = _CONFIRM.unpack_from(payload, 4)
                    self.on_confirm(number, bits & 1 == 1, method == _ACK)
                elif method == _CANCEL:
                    self.on_cancel(payload[5 : 5 + payload[4]].decode("utf-8", "replace"))
                else:
                    return bool(usual(frame))
            else:
                return bool(usual(frame))
            connection.bytes_recv += 1
            return True

        return on_frame

    def _set_blocked(self, reason: str) -> None:
        self.blocked = "it has stopped accepting messages (a memory or disk alarm)"

    def _set_unblocked(self) -> None:
        self.blocked = ""

    # -- the end --

    def drop(self) -> None:
        """Close the socket without notifying the server."""
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                connection.collect()
            except (OSError, AMQPError, AttributeError):
                pass  # it was half closed

    def close(self) -> None:
        """Close properly. Safe to call twice, or in a forked child."""
        if not self.alive:
            self.abandon()
            return
        try:
            self.connection.carrier.sock.settimeout(min(self.timeout, 2.0))
            self.connection.close()
        except (OSError, AMQPError, AttributeError):
            pass  # it is closed either way
        self.drop()

    def abandon(self) -> None:
        """In a forked child: drop the parent's socket without a signal to the server."""
        connection, self.connection = self.connection, None
        carrier = None if connection is None else connection.carrier
        if carrier is not None and carrier.sock is not None:
            sock, carrier.sock = carrier.sock, None
            os.close(sock.detach())


def _ignore(*args: Any) -> None:
    pass


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "reply_text", None) or str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
