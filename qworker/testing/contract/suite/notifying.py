"""Waiting: a waiting consumer is notified of messages.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import threading
import time

from qworker.testing.contract import scripts
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, Start, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.place import Assumption
from qworker.transports.lease import Ack, Broker, Leased, Release


def test_wait_returns_false_after_the_timeout(store: Broker) -> None:
    assert store.consumer.wait(0.01) is False
    assert store.consumer.wait(0) is False
    assert store.consumer.wait(-1) is False


def test_push_before_wait_is_not_missed(store: Broker, open_: Open) -> None:
    open_().sender.push([message("a")])
    assert store.consumer.wait(30) is True
    assert store.consumer.wait(0) is False


@asks(Assumption.ON_DEMAND)
def test_push_notifies_a_waiting_consumer(open_: Open) -> None:
    """One of them, or all."""
    stores = [open_(registered=True) for _ in range(3)]
    stores[0].sender.push([message("a")])
    deadline = time.monotonic() + 20
    while not any(each.consumer.wait(0.1) for each in stores):
        assert time.monotonic() < deadline


@asks(Assumption.ANY_QUEUE)
def test_consumer_without_queues_is_notified_of_queues_it_leases_from(open_: Open) -> None:
    """Like the consumer behind kombu's channels, which leases from queues as they appear."""
    store, publisher = open_(), open_()
    own = store.consumer.register("w", (), 0)
    for queues in (["a"], ["a", "b"], ["b", "c"]):
        assert store.consumer.lease(queues, 10).messages == []
        while store.consumer.wait(0.3):  # drain earlier notifications
            assert store.consumer.lease(queues, 10).messages == []
        sending = threading.Timer(0.1, publisher.sender.push, [[message("x", queues[-1])]])
        sending.start()
        started = time.monotonic()
        while not (found := store.consumer.lease(queues, 10).messages):
            assert store.consumer.wait(30) is True, f"it was not notified of {queues[-1]}"
        assert time.monotonic() - started < 20
        sending.join()
        assert names(found) == ["x"]
        assert store.consumer.settle(own, [Ack(leased.tag) for leased in found]) == set()


@asks(Assumption.ON_DEMAND)
def test_release_notifies_other_consumers(store: Broker, open_: Open) -> None:
    holder = open_()
    own = holder.consumer.register("holder", ["q"], 1)
    holder.sender.push([message("a")])
    (leased,) = take(holder)
    store.consumer.wait(0)
    holder.consumer.settle(own, [Release(leased.tag)])
    assert store.consumer.wait(30) is True


def test_wake_ends_wait(store: Broker) -> None:
    started = time.monotonic()
    waking = threading.Timer(0.01, store.consumer.wake)
    waking.start()
    store.consumer.wait(60)
    waking.join()
    assert time.monotonic() - started < 30
    store.consumer.wake()
    store.consumer.wait(60)
    assert time.monotonic() - started < 30
    assert store.consumer.wait(0.001) is False


def test_wake_without_wait_is_harmless(open_: Open) -> None:
    store = open_()
    store.consumer.wake()
    store.consumer.register("w", ["q"], 1)
    store.consumer.deregister()
    store.consumer.wake()
    store.close()
    store.consumer.wake()


@asks(Assumption.ON_DEMAND)
def test_push_notifies_other_processes(open_: Open, other: Start) -> None:
    listening, sender = other(scripts.listen), open_().sender
    assert listening.hear() == "up"
    for number in range(3):
        listening.say("wait")
        sender.push([message(f"message{number}")])
        assert listening.hear() == f"True message{number}"


def test_messages_prefetched_by_wait_are_returned_by_lease(store: Broker, open_: Open) -> None:
    own, publisher = store.consumer.register("w", ["q"], 1), open_()
    for number in range(5):
        assert take(store) == []
        store.consumer.wait(0.02, 10)
        publisher.sender.push([message(f"{number}"), message(f"{number} urgent", priority=9)])
        found: list[Leased] = []
        while len(found) < 2:
            assert store.consumer.wait(30, 10) is True
            found += take(store)
        assert set(names(found)) == {f"{number}", f"{number} urgent"}
        assert store.consumer.settle(own, [Ack(leased.tag) for leased in found]) == set()
    assert take(store) == []
    assert not store.consumer.prefetched


def test_killed_waiter_does_not_affect_others(store: Broker, other: Start) -> None:
    victim = other(scripts.wait_for_nothing)
    assert victim.hear() == "up"
    store.sender.push([message("a")])
    victim.kill()
    for number in range(3):
        store.consumer.wait(0)
        store.sender.push([message(str(number))])
        assert store.consumer.wait(30) is True
