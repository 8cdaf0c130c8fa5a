"""PostgreSQL and MariaDB as places for the contract suite: a schema or database for each test."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from qworker.testing.contract import Place
from qworker.transports.lease import Broker
from qworker.transports.sql.broker import SQLBroker
from tests.servers import require


class SQLPlace(Place):
    """A namespace on a server for each *directory*; other processes find it by the directory."""

    server = ""
    from_one = ""
    """Option of TRUNCATE that restarts the numbering."""
    examples = 20
    """Of the state machine, whose every step is at least one commit."""

    def __init__(self, directory: Path) -> None:
        self._server = require(self.server)
        self._open: Any = None
        self._lock = threading.Lock()
        self._name = f"qworker_test_{hashlib.sha1(str(directory).encode()).hexdigest()[:16]}"
        self.url = self._make()
        self.results_url = f"db+{self.url}"

    def open(self, **options: Any) -> Broker:
        return SQLBroker(self.url, **options)

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        rows = self._ask("SELECT status, result FROM celery_taskmeta WHERE task_id = %s", task_id)
        return (rows[0][0], bytes(rows[0][1])) if rows else None

    def count(self) -> int:
        rows = self._ask("SELECT count(*) FROM qworker_message")
        return int(rows[0][0]) if rows else 0

    def version(self) -> int:
        """Return the schema version of the tables."""
        return int(self._ask("SELECT max(version) FROM qworker_schema")[0][0])

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        rows = self._ask(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY 1", self._name
        )
        return [name for (name,) in rows]

    def columns(self, table: str) -> list[tuple[Any, ...]]:
        """Return name, type, length and nullability of each column of *table*."""
        return self._ask(
            "SELECT column_name, data_type, character_maximum_length, is_nullable "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY 1",
            self._name,
            table,
        )

    def lose(self) -> None:
        for table in ("message", "dead", "owner", "revoked"):
            self._ask(f"TRUNCATE TABLE qworker_{table}{self.from_one}")

    def execute(self, statement: str) -> None:
        """Change data without the stores noticing."""
        self._ask(statement)

    def end_connections(self) -> None:
        """Have the server end all connections of stores to this place."""
        raise NotImplementedError

    def _make(self) -> str:
        raise NotImplementedError

    def clear(self) -> None:
        self._forget()
        self._drop()

    def _forget(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _drop(self) -> None:
        raise NotImplementedError

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        raise NotImplementedError


class PostgreSQLPlace(SQLPlace):
    """A schema."""

    server = "postgresql"
    from_one = " RESTART IDENTITY"

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._server, autocommit=True)

    def _make(self) -> str:
        with closing(self._connect()) as connection:
            connection.execute("SELECT pg_advisory_lock(7291)")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._name}")
        joint = "&" if "?" in self._server else "?"
        options = quote(f"-csearch_path={self._name}")
        return f"{self._server}{joint}options={options}&application_name={self._name}"

    def _drop(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute(f"DROP SCHEMA IF EXISTS {self._name} CASCADE")

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        import psycopg

        with self._lock:
            if self._open is None:
                self._open = self._connect()
                self._open.execute(f"SET search_path = {self._name}")
            try:
                cursor = self._open.execute(statement, values)
                return list(cursor.fetchall()) if cursor.description else []
            except psycopg.errors.UndefinedTable:
                return []

    def end_connections(self) -> None:
        # By application name: other tests have connections to this database too.
        with closing(self._connect()) as connection:
            rows = connection.execute(
                "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                (self._name,),
            ).fetchall()
            assert rows
            alive = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND pid = ANY(%s)"
            ended = [pid for (pid, _) in rows]
            while connection.execute(alive, (self._name, ended)).fetchall():
                time.sleep(0.002)


class PgBouncerPlace(PostgreSQLPlace):
    """A schema, and a role that has it as its search_path, because PgBouncer does not pass one on."""

    examples = 6  # the code that PostgreSQLPlace searches
    server = "pgbouncer"

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(require("postgresql"), autocommit=True)

    def _make(self) -> str:
        super()._make()
        with closing(self._connect()) as connection:
            connection.execute("SELECT pg_advisory_lock(7291)")
            if not connection.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{self._name}'").fetchall():
                connection.execute(f"CREATE ROLE {self._name} LOGIN SUPERUSER")
                connection.execute(f"ALTER ROLE {self._name} SET search_path = {self._name}")
        parts = urlsplit(self._server)
        return parts._replace(netloc=f"{self._name}@{parts.hostname}:{parts.port}").geturl()

    def _drop(self) -> None:
        super()._drop()
        with closing(self._connect()) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (self._name,)
            )
            connection.execute(f"DROP ROLE IF EXISTS {self._name}")

    def end_connections(self) -> None:
        with closing(self._connect()) as connection:
            ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s"
            assert connection.execute(ended, (self._name,)).fetchall()


class MySQLPlace(SQLPlace):
    """A database."""

    server = "mysql"

    def _connect(self, database: str | None = None) -> Any:
        import pymysql

        parts = urlsplit(self._server)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=database,
            autocommit=True,
            ssl_disabled=True,  # PyMySQL would read the system's authorities, in 25 ms
        )

    def _make(self) -> str:
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES LIKE %s", (self._name,))
            if not cursor.fetchall():
                cursor.execute(f"CREATE DATABASE {self._name}")
        return f"{self._server.rpartition('/')[0]}/{self._name}"

    def _drop(self) -> None:
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self._name}")

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        import pymysql

        with self._lock:
            if self._open is None:
                self._open = self._connect(self._name)
            cursor = self._open.cursor()
            try:
                cursor.execute(statement, values)
            except pymysql.err.ProgrammingError as error:
                if error.args[0] == 1146:
                    return []
                raise
            return list(cursor.fetchall())

    def end_connections(self) -> None:
        import pymysql

        self._forget()
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (self._name,))
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # it has ended meanwhile
                    cursor.execute(f"KILL {number}")
