"""Results in an SQL database, in Celery's tables.

Comes from:  ``result_backend = "db+postgresql://…"``, ``db+mysql://…``, ``db+sqlite:///…``.
Goes to:     ``celery_taskmeta`` and ``celery_tasksetmeta``, through ``database.py``; locks and counters in
             ``keys.py``, joins in ``joins.py``.
Thread:      any.

Batches of rows are stored by one statement, if ``transports/sql/result_upserts.py`` has one for the database.
Otherwise, and for a single row if that statement does not count rows, a row is inserted after a read has
found none, or replaced by an UPDATE whose WHERE excludes final states, so that two writers cannot conflict.

PostgreSQL notifies waiters of results, unless a pooler is in between; on other databases they poll.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors

from qworker.backends.base import Backend, Found, Meta
from qworker.backends.joins import Joins
from qworker.backends.place import file_of
from qworker.backends.sql.columns import Columns
from qworker.backends.sql.database import BEGIN, UNFIT, Database, SQLPlace, unfit
from qworker.backends.sql.joins import SQLJoins
from qworker.backends.sql.keys import KeyTable
from qworker.backends.sql.listen import DRIVERS, ListenConnection
from qworker.backends.sql.tables import connect, make_join_layout, make_tables
from qworker.clock import Clock, from_epoch, isoformat, parse_iso
from qworker.errors import EncodeError
from qworker.transports.lease import ResultRow
from qworker.transports.portions import portions
from qworker.transports.sql.pooler import POOLER, is_pooled
from qworker.transports.sql.result_rows import key_of, latest, pack, place_of, unpack
from qworker.transports.sql.result_states import MAY_REPLACE
from qworker.transports.sql.result_upserts import COUNTING, UPSERTS, channel_of, lock_of

PORTION = 500
"""Number of ids per statement."""


class SQLBackend(Backend):
    """Results in SQL tables, created on first use if missing."""

    keeps_parents = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        engine = connect(url, dict(conf.database_engine_options), conf.database_short_lived_sessions)
        self._tables = make_tables(conf.database_table_names)
        self._database = database = Database(engine, self._tables, clock, self.safe_url, file_of(url))
        self._keys = KeyTable(database, self._tables.keyvalue, clock)
        layout = make_join_layout(conf.database_table_names)
        self._joins = SQLJoins(SQLPlace(database, layout, url, self._keys.hold), clock)
        self._columns = Columns(self, self._extended, self._serializer)
        self._table = engine.dialect.identifier_preparer.format_table(self._tables.task)
        self._upsert = UPSERTS.get(engine.dialect.name)
        self._counts = engine.dialect.name in COUNTING
        self.listens = engine.dialect.name == "postgresql" and engine.dialect.driver in DRIVERS

    def same_store(self, store_url: str) -> bool:
        place = place_of(self.url)
        return place is not None and place == place_of(store_url)

    # -- tasks --

    def store(self, task_id: str, meta: Meta) -> bool:
        values = self._columns.of(task_id, meta)
        return self._store_many({task_id: values}) > 0 if self._counts else self._store_one(task_id, values)

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow:
        if kept and meta["date_done"] is not None:  # it determines the expiry, in Celery too
            meta = {**meta, "date_done": isoformat(parse_iso(meta["date_done"]).timestamp() + kept)}
        return task_id, meta["status"], pack(self._columns.of(task_id, meta)), self.expiry(delay=kept)

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        try:
            found = {task_id: unpack(status, payload) for task_id, status, payload, _ in latest(rows)}
            if self._upsert is not None:
                self._store_many(found)
                return
            for task_id, values in found.items():
                self._store_one(task_id, values)
        except (ValueError, TypeError, LookupError, EOFError) as error:  # not made by row()
            raise unfit(error) from error

    def _store_many(self, found: Mapping[str, Mapping[str, Any]]) -> int:
        """Store the columns of many tasks; return how many were stored, if the database counts them."""
        assert self._upsert is not None
        layout = self._database.layout()
        columns = tuple(name for name in layout.columns if name != "id")
        rows = []
        for task_id, values in found.items():
            fitting = {"task_id": key_of(task_id), **self._fitting(values)}
            rows.append(tuple(fitting.get(name) for name in columns))
        place = "?" if self._database.engine.dialect.paramstyle == "qmark" else "%s"
        steps = list(self._upsert(self._table, columns, rows, layout.makes_ids, place))

        def work(connection: sa.Connection) -> int:
            count = 0
            for statement, parameters in steps:
                result = connection.exec_driver_sql(statement, parameters)
                count += result.scalar_one() if result.returns_rows else result.rowcount
            return count

        try:
            return self._database.run(work)
        except sa_errors.IntegrityError as error:
            raise unfit(error.orig) from error

    def _store_one(self, task_id: str, values: Mapping[str, Any]) -> bool:
        task, key = self._tables.task, key_of(task_id)
        known = self._database.rows(sa.select(task.c.id).where(task.c.task_id == key))
        row = {"task_id": key, **self._fitting(values)}
        insert = task.insert().values(id=sa.null()) if self._database.layout().makes_ids else task.insert()
        if not known and self._database.insert(insert, row):
            return True
        return self._database.execute(self._replace(key, values)) > 0

    def _replace(self, key: str, values: Mapping[str, Any]) -> sa.Update:
        """Return the statement that replaces the stored result of a task, if allowed."""
        task = self._tables.task
        rule = MAY_REPLACE.format(old="status", new=":new_status")
        replaceable = sa.text(f"({rule})").bindparams(new_status=values["status"])
        return task.update().where(task.c.task_id == key, replaceable).values(self._fitting(values))

    def _fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those *values* for which the table has columns, in SQLAlchemy's form."""
        columns = self._database.layout().columns
        row = {name: value for name, value in values.items() if name in columns}
        if row["date_done"] is not None:
            row["date_done"] = parse_iso(row["date_done"]).astimezone(UTC).replace(tzinfo=None)
        return row

    def get(self, task_id: str) -> Meta | None:
        return self.get_many([task_id]).get(task_id)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        names = {key_of(task_id): task_id for task_id in ids}
        for portion in portions(names, PORTION):
            found.update(self._read(portion, names))
        return found

    def _read(self, keys: Sequence[str], names: Mapping[str, str]) -> dict[str, Found]:
        """Read the results of *keys* with one statement; return them by id. names: the id for each key."""
        task = self._tables.task
        try:
            rows = self._database.tasks(task.c.task_id.in_(keys))
        # The driver does not support such an id or row: find out which.
        except (EncodeError, ValueError, TypeError) as error:
            if len(keys) == 1:
                task_id = names[keys[0]]
                return {task_id: self.damaged(task_id, f"cannot be read: {str(error).removeprefix(UNFIT)}")}
            return {task_id: each for key in keys for task_id, each in self._read([key], names).items()}
        read: dict[str, Found] = {}
        for row in rows:
            # The collation of the database may match other ids too.
            owner = names.get(row._mapping["task_id"])
            each = None if owner is None else self._columns.found(row._mapping, owner)
            if owner is not None and each is not None:
                read[owner] = each
        return read

    def forget(self, task_id: str) -> None:
        task = self._tables.task
        self._database.execute(task.delete().where(task.c.task_id == key_of(task_id)))

    def forget_many(self, ids: Iterable[str]) -> None:
        task = self._tables.task
        for portion in portions((key_of(task_id) for task_id in ids), PORTION):
            self._database.execute(task.delete().where(task.c.task_id.in_(portion)))

    def open_source(self) -> ListenConnection | None:
        """Return a separate connection on which PostgreSQL announces results; None for other databases, and
        behind a pooler."""
        if not self.listens:
            return None
        self._database.layout()  # creates the tables
        connection = self._database.engine.connect()
        try:
            driver: Any = connection.connection.driver_connection
            pooler = self._database.engine.get_execution_options().get(POOLER)
            if is_pooled(pooler, driver.info.backend_pid, connection.exec_driver_sql):
                connection.close()
                return None
            connection.detach()
            connection.exec_driver_sql("SET lock_timeout = '5s'")
            channel = connection.exec_driver_sql(f"SELECT {channel_of(self._table)}").scalar_one()
            connection.exec_driver_sql(f"LISTEN {channel}")
            # Wait for writers that have seen no listener, and so do not notify: the next read sees their
            # results.
            connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({lock_of(self._table)})")
            return ListenConnection(driver, connection.close)
        except BaseException:
            connection.close()
            raise

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        return self._keys.add(key, ttl)

    def incr(self, key: str, ttl: float | None = None) -> int:
        return self._keys.incr(key, ttl)

    def delete(self, key: str) -> None:
        self._keys.delete(key)

    @property
    def joins(self) -> Joins:
        return self._joins if self._database.engine.dialect.name in BEGIN else super().joins

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        group = self._tables.group
        values = {
            "result": self.encode_value(result, None, ("group", group_id)),
            "date_done": self._utc(self.clock.now() + kept),
        }
        if not self._database.execute(group.update().where(group.c.taskset_id == group_id).values(values)):
            self._database.insert(group.insert(), {"taskset_id": group_id, **values})

    def get_group(self, group_id: str) -> Any:
        group = self._tables.group
        rows = self._database.rows(sa.select(group.c.result).where(group.c.taskset_id == group_id))
        value = self._columns.value(rows[0][0], ("group", group_id)) if rows else None
        return value["result"] if isinstance(value, dict) and "result" in value else value

    def delete_group(self, group_id: str) -> None:
        group = self._tables.group
        self._database.execute(group.delete().where(group.c.taskset_id == group_id))

    # -- maintenance --

    def _utc(self, epoch: float) -> datetime:
        return from_epoch(epoch).replace(tzinfo=None)

    def sweep(self, now: float) -> int:
        task, group = self._tables.task, self._tables.group
        count = self._keys.sweep(now)
        if self.expires is None:
            return count
        oldest = self._utc(now) - timedelta(seconds=self.expires)
        for table in (task, group):
            count += self._database.execute(table.delete().where(table.c.date_done <= oldest))
        return count

    def close(self) -> None:
        super().close()
        self._database.close()
