"""The embedded broker when its file is removed while in use."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.lease import Ack
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / ".qworker"


@pytest.fixture
def store(directory: Path) -> Iterator[SQLiteBroker]:
    store = SQLiteBroker(f"sqlite:///{directory}/queue.db")
    yield store
    store.close()


def lost_lease(store: SQLiteBroker) -> str:
    """Return the error if reclaim() raises LeaseLost; otherwise ''."""
    try:
        store.consumer.reclaim()
    except LeaseLost as error:
        return str(error)
    return ""


def test_worker_switches_to_a_new_file(store: SQLiteBroker, directory: Path) -> None:
    old = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("gone")])
    (gone,) = store.consumer.lease(["q"], 1).messages
    shutil.rmtree(directory)
    assert "was replaced by another file" in until(lambda: lost_lease(store))
    # Another consumer has leased a message with the same tag in the new file.
    other = SQLiteBroker(store.url)
    theirs = other.consumer.register("other@test", ["q"], 1)
    other.sender.push([message("theirs")])
    (held,) = other.consumer.lease(["q"], 1).messages
    assert held.tag == gone.tag
    assert theirs != old
    with pytest.raises(LeaseLost):
        store.consumer.settle(old, [Ack(gone.tag)])
    new = store.consumer.register("w@test", ["q"], 1)
    assert new != theirs
    assert other.consumer.settle(theirs, [Ack(held.tag)]) == set()
    other.sender.push([message("new")])
    assert store.consumer.wait(30)
    assert [leased.headers for leased in store.consumer.lease(["q"], 10).messages] == ["new"]
    other.close()


def test_worker_without_an_owner_record_raises_lease_lost(store: SQLiteBroker, directory: Path) -> None:
    """After restoring a backup, messages leased without a record could not be reclaimed."""
    store.consumer.register("w@test", ["q"], 1)
    with closing(sqlite3.connect(directory / "queue.db")) as connection, connection:
        connection.execute("DELETE FROM owner")
    store.sender.push([message("a")])
    with pytest.raises(LeaseLost, match="its data was deleted or replaced"):
        store.consumer.lease(["q"], 1)
    store.consumer.register("w@test", ["q"], 1)
    assert [leased.headers for leased in store.consumer.lease(["q"], 1).messages] == ["a"]


def test_publisher_switches_to_a_new_file(store: SQLiteBroker, directory: Path) -> None:
    store.sender.push([message("gone")])
    shutil.rmtree(directory)
    other = SQLiteBroker(store.url)
    other.consumer.register("other@test", ["q"], 1)

    def arrives() -> list[str]:
        store.sender.push([message("new")])
        return [leased.headers for leased in other.consumer.lease(["q"], 1).messages]

    assert until(arrives) == ["new"]
    assert other.consumer.wait(30)
    other.close()


def test_deregistering_from_a_removed_file_is_harmless(store: SQLiteBroker, directory: Path) -> None:
    store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("gone")])
    store.consumer.lease(["q"], 1)
    shutil.rmtree(directory)
    until(lambda: lost_lease(store))
    store.consumer.deregister()
    store.sender.push([message("new")])
    store.consumer.register("w@test", ["q"], 1)
    assert [leased.headers for leased in store.consumer.lease(["q"], 10).messages] == ["new"]


def test_deleted_owner_files_do_not_count_as_a_death(directory: Path) -> None:
    """Another program deleted them; the lease is still valid."""
    now = 1000.0
    first, second = (SQLiteBroker(f"sqlite:///{directory}/queue.db", uptime=lambda: now) for _ in range(2))
    first.consumer.register("first@test", ["q"], 1)
    second.consumer.register("second@test", ["q"], 1)
    first.sender.push([message("a")])
    assert len(first.consumer.lease(["q"], 1).messages) == 1
    shutil.rmtree(directory / "queue.db-owners")
    assert second.consumer.reclaim() == []
    assert [worker.name for worker in second.admin.workers()] == ["first@test", "second@test"]
    now += 31.0
    ((name, returned, _),) = second.consumer.reclaim()
    assert (name, returned) == ("first@test", 1)
    assert second.admin.workers() == []  # the second has not renewed its own, either
    for store in (first, second):
        store.close()


def test_consumer_that_fails_to_deregister_is_reclaimed_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (SQLiteBroker(f"sqlite:///{directory}/queue.db") for _ in range(2))
    second.consumer.register("second@test", ["q"], 1)
    first.consumer.register("first@test", ["q"], 1)
    first.sender.push([message("a")])
    assert len(first.consumer.lease(["q"], 1).messages) == 1

    def fail() -> None:
        raise BrokerUnavailable("the disk is full")

    monkeypatch.setattr(first.consumer, "_give_back", fail)
    with pytest.raises(BrokerUnavailable):
        first.consumer.deregister()
    ((name, returned, counted),) = second.consumer.reclaim()
    assert (name, returned, counted) == ("first@test", 1, 0)
    second.close()
    assert list((directory / "queue.db-owners").iterdir()) == []
    first.close()
