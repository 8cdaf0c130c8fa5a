"""The engine that reaches a SQL result store: for how long its drivers wait."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from qworker.backends.sql_tables import connect
from qworker.transports.sql_patient import PatientConnection


class Asked(Exception):
    """Instead of a connection."""


def asked_of(driver_url: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the driver would be called with."""
    found: dict[str, Any] = {}
    engine = connect(driver_url, options, short_lived=True)

    @sa.event.listens_for(engine, "do_connect")
    def look(dialect: Any, record: Any, positional: Any, parameters: dict[str, Any]) -> None:
        found.update(parameters)
        raise Asked

    with pytest.raises(Asked):
        engine.connect()
    return found


def test_libpq_gives_up_on_a_server_of_which_nothing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def look(cls: type, *positional: Any, **given: Any) -> None:
        found.update(given, by=cls)
        raise Asked

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(look))
    with pytest.raises(Asked):
        connect("db+postgresql+psycopg://me@nowhere/results", {}, short_lived=True).connect()
    assert found["by"] is PatientConnection
    assert (found["connect_timeout"], found["tcp_user_timeout"]) == (10, 30_000)


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_pymysql_gives_up_on_a_server_of_which_nothing_is_heard(dialect: str) -> None:
    found = asked_of(f"db+{dialect}+pymysql://me@nowhere/results", {})
    assert (found["connect_timeout"], found["read_timeout"], found["write_timeout"]) == (10, 30, 30)


def test_who_knows_better_says_so_in_the_url_or_the_options() -> None:
    url = "db+mysql+pymysql://me@nowhere/results?read_timeout=7"
    found = asked_of(url, {"connect_args": {"write_timeout": 8}})
    assert (int(found["read_timeout"]), found["write_timeout"], found["connect_timeout"]) == (7, 8, 10)
