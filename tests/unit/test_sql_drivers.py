"""What we use of PyMySQL's and psycopg's insides: it is there; where it is not, a message says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest
from pymysql.connections import Connection

from qworker.errors import ConfigurationError
from qworker.transports.sql.limited_connection import PRIVATE, LimitedConnection
from qworker.transports.sql.timeout_connection import _until, check_wait


@pytest.mark.parametrize("name", PRIVATE)
def test_a_pymysql_without_what_we_reach_for_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    connection = LimitedConnection(defer_connect=True)
    assert hasattr(connection, name), "this PyMySQL has it"
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "connect", lambda self, sock=None: None)
        for holder in (connection, Connection):
            if name in vars(holder):
                patched.delattr(holder, name)
        said = rf"PyMySQL {pymysql.__version__}.* {name}\..*pip install"
        with pytest.raises(ConfigurationError, match=said):
            connection.connect()


def test_a_psycopg_that_waits_without_end_is_named() -> None:
    class Endless:
        def wait(self, gen: Any, timeout: float = 0.1) -> None:
            """As it was before 3.2."""

    check_wait(psycopg.Connection)
    for connection in (Endless, object):
        with pytest.raises(ConfigurationError, match=rf"psycopg {psycopg.__version__}.*pip install"):
            check_wait(connection)


def test_an_answer_that_does_not_come_in_time_is_not_waited_for() -> None:
    def silent() -> Iterator[Any]:
        while True:
            yield "wait for something to read"

    asked = _until(silent(), 0.0)
    assert next(asked) == "wait for something to read"
    assert asked.send(1) == "wait for something to read", "it says something"
    with pytest.raises(psycopg.OperationalError, match="in time"):
        asked.send(0)
