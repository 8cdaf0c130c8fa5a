"""Settling: the end of a message, and its result, in one step.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from qworker.errors import LeaseLost
from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.parts import next_due
from qworker.testing.contract.place import Assumption, Place
from qworker.transports.capabilities import COUNTS, RESULTS
from qworker.transports.lease import Ack, Broker, DeadLetter, Release, Store

ROW = ("task-1", "SUCCESS", b'{"status":"SUCCESS"}', None)


def stored(store: Broker, place: Place, *task_ids: str) -> list[tuple[str, bytes] | None] | None:
    """Return the stored results; None if the broker does not store results."""
    return None if RESULTS in store.lacks else [place.result(task_id) for task_id in task_ids]


def test_ack_removes_the_message_and_stores_its_result(store: Broker, place: Place) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    assert store.consumer.settle(own, [Ack(first.tag, ROW), Ack(second.tag)]) == set()
    assert place.count() == 0
    assert stored(store, place, "task-1") in (None, [("SUCCESS", ROW[2])])


@asks(Assumption.UNMARKED)
def test_release_returns_the_message_to_its_position(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, _ = take(store)
    assert store.consumer.settle(own, [Release(first.tag)]) == set()
    assert take(store) == [first]


@pytest.mark.parametrize(
    ("release", "deliveries", "redelivered", "requeued"),
    [
        ({}, 0, False, 0),
        ({"counted": True}, 1, True, 0),
        ({"requeued": True}, 0, False, 1),
        ({"redelivered": True}, 0, True, 0),
    ],
)
def test_release_records_its_reason(
    store: Broker, place: Place, release: dict[str, bool], deliveries: int, redelivered: bool, requeued: int
) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    for times in (1, 2):
        (leased,) = take(store)
        store.consumer.settle(own, [Release(leased.tag, **release)])
        (again,) = take(store)
        assert (again.deliveries, again.requeued) == (deliveries * times, requeued * times)
        assert again.redelivered == redelivered or (Assumption.UNMARKED in place.lacks and not redelivered)
        store.consumer.settle(own, [Release(again.tag)])


@asks(COUNTS, Assumption.TEST_CLOCK)
def test_release_with_due_time_delays_the_message(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (leased,) = take(store)
    store.consumer.settle(own, [Release(leased.tag, clock.now() + 5)])
    assert take(store) == []
    assert next_due(store, ["q"]) == clock.now() + 5
    clock.advance(5)
    assert names(take(store)) == ["a"]


def test_dead_lettered_message_keeps_its_content_and_reason(
    store: Broker, place: Place, clock: FakeClock
) -> None:
    own = generation(store)
    properties = '{"content_type":"x","content_encoding":"utf-8","correlation_id":"c"}'
    store.sender.push([message("a", "r", properties=properties, body=b"body", priority=4)])
    (leased,) = take(store, "r")
    failure = ("task-1", "FAILURE", b"{}", None)
    assert store.consumer.settle(own, [DeadLetter(leased.tag, "because", failure)]) == set()
    assert take(store, "r") == []
    (dead,) = store.admin.dead()
    assert dead[1:6] == ("r", "because", clock.now(), 0, "a")
    assert (json.loads(dead.properties or ""), dead.body) == (json.loads(properties), b"body")
    assert stored(store, place, "task-1") in (None, [("FAILURE", b"{}")])


@asks(RESULTS)
def test_result_can_be_stored_without_a_message(store: Broker, place: Place) -> None:
    assert store.consumer.settle(generation(store), [Store(ROW)]) == set()
    assert place.result("task-1") == ("SUCCESS", ROW[2])


@asks(RESULTS)
def test_final_result_is_not_overwritten_by_an_earlier_state(store: Broker, place: Place) -> None:
    own = generation(store)
    store.consumer.settle(own, [Store(ROW)])
    store.sender.push([message("a")])
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag, ("task-1", "STARTED", b"", None))]) == set()
    assert place.result("task-1") == ("SUCCESS", ROW[2])
    assert place.count() == 0


def test_all_kinds_of_settlement_in_one_batch(store: Broker, place: Place) -> None:
    own = generation(store)
    store.sender.push([message(name) for name in ("ack", "release", "dead-letter", "keep")])
    ack, release, dead_letter, _ = take(store)
    assert (
        store.consumer.settle(
            own, [Ack(ack.tag), Release(release.tag), DeadLetter(dead_letter.tag, "why"), Store(ROW)]
        )
        == set()
    )
    assert names(take(store)) == ["release"]
    assert [dead.headers for dead in store.admin.dead()] == ["dead-letter"]
    assert stored(store, place, "task-1") in (None, [("SUCCESS", ROW[2])])
    generation(store)
    assert sorted(names(take(store))) == ["keep", "release"]


@pytest.mark.parametrize("wrong", [Ack(999, ROW), Release(999), DeadLetter(999, "why", ROW)])
def test_unknown_tags_are_reported_and_ignored(store: Broker, place: Place, wrong: Any) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    good = ("task-2", "SUCCESS", b"2", None)
    assert store.consumer.settle(own, [Ack(first.tag, good), wrong, Release(second.tag)]) == {999}
    assert stored(store, place, "task-1", "task-2") in (None, [None, ("SUCCESS", b"2")])
    assert names(take(store)) == ["b"]
    assert store.admin.dead() == []


def test_settling_nothing_does_nothing(store: Broker) -> None:
    assert store.consumer.settle(generation(store), []) == set()


def test_message_is_settled_once(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag), Ack(leased.tag)]) == {leased.tag}


def test_waiting_messages_cannot_be_settled(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (leased,) = take(store)
    store.consumer.settle(own, [Release(leased.tag)])
    assert store.consumer.settle(own, [Ack(leased.tag)]) == {leased.tag}
    assert names(take(store)) == ["a"]


def test_messages_lost_before_they_were_settled_are_not_in_doubt(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
    assert store.consumer.settle(own, [Ack(leased.tag)]) == {leased.tag}
    assert not list(store.consumer.in_doubt({leased.tag}))


def test_settled_before_reports_only_settled_tags(store: Broker) -> None:
    """A settlement is repeated after a lost answer."""
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    assert store.consumer.settle(own, [Ack(first.tag)]) == set()
    assert set(store.consumer.settled_before([first.tag])) <= {first.tag}
    store.consumer.confirm()
    assert store.consumer.settle(own, [Ack(second.tag)]) == set()


def test_settled_before_is_empty_after_deregistering(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (first,) = take(store)
    assert store.consumer.settle(own, [Ack(first.tag)]) == set()
    store.consumer.deregister()
    with suppress(LeaseLost):
        assert not list(store.consumer.settled_before([first.tag]))
