"""The migrations, under both labels and on three databases: forward, back, over django-q2's tables."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from qworker.transports.sqlite.database import Database
from tests.conftest import REPOSITORY
from tests.servers import require

DATA = REPOSITORY / "tests" / "data"
APPS = {"qworker": "qworker.django", "django_q": "qworker.django.apps.DjangoQConfig"}
KINDS = ("sqlite", "postgresql", "mysql")
CHECK = ["call", "makemigrations", "--check", "--dry-run"]


class Place:
    """An empty database: fill() executes a dump in it, migrating() runs a process over it, shape() tells what
    its tables are like."""

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
            client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True,
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
        told = json.dumps({"app": app, "database": self.django, "do": do, **order})
        program = REPOSITORY / "tests" / "support" / "django_migrating.py"
        done = subprocess.run(
            [sys.executable, str(program), told],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[Any] = json.loads(done.stdout)
        return found

    def shape(self) -> list[Any]:
        """The broker's tables, columns and indexes, as the database tells them."""
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


STORED = {
    "postgresql": ("schema", "message", "dead", "owner", "revoked"),
    "mysql": ("schema", "message", "dead", "owner", "revoked", "bell"),
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    made: list[Place] = []

    def make(kind: str) -> Place:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Place(kind, directory))
        return made[-1]

    yield make
    for place in made:
        place.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", APPS)
def test_forward_back_and_nothing_left_to_write(
    places: Callable[[str], Place], kind: str, label: str
) -> None:
    place = places(kind)
    before, _, forward, check, _, back, _, again = place.migrating(
        APPS[label],
        ["tables"], ["call", "migrate"], ["tables"], CHECK, ["call", "migrate", label, "zero"], ["tables"],
        ["call", "migrate"], ["tables"],
    )  # fmt: skip
    assert "No changes detected" in check
    assert before == []
    assert {"qworker_ormq v", "qworker_ormq_owner v"} <= set(forward)
    assert again == forward
    assert not [
        name for name in back if "qworker" in name or name.split()[0] in ("message", "owner", "result")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_brokers_tables_are_those_that_it_makes_by_itself(
    places: Callable[[str], Place], kind: str
) -> None:
    migrated, own = places(kind), places(kind)
    migrated.migrating(APPS["qworker"], ["call", "migrate"])
    if kind == "sqlite":
        Database(own.file).connect().close()
    else:
        _open(kind, own)
    assert migrated.shape() == own.shape()
    assert len(own.shape()) > 5


def _open(kind: str, place: Place) -> None:
    """Let the transport make its tables."""
    from qworker import QWorker

    scheme = {"postgresql": "postgresql", "mysql": "mysql"}[kind]
    url = f"{scheme}://{place.user}@{place.host}:{place.port}/{place.name}"
    app = QWorker("migrating", broker=url, set_as_current=False)
    app.send_task("anything")
    app.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_of_django_q2_is_adopted(places: Callable[[str], Place], kind: str) -> None:
    place = places(kind)
    place.fill(DATA / f"django_q2.{kind}.sql")
    told, check, tasks, schedules, queue, tables, released = place.migrating(
        APPS["django_q"],
        ["call", "migrate"], CHECK, ["model", "Task"], ["model", "Schedule"], ["queue"], ["tables"],
        ["release"],
    )  # fmt: skip
    assert "0001_tables" not in told
    assert "No changes detected" in check
    assert [task["result"] for task in tasks] == [[0], [1], [2], "ValueError: three", [4]]
    assert tasks[4]["args"] == [2, -4]
    assert tasks[4]["kwargs"] == {"word": "django"}
    assert [row["func"] for row in schedules] == ["math.hypot", "builtins.dict"]
    assert schedules[0]["repeats"] == -7
    assert queue == [
        ["other", "waiting-0", [0], None],
        ["default", "waiting-1", [1], None],
        ["default", "waiting-2", [2], None],
    ]
    assert not [name for name in tables if name.startswith("django_q_ormq")]
    assert released == [1, 1, ["moved", "waiting-0", [0], "2030-01-01 00:00:00+00:00"]]


def test_a_database_of_an_older_django_q2_is_refused(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    place.fill(DATA / "django_q2.sqlite.sql")
    with closing(place.connect()) as connection, connection:
        connection.execute("DELETE FROM django_migrations WHERE name LIKE '0019%' AND app = 'django_q'")
    with pytest.raises(AssertionError, match="older django-q, without 0019_alter_task_options"):
        place.migrating(APPS["django_q"], ["call", "migrate"])
    assert len(place.rows("SELECT * FROM django_q_ormq")) == 3


def test_tables_of_somebody_else_are_left_alone(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    with closing(place.connect()) as connection:
        connection.execute("CREATE TABLE message (id INTEGER, text TEXT)")
    with pytest.raises(AssertionError, match="a table message that is not qworker's"):
        place.migrating(APPS["qworker"], ["call", "migrate"])


def test_where_another_database_is_the_broker_no_queue_is_made(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    _, tables = place.migrating(APPS["qworker"], ["call", "migrate"], ["tables"], orm="another")
    assert not [name for name in tables if name.startswith(("message", "owner", "qworker_ormq"))]
    assert "qworker_task t" in tables
