"""Multi-row statements for MySQL."""

from __future__ import annotations

from typing import Any

from qworker.transports.sql.mysql import LARGE, literal, statements

STATEMENT = "INSERT INTO t (a, b) VALUES (%s, %s) ON DUPLICATE KEY UPDATE b = VALUES(b)"


def escaped(value: Any) -> str:
    return f"escaped({type(value).__name__})"


def test_rows_are_packed_into_few_statements_by_size() -> None:
    rows = [("x" * 10, number) for number in range(5)]
    (whole,) = statements(STATEMENT, rows, 1000, "utf8", escaped)
    assert whole == (
        b"INSERT INTO t (a, b) VALUES "
        + b",".join(f"('{'x' * 10}',{number})".encode() for number in range(5))
        + b" ON DUPLICATE KEY UPDATE b = VALUES(b)"
    )
    several = list(statements(STATEMENT, rows, 40, "utf8", escaped))
    assert [each.count(b"xxxxxxxxxx") for each in several] == [2, 2, 1]
    assert len(list(statements(STATEMENT, rows, 1, "utf8", escaped))) == 5
    assert list(statements(STATEMENT, [], 1000, "utf8", escaped)) == []


def test_unusual_values_are_escaped_by_the_driver() -> None:
    plain = [None, 7, "it is", 'so "it" is', b"\x00'\\", b""]
    assert [literal(value, escaped) for value in plain] == [
        *("NULL", "7", "'it is'", "'so \"it\" is'", "x'00275c'", "x''"),
    ]
    others = ["it's", "\\", "\0", 1.5, True, b"x" * LARGE]
    assert [literal(value, escaped) for value in others] == [
        f"escaped({type(value).__name__})" for value in others
    ]
