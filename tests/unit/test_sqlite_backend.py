"""The result store in the file of the embedded broker."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from qworker import states
from qworker.backends import Backend, open_backend
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf import Settings
from qworker.errors import BackendError
from qworker.testing.clock import FakeClock
from qworker.transports.sql.embedded import UPSERT_RESULT


def opened(path: Path, clock: Clock = SYSTEM_CLOCK) -> Backend:
    return open_backend(f"sqlite:///{path}", Settings({}, environ={}), clock)


def test_file_is_created_on_first_use(tmp_path: Path) -> None:
    backend = opened(tmp_path / "r.db")
    assert backend.same_store(f"sqlite:///{tmp_path}/r.db")
    assert not backend.same_store(f"sqlite:///{tmp_path}/other.db")
    assert not backend.same_store("redis://localhost")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("new", ["STARTED", "PROGRESS", "SUCCESS", "FAILURE"])
@pytest.mark.parametrize("old", ["STARTED", "SUCCESS", "FAILURE", "REVOKED"])
def test_row_stored_by_a_worker_follows_state_precedence(tmp_path: Path, old: str, new: str) -> None:
    clock = FakeClock()
    backend = opened(tmp_path / "r.db", clock)
    backend.store("x", backend.meta("x", old, "old"))
    with sqlite3.connect(tmp_path / "r.db", isolation_level=None) as connection:
        connection.execute(UPSERT_RESULT, backend.row("x", backend.meta("x", new, "new")))
    connection.close()
    meta = backend.get("x")
    assert meta is not None
    assert meta["result"] == ("new" if states.may_replace(old, new) else "old")
    clock.advance(86_401)
    assert backend.get("x") is None
    backend.close()


def test_watcher_has_a_mark_after_the_first_wait(tmp_path: Path) -> None:
    backend = opened(tmp_path / "r.db")
    assert backend.watcher.mark() is None
    backend.store("x", backend.meta("x", "SUCCESS"))
    assert list(backend.watcher.wait(["x"], 60)) == ["x"]
    assert backend.watcher.mark() is not None
    backend.close()
    assert backend.watcher.mark() is None


def test_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(b"this is a text file, and a rather long one" * 100)
    with pytest.raises(BackendError, match="not a sound SQLite database"):
        opened(path).get("x")


def test_damaged_row_is_an_error(tmp_path: Path) -> None:
    backend = opened(tmp_path / "r.db")
    backend.store("x", backend.meta("x", "SUCCESS", 1))
    with sqlite3.connect(tmp_path / "r.db", isolation_level=None) as connection:
        connection.execute("UPDATE result SET payload = CAST('[1, 2' AS BLOB)")
    connection.close()
    with pytest.raises(BackendError, match="cannot be read as json"):
        backend.get("x")
    with sqlite3.connect(tmp_path / "r.db", isolation_level=None) as connection:
        connection.execute("UPDATE result SET payload = CAST('[1, 2]' AS BLOB)")
    connection.close()
    with pytest.raises(BackendError, match="is not metadata"):
        backend.get("x")
    backend.close()


def test_sweep_deletes_more_than_one_batch(tmp_path: Path) -> None:
    clock = FakeClock()
    backend = opened(tmp_path / "r.db", clock)
    backend.store("first", backend.meta("first", "SUCCESS"))
    row = backend.row("x", backend.meta("x", "SUCCESS"))
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.executemany(UPSERT_RESULT, [(str(number), *row[1:]) for number in range(2500)])
    connection.close()
    clock.advance(90_000)
    backend.store("young", backend.meta("young", "SUCCESS"))
    assert backend.sweep(clock.now()) == 2501
    assert backend.get("young") is not None
    backend.close()


def test_reading_a_signed_result_without_a_key_is_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.db"
    with_key = Settings({"security_key": ["k" * 32]}, environ={})
    writer, reader = open_backend(url, with_key, SYSTEM_CLOCK), opened(tmp_path / "r.db")
    writer.store("x", writer.meta("x", "SUCCESS", 5))
    with pytest.raises(BackendError, match="is signed, and this process has no security_key: set it here"):
        reader.get("x")
    writer.close()
    reader.close()
