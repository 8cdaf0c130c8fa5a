"""PatientConnection: psycopg's connection, which gives up on a server that says nothing.

Comes from:  ``postgresql.py``, for the broker; ``backends/sql_tables.py``, for the result store.
Goes to:     PostgreSQL.
Thread:      one at a time.

libpq itself waits for an answer for ever, as long as the other end of its TCP connection is there.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg

PATIENCE = 30.0
"""Seconds after which a server that says nothing is given up."""


class PatientConnection(psycopg.Connection[Any]):
    """Raises psycopg.OperationalError when an answer is not whole after *patience* seconds, or when
    *deadline* (monotonic seconds) has come."""

    patience = PATIENCE
    deadline: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, *args: Any, **options: Any) -> Any:
        last = time.monotonic() + self.patience if self.deadline is None else self.deadline
        return super().wait(_until(gen, last), interval)


def _until(gen: Generator[Any, Any, Any], last: float) -> Generator[Any, Any, Any]:
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > last:
                raise psycopg.OperationalError("the server has not answered in time")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
