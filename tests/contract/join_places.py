"""Places for the tests of joins, one for each kind of result store. A new store adds a class and a line to
JOIN_PLACES.

Comes from:  test_joins.py and test_join_settlements.py, which access a store only through its JoinPlace.
Goes to:     the store, in this process or in others.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from qworker.backends import Backend, open_backend
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf import Settings
from qworker.transports.lease import Broker
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.contract.place_redis import RedisClusterPlace, RedisPlace
from tests.contract.place_sql import MySQLPlace, PgBouncerPlace, PostgreSQLPlace, SQLPlace

REPOSITORY = Path(__file__).resolve().parents[2]


class JoinPlace(Protocol):
    """A result store's server, directory or file, empty at first."""

    one_process: bool
    """Whether no other process can access it."""
    points: tuple[str, ...]
    """The crash points that it reaches."""
    settles: bool
    """Whether the broker stores results here, and records parts with the ack."""
    one_step: bool
    """Whether each step is one script on the server, and so is done as a whole."""

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        """Return another result store object on it."""

    def broker(self) -> Broker:
        """Return the broker for bodies: the same store, if it is a broker."""

    def left(self) -> int:
        """Return the number of rows, keys or files of unfinished joins, without using the store."""

    def remembered(self) -> int:
        """Return the number of joins remembered as finished, without using the store."""

    def clear(self) -> None:
        """Delete everything on the server."""


class SeparateBrokerPlace:
    """A result store that is not a broker: bodies are sent to an SQLite file."""

    one_process = False
    points: tuple[str, ...] = ("recording-parts", "parts-recorded", "body-sent")
    settles = False
    one_step = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def broker(self) -> Broker:
        return SQLiteBroker(f"sqlite:///{self.directory}/queue.db")

    def clear(self) -> None:
        pass

    def remembered(self) -> int:
        raise NotImplementedError

    def open(self, url: str, clock: Clock, **settings: Any) -> Backend:
        return open_backend(url, Settings(settings, environ={}, directory=self.directory), clock)


class SQLiteJoinPlace(SeparateBrokerPlace):
    """The file of the embedded broker."""

    points = ("recording-parts", "parts-recorded", "finishing-join", "join-finished")
    settles = True

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        return self.open(f"sqlite:///{self.directory}/queue.db", clock)

    def left(self) -> int:
        with closing(sqlite3.connect(self.directory / "queue.db")) as connection:
            count = "SELECT (SELECT count(*) FROM joins WHERE remaining >= 0) + (SELECT count(*) FROM part)"
            return int(connection.execute(count).fetchone()[0])

    def remembered(self) -> int:
        with closing(sqlite3.connect(self.directory / "queue.db")) as connection:
            count = "SELECT count(*) FROM joins WHERE remaining < 0"
            return int(connection.execute(count).fetchone()[0])


class SQLiteAlonePlace(SQLiteJoinPlace):
    """A file other than the broker's."""

    points = SeparateBrokerPlace.points
    settles = False

    def broker(self) -> Broker:
        return SQLiteBroker(f"sqlite:///{self.directory}/messages.db")


class SQLAlchemyPlace(SeparateBrokerPlace):
    """SQLite through SQLAlchemy, which is not a broker."""

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        return self.open(f"db+sqlite:///{self.directory}/results.db", clock)

    def left(self) -> int:
        with closing(sqlite3.connect(self.directory / "results.db")) as connection:
            standing = "SELECT count(*) FROM qworker_join WHERE remaining >= 0"
            count = f"SELECT ({standing}) + (SELECT count(*) FROM qworker_part)"
            return int(connection.execute(count).fetchone()[0])

    def remembered(self) -> int:
        with closing(sqlite3.connect(self.directory / "results.db")) as connection:
            count = "SELECT count(*) FROM qworker_join WHERE remaining < 0"
            return int(connection.execute(count).fetchone()[0])


class DatabasePlace(SeparateBrokerPlace):
    """A database server that is also the broker."""

    points = ("recording-parts", "parts-recorded", "finishing-join", "join-finished")
    settles = True
    kind: type[SQLPlace]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.place = self.kind(directory)

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        return self.open(f"db+{self.place.url}", clock)

    def broker(self) -> Broker:
        return self.place.open()

    def left(self) -> int:
        tables = ("join WHERE remaining >= 0", "part")
        counts = [self.place._ask(f"SELECT count(*) FROM qworker_{table}") for table in tables]
        return sum(rows[0][0] for rows in counts if rows)

    def remembered(self) -> int:
        return int(self.place._ask("SELECT count(*) FROM qworker_join WHERE remaining < 0")[0][0])

    def clear(self) -> None:
        self.place.clear()


class PostgreSQLJoinPlace(DatabasePlace):
    """A schema."""

    kind = PostgreSQLPlace


class PgBouncerJoinPlace(DatabasePlace):
    """A schema, through PgBouncer."""

    kind = PgBouncerPlace


class MySQLJoinPlace(DatabasePlace):
    """A MariaDB database."""

    kind = MySQLPlace


class RedisJoinPlace(SeparateBrokerPlace):
    """A Redis database that is also the broker: one prefix of keys for each directory."""

    points = ("recording-parts", "parts-recorded", "finishing-join", "join-finished")
    settles = True
    one_step = True

    kind: type[RedisPlace] = RedisPlace

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.redis = self.kind(directory)

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        return self.open(
            self.redis.url, clock, result_backend_transport_options={"global_keyprefix": self.redis.prefix}
        )

    def broker(self) -> Broker:
        return self.redis.open()

    def left(self) -> int:
        """Count joins, parts, and keys without a join."""
        client, prefix = self.redis.client, self.redis.prefix
        joins = list(client.scan_iter(f"{prefix}qworker.join.*", count=10_000))
        parts = list(client.scan_iter(f"{prefix}qworker.part.*", count=10_000))
        index = client.zrange(f"{prefix}qworker.joins", 0, -1)
        names = {key.removeprefix(f"{prefix}qworker.join.".encode()) for key in joins}
        return len(names | set(index)) + sum(client.hlen(key) for key in parts)

    def remembered(self) -> int:
        keys = list(self.redis.client.scan_iter(f"{self.redis.prefix}qworker.done.*", count=10_000))
        assert all(0 < self.redis.client.ttl(key) <= 86400 for key in keys)
        return len(keys)

    def clear(self) -> None:
        self.redis.clear()


class RedisAlonePlace(RedisJoinPlace):
    """Redis, with an SQLite file as the broker."""

    points = SeparateBrokerPlace.points
    settles = False

    def broker(self) -> Broker:
        return SeparateBrokerPlace.broker(self)


class RedisClusterJoinPlace(RedisJoinPlace):
    """A Redis Cluster that is also the broker."""

    kind = RedisClusterPlace


class FilesPlace(SeparateBrokerPlace):
    """A directory."""

    points = (*SeparateBrokerPlace.points, "forgetting-join")

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        return self.open(f"file://{self.directory}/results", clock)

    def left(self) -> int:
        return sum(
            path.is_file() and path.name.startswith(("qworker-join", "qworker-part"))
            for path in (self.directory / "results").rglob("*")
        )

    def remembered(self) -> int:
        return len(list((self.directory / "results").rglob("qworker-lock-join-*")))


class MemoryPlace(SeparateBrokerPlace):
    """Memory of this process."""

    one_process = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._lock = threading.RLock()

    def backend(self, clock: Clock = SYSTEM_CLOCK) -> Backend:
        backend = self.open("cache+memory://", clock)
        assert isinstance(backend, MemoryBackend)
        backend._values, backend._lock = self._values, self._lock
        return backend

    def left(self) -> int:
        return sum(key.startswith(("qworker-join", "qworker-part")) for key in self._values)

    def remembered(self) -> int:
        return sum(key.startswith("qworker-lock-join") for key in self._values)


JOIN_PLACES: dict[str, type[SeparateBrokerPlace]] = {
    "sqlite": SQLiteJoinPlace,
    "sqlite-alone": SQLiteAlonePlace,
    "sql-sqlite": SQLAlchemyPlace,
    "postgresql": PostgreSQLJoinPlace,
    "pgbouncer": PgBouncerJoinPlace,
    "mysql": MySQLJoinPlace,
    "redis": RedisJoinPlace,
    "redis-cluster": RedisClusterJoinPlace,
    "redis-alone": RedisAlonePlace,
    "filesystem": FilesPlace,
    "memory": MemoryPlace,
}


def start_process(
    kind: str, directory: Path, script: str, *arguments: str, crash_at: str = ""
) -> subprocess.Popen[str]:
    """Start another process on the place, which runs *script*. It has ``joins``, ``broker``, ``parts(join,
    numbers)`` and ``arguments``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, kind, str(directory), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "QWORKER_CRASH_AT": crash_at},
        stdout=subprocess.PIPE,
        text=True,
    )


PRELUDE = """
import sys
from pathlib import Path
from tests.contract.join_places import JOIN_PLACES
from tests.contract.join_steps import drain, parts
from qworker.backends.joins import Join
from tests.support.messages import message
place = JOIN_PLACES[sys.argv[1]](Path(sys.argv[2]))
joins, broker = place.backend().joins, place.broker()
arguments = sys.argv[3:]
"""
