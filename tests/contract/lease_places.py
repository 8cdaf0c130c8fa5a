"""Where lease stores are tested: one Place for each kind of store. A new transport adds a class and a line to
PLACES.

Comes from:  test_lease_store.py, which runs the suite that we ship (qworker.testing.contract) on all of them.
Goes to:     the store, in this process or in others.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from qworker.clock import boottime
from qworker.testing.contract import Assumption, Place
from qworker.testing.store import MemoryStore
from qworker.transports.failover import FailoverBroker
from qworker.transports.lease import Broker
from qworker.transports.sqlite.broker import SQLiteBroker
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_disque import DisqueLeasePlace
from tests.contract.place_ironmq import IronPlace
from tests.contract.place_kombu import KombuLeasePlace
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_nats import NatsPlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_spool import SpoolPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqs import SqsLeasePlace


class SQLitePlace(Place):
    """The embedded broker, on a file of its own."""

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

    examples = 20

    def open(self, **options: Any) -> Broker:
        second = SQLiteBroker(f"sqlite:///{self.path}.second", **options)
        return FailoverBroker([super().open(**options), second])


class MemoryPlace(Place):
    """The broker in memory that tests of other rooms use."""

    lacks = frozenset({Assumption.OTHER_PROCESSES})
    cannot = {"test_nothing_that_was_numbered_before_a_loss_comes_again": "its data is lost with its process"}

    def __init__(self, directory: Path) -> None:
        self._first: MemoryStore | None = None

    def open(self, **options: Any) -> Broker:
        store = MemoryStore(**{"uptime": boottime, **options}, beside=self._first)
        self._first = self._first or store
        return store

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        row = self._first.results.get(task_id) if self._first else None
        return None if row is None else (row[1], row[2])

    def count(self) -> int:
        return self._first.messages if self._first else 0


PLACES: dict[str, type[Place]] = {
    "sqlite": SQLitePlace,
    "redis": RedisPlace,
    "rabbitmq": AMQPPlace,
    "postgresql": PostgreSQLPlace,
    "mysql": MySQLPlace,
    "memory": MemoryPlace,
    "failover": FailoverPlace,
    "kombu": KombuLeasePlace,
    "sqs": SqsLeasePlace,
    "ironmq": IronPlace,
    "disque": DisqueLeasePlace,
    "spool": SpoolPlace,
    "nats": NatsPlace,
    "mongodb": MongoPlace,
}
