"""What a fleet costs its broker: a message is fetched by one of the waiting workers, not by all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from qworker.transports.lease import NO_ROOM, Broker, Consumer
from tests.contract.place_redis import RedisPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqlite import SQLitePlace
from tests.support.fleet import Open, fleet, taken
from tests.support.messages import message, names
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(
    params=[SQLitePlace, RedisPlace, PostgreSQLPlace, MySQLPlace],
    ids=["sqlite", "redis", "postgresql", "mysql"],
)
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    place = request.param(tmp_path)
    with ExitStack() as opened:

        def open_one() -> Broker:
            broker: Broker = place.open()
            opened.callback(broker.close)
            return broker

        yield open_one
    place.clear()


@pytest.fixture
def polls(request: pytest.FixtureRequest) -> bool:
    """Return whether idle workers poll, because the server has no notifications."""
    return request.node.callspec.params["open_"] is MySQLPlace  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [2, 10, 30])
def test_claims_per_message_do_not_grow_with_idle_workers(open_: Open, polls: bool, size: int) -> None:
    """On MySQL, where workers poll, some see a message that another one is about to take."""
    sender = open_().sender
    with fleet(open_, size) as workers:
        before = sum(worker.claims for worker in workers)
        for number in range(20):
            sender.push([message(str(number))])
            until(lambda done=number + 1: taken(workers) == done)
        claims = sum(worker.claims for worker in workers) - before
        if not polls:
            assert claims <= 24, "each message wakes one"
            assert sum(worker.taken > 0 for worker in workers) > 1, "one worker gets everything"
        else:
            assert claims <= 100


def test_what_one_worker_leaves_is_taken_by_others(open_: Open, polls: bool) -> None:
    with fleet(open_, 4) as workers:
        open_().sender.push([message(str(number)) for number in range(400)])
        until(lambda: taken(workers) == 400)
        # Before another one polls, the first may have taken everything.
        assert polls or sum(worker.taken > 0 for worker in workers) > 1


def test_a_worker_with_a_long_lease_notices_the_short_ones_of_others(tmp_path: Path) -> None:
    """On SQLite it reads their leases only when one may have expired, and others register meanwhile."""
    now, place = 1000.0, SQLitePlace(tmp_path)
    with ExitStack() as opened:

        def open_one(lease_seconds: float) -> Broker:
            broker = place.open(lease_seconds=lease_seconds, uptime=lambda: now)
            opened.callback(broker.close)
            return broker

        long, short = open_one(600.0), open_one(2.0)
        long.consumer.register("long", ["q"], 1)
        assert long.consumer.reclaim() == []
        short.consumer.register("short", ["q"], 1)
        short.sender.push([message("a")])
        assert short.consumer.lease(["q"], 1).messages
        now += 5.0
        assert [(each.name, each.returned) for each in long.consumer.reclaim()] == [("short", 1)]


def registered(open_: Open, *queues: str) -> Consumer:
    """Return a consumer that waits for messages of *queues*."""
    consumer = open_().consumer
    consumer.register("w", queues, 1)
    assert consumer.lease(queues, 1).messages == []
    let_wait(consumer, *queues, prefetch=NO_ROOM)
    return consumer


def let_wait(consumer: Consumer, *queues: str, prefetch: int = 0) -> None:
    """Return when *consumer* waits; the queues are empty. It may report an old message, or want a second look
    after its registration."""
    while consumer.wait(0.05, prefetch):
        assert consumer.lease(queues, 1).messages == []


def full_ones(open_: Open) -> list[Consumer]:
    """Return three consumers without room."""
    return [registered(open_, "q") for _ in range(3)]


def test_a_worker_without_room_leaves_the_message_to_another(open_: Open) -> None:
    full = full_ones(open_)
    free = registered(open_, "q")
    sender = open_().sender
    for number in range(8):
        assert free.wait(0.05, 1) is False
        sender.push([message(str(number))])
        for _ in range(4):  # as often as it may be passed on
            assert not any(consumer.wait(0.05, NO_ROOM) for consumer in full)
        assert free.wait(10, 1) is True
        assert names(free.lease(["q"], 1).messages) == [str(number)]
        assert free.lease(["q"], 1).messages == []


def test_a_message_that_nobody_has_room_for_is_remembered(open_: Open) -> None:
    full = full_ones(open_)
    open_().sender.push([message("a")])
    for _ in range(5):
        assert not any(consumer.wait(0.05, NO_ROOM) for consumer in full)
    assert any(consumer.wait(0.05, 1) for consumer in full)
    assert [each for consumer in full for each in names(consumer.lease(["q"], 1).messages)] == ["a"]


def test_a_worker_that_is_notified_and_then_has_no_room_notifies_another(open_: Open) -> None:
    """As when the task that it runs turns out to be long."""
    workers = [registered(open_, "q") for _ in range(3)]
    sender = open_().sender
    for number in range(6):
        for worker in workers:
            let_wait(worker, "q")
        sender.push([message(str(number))])
        full = next(worker for worker in workers if worker.wait(2))
        others = [worker for worker in workers if worker is not full]
        for _ in range(4):
            full.wait(0.05, NO_ROOM)
        free = next(worker for worker in others if worker.wait(2))
        assert names(free.lease(["q"], 1).messages) == [str(number)]
        assert not any(worker.lease(["q"], 1).messages for worker in workers)


def test_a_worker_that_claims_again_is_notified_meanwhile(open_: Open) -> None:
    """It had no room, and the message arrives between its claim and its wait."""
    full = full_ones(open_)
    worker = registered(open_, "q")
    sender = open_().sender
    for number in range(6):
        assert not any(each.wait(0.05, NO_ROOM) for each in (worker, *full))
        assert worker.lease(["q"], 1).messages == []
        sender.push([message(str(number))])
        assert not any(each.wait(0.05, NO_ROOM) for each in full)
        assert worker.wait(0.5, 1) is True
        assert names(worker.lease(["q"], 1).messages) == [str(number)]


def test_queues_of_which_nothing_is_taken_are_left_to_others(open_: Open) -> None:
    """Like a connection of kombu with several channels, of which one is full."""
    partly, other = registered(open_, "a", "b"), registered(open_, "a")
    sender = open_().sender
    for number in range(6):
        let_wait(partly, "a", "b")
        let_wait(other, "a")
        sender.push([message(str(number), "a")])
        if partly.wait(0.5):
            assert partly.lease(["b"], 1).messages == []
            assert not partly.wait(0.05, NO_ROOM)
        assert other.wait(2) is True
        assert names(other.lease(["a"], 1).messages) == [str(number)]


def test_a_notification_is_passed_on_to_a_worker_of_its_queue(open_: Open) -> None:
    """Not only to the next one, which consumes another queue of the worker without room."""
    both, idle = registered(open_, "a", "b"), registered(open_, "b")
    wanted = registered(open_, "a")
    sender = open_().sender
    for number in range(8):
        for consumer, *queues in ((idle, "b"), (wanted, "a")):
            let_wait(consumer, *queues)
        both.wait(0.05, NO_ROOM)
        sender.push([message(str(number), "a")])
        for _ in range(2):
            both.wait(0.05, NO_ROOM)
        assert wanted.wait(2) is True
        assert names(wanted.lease(["a"], 1).messages) == [str(number)]
        both.lease(["a", "b"], 1)


def test_messages_of_several_queues_notify_a_worker_of_each(open_: Open) -> None:
    consumers = {queue: registered(open_, queue) for queue in ("a", "b", "c")}
    sender = open_().sender
    for number in range(4):
        for queue, consumer in consumers.items():
            let_wait(consumer, queue)
        sender.push([message(f"{queue}{number}", queue) for queue in consumers])
        for queue, consumer in consumers.items():
            assert consumer.wait(2) is True
            assert names(consumer.lease([queue], 1).messages) == [f"{queue}{number}"]


def test_a_consumer_that_does_not_wait_leaves_messages_to_others(open_: Open) -> None:
    """Like a program that takes messages itself, and works on them for a while."""
    working, other = registered(open_, "q"), registered(open_, "q")
    sender = open_().sender
    for number in range(6):
        if number % 3 == 0:  # then it takes some in a row
            let_wait(working, "q")
        working.wait(0.0, NO_ROOM)
        let_wait(other, "q")
        sender.push([message(str(number))])
        assert other.wait(2) is True
        assert names(other.lease(["q"], 1).messages) == [str(number)]


@pytest.mark.parametrize("knows", [True, False], ids=["knows", "unread"])
def test_a_worker_that_stops_leaves_its_notification_to_another(open_: Open, knows: bool) -> None:
    first = registered(open_, "q")  # on Redis, it watches the queue for messages of stock publishers
    first.wait(0.0, NO_ROOM)
    sender, other = open_().sender, registered(open_, "q")
    for number in range(4):
        stopping = registered(open_, "q")
        for worker in (stopping, other):
            let_wait(worker, "q")
        sender.push([message(str(number))])
        if knows:
            stopping.wait(0.2)
        stopping.deregister()
        assert other.wait(2) is True
        assert names(other.lease(["q"], 1).messages) == [str(number)]


def test_only_workers_of_the_queue_are_notified(open_: Open) -> None:
    others = [registered(open_, "other") for _ in range(5)]
    wanted = registered(open_, "q", "r")
    sender = open_().sender
    for _ in range(5):
        sender.push([message("a", "r")])
        assert wanted.wait(10, 1) is True
        assert names(wanted.lease(["q", "r"], 4).messages) == ["a"]
    assert not any(consumer.wait(0.05, 1) for consumer in others)


def test_a_consumer_is_notified_of_the_queues_that_it_leases_from(open_: Open) -> None:
    """Like a channel of kombu, which registers before it knows its queues."""
    consumer = open_().consumer
    consumer.register("kombu@here", (), 0)
    for queue in ("a", "b"):
        assert consumer.lease([queue], 1).messages == []
        while consumer.wait(0.05):
            assert consumer.lease([queue], 1).messages == []
        open_().sender.push([message("x", queue)])
        assert consumer.wait(10) is True
        assert names(consumer.lease([queue], 1).messages) == ["x"]


def test_all_workers_hear_of_a_revocation_even_without_room(open_: Open) -> None:
    consumers = full_ones(open_)
    open_().sender.revoke(["x"])
    assert [consumer.wait(10, NO_ROOM) for consumer in consumers] == [True] * 3
    assert [len(consumer.revoked_since(0)[1]) for consumer in consumers] == [1] * 3
