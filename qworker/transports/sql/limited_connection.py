"""MeasuredConnection: PyMySQL's connection, which refuses what its server would hang up on.

Comes from:  ``mysql.py``, for the broker; ``backends/sql_tables.py``, for the result store.
Goes to:     MySQL and MariaDB.
Thread:      one at a time.

A server that is sent more than its ``max_allowed_packet`` closes the connection, which looks as if it were
gone: whoever tries again then does so for ever. So it is asked for its limit once a connection, and what is
larger is not sent.
"""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

TOO_LARGE = 1153
"""The server's own number for it."""


class MeasuredConnection(Connection):  # type: ignore[misc]  # PyMySQL has no types
    """Raises pymysql.err.DataError for a statement that is longer than the server takes."""

    longest = 0
    """Bytes of a packet that the server takes; 0: not known."""

    def connect(self, sock: Any = None) -> None:
        super().connect(sock)
        with self.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            self.longest = int(cursor.fetchone()[0])

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        size = len(sql) + 1
        if size * 4 > self.longest > 0:
            if isinstance(sql, str):
                size = len(sql.encode(self.encoding, "surrogateescape")) + 1
            if size >= self.longest:
                raise pymysql.err.DataError(
                    TOO_LARGE,
                    f"it takes {size:,} bytes to send, and the server takes {self.longest:,} "
                    "(max_allowed_packet)",
                )
        return int(super().query(sql, unbuffered))
