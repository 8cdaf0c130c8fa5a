"""store: the broker's tables in the project's database, and the views of its queue.

Comes from:  the migrations, with Django's schema editor.
Goes to:     the database in the key ``orm``; if it is not set, every database that is migrated.
Thread:      the one that migrates.

The tables are those that a worker creates, ``message`` and others in an SQLite file, ``qworker_message`` and
others on PostgreSQL and MySQL, made by the transport's statements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.db import connections, router, transaction
from django.db.migrations.recorder import MigrationRecorder

from qworker.django.conf import conf
from qworker.errors import ConfigurationError
from qworker.transports.sql.embedded.database import schema_statements
from qworker.transports.sql.embedded.schema import ADDED_COLUMNS
from qworker.transports.sql.schema import ADDITIONS, MYSQL, POSTGRESQL, VERSION

QUEUE_MIGRATION = "0004_queue"
"""The last migration that creates them."""
VIEW, OWNER_VIEW = "qworker_ormq", "qworker_ormq_owner"
_COLUMNS = "state, due, owner, sent, deliveries, headers, body"
ELSEWHERE = "set Q_CLUSTER['orm'] to another database, or exclude the app from this one with a router"
_TABLE = ["CREATE", "TABLE", "IF", "NOT", "EXISTS"]


class Dialect(NamedTuple):
    """The statements for one kind of database. message, owner: the tables of the views."""

    tables: Sequence[str]
    views: Sequence[str]
    message: str
    owner: str
    forget: Sequence[str] = ()


def _views(message: str, owner: str, quote: str, create: str = "CREATE OR REPLACE VIEW") -> tuple[str, ...]:
    """Return statements that create the views, or keep those that exist after an interruption."""
    return (
        f"{create} {VIEW} AS SELECT tag AS id, queue AS {quote}key{quote}, {_COLUMNS} FROM {message} "
        "WHERE state IN (0, 1, 2)",
        f"{create} {OWNER_VIEW} AS SELECT id, name, lease_until FROM {owner}",
    )


_TRIGGERS = (
    f"CREATE TRIGGER IF NOT EXISTS {VIEW}_delete INSTEAD OF DELETE ON {VIEW} "
    "BEGIN DELETE FROM message WHERE tag = old.id; END",
    f"CREATE TRIGGER IF NOT EXISTS {VIEW}_update INSTEAD OF UPDATE ON {VIEW} "
    "BEGIN UPDATE message SET queue = new.key, state = new.state, due = new.due, owner = new.owner "
    "WHERE tag = old.id; END",
)
"""SQLite's views can only be changed through triggers."""


def _kinds() -> Mapping[str, Dialect]:
    return {
        "sqlite": Dialect(
            schema_statements(),
            (*_views("message", "owner", '"', "CREATE VIEW IF NOT EXISTS"), *_TRIGGERS),
            "message",
            "owner",
            ("PRAGMA user_version = 0",),
        ),
        "postgresql": Dialect(
            (*POSTGRESQL, f"INSERT INTO qworker_schema VALUES (1, {VERSION}) ON CONFLICT DO NOTHING"),
            _views("qworker_message", "qworker_owner", '"'),
            "qworker_message",
            "qworker_owner",
        ),
        "mysql": Dialect(
            (
                *MYSQL,
                f"INSERT IGNORE INTO qworker_schema (id, version) VALUES (1, {VERSION})",
            ),
            _views("qworker_message", "qworker_owner", "`"),
            "qworker_message",
            "qworker_owner",
        ),
    }


def is_broker(connection: Any) -> bool:
    """Return whether the queue's tables belong in the database of Django's *connection*."""
    return connection.vendor in ("sqlite", "postgresql", "mysql") and conf.orm in (None, connection.alias)


def make_tables(_apps: Any, schema_editor: Any) -> None:
    """Create missing tables. Raises ConfigurationError if other tables have their names."""
    connection = schema_editor.connection
    if not is_broker(connection):
        return
    if connection.vendor == "sqlite":
        _refuse_strangers(connection)
        if _is_made(connection):  # made by a cluster: the store upgrades its tables itself
            return
    _do(connection, _kinds()[connection.vendor].tables)
    if connection.vendor != "sqlite":
        _add_columns(connection)


def _is_made(connection: Any) -> bool:
    """Return whether a store has already created its tables in an SQLite file. Raises ConfigurationError if
    the file's user_version is used by another program."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA user_version")
        version = cursor.fetchone()[0]
        if version and "message" not in connection.introspection.table_names(cursor):
            raise ConfigurationError(
                f"the database {connection.alias!r} has the user_version {version} of another program, but "
                f"qworker stores the version of its tables there: {ELSEWHERE}"
            )
    return bool(version)


def _add_columns(connection: Any) -> None:
    """Add columns that older tables lack, as the store does."""
    with connection.cursor() as cursor:
        for number, (table, column, kind) in enumerate(ADDITIONS, 2):
            known = {each.name for each in connection.introspection.get_table_description(cursor, table)}
            if column and column not in known:
                cursor.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
            cursor.execute("SELECT 1 FROM qworker_schema WHERE id = %s", [number])
            if cursor.fetchone() is None:
                cursor.execute("INSERT INTO qworker_schema (id, version) VALUES (%s, %s)", [number, VERSION])


def drop_tables(_apps: Any, schema_editor: Any) -> None:
    """Drop the tables with all messages."""
    connection = schema_editor.connection
    if is_broker(connection):
        kind = _kinds()[connection.vendor]
        _do(connection, [f"DROP TABLE IF EXISTS {name}" for name in _names(kind)])
        _do(connection, kind.forget)


def make_views(_apps: Any, schema_editor: Any) -> None:
    """Create the views that the queue's models read."""
    if is_broker(schema_editor.connection):
        _do(schema_editor.connection, _kinds()[schema_editor.connection.vendor].views)


def drop_views(_apps: Any, schema_editor: Any) -> None:
    """Drop the views; the messages remain."""
    if is_broker(schema_editor.connection):
        _do(schema_editor.connection, [f"DROP VIEW IF EXISTS {name}" for name in (VIEW, OWNER_VIEW)])


def make_what_is_missing(using: str, app_config: Any, **_signal: Any) -> None:
    """Create tables and views in the database *using*, if it became the broker after it was migrated.

    A receiver of Django's post_migrate: the migrations themselves are not applied again.
    """
    connection = connections[using]
    if not (is_broker(connection) and router.allow_migrate(using, app_config.label, model_name="ormq")):
        return
    if (app_config.label, QUEUE_MIGRATION) not in MigrationRecorder(connection).applied_migrations():
        return  # it was reversed
    with connection.cursor() as cursor:
        there = {table.name for table in connection.introspection.get_table_list(cursor)}
    if not {VIEW, OWNER_VIEW} <= there:
        with transaction.atomic(using):
            editor = SimpleNamespace(connection=connection)
            make_tables(None, editor)
            make_views(None, editor)


def _names(kind: Dialect) -> list[str]:
    words = [statement.split() for statement in kind.tables]
    return [found[len(_TABLE)] for found in words if found[: len(_TABLE)] == _TABLE]


def _do(connection: Any, statements: Sequence[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _refuse_strangers(connection: Any) -> None:
    """Raise ConfigurationError if a project's own table in an SQLite file has the name of one of ours."""
    with closing(sqlite3.connect(":memory:")) as memory, connection.cursor() as cursor:
        for statement in schema_statements():
            memory.execute(statement)
        for name in _names(_kinds()["sqlite"]):
            cursor.execute(f"PRAGMA table_info({name})")
            there = {column[1] for column in cursor.fetchall()}
            ours = {column[1] for column in memory.execute(f"PRAGMA table_info({name})")}
            ours -= {column for table, column, _ in ADDED_COLUMNS if table == name}  # an older file lacks it
            if there and not ours <= there:
                raise ConfigurationError(
                    f"the database {connection.alias!r} has a table {name} that is not qworker's: {ELSEWHERE}"
                )
