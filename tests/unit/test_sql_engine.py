"""The engine of SQL result stores: timeouts of its drivers."""

from __future__ import annotations

from typing import Any

import psycopg
import pymysql
import pytest

from qworker.backends.sql.tables import connect
from qworker.transports.sql.limited_connection import LimitedConnection
from qworker.transports.sql.timeout_connection import TimeoutConnection


class Intercepted(Exception):
    """Raised instead of connecting."""


def connect_arguments(
    monkeypatch: pytest.MonkeyPatch, driver_url: str, options: dict[str, Any]
) -> dict[str, Any]:
    """The arguments that PyMySQL would get."""
    found: dict[str, Any] = {}

    def intercept(self: Any, *positional: Any, **given: Any) -> None:
        found.update(given, by=type(self))
        raise Intercepted

    monkeypatch.setattr(pymysql.connections.Connection, "__init__", intercept)
    with pytest.raises(Intercepted):
        connect(driver_url, options, short_lived=True).connect()
    return found


def test_libpq_has_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def intercept(cls: type, *positional: Any, **given: Any) -> None:
        found.update(given, by=cls)
        raise Intercepted

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(intercept))
    with pytest.raises(Intercepted):
        connect("db+postgresql+psycopg://me@nowhere/results", {}, short_lived=True).connect()
    assert found["by"] is TimeoutConnection
    assert (found["connect_timeout"], found["tcp_user_timeout"]) == (10, 30_000)


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_pymysql_has_timeouts(monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    found = connect_arguments(monkeypatch, f"db+{dialect}+pymysql://me@nowhere/results", {})
    assert (found["connect_timeout"], found["read_timeout"], found["write_timeout"]) == (10, 30, 30)
    assert found["by"] is LimitedConnection
    assert "STRICT_ALL_TABLES" in found["sql_mode"]
    assert "NO_BACKSLASH_ESCAPES" not in found["sql_mode"]


def test_timeouts_can_be_set_in_url_or_options(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "db+mysql+pymysql://me@nowhere/results?read_timeout=7"
    found = connect_arguments(monkeypatch, url, {"connect_args": {"write_timeout": 8}})
    assert (int(found["read_timeout"]), found["write_timeout"], found["connect_timeout"]) == (7, 8, 10)
