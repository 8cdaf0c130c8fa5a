"""Results in an SQL database, in Celery's tables.

Comes from:  ``result_backend = "db+postgresql://…"``, ``db+mysql://…``, ``db+sqlite:///…``.
Goes to:     ``celery_taskmeta`` and ``celery_tasksetmeta``, through ``database.py``; locks and counters in a
             separate table, joins in ``joins.py``.
Thread:      any.

Batches of rows are stored by one statement, if ``transports/sql/result_upserts.py`` has one for the database.
Otherwise, and for a single row if that statement does not count rows, a row is inserted after a read has
found none, or replaced by an UPDATE whose WHERE excludes final states, so that two writers cannot conflict.

PostgreSQL notifies waiters of results, unless a pooler is in between; on other databases they poll.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors

from qworker import states
from qworker.backends.base import Backend, Found, Meta
from qworker.backends.codec import About
from qworker.backends.joins import Joins
from qworker.backends.place import file_of
from qworker.backends.sql.database import BEGIN, CANNOT_STORE, Database, SQLJoinDatabase, cannot_store
from qworker.backends.sql.joins import SQLJoins
from qworker.backends.sql.tables import EXTENDED, connect, make_join_layout, make_tables
from qworker.clock import Clock, from_epoch, isoformat, parse_iso
from qworker.errors import DamagedResult, EncodeError
from qworker.interrupts import reraise_interrupt
from qworker.message import plain_pickle
from qworker.message.plain_pickle import CLASSES, RefusedPickle
from qworker.safe_repr import safe_repr, storable
from qworker.transports.lease import ResultRow, latest
from qworker.transports.portions import portions
from qworker.transports.sql.link import detach_socket
from qworker.transports.sql.pooler import POOLER, is_pooled
from qworker.transports.sql.result_rows import key_of, pack, place_of, unpack
from qworker.transports.sql.result_states import MAY_REPLACE
from qworker.transports.sql.result_upserts import COUNTING, LOOK, UPSERTS, channel_of, lock_of

DRIVERS = ("psycopg", "psycopg2")
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class ListenConnection:
    """A Source: PostgreSQL announces results on it, by psycopg or psycopg2. connection: the driver's, where
    LISTEN was sent. close: closes it."""

    def __init__(self, connection: Any, close: Callable[[], None]) -> None:
        self._connection = connection
        self._close = close
        with suppress(OSError):  # a UNIX socket
            _keep_alive(connection.fileno())

    def fileno(self) -> int:
        return int(self._connection.fileno())

    def subscribe(self, ids: Collection[str]) -> None:
        """Do nothing, because the server announces all tasks."""

    def announced(self) -> Collection[str] | None:
        announced = [task_id for payload in self._payloads() for task_id in payload.split("\n")]
        return None if LOOK in announced else announced

    def _payloads(self) -> list[str]:
        if hasattr(self._connection, "pgconn"):
            server = self._connection.pgconn
            server.consume_input()
            payloads = []
            while (notification := server.notifies()) is not None:
                payloads.append(notification.extra.decode("utf-8", "replace"))
            return payloads
        self._connection.poll()
        payloads = [notification.payload for notification in self._connection.notifies]
        self._connection.notifies.clear()
        return payloads

    def close(self) -> None:
        self._close()

    def abandon(self) -> None:
        with suppress(Exception):  # it may be closed already
            detach_socket(self.fileno())


def _keep_alive(file: int) -> None:
    """Enable TCP keepalive, because this connection only receives."""
    with socket.socket(fileno=os.dup(file)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Columns:
    """Converts results of *backend*. extended: include EXTENDED and stamps."""

    def __init__(self, backend: Backend, extended: bool) -> None:
        self._backend = backend
        self._codec = backend.codec
        self._extended = extended

    def of(self, task_id: str, meta: Meta) -> dict[str, Any]:
        """Return the columns of a row, as plain values, without accessing the database. Raises EncodeError
        like ResultCodec.encode()."""
        key = key_of(task_id)
        row = {
            "status": meta["status"],
            "result": self._codec.encode_result(meta.get("result"), ("result", key, meta["status"])),
            "traceback": _text(meta.get("traceback")),
            "children": self._column("children", key, meta.get("children") or None),
            "date_done": meta.get("date_done"),
        }
        for name in EXTENDED if self._extended else ():
            value = meta.get(name)
            row[name] = self._column(name, key, value) if name in ("args", "kwargs") else _text(value)
        if self._extended and (names := meta.get("stamped_headers")):
            stamps = {name: meta[name] for name in names if name in meta}
            row["stamps"] = self._column("stamps", key, {"stamped_headers": names, "stamps": stamps})
        return row

    def _column(self, name: str, key: str, value: Any) -> bytes | None:
        return None if value is None else self._codec.encode_value(value, (name, key))

    def found(self, row: Mapping[str, Any], task_id: str) -> Found | None:
        """Return the metadata in *row* of *task_id*, or why it cannot be read; None when it has expired."""
        try:
            return self._meta(row, task_id)
        except DamagedResult as error:
            return error
        except Exception as error:  # noqa: BLE001
            # Some databases accept values of the wrong type.
            reraise_interrupt(error)
            return self._codec.damaged(task_id, f"cannot be read: {error}")

    def _meta(self, row: Mapping[str, Any], task_id: str) -> Meta | None:
        done = row["date_done"]
        if done is not None:
            done = done.replace(tzinfo=UTC)
            if (
                self._backend.expires is not None
                and done.timestamp() + self._backend.expires <= self._backend.clock.now()
            ):
                return None
        key, status = row["task_id"], row["status"] or states.PENDING
        if not isinstance(status, str):
            raise TypeError(f"its status is {status!r:.80}")
        meta: Meta = {
            "task_id": task_id,
            "status": status,
            "result": self.value(row["result"], ("result", key, status), task_id),
            "traceback": row["traceback"],
            "children": self.value(row.get("children"), ("children", key), task_id) or [],
            "date_done": done.isoformat() if done is not None else None,
        }
        for name in EXTENDED:
            if name in row and (self._extended or row[name] is not None):
                value = row[name]
                called = name in ("args", "kwargs")
                meta[name] = self.value(value, (name, key), task_id) if called else value
        stamps = self.value(row.get("stamps"), ("stamps", key), task_id)
        if isinstance(stamps, dict) and isinstance(stamps.get("stamps"), dict):
            meta = {**stamps["stamps"], **meta, "stamped_headers": stamps.get("stamped_headers")}
        return meta

    def value(self, data: Any, about: About, task_id: str | None = None) -> Any:
        """Return the value in a column: serialised by qworker or Celery 5.7, or pickled by an older Celery.
        Raises DamagedResult."""
        if data is None:
            if not self._codec.signs or about[0] != "result":
                return None
            data = b""  # so that the missing signature is reported
        payload = data.encode() if isinstance(data, str) else bytes(data)
        if is_pickle(payload) and self._codec.serializer != "pickle" and not self._codec.signs:
            return load_plain(payload, self._codec.called(task_id), task_id)
        return self._codec.decode_value(payload, about, task_id)


def _text(value: Any) -> Any:
    """Return *value* in the form of a text column."""
    return storable(value) if type(value) is str else value


# -- Results pickled by an older Celery: only plain data is accepted --


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replaces ``_codecs.encode``, which builds bytes in pickles of protocol 2."""
    return text.encode("latin1")


def _described(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the tuple format of a pickled AsyncResult or GroupResult."""
    if name == "GroupResult":
        group_id, children = arguments[:2]
        return [[group_id, arguments[2] if len(arguments) > 2 else None], children]
    if name == "AsyncResult":
        return [[arguments[0], arguments[4] if len(arguments) > 4 else None], None]
    raise RefusedPickle(f"it holds a {safe_repr(name, 100)}")


def _no_backend(*arguments: Any) -> None:
    """Replaces the function that opens the store of a pickled result."""


_CLASSES = {
    **CLASSES,
    ("_codecs", "encode"): _latin1,
    ("builtins", "bytearray"): bytearray,
    ("celery.app.base", "_unpickle_appattr"): _described,
    ("celery.backends.base", "unpickle_backend"): _no_backend,
    ("celery.backends.database", "DatabaseBackend"): None,
    ("collections", "OrderedDict"): dict,
    ("uuid", "UUID"): UUID,
}


def is_pickle(payload: bytes) -> bool:
    """Return whether *payload* begins like a pickle of protocol 2 or later, not like JSON, YAML or text."""
    return payload[:1] == b"\x80"


def load_plain(payload: bytes, called: str, task_id: str | None = None) -> Any:
    """Return the plain value pickled in *payload*. Raises DamagedResult for any other content.

    called: the name of the stored data in errors; task_id: its owner.
    """
    try:
        return plain_pickle.load_plain(payload, _CLASSES)
    except Exception as error:  # noqa: BLE001 - damaged pickles may raise anything
        raise DamagedResult(
            f"{called} was pickled by Celery 5.6 or before, and only plain data is read from a pickle; "
            f"{str(error)[:200]}. Read it with that Celery, or delete the row",
            task_id,
        ) from None


class KeyTable:
    """The table ``qworker_keyvalue``. A lock is a row; a counter is the row's value."""

    def __init__(self, database: Database, table: sa.Table, clock: Clock) -> None:
        self._database = database
        self._table = table
        self._clock = clock

    def add(self, key: str, ttl: float | None) -> bool:
        """See Backend.add()."""
        return self._add(key, 1, ttl)

    def _add(self, key: str, value: int, ttl: float | None) -> bool:
        self._forget_expired(key)
        values = {"key": key, "value": value, "expires": self._expiry(ttl)}
        return self._database.insert(self._table.insert(), values)

    def hold(self, key: str, holder: int, ttl: float) -> int:
        """Give *key* to *holder* for *ttl* seconds, unless it has a holder; return the holder."""
        query = sa.select(self._table.c.value).where(self._table.c.key == key)
        while not self._add(key, holder, ttl):
            held = self._database.run(lambda connection: connection.execute(query).scalar())
            if held is not None:
                return int(held)
        return holder

    def incr(self, key: str, ttl: float | None) -> int:
        """See Backend.incr()."""
        while True:
            self._forget_expired(key)
            value = self._database.run(lambda connection: self._count(connection, key, ttl))
            if value is not None:
                return value
            if self.add(key, ttl):
                return 1

    def _count(self, connection: sa.Connection, key: str, ttl: float | None) -> int | None:
        """Add 1 to an existing counter; None: there is none."""
        table = self._table
        higher = table.update().where(table.c.key == key)
        higher = higher.values(value=table.c.value + 1, expires=self._expiry(ttl))
        # One transaction: the UPDATE locks the row that the SELECT reads.
        level = "SERIALIZABLE" if connection.dialect.name == "sqlite" else "READ COMMITTED"
        with connection.execution_options(isolation_level=level).begin():
            if not connection.execute(higher).rowcount:
                return None
            return int(connection.execute(sa.select(table.c.value).where(table.c.key == key)).scalar_one())

    def delete(self, key: str) -> None:
        """See Backend.delete()."""
        self._database.execute(self._table.delete().where(self._table.c.key == key))

    def sweep(self, now: float) -> int:
        """Delete rows that expired before epoch second *now*; return their number."""
        return self._database.execute(self._table.delete().where(self._table.c.expires <= now))

    def _forget_expired(self, key: str) -> None:
        table = self._table
        self._database.execute(table.delete().where(table.c.key == key, table.c.expires <= self._clock.now()))

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock.now() + ttl


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
        self._joins = SQLJoins(SQLJoinDatabase(database, layout, url, self._keys.hold), clock)
        self._columns = Columns(self, self._extended)
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
            raise cannot_store(error) from error

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
            raise cannot_store(error.orig) from error

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
                why = str(error).removeprefix(CANNOT_STORE)
                return {task_id: self.codec.damaged(task_id, f"cannot be read: {why}")}
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
            "result": self.codec.encode_value(result, ("group", group_id)),
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
