"""Databases for Django projects of tests: an SQLite file, or a separate database in PostgreSQL or MariaDB.

Comes from:  tests that run the same on each kind of database.
Goes to:     the servers of tests/servers.py, or a private one by its URL.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

KINDS = ("sqlite", "postgresql", "mysql")
LASTING = frozenset({"django_migrations", "qworker_schema", "django_content_type"})
"""Tables that empty() skips."""


def use_pymysql() -> None:
    """Let Django's backend for MySQL use PyMySQL."""
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)  # Django checks the version of the driver
    pymysql.install_as_MySQLdb()


class ProjectDatabase:
    """A new, empty database. kind: one of KINDS. directory: for the file. url: of the server."""

    def __init__(self, kind: str, directory: Path, url: str = "") -> None:
        self.kind, self.name = kind, f"qworker_faults_{uuid4().hex[:10]}"
        self.file = directory / "project.db"
        if kind == "sqlite":
            self.settings: dict[str, Any] = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(self.file),
            }
            return
        parts = urlsplit(url)
        self.host, self.port, self.user = parts.hostname or "127.0.0.1", parts.port, parts.username or ""
        self.password = parts.password or ""
        self.settings = {
            "ENGINE": f"django.db.backends.{kind}", "NAME": self.name, "USER": self.user, "HOST": self.host,
            "PORT": self.port or "", "PASSWORD": self.password,
        }  # fmt: skip
        self.serve(f"CREATE DATABASE {self.name}" + (" CHARACTER SET utf8mb4" if kind == "mysql" else ""))

    def connect(self, name: str | None = None) -> Any:
        """A connection in autocommit mode, to this database or another one of the server."""
        if self.kind == "sqlite":
            return sqlite3.connect(self.file, timeout=30, isolation_level=None)
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(
                host=self.host, port=self.port, user=self.user, password=self.password,
                dbname=name or self.name, autocommit=True,
            )  # fmt: skip
        import pymysql

        return pymysql.connect(
            host=self.host, port=self.port or 3306, user=self.user, password=self.password,
            database=name or self.name, autocommit=True, ssl_disabled=True,
        )  # fmt: skip

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Execute *statement*, with %s for values, and return its rows."""
        with closing(self.connect()) as connection:
            return self._do(connection, statement, values)

    def serve(self, statement: str) -> list[Any]:
        """Execute *statement* on the server, outside this database."""
        other = {"postgresql": "postgres", "mysql": "mysql"}[self.kind]
        with closing(self.connect(other)) as connection:
            return self._do(connection, statement, ())

    def _do(self, connection: Any, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with closing(connection.cursor()) as cursor:
            if self.kind == "sqlite":
                cursor.execute(statement.replace("%s", "?"), values)
            else:
                cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def connections(self) -> list[int]:
        """The ids of the server's connections to this database."""
        if self.kind == "postgresql":
            found = self.serve(f"SELECT pid FROM pg_stat_activity WHERE datname = '{self.name}'")
        else:
            found = self.serve(f"SELECT id FROM information_schema.processlist WHERE db = '{self.name}'")
        return [number for (number,) in found]

    def sever(self) -> int:
        """Kill all connections to this database; return how many there were."""
        ended = 0
        for number in self.connections():
            try:
                if self.kind == "postgresql":
                    self.serve(f"SELECT pg_terminate_backend({number})")
                else:
                    self.serve(f"KILL {number}")
            except Exception as error:
                if "Unknown thread" not in str(error):  # otherwise it has ended by itself
                    raise
            else:
                ended += 1
        return ended

    def empty(self) -> None:
        """Delete all rows, except those inserted by migrations."""
        if self.kind == "sqlite":
            found = self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        elif self.kind == "postgresql":
            found = self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        else:
            found = self.rows("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
        names = [row[0] for row in found if row[0] not in LASTING and not row[0].startswith("sqlite_")]
        with closing(self.connect()) as connection:
            if self.kind == "mysql":
                self._do(connection, "SET FOREIGN_KEY_CHECKS = 0", ())
            if self.kind == "postgresql":
                self._do(connection, f"TRUNCATE {', '.join(names)}", ())
                return
            for name in names:
                self._do(connection, f"DELETE FROM {name}", ())

    def drop(self) -> None:
        """Drop the database, even if there are connections."""
        if self.kind == "sqlite":
            self.file.unlink(missing_ok=True)
            return
        self.sever()
        self.serve(f"DROP DATABASE IF EXISTS {self.name}")
