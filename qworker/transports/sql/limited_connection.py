"""LimitedConnection: PyMySQL's connection, which refuses data that its server would not accept.

Comes from:  ``mysql.py``, for the broker; ``backends/sql/tables.py``, for the result store.
Goes to:     MySQL and MariaDB.
Thread:      one at a time.

A server that receives more than its ``max_allowed_packet`` closes the connection, and seems to be
gone: the caller would retry forever. So the limit is read once per connection, and larger data is not sent.

All uses of PyMySQL's private names are here.
"""

from __future__ import annotations

import select
from functools import cache
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext, SSLSocket, SSLWantReadError
from typing import Any

import pymysql
from pymysql.connections import Connection

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.sql.link import detach_socket

TOO_LARGE = 1153
"""The server's own error number."""
PRIVATE = ("_sock", "_read_timeout", "_write_timeout")
"""Names that are not public in PyMySQL."""


@cache
def _unchecked() -> SSLContext:
    """Return the context of connections that are encrypted if the server offers it, without checks."""
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, CERT_NONE
    return context


class LimitedConnection(Connection):  # type: ignore[misc]  # PyMySQL has no types
    """Raises pymysql.DataError for a statement longer than the server accepts."""

    longest = 0
    """Maximum bytes of a packet; 0: unknown."""

    def connect(self, sock: Any = None) -> None:
        super().connect(sock)
        missing = [name for name in PRIVATE if not hasattr(self, name)]
        if missing:
            raise ConfigurationError(
                f"PyMySQL {pymysql.__version__} is not compatible with qworker: its connection has no "
                f"{' and no '.join(missing)}. Install a release that fits: {install_command('mysql')}"
            )
        with self.cursor() as cursor:
            if self.init_command and self.sql_mode:
                cursor.execute("SET SESSION sql_mode = %s", (self.sql_mode,))  # that command may change it
            cursor.execute("SELECT @@max_allowed_packet")
            self.longest = int(cursor.fetchone()[0])

    def _create_ssl_ctx(self, sslp: Any) -> SSLContext:
        # PyMySQL would read the authorities of the system for each connection, in 25 ms, to check nothing.
        return super()._create_ssl_ctx(sslp) if sslp else _unchecked()

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        size = len(sql) + 1
        if size * 4 > self.longest > 0:
            if isinstance(sql, str):
                size = len(sql.encode(self.encoding, "surrogateescape")) + 1
            if size >= self.longest:
                raise pymysql.DataError(
                    TOO_LARGE,
                    f"it takes {size:,} bytes to send, and the server accepts {self.longest:,} "
                    "(max_allowed_packet)",
                )
        return int(super().query(sql, unbuffered))

    def answer_within(self, seconds: float) -> None:
        """From now on, give up on the server when it is silent for *seconds*."""
        self._read_timeout = self._write_timeout = seconds

    def gone(self) -> bool:
        """Whether the server has closed the connection: it sent data without a request."""
        sock = self._sock
        ready = select.poll()
        ready.register(sock, select.POLLIN)
        if not ready.poll(0):
            return False
        if isinstance(sock, SSLSocket):
            timeout = sock.gettimeout()
            sock.setblocking(False)
            try:
                sock.recv(1)
            except SSLWantReadError:
                return False  # a message of TLS itself
            except OSError:
                pass
            finally:
                sock.settimeout(timeout)
        return True

    def abandon(self) -> None:
        """In a forked child: drop the connection without notifying the server."""
        if self._sock is not None:
            detach_socket(self._sock.fileno())
