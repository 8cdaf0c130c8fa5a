"""How much the parts of a join cost a database: counted in statements and values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from qworker.transports.lease import Part
from qworker.transports.sql.join_rows import JoinTables, postgresql_record, record

TABLES = JoinTables("joined", "part", "")


class Counting:
    """A Session in memory that counts what it is asked."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.asked: list[int] = []
        """How many values each statement had."""
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
def session() -> Iterator[Counting]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield Counting(connection)


def parts(join: str, numbers: range) -> list[Part]:
    return [Part(join, number, "task", "SUCCESS") for number in numbers]


def test_the_last_parts_cost_what_the_first_did(session: Counting) -> None:
    session.open("a", 10_000)
    costs = [session.cost_of(parts("a", range(start, start + 100))) for start in range(0, 10_000, 100)]
    assert costs[0] == costs[-1]
    assert len(costs[0]) == 4
    assert session.remaining("a") == (0, 0)


def test_parts_of_many_joins_cost_as_many_statements_as_those_of_one(session: Counting) -> None:
    for number in range(100):
        session.open(str(number), 2)
    many = [part for number in range(100) for part in parts(str(number), range(1))]
    assert len(session.cost_of(many)) == 4
    assert session.remaining("7") == (1, None)
    assert len(session.cost_of(many)) == 2, "they are there already"
    assert session.remaining("7") == (1, None)


def test_parts_of_nothing_cost_one_look(session: Counting) -> None:
    assert session.cost_of(parts("unknown", range(100))) == [1]
    assert session.cost_of([]) == []


def test_postgresql_is_asked_once() -> None:
    found = postgresql_record(TABLES, [*parts("b", range(300)), *parts("a", range(300))])
    assert found is not None
    assert [len(column) for column in found[1]] == [2, 600, 600, 600, 600]
    assert found[1][0] == ["a", "b"], "in one order, against deadlocks"
    assert postgresql_record(TABLES, [Part("", 0, "task", "SUCCESS")]) is None
