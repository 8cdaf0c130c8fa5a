"""Errors of a database that rejects a value, as opposed to errors that pass."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from pymysql.err import error_map

from qworker.transports.sql.refusals import passing, refused

RIGHTS = {
    1044: "42000",  # no rights in the database
    1045: "28000",  # a wrong password
    1049: "42000",  # no such database
    1054: "42S22",  # no such column
    1142: "42000",  # no rights at the table
    1143: "42000",  # no rights at the column
    1146: "42S02",  # no such table
    1227: "42000",  # a privilege is missing
}
VALUES = {1048: "23000", 1153: "08S01", 1264: "22003", 1366: "HY000", 1406: "22001", 1644: "45000"}
AWAY = {1040: "08004", 1053: "08S01", 1205: "HY000", 1213: "40001", 2006: None, 2013: None}


def mysql(number: int, state: str | None) -> Exception:
    """An error as PyMySQL raises it: from 1.2.4 on with the SQLSTATE."""
    error: Exception = error_map.get(number, pymysql.err.OperationalError)(number, "what the server said")
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("number", [*RIGHTS, *AWAY])
def test_mysql_access_and_availability_errors_are_not_refusals(number: int, with_state: bool) -> None:
    state = {**RIGHTS, **AWAY}[number]
    assert not refused(mysql(number, state if with_state else None))


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("number", VALUES)
def test_mysql_value_errors_are_refusals(number: int, with_state: bool) -> None:
    assert refused(mysql(number, VALUES[number] if with_state else None))


def test_postgresql_refusals() -> None:
    assert refused(psycopg.errors.StringDataRightTruncation("too long"))
    assert refused(psycopg.errors.CheckViolation("of a check"))
    assert not refused(psycopg.errors.InsufficientPrivilege("no rights"))
    assert not refused(psycopg.errors.UndefinedTable("gone"))
    assert not refused(psycopg.errors.DeadlockDetected("two at once"))


def test_sqlite_refusals() -> None:
    def error(code: int) -> Exception:
        made = sqlite3.OperationalError("what it said")
        made.sqlite_errorcode = code
        return made

    assert refused(error(sqlite3.SQLITE_TOOBIG))
    assert not refused(error(sqlite3.SQLITE_BUSY))
    assert not refused(error(sqlite3.SQLITE_FULL))


def test_deadlock_is_a_passing_error() -> None:
    assert passing(mysql(1213, "40001"))
    assert not passing(mysql(1406, "22001"))
