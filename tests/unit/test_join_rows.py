"""The cost of recording parts of joins in a database, in statements and values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from qworker.transports.lease import Part
from qworker.transports.sql.join_rows import JoinTables, postgresql_record, record

TABLES = JoinTables("joined", "part", "")


class CountingSession:
    """A session in memory that counts statements and their values."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.asked: list[int] = []
        """The number of values of each statement."""
        connection.execute("CREATE TABLE joined (seq INTEGER PRIMARY KEY, id, size, remaining, due, token)")
        connection.execute("CREATE TABLE part (seq, number, task_id, status, PRIMARY KEY (seq, number))")

    def open(self, join: str, size: int) -> None:
        values = (join, size, size)
        self._connection.execute("INSERT INTO joined (id, size, remaining) VALUES (?, ?, ?)", values)

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        self.asked.append(len(values))
        return self._connection.execute(statement.replace("%s", "?"), values).fetchall()

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        self.asked.append(len(values))
        return self._connection.execute(statement.replace("%s", "?"), values).rowcount

    def cost_of(self, parts: Sequence[Part]) -> list[int]:
        self.asked = []
        record(self, TABLES, parts)
        return self.asked

    def remaining(self, join: str) -> tuple[int, float | None]:
        query = "SELECT remaining, due FROM joined WHERE id = ?"
        return self._connection.execute(query, (join,)).fetchone()  # type: ignore[no-any-return]


@pytest.fixture
def session() -> Iterator[CountingSession]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield CountingSession(connection)


def parts(join: str, numbers: range) -> list[Part]:
    return [Part(join, number, "task", "SUCCESS") for number in numbers]


def test_cost_of_parts_does_not_grow_with_the_join(session: CountingSession) -> None:
    session.open("a", 10_000)
    costs = [session.cost_of(parts("a", range(start, start + 100))) for start in range(0, 10_000, 100)]
    assert costs[0] == costs[-1]
    assert len(costs[0]) == 4
    assert session.remaining("a") == (0, 0)


def test_number_of_statements_does_not_depend_on_the_number_of_joins(session: CountingSession) -> None:
    for number in range(100):
        session.open(str(number), 2)
    many = [part for number in range(100) for part in parts(str(number), range(1))]
    assert len(session.cost_of(many)) == 4
    assert session.remaining("7") == (1, None)
    assert len(session.cost_of(many)) == 2, "they are recorded already"
    assert session.remaining("7") == (1, None)


def test_parts_of_unknown_joins_cost_one_statement(session: CountingSession) -> None:
    assert session.cost_of(parts("unknown", range(100))) == [1]
    assert session.cost_of([]) == []


def test_postgresql_records_parts_in_one_statement() -> None:
    found = postgresql_record(TABLES, [*parts("b", range(300)), *parts("a", range(300))])
    assert found is not None
    assert [len(column) for column in found[1]] == [2, 600, 600, 600, 600]
    assert found[1][0] == ["a", "b"], "sorted, to avoid deadlocks"
    assert postgresql_record(TABLES, [Part("", 0, "task", "SUCCESS")]) is None
