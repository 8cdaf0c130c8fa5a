"""task_rows: stores ended tasks in the table of the model ``Task``.

Comes from:  ``execution/results.py``, in the child that ran the task; the transaction of the ack.
Goes to:     the table of ``Task``.
Thread:      any; functions.

A result row carries the columns of ``Task`` as database values, so that storing it does not need the model. A
stored success stays; a stored failure is replaced by later ends.
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
"""The beginning of a task row's payload; other rows are qworker's own results."""
PORTION = 200
"""Maximum rows in one statement."""
COLUMNS = (
    "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started", "stopped",
    "success", "attempt_count", "package",
)  # fmt: skip

_KNOWN_BY = [COLUMNS.index(name) for name in ("id", "name", "group")]
PICKLED = frozenset(["args", "kwargs", "result"])
PORTION_BYTES = 1_000_000
"""Maximum size of the rows in one statement; a larger row has its own."""
LARGE = 500_000
"""Rows of at least this many bytes are checked against the maximum statement length."""
ROOM = 4096
"""Bytes of a statement other than its values."""


def pack(values: Mapping[str, Any], alias: str) -> bytes:
    """Return the row payload with *values*, fields of ``Task``, for the database *alias*.

    Raises EncodeError for a result that cannot be pickled, or is larger than the database accepts. If a row
    is too large, the original package is left out first; a failure's texts are then cut, so it can be stored.
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
    # It contains the arguments again, and is needed only to resubmit the task.
    if values.get("package"):
        return pack({**values, "package": ""}, alias)
    if values["success"]:
        raise EncodeError(f"the result and its arguments exceed the {most} bytes that {alias!r} accepts")
    text = str(values["result"])
    shorter = text if len(text) < LARGE // 4 else f"{text[: LARGE // 8]}\n...\n{text[-LARGE // 8 :]}"
    args, kwargs = (safe_repr(values["args"]),), {"kwargs": safe_repr(values["kwargs"])}
    return pack({**values, "result": shorter, "args": args, "kwargs": kwargs, "package": ""}, alias)


def longest(connection: Any) -> float:
    """Return the maximum length in bytes of a statement on Django's *connection*."""
    if connection.vendor != "mysql":
        return math.inf
    if connection.alias not in _longest:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            _longest[connection.alias] = int(cursor.fetchone()[0])
    return _longest[connection.alias]


_longest: dict[str, int] = {}


def refused(payload: bytes, why: str) -> bytes:
    """Return a replacement for a *payload* that the database refuses: a failure without arguments."""
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
    """Return *value* as stored in the model's pickled fields."""
    try:
        return b64encode(pickle.dumps(value, PROTOCOL)).decode()
    except Exception as error:
        reraise_interrupt(error)
        raise EncodeError(f"the result cannot be pickled: {type(error).__name__}: {error}") from error


def unpack(payload: bytes) -> tuple[Any, ...]:
    """Return the columns in a *payload* made by pack()."""
    columns: tuple[Any, ...] = marshal.loads(payload[len(MARK) :])
    return columns


def is_success(payload: bytes) -> bool:
    """Return whether a *payload* made by pack() is a success."""
    return bool(unpack(payload)[COLUMNS.index("success")])


def values_of(payload: bytes) -> dict[str, Any]:
    """Return the fields in a *payload* made by pack(), with datetimes as database values.

    Raises the errors of unpickling.
    """
    return {
        name: pickle.loads(b64decode(value)) if name in PICKLED and value is not None else value
        for name, value in zip(COLUMNS, unpack(payload), strict=True)
    }


def is_task(row: ResultRow) -> bool:
    """Return whether *row* is for the table of ``Task``."""
    return row[2].startswith(MARK)


@cache
def statement(vendor: str, table: str, rows: int = 1, place: str = "%s") -> str:
    """Return a statement that inserts *rows* rows, or updates existing ones except successes; on PostgreSQL
    it also notifies."""
    quoted = "`{}`" if vendor == "mysql" else '"{}"'
    names = [quoted.format(name) for name in COLUMNS]
    places = ", ".join([f"({', '.join([place] * len(names))})"] * rows)
    where = quoted.format(table)
    insert = f"INSERT INTO {where} ({', '.join(names)}) VALUES {places}"
    changed, success = [name for name in names[1:] if "success" not in name], quoted.format("success")
    if vendor == "mysql":  # evaluated from left to right: success is changed last
        sets = [f"{name} = IF({success}, {name}, VALUES({name}))" for name in changed]
        sets.append(f"{success} = {success} OR VALUES({success})")
        return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(sets)}"
    sets = [f"{name} = excluded.{name}" for name in (*changed, success)]
    upsert = f"{insert} ON CONFLICT ({names[0]}) DO UPDATE SET {', '.join(sets)} WHERE NOT {where}.{success}"
    return notifying(upsert, table) if vendor == "postgresql" else upsert


def latest(rows: Sequence[ResultRow]) -> list[tuple[Any, ...]]:
    """Return the columns of *rows*, one row for each task: its success, or else its latest end. Sorted, to
    avoid deadlocks."""
    found: dict[str, tuple[Any, ...]] = {}
    place = COLUMNS.index("success")
    for row in rows:
        columns = unpack(row[2])
        stored = found.get(columns[0])
        if stored is None or not stored[place]:
            found[columns[0]] = columns
    return [found[identity] for identity in sorted(found)]


def store(rows: Sequence[ResultRow], alias: str) -> None:
    """Store *rows* through Django's connection to *alias*; waiting callers are notified after the commit."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        for query, values in statements(connection.vendor, rows):
            cursor.execute(query, values)
    notify(connection, [text for row in rows for text in _texts_of(unpack(row[2]))])


def save(values: Mapping[str, Any]) -> None:
    """Store the values of one ``Task`` at once, through Django's connection. If the database refuses them, a
    failure is stored."""
    alias = router.db_for_write(Task)
    row = values["id"], states.SUCCESS if values["success"] else states.FAILURE, pack(values, alias), None
    try:
        with transaction.atomic(alias) if connections[alias].in_atomic_block else nullcontext():
            store([row], alias)
    except Error as error:
        if not refusals.refused(error.__cause__):
            raise
        store([(*row[:2], refused(row[2], f"it cannot be stored: {error}"), None)], alias)


def _texts_of(columns: Sequence[Any]) -> list[str]:
    """Return the texts by which callers wait for a task: its id, name and group."""
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
    """Store the tasks in *rows* through *connection*, of the module sqlite3; return the other rows."""
    tasks = [row for row in rows if is_task(row)]
    for query, values in statements("sqlite", tasks, "?"):
        connection.execute(query, values)
    return [row for row in rows if not is_task(row)]
