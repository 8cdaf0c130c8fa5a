"""Joins in an SQL database: counting their parts.

Comes from:  ``settle.py``, in the transaction of the ack; ``backends/sql/joins.py``, which creates the
             tables.
Goes to:     ``qworker_join`` and ``qworker_part``, or their names in ``database_table_names``.
Thread:      any; within a transaction of the caller's.

Parts refer to their join's number, ``seq``. ``remaining`` is how many are missing, and ``due`` when it may be
claimed: 0 once all are there, otherwise when it expires, or when a claim ends. A change of a join locks its
row, so that parts are counted once; several rows are locked in the order of their ids, against deadlocks.
Parts of a deleted join are ignored. A finished join is kept without members, with -1 in ``remaining``, until
it is ``due``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from qworker.transports.join_parts import by_join
from qworker.transports.lease import Part
from qworker.transports.portions import portions

Row = tuple[Any, ...]

PORTION = 500
"""Maximum rows of one statement."""


class JoinTables(NamedTuple):
    """The names of the tables, for statements. locking: the end of a SELECT that locks its rows."""

    join: str = "qworker_join"
    part: str = "qworker_part"
    locking: str = " FOR UPDATE"


TABLES = JoinTables()
"""The default names."""


class Session(Protocol):
    """A connection: a Link, or one of the result store."""

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of *statement*."""

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run *statement*; return how many rows it changed."""


def record(session: Session, tables: JoinTables, parts: Sequence[Part]) -> None:
    """Record *parts*; those of missing joins, or with too large numbers, are ignored."""
    numbered = by_join(parts)
    found: dict[int, tuple[str, int]] = {}
    for ids in portions(numbered, PORTION):
        query = f"SELECT seq, id, size FROM {tables.join} WHERE id IN ({places(ids)}) ORDER BY id"
        found.update((seq, (name, size)) for seq, name, size in session.ask(query + tables.locking, ids))
    wanted = [
        (seq, number, part.task_id, part.status)
        for seq, (name, size) in found.items()
        for number, part in numbered.get(name, {}).items()
        if number < size
    ]
    new: dict[int, int] = defaultdict(int)
    for rows in portions(wanted, PORTION):
        there = _there(session, tables, rows)
        adding = [row for row in rows if row[:2] not in there]
        if adding:
            values = ", ".join(["(%s, %s, %s, %s)"] * len(adding))
            statement = f"INSERT INTO {tables.part} (seq, number, task_id, status) VALUES {values}"
            session.do(statement, [value for row in adding for value in row])
        for row in adding:
            new[row[0]] += 1
    _count(session, tables, new)


def _there(session: Session, tables: JoinTables, rows: Sequence[Row]) -> set[Row]:
    """Return the recorded (seq, number) of *rows*."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for seq, number, *_ in rows:
        numbers[seq].append(number)
    places_of = (f"(seq = %s AND number IN ({places(each)}))" for each in numbers.values())
    query = f"SELECT seq, number FROM {tables.part} WHERE {' OR '.join(places_of)}"
    values = [value for seq, each in numbers.items() for value in (seq, *each)]
    return {tuple(row) for row in session.ask(query, values)}


def _count(session: Session, tables: JoinTables, new: Mapping[int, int]) -> None:
    """Count the *new* parts: {seq of the join: number of parts}."""
    alike: dict[int, list[int]] = defaultdict(list)
    for seq, count in new.items():
        alike[count].append(seq)
    for count, every in sorted(alike.items()):
        for some in portions(every, PORTION):
            # MySQL sets columns from left to right, and would use the new value.
            session.do(
                f"UPDATE {tables.join} SET due = CASE WHEN remaining <= %s AND token IS NULL THEN 0 ELSE due "
                f"END, remaining = remaining - %s WHERE seq IN ({places(some)})",
                [count, count, *some],
            )


def postgresql_record(tables: JoinTables, parts: Sequence[Part]) -> tuple[str, Sequence[Any]] | None:
    """Return one statement that does the same as record(), with its values; None when there is nothing to
    record."""
    numbered = by_join(parts)
    every = [part for each in numbered.values() for part in each.values()]
    if not every:
        return None
    ids, numbers, task_ids, statuses, *_ = (list(column) for column in zip(*every, strict=True))
    return _postgresql(tables), (list(numbered), ids, numbers, task_ids, statuses)


@lru_cache(maxsize=16)
def _postgresql(tables: JoinTables) -> str:
    return f"""WITH found AS MATERIALIZED (
    SELECT seq, id, size FROM {tables.join} WHERE id = ANY(CAST(%s AS text[])) ORDER BY id FOR UPDATE),
added AS (INSERT INTO {tables.part} (seq, number, task_id, status)
    SELECT seq, number, task_id, status
    FROM unnest(CAST(%s AS text[]), CAST(%s AS bigint[]), CAST(%s AS text[]), CAST(%s AS text[]))
    AS given (id, number, task_id, status) JOIN found USING (id) WHERE number < size
    ON CONFLICT DO NOTHING RETURNING seq),
counted AS (SELECT seq, count(*) AS new FROM added GROUP BY seq)
UPDATE {tables.join} AS existing
SET due = CASE WHEN remaining <= new AND token IS NULL THEN 0 ELSE due END, remaining = remaining - new
FROM counted WHERE existing.seq = counted.seq"""


def places(values: Sequence[object]) -> str:
    """Return placeholders for this number of values."""
    return ", ".join(["%s"] * len(values))
