"""The tables of the SQL result store, in Celery's format, and SQLAlchemy's engine.

Comes from:  ``backend.py``.
Goes to:     SQLAlchemy.
Thread:      any.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc as sa_errors
from sqlalchemy.dialects.mysql import LONGBLOB, MEDIUMTEXT

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.connect_errors import PREPARE_THRESHOLD, check_libpq, prepare_threshold_of
from qworker.transports.join_parts import MAX_ID
from qworker.transports.sql.pooler import POOLER, pooler_of
from qworker.transports.sql.result_rows import LONGEST_ID
from qworker.transports.sql.schema import SQL_MODE

EXTENDED = ("name", "args", "kwargs", "worker", "retries", "queue")
"""Columns that exist if qworker created the table, or Celery with ``result_extended``."""

# Celery's column has 32 bits. Each change of a result takes a number: at 10,000 a second, they last for two
# days. SQLite only numbers INTEGER columns, which have 64 bits.
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# On MySQL, Celery's BLOB and TEXT are limited to 64 KB.
_BYTES = sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
_LONG_TEXT = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")

_ON_MYSQL: Any = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""With the database's defaults, ids that differ by case might be equal, and text outside the character set
refused."""

_DRIVERS = {
    "postgresql": ("psycopg", "psycopg2"),
    "mysql": ("pymysql", "MySQLdb"),
    "mariadb": ("pymysql", "mariadb"),
}
"""Drivers to try when the URL names none, best first, by dialect; the first is in the extra."""
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}

_LIBPQ: Mapping[str, Any] = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
_LIBMYSQL: Mapping[str, Any] = {
    "connect_timeout": 10,
    "read_timeout": 30,
    "write_timeout": 30,
    "sql_mode": SQL_MODE,
}
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "psycopg": _LIBPQ, "psycopg2": _LIBPQ, "pymysql": _LIBMYSQL, "mysqldb": _LIBMYSQL,
    "pysqlite": {"timeout": 30},
}  # fmt: skip
"""Default options for drivers: timeouts for a server that stops answering (the drivers' defaults are infinite
or many minutes), and required modes."""

_CONNECTIONS = {
    "psycopg": ("qworker.transports.sql.timeout_connection", "TimeoutConnection.connect"),
    "pymysql": ("qworker.transports.sql.limited_connection", "LimitedConnection"),
}
"""Replacements for drivers' connect functions."""


class Layout(NamedTuple):
    """columns: those columns of make_tables() that the existing table of tasks has, in a fixed order.
    makes_ids: new rows get their id from the table."""

    columns: tuple[str, ...]
    makes_ids: bool


class Tables(NamedTuple):
    """The three tables."""

    task: sa.Table
    group: sa.Table
    keyvalue: sa.Table

    def create(self, engine: sa.Engine) -> None:
        """Create missing tables."""
        _create((self.task, self.group, self.keyvalue), engine)

    def layout(self, connection: sa.Connection) -> Layout:
        """Return the layout of the existing table of tasks."""
        found = {column["name"]: column for column in sa.inspect(connection).get_columns(self.task.name)}
        key = found["id"]
        makes_ids = key["default"] is not None or key.get("autoincrement") is True
        return Layout(tuple(name for name in self.task.c.keys() if name in found), makes_ids)  # noqa: SIM118


class JoinLayout(NamedTuple):
    """The tables of joins and of their parts, which older versions did not create."""

    join: sa.Table
    part: sa.Table

    def are_there(self, connection: sa.Connection) -> bool:
        """Return whether the tables exist."""
        return sa.inspect(connection).has_table(self.part.name)

    def create(self, engine: sa.Engine) -> None:
        """Create missing tables, last the one that are_there() looks for."""
        _create((self.join, self.part), engine)


def _create(tables: Iterable[sa.Table], engine: sa.Engine) -> None:
    """Create missing tables; other processes may do so at the same time."""
    for table in tables:
        for tries_left in reversed(range(4)):
            with engine.connect() as connection:
                try:
                    table.create(connection, checkfirst=True)
                    _create_indexes(table, connection)
                    connection.commit()
                    break
                except sa_errors.DBAPIError as error:
                    # Another process has probably created it: check again.
                    if not tries_left or error.connection_invalidated:
                        raise
            time.sleep(0.05)


def _create_indexes(table: sa.Table, connection: sa.Connection) -> None:
    """Create indexes that are missing because the creation of *table* was interrupted after its first
    statement. Only if it is empty: building those of a large table of older Celery versions takes long."""
    if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
        return
    for index in table.indexes:
        try:
            index.create(connection, checkfirst=True)
        except sa_errors.DBAPIError as error:
            # Another process has just created it, or we may not: the table can be used without it.
            if error.connection_invalidated:
                raise


def make_tables(names: Mapping[str, str]) -> Tables:
    """Describe the tables. names: other names for "task", "group" and "keyvalue".

    The columns of ``result_extended`` are always created, because it may be set later; Celery ignores them.
    """
    metadata = sa.MetaData()
    task = sa.Table(
        names.get("task", "celery_taskmeta"),
        metadata,
        sa.Column("id", _ID, sa.Sequence("task_id_sequence"), primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.String(LONGEST_ID), unique=True),
        sa.Column("status", sa.String(50)),
        sa.Column("result", _BYTES),
        sa.Column("date_done", sa.DateTime, index=True),
        sa.Column("traceback", _LONG_TEXT),
        sa.Column("children", _BYTES),
        sa.Column("name", sa.String(155)),
        sa.Column("args", _BYTES),
        sa.Column("kwargs", _BYTES),
        sa.Column("worker", sa.String(155)),
        sa.Column("retries", sa.Integer),
        sa.Column("queue", sa.String(155)),
        sa.Column("stamps", _BYTES),
        sqlite_autoincrement=True,
        **_ON_MYSQL,
    )
    group = sa.Table(
        names.get("group", "celery_tasksetmeta"),
        metadata,
        sa.Column("id", _ID, sa.Sequence("taskset_id_sequence"), primary_key=True, autoincrement=True),
        sa.Column("taskset_id", sa.String(LONGEST_ID), unique=True),
        sa.Column("result", _BYTES),
        sa.Column("date_done", sa.DateTime, index=True),
        sqlite_autoincrement=True,
        **_ON_MYSQL,
    )
    keyvalue = sa.Table(
        names.get("keyvalue", "qworker_keyvalue"),
        metadata,
        sa.Column("key", sa.String(250), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Double, index=True),
        **_ON_MYSQL,
    )
    return Tables(task, group, keyvalue)


def make_join_layout(names: Mapping[str, str]) -> JoinLayout:
    """Describe the tables of joins, whose statements are in ``joins.py``. names: other names for "join" and
    "part"."""
    metadata = sa.MetaData()
    join = sa.Table(
        names.get("join", "qworker_join"),
        metadata,
        sa.Column("seq", _ID, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(MAX_ID), unique=True, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("remaining", sa.BigInteger, nullable=False),
        sa.Column("due", sa.Double, index=True),
        sa.Column("token", sa.String(32)),
        sa.Column("expires", sa.Double),
        sa.Column("body", _BYTES, nullable=False),
        **_ON_MYSQL,
    )
    part = sa.Table(
        names.get("part", "qworker_part"),
        metadata,
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("status", sa.String(50), nullable=False),
        **_ON_MYSQL,
    )
    return JoinLayout(join, part)


def connect(url: str, options: dict[str, Any], short_lived: bool) -> sa.Engine:
    """Return the engine for ``db+…`` *url*; it connects on first use.

    Raises ConfigurationError for a URL that SQLAlchemy does not understand, or a driver that is not
    installed.
    """
    try:
        parsed = sa.make_url(url.removeprefix("db+"))
        dialect = parsed.get_backend_name()
        if "+" not in parsed.drivername and dialect in _DRIVERS:
            installed = [driver for driver in _DRIVERS[dialect] if find_spec(driver) is not None]
            if not installed:
                raise ConfigurationError(
                    f"result_backend: no driver for {dialect} is installed: "
                    f"{install_command(_EXTRAS[dialect])}",
                    setting="result_backend",
                )
            driver = {"MySQLdb": "mysqldb", "mariadb": "mariadbconnector"}.get(installed[0], installed[0])
            parsed = parsed.set(drivername=f"{dialect}+{driver}")
        parsed = _with_options(parsed, options)
        usual = _USUAL.get(parsed.get_driver_name(), {})
        timeouts = {name: value for name, value in usual.items() if name not in parsed.query}
        options["connect_args"] = {**timeouts, **options.get("connect_args", {})}
        if short_lived:
            options.setdefault("poolclass", sa.NullPool)
        options.setdefault("pool_pre_ping", True)
        engine = sa.create_engine(parsed, isolation_level="AUTOCOMMIT", **options)
        if own := _CONNECTIONS.get(parsed.get_driver_name()):
            module, path = own
            made = attrgetter(path)(import_module(module))
            sa.event.listen(engine, "do_connect", lambda dialect, record, args, given: made(*args, **given))
        return engine
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"result_backend needs the module {error.name}, which is not installed: for PostgreSQL "
            f"{install_command('postgresql')}, for MySQL and MariaDB {install_command('mysql')}",
            setting="result_backend",
        ) from None
    except (sa_errors.ArgumentError, sa_errors.NoSuchModuleError, TypeError) as error:
        raise ConfigurationError(f"result_backend: {error}", setting="result_backend") from None


def _with_options(url: sa.URL, options: dict[str, Any]) -> sa.URL:
    """Add the connection options in *url* to *options*; return the rest of the URL for SQLAlchemy.

    For PyMySQL, parameters are read by the code that reads those of the broker's URL.
    """
    if url.get_backend_name() == "postgresql":
        check_libpq(url.query, "result_backend")
        if url.drivername.endswith("+psycopg") and (prepared := url.query.get(PREPARE_THRESHOLD)):
            number = prepare_threshold_of(str(prepared), "result_backend")
            options["connect_args"] = {PREPARE_THRESHOLD: number, **options.get("connect_args", {})}
            url = url.difference_update_query([PREPARE_THRESHOLD])
        _set_pooler(url, options)
        url = url.difference_update_query([POOLER])
        if url.drivername.endswith("+psycopg"):
            psycopg = import_module("psycopg")
            try:
                psycopg.conninfo.make_conninfo(**dict.fromkeys(url.query, ""))
            except psycopg.ProgrammingError as error:
                raise ConfigurationError(f"result_backend: {error}", setting="result_backend") from None
    if not url.drivername.endswith("+pymysql"):
        return url
    # Imported here, because it loads OpenSSL, which PyMySQL needs in any case.
    read = import_module("qworker.transports.sql.mysql_options").options_of
    asked = read(((name, str(value)) for name, value in url.query.items()), "result_backend")
    if asked.tls is not None:
        asked.tls.checked("result_backend")
    options["connect_args"] = {**asked.arguments(), **options.get("connect_args", {})}
    return url.set(query={})


def _set_pooler(url: sa.URL, options: dict[str, Any]) -> None:
    """Move what *options* or *url* say about poolers to the options of psycopg, and of the engine."""
    arguments = dict(options.get("connect_args", {}))
    pooler = arguments.pop(POOLER, url.query.get(POOLER))
    if pooler is not None:
        options["execution_options"] = {
            **options.get("execution_options", {}),
            POOLER: pooler_of(pooler, "result_backend"),
        }
        if url.drivername.endswith("+psycopg"):
            arguments[POOLER] = pooler
        options["connect_args"] = arguments
