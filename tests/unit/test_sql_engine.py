"""The engine that reaches a SQL result store: for how long its drivers wait."""

from __future__ import annotations

from typing import Any

import psycopg
import pymysql
import pytest

from qworker.backends.sql.tables import connect
from qworker.transports.sql.limited_connection import LimitedConnection
from qworker.transports.sql.timeout_connection import TimeoutConnection


class Asked(Exception):
    """Instead of a connection."""


def asked_of(monkeypatch: pytest.MonkeyPatch, driver_url: str, options: dict[str, Any]) -> dict[str, Any]:
    """What PyMySQL would be called with."""
    found: dict[str, Any] = {}

    def look(self: Any, *positional: Any, **given: Any) -> None:
        found.update(given, by=type(self))
        raise Asked

    monkeypatch.setattr(pymysql.connections.Connection, "__init__", look)
    with pytest.raises(Asked):
        connect(driver_url, options, short_lived=True).connect()
    return found


def test_libpq_gives_up_on_a_server_of_which_nothing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def look(cls: type, *positional: Any, **given: Any) -> None:
        found.update(given, by=cls)
        raise Asked

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(look))
    with pytest.raises(Asked):
        connect("db+postgresql+psycopg://me@nowhere/results", {}, short_lived=True).connect()
    assert found["by"] is TimeoutConnection
    assert (found["connect_timeout"], found["tcp_user_timeout"]) == (10, 30_000)


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_pymysql_gives_up_on_a_server_of_which_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    found = asked_of(monkeypatch, f"db+{dialect}+pymysql://me@nowhere/results", {})
    assert (found["connect_timeout"], found["read_timeout"], found["write_timeout"]) == (10, 30, 30)
    assert found["by"] is LimitedConnection
    assert "STRICT_ALL_TABLES" in found["sql_mode"]
    assert "NO_BACKSLASH_ESCAPES" not in found["sql_mode"]


def test_who_knows_better_says_so_in_the_url_or_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "db+mysql+pymysql://me@nowhere/results?read_timeout=7"
    found = asked_of(monkeypatch, url, {"connect_args": {"write_timeout": 8}})
    assert (int(found["read_timeout"]), found["write_timeout"], found["connect_timeout"]) == (7, 8, 10)
