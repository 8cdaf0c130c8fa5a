"""A connection to NATS that publishes and waits for the answers in the thread that asks for it.

Comes from:  ``server.py`` (connect_directly), for ``sender.py``.
Goes to:     a socket.
Thread:      one at a time.

By ``client.py`` a call goes to another thread and back, through some tasks of an event loop there. Here it is
one write, and the reading of what answers it. NATS speaks in lines: ``HPUB`` and the like from us, ``MSG``
and ``HMSG`` with an answer, ``PING`` now and then. Who does not answer that for some minutes is cut off, and
connects again when it has something to say.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from qworker.interrupts import let_pass
from qworker.naming import task_id
from qworker.transports.nats.client import Asked, Post
from qworker.transports.nats.url import Place

CHUNK = 65536
MAX_PAYLOAD = 1024**2
"""Bytes, where a server does not say how large a message may be."""
MOST_PAYLOAD = 64 * 1024**2
"""Bytes; no server of NATS takes more, whatever it says."""
LONGEST_LINE = 65536
"""Bytes; INFO, the longest that a server writes, has some thousands."""
PAUSE_SECONDS = 0.05
"""Between two tries to connect again."""


class Told(NamedTuple):
    """What came on *subject*, with the names that nats-py has for it."""

    subject: str
    headers: dict[str, str] | None
    data: bytes


class DirectConnection(Asked):
    """To one of the servers of *place*. timeout: seconds for an answer, and for connecting. Raises OSError,
    TimeoutError among them, when there is none; then it is connected again by the next exchange()."""

    def __init__(self, place: Place, timeout: float) -> None:
        super().__init__(timeout)
        self._place = place
        self._inbox = f"_INBOX.{task_id()}"
        self._count = 0
        self._read = bytearray()
        self._socket: socket.socket | None = None
        self._whole = True
        """Nobody was interrupted in the midst of an exchange."""
        self._connect(time.monotonic() + timeout)

    def exchange(self, posts: Sequence[Post], timeout: float | None = None) -> list[Any]:
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        self.exchanges += 1
        whole, self._whole = self._whole, False
        try:
            if not whole or self._socket is None or not self._is_there(self._socket):
                self._connect_again(end)
            self._count += 1
            subject = f"{self._inbox}.{self._count}."
            wanted = self._publish(posts, subject, end)
            answers: dict[int, Told] = {}
            while len(answers) < wanted:
                told = self._next(end)
                if isinstance(told, Told) and told.subject.startswith(subject):
                    answers[int(told.subject[len(subject) :])] = told
            self._whole = True
            return [answers[number] for number in range(wanted)]
        except BaseException:
            self._close()  # whatever is on its way answers nobody any more
            raise

    def _publish(self, posts: Sequence[Post], subject: str, end: float) -> int:
        """Send *posts*, whose answers are to come on *subject*; return how many those are."""
        parts: list[bytes] = []
        number = 0
        for post in posts:
            reply = ""
            if post.answered:
                reply, number = f"{subject}{number} ", number + 1
            head = _head(post.headers)
            size = f"{len(head)} " if head else ""
            line = f"{'HPUB' if head else 'PUB'} {post.subject} {reply}{size}{len(head) + len(post.data)}\r\n"
            parts += (line.encode(), head, post.data, b"\r\n")
        self._send(b"".join(parts), end)
        return number

    def release(self) -> None:
        """Close it. Safe to call twice."""
        self._close()

    # -- the socket --

    def _connect_again(self, end: float) -> None:
        """Connect to one of the servers, which may be about to start, by the monotonic time *end*."""
        while True:
            try:
                return self._connect(end)
            except OSError as error:
                let_pass(error)
                if time.monotonic() + PAUSE_SECONDS >= end:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _connect(self, end: float) -> None:
        """Connect to one of the servers."""
        self._close()
        errors: list[OSError] = []
        for server in random.sample(self._place.servers, len(self._place.servers)):
            try:
                return self._greet(server, end)
            except OSError as error:
                let_pass(error)
                self._close()
                errors.append(error)
        raise errors[-1]

    def _greet(self, server: str, end: float) -> None:
        parts = urlsplit(server)
        self._socket = socket.create_connection((parts.hostname, parts.port), _left(end))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info: dict[str, Any] = {}
        while not info:
            info = self._next(end) or info
        if self._place.tls is not None or info.get("tls_required"):
            if self._read:  # it would be read as if it had come under TLS
                raise ConnectionError("the server says more than who it is before there is TLS")
            context = self._place.tls.context() if self._place.tls else ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=parts.hostname)
        self.max_payload = max(1, min(int(info["max_payload"]), MOST_PAYLOAD))
        login = {"auth_token" if name == "token" else "pass" if name == "password" else name: value
                 for name, value in self._place.login.items()}  # fmt: skip
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "python",
            "version": "1",
            "name": "qworker",
            "protocol": 1,
            **login,
        }
        self._send(f"CONNECT {json.dumps(hello)}\r\nSUB {self._inbox}.*.* 1\r\nPING\r\n".encode(), end)
        while self._next(end) != "PONG":
            pass

    def _close(self) -> None:
        connection, self._socket = self._socket, None
        self._read.clear()
        if connection is not None:
            connection.close()

    def _is_there(self, connection: socket.socket) -> bool:
        """Whether the server has not gone since the last exchange; what it said since is answered."""
        connection.settimeout(0.0)
        try:
            while data := connection.recv(CHUNK):
                self._read += data
            return False
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            let_pass(error)
            return False
        end = time.monotonic() + self.timeout
        while self._read:
            self._next(end)
        return True

    def _send(self, data: bytes, end: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(end))
        self._socket.sendall(data)

    def _next(self, end: float) -> Any:
        """What the server says next: a Told; what it says of itself, as a dict; "PONG"; or None."""
        line = self._line(end)
        word, _, rest = line.partition(" ")
        try:
            match word.upper():
                case "MSG":
                    return self._told(rest, False, end)
                case "HMSG":
                    return self._told(rest, True, end)
                case "INFO":
                    return {"max_payload": MAX_PAYLOAD, **json.loads(rest)}
                case "PONG":
                    return "PONG"
        except (ValueError, IndexError, TypeError) as error:
            let_pass(error)
            raise ConnectionError(f"what answers is not a NATS server: {line[:80]!r}") from error
        if word.upper() == "PING":
            self._send(b"PONG\r\n", end)
        elif word.upper() == "-ERR":
            raise ConnectionError("nats: " + rest.strip().strip("'"))
        return None

    def _told(self, line: str, headed: bool, end: float) -> Told:
        words = line.split()
        size, split = int(words[-1]), int(words[-2]) if headed else 0
        if not 0 <= split <= size <= self.max_payload:
            raise ValueError(f"a message of {size} bytes, {split} of them headers")
        payload = self._bytes(size + 2, end)[:size]
        return Told(words[0], _headers(payload[:split]) if headed else None, payload[split:])

    def _line(self, end: float) -> str:
        while (found := self._read.find(b"\r\n")) < 0:
            if len(self._read) > LONGEST_LINE:
                raise ConnectionError(f"what answers is not a NATS server: {bytes(self._read[:80])!r}")
            self._fill(end)
        line = self._read[:found].decode("utf-8", "replace")
        del self._read[: found + 2]
        return line

    def _bytes(self, size: int, end: float) -> bytes:
        while len(self._read) < size:
            self._fill(end)
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def _fill(self, end: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(end))
        data = self._socket.recv(CHUNK)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._read += data


def _left(end: float) -> float:
    """Seconds until the monotonic time *end*. TimeoutError when it has come."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _head(headers: Mapping[str, str] | None) -> bytes:
    """*headers* as they go before what is published."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _headers(text: bytes) -> dict[str, str]:
    """Headers that came, with the status in the first line as nats-py has it."""
    first, *lines = text.decode("utf-8", "replace").rstrip("\r\n").split("\r\n")
    status = first.split(" ", 2)[1:]
    found = dict(zip(("Status", "Description"), status, strict=False))
    for line in lines:
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found
