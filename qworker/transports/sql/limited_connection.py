"""LimitedConnection: PyMySQL's connection, which refuses what its server would hang up on.

Comes from:  ``mysql.py``, for the broker; ``backends/sql/tables.py``, for the result store.
Goes to:     MySQL and MariaDB.
Thread:      one at a time.

A server that is sent more than its ``max_allowed_packet`` closes the connection, which looks as if it were
gone: whoever tries again then does so for ever. So it is asked for its limit once a connection, and what is
larger is not sent.

Whatever we do with names that PyMySQL keeps to itself is done here.
"""

from __future__ import annotations

import select
from ssl import SSLSocket, SSLWantReadError
from typing import Any

import pymysql
from pymysql.connections import Connection

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.sql.link import blind

TOO_LARGE = 1153
"""The server's own number for it."""
PRIVATE = ("_sock", "_read_timeout", "_write_timeout")
"""What PyMySQL has no public names for."""


class LimitedConnection(Connection):  # type: ignore[misc]  # PyMySQL has no types
    """Raises pymysql.DataError for a statement that is longer than the server takes."""

    longest = 0
    """Bytes of a packet that the server takes; 0: not known."""

    def connect(self, sock: Any = None) -> None:
        super().connect(sock)
        missing = [name for name in PRIVATE if not hasattr(self, name)]
        if missing:
            raise ConfigurationError(
                f"PyMySQL {pymysql.__version__} is made otherwise than qworker expects: its connection has "
                f"no {' and no '.join(missing)}. Install a release that fits: {install_command('mysql')}"
            )
        with self.cursor() as cursor:
            if self.init_command and self.sql_mode:
                cursor.execute("SET SESSION sql_mode = %s", (self.sql_mode,))  # that command may change it
            cursor.execute("SELECT @@max_allowed_packet")
            self.longest = int(cursor.fetchone()[0])

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        size = len(sql) + 1
        if size * 4 > self.longest > 0:
            if isinstance(sql, str):
                size = len(sql.encode(self.encoding, "surrogateescape")) + 1
            if size >= self.longest:
                raise pymysql.DataError(
                    TOO_LARGE,
                    f"it takes {size:,} bytes to send, and the server takes {self.longest:,} "
                    "(max_allowed_packet)",
                )
        return int(super().query(sql, unbuffered))

    def answer_within(self, seconds: float) -> None:
        """Give up on the server, from now on, when it is silent for so long."""
        self._read_timeout = self._write_timeout = seconds

    def gone(self) -> bool:
        """Whether the server has said good-bye: it says something, though nothing was asked."""
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
                return False  # TLS itself had something to say
            except OSError:
                pass
            finally:
                sock.settimeout(timeout)
        return True

    def abandon(self) -> None:
        """In a forked child: let go of the connection without a word to the server."""
        if self._sock is not None:
            blind(self._sock.fileno())
