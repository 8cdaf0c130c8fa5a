"""Places: empty databases for tests that start processes of Django projects over them.

Comes from:  tests of migrations, of waiting and of adoption.
Goes to:     SQLite files, and databases of their own in PostgreSQL and MariaDB.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.conftest import REPOSITORY
from tests.servers import require

KINDS = ("sqlite", "postgresql", "mysql")
STORED = {
    "postgresql": ("schema", "message", "dead", "owner", "revoked"),
    "mysql": ("schema", "message", "dead", "owner", "revoked"),
}


class Place:
    """An empty database: fill() executes a dump in it, migrating() runs a process on it, shape() describes
    its tables."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.name = kind, f"qworker_migrating_{uuid4().hex[:10]}"
        self.file = directory / "project.db"
        if kind == "sqlite":
            self.django: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.file)}
            return
        parts = urlsplit(require(kind))
        self.host, self.port, self.user = parts.hostname, parts.port, parts.username
        self.django = {
            "ENGINE": f"django.db.backends.{kind}", "NAME": self.name, "USER": self.user, "HOST": self.host,
            "PORT": self.port, "PASSWORD": parts.password or "",
        }  # fmt: skip
        self.admin(f"CREATE DATABASE {self.name}" + (" CHARACTER SET utf8mb4" if kind == "mysql" else ""))

    def connect(self, name: str | None = None) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.file)
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(
                host=self.host, port=self.port, user=self.user, dbname=name or self.name, autocommit=True
            )
        import pymysql
        from pymysql.constants import CLIENT

        return pymysql.connect(
            host=self.host, port=self.port or 3306, user=self.user, database=name or self.name,
            client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True, ssl_disabled=True,
        )  # fmt: skip

    def admin(self, statement: str) -> None:
        with closing(self.connect({"postgresql": "postgres", "mysql": "mysql"}[self.kind])) as connection:
            connection.cursor().execute(statement)

    def rows(self, statement: str) -> list[Any]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def fill(self, dump: Path) -> None:
        text = dump.read_text(encoding="utf-8")
        with closing(self.connect()) as connection:
            if self.kind == "sqlite":
                connection.executescript(text)
                return
            cursor = connection.cursor()
            cursor.execute(text)
            while self.kind == "mysql" and cursor.nextset():
                pass

    def migrating(self, app: str, *do: list[str], **order: Any) -> list[Any]:
        found: list[Any] = self.running("django_migrating.py", app=app, do=do, **order)
        return found

    def running(self, script: str, **order: Any) -> Any:
        """The output of a script of tests/support, run with *order* and this database."""
        told = json.dumps({"database": self.django, **order})
        program = REPOSITORY / "tests" / "support" / script
        done = subprocess.run(
            [sys.executable, str(program), told],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def shape(self) -> list[Any]:
        """The broker's tables, columns and indexes, as reported by the database."""
        if self.kind == "sqlite":
            names = {row[0] for row in self.rows("SELECT tbl_name FROM sqlite_master WHERE type = 'table'")}
            ours = "', '".join(name for name in names if not name.startswith(("django", "auth", "qworker")))
            found = self.rows(
                f"SELECT name, sql FROM sqlite_master WHERE tbl_name IN ('{ours}') ORDER BY name"
            )
            return [*found, self.rows("PRAGMA user_version")]
        where = "table_name IN ('{}')".format("', '".join(f"qworker_{name}" for name in STORED[self.kind]))
        schema = "table_schema = " + ("'public'" if self.kind == "postgresql" else "database()")
        columns = self.rows(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM "
            f"information_schema.columns WHERE {where} AND {schema} ORDER BY table_name, ordinal_position"
        )
        if self.kind == "postgresql":
            where = where.replace("table_name", "tablename")
            indexes = self.rows(f"SELECT indexname, indexdef FROM pg_indexes WHERE {where} ORDER BY 1")
        else:
            indexes = self.rows(
                "SELECT table_name, index_name, seq_in_index, column_name FROM "
                f"information_schema.statistics WHERE {where} AND {schema} ORDER BY 1, 2, 3"
            )
        return [*columns, *indexes, *self.rows("SELECT * FROM qworker_schema")]

    def clear(self) -> None:
        if self.kind != "sqlite":
            self.admin(f"DROP DATABASE {self.name}")
