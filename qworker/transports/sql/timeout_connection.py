"""TimeoutConnection: psycopg's connection, which gives up on a silent server.

Comes from:  ``postgresql.py``, for the broker; ``backends/sql/tables.py``, for the result store.
Goes to:     PostgreSQL.
Thread:      one at a time.

libpq itself waits for an answer forever, as long as the TCP connection exists.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Self

import psycopg

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.connect_errors import PREPARE_THRESHOLD
from qworker.transports.sql.pooler import POOLER, is_pooled

ANSWER_SECONDS = 30.0
"""Seconds after which a silent server is given up."""


class _Unanswered(psycopg.OperationalError):
    pass


class TimeoutConnection(psycopg.Connection[Any]):
    """Raises psycopg.OperationalError when an answer is not complete after *answer_seconds*, or when
    *deadline* (monotonic seconds) has come. The connection is then closed, because libpq sends nothing before
    it has the answer."""

    answer_seconds = ANSWER_SECONDS
    deadline: float | None = None
    pooled = False
    """Whether a pooler gives each transaction a connection to the server; see ``pooler.py``."""

    @classmethod
    def connect(cls, conninfo: str = "", **given: Any) -> Self:
        """Like psycopg's. A pooler gets no prepared statements, unless ``prepare_threshold`` is given."""
        pooler = given.pop(POOLER, None)
        connection = super().connect(conninfo, **given)
        try:
            autocommit, connection.autocommit = connection.autocommit, True
            connection.pooled = is_pooled(pooler, connection.info.backend_pid, connection.execute)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
        if connection.pooled and PREPARE_THRESHOLD not in given:
            connection.prepare_threshold = None
        return connection

    def wait(self, gen: Any, interval: float = 0.1, *args: Any, **options: Any) -> Any:
        last = time.monotonic() + self.answer_seconds if self.deadline is None else self.deadline
        try:
            return super().wait(_until(gen, last), interval, *args, **options)
        except _Unanswered:
            self.close()
            raise


def _until(gen: Generator[Any, Any, Any], last: float) -> Generator[Any, Any, Any]:
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > last:
                raise _Unanswered("the server has not answered in time")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def check_wait(connection: type) -> None:
    """Raise ConfigurationError unless wait() of *connection*, psycopg's class, returns control at intervals,
    with or without an answer; before 3.2 it did not."""
    code = getattr(getattr(connection, "wait", None), "__code__", None)
    if code is None or "interval" not in code.co_varnames:
        raise ConfigurationError(
            f"psycopg {psycopg.__version__} is not compatible with qworker: it does not wait at intervals, "
            "so a silent server would never be given up. Install a release that fits: "
            f"{install_command('postgresql')}"
        )


check_wait(psycopg.Connection)
