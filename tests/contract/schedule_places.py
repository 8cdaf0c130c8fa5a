"""Places for the tests of schedule stores: one for each kind of store, with and without its own broker. A new
store adds a class and a line to SCHEDULE_PLACES.

Comes from:  test_schedule_stores.py, which accesses a store only through its SchedulePlace.
Goes to:     the store, in this process or in others.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from qworker import QWorker
from qworker.beat.store import ScheduleStore
from qworker.beat.stores import MemoryScheduleStore, open_store
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.transports.lease import Broker
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.contract.place_redis import RedisClusterPlace, RedisPlace
from tests.contract.place_sql import MySQLPlace, PgBouncerPlace, PostgreSQLPlace, SQLPlace

REPOSITORY = Path(__file__).resolve().parents[2]
SCOPE = "proj"
TABLES = ("qworker_beat", "qworker_entry", "qworker_slot")


class SchedulePlace:
    """A store's server, file or memory, empty at first.

    - one_process: whether no other process can access it.
    - together: whether slots and messages are stored in one transaction.
    - points: the crash points that it reaches.
    """

    one_process = False
    together = False
    points: tuple[str, ...] = ("slots-taken", "slots-pending", "entries-sent")

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def store(self, clock: Clock = SYSTEM_CLOCK, scope: str = SCOPE) -> ScheduleStore:
        """Return another store object on it."""
        raise NotImplementedError

    def open(self, url: str, clock: Clock, scope: str, **settings: Any) -> ScheduleStore:
        app = QWorker(
            "proj",
            broker="memory://",
            clock=clock,
            set_as_current=False,
            beat_store=url,
            beat_scope=scope,
            **settings,
        )
        return open_store(app)

    def broker(self) -> Broker:
        """Return the broker for calls."""
        return SQLiteBroker(f"sqlite:///{self.directory}/messages.db")

    def empty(self) -> None:
        """Delete all data, without using the stores."""
        raise NotImplementedError

    def lose(self) -> None:
        """Delete the tables too, if there are any."""
        self.empty()

    def is_lost(self) -> bool:
        """Return whether everything is as after lose()."""
        raise NotImplementedError

    def spoil_edit(self, name: str, text: bytes) -> None:
        """Replace an edit with *text*."""
        raise NotImplementedError

    def spoil_state(self, name: str, last_due: int) -> None:
        """Set the last due time of an entry to *last_due*, in microseconds."""
        raise NotImplementedError

    def clear(self) -> None:
        """Delete everything on the server."""


class MemoryPlace(SchedulePlace):
    """Memory of this process."""

    one_process = True
    points = ()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._stores: dict[str, MemoryScheduleStore] = {}

    def store(self, clock: Clock = SYSTEM_CLOCK, scope: str = SCOPE) -> ScheduleStore:
        return self._stores.setdefault(scope, MemoryScheduleStore(clock, shared=True))


class SQLiteAlonePlace(SchedulePlace):
    """A file other than the broker's."""

    file = "schedules.db"

    def store(self, clock: Clock = SYSTEM_CLOCK, scope: str = SCOPE) -> ScheduleStore:
        return self.open(f"sqlite:///{self.directory}/{self.file}", clock, scope)

    def _do(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.directory / self.file)) as connection, connection:
            connection.execute(statement, values)

    def empty(self) -> None:
        for table in TABLES:
            self._do(f"DELETE FROM {table}")

    def lose(self) -> None:
        for table in TABLES:
            self._do(f"DROP TABLE {table}")

    def is_lost(self) -> bool:
        with closing(sqlite3.connect(self.directory / self.file)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'qworker_%'")
            return not {name for (name,) in names} & set(TABLES)

    def spoil_edit(self, name: str, text: bytes) -> None:
        self._do("UPDATE qworker_entry SET edit = ? WHERE name = ?", text, name)

    def spoil_state(self, name: str, last_due: int) -> None:
        self._do("UPDATE qworker_entry SET last_due = ? WHERE name = ?", last_due, name)


class SQLitePlace(SQLiteAlonePlace):
    """The file of the embedded broker."""

    file = "messages.db"
    together = True
    points = ("slots-taken", "entries-published")


class ServerPlace(SchedulePlace):
    """A database server that is also the broker."""

    together = True
    points = ("slots-taken", "entries-published")
    kind: type[SQLPlace]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.place = self.kind(directory)

    def store(self, clock: Clock = SYSTEM_CLOCK, scope: str = SCOPE) -> ScheduleStore:
        return self.open(self.place.url, clock, scope)

    def broker(self) -> Broker:
        return self.place.open()

    def empty(self) -> None:
        for table in TABLES:
            self.place.execute(f"TRUNCATE TABLE {table}")

    def lose(self) -> None:
        for table in TABLES:
            self.place.execute(f"DROP TABLE {table}")

    def is_lost(self) -> bool:
        return not any(map(self.has, TABLES))

    def has(self, table: str) -> bool:
        here = "current_schema()" if issubclass(self.kind, PostgreSQLPlace) else "database()"
        query = f"SELECT 1 FROM information_schema.tables WHERE table_schema = {here} AND table_name = %s"
        return bool(self.place._ask(query, table))

    def spoil_edit(self, name: str, text: bytes) -> None:
        self.place._ask("UPDATE qworker_entry SET edit = %s WHERE name = %s", text, name)

    def spoil_state(self, name: str, last_due: int) -> None:
        self.place._ask("UPDATE qworker_entry SET last_due = %s WHERE name = %s", last_due, name)

    def clear(self) -> None:
        self.place.clear()


class PostgreSQLSchedulePlace(ServerPlace):
    """A schema."""

    kind = PostgreSQLPlace


class PgBouncerSchedulePlace(ServerPlace):
    """A schema, through PgBouncer."""

    kind = PgBouncerPlace


class MySQLSchedulePlace(ServerPlace):
    """A MariaDB database."""

    kind = MySQLPlace


class PostgreSQLAlonePlace(PostgreSQLSchedulePlace):
    """A schema, with a file as the broker."""

    together = False
    points = SchedulePlace.points

    def broker(self) -> Broker:
        return SchedulePlace.broker(self)


class MySQLAlonePlace(MySQLSchedulePlace):
    """A database, with a file as the broker."""

    together = False
    points = SchedulePlace.points

    def broker(self) -> Broker:
        return SchedulePlace.broker(self)


class RedisSchedulePlace(SchedulePlace):
    """A Redis database that is also the broker: one prefix of keys for each directory."""

    together = True
    points = ("slots-taken", "entries-published")

    kind: type[RedisPlace] = RedisPlace

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.redis = self.kind(directory)

    def store(self, clock: Clock = SYSTEM_CLOCK, scope: str = SCOPE) -> ScheduleStore:
        options = {"global_keyprefix": self.redis.prefix}
        return self.open(self.redis.url, clock, scope, result_backend_transport_options=options)

    def broker(self) -> Broker:
        return self.redis.open()

    def empty(self) -> None:
        self.redis.lose()

    def is_lost(self) -> bool:
        return not self.redis.client.keys(f"{self.redis.prefix}*")

    def key(self, name: str) -> str:
        return f"{self.redis.prefix}qworker.beat.{SCOPE}.{name}"

    def spoil_edit(self, name: str, text: bytes) -> None:
        self.redis.client.hset(self.key("edits"), name, text)

    def spoil_state(self, name: str, last_due: int) -> None:
        text = f'["seen", 0, {last_due / 1_000_000}, null, null, 0, null]'
        self.redis.client.hset(self.key("states"), name, text)

    def clear(self) -> None:
        self.redis.clear()


class RedisClusterSchedulePlace(RedisSchedulePlace):
    """A Redis Cluster that is also the broker."""

    kind = RedisClusterPlace


class RedisAlonePlace(RedisSchedulePlace):
    """Redis, with a file as the broker."""

    together = False
    points = SchedulePlace.points

    def broker(self) -> Broker:
        return SchedulePlace.broker(self)


SCHEDULE_PLACES: dict[str, type[SchedulePlace]] = {
    "memory": MemoryPlace,
    "sqlite": SQLitePlace,
    "sqlite-alone": SQLiteAlonePlace,
    "postgresql": PostgreSQLSchedulePlace,
    "postgresql-alone": PostgreSQLAlonePlace,
    "pgbouncer": PgBouncerSchedulePlace,
    "mysql": MySQLSchedulePlace,
    "mysql-alone": MySQLAlonePlace,
    "redis": RedisSchedulePlace,
    "redis-cluster": RedisClusterSchedulePlace,
    "redis-alone": RedisAlonePlace,
}


def start_process(
    kind: str, directory: Path, script: str, *arguments: str, crash_at: str = ""
) -> subprocess.Popen[str]:
    """Start another process on the place, which runs *script*. It has ``place``, ``store``, ``broker`` and
    ``arguments``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, kind, str(directory), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "QWORKER_CRASH_AT": crash_at},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


PRELUDE = """
import sys
from pathlib import Path
from qworker.beat.store import *
from tests.contract.schedule_places import SCHEDULE_PLACES
from tests.contract.schedule_steps import DUE, firing, leading, state
place = SCHEDULE_PLACES[sys.argv[1]](Path(sys.argv[2]))
store, broker = place.store(), place.broker()
arguments = sys.argv[3:]
"""
