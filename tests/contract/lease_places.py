"""Where lease stores are tested: one Place for each kind of store. A new transport adds a class and a line to
PLACES.

Comes from:  test_lease_store.py and lease_machine, which know nothing of any store but what a Place says.
Goes to:     the store, in this process or in others.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from qworker.clock import boottime
from qworker.testing.store import MemoryStore
from qworker.transports.failover import FailoverBroker
from qworker.transports.lease import Broker
from qworker.transports.sqlite.broker import SQLiteBroker
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_disque import DisqueLeasePlace
from tests.contract.place_kombu import KombuLeasePlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_spool import SpoolPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqs import SqsLeasePlace
from tests.support.waiting import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[2]


class Place(Protocol):
    """A store's server, directory or file, empty at first."""

    def open(self, **options: Any) -> Broker:
        """Another store object on it. options: lease_seconds, clock, uptime, revoke_expires."""

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        """Status and payload of a stored result; None when there is none."""

    def count(self) -> int:
        """How many messages there are, in whatever state, not counting dead letters."""

    def lose(self) -> None:
        """Lose all data behind the stores' backs, and count from one again."""


class SQLitePlace:
    """The embedded broker, on a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "queue.db"

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

    def open(self, **options: Any) -> Broker:
        second = SQLiteBroker(f"sqlite:///{self.path}.second", **options)
        return FailoverBroker([super().open(**options), second])


class MemoryPlace:
    """The broker in memory that tests of other rooms use."""

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


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite": SQLitePlace,
    "redis": RedisPlace,
    "rabbitmq": AMQPPlace,
    "postgresql": PostgreSQLPlace,
    "mysql": MySQLPlace,
    "memory": MemoryPlace,
    "failover": FailoverPlace,
    "kombu": KombuLeasePlace,
    "sqs": SqsLeasePlace,
    "disque": DisqueLeasePlace,
    "spool": SpoolPlace,
}
FOR_ONE_PROCESS = frozenset({"memory", "kombu"})
"""Those that no other process can reach."""


class Other:
    """Another process on the place. It runs *script*, in which ``place`` is the Place and ``say(…)`` and
    ``hear()`` talk with us, a line at a time."""

    def __init__(self, kind: str, directory: Path, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, kind, str(directory)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line; '' once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def ended(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
from tests.contract.lease_places import PLACES, mark
from tests.support.messages import message
from qworker.errors import LeaseLost
from qworker.transports.lease import *
place = PLACES[sys.argv[1]](Path(sys.argv[2]))
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
"""


def mark(store: Broker, *tags: int) -> bool:
    """Mark *tags* as running, as the children of a worker do; False where such marks are not kept."""
    path = store.consumer.running_path()
    if path is not None:
        Path(path).write_bytes(b"".join(struct.pack("=q", tag) for tag in (0, *tags, 0)))
    return path is not None
