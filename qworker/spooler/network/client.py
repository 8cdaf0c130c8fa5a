"""The client: sends jobs to qworker's server, or to uWSGI.

Comes from:  code with a job for a spooler on another machine, or of another user.
Goes to:     a socket that receives uwsgi packets.
Thread:      any; a SpoolConnection is used by one at a time.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, cast

from qworker.clock import SYSTEM_CLOCK, from_epoch, to_epoch
from qworker.errors import SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.files.packet import HEADER, Pairs, decode, encode, priority_name
from qworker.spooler.network import framing
from qworker.spooler.network.framing import Answer, answer_length, extended, read_answer
from qworker.spooler.network.peers import TcpAddress, UnixAddress, parse_address, resolved

TIMEOUT = 4.0
_RECEIVE = 4096


def send(
    address: str,
    pairs: Pairs,
    body: bytes = b"",
    *,
    at: float | datetime | None = None,
    priority: str | int = "",
    spooler: str | os.PathLike[str] = "",
    key: bytes | None = None,
    timeout: float = TIMEOUT,
) -> str | None:
    """Send one job, and return the name of its file, or None if the server does not return it.

    Without a body and a key this is uWSGI's own protocol, which any uWSGI understands. With a body or key it
    is our extension, only for our server, which also returns the name.

    - address: host:port, the path of a UNIX socket, or @name.
    - at: when it is due, epoch seconds or a datetime. Rounded up, because uWSGI truncates fractions.
    - spooler: one of the server's directories, by its absolute path.
    - key: signs the job. timeout: seconds for each of connecting, sending, and the answer.

    Raises SpoolError when there is no server, the job is refused or too large, or there is no answer: then it
    may still have been written. ConfigurationError when the address is invalid.
    """
    if not body and key is None:
        packet = encode(_with_options(pairs, at, priority, spooler))
        with _connected(address, timeout) as connection:
            answer = _exchange(connection, packet, address, timeout)
        return _name(answer, address)
    with SpoolConnection(address, key=key, timeout=timeout) as connection:
        return connection.send(pairs, body, at=at, priority=priority, spooler=spooler)


def spool_to(address: str, pairs: Pairs, *, timeout: float = TIMEOUT) -> None:
    """Send a job unchanged, in uWSGI's own protocol: ``body``, ``at``, ``priority`` and ``spooler`` are pairs
    like others. Raises like `send()`."""
    send(address, pairs, timeout=timeout)


class SpoolConnection:
    """A connection to our server, for several jobs. Connects at once; use it in a ``with`` statement.

    The server closes it after a minute of silence. It is closed after an error; make another.
    """

    def __init__(self, address: str, *, key: bytes | None = None, timeout: float = TIMEOUT) -> None:
        self._address = address
        self._key = key
        self._timeout = timeout
        self._connection: socket.socket | None = _connected(address, timeout)

    def __enter__(self) -> SpoolConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(
        self,
        pairs: Pairs,
        body: bytes = b"",
        *,
        at: float | datetime | None = None,
        priority: str | int = "",
        spooler: str | os.PathLike[str] = "",
    ) -> str:
        """Send one job and return the name of its file. Arguments and errors: as for `send()`."""
        if self._connection is None:
            raise SpoolError(f"the connection to {self._address} is closed: make another")
        packet = encode(_with_options(pairs, at, priority, spooler))
        if self._key is not None:
            read = decode(packet).pairs
            read[framing.PAIR] = framing.signature(read, body, self._key, SYSTEM_CLOCK.now())
            packet = encode(cast(Pairs, read))
        try:
            answer = _exchange(self._connection, extended(packet, body), self._address, self._timeout)
            if answer.plain and answer.enqueued:
                raise SpoolError(
                    f"{self._address} is not a server of qworker: it has enqueued the job, but ignored its "
                    "body and signature. Send jobs for uWSGI without them"
                )
        except BaseException:
            self.close()
            raise
        return _name(answer, self._address) or ""


def _with_options(
    pairs: Pairs, at: float | datetime | None, priority: str | int, spooler: str | os.PathLike[str]
) -> Mapping[Any, Any]:
    """Return *pairs*, and those for the options."""
    options: dict[str, str | bytes | int] = {}
    if at:
        try:
            due = to_epoch(at)
            from_epoch(due)
        except (TypeError, ValueError) as error:
            raise SpoolError(f"the due time of a job must be a datetime or epoch seconds: {error}") from None
        options["at"] = math.ceil(due)
    if name := priority_name(priority):
        options["priority"] = name
    if place := os.fspath(spooler):
        options["spooler"] = os.fsencode(place)
    twice = [name for name in options if name in pairs or name.encode() in pairs]
    if twice:
        raise SpoolError(f"{twice[0]} is an argument and a pair: leave one of them out")
    return {**pairs, **options}


def _connected(address: str, timeout: float) -> socket.socket:
    target = parse_address(address)
    connection: socket.socket | None = None
    try:
        family, sockaddr = _target(target)
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        connection.connect(sockaddr)
        if family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    except OSError as error:
        if connection is not None:
            connection.close()
        raise SpoolError(
            f"cannot connect to {target}: {error.strerror or error}. Is a server running there?"
        ) from None


def _target(address: TcpAddress | UnixAddress) -> tuple[int, Any]:
    if isinstance(address, UnixAddress):
        return socket.AF_UNIX, address.sockaddr
    family, sockaddr, _ = resolved(address)
    return family, sockaddr


def _exchange(connection: socket.socket, data: bytes, address: str, timeout: float) -> Answer:
    """Send a request and return the answer."""
    connection.settimeout(timeout)
    try:
        _send_all(connection, data)
    except TimeoutError:
        raise SpoolError(f"{address} did not receive the whole job within {timeout:g} s") from None
    except OSError:
        pass  # the server has closed it, perhaps after an answer
    deadline = time.monotonic() + timeout
    image = b""
    try:
        while len(image) < (length := answer_length(image[:HEADER]) if len(image) >= HEADER else HEADER):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(min(_RECEIVE, length - len(image)))
            if not part:
                break
            image += part
        else:
            return read_answer(image)
    except TimeoutError:
        raise SpoolError(
            f"{address} has not answered within {timeout:g} s: the job may be enqueued or not"
        ) from None
    except SpoolError as error:
        raise SpoolError(f"{address}: {error}") from None
    except OSError:
        pass  # uWSGI resets a connection that it closes before it has read everything
    raise SpoolError(
        f"{address} has closed the connection without an answer: the pairs, {len(data):,} bytes with the "
        "header and a body, may be more than its buffer-size, or this client is not allowed, or the server "
        "is not a spooler"
    )


def _send_all(connection: socket.socket, data: bytes) -> None:
    """Send *data*. The timeout applies to each part: a large body may take longer."""
    rest = memoryview(data)
    while rest:
        rest = rest[connection.send(rest[: 1 << 20]) :]


def _name(answer: Answer, address: str) -> str | None:
    if answer.enqueued:
        return answer.name
    reason = "" if answer.error is None else f": {safe_repr(answer.error)[1:-1]}"
    hint = ". Its log may say why: no spooler, or a wrong directory, priority or time" if not reason else ""
    raise SpoolError(f"{address} has refused the job{reason}{hint}")
