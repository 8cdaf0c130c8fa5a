"""Places for the contract suite of brokers. A new transport adds a class and a line to PLACES.

Comes from:  test_lease_store.py, which runs the shipped suite (qworker.testing.contract) on all of them.
Goes to:     the broker, in this process or in others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qworker.clock import boottime
from qworker.testing.contract import Assumption, Place
from qworker.testing.store import MemoryStore
from qworker.transports.lease import Broker
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_disque import DisqueLeasePlace
from tests.contract.place_ironmq import IronPlace
from tests.contract.place_kombu import KombuLeasePlace
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_nats import NatsPlace
from tests.contract.place_redis import RedisClusterPlace, RedisPlace, ValkeyPlace
from tests.contract.place_spool import SpoolPlace
from tests.contract.place_sql import MySQLPlace, PgBouncerPlace, PostgreSQLPlace
from tests.contract.place_sqlite import FailoverPlace, SQLitePlace
from tests.contract.place_sqs import SqsLeasePlace


class MemoryPlace(Place):
    """The broker in memory for tests."""

    lacks = frozenset({Assumption.OTHER_PROCESSES})
    cannot = {"test_numbers_are_not_reused_after_data_loss": "its data is lost with its process"}

    def __init__(self, directory: Path) -> None:
        self._first: MemoryStore | None = None

    def open(self, **options: Any) -> Broker:
        store = MemoryStore(**{"uptime": boottime, **options}, shared_with=self._first)
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
    "redis-cluster": RedisClusterPlace,
    "valkey": ValkeyPlace,
    "rabbitmq": AMQPPlace,
    "postgresql": PostgreSQLPlace,
    "pgbouncer": PgBouncerPlace,
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
