"""Task rows: how finished tasks come into the table of the model ``Task``.

Comes from:  ``execution/results.py``, in the child that ran the task; the transaction of the ack.
Goes to:     the table of ``Task``.
Thread:      any; functions.

A row of a result carries the columns of ``Task`` as values for the database, so that storing it needs no
model. A recorded success stays; a failure is replaced by later ends.
"""

from __future__ import annotations

import marshal
import math
import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import cache
from typing import Any

from django.db import Error, connections, router, transaction

from qworker import states
from qworker.django.models import Task
from qworker.django.signing import PROTOCOL
from qworker.django.transports.notifications import notify, notifying
from qworker.errors import EncodeError
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr
from qworker.transports.lease import ResultRow
from qworker.transports.portions import length_of, portions_by_size
from qworker.transports.sql import refusals

MARK = b"\x00task"
"""The beginning of a task row's payload; others are results of qworker's own."""
PORTION = 200
"""Rows of one statement."""
COLUMNS = (
    "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started", "stopped",
    "success", "attempt_count", "package",
)  # fmt: skip

_KNOWN_BY = [COLUMNS.index(name) for name in ("id", "name", "group")]
PICKLED = frozenset(["args", "kwargs", "result"])
PORTION_BYTES = 1_000_000
"""Size of the rows of one statement; a larger row has its own."""
LARGE = 500_000
"""Bytes of a row from which on the maximum length of a statement is checked."""
ROOM = 4096
"""Bytes of a statement beside its values."""


def pack(values: Mapping[str, Any], alias: str) -> bytes:
    """Return the payload of the row with *values* of the fields of ``Task``, for the database *alias*.

    Raises EncodeError for a result that cannot be pickled, or is larger than the database accepts. A failure
    is always stored: oversized texts are cut. The package that was sent is left out first.
    """
    connection = connections[alias]
    row: list[Any] = []
    for name in COLUMNS:
        value = values.get(name)
        if name in PICKLED:
            value = None if value is None else _pickled(value)
        elif isinstance(value, datetime):
            value = connection.ops.adapt_datetimefield_value(value)
            value = value.isoformat(" ") if isinstance(value, datetime) else value
        row.append(value)
    payload = MARK + marshal.dumps(tuple(row))
    if len(payload) < LARGE or len(payload) + ROOM < (most := longest(connection)):
        return payload
    # It contains the arguments once more, and is only needed to send the task again
    if values.get("package"):
        return pack({**values, "package": ""}, alias)
    if values["success"]:
        raise EncodeError(f"the result and its arguments are larger than {alias!r} takes, {most} bytes")
    text = str(values["result"])
    shorter = text if len(text) < LARGE // 4 else f"{text[: LARGE // 8]}\n...\n{text[-LARGE // 8 :]}"
    args, kwargs = (safe_repr(values["args"]),), {"kwargs": safe_repr(values["kwargs"])}
    return pack({**values, "result": shorter, "args": args, "kwargs": kwargs, "package": ""}, alias)


def longest(connection: Any) -> float:
    """Return the maximum bytes of a statement for Django's *connection*."""
    if connection.vendor != "mysql":
        return math.inf
    if connection.alias not in _longest:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            _longest[connection.alias] = int(cursor.fetchone()[0])
    return _longest[connection.alias]


_longest: dict[str, int] = {}


def refused(payload: bytes, why: str) -> bytes:
    """Return the replacement of a *payload* that the database refuses: a failure without arguments."""
    values = dict(zip(COLUMNS, unpack(payload), strict=True))
    values |= {
        "success": False,
        "result": _pickled(why),
        "args": _pickled(()),
        "kwargs": _pickled({}),
        "package": "",
    }
    return MARK + marshal.dumps(tuple(values[name] for name in COLUMNS))


def _pickled(value: Any) -> str:
    """*value* as the model's fields keep it."""
    try:
        return b64encode(pickle.dumps(value, PROTOCOL)).decode()
    except Exception as error:
        reraise_interrupt(error)
        raise EncodeError(f"the result cannot be pickled: {type(error).__name__}: {error}") from error


def unpack(payload: bytes) -> tuple[Any, ...]:
    """Return the columns that pack() has put into *payload*."""
    columns: tuple[Any, ...] = marshal.loads(payload[len(MARK) :])
    return columns


def is_success(payload: bytes) -> bool:
    """Tell whether the task that pack() has made *payload* of is a success."""
    return bool(unpack(payload)[COLUMNS.index("success")])


def values_of(payload: bytes) -> dict[str, Any]:
    """Return the fields that pack() has made *payload* of; instants as the database takes them.

    Raises the errors of unpickling.
    """
    return {
        name: pickle.loads(b64decode(value)) if name in PICKLED and value is not None else value
        for name, value in zip(COLUMNS, unpack(payload), strict=True)
    }


def is_task(row: ResultRow) -> bool:
    """Tell whether *row* is one of the table of ``Task``."""
    return row[2].startswith(MARK)


@cache
def statement(vendor: str, table: str, rows: int = 1, place: str = "%s") -> str:
    """Return a statement that inserts so many rows, or updates existing ones except successes; on PostgreSQL
    it notifies, too."""
    quoted = "`{}`" if vendor == "mysql" else '"{}"'
    names = [quoted.format(name) for name in COLUMNS]
    places = ", ".join([f"({', '.join([place] * len(names))})"] * rows)
    where = quoted.format(table)
    insert = f"INSERT INTO {where} ({', '.join(names)}) VALUES {places}"
    changed, success = [name for name in names[1:] if "success" not in name], quoted.format("success")
    if vendor == "mysql":  # evaluated from left to right: the old success is checked before it is changed
        sets = [f"{name} = IF({success}, {name}, VALUES({name}))" for name in changed]
        sets.append(f"{success} = {success} OR VALUES({success})")
        return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(sets)}"
    sets = [f"{name} = excluded.{name}" for name in (*changed, success)]
    upsert = f"{insert} ON CONFLICT ({names[0]}) DO UPDATE SET {', '.join(sets)} WHERE NOT {where}.{success}"
    return notifying(upsert, table) if vendor == "postgresql" else upsert


def latest(rows: Sequence[ResultRow]) -> list[tuple[Any, ...]]:
    """Return the columns of *rows*, of each task once: its success, or else the latest. Sorted, against
    deadlocks."""
    found: dict[str, tuple[Any, ...]] = {}
    place = COLUMNS.index("success")
    for row in rows:
        columns = unpack(row[2])
        standing = found.get(columns[0])
        if standing is None or not standing[place]:
            found[columns[0]] = columns
    return [found[identity] for identity in sorted(found)]


def store(rows: Sequence[ResultRow], alias: str) -> None:
    """Store *rows* by Django's connection to *alias*, and notify waiting callers, once they are committed."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        for query, values in statements(connection.vendor, rows):
            cursor.execute(query, values)
    notify(connection, [text for row in rows for text in _told_of(unpack(row[2]))])


def save(values: Mapping[str, Any]) -> None:
    """Store the values of one ``Task`` at once, by this process's own connection. Values that the database
    refuses are stored as a failure."""
    alias = router.db_for_write(Task)
    row = values["id"], states.SUCCESS if values["success"] else states.FAILURE, pack(values, alias), None
    try:
        with transaction.atomic(alias) if connections[alias].in_atomic_block else nullcontext():
            store([row], alias)
    except Error as error:
        if not refusals.refused(error.__cause__):
            raise
        store([(*row[:2], refused(row[2], f"it cannot be stored: {error}"), None)], alias)


def _told_of(columns: Sequence[Any]) -> list[str]:
    """Return the keys by which callers wait for a task: its id, its name and its group."""
    return [columns[place] for place in _KNOWN_BY if columns[place] is not None]


def statements(
    vendor: str, rows: Sequence[ResultRow], place: str = "%s"
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the statements that store *rows*, with their values."""
    table = Task._meta.db_table
    return [
        (statement(vendor, table, len(some), place), tuple(value for row in some for value in row))
        for some in portions_by_size(latest(rows), PORTION, PORTION_BYTES, length_of)
    ]


def store_in_file(connection: Any, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Store those of *rows* that are tasks by *connection*, one of sqlite3's; return the others."""
    tasks = [row for row in rows if is_task(row)]
    for query, values in statements("sqlite", tasks, "?"):
        connection.execute(query, values)
    return [row for row in rows if not is_task(row)]
