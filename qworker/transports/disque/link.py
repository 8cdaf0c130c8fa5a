"""A connection to one node of Disque, on redis-py's, which speaks the same protocol.

Comes from:  ``nodes.py``.
Goes to:     the node.
Thread:      its user's; no two at a time.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.disque.url import Address

try:
    import redis
except ImportError as error:
    raise ConfigurationError(
        f"{error.name or 'redis'} is not installed, which disque:// needs: {install_command('disque')}",
        setting="broker_url",
    ) from error

REQUIRED = "redis>=5.0,<9"
Command = Sequence[bytes | str | int]
Refusal = redis.ResponseError
"""The answer of a node that refuses a command."""
BROKEN = (redis.RedisError, OSError)
"""Errors after which a connection is unusable. A Refusal is one of them only while connecting."""


MOST_REPLIES = 1024**3
"""Maximum bytes of the replies to one batch; redis-py would read any amount."""
NO_REPLY = (ValueError, OverflowError, MemoryError, RecursionError)
"""Errors of redis-py besides BROKEN for an invalid length, or one that is too large."""


class _Counted:
    """*connected*, limited to reading *left* bytes."""

    def __init__(self, connected: Any) -> None:
        self._connected = connected
        self.left = MOST_REPLIES

    def recv(self, size: int, *given: Any) -> bytes:
        data: bytes = self._connected.recv(size, *given)
        self._count(len(data))
        return data

    def recv_into(self, buffer: Any, *given: Any) -> int:
        read: int = self._connected.recv_into(buffer, *given)
        self._count(read)
        return read

    def _count(self, read: int) -> None:
        self.left -= read
        if self.left < 0:
            raise redis.InvalidResponse("its reply is too long for Disque")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected, name)


class _Connection(redis.Connection):
    """reading: its socket."""

    reading: Any = None

    def _connect(self) -> Any:
        connect: Any = super()
        self.reading = _Counted(connect._connect())
        return self.reading


class Link:
    """Connects at once, within *timeout* seconds, which is also how long a reply may take. most: see
    MOST_REPLIES."""

    def __init__(
        self, address: Address, password: str | None, timeout: float, most: int = MOST_REPLIES
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._most = most
        connection: Any = _Connection
        self._connection: Any = connection(
            host=address.host,
            port=address.port,
            password=password,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            protocol=2,
        )
        try:
            self._connection.connect()
            self.hello = self.ask([("HELLO",)])[0]
            if isinstance(self.hello, Refusal):
                raise self.hello
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether there is no data to be read: a node that went away has closed the connection."""
        connected = getattr(self._connection, "_sock", None)
        if connected is None:
            return False
        poll = select.poll()  # select() is limited to files below 1024
        poll.register(connected, select.POLLIN)
        return not poll.poll(0)

    def ask(self, commands: Sequence[Command], wait: float = 0.0) -> list[Any]:
        """Return the reply to each of *commands*; errors are Refusals. wait: additional seconds for the
        first. Raises one of BROKEN when they have not all arrived."""
        connection = self._connection
        packed = connection.pack_commands(commands)
        try:
            connection.reading.left = self._most
            connection.send_packed_command(packed)
            if wait and not connection.can_read(self._timeout + wait):
                raise redis.TimeoutError(f"no answer within {self._timeout + wait:g} s")
            return [self._reply() for _ in commands]
        except NO_REPLY as error:
            self.close()
            raise redis.InvalidResponse(f"its reply cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except Refusal as refusal:
            return refusal

    def say_no_more(self) -> None:
        """Make the node end its current work for us: a reply already sent still arrives, but no other. Any
        thread."""
        connected = getattr(self._connection, "_sock", None)
        if connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(*BROKEN):
            self._connection.disconnect()
