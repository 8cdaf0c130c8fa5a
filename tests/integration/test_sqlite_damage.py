"""Damaged rows in the file of the embedded broker: no row stops a worker, and no message is lost silently."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import PublishError
from qworker.testing.worker import StepWorker
from qworker.transports.lease import Dead, DeadLetter, Envelope, Release
from qworker.transports.sql.embedded import Database, database
from qworker.transports.sql.embedded.broker import SQLiteBroker

pytestmark = pytest.mark.integration

WRONG = ("'soon'", "''", "x'ff00'", "1.5", "7", "-1", "9223372036854775807", "1e308", "NULL")
COLUMNS = {
    "message": ("queue", "priority", "due", "state", "owner", "deliveries", "redelivered", "parked", "sent",
    "headers",
                "properties", "body"),
    "dead": ("queue", "reason", "died_at", "deliveries", "priority", "headers", "properties", "body"),
    "owner": ("name", "pid", "boot", "queues", "concurrency", "lease_until", "started", "marks"),
    "revoked": ("task_id", "terminate", "signal", "expires"),
    "result": ("status", "payload", "expires"),
}  # fmt: skip


@pytest.fixture
def lax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create files like an SQLite that does not support STRICT."""
    monkeypatch.setattr(database, "_STRICT", False)


def change(path: Path, statement: str) -> int:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).rowcount


def fill(path: Path) -> None:
    """Create at least one row in every table."""
    with closing(SQLiteBroker(f"sqlite:///{path}")) as store:
        store.sender.revoke(["revoked"])
        store.letters["dead"].push([Dead(0, "celery", "bad", 1.0, 0, "{}", None, b"")])
        generation = store.consumer.register("other@test", ["q"], 1)
        store.sender.push([Envelope("q", "{}", None, b"")])
        (leased,) = store.consumer.lease(["q"], 1).messages
        store.consumer.settle(generation, [Release(leased.tag, 4e9)])
        change(path, "INSERT INTO owner SELECT NULL, 'gone@test', pid, 'boot', queues, concurrency, 0, 0, "
                     "'2-x.marks', '' FROM owner")  # fmt: skip
        change(path, "INSERT INTO result VALUES ('id', 'SUCCESS', x'7b7d', NULL)")


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, names in COLUMNS.items() for c in names])
@pytest.mark.usefixtures("lax")
def test_invalid_column_values_do_not_stop_a_worker(tmp_path: Path, table: str, column: str) -> None:
    for number, value in enumerate(WRONG):
        path = tmp_path / f"{number}.db"
        fill(path)
        app = QWorker("damage", broker=f"sqlite:///{path}", set_as_current=False)

        @app.task(name="fine")
        def fine(number: int) -> int:
            return number

        hurt = [fine.delay(number) for number in range(2)]
        hurt.append(fine.apply_async((2,), countdown=0.01))
        first = "tag = (SELECT min(tag) FROM message WHERE queue = 'celery')" if table == "message" else "1"
        try:
            assert change(path, f"UPDATE {table} SET {column} = {value} WHERE {first}") > 0
        except sqlite3.IntegrityError:
            continue  # NOT NULL is always enforced
        with StepWorker(app) as worker:
            others = [fine.delay(number) for number in range(3)]
            for _ in range(3):
                worker.run()
                app.clock.sleep(0.01)
            assert [other.get(timeout=10) for other in others] == [0, 1, 2], (value, table, column)
            assert worker.parts.listener.connection.failing is None
            app.broker.admin.dead()
            app.broker.admin.queues()
            app.broker.admin.workers()
        app.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("priority", "'high'"), ("deliveries", "x'00'"), ("headers", "x'7b7d'"), ("body", "'[]'")],
)
@pytest.mark.usefixtures("lax")
def test_damaged_message_becomes_a_dead_letter_with_the_reason(
    tmp_path: Path, column: str, value: str
) -> None:
    path = tmp_path / "queue.db"
    with closing(SQLiteBroker(f"sqlite:///{path}")) as store:
        store.sender.push([Envelope("q", '{"id":"x"}', None, b"[]") for _ in range(2)])
        change(path, f"UPDATE message SET {column} = {value} WHERE tag = 1")
        store.consumer.register("w@test", ["q"], 1)
        assert [leased.tag for leased in store.consumer.lease(["q"], 10).messages] == [2]
        (letter,) = store.admin.dead()
        assert letter.tag == 1
        assert letter.reason.startswith(f"its row is damaged: {column} is ")
        assert (type(letter.headers), type(letter.body), type(letter.deliveries)) == (str, bytes, int)
        assert store.admin.dead_retry([1]) == 1
        assert [leased.tag for leased in store.consumer.lease(["q"], 10).messages] == [3]


@pytest.mark.usefixtures("lax")
@pytest.mark.parametrize("due", ["'soon'", "NULL", "x'00'"])
def test_invalid_due_time_does_not_hide_other_messages(tmp_path: Path, due: str) -> None:
    path = tmp_path / "queue.db"
    with closing(SQLiteBroker(f"sqlite:///{path}")) as store:
        store.consumer.register("w@test", ["q"], 1)
        now = time.time()
        store.sender.push(
            [Envelope("q", str(number), None, b"[]", 0, now + 0.02 * number) for number in (1, 2)]
        )
        change(path, f"UPDATE message SET due = {due} WHERE headers = '1'")
        found: set[str] = set()
        while len(found) < 2:
            store.admin.next_due(["q"])
            found |= {leased.headers for leased in store.consumer.lease(["q"], 10, 5, 1.0).messages}


@pytest.mark.skipif(
    sqlite3.sqlite_version_info < (3, 37), reason="this SQLite does not know STRICT: use 3.37"
)
@pytest.mark.parametrize(
    ("table", "column"), [("message", "priority"), ("message", "due"), ("owner", "lease_until")]
)
def test_new_file_refuses_invalid_values(tmp_path: Path, table: str, column: str) -> None:
    path = tmp_path / "queue.db"
    fill(path)
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value"):
        change(path, f"UPDATE {table} SET {column} = 'soon'")


@pytest.mark.skipif(
    sqlite3.sqlite_version_info < (3, 37), reason="this SQLite does not know STRICT: use 3.37"
)
def test_publishing_invalid_values_raises_publish_error(tmp_path: Path) -> None:
    wrong: Any = "high"
    with closing(SQLiteBroker(f"sqlite:///{tmp_path}/queue.db")) as store:
        with pytest.raises(PublishError, match="cannot store TEXT value in INTEGER column"):
            store.sender.push([Envelope("q", "{}", None, b"", wrong)])
        store.sender.push([Envelope("q", "{}", None, b"")])
        assert [info.ready for info in store.admin.queues()] == [1]


def test_existing_file_is_not_changed_to_strict(
    tmp_path: Path, lax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    fill(path)
    monkeypatch.setattr(database, "_STRICT", True)
    with closing(Database(path).connect()) as connection:
        assert connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE sql LIKE '%STRICT%'"
        ).fetchone() == (0,)


def test_valid_rows_do_not_become_dead_letters(tmp_path: Path, lax: None) -> None:
    with closing(SQLiteBroker(f"sqlite:///{tmp_path}/queue.db")) as store:
        generation = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([Envelope("q", str(number), None if number else "{}", b"", number,
        0 if number else None) for number in range(9)])  # fmt: skip
        taken = store.consumer.lease(["q"], 10, 10, 10.0).messages
        assert len(taken) == 9
        store.consumer.settle(
            generation, [DeadLetter(taken[0].tag, "bad"), *(Release(leased.tag) for leased in taken[1:])]
        )
        assert len(store.admin.dead()) == 1
