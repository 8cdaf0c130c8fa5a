"""What a fleet costs its PostgreSQL: a message is fetched by one of the waiting workers, not by all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qworker.transports.lease import NO_ROOM, Ack, Broker
from tests.contract.place_sql import PostgreSQLPlace
from tests.support.messages import message, names
from tests.support.waiting import until

pytestmark = pytest.mark.integration

Open = Callable[[], Broker]


@pytest.fixture
def open_(tmp_path: Path) -> Iterator[Open]:
    place = PostgreSQLPlace(tmp_path)
    opened: list[Broker] = []

    def open_one() -> Broker:
        opened.append(place.open())
        return opened[-1]

    yield open_one
    for broker in opened:
        broker.close()
    place.clear()


class Idle(threading.Thread):
    """A worker that takes a message when it is notified, and acks it at once."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.consumer, self.taken, self.claims = broker.consumer, 0, 0
        self.waits = self.ending = False

    def run(self) -> None:
        generation = self.consumer.register(self.name, ["q"], 1)
        self.consumer.lease(["q"], 4)
        while not self.ending:
            self.waits = True
            if not self.consumer.wait(0.5, 4):
                continue
            full = True
            while full:
                messages = self.consumer.lease(["q"], 4).messages
                self.claims += 1
                self.taken += len(messages)
                self.consumer.settle(generation, [Ack(each.tag) for each in messages])
                full = len(messages) == 4
        self.consumer.deregister()


@contextmanager
def fleet(open_: Open, size: int) -> Iterator[list[Idle]]:
    """Run *size* idle workers."""
    workers = [Idle(open_(), f"w{number}") for number in range(size)]
    for worker in workers:
        worker.start()
    until(lambda: all(worker.waits for worker in workers))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.ending = True
            worker.consumer.wake()
        for worker in workers:
            worker.join(30)


@pytest.mark.parametrize("size", [2, 10, 30])
def test_claims_per_message_do_not_grow_with_idle_workers(open_: Open, size: int) -> None:
    sender = open_().sender
    sender.push([])
    with fleet(open_, size) as workers:
        before = sum(worker.claims for worker in workers)
        for number in range(20):
            sender.push([message(str(number))])
            until(lambda done=number + 1: sum(worker.taken for worker in workers) == done)
        claims = sum(worker.claims for worker in workers) - before
        assert claims <= 24, "each message wakes one"
        assert sum(worker.taken > 0 for worker in workers) > 1, "one worker gets everything"


def test_what_one_worker_leaves_is_taken_by_others(open_: Open) -> None:
    with fleet(open_, 4) as workers:
        open_().sender.push([message(str(number)) for number in range(40)])
        until(lambda: sum(worker.taken for worker in workers) == 40)
        assert sum(worker.taken > 0 for worker in workers) > 1


def registered(open_: Open, *queues: str) -> Any:
    consumer = open_().consumer
    consumer.register("w", queues, 1)
    assert consumer.lease(queues, 1).messages == []
    while consumer.wait(0.05):  # a second look after registration
        assert consumer.lease(queues, 1).messages == []
    return consumer


def test_a_worker_without_room_passes_the_notification_on(open_: Open) -> None:
    full = [registered(open_, "q") for _ in range(3)]
    free = registered(open_, "q")
    sender = open_().sender
    for number in range(8):
        sender.push([message(str(number))])
        for _ in range(4):  # as often as it may be passed on
            assert not any(consumer.wait(0.05, NO_ROOM) for consumer in full)
        assert free.wait(10, 1) is True
        assert names(free.lease(["q"], 1).messages) == [str(number)]
        assert free.lease(["q"], 1).messages == []


def test_a_notification_that_nobody_has_room_for_is_remembered(open_: Open) -> None:
    full = [registered(open_, "q") for _ in range(3)]
    open_().sender.push([message("a")])
    for _ in range(5):
        assert not any(consumer.wait(0.05, NO_ROOM) for consumer in full)
    assert [consumer.wait(0.05, 1) for consumer in full] == [True] * 3
    assert names(full[0].lease(["q"], 1).messages) == ["a"]


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
    consumers = [registered(open_, "q") for _ in range(3)]
    open_().sender.revoke(["x"])
    assert [consumer.wait(10, NO_ROOM) for consumer in consumers] == [True] * 3
