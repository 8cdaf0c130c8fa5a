"""The statements that store many results at once, over no state that may not be replaced; and how they are
told of.

Comes from:  ``backends/sql/backend.py``, and the brokers ``postgresql.py`` and ``mysql.py`` with an ack.
Goes to:     ``celery_taskmeta``, or what ``database_table_names`` calls it.
Thread:      any; pure functions.

Each of them takes the names of the columns and a tuple of their values for each row, no task twice, and gives
statements with their values. One is enough, but for what is too large for one. makes_ids: the server gives a
new row its id. place: how the driver writes the place of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from qworker import states
from qworker.transports.sql.result_rows import DIGEST

Row = tuple[Any, ...]
Steps = Iterator[tuple[str, tuple[Any, ...]]]
Upsert = Callable[[str, tuple[str, ...], Sequence[Row], bool, str], Steps]

LOOK = "look"
"""What PostgreSQL tells instead of ids that are too many for one notification, or not all whole."""
MAX_ROWS = 500
MAX_BYTES = 1024**2
"""Of the values of one statement, where the server limits the length of its text."""

_FINAL = "({})".format(", ".join(f"'{state}'" for state in sorted(states.READY_STATES)))
_MAY_REPLACE = (
    "{old} IS NULL OR ({old} <> 'SUCCESS' AND ({old} NOT IN " + _FINAL + " OR {new} IN " + _FINAL + "))"
)
"""As states.may_replace() has it."""
_KINDS = {
    "result": "bytea", "children": "bytea", "args": "bytea", "kwargs": "bytea", "stamps": "bytea",
    "date_done": "timestamp", "retries": "integer",
}  # fmt: skip
"""The types of columns on PostgreSQL; the others are text."""
_LISTENERS = 7_291_407
"""The first half of the advisory lock that whoever listens shares."""


def channel_of(table: str) -> str:
    """The channel on which PostgreSQL tells of results in *table*, as an expression."""
    return f"('qworker_result_' || '{table}'::regclass::oid)"


def lock_of(table: str) -> str:
    """What who listens for results in *table* keeps locked, as the arguments of an advisory lock."""
    return f"{_LISTENERS}, '{table}'::regclass::oid::integer"


def postgresql_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """One statement, whatever the number of rows; its first column says how many were stored.

    Those of them that have ended are told of once it is committed: their ids, one a line, or LOOK where they
    are too many. But a commit that tells waits for all others that do, so it tells only if somebody listens.
    Who listens shares a lock; here it is tried, and kept until the commit if it was free, so that whoever
    comes to listen waits until what was not told can be seen.
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
    may_replace = _MAY_REPLACE.format(old="standing.status", new="excluded.status")
    return f"""WITH stored AS (
    INSERT INTO {table} AS standing ({key}{names}) SELECT {value}{names}
    FROM unnest({arrays}) AS given ({names})
    ON CONFLICT (task_id) DO UPDATE SET {changes} WHERE {may_replace} RETURNING task_id, status),
ended AS (SELECT string_agg(task_id, E'\\n') AS ids FROM stored WHERE status IN {_FINAL})
SELECT (SELECT count(*) FROM stored), CASE WHEN ids IS NOT NULL
AND NOT pg_try_advisory_xact_lock({lock_of(table)})
    THEN pg_notify({channel_of(table)}, CASE WHEN octet_length(ids) < 8000
    AND strpos(ids, '{DIGEST}') = 0 THEN ids ELSE '{LOOK}' END)::text END
FROM ended"""


def mysql_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """For MySQL and MariaDB. How many rows they say they changed is of no use: they count some twice, others
    not."""
    # The status comes last: the conditions look at what stood there before.
    order = [name for name in columns if name not in ("task_id", "status")] + ["status"]
    may_replace = _MAY_REPLACE.format(old="status", new="VALUES(status)")
    changes = ", ".join(f"{name} = IF({may_replace}, VALUES({name}), {name})" for name in order)
    key, value = ("", "") if makes_ids else ("id, ", "nextval(task_id_sequence), ")
    one = f"({value}{', '.join([place] * len(columns))})"
    for portion in _portions(rows):
        yield (
            f"INSERT INTO {table} ({key}{', '.join(columns)}) VALUES {', '.join([one] * len(portion))} "
            f"ON DUPLICATE KEY UPDATE {changes}",
            tuple(value for row in portion for value in row),
        )


def sqlite_upsert(
    table: str, columns: tuple[str, ...], rows: Sequence[Row], makes_ids: bool, place: str = "%s"
) -> Steps:
    """SQLite says how many rows it stored, and gives them their ids."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "task_id")
    one = f"({', '.join([place] * len(columns))})"
    may_replace = _MAY_REPLACE.format(old=f"{table}.status", new="excluded.status")
    for portion in _portions(rows):
        yield (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([one] * len(portion))} "
            f"ON CONFLICT (task_id) DO UPDATE SET {changes} WHERE {may_replace}",
            tuple(_for_sqlite(value) for row in portion for value in row),
        )


def _for_sqlite(value: Any) -> Any:
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value


def _portions(rows: Sequence[Row]) -> Iterator[list[Row]]:
    portion: list[Row] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row if isinstance(value, bytes | str))
        if portion and (len(portion) == MAX_ROWS or size + length > MAX_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += length
    if portion:
        yield portion


UPSERTS: dict[str, Upsert] = {
    "postgresql": postgresql_upsert,
    "mysql": mysql_upsert,
    "mariadb": mysql_upsert,
    "sqlite": sqlite_upsert,
}
"""By the dialect; on others a row is stored at a time."""
COUNTING = ("postgresql", "sqlite")
"""Where the upsert tells how many rows it stored."""
