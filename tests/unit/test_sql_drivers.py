"""The private parts of PyMySQL and psycopg that we use exist; a missing one gives a clear error."""

from __future__ import annotations

import ssl
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
def test_missing_private_attribute_of_pymysql_is_reported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    connection = LimitedConnection(defer_connect=True)
    assert hasattr(connection, name), "the installed PyMySQL has it"
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "connect", lambda self, sock=None: None)
        for holder in (connection, Connection):
            if name in vars(holder):
                patched.delattr(holder, name)
        message = rf"PyMySQL {pymysql.__version__}.* {name}\..*pip install"
        with pytest.raises(ConfigurationError, match=message):
            connection.connect()


def test_psycopg_without_wait_timeout_is_reported() -> None:
    class Endless:
        def wait(self, gen: Any, timeout: float = 0.1) -> None:
            """As before psycopg 3.2."""

    check_wait(psycopg.Connection)
    for connection in (Endless, object):
        with pytest.raises(ConfigurationError, match=rf"psycopg {psycopg.__version__}.*pip install"):
            check_wait(connection)


def test_wait_ends_at_its_timeout() -> None:
    def silent() -> Iterator[Any]:
        while True:
            yield "wait for something to read"

    waiting = _until(silent(), 0.0)
    assert next(waiting) == "wait for something to read"
    assert waiting.send(1) == "wait for something to read", "there is data to read"
    with pytest.raises(psycopg.OperationalError, match="in time"):
        waiting.send(0)


def test_authorities_are_read_only_to_check_certificates() -> None:
    plain = [LimitedConnection(defer_connect=True) for _ in range(2)]
    assert plain[0].ctx is plain[1].ctx
    assert plain[0].ctx.verify_mode is ssl.CERT_NONE
    assert plain[0].ctx.cert_store_stats()["x509_ca"] == 0
    checking = LimitedConnection(defer_connect=True, ssl_verify_cert=True)
    assert checking.ctx.verify_mode is ssl.CERT_REQUIRED
