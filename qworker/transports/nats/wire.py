"""Wire: one connection to one server of NATS, from its greeting to its end.

Comes from:  ``client.py``.
Goes to:     a socket.
Thread:      one reads; send() and shut() are for any.

The protocol of NATS consists of lines: ``PUB``, ``HPUB`` and ``SUB`` from us, ``MSG`` and ``HMSG`` with
messages on a subject, ``PING`` from time to time. A client that does not answer pings for some minutes is
disconnected.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeVar

from qworker.interrupts import reraise_interrupt
from qworker.transports.nats.url import Address, Host, host_of

CHUNK = 65536
MAX_PAYLOAD = 1024**2
"""Bytes, if a server does not announce its maximum."""
MOST_PAYLOAD = 64 * 1024**2
"""Bytes; the maximum of any NATS server, whatever it announces."""
LONGEST_LINE = 65536
"""Bytes; INFO, the longest that a server writes, has some thousands."""
Item = TypeVar("Item")
Done = TypeVar("Done")
Buffer = bytes | memoryview
WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class WireMessage(NamedTuple):
    """A message on *subject*, for a *subscription*. reply: the subject for an answer. headers: None if there
    are none; with the status as ``Status`` and ``Description``."""

    subscription: str
    subject: str
    reply: str
    headers: dict[str, str] | None
    data: bytes


class Wire:
    """Connects to *host* by the monotonic time *end*, and logs in with *address*. Raises OSError, including
    TimeoutError."""

    def __init__(self, host: Host, address: Address, end: float) -> None:
        self._host = host
        self._read = bytearray()
        self.max_payload = MAX_PAYLOAD
        self._sending = threading.Lock()
        self._socket: socket.socket = socket.create_connection((host.name, host.port), left_until(end))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pending: Callable[[], int] = int  # of what is decrypted already: 0
            self._receive: Callable[[int], bytes] = self._socket.recv
            self._transmit: Callable[[Buffer], int] = self._socket.send
            self._watch()
            self.info: dict[str, Any] = self._greeting(end)
            self.max_payload = max(1, min(int(self.info["max_payload"]), MOST_PAYLOAD))
            self._encrypt(address, end)
            self._introduce(address, end)
        except BaseException:
            self.close()
            raise

    def _watch(self) -> None:
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def _greeting(self, end: float) -> dict[str, Any]:
        while not isinstance(found := self.next(end), dict):
            if isinstance(found, Exception):
                raise found
        return found

    def _encrypt(self, address: Address, end: float) -> None:
        """Switch to TLS if we or the server want that: nothing is sent unencrypted to a server without TLS,
        or to an impostor."""
        if address.tls is None and not self.info.get("tls_required"):
            return
        if self._read:  # it would be read as if it had come under TLS
            raise ConnectionError("the server sends more than its greeting before TLS")
        context = address.tls.context() if address.tls else ssl.create_default_context()
        self._socket.settimeout(left_until(end))
        secure = context.wrap_socket(self._socket, server_hostname=self._host.tls_name)
        self._socket, self._pending = secure, secure.pending
        turn = threading.Lock()  # TLS does not support two threads at a time
        self._receive, self._transmit = _in_turn(turn, secure.recv), _in_turn(turn, secure.send)
        self._watch()

    def _introduce(self, address: Address, end: float) -> None:
        names = {"token": "auth_token", "password": "pass"}
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "python",
            "version": "1",
            "name": "qworker",
            "protocol": 1,
            **{names.get(name, name): value for name, value in address.login.items()},
        }
        self.send(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode(), end)
        while (found := self.next(end)) != "PONG":
            if isinstance(found, Exception):
                raise found

    def others(self, info: dict[str, Any]) -> list[Host]:
        """Return the servers of the cluster announced in *info*. For an IP address the certificate has a
        name."""
        found: list[Host] = []
        for text in info.get("connect_urls") or ():
            with suppress(ValueError):  # not an address
                host = host_of(str(text))
                found.append(host._replace(tls_name=self._host.tls_name) if _is_address(host.name) else host)
        return found

    # -- sending --

    def send(self, data: bytes, end: float) -> None:
        """Send all of *data* by the monotonic time *end*; any error ends the connection."""
        try:
            with self._sending:
                left: Buffer = data
                while True:
                    try:
                        sent = self._transmit(left)
                    except WAITS:
                        self._wait_for_room(end)
                        continue
                    if sent == len(left):
                        return
                    left = memoryview(left)[sent:]
        except BaseException:
            self.shut()
            raise

    def _wait_for_room(self, end: float) -> None:
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        room.poll(_milliseconds(left_until(end)))

    # -- reading --

    def is_silent(self, seconds: float) -> bool:
        """Wait up to *seconds*; return whether nothing has arrived."""
        return not (self._read or self._pending() or self._readable.poll(_milliseconds(seconds)))

    def whatever_came(self, seconds: float) -> Iterator[Any]:
        """Yield everything that has arrived, like next(); an incomplete message must end within *seconds*.
        Raises ConnectionError when the server is gone."""
        try:
            while data := self._receive(CHUNK):
                self._read += data
            raise ConnectionError("the server has closed the connection")
        except WAITS:
            pass
        end = time.monotonic() + seconds
        while self._read:
            yield self.next(end)

    def next(self, end: float) -> Any:
        """Return the next item from the server, by the monotonic time *end*: a WireMessage; its description,
        as a dict; "PONG"; a ConnectionError for an error it reports; or None."""
        line, begin = self._line(end)
        word, _, rest = line.partition(" ")
        try:
            if word.upper() in ("MSG", "HMSG"):
                return self._message(rest.split(), word.upper() == "HMSG", begin, end)
            del self._read[:begin]
            match word.upper():
                case "INFO":
                    return {"max_payload": MAX_PAYLOAD, **json.loads(rest)}
                case "PONG":
                    return "PONG"
                case "-ERR":
                    return ConnectionError("nats: " + rest.strip().strip("'"))
        except (ValueError, IndexError, TypeError) as error:
            reraise_interrupt(error)
            raise ConnectionError(f"it is not a NATS server: {line[:80]!r}") from error
        if word.upper() == "PING":
            self.send(b"PONG\r\n", end)
        return None

    # Data stays in the buffer until an item is complete, because reading may be repeated.

    def _line(self, end: float) -> tuple[str, int]:
        """Return the next line, and the position after it."""
        while (found := self._read.find(b"\r\n")) < 0:
            if len(self._read) > LONGEST_LINE:
                raise ConnectionError(f"it is not a NATS server: {bytes(self._read[:80])!r}")
            self._fill(end)
        return self._read[:found].decode("utf-8", "replace"), found + 2

    def _message(self, words: list[str], headed: bool, begin: int, end: float) -> WireMessage:
        sizes = words[-2:] if headed else ["0", words[-1]]
        subject, subscription, *reply = words[: -2 if headed else -1]
        split, size = map(int, sizes)
        if not 0 <= split <= size <= self.max_payload:
            raise ValueError(f"a message of {size} bytes, {split} of them headers")
        while len(self._read) < begin + size + 2:
            self._fill(end)
        payload = bytes(self._read[begin : begin + size])
        del self._read[: begin + size + 2]
        headers = _headers(payload[:split]) if headed else None
        return WireMessage(subscription, subject, reply[0] if reply else "", headers, payload[split:])

    def _fill(self, end: float) -> None:
        while True:
            if not self._pending() and not self._readable.poll(_milliseconds(left_until(end))):
                continue  # which ends when *end* has come
            try:
                data = self._receive(CHUNK)
            except WAITS:
                continue
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._read += data
            return

    # -- the end --

    def shut(self) -> None:
        """Shut the connection down: the reader gets an error."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # without TLS, which others are using
        except OSError as error:
            reraise_interrupt(error)

    def close(self) -> None:
        """Close the socket. Called by the reader."""
        self.shut()
        with self._sending:
            self._socket.close()


def left_until(end: float) -> float:
    """Return the seconds until the monotonic time *end*. TimeoutError when it has come."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _in_turn(turn: threading.Lock, work: Callable[[Item], Done]) -> Callable[[Item], Done]:
    def call(given: Item) -> Done:
        with turn:
            return work(given)

    return call


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000) + (seconds > 0)  # rounded up; 0 stays 0


def _headers(text: bytes) -> dict[str, str]:
    """Return received headers, with the status in the first line as ``Status`` and ``Description``."""
    first, *lines = text.decode("utf-8", "replace").rstrip("\r\n").split("\r\n")
    status = first.split(" ", 2)[1:]
    found = dict(zip(("Status", "Description"), status, strict=False))
    for line in lines:
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found
