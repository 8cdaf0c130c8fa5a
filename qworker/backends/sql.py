"""Results in an SQL database, in the tables that Celery makes.

Comes from:  ``result_backend = "db+postgresql://…"``, ``db+mysql://…``, ``db+sqlite:///…``.
Goes to:     ``celery_taskmeta`` and ``celery_tasksetmeta``; locks and counters to ``qworker_keyvalue``.
Thread:      any; SQLAlchemy's pool gives each its connection, and a forked child a pool of its own.

Each statement is a transaction of its own. A state is replaced by one UPDATE whose WHERE names the states that may
not be, so two writers cannot pass each other; a row is only inserted after a look has found none (on MySQL, a
locking look at a missing row would take a gap lock, and two such inserts a deadlock).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors

from qworker import states
from qworker.backends.base import Backend, Meta
from qworker.backends.sql_tables import EXTENDED, LONGEST_ID, connect, make_tables
from qworker.backends.stored_pickle import is_pickle, load_plain
from qworker.clock import Clock, from_epoch, parse_iso
from qworker.errors import BackendError, EncodeError

T = TypeVar("T")

TRIES = 3
"""How often a statement is tried when the connection was lost, or another transaction was in the way."""


class SQLBackend(Backend):
    """Results in SQL tables, which are made at the first use if they are not there."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._engine = connect(url, dict(conf.database_engine_options), conf.database_short_lived_sessions)
        self._tables = make_tables(conf.database_table_names, self._extended)
        self._pid = os.getpid()
        self._columns: frozenset[str] | None = None

    # -- statements --

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what *work* makes of a connection; errors of the database come out as ours."""
        if self._pid != os.getpid():
            self._engine.dispose(close=False)  # the connections are the parent's
            self._pid = os.getpid()
        for attempt in range(1, TRIES + 1):
            try:
                if self._columns is None:
                    self._columns = self._tables.create(self._engine)
                with self._engine.connect() as connection:
                    return work(connection)
            except sa_errors.DataError as error:
                raise EncodeError(f"the result does not fit its column: {error.orig}") from error
            except sa_errors.IntegrityError:
                raise
            except sa_errors.DBAPIError as error:
                if attempt == TRIES or not (error.connection_invalidated or _passes(error)):
                    raise BackendError(f"{self.safe_url}: {error.orig}") from error
                self.clock.sleep(0.02 * attempt)
            except sa_errors.SQLAlchemyError as error:
                raise BackendError(f"{self.safe_url}: {error}") from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _execute(self, statement: sa.Executable, values: Any = None) -> int:
        return self._run(lambda connection: connection.execute(statement, values).rowcount)

    def _rows(self, statement: sa.Executable) -> list[Any]:
        return self._run(lambda connection: list(connection.execute(statement)))

    def _insert(self, statement: sa.Executable, values: dict[str, Any]) -> bool:
        """Insert a row; False when its key is there already."""
        try:
            self._execute(statement, values)
        except sa_errors.IntegrityError:
            return False
        return True

    # -- tasks --

    def store(self, task_id: str, meta: Meta) -> bool:
        if len(task_id) > LONGEST_ID:
            raise EncodeError(
                f"task ids of more than {LONGEST_ID} characters do not fit the table: {task_id[:40]}…"
            )
        task = self._tables.task
        values = self._to_row(meta)
        known = self._rows(sa.select(task.c.id).where(task.c.task_id == task_id))
        if not known and self._insert(task.insert(), {"task_id": task_id, **values}):
            return True
        standing = [old for old in states.ALL_STATES if not states.may_replace(old, meta["status"])]
        replaceable = sa.or_(task.c.status.is_(None), task.c.status.not_in(standing))
        return self._execute(task.update().where(task.c.task_id == task_id, replaceable).values(values)) > 0

    def _to_row(self, meta: Meta) -> dict[str, Any]:
        done = meta.get("date_done")
        row = {
            "status": meta["status"],
            "result": self.encode_value(meta.get("result")),
            "traceback": meta.get("traceback"),
            "children": self.encode_value(meta["children"]) if meta.get("children") else None,
            "date_done": None if done is None else parse_iso(done).astimezone(UTC).replace(tzinfo=None),
        }
        for name in EXTENDED if self._extended else ():
            value = meta.get(name)
            row[name] = (
                self.encode_value(value) if name in ("args", "kwargs") and value is not None else value
            )
        self._run(lambda connection: None)  # so that the columns are known
        assert self._columns is not None
        return {name: value for name, value in row.items() if name in self._columns}

    def get(self, task_id: str) -> Meta | None:
        return self.get_many([task_id]).get(task_id)

    def get_many(self, ids: Collection[str]) -> dict[str, Meta]:
        self._run(lambda connection: None)
        columns = [self._tables.task.c[name] for name in self._columns or ()]
        found: dict[str, Meta] = {}
        wanted = list(ids)
        for start in range(0, len(wanted), 500):
            chunk = wanted[start : start + 500]
            for row in self._rows(sa.select(*columns).where(self._tables.task.c.task_id.in_(chunk))):
                meta = self._to_meta(row._mapping)
                if meta is not None:
                    found[meta["task_id"]] = meta
        return found

    def _to_meta(self, row: Any) -> Meta | None:
        done = row["date_done"]
        if done is not None:
            done = done.replace(tzinfo=UTC)
            if self.expires is not None and done.timestamp() + self.expires <= self.clock.now():
                return None
        meta: Meta = {
            "task_id": row["task_id"],
            "status": row["status"] or states.PENDING,
            "result": self._decode_column(row["result"]),
            "traceback": row["traceback"],
            "children": self._decode_column(row.get("children")) or [],
            "date_done": done.isoformat() if done is not None else None,
        }
        for name in EXTENDED:
            if name in row:
                value = row[name]
                meta[name] = self._decode_column(value) if name in ("args", "kwargs") else value
        return meta

    def _decode_column(self, data: Any) -> Any:
        """The value in a column: serialised by us or Celery 5.7, or pickled by an older Celery."""
        if data is None:
            return None
        payload = data.encode() if isinstance(data, str) else bytes(data)
        if is_pickle(payload) and self._serializer != "pickle":
            return load_plain(payload, self.safe_url)
        return self.decode_value(payload)

    def forget(self, task_id: str) -> None:
        task = self._tables.task
        self._execute(task.delete().where(task.c.task_id == task_id))

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        table, now = self._tables.keyvalue, self.clock.now()
        self._execute(table.delete().where(table.c.key == key, table.c.expires <= now))
        return self._insert(
            table.insert(), {"key": key, "value": 1, "expires": None if ttl is None else now + ttl}
        )

    def incr(self, key: str, ttl: float | None = None) -> int:
        table, now = self._tables.keyvalue, self.clock.now()
        expires = None if ttl is None else now + ttl
        higher = table.update().where(table.c.key == key).values(value=table.c.value + 1, expires=expires)

        def count(connection: sa.Connection) -> int | None:
            # One transaction, so that the row which the UPDATE has locked is the one that is read.
            level = "SERIALIZABLE" if connection.dialect.name == "sqlite" else "READ COMMITTED"
            with connection.execution_options(isolation_level=level).begin():
                if not connection.execute(higher).rowcount:
                    return None
                return int(
                    connection.execute(sa.select(table.c.value).where(table.c.key == key)).scalar_one()
                )

        while True:
            self._execute(table.delete().where(table.c.key == key, table.c.expires <= now))
            value = self._run(count)
            if value is not None:
                return value
            if self._insert(table.insert(), {"key": key, "value": 1, "expires": expires}):
                return 1

    def delete(self, key: str) -> None:
        table = self._tables.keyvalue
        self._execute(table.delete().where(table.c.key == key))

    # -- groups --

    def save_group(self, group_id: str, result: Any) -> None:
        group = self._tables.group
        values = {"result": self.encode_value({"result": result}), "date_done": self._utc(self.clock.now())}
        if not self._execute(group.update().where(group.c.taskset_id == group_id).values(values)):
            self._insert(group.insert(), {"taskset_id": group_id, **values})

    def get_group(self, group_id: str) -> Any:
        group = self._tables.group
        rows = self._rows(sa.select(group.c.result).where(group.c.taskset_id == group_id))
        value = self._decode_column(rows[0][0]) if rows else None
        return value["result"] if isinstance(value, dict) and "result" in value else value

    def delete_group(self, group_id: str) -> None:
        group = self._tables.group
        self._execute(group.delete().where(group.c.taskset_id == group_id))

    # -- keeping house --

    def _utc(self, epoch: float) -> datetime:
        return from_epoch(epoch).replace(tzinfo=None)

    def sweep(self, now: float) -> int:
        task, group, keyvalue = self._tables.task, self._tables.group, self._tables.keyvalue
        count = self._execute(keyvalue.delete().where(keyvalue.c.expires <= now))
        if self.expires is None:
            return count
        oldest = self._utc(now) - timedelta(seconds=self.expires)
        for table in (task, group):
            count += self._execute(table.delete().where(table.c.date_done <= oldest))
        return count

    def close(self) -> None:
        self._engine.dispose(close=self._pid == os.getpid())


def _passes(error: sa_errors.DBAPIError) -> bool:
    """Tell whether trying again may help: a deadlock, a lock that was not given, a table made at the same time."""
    return isinstance(
        error, sa_errors.OperationalError | sa_errors.InternalError | sa_errors.ProgrammingError
    )
