"""The embedded broker as a place for the contract suite, alone and as the first of two.

Comes from:  lease_places.
Goes to:     a file in the directory of the test.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from qworker.testing.contract import Place
from qworker.transports.failover import FailoverBroker
from qworker.transports.lease import Broker
from qworker.transports.sql.embedded.broker import SQLiteBroker


class SQLitePlace(Place):
    """The embedded broker, on a file of its own."""

    examples = 40

    def __init__(self, directory: Path) -> None:
        self.path = directory / "queue.db"
        self.results_url = f"sqlite:///{self.path}"

    def open(self, **options: Any) -> Broker:
        return SQLiteBroker(f"sqlite:///{self.path}", **options)

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return self._ask("SELECT status, payload FROM result WHERE task_id = ?", task_id)

    def count(self) -> int:
        row = self._ask("SELECT count(*) FROM message")
        assert row is not None
        return int(row[0])

    def lose(self) -> None:
        for name in ("queue.db", "queue.db-wal", "queue.db-shm"):
            self.path.with_name(name).unlink(missing_ok=True)

    def _ask(self, statement: str, *values: Any) -> Any:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement, values).fetchone()


class FailoverPlace(SQLitePlace):
    """Two embedded brokers, of which the first answers."""

    examples = 6  # the code that SQLitePlace searches

    def open(self, **options: Any) -> Broker:
        second = SQLiteBroker(f"sqlite:///{self.path}.second", **options)
        return FailoverBroker([super().open(**options), second])
