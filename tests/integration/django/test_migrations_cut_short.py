"""Migrations interrupted before each of their statements and repeated, also with concurrent writers: no
package is lost or duplicated, and the tables are the same."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.conftest import REPOSITORY
from tests.support.cases import cases
from tests.support.django_places import KINDS, Place
from tests.support.waiting import until

pytestmark = pytest.mark.one_python  # what an interrupted statement leaves depends on the server

APP = "qworker.django.apps.DjangoQConfig"
DATA = REPOSITORY / "tests" / "data"
OLD, NEW = "django_q_ormq", {"sqlite": "message", "postgresql": "qworker_message", "mysql": "qworker_message"}
ROUTES: dict[str, tuple[str, bool, list[list[str]]]] = {
    "new": ("qworker.django", False, [["qworker"]]),
    "dropped": ("qworker.django", False, [["qworker"], ["qworker", "zero"]]),
    "adopted": (APP, True, [["django_q"]]),
    "given back": (APP, True, [["django_q"], ["django_q", "0001_tables"]]),
}
"""The app, whether there are tables of django-q2, and the migrations; the last one is interrupted."""


ALWAYS = {("adopted", "sqlite"), ("adopted", "postgresql"), ("adopted", "mysql"), ("given back", "mysql")}
"""MySQL commits each step, so most interrupts leave it half-way; the others roll back."""
CASES = [
    pytest.param(
        route, kind, each, marks=() if (route, kind) in ALWAYS and not each else pytest.mark.more_cases
    )
    for route in ROUTES
    for kind in KINDS
    for each in (False, True)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("route", "kind", "each"), CASES)
def test_interrupted_migration_can_be_repeated(
    places: Callable[[str], Place], kind: str, route: str, each: bool
) -> None:
    """each: repeat the migration in a new database for each interrupt; otherwise, all are in one."""
    app, filled, steps = ROUTES[route]
    dump = str(DATA / f"django_q2.{kind}.sql") if filled else None
    rounds = places(kind).running("django_cut_short.py", app=app, dump=dump, route=steps, each=each)
    _, tables, rows = rounds[-1]
    assert len(rounds) > 3
    if filled:
        where = OLD if route == "given back" else NEW[kind]
        assert [[row[0], row[1]] for row in rows] == [
            [where, "other"],
            [where, "default"],
            [where, "default"],
        ]
    for statement, tables_then, rows_then in rounds:
        assert (tables_then, rows_then) == (tables, rows), statement


LOCK_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND"
    " wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND"
    " state LIKE 'Waiting for table%'",
}
"""Queries for the number of connections that wait for a lock on a table."""
PUT = {
    OLD: 'INSERT INTO django_q_ormq ("key", payload) SELECT "key", payload FROM django_q_ormq WHERE id = 1',
    "qworker_message": "INSERT INTO qworker_message (queue, urgency, state, sent, headers, body) SELECT"
    " queue, urgency, state, sent, headers, body FROM qworker_message WHERE tag = 1",
}
"""Statements that enqueue a copy of the first package."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", LOCK_WAITS)
@pytest.mark.parametrize("route", ["adopted", "given back"])
@pytest.mark.parametrize(
    "isolation", cases(["repeatable read", ""], ["repeatable read"])
)  # it reads an older snapshot
def test_messages_of_open_transactions_are_migrated(
    places: Callable[[str], Place], kind: str, route: str, isolation: str
) -> None:
    """Old code has not committed yet when migrate starts; a later insert is migrated or refused."""
    app, _, (*before, last) = ROUTES[route]
    place = places(kind)
    place.fill(DATA / f"django_q2.{kind}.sql")
    if isolation and kind == "postgresql":
        place.django["OPTIONS"] = {"isolation_level": 3}
    elif isolation:
        place.django["OPTIONS"] = {"isolation_level": isolation}
    for words in before:
        place.migrating(app, ["call", "migrate", *words])
    source, target = (OLD, "qworker_message") if route == "adopted" else ("qworker_message", OLD)
    put = PUT[source] if kind == "postgresql" else PUT[source].replace('"', "`")
    with closing(place.connect()) as writer, ThreadPoolExecutor() as pool:
        cursor = writer.cursor()
        cursor.execute("BEGIN")
        cursor.execute(put)
        migration = pool.submit(place.migrating, app, ["call", "migrate", *last])
        until(lambda: migration.done() or place.rows(LOCK_WAITS[kind])[0][0] > 0, 60)
        assert not migration.done()
        late = pool.submit(place.rows, put)
        until(lambda: late.done() or place.rows(LOCK_WAITS[kind])[0][0] > 1, 60)
        cursor.execute("COMMIT")
        migration.result()
        taken = 4 if late.exception() else 5  # an accepted insert is migrated, too
    assert place.rows(f"SELECT count(*) FROM {target}") == [(taken,)]


def test_sqlite_migration_with_concurrent_writers_loses_nothing(places: Callable[[str], Place]) -> None:
    """Either each inserted package is in the queue, or migrate has failed completely."""
    place = places("sqlite")
    place.fill(DATA / "django_q2.sqlite.sql")
    taken, ended = [3], threading.Event()

    def write() -> None:
        with closing(place.connect()) as writer:
            while not ended.is_set():
                try:
                    writer.execute(PUT[OLD])
                    writer.commit()
                    taken[0] += 1
                except sqlite3.OperationalError as error:
                    writer.rollback()
                    if "no such table" in str(error):
                        return
                ended.wait(0.01)

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        try:
            until(lambda: migrated(place), 60)
        finally:
            ended.set()
        writing.result()
    assert place.rows("SELECT count(*) FROM message") == [(taken[0],)]


def migrated(place: Place) -> bool:
    try:
        place.migrating(APP, ["call", "migrate", "django_q"])
    except AssertionError as error:
        if "database is locked" not in str(error):
            raise
        return False
    return True
