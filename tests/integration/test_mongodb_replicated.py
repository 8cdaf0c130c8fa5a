"""MongoDB as a replica set: change streams that notify idle workers, and transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from qworker.errors import BrokerUnavailable
from qworker.transports.lease import Ack, DeadLetter, Release, Store
from qworker.transports.mongodb.broker import MongoBroker
from qworker.transports.mongodb.consumer import settle
from qworker.transports.mongodb.server import Collections
from tests.contract.place_mongodb import MongoPlace
from tests.servers import require, start_mongodb, start_replica_set
from tests.support.messages import message, names
from tests.support.mongodb_calls import Before, Calls, calls_of_a_batch
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    process, url = start_replica_set()
    yield url
    if process is not None:
        process.kill()
        process.wait()


@pytest.fixture
def place(server: str, tmp_path: Path) -> Iterator[MongoPlace]:
    place = MongoPlace(tmp_path, server)
    yield place
    if server == require("mongodb"):  # otherwise it ends with its process
        place.clear()


class Idle:
    """An idle consumer, and another broker of the same place. calls: the commands of the consumer."""

    def __init__(self, url: str) -> None:
        self.calls = Calls()
        self.broker = MongoBroker(url, options={"event_listeners": [self.calls]})
        self.own = self.broker.consumer.register("idle@test", ["q"], 1)
        self.other = MongoBroker(url)
        self.settle_down()

    def settle_down(self) -> None:
        """Wait until the change stream is open, and there are no notifications."""
        consumer = self.broker.consumer
        while self.broker.consumer.lease(["q"], 10).messages:
            pass
        until(lambda: not consumer.wait(0.05) and not self.broker.consumer._looking.is_due)
        self.calls.names.clear()

    def is_notified_of(self, change: Callable[[], object]) -> None:
        """Check that *change* notifies the waiting consumer, which does not poll before."""
        thread = threading.Thread(target=change)
        thread.start()
        assert self.broker.consumer.wait(PATIENCE)
        thread.join()
        assert self.calls.names.count("find") <= 3, f"more than one poll: {self.calls.names}"
        assert "killCursors" in self.calls.names, "the stream should be closed while the consumer is busy"

    def close(self) -> None:
        self.broker.close()
        self.other.close()


@pytest.fixture
def idle(place: MongoPlace) -> Iterator[Idle]:
    idle = Idle(place.url)
    yield idle
    idle.close()


def test_idle_consumer_does_not_poll(idle: Idle) -> None:
    assert not idle.broker.consumer.wait(0.6)
    assert set(idle.calls.names) <= {"getMore", "update"}, "update: it renews its lease"


@pytest.mark.parametrize("count", [1, 3])
def test_idle_consumer_is_notified_of_messages(idle: Idle, count: int) -> None:
    idle.is_notified_of(lambda: idle.other.sender.push([message(str(number)) for number in range(count)]))
    until(
        lambda: len(idle.broker.consumer.lease(["q"], 10).messages) == count or idle.broker.consumer.wait(1)
    )


def test_idle_consumer_is_notified_of_delayed_messages(idle: Idle) -> None:
    due = time.time() + 300
    idle.is_notified_of(lambda: idle.other.sender.push([message("later", due=due)]))
    assert idle.broker.consumer.lease(["q"], 10).next_due == due


def test_idle_consumer_is_notified_of_revocations(idle: Idle) -> None:
    idle.is_notified_of(lambda: idle.other.sender.revoke(["id"]))
    assert [each.task_id for each in idle.broker.consumer.revoked_since(0)[1]] == ["id"]


def test_idle_consumer_is_notified_of_releases(idle: Idle) -> None:
    other = idle.other.consumer
    own = other.register("other@test", ["q"], 1)
    idle.other.sender.push([message("a")])
    (leased,) = other.lease(["q"], 1).messages
    idle.settle_down()
    idle.is_notified_of(lambda: other.settle(own, [Release(leased.tag)]))
    assert names(idle.broker.consumer.lease(["q"], 10).messages) == ["a"]


def test_messages_in_other_queues_do_not_wake_the_consumer(idle: Idle) -> None:
    idle.other.sender.push([message("a", queue="another")])
    assert not idle.broker.consumer.wait(0.3)
    assert idle.calls.names.count("find") == 0


def test_close_does_not_wait_for_the_change_stream(idle: Idle) -> None:
    began = time.monotonic()
    idle.broker.close()
    assert time.monotonic() - began < 3.0, "a getMore waits longer"
    idle.other.sender.push([message("a")])
    idle.broker.consumer.register("again@test", ["q"], 1)
    assert idle.broker.consumer.wait(PATIENCE), "it polls for earlier messages"


def test_change_streams_are_used_when_a_replica_set_starts(tmp_path: Path) -> None:
    """And polling resumes when the replica set is unavailable."""
    require("mongodb")
    file = ["--file", str(tmp_path / "mongo.db")]
    process, url = start_mongodb(*file)
    store = MongoBroker(url.replace("30000", "1000"))
    consumer, looking = store.consumer, store.consumer._looking
    try:
        consumer.register("w@test", ["q"], 1)
        assert not consumer.wait(0.5)
        assert looking.is_due
        process.kill()
        process.wait()
        until(lambda: not _answers(consumer))
        process, _ = start_mongodb(*file, "--port", str(urlsplit(url).port), "--replica-set", "rs0")
        until(lambda: _answers(consumer) and not looking.is_due)
        process.kill()
        process.wait()
        until(lambda: looking.is_due)
        until(lambda: not _answers(consumer))
    finally:
        process.kill()
        process.wait()
        store._server.close()
        looking.close()


def _answers(consumer: Any) -> bool:
    try:
        consumer.wait(0.05)
    except BrokerUnavailable:
        return False
    return True


# -- transactions --


def raising(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def test_results_and_dead_letters_are_in_the_acks_transaction(place: MongoPlace) -> None:
    calls = Calls()
    store = MongoBroker(place.url, options={"event_listeners": [calls]})
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a"), message("b")])
    first, second = store.consumer.lease(["q"], 2).messages
    calls.in_transaction.clear()
    row = ("task", "SUCCESS", b"1", None)
    assert store.consumer.settle(own, [Ack(first.tag, row), DeadLetter(second.tag, "why")]) == set()
    assert calls.in_transaction == ["find", "update", "update", "delete", "commitTransaction"]
    assert place.result("task") == ("SUCCESS", b"1")
    assert [each.reason for each in store.admin.dead()] == ["why"]
    assert place.count() == 0
    store.close()


def test_number_of_calls_for_each_task(place: MongoPlace) -> None:
    """Of 16: a query, a claim, the owner's record; then one transaction with messages and results."""
    calls = ["aggregate", "update", "find", "delete", "update", "commitTransaction"]
    assert calls_of_a_batch(place.url) == calls


def test_ack_of_a_lost_message_does_not_affect_others(place: MongoPlace) -> None:
    """The transaction for all acks is rolled back."""
    store = MongoBroker(place.url)
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a"), message("b")])
    first, second = store.consumer.lease(["q"], 2).messages
    place.database.qworker_message.update_one({"_id": first.tag}, {"$set": {"owner": own + 1}})
    acks = [Ack(each.tag, (f"task-{each.headers}", "SUCCESS", b"1", None)) for each in (first, second)]
    assert store.consumer.settle(own, acks) == {first.tag}
    assert (place.result("task-a"), place.result("task-b")) == (None, ("SUCCESS", b"1"))
    assert place.count() == 1
    store.close()


@pytest.mark.parametrize(
    ("there", "comes", "stays"),
    [("SUCCESS", "FAILURE", True), ("FAILURE", "SUCCESS", False), ("FAILURE", "STARTED", True),
    ("STARTED", "SUCCESS", False)],
)  # fmt: skip
def test_final_result_is_not_overwritten_in_a_transaction(
    place: MongoPlace, there: str, comes: str, stays: bool
) -> None:
    store = MongoBroker(place.url)
    own = store.consumer.register("w@test", ["q"], 1)
    store.consumer.settle(own, [Store(("task", there, b"$status", None))])
    store.sender.push([message("a")])
    (leased,) = store.consumer.lease(["q"], 1).messages
    assert store.consumer.settle(own, [Ack(leased.tag, ("task", comes, b"$status", None))]) == set()
    assert place.result("task") == ((there if stays else comes), b"$status")
    assert place.count() == 0
    store.close()


def test_interrupted_settlement_is_rolled_back(place: MongoPlace) -> None:
    store = MongoBroker(place.url)
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a")])
    (leased,) = store.consumer.lease(["q"], 2).messages
    ack = Ack(leased.tag, ("task", "SUCCESS", b"1", None))

    def work(error: Exception, times: int) -> Callable[[Collections], set[int]]:
        def run(found: Collections) -> set[int]:
            found.message = Before(found.message, "delete_many", raising(error), times)
            return settle(found, own, {leased.tag}, [ack], time.time())

        return run

    with pytest.raises(BrokerUnavailable):
        store._server.run(work(OperationFailure("no room"), 1))
    assert (place.result("task"), place.count()) == (None, 1)
    passing = AutoReconnect("the primary steps down")
    passing._add_error_label("TransientTransactionError")
    assert store._server.run(work(passing, 2)) == set()
    assert (place.result("task"), place.count()) == (("SUCCESS", b"1"), 0)
    store.close()


def test_dead_letters_are_retried_in_one_transaction(place: MongoPlace) -> None:
    calls = Calls()
    store = MongoBroker(place.url, options={"event_listeners": [calls]})
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a")])
    (leased,) = store.consumer.lease(["q"], 2).messages
    store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    calls.in_transaction.clear()
    assert store.admin.dead_retry([leased.tag]) == 1
    assert calls.in_transaction[-1] == "commitTransaction"
    assert {"update", "delete"} <= set(calls.in_transaction)
    assert names(store.consumer.lease(["q"], 2).messages) == ["a"]
    store.close()
