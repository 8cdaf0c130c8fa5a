"""Upserts of many results: their effect on SQLite, and their size."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import states
from qworker.errors import BrokerUnavailable
from qworker.transports.lease import Ack, latest
from qworker.transports.sql.result_upserts import (
    MAX_BYTES,
    MAX_ROWS,
    mysql_upsert,
    postgresql_upsert,
    sqlite_upsert,
)
from qworker.transports.sql.results import ResultTable

COLUMNS = ("task_id", "status", "result", "date_done")
ANY_STATE = (*sorted(states.ALL_STATES), "PROGRESS")


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE t (id integer PRIMARY KEY, task_id text UNIQUE, status text, result, date_done)"
        )
        yield connection


def store(connection: sqlite3.Connection, *rows: tuple[str, str, object]) -> int:
    whole = [(task_id, status, result, None) for task_id, status, result in rows]
    return sum(
        connection.execute(statement, values).rowcount
        for statement, values in sqlite_upsert("t", COLUMNS, whole, True, "?")
    )


@pytest.mark.parametrize("new", ANY_STATE)
@pytest.mark.parametrize("old", ANY_STATE)
def test_upsert_follows_state_precedence(table: sqlite3.Connection, old: str, new: str) -> None:
    assert store(table, ("x", old, "old")) == 1
    assert store(table, ("x", new, "new"), ("y", new, "new")) == 1 + states.may_replace(old, new)
    (found,) = table.execute("SELECT status, result FROM t WHERE task_id = 'x'")
    assert found == ((new, "new") if states.may_replace(old, new) else (old, "old"))


def test_row_without_a_state_is_replaced(table: sqlite3.Connection) -> None:
    table.execute("INSERT INTO t (task_id) VALUES ('x')")
    assert store(table, ("x", states.STARTED, None)) == 1


def test_datetimes_are_text_on_sqlite() -> None:
    ((_, values),) = sqlite_upsert("t", ("date_done",), [(datetime(2030, 1, 2),)], True, "?")
    assert values == ("2030-01-02 00:00:00.000000",)


def test_batch_is_one_statement() -> None:
    rows = [(str(number), states.SUCCESS, b"1", None) for number in range(256)]
    for upsert in (postgresql_upsert, mysql_upsert):
        ((statement, values),) = upsert("t", COLUMNS, rows, False)
        assert statement.count("%s") == len(values)
        assert list(upsert("t", COLUMNS, [], False)) == []


def test_large_batches_are_split_for_mysql() -> None:
    large = [(str(number), states.SUCCESS, b"x" * (MAX_BYTES // 3), None) for number in range(7)]
    many = [(str(number), states.SUCCESS, b"", None) for number in range(MAX_ROWS + 1)]
    huge = [("x", states.SUCCESS, b"x" * (2 * MAX_BYTES), None)]
    for rows, counts in ((large, [2, 2, 2, 1]), (many, [MAX_ROWS, 1]), (huge, [1])):
        steps = list(mysql_upsert("t", COLUMNS, rows, True))
        assert [len(values) // len(COLUMNS) for _, values in steps] == counts
        assert [value for _, values in steps for value in values] == [value for row in rows for value in row]


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(ANY_STATE)), max_size=12),
    standing=st.sampled_from((None, *ANY_STATE)),
)
def test_latest_of_a_batch_equals_sequential_upserts(
    rows: list[tuple[str, str]], standing: str | None
) -> None:
    whole = [(task_id, status, str(number).encode(), None) for number, (task_id, status) in enumerate(rows)]
    one_by_one = {key: (standing, b"") for key in "abc" if standing is not None}
    at_once = dict(one_by_one)
    for found, given_rows in ((one_by_one, whole), (at_once, latest(whole))):
        for task_id, status, payload, _ in given_rows:
            old = found.get(task_id)
            if old is None or states.may_replace(str(old[0]), status):
                found[task_id] = (status, payload)
    assert at_once == one_by_one
    assert [row[0] for row in latest(whole)] == sorted({task_id for task_id, _ in rows})


class Unseen:
    """A link to a server that does not show a table at first, although it exists."""

    def __init__(self, *found: dict[str, bool]) -> None:
        self._found = list(found)
        self.stored: list[Any] = []

    def columns(self, table: str) -> dict[str, bool]:
        return self._found.pop(0)

    def make_results(self, table: str) -> None:
        pass

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Any], makes_ids: bool) -> None:
        self.stored.append((columns, rows, makes_ids))


def test_result_waits_until_the_columns_of_its_table_can_be_read() -> None:
    """Without them, a row without columns was inserted."""
    link: Any = Unseen({}, {}, {"id": False, "task_id": False})
    table, ack = ResultTable(), Ack(1, ("a", states.SUCCESS, b"{}", None))
    with pytest.raises(BrokerUnavailable):
        table.prepare(link, [ack])
    table.prepare(link, [ack])
    assert ack.row is not None
    table.store(link, [ack.row])
    assert link.stored == [(("task_id",), [("a",)], False)]
