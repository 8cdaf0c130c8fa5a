"""The statements that store many results at once, without replacing final states; and their notifications.

Comes from:  ``backends/sql/backend.py``, and the brokers ``postgresql.py`` and ``mysql.py`` with an ack.
Goes to:     ``celery_taskmeta``, or what ``database_table_names`` calls it.
Thread:      any; pure functions.

Each takes the names of the columns and a tuple of values for each row, at most one per task, and returns
statements with their values. Usually one, more if it would be too large. makes_ids: the server assigns ids to
new rows. place: the driver's placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from qworker.transports.portions import length_of, portions_by_size
from qworker.transports.sql.result_rows import DIGEST
from qworker.transports.sql.result_states import FINAL, MAY_REPLACE

Row = tuple[Any, ...]
Steps = Iterator[tuple[str, tuple[Any, ...]]]
Upsert = Callable[[str, tuple[str, ...], Sequence[Row], bool, str], Steps]

LOOK = "look"
"""PostgreSQL's notification if the ids are too many, or too long."""
MAX_ROWS = 500
MAX_BYTES = 1024**2
"""Maximum bytes of the values of one statement, if the server limits the length of its text."""

_KINDS = {
    "result": "bytea", "children": "bytea", "args": "bytea", "kwargs": "bytea", "stamps": "bytea",
    "date_done": "timestamp", "retries": "integer",
}  # fmt: skip
"""The types of columns on PostgreSQL; the others are text."""
_LISTENERS = 7_291_407
"""The first half of the advisory lock shared by listeners."""


def channel_of(table: str) -> str:
    """Return PostgreSQL's channel for results in *table*, as an expression."""
    return f"('qworker_result_' || '{table}'::regclass::oid)"


def lock_of(table: str) -> str:
    """Return the lock that listeners for results in *table* hold, as the arguments of an advisory lock."""
    return f"{_LISTENERS}, '{table}'::regclass::oid::integer"


def postgresql_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """Return one statement for any number of rows; its first column is how many were stored.

    Those that have ended are announced after the commit: their ids, one per line, or LOOK if there are too
    many. But a commit with a notification waits for all others that have one, so it is only sent if anyone
    listens. Listeners share a lock; here it is tried, and kept until the commit if it was free, so that a new
    listener waits until results that were not announced are visible.
    """
    if rows:
        yield (
            _postgresql(table, columns, makes_ids, place),
            tuple(list(each) for each in zip(*rows, strict=True)),
        )


@lru_cache(maxsize=16)
def _postgresql(table: str, columns: tuple[str, ...], makes_ids: bool, place: str) -> str:
    arrays = ", ".join(f"CAST({place} AS {_KINDS.get(column, 'text')}[])" for column in columns)
    names = ", ".join(columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "task_id")
    key, value = ("", "") if makes_ids else ("id, ", "nextval('task_id_sequence'), ")
    may_replace = MAY_REPLACE.format(old="existing.status", new="excluded.status")
    return f"""WITH stored AS (
    INSERT INTO {table} AS existing ({key}{names}) SELECT {value}{names}
    FROM unnest({arrays}) AS given ({names})
    ON CONFLICT (task_id) DO UPDATE SET {changes} WHERE {may_replace} RETURNING task_id, status),
ended AS (SELECT string_agg(task_id, E'\\n') AS ids FROM stored WHERE status IN {FINAL})
SELECT (SELECT count(*) FROM stored), CASE WHEN ids IS NOT NULL
AND NOT pg_try_advisory_xact_lock({lock_of(table)})
    THEN pg_notify({channel_of(table)}, CASE WHEN octet_length(ids) < 8000
    AND strpos(ids, '{DIGEST}') = 0 THEN ids ELSE '{LOOK}' END)::text END
FROM ended"""


def mysql_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """For MySQL and MariaDB. Their counts of changed rows are useless: some rows count twice, others not at
    all."""
    # The status comes last, because the conditions use the old one.
    order = [name for name in columns if name not in ("task_id", "status")] + ["status"]
    may_replace = MAY_REPLACE.format(old="status", new="VALUES(status)")
    changes = ", ".join(f"{name} = IF({may_replace}, VALUES({name}), {name})" for name in order)
    key, value = ("", "") if makes_ids else ("id, ", "nextval(task_id_sequence), ")
    one = f"({value}{', '.join([place] * len(columns))})"
    for portion in portions_by_size(rows, MAX_ROWS, MAX_BYTES, length_of):
        yield (
            f"INSERT INTO {table} ({key}{', '.join(columns)}) VALUES {', '.join([one] * len(portion))} "
            f"ON DUPLICATE KEY UPDATE {changes}",
            tuple(value for row in portion for value in row),
        )


def sqlite_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """SQLite returns how many rows it stored, and assigns their ids."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "task_id")
    one = f"({', '.join([place] * len(columns))})"
    may_replace = MAY_REPLACE.format(old=f"{table}.status", new="excluded.status")
    for portion in portions_by_size(rows, MAX_ROWS, MAX_BYTES, length_of):
        yield (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([one] * len(portion))} "
            f"ON CONFLICT (task_id) DO UPDATE SET {changes} WHERE {may_replace}",
            tuple(_for_sqlite(value) for row in portion for value in row),
        )


def _for_sqlite(value: Any) -> Any:
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value


UPSERTS: dict[str, Upsert] = {
    "postgresql": postgresql_upsert,
    "mysql": mysql_upsert,
    "mariadb": mysql_upsert,
    "sqlite": sqlite_upsert,
}
"""By dialect; with others each row is stored separately."""
COUNTING = ("postgresql", "sqlite")
"""Dialects whose upsert returns how many rows it stored."""
