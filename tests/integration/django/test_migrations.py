"""The migrations with both labels on three databases: forward, back, from django-q2's tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from qworker.transports.sql.embedded.database import Database
from tests.conftest import REPOSITORY
from tests.support.django_places import KINDS, Place

DATA = REPOSITORY / "tests" / "data"
APPS = {"qworker": "qworker.django", "django_q": "qworker.django.apps.DjangoQConfig"}
CHECK = ["call", "makemigrations", "--check", "--dry-run"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", APPS)
def test_migrations_forward_and_back(places: Callable[[str], Place], kind: str, label: str) -> None:
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
def test_migrations_create_the_same_tables_as_the_broker(places: Callable[[str], Place], kind: str) -> None:
    migrated, own = places(kind), places(kind)
    migrated.migrating(APPS["qworker"], ["call", "migrate"])
    if kind == "sqlite":
        Database(own.file).connect().close()
    else:
        _open(kind, own)
    assert migrated.shape() == own.shape()
    assert len(own.shape()) > 5


def _open(kind: str, place: Place) -> None:
    """Let the transport create its tables."""
    from qworker import QWorker

    scheme = {"postgresql": "postgresql", "mysql": "mysql"}[kind]
    url = f"{scheme}://{place.user}@{place.host}:{place.port}/{place.name}"
    app = QWorker("migrating", broker=url, set_as_current=False)
    app.send_task("anything")
    app.close()


@pytest.mark.parametrize("kind", KINDS)
def test_django_q2_database_is_migrated(places: Callable[[str], Place], kind: str) -> None:
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


OWN = "tests.support.django_label.JobsConfig"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("app", [APPS["qworker"], OWN])
def test_other_label_coexists_with_django_q2_tables(
    places: Callable[[str], Place], kind: str, app: str
) -> None:
    """Index names are unique in the whole database on SQLite and PostgreSQL."""
    place = places(kind)
    place.fill(DATA / f"django_q2.{kind}.sql")
    told, check, tasks = place.migrating(app, ["call", "migrate"], CHECK, ["model", "Task"])
    assert "0001_tables... OK" in told
    assert "No changes detected" in check
    assert tasks == []
    _, tasks, queue = place.migrating(
        APPS["django_q"], ["call", "migrate"], ["model", "Task"], ["queue"]
    )  # it can be migrated later
    assert len(tasks) == 5
    assert len(queue) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_migration_from_django_q2_can_be_reversed(places: Callable[[str], Place], kind: str) -> None:
    """Including waiting messages, with an expired lock, so that django-q2 takes them."""
    place, before = places(kind), places(kind)
    for each in (place, before):
        each.fill(DATA / f"django_q2.{kind}.sql")
    _, _, queue, _ = place.migrating(
        APPS["django_q"],
        ["call", "migrate"], ["send"], ["queue"], ["call", "migrate", "django_q", "0001_tables"],
    )  # fmt: skip
    rows = "SELECT {}, payload FROM django_q_ormq ORDER BY id".format("`key`" if kind == "mysql" else "key")
    given, had = place.rows(rows), before.rows(rows)
    assert given[:3] == had
    assert len(given) == len(queue) == 4
    lock = "`lock`" if kind == "mysql" else "lock"
    assert {str(row[0])[:4] for row in place.rows(f"SELECT {lock} FROM django_q_ormq")} == {"2000"}
    for table, columns in {
        "task": "id, name, func, args, kwargs, result, started, stopped, success, attempt_count",
        "schedule": "id, name, func, args, kwargs, schedule_type, repeats, next_run, cron, task",
    }.items():
        rows = f"SELECT {columns} FROM django_q_{table} ORDER BY id"
        assert place.rows(rows) == before.rows(rows)


def test_older_django_q2_database_is_refused(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    place.fill(DATA / "django_q2.sqlite.sql")
    with closing(place.connect()) as connection, connection:
        connection.execute("DELETE FROM django_migrations WHERE name LIKE '0019%' AND app = 'django_q'")
    with pytest.raises(AssertionError, match="older version of django-q, without the migration 0019"):
        place.migrating(APPS["django_q"], ["call", "migrate"])
    assert len(place.rows("SELECT * FROM django_q_ormq")) == 3


@pytest.mark.parametrize("version", [0, 3, 6, 99])
@pytest.mark.parametrize("name", ["message", "owner", "result", "part"])
def test_foreign_tables_are_not_changed(places: Callable[[str], Place], version: int, name: str) -> None:
    """Even in a file with a user_version, which is then the project's."""
    place = places("sqlite")
    with closing(place.connect()) as connection:
        connection.execute(f"CREATE TABLE {name} (id INTEGER, text TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(AssertionError, match=f"a table {name} that is not qworker's"):
        place.migrating(APPS["qworker"], ["call", "migrate"])


def test_foreign_user_version_is_not_changed(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    with closing(place.connect()) as connection:
        connection.execute("PRAGMA user_version = 3")
    with pytest.raises(AssertionError, match="the user_version 3 of another program"):
        place.migrating(APPS["qworker"], ["call", "migrate"])
    assert place.rows("PRAGMA user_version") == [(3,)]


def test_tables_of_an_older_version_are_upgraded(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    Database(place.file).connect().close()
    with closing(place.connect()) as connection:
        connection.execute("ALTER TABLE owner DROP COLUMN presence")
        connection.execute("PRAGMA user_version = 5")
    place.migrating(APPS["qworker"], ["call", "migrate"])


def test_no_queue_tables_if_another_database_is_the_broker(places: Callable[[str], Place]) -> None:
    place = places("sqlite")
    _, tables = place.migrating(APPS["qworker"], ["call", "migrate"], ["tables"], orm="another")
    assert not [name for name in tables if name.startswith(("message", "owner", "qworker_ormq"))]
    assert "qworker_task t" in tables


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_tasks_are_kept_if_another_database_is_the_broker(
    places: Callable[[str], Place], kind: str
) -> None:
    """They were deleted, although the log said that they were kept."""
    place = places(kind)
    place.fill(DATA / f"django_q2.{kind}.sql")
    count = place.rows("SELECT count(*) FROM django_q_ormq")
    place.migrating(APPS["django_q"], ["call", "migrate"], orm="another")
    assert place.rows("SELECT count(*) FROM django_q_ormq") == count == [(3,)]


@pytest.mark.parametrize("kind", KINDS)
def test_queue_is_created_when_the_database_becomes_the_broker(
    places: Callable[[str], Place], kind: str
) -> None:
    """The next migrate creates it, although there are no migrations to apply."""
    place, at_once = places(kind), places(kind)
    place.migrating(APPS["qworker"], ["call", "migrate"], orm="another")
    told, tables, queue = place.migrating(APPS["qworker"], ["call", "migrate"], ["tables"], ["queue"])
    assert "No migrations to apply" in told
    assert {"qworker_ormq v", "qworker_ormq_owner v"} <= set(tables)
    assert queue == []
    at_once.migrating(APPS["qworker"], ["call", "migrate"])
    assert place.shape() == at_once.shape()
