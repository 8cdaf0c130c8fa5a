"""The embedded broker where it differs from a server: its file may be removed under those who use it."""

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
    """Why a look around ends in LeaseLost; '' while it does not."""
    try:
        store.consumer.reclaim()
    except LeaseLost as error:
        return str(error)
    return ""


def test_a_worker_goes_over_to_the_new_file(store: SQLiteBroker, directory: Path) -> None:
    old = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("gone")])
    (gone,) = store.consumer.lease(["q"], 1).messages
    shutil.rmtree(directory)
    assert "was replaced by another file" in until(lambda: lost_lease(store))
    # Another was given the same message number in the new file: it is not ours.
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


def test_a_worker_without_a_record_takes_nothing(store: SQLiteBroker, directory: Path) -> None:
    """A backup was restored into the file: nobody would reclaim what the worker takes, if it then dies."""
    store.consumer.register("w@test", ["q"], 1)
    with closing(sqlite3.connect(directory / "queue.db")) as connection, connection:
        connection.execute("DELETE FROM owner")
    store.sender.push([message("a")])
    with pytest.raises(LeaseLost, match="its data was deleted or replaced"):
        store.consumer.lease(["q"], 1)
    store.consumer.register("w@test", ["q"], 1)
    assert [leased.headers for leased in store.consumer.lease(["q"], 1).messages] == ["a"]


def test_a_publisher_goes_over_to_the_new_file(store: SQLiteBroker, directory: Path) -> None:
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


def test_who_leaves_a_removed_file_leaves_in_peace(store: SQLiteBroker, directory: Path) -> None:
    store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("gone")])
    store.consumer.lease(["q"], 1)
    shutil.rmtree(directory)
    until(lambda: lost_lease(store))
    store.consumer.deregister()
    store.sender.push([message("new")])
    store.consumer.register("w@test", ["q"], 1)
    assert [leased.headers for leased in store.consumer.lease(["q"], 10).messages] == ["new"]


def test_whose_files_were_deleted_lives_until_its_lease_ends(directory: Path) -> None:
    """Somebody tidied up beside the database: that is no death."""
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
    assert second.admin.workers() == []  # nor has the second renewed its own
    for store in (first, second):
        store.close()


def test_who_could_not_give_back_is_dead_to_the_others_at_once(
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
