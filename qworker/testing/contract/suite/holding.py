"""Generations and leases: how long they last, and the messages of dead consumers.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import signal
import threading

import pytest

from qworker.errors import LeaseLost
from qworker.testing.clock import FakeClock
from qworker.testing.contract import scripts
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, Start, generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.place import Assumption, Place, mark
from qworker.testing.contract.waiting import until
from qworker.transports.capabilities import DELIVERY_COUNT, RESULTS
from qworker.transports.lease import Ack, Broker, DeadLetter, Leased, Reclaimed, Release, Settlement, Store

ROW = ("task-1", "SUCCESS", b'{"status":"SUCCESS"}', None)


def test_each_registration_gets_a_new_generation(open_: Open) -> None:
    first, second = open_(), open_()
    generations = [
        first.consumer.register("a", ["q"], 1),
        second.consumer.register("b", ["q"], 1),
        first.consumer.register("a", ["q"], 1),
    ]
    assert len(set(generations)) == 3
    assert min(generations) > 0


@asks(RESULTS)
def test_old_generation_cannot_settle(open_: Open, place: Place) -> None:
    store = open_()
    old = store.consumer.register("a", ["q"], 1)
    store.sender.push([message("a")])
    (leased,) = take(store)
    new = store.consumer.register("a", ["q"], 1)
    (again,) = take(store)
    assert again == leased
    assert store.consumer.reclaim() == []
    assert store.consumer.settle(old, [Ack(leased.tag, ROW)]) == {leased.tag}
    assert place.result("task-1") is None
    assert store.consumer.settle(new, [Ack(leased.tag, ROW)]) == set()
    assert place.result("task-1") is not None


class LeaseClock:
    """A clock for leases that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asks(Assumption.UPTIME)
def test_consumer_that_stops_renewing_is_reclaimed(open_: Open, place: Place) -> None:
    lease_clock = LeaseClock()
    frozen, well = (open_(lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    old = frozen.consumer.register("frozen", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    well.sender.push([message("a")])
    (leased,) = take(frozen)
    lease_clock.now += 15.0
    assert well.consumer.reclaim() == []
    lease_clock.now += 0.1
    assert well.consumer.reclaim(silent=False) == []
    assert well.consumer.reclaim() == [Reclaimed("frozen", 1, 0)]
    (again,) = take(well)
    assert (again.tag, again.redelivered, again.deliveries) == (leased.tag, True, 0)
    # The frozen consumer continues.
    assert frozen.consumer.settle(old, [Ack(leased.tag, ROW)]) == {leased.tag}
    assert place.result("task-1") is None
    if RESULTS not in frozen.lacks:
        assert frozen.consumer.settle(old, [Store(ROW)]) == set()
        assert place.result("task-1") == ("SUCCESS", ROW[2])
    well.sender.push([message("b")])
    with pytest.raises(LeaseLost, match="considered dead"):
        take(frozen)
    with pytest.raises(LeaseLost):
        frozen.consumer.extend()
    assert names(take(well)) == ["b"]
    new = frozen.consumer.register("frozen", ["q"], 1)
    well.sender.push([message("c")])
    (mine,) = take(frozen)
    assert frozen.consumer.settle(new, [Ack(mine.tag)]) == set()


def test_extend_renews_the_lease(open_: Open) -> None:
    lease_clock = LeaseClock()
    holder, well = (open_(registered=True, lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    holder.sender.push([message("a")])
    take(holder)
    for _ in range(5):
        lease_clock.now += 14.0
        holder.consumer.extend()
        assert well.consumer.reclaim() == []


@asks(Assumption.ON_DEMAND)
def test_leasing_more_messages_renews_the_lease(open_: Open) -> None:
    lease_clock = LeaseClock()
    holder, well = (open_(registered=True, lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    for number in range(5):
        holder.sender.push([message(str(number))])
        assert len(take(holder)) == 1
        lease_clock.now += 14.0
        assert well.consumer.reclaim() == []


def test_new_messages_are_held_for_two_thirds_of_the_lease(open_: Open) -> None:
    """Regardless of the last renewal, because a worker starts messages for that long."""
    lease_clock = LeaseClock()
    holder, well = (open_(lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    holder.consumer.register("holder", ["q"], 1)
    well.consumer.register("well", ["elsewhere"], 1)
    for silence in (0.0, 4.9, 5.1, 9.9, 14.9):
        lease_clock.now += silence
        holder.sender.push([message("a")])
        assert len(take(holder)) == 1
        lease_clock.now += 9.9
        assert well.consumer.reclaim() == []
        holder.consumer.extend()


def test_idle_consumer_without_messages_is_not_reclaimed(open_: Open) -> None:
    lease_clock = LeaseClock()
    idle, well = (open_(registered=True, lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    lease_clock.now += 1000.0
    assert well.consumer.reclaim() == []
    idle.sender.push([message("a")])
    assert names(take(idle)) == ["a"]
    assert well.consumer.reclaim() == []


@asks(Assumption.UPTIME)
def test_leases_expire_in_real_time(open_: Open) -> None:
    silent, well = open_(registered=True, lease_seconds=0.05), open_(registered=True)
    silent.sender.push([message("a")])
    take(silent)
    assert until(well.consumer.reclaim) == [Reclaimed("w1@test", 1, 0)]
    assert names(take(well)) == ["a"]


@asks(Assumption.LEASE_SECONDS)
def test_expired_lease_cannot_settle_redelivered_messages(open_: Open, place: Place) -> None:
    """A receipt or number of an expired lease must not delete or return a message that others run."""
    slow, quick = open_(lease_seconds=1.0), open_(lease_seconds=5.0)
    own = slow.consumer.register("slow", ["q"], 1)
    theirs = quick.consumer.register("quick", ["q"], 1)
    slow.sender.push([message(name) for name in "abcd"])
    tags = [leased.tag for leased in take(slow)]
    taken: list[Leased] = []

    def has_all() -> bool:
        quick.consumer.reclaim()
        taken.extend(take(quick))
        return len(taken) >= len(tags)

    until(has_all)
    assert sorted(leased.tag for leased in taken) == sorted(tags)
    assert all(leased.redelivered for leased in taken)
    acked, released, dead, counted = tags
    for _ in range(2):
        ends: list[Settlement] = [
            Ack(acked),
            Release(released),
            DeadLetter(dead, "why"),
            Release(counted, counted=True),
        ]
        lost = slow.consumer.settle(own, ends)
        assert lost - {released} == {acked, dead, counted}  # a release that does nothing need not be reported
        assert take(quick) == []
        assert quick.admin.dead() == []
    assert quick.consumer.settle(theirs, [Ack(tag) for tag in tags]) == set()
    assert place.count() == 0


@asks(Assumption.RECLAIMING, DELIVERY_COUNT)
def test_messages_of_a_killed_process_are_reclaimed_at_once(store: Broker, other: Start) -> None:
    store.sender.push([message(name) for name in ("waiting1", "running1", "waiting2", "running2")])
    victim = other(scripts.hold)
    victim.say("3600")
    assert victim.hear() == "4"
    assert store.consumer.reclaim() == []
    assert take(store) == []
    victim.kill()
    assert store.consumer.reclaim() == [Reclaimed("victim@test", 4, 2)]
    assert store.consumer.reclaim() == []
    found = {leased.headers: (leased.deliveries, leased.redelivered) for leased in take(store)}
    assert found == {
        "waiting1": (0, True), "running1": (1, True), "waiting2": (0, True), "running2": (1, True),
    }  # fmt: skip


@asks(Assumption.UPTIME, Assumption.RECLAIMING, DELIVERY_COUNT)
def test_running_marks_of_settled_messages_are_ignored(open_: Open) -> None:
    lease_clock = LeaseClock()
    silent, well = (open_(lease_seconds=15.0, uptime=lease_clock) for _ in range(2))
    own = silent.consumer.register("silent", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    silent.sender.push([message("a"), message("b")])
    first, second = take(silent)
    kept = mark(silent, first.tag, second.tag, 12345)
    silent.consumer.settle(own, [Release(first.tag)])
    lease_clock.now += 16.0
    assert well.consumer.reclaim() == [Reclaimed("silent", 1, int(kept))]
    assert {leased.headers: leased.deliveries for leased in take(well)} == {"a": 0, "b": int(kept)}


@asks(Assumption.RECLAIMING)
def test_dead_consumer_is_reclaimed_once(store: Broker, open_: Open, other: Start) -> None:
    store.sender.push([message("a")])
    victim = other(scripts.hold)
    victim.say("3600")
    victim.hear()
    stores = [store, *(open_(registered=True) for _ in range(3))]
    victim.kill()
    found: list[Reclaimed] = []
    threads = [
        threading.Thread(target=lambda each=each: found.extend(each.consumer.reclaim())) for each in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Reclaimed("victim@test", 1, 0)] or until(lambda: found + store.consumer.reclaim())
    assert names(take(store)) == ["a"]
    assert take(store) == []


@asks(Assumption.UPTIME)
def test_stopped_process_loses_its_lease(store: Broker, place: Place, other: Start) -> None:
    store.sender.push([message("a")])
    frozen = other(scripts.hold)
    frozen.say("0.2")
    assert frozen.hear() == "1"
    frozen.signal(signal.SIGSTOP)
    assert until(store.consumer.reclaim) == [Reclaimed("victim@test", 1, 0)]
    (leased,) = take(store)
    frozen.signal(signal.SIGCONT)
    frozen.say("settle")
    assert frozen.hear() == f"lost {leased.tag}"
    assert frozen.hear() == "LeaseLost"
    assert place.count() == 1


@asks(Assumption.RECLAIMING)
def test_forked_child_does_not_keep_its_parents_leases(store: Broker, other: Start) -> None:
    store.sender.push([message("a")])
    victim = other(scripts.hold_and_fork)
    word, _, refused = victim.hear().split()
    assert (word, refused) == ("child", "refused")
    assert store.consumer.reclaim() == []
    victim.kill()  # its child survives
    assert until(store.consumer.reclaim) == [Reclaimed("victim@test", 1, 0)]
    victim.say("end")


@asks(Assumption.UNMARKED)
def test_deregistering_consumer_returns_messages_uncounted(store: Broker, open_: Open) -> None:
    leaving = open_(registered=True)
    leaving.sender.push([message("a"), message("b")])
    first, second = take(leaving)
    mark(leaving, first.tag)
    leaving.consumer.deregister()
    leaving.consumer.deregister()
    assert store.consumer.reclaim() == []
    assert take(store) == [first, second]


def test_deregistering_keeps_the_delivery_counts_of_releases(open_: Open, clock: FakeClock) -> None:
    """Whether their messages wait in it until they are due, or were taken again."""
    leaving = open_(registered=True)
    own = generation(leaving)
    leaving.sender.push([message("taken again"), message("waiting")])
    again, waiting = sorted(take(leaving), key=lambda leased: leased.headers)
    due = clock.now() + 5.0
    ends = [Release(again.tag, counted=True), Release(waiting.tag, due, counted=True)]
    assert leaving.consumer.settle(own, ends) == set()
    assert names(take(leaving)) == ["taken again"]
    leaving.consumer.deregister()
    store = open_(registered=True)
    found = until(lambda: take(store))
    clock.advance(5.0)
    found += until(lambda: take(store))
    assert [(leased.headers, leased.deliveries) for leased in found] == [("taken again", 1), ("waiting", 1)]


def test_close_deregisters_the_consumer(store: Broker, open_: Open) -> None:
    leaving = open_(registered=True)
    leaving.sender.push([message("a")])
    take(leaving)
    leaving.close()
    leaving.close()
    assert names(take(store)) == ["a"]


def test_consumer_can_register_again_after_deregistering(store: Broker) -> None:
    store.consumer.deregister()
    store.sender.push([message("a")])
    own = generation(store)
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
