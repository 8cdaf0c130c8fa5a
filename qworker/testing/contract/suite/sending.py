"""Pushing and leasing: messages arrive unchanged, in order, once, and not before they are due.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter

import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.parts import next_due
from qworker.testing.contract.place import Assumption, Place
from qworker.testing.contract.waiting import until
from qworker.transports.capabilities import COUNTS, ETA, PRIORITY, Capability
from qworker.transports.lease import MAX_LEASE_BYTES, Ack, Broker, DeadLetter, Leased, Release


def test_broker_declares_what_its_place_lacks(store: Broker, place: Place) -> None:
    """So that every skipped test corresponds to a limitation that ``qworker config check`` reports."""
    assert place.lacks & frozenset(Capability) <= store.lacks


@asks(Assumption.ON_DEMAND)
def test_tags_are_not_reused_after_settling_or_purging(store: Broker) -> None:
    """A worker's notes about a deleted message must not be applied to another one."""
    now = generation(store)
    seen: set[int] = set()
    for end in (Ack, lambda tag: DeadLetter(tag, "bad")):
        for _ in range(3):
            store.sender.push([message("a"), message("b")])
            taken = take(store)
            store.consumer.settle(now, [end(leased.tag) for leased in taken])
            assert not seen & {leased.tag for leased in taken}
            seen |= {leased.tag for leased in taken}
    store.sender.push([message("purged")])
    assert store.admin.purge("q") == 1
    store.sender.push([message("a")])
    assert not seen & {leased.tag for leased in take(store)}


@asks(Assumption.TEXT)
def test_message_is_delivered_unchanged(store: Broker) -> None:
    body = bytes(range(256)) * 5000
    store.sender.push(
        [message('{"id":"é\\u0000"}', properties='{"content_type":"x"}', body=body, priority=3)]
    )
    (leased,) = take(store)
    assert leased == Leased(
        leased.tag, "q", 3, None, 0, False, 0, '{"id":"é\\u0000"}', '{"content_type":"x"}', body
    )
    assert leased.redelivered is False


def test_message_values_are_delivered_unchanged(store: Broker) -> None:
    """The body too, whatever headers and properties say of it: its signature is for these bytes."""
    headers = {"id": "é", "compression": "zlib", "values": [1, None, 0.5, {"a": True}]}
    properties = {"content_type": "x", "content_encoding": "binary", "correlation_id": "c"}
    bodies = (bytes(range(256)), zlib.compress(b"[]" * 100))
    store.sender.push(
        [message(json.dumps(headers), properties=json.dumps(properties), body=body) for body in bodies]
    )
    store.sender.push([message("no JSON", body=b"")])
    *found, last = take(store)
    assert sorted(leased.body for leased in found) == sorted(bodies)
    for leased in found:
        assert (json.loads(leased.headers), json.loads(leased.properties or "")) == (headers, properties)
        assert (leased.queue, leased.deliveries, leased.redelivered, leased.due) == ("q", 0, False, None)
    assert (last.headers, last.body) == ("no JSON", b"")


def test_messages_are_ordered_by_priority_then_age(store: Broker) -> None:
    store.sender.push(
        [message(f"{priority}-{turn}", priority=priority) for turn in range(3) for priority in (0, 9, 4)]
    )
    assert names(take(store)) == [f"{priority}-{turn}" for priority in (9, 4, 0) for turn in range(3)]


@asks(PRIORITY)
def test_order_is_kept_across_leases_and_pushes(store: Broker) -> None:
    for turn in range(4):
        store.sender.push([message(f"low{turn}"), message(f"high{turn}", priority=9)])
    assert names(take(store, limit=3)) == ["high0", "high1", "high2"]
    store.sender.push([message("late", priority=9)])
    assert names(take(store, limit=3)) == ["high3", "late", "low0"]


def test_lease_respects_the_limit(store: Broker) -> None:
    store.sender.push([message(str(number)) for number in range(10)])
    assert names(take(store, limit=4)) == ["0", "1", "2", "3"]
    assert take(store, limit=0) == []
    assert len(take(store)) == 6
    assert take(store) == []


def test_large_messages_are_leased_in_small_batches(store: Broker) -> None:
    body = bytes(MAX_LEASE_BYTES // 8)
    for number in range(9):
        store.sender.push([message(str(number), body=body)])
    found: list[Leased] = []
    while len(found) < 9:
        few = until(lambda: take(store))
        assert len(few) <= 8
        found += few
    assert names(found) == [str(number) for number in range(9)]
    assert {leased.body for leased in found} == {body}


def test_lease_reads_only_the_given_queues(store: Broker) -> None:
    store.sender.push([message("in q"), message("in r", "r")])
    assert names(take(store, "r")) == ["in r"]
    assert take(store, "r") == []
    assert names(take(store, "r", "q")) == ["in q"]


@asks(Assumption.ANY_QUEUE)
def test_lease_serves_all_queues_equally(store: Broker) -> None:
    queues = ("a", "b", "c")
    store.sender.push([message(queue, queue) for queue in queues for _ in range(50)])
    first = [leased.queue for _ in queues for leased in take(store, *queues, limit=10)]
    assert Counter(first) == {"a": 10, "b": 10, "c": 10}


@asks(Assumption.ON_DEMAND)
def test_leased_messages_are_not_leased_again(open_: Open, store: Broker) -> None:
    store.sender.push([message(str(number)) for number in range(4)])
    second = open_(registered=True)
    mine, theirs = take(store, limit=2), take(second, limit=2)
    assert names(mine) + names(theirs) == ["0", "1", "2", "3"]
    assert take(store) == take(second) == []


def test_push_without_messages_does_nothing(store: Broker) -> None:
    store.sender.push([])
    assert take(store) == []


def test_push_is_atomic(store: Broker, place: Place) -> None:
    with pytest.raises(Exception, match=r"type|support|bytes"):
        store.sender.push([message("good"), message("bad", body=object())])
    assert place.count() == 0
    store.sender.push([message("next")])
    assert names(take(store)) == ["next"]


@asks(COUNTS, Assumption.TEST_CLOCK)
def test_delayed_message_is_not_delivered_early(store: Broker, clock: FakeClock) -> None:
    due = clock.now() + 10
    store.sender.push([message("later", due=due)])
    assert next_due(store, ["q"]) == due
    clock.advance(9.999)
    assert take(store) == []
    clock.advance(0.001)
    (leased,) = take(store)
    assert leased.due == due
    assert next_due(store, ["q"]) is None


def test_delayed_and_released_messages_are_delivered_when_due(open_: Open) -> None:
    """By the clocks of this system and of the server."""
    store = open_(clock=SYSTEM_CLOCK)
    own = store.consumer.register("w", ["q"], 1)
    due = SYSTEM_CLOCK.now() + 1.5
    store.sender.push([message("soon", due=due), message("in a month", due=due + 30 * 86400)])
    for deliveries in (0, 1):
        (soon,) = until(lambda: take(store))
        assert SYSTEM_CLOCK.now() >= due
        assert (soon.headers, soon.deliveries) == ("soon", deliveries)
        due = SYSTEM_CLOCK.now() + 1.5
        assert store.consumer.settle(own, [Release(soon.tag, due, counted=True)]) == set()


def test_message_due_in_the_past_is_ready(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("past", due=clock.now() - 1), message("now", due=clock.now())])
    assert names(take(store)) == ["past", "now"]


def test_delayed_messages_do_not_block_others(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("later", due=clock.now() + 60, priority=9), message("plain")])
    assert names(take(store)) == ["plain"]


@asks(Assumption.TEST_CLOCK)
def test_setting_the_wall_clock_back_delivers_nothing_early(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("later", due=clock.now() + 10)])
    clock.jump(-3600)
    assert take(store) == []
    clock.jump(3600 + 10)
    assert names(take(store)) == ["later"]


@asks(ETA, Assumption.TEST_CLOCK)
def test_delayed_messages_are_leased_early_within_the_eta_window(store: Broker, clock: FakeClock) -> None:
    now = clock.now()
    store.sender.push([message(f"in {seconds}", due=now + seconds) for seconds in (1, 2, 3, 4, 6)])
    assert names(store.consumer.lease(["q"], 0, delayed_limit=3, eta_window=5.0).messages) == [
        "in 1",
        "in 2",
        "in 3",
    ]
    assert names(store.consumer.lease(["q"], 0, delayed_limit=3, eta_window=5.0).messages) == ["in 4"]
    assert next_due(store, ["q"]) == now + 6


@asks(ETA, Assumption.TEST_CLOCK)
def test_delayed_limit_is_separate_from_the_lease_limit(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message(str(number)) for number in range(5)])
    store.sender.push([message(f"near{number}", due=clock.now() + 1) for number in range(5)])
    assert sorted(names(store.consumer.lease(["q"], 2, delayed_limit=3, eta_window=5.0).messages)) == [
        "0",
        "1",
        "near0",
        "near1",
        "near2",
    ]


@asks(COUNTS, Assumption.TEST_CLOCK)
def test_next_due_is_the_earliest_of_the_queues(store: Broker, clock: FakeClock) -> None:
    now = clock.now()
    store.sender.push(
        [message("a", due=now + 5), message("b", "r", due=now + 3), message("c", "other", due=now + 1)]
    )
    assert next_due(store, ["q", "r"]) == now + 3
    assert next_due(store, ["nothing"]) is None


@asks(Assumption.TEST_CLOCK)
def test_thousands_of_messages_due_at_once(store: Broker, clock: FakeClock) -> None:
    store.sender.push(
        [message(f"{number}", due=clock.now() + 1, priority=number % 2) for number in range(2500)]
    )
    clock.advance(1)
    found: list[Leased] = []
    while messages := take(store, limit=400):
        found += messages
    assert len(found) == len(set(names(found))) == 2500
    assert found[0].priority == 1
