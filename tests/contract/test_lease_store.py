"""One suite for every Broker: what a broker must do for a worker, and what no fault may make it do."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qworker.errors import LeaseLost
from qworker.message.protocol import TaskMessage, encode, receive
from qworker.message.signing import Signer
from qworker.testing.clock import FakeClock
from qworker.transports.capabilities import WORKERS
from qworker.transports.lease import (
    Ack,
    Broker,
    Dead,
    DeadLetter,
    Envelope,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    Store,
)
from tests.contract.lease_places import FOR_ONE_PROCESS, PLACES, Other, Place, mark
from tests.support.messages import message, names
from tests.support.waiting import until

pytestmark = pytest.mark.contract

ROW = ("task-1", "SUCCESS", b'{"status":"SUCCESS"}', None)
Open = Callable[..., Broker]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with every kind of place, but for what a place cannot do, and for those with other
    processes, which memory has none of."""
    if "kind" in metafunc.fixturenames:
        alone = FOR_ONE_PROCESS if "other" in metafunc.fixturenames else frozenset()
        test = metafunc.function.__name__
        able = [kind for kind, place in PLACES.items() if test not in getattr(place, "cannot", ())]
        metafunc.parametrize("kind", [kind for kind in able if kind not in alone])


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    if kind in ("sqs", "disque"):
        request.getfixturevalue(kind)  # the server
    place = PLACES[kind](tmp_path)
    yield place
    getattr(place, "clear", lambda: None)()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_(place: Place, clock: FakeClock) -> Iterator[Open]:
    """Opens a store on the place, with the clock that stands still; ``registered=True`` makes it a holder."""
    opened: list[Broker] = []

    def open_one(*, registered: bool = False, **options: Any) -> Broker:
        store = place.open(**{"clock": clock, **options})
        opened.append(store)
        if registered:
            store.consumer.register(f"w{len(opened)}@test", ["q", "r"], 2)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_: Open) -> Broker:
    return open_(registered=True)


@pytest.fixture
def other(kind: str, tmp_path: Path) -> Iterator[Callable[[str], Other]]:
    """Starts another process on the place with a script; all are killed at the end."""
    started: list[Other] = []

    def start(script: str) -> Other:
        started.append(Other(kind, tmp_path, script))
        return started[-1]

    yield start
    for process in started:
        process.close()


def generation(store: Broker) -> int:
    return store.consumer.register("again@test", ["q", "r"], 2)


def take(store: Broker, *queues: str, limit: int = 100) -> list[Leased]:
    return store.consumer.lease(queues or ("q",), limit).messages


# -- push and lease --


def test_no_tag_is_given_twice(store: Broker) -> None:
    """What was noted of a message that is gone must not be taken for another's."""
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


def test_a_message_comes_back_as_it_was_sent(store: Broker) -> None:
    body = bytes(range(256)) * 5000
    store.sender.push(
        [message('{"id":"é\\u0000"}', properties='{"content_type":"x"}', body=body, priority=3)]
    )
    (leased,) = take(store)
    assert leased == Leased(
        leased.tag, "q", 3, None, 0, False, 0, '{"id":"é\\u0000"}', '{"content_type":"x"}', body
    )
    assert leased.redelivered is False


def test_the_most_urgent_come_first_and_the_oldest_among_equals(store: Broker) -> None:
    store.sender.push(
        [message(f"{priority}-{turn}", priority=priority) for turn in range(3) for priority in (0, 9, 4)]
    )
    assert names(take(store)) == [f"{priority}-{turn}" for priority in (9, 4, 0) for turn in range(3)]


def test_order_holds_over_several_leases_and_pushes(store: Broker) -> None:
    for turn in range(4):
        store.sender.push([message(f"low{turn}"), message(f"high{turn}", priority=9)])
    assert names(take(store, limit=3)) == ["high0", "high1", "high2"]
    store.sender.push([message("late", priority=9)])
    assert names(take(store, limit=3)) == ["high3", "late", "low0"]


def test_no_more_than_the_limit_is_taken(store: Broker) -> None:
    store.sender.push([message(str(number)) for number in range(10)])
    assert names(take(store, limit=4)) == ["0", "1", "2", "3"]
    assert take(store, limit=0) == []
    assert len(take(store)) == 6
    assert take(store) == []


def test_only_the_named_queues_are_read(store: Broker) -> None:
    store.sender.push([message("in q"), message("in r", "r")])
    assert names(take(store, "r")) == ["in r"]
    assert take(store, "r") == []
    assert names(take(store, "r", "q")) == ["in q"]


def test_no_queue_waits_for_another_to_run_dry(store: Broker) -> None:
    queues = ("a", "b", "c")
    store.sender.push([message(queue, queue) for queue in queues for _ in range(50)])
    first = [leased.queue for _ in queues for leased in take(store, *queues, limit=10)]
    assert Counter(first) == {"a": 10, "b": 10, "c": 10}


def test_what_is_leased_is_not_leased_again(open_: Open, store: Broker) -> None:
    store.sender.push([message(str(number)) for number in range(4)])
    second = open_(registered=True)
    mine, theirs = take(store, limit=2), take(second, limit=2)
    assert names(mine) + names(theirs) == ["0", "1", "2", "3"]
    assert take(store) == take(second) == []


def test_pushing_nothing_is_nothing(store: Broker) -> None:
    store.sender.push([])
    assert take(store) == []


def test_a_push_is_all_or_nothing(store: Broker, place: Place) -> None:
    with pytest.raises(Exception, match=r"type|support"):
        store.sender.push([message("good"), message("bad", body=object())])
    assert place.count() == 0
    store.sender.push([message("next")])
    assert names(take(store)) == ["next"]


# -- due messages --


def test_a_delayed_message_is_never_early(store: Broker, clock: FakeClock) -> None:
    due = clock.now() + 10
    store.sender.push([message("later", due=due)])
    assert store.admin.next_due(["q"]) == due
    clock.advance(9.999)
    assert take(store) == []
    clock.advance(0.001)
    (leased,) = take(store)
    assert leased.due == due
    assert store.admin.next_due(["q"]) is None


def test_a_message_due_in_the_past_is_ready(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("past", due=clock.now() - 1), message("now", due=clock.now())])
    assert names(take(store)) == ["past", "now"]


def test_delayed_messages_do_not_hold_back_others(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("later", due=clock.now() + 60, priority=9), message("plain")])
    assert names(take(store)) == ["plain"]


def test_a_wall_clock_set_back_makes_nothing_early(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message("later", due=clock.now() + 10)])
    clock.jump(-3600)
    assert take(store) == []
    clock.jump(3600 + 10)
    assert names(take(store)) == ["later"]


def test_near_messages_are_taken_ahead_within_the_horizon(store: Broker, clock: FakeClock) -> None:
    now = clock.now()
    store.sender.push([message(f"in {seconds}", due=now + seconds) for seconds in (1, 2, 3, 4, 6)])
    assert names(store.consumer.lease(["q"], 0, delayed_limit=3, eta_window=5.0).messages) == [
        "in 1",
        "in 2",
        "in 3",
    ]
    assert names(store.consumer.lease(["q"], 0, delayed_limit=3, eta_window=5.0).messages) == ["in 4"]
    assert store.admin.next_due(["q"]) == now + 6


def test_near_messages_have_a_limit_of_their_own(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message(str(number)) for number in range(5)])
    store.sender.push([message(f"near{number}", due=clock.now() + 1) for number in range(5)])
    assert sorted(names(store.consumer.lease(["q"], 2, delayed_limit=3, eta_window=5.0).messages)) == [
        "0",
        "1",
        "near0",
        "near1",
        "near2",
    ]


def test_next_due_is_the_earliest_of_the_queues(store: Broker, clock: FakeClock) -> None:
    now = clock.now()
    store.sender.push(
        [message("a", due=now + 5), message("b", "r", due=now + 3), message("c", "other", due=now + 1)]
    )
    assert store.admin.next_due(["q", "r"]) == now + 3
    assert store.admin.next_due(["nothing"]) is None


def test_thousands_fall_due_at_once(store: Broker, clock: FakeClock) -> None:
    store.sender.push(
        [message(f"{number}", due=clock.now() + 1, priority=number % 2) for number in range(2500)]
    )
    clock.advance(1)
    found: list[Leased] = []
    while messages := take(store, limit=400):
        found += messages
    assert len(found) == len(set(names(found))) == 2500
    assert found[0].priority == 1


# -- settling --


def test_an_ack_removes_the_message_and_stores_its_result(store: Broker, place: Place) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    assert store.consumer.settle(own, [Ack(first.tag, ROW), Ack(second.tag)]) == set()
    assert place.count() == 0
    assert place.result("task-1") == ("SUCCESS", ROW[2])


def test_a_release_puts_the_message_where_it_was(store: Broker) -> None:
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
def test_a_release_says_why(
    store: Broker, release: dict[str, bool], deliveries: int, redelivered: bool, requeued: int
) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    for times in (1, 2):
        (leased,) = take(store)
        store.consumer.settle(own, [Release(leased.tag, **release)])
        (again,) = take(store)
        assert (again.deliveries, again.redelivered, again.requeued) == (
            deliveries * times,
            redelivered,
            requeued * times,
        )
        store.consumer.settle(own, [Release(again.tag)])


def test_a_release_may_be_for_later(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("a")])
    (leased,) = take(store)
    store.consumer.settle(own, [Release(leased.tag, clock.now() + 5)])
    assert take(store) == []
    assert store.admin.next_due(["q"]) == clock.now() + 5
    clock.advance(5)
    assert names(take(store)) == ["a"]


def test_what_is_dead_lettered_is_a_dead_letter(store: Broker, place: Place, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("a", "r", properties="{}", body=b"body", priority=4)])
    (leased,) = take(store, "r")
    failure = ("task-1", "FAILURE", b"{}", None)
    assert store.consumer.settle(own, [DeadLetter(leased.tag, "because", failure)]) == set()
    assert take(store, "r") == []
    (dead,) = store.admin.dead()
    assert dead[1:] == ("r", "because", clock.now(), 0, "a", "{}", b"body")
    assert place.result("task-1") == ("FAILURE", b"{}")


def test_a_result_may_be_stored_by_itself(store: Broker, place: Place) -> None:
    assert store.consumer.settle(generation(store), [Store(ROW)]) == set()
    assert place.result("task-1") == ("SUCCESS", ROW[2])


def test_a_settled_result_never_goes_back(store: Broker, place: Place) -> None:
    own = generation(store)
    store.consumer.settle(own, [Store(ROW)])
    store.sender.push([message("a")])
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag, ("task-1", "STARTED", b"", None))]) == set()
    assert place.result("task-1") == ("SUCCESS", ROW[2])
    assert place.count() == 0


def test_all_kinds_of_settlement_go_in_one_step(store: Broker, place: Place) -> None:
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
    assert place.result("task-1") is not None
    assert place.count() == 2


@pytest.mark.parametrize("wrong", [Ack(999, ROW), Release(999), DeadLetter(999, "why", ROW)])
def test_what_is_not_ours_is_named_and_left_alone(store: Broker, place: Place, wrong: Any) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    good = ("task-2", "SUCCESS", b"2", None)
    assert store.consumer.settle(own, [Ack(first.tag, good), wrong, Release(second.tag)]) == {999}
    assert place.result("task-1") is None
    assert place.result("task-2") == ("SUCCESS", b"2")
    assert names(take(store)) == ["b"]
    assert store.admin.dead() == []


def test_a_message_is_settled_once(store: Broker) -> None:
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


# -- epochs, leases and the dead --


def test_every_enlistment_is_a_new_epoch(open_: Open) -> None:
    first, second = open_(), open_()
    epochs = [
        first.consumer.register("a", ["q"], 1),
        second.consumer.register("b", ["q"], 1),
        first.consumer.register("a", ["q"], 1),
    ]
    assert len(set(epochs)) == 3
    assert min(epochs) > 0


def test_an_old_generation_settles_nothing(open_: Open, place: Place) -> None:
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


class Time:
    """A clock for leases that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_silent_holder_is_taken_for_dead(open_: Open, place: Place) -> None:
    time_of_leases = Time()
    frozen, well = (open_(lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    old = frozen.consumer.register("frozen", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    well.sender.push([message("a")])
    (leased,) = take(frozen)
    time_of_leases.now += 15.0
    assert well.consumer.reclaim() == []
    time_of_leases.now += 0.1
    assert well.consumer.reclaim(silent=False) == []
    assert well.consumer.reclaim() == [Reclaimed("frozen", 1, 0)]
    (again,) = take(well)
    assert (again.tag, again.redelivered, again.deliveries) == (leased.tag, True, 0)
    # Then it thaws.
    assert frozen.consumer.settle(old, [Ack(leased.tag, ROW)]) == {leased.tag}
    assert place.result("task-1") is None
    well.sender.push([message("b")])
    with pytest.raises(LeaseLost, match="taken for dead"):
        take(frozen)
    with pytest.raises(LeaseLost):
        frozen.consumer.extend()
    assert names(take(well)) == ["b"]
    new = frozen.consumer.register("frozen", ["q"], 1)
    well.sender.push([message("c")])
    (mine,) = take(frozen)
    assert frozen.consumer.settle(new, [Ack(mine.tag)]) == set()


def test_who_renews_keeps_the_lease(open_: Open) -> None:
    time_of_leases = Time()
    holder, well = (open_(registered=True, lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    holder.sender.push([message("a")])
    take(holder)
    for _ in range(5):
        time_of_leases.now += 14.0
        holder.consumer.extend()
        assert well.consumer.reclaim() == []


def test_taking_more_renews_what_is_held(open_: Open) -> None:
    time_of_leases = Time()
    holder, well = (open_(registered=True, lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    for number in range(5):
        holder.sender.push([message(str(number))])
        assert len(take(holder)) == 1
        time_of_leases.now += 14.0
        assert well.consumer.reclaim() == []


def test_what_is_taken_is_held_for_two_thirds_of_the_lease(open_: Open) -> None:
    """However long ago it was renewed: a worker starts what it has taken until then, and nothing after."""
    time_of_leases = Time()
    holder, well = (open_(lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    holder.consumer.register("holder", ["q"], 1)
    well.consumer.register("well", ["elsewhere"], 1)
    for silence in (0.0, 4.9, 5.1, 9.9, 14.9):
        time_of_leases.now += silence
        holder.sender.push([message("a")])
        assert len(take(holder)) == 1
        time_of_leases.now += 9.9
        assert well.consumer.reclaim() == []
        holder.consumer.extend()


def test_a_silent_holder_of_nothing_is_left_alone(open_: Open) -> None:
    time_of_leases = Time()
    idle, well = (open_(registered=True, lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    time_of_leases.now += 1000.0
    assert well.consumer.reclaim() == []
    idle.sender.push([message("a")])
    assert names(take(idle)) == ["a"]
    assert well.consumer.reclaim() == []


def test_leases_run_out_in_real_time_too(open_: Open) -> None:
    silent, well = open_(registered=True, lease_seconds=0.05), open_(registered=True)
    silent.sender.push([message("a")])
    take(silent)
    assert until(well.consumer.reclaim) == [Reclaimed("w1@test", 1, 0)]
    assert names(take(well)) == ["a"]


HOLDING = """
store = place.open(lease_seconds=float(hear()))
generation = store.consumer.register("victim@test", ["q"], 1)
messages = store.consumer.lease(["q"], 100).messages
mark(store, *[m.tag for m in messages if m.headers.startswith("running")])
say(len(messages))
while hear():
    try:
        say("lost", *store.consumer.settle(generation, [Ack(m.tag) for m in messages]))
        store.consumer.extend()
        say("extended")
    except LeaseLost:
        say("LeaseLost")
"""


def test_what_a_killed_process_held_is_back_at_once(store: Broker, other: Callable[[str], Other]) -> None:
    store.sender.push([message(name) for name in ("waiting1", "running1", "waiting2", "running2")])
    victim = other(HOLDING)
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


def test_marks_of_messages_that_were_settled_count_nothing(open_: Open) -> None:
    time_of_leases = Time()
    silent, well = (open_(lease_seconds=15.0, uptime=time_of_leases) for _ in range(2))
    own = silent.consumer.register("silent", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    silent.sender.push([message("a"), message("b")])
    first, second = take(silent)
    kept = mark(silent, first.tag, second.tag, 12345)
    silent.consumer.settle(own, [Release(first.tag)])
    time_of_leases.now += 16.0
    assert well.consumer.reclaim() == [Reclaimed("silent", 1, int(kept))]
    assert {leased.headers: leased.deliveries for leased in take(well)} == {"a": 0, "b": int(kept)}


def test_the_dead_are_reclaimed_once(store: Broker, open_: Open, other: Callable[[str], Other]) -> None:
    store.sender.push([message("a")])
    victim = other(HOLDING)
    victim.say("3600")
    victim.hear()
    stores = [store, *(open_(registered=True) for _ in range(3))]
    victim.kill()
    found: list[Reclaimed] = []
    threads = [
        threading.Thread(target=lambda each=each: found.extend(each.consumer.reclaim())) for each in stores
    ]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Reclaimed("victim@test", 1, 0)] or until(lambda: found + store.consumer.reclaim())
    assert names(take(store)) == ["a"]
    assert take(store) == []


def test_a_stopped_process_loses_its_lease(
    store: Broker, place: Place, other: Callable[[str], Other]
) -> None:
    store.sender.push([message("a")])
    frozen = other(HOLDING)
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


FORKING_HOLDER = """
store = place.open()
store.consumer.register("victim@test", ["q"], 1)
taken = store.consumer.lease(["q"], 1).messages
if os.fork() == 0:
    refused = ""
    try:
        store.consumer.settle(1, [Ack(m.tag) for m in taken])
    except LeaseLost:
        refused = "refused"
    say("child", os.getpid(), refused)
    hear()
    os._exit(0)
os.wait()
"""


def test_a_child_neither_holds_nor_keeps_its_parents_leases(
    store: Broker, other: Callable[[str], Other]
) -> None:
    store.sender.push([message("a")])
    victim = other(FORKING_HOLDER)
    word, _, refused = victim.hear().split()
    assert (word, refused) == ("child", "refused")
    assert store.consumer.reclaim() == []
    victim.kill()  # its child lives on
    assert until(store.consumer.reclaim) == [Reclaimed("victim@test", 1, 0)]
    victim.say("end")


def test_who_resigns_leaves_everything_uncounted(store: Broker, open_: Open) -> None:
    leaver = open_(registered=True)
    leaver.sender.push([message("a"), message("b")])
    first, second = take(leaver)
    mark(leaver, first.tag)
    leaver.consumer.deregister()
    leaver.consumer.deregister()
    assert store.consumer.reclaim() == []
    assert take(store) == [first, second]


def test_a_close_is_a_resignation(store: Broker, open_: Open) -> None:
    leaver = open_(registered=True)
    leaver.sender.push([message("a")])
    take(leaver)
    leaver.close()
    leaver.close()
    assert names(take(store)) == ["a"]


def test_after_resigning_one_may_enlist_again(store: Broker) -> None:
    store.consumer.deregister()
    store.sender.push([message("a")])
    own = generation(store)
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag)]) == set()


# -- revoking --


def test_revocations_are_heard_once_by_all(store: Broker, open_: Open) -> None:
    listening = open_(registered=True)
    cursor, nothing = listening.consumer.revoked_since(0)
    assert nothing == []
    store.sender.revoke(["a", "b"])
    store.sender.revoke(["c"], terminate=True, signal="SIGKILL")
    expected = [
        Revocation("a", False, "SIGTERM"),
        Revocation("b", False, "SIGTERM"),
        Revocation("c", True, "SIGKILL"),
    ]
    cursor, found = listening.consumer.revoked_since(cursor)
    assert found == expected
    assert listening.consumer.revoked_since(cursor) == (cursor, [])
    assert open_(registered=True).consumer.revoked_since(0)[1] == expected


def test_an_order_to_revoke_may_carry_its_signature(store: Broker) -> None:
    signer = Signer(["a key that is long enough for tests"])
    text = f"SIGTERM {signer.sign_order('revoke', 'a', True, 'SIGTERM')}"
    store.sender.revoke(["a"], terminate=True, signal=text)
    assert store.consumer.revoked_since(0)[1] == [Revocation("a", True, text)]


def test_what_is_signed_comes_as_it_was_signed(store: Broker) -> None:
    signer = Signer(["a key that is long enough for tests"])
    own = {
        "tenant": "é", "text": "\ud800\x00\n", "nothing": None, "yes": True, "int": -(2**53), "float": 0.1,
        "large": 1e300,
        "list": [1, [2, None, "x"], {"a": 1.5}], "table": {"b": {}, "a": [], "": "no name"}, "tuple": (1, 2),
        "odd, name: é": 1, "time": datetime(2030, 1, 2, tzinfo=UTC), "number": Decimal("1.50"),
        "bytes": b"\xff",
    }  # fmt: skip
    call = TaskMessage(
        "proj.add", "id-1", (1,), headers=own, eta="2030-01-01T00:00:00+00:00", stamps={"team": ["a"]},
        stamped_headers=["team"], timelimit=(10, 2.5), reply_to="q", group="g", group_index=3,
        compression="gzip",
    )  # fmt: skip
    for given in (call, replace(call, headers={"tenant": "a"}), replace(call, id="id-3", headers={})):
        encoded = encode(given, signer)
        store.sender.push([Envelope("q", encoded.headers, encoded.properties, encoded.body)])
        (leased,) = until(lambda: store.consumer.lease(["q"], 10).messages)
        headers, _, _ = receive(leased.headers, leased.properties, leased.body, frozenset({"json"}), signer)
        assert headers["tenant"] if given.headers else True


def test_revocations_expire(open_: Open, clock: FakeClock) -> None:
    store = open_(registered=True, revoke_expires=60.0)
    store.sender.revoke(["old"])
    clock.advance(61)
    store.sender.revoke(["new"])
    cursor, found = store.consumer.revoked_since(0)
    assert [revocation.task_id for revocation in found] == ["new"]
    assert store.consumer.sweep(1e9, 1000) == 1
    store.sender.revoke(["newer"])
    assert [revocation.task_id for revocation in store.consumer.revoked_since(cursor)[1]] == ["newer"]


def test_a_revocation_wakes_a_worker(store: Broker, open_: Open) -> None:
    store.consumer.wait(0)
    open_().sender.revoke(["a"])
    assert store.consumer.wait(30)
    assert [revocation.task_id for revocation in store.consumer.revoked_since(0)[1]] == ["a"]


def test_a_revocation_among_messages_is_heard_at_the_next_look(store: Broker, open_: Open) -> None:
    client = open_()
    store.consumer.wait(0)
    cursor, _ = store.consumer.revoked_since(0)
    for name in ("a", "b"):
        client.sender.push([message(name)])
        client.sender.revoke([name])
        client.sender.push([message(name)])
        assert store.consumer.wait(30)
        cursor, found = store.consumer.revoked_since(cursor)
        while not found and store.consumer.wait(30):  # the news of a server may come one by one
            cursor, found = store.consumer.revoked_since(cursor)
        assert [revocation.task_id for revocation in found] == [name]


def test_nothing_that_was_numbered_before_a_loss_comes_again(
    place: Place, open_: Open, clock: FakeClock
) -> None:
    """FLUSHALL, TRUNCATE, an old backup, a file made anew: a generation that came again would be another
    holder's, and a worker that waits for higher numbers would hear of no revocation."""
    store, client = open_(registered=True), open_()
    old = {generation(store) for _ in range(3)}
    client.sender.push([message("lost")])
    (lost,) = take(store)
    client.sender.revoke(["a", "b", "c"])
    cursor, found = store.consumer.revoked_since(0)
    while len(found) < 3 and store.consumer.wait(30):
        cursor, more = store.consumer.revoked_since(cursor)
        found += more
    place.lose()
    clock.advance(1.0)
    with suppress(LeaseLost):
        for _ in range(30):  # the embedded broker looks for its file every tenth of a second
            store.consumer.extend()
            time.sleep(0.01)
    fresh = open_()
    new = {generation(fresh), generation(store)}
    fresh.consumer.deregister()
    assert len(old | new) == 5
    client = open_()
    client.sender.push([message("new")])
    assert names(take(store)) == ["new"]
    assert store.consumer.settle(max(old), [Ack(lost.tag)]) == {lost.tag}
    client.sender.revoke(["d"])
    found = store.consumer.revoked_since(cursor)[1]
    while not found and store.consumer.wait(30):
        found = store.consumer.revoked_since(cursor)[1]
    assert [revocation.task_id for revocation in found] == ["d"]


def test_no_number_is_given_twice_in_whatever_order_messages_end(store: Broker) -> None:
    """A late ack of the first would delete the second, unrun."""
    own = generation(store)
    store.sender.push([message(name) for name in "abcdef"])
    first = take(store)
    seen = {leased.tag for leased in first}
    for leased in (first[4], first[5], first[1], first[0], first[3], first[2]):
        assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
    store.sender.push([message(name) for name in "ghij"])
    assert not seen & {leased.tag for leased in take(store)}


# -- waiting --


def test_waiting_in_vain_ends(store: Broker) -> None:
    assert store.consumer.wait(0.01) is False
    assert store.consumer.wait(0) is False
    assert store.consumer.wait(-1) is False


def test_a_push_before_the_wait_is_not_missed(store: Broker, open_: Open) -> None:
    open_().sender.push([message("a")])
    assert store.consumer.wait(30) is True
    assert store.consumer.wait(0) is False


def test_every_waiter_hears_of_a_push(open_: Open) -> None:
    stores = [open_(registered=True) for _ in range(3)]
    stores[0].sender.push([message("a")])
    assert [each.consumer.wait(30) for each in stores] == [True, True, True]


def test_what_comes_back_is_news_to_the_others(store: Broker, open_: Open) -> None:
    holder = open_()
    own = holder.consumer.register("holder", ["q"], 1)
    holder.sender.push([message("a")])
    (leased,) = take(holder)
    store.consumer.wait(0)
    holder.consumer.settle(own, [Release(leased.tag)])
    assert store.consumer.wait(30) is True


def test_wake_ends_a_wait(store: Broker) -> None:
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


def test_waking_a_store_that_does_not_wait_is_harmless(open_: Open) -> None:
    store = open_()
    store.consumer.wake()
    store.consumer.register("w", ["q"], 1)
    store.consumer.deregister()
    store.consumer.wake()
    store.close()
    store.consumer.wake()


def test_the_doorbell_rings_in_other_processes(store: Broker, other: Callable[[str], Other]) -> None:
    listening = other(
        """
store = place.open()
store.consumer.register("listening@test", ["q"], 1)
say("up")
while hear():
    found = []
    while not found:  # one message may ring twice, by the bell and by the list
        rang = store.consumer.wait(60)
        found = store.consumer.lease(["q"], 10).messages
    say(rang, *[m.headers for m in found])
"""
    )
    assert listening.hear() == "up"
    for number in range(3):
        listening.say("wait")
        store.sender.push([message(f"message{number}")])
        assert listening.hear() == f"True message{number}"


def test_what_is_taken_while_waiting_comes_out_of_the_next_lease(store: Broker, open_: Open) -> None:
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


def test_a_waiter_that_was_killed_stops_nobody(store: Broker, other: Callable[[str], Other]) -> None:
    victim = other(
        'store = place.open()\nstore.consumer.register("v", ["q"], 1)\nsay("up")\nstore.consumer.wait(60)\n'
    )
    assert victim.hear() == "up"
    store.sender.push([message("a")])
    victim.kill()
    for number in range(3):
        store.consumer.wait(0)
        store.sender.push([message(str(number))])
        assert store.consumer.wait(30) is True


# -- many publishers --


def test_every_push_of_many_threads_is_stored_when_it_returns(store: Broker, place: Place) -> None:
    done: list[str] = []
    missing: list[str] = []

    def publish(thread: int) -> None:
        for number in range(25):
            name = f"{thread}-{number}"
            store.sender.push([message(name, body=b"1"), message(name, body=b"2")])
            done.append(name)
            before = len(done)
            if place.count() < 2 * before:
                missing.append(name)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missing
    found = take(store, limit=1000)
    assert Counter(names(found)) == {f"{thread}-{number}": 2 for thread in range(8) for number in range(25)}
    # What one push brought lies together, and each thread's messages are in its own order.
    assert [leased.body for leased in found] == [b"1", b"2"] * 200
    for thread in range(8):
        own = [name for name in names(found) if name.startswith(f"{thread}-")]
        assert own == sorted(own, key=lambda name: int(name.split("-")[1]))


def test_one_callers_bad_message_is_not_anothers_failure(store: Broker) -> None:
    failures: Counter[str] = Counter()

    def publish(name: str, body: Any) -> None:
        for _ in range(40):
            try:
                store.sender.push([message(name, body=body)])
            except Exception:  # noqa: BLE001 - whatever it is, the store is asked afterwards
                failures[name] += 1

    threads = [
        threading.Thread(target=publish, args=(name, body))
        for name, body in [("good", b""), ("bad", object()), ("fine", b""), ("worse", object())]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == {"bad": 40, "worse": 40}
    assert Counter(names(take(store, limit=1000))) == {"good": 40, "fine": 40}


def test_several_processes_publish_at_once(store: Broker, other: Callable[[str], Other]) -> None:
    script = """
store = place.open()
say("up")
hear()
for number in range(100):
    store.sender.push([message(f"{os.getpid()}-{number}")])
store.close()
"""
    processes = [other(script) for _ in range(3)]
    for process in processes:
        process.hear()
    for process in processes:
        process.say("go")
    for process in processes:
        assert process.ended() == 0
    assert len(set(names(take(store, limit=1000)))) == 300


# -- forks --


FORKING_PUBLISHER = """
store = place.open()
store.sender.push([message("parent-0")])
stop = False
count = 1
def publish():
    global count
    while not stop or count < 20:
        store.sender.push([message(f"parent-{count}")])
        count += 1
thread = threading.Thread(target=publish)
thread.start()
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        for number in range(10):
            store.sender.push([message(f"child{child}-{number}")])
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
stop = True
thread.join()
store.close()
say(count, *codes)
"""


def test_forked_children_publish_beside_their_parent(store: Broker, other: Callable[[str], Other]) -> None:
    publisher = other(FORKING_PUBLISHER)
    count, *codes = publisher.hear().split()
    assert codes == ["0"] * 4
    found = names(take(store, limit=10_000))
    assert len(found) == len(set(found)) == int(count) + 40


PARENT_CLOSES_FIRST = """
store = place.open()
store.sender.push([message("parent")])
reading, writing = os.pipe()
if os.fork() == 0:
    store.sender.push([message("child, before")])
    say("pushed")
    os.read(reading, 1)
    store.sender.push([message("child, after")])
    os.kill(os.getpid(), signal.SIGKILL)
hear()
store.close()
os.write(writing, b"!")
os.wait()
say("closed")
"""


def test_what_a_child_publishes_after_its_parent_closed_is_kept(
    place: Place, open_: Open, other: Callable[[str], Other]
) -> None:
    # No store but theirs is open meanwhile: who closes the last connection may tidy up the files.
    publisher = other(PARENT_CLOSES_FIRST)
    assert publisher.hear() == "pushed"
    publisher.say("close")
    assert publisher.hear() == "closed"
    assert names(take(open_(registered=True))) == ["parent", "child, before", "child, after"]


FORK_WHILE_HOLDING = """
store = place.open()
generation = store.consumer.register("parent@test", ["q"], 1)
(taken,) = store.consumer.lease(["q"], 1).messages
pid = os.fork()
if pid == 0:
    child = store.consumer.register("child@test", ["q"], 1)
    (mine,) = store.consumer.lease(["q"], 1).messages
    lost = store.consumer.settle(child, [Ack(mine.tag), Ack(taken.tag)])
    store.consumer.deregister()
    os._exit(0 if lost == {taken.tag} else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
store.consumer.extend()
say(code, len(store.consumer.settle(generation, [Ack(taken.tag)])), store.consumer.wait(0))
"""


def test_parent_and_child_hold_leases_of_their_own(
    store: Broker, place: Place, other: Callable[[str], Other]
) -> None:
    store.sender.push([message("a"), message("b")])
    process = other(FORK_WHILE_HOLDING)
    assert process.hear().split()[:2] == ["0", "0"]
    assert place.count() == 0


# -- administration --


def test_queues_say_how_they_stand(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    assert store.admin.queues() == []
    store.sender.push([message("a", "r")])
    oldest = clock.now()
    store.sender.push([message("dead-letter"), message("keep"), message("later", due=oldest + 60)])
    (dead_letter,) = take(store, limit=1)
    take(store, limit=1)
    store.consumer.settle(own, [DeadLetter(dead_letter.tag, "why")])
    clock.advance(5)
    store.sender.push([message("b", "r"), message("c", "r")])
    assert store.admin.queues() == [("q", 0, 1, 1, 1, None), ("r", 3, 0, 0, 0, oldest)]
    store.admin.purge("q")
    assert [info.queue for info in open_queues(store)] == ["r"]


def open_queues(store: Broker) -> list[Any]:
    return [info for info in store.admin.queues() if info.ready]


def test_a_purge_leaves_what_runs(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push(
        [message("running"), message("ready"), message("later", due=clock.now() + 9), message("x", "r")]
    )
    (running,) = take(store, limit=1)
    assert store.admin.purge("q") == 2
    assert store.admin.purge("q") == 0
    assert store.consumer.settle(own, [Ack(running.tag)]) == set()
    assert names(take(store, "q", "r")) == ["x"]


def dead_letter_all(store: Broker, clock: FakeClock, *dying: str, queue: str = "q") -> dict[str, int]:
    """Dead letters named *dying*, one second after another; their tags by name."""
    own = generation(store)
    store.sender.push([message(name, queue, priority=5) for name in dying])
    for leased in take(store, queue):
        clock.advance(1)
        store.consumer.settle(own, [Release(leased.tag, counted=True)])
        store.consumer.lease([queue], 1)
        store.consumer.settle(own, [DeadLetter(leased.tag, f"{leased.headers} died")])
    return {dead.headers: dead.tag for dead in store.admin.dead()}


def test_dead_letters_are_shown_newest_first(store: Broker, clock: FakeClock) -> None:
    dead_letter_all(store, clock, "a", "b", "c")
    dead_letter_all(store, clock, "d", queue="r")
    assert [dead.headers for dead in store.admin.dead()] == ["d", "c", "b", "a"]
    assert [dead.headers for dead in store.admin.dead("q", limit=2)] == ["c", "b"]
    assert store.admin.dead("r")[0][1:5] == ("r", "d died", clock.now(), 1)
    assert store.admin.dead("nothing") == []


def test_dead_letters_are_retried_with_a_clean_count(store: Broker, open_: Open, clock: FakeClock) -> None:
    tags = dead_letter_all(store, clock, "a", "b", "c")
    listening = open_(registered=True)
    assert store.admin.dead_retry([tags["b"], 999]) == 1
    assert listening.consumer.wait(30)
    (again,) = take(store)
    assert (again.headers, again.deliveries, again.redelivered, again.priority) == ("b", 0, True, 5)
    assert store.admin.dead_retry() == 2
    assert names(take(store)) == ["a", "c"]
    assert store.admin.dead() == []
    assert store.admin.dead_retry() == 0


def test_a_retried_dead_letter_leaves_no_failure_behind(store: Broker, place: Place) -> None:
    own = generation(store)
    store.sender.push([Envelope("q", '{"id": "one"}', None, b""), Envelope("q", "no JSON", None, b"")])
    one, other = take(store)
    store.consumer.settle(
        own, [DeadLetter(one.tag, "why", ("one", "FAILURE", b"old", None)), DeadLetter(other.tag, "why")]
    )
    assert place.result("one") == ("FAILURE", b"old")
    assert store.admin.dead_retry() == 2
    assert place.result("one") is None


def test_a_dead_letter_counts_the_death_that_it_died_of(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    store.consumer.settle(own, [DeadLetter(first.tag, "why", counted=True), DeadLetter(second.tag, "why")])
    assert {dead.headers: dead.deliveries for dead in store.admin.dead()} == {"a": 1, "b": 0}


def test_dead_letters_are_discarded(store: Broker, clock: FakeClock) -> None:
    tags = dead_letter_all(store, clock, "a", "b", "c")
    assert store.admin.dead_discard([tags["a"], 999]) == 1
    assert [dead.headers for dead in store.admin.dead()] == ["c", "b"]
    assert store.admin.dead_discard([]) == store.admin.dead_retry([]) == 0
    assert store.admin.dead_discard() == 2
    assert store.admin.dead() == []


def test_thousands_of_dead_letters_go_at_once(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message(str(number)) for number in range(1200)])
    leased = take(store, limit=2000)
    store.consumer.settle(own, [DeadLetter(each.tag, "why") for each in leased])
    tags = [each.tag for each in leased]
    assert store.admin.dead_retry(tags[:600]) == 600
    assert store.admin.dead_discard(tags) == 600
    assert len(take(store, limit=2000)) == 600


def test_sweeping_takes_old_dead_letters(store: Broker, clock: FakeClock) -> None:
    dead_letter_all(store, clock, "old")
    clock.advance(100)
    dead_letter_all(store, clock, "young")
    assert store.consumer.sweep(50.0, 1000) == 1
    assert [dead.headers for dead in store.admin.dead()] == ["young"]
    assert store.consumer.sweep(50.0, 1000) == 0


def test_sweeping_keeps_those_that_died_last(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message(name) for name in ("sent first, died last", "b", "c", "d")])
    first, *others = take(store)
    for leased in (*others, first):
        clock.advance(1)
        store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    assert store.consumer.sweep(1e9, 2) == 2
    assert [dead.headers for dead in store.admin.dead()] == ["sent first, died last", "d"]


def test_the_dead_letters_of_one_queue_do_not_evict_those_of_another(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("rare", "r"), *(message(name) for name in "abcd")])
    for leased in [*take(store, "r"), *take(store, "q")]:
        clock.advance(1)
        store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    assert store.consumer.sweep(1e9, 2) == 2
    assert [dead.headers for dead in store.admin.dead()] == ["d", "c", "rare"]
    assert store.consumer.sweep(1e9, 2) == 0


def test_depths_are_told_of_every_queue_that_is_asked_for(store: Broker) -> None:
    store.sender.push([message("1", queue="a"), message("2", queue="a"), message("3", queue="b")])
    until(lambda: store.admin.depths(["a"])[0].ready == 2)  # RabbitMQ counts a moment later
    assert [(info.queue, info.ready) for info in store.admin.depths(["c", "a"])] == [("c", 0), ("a", 2)]


def test_sweeping_takes_expired_results(store: Broker, place: Place, clock: FakeClock) -> None:
    now = clock.now()
    store.consumer.settle(generation(store), [Store((name, "SUCCESS", b"", expires)) for name, expires in
                                (("gone", now + 1), ("kept", now + 100), ("forever", None))])  # fmt: skip
    clock.advance(10)
    assert store.consumer.sweep(1e9, 1000) == 1
    assert [place.result(name) is not None for name in ("gone", "kept", "forever")] == [False, True, True]


def test_a_sweep_of_very_much_is_done_in_portions(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.consumer.settle(
        own, [Store((str(number), "SUCCESS", b"", clock.now() + 1)) for number in range(5000)]
    )
    clock.advance(10)
    portions = []
    while portion := store.consumer.sweep(1e9, 1000):
        portions.append(portion)
    assert sum(portions) == 5000
    assert max(portions) <= 2000


def test_live_workers_are_listed(
    open_: Open, store: Broker, clock: FakeClock, other: Callable[[str], Other]
) -> None:
    store.consumer.deregister()
    watching = open_()
    assert watching.admin.workers() == []
    store.consumer.register("w@test", ["q", "r"], 4)
    (found,) = watching.admin.workers()
    told = (found.name, found.queues, found.concurrency, found.started)
    assert told == ("w@test", ("q", "r"), 4, clock.now())
    assert (found.status, found.seen) == ("", clock.now())  # it has told nothing of itself
    victim = other(HOLDING)
    victim.say("3600")
    victim.hear()
    assert {worker.name for worker in watching.admin.workers()} == {"w@test", "victim@test"}
    victim.kill()
    assert [worker.name for worker in watching.admin.workers()] == ["w@test"]
    store.consumer.deregister()
    assert watching.admin.workers() == []


PRESENT = """
store = place.open()
while text := hear():
    store.consumer.present(text)
    if text.startswith('{"waiting":1,'):
        store.consumer.register("victim@test", ["q"], 1)
    else:
        store.consumer.extend()
    say("told")
"""


def presences(store: Broker) -> dict[str, tuple[int, str, str]]:
    """Name → waiting, host, version of all live workers that are to be seen."""
    return {worker.name: (worker.waiting, worker.host, worker.version) for worker in store.admin.workers()}


def test_what_a_worker_tells_of_itself_is_read_by_other_processes(
    open_: Open, store: Broker, other: Callable[[str], Other]
) -> None:
    store.consumer.deregister()
    worker = other(PRESENT)
    for waiting in (1, 2):  # with its registration, and with a renewal
        worker.say(json.dumps({"waiting": waiting, "host": "far", "version": "7"}, separators=(",", ":")))
        worker.hear()
        ((name, told),) = presences(store).items()
        assert (name, told[0], told[2]) == ("victim@test", waiting, "7")
    worker.kill()
    assert presences(open_()) == {}


def test_each_worker_has_a_presence_of_its_own_which_it_keeps_when_it_registers_again(open_: Open) -> None:
    first, second, third = (open_() for _ in range(3))
    for number, store in enumerate((first, second), 1):
        store.consumer.present(json.dumps({"waiting": number}))
        store.consumer.register(f"w{number}@test", ["q"], 1)
    third.consumer.register("silent@test", ["q"], 1)
    first.consumer.present(json.dumps({"waiting": 7}))
    waiting = {worker.name: worker.waiting for worker in third.admin.workers()}
    assert waiting == {"w1@test": 1, "w2@test": 2, "silent@test": 0}  # it is told with the next renewal
    first.consumer.extend()
    second.consumer.register("w2@test", ["q"], 1)
    third.consumer.extend()
    waiting = {worker.name: worker.waiting for worker in third.admin.workers()}
    assert waiting == {"w1@test": 7, "w2@test": 2, "silent@test": 0}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"waiting":"x","seen":[]}', "[" * 5000])
def test_a_presence_that_is_damaged_spoils_nothing(open_: Open, store: Broker, text: str) -> None:
    store.consumer.present(text)
    own = generation(store)
    store.sender.push([message("a")])
    store.consumer.extend()
    (taken,) = take(store)
    (found,) = open_().admin.workers()
    assert (found.name, found.queues, found.waiting) == ("again@test", ("q", "r"), 0)
    assert store.consumer.settle(own, [Ack(taken.tag)]) == set()


def test_a_presence_may_be_large(open_: Open, store: Broker) -> None:
    tasks = [{"id": f"{number:036}", "name": "x" * 255, "started": 1.5} for number in range(100)]
    store.consumer.present(json.dumps({"running": tasks}))
    store.consumer.extend()
    (found,) = open_().admin.workers()
    assert [task._asdict() for task in found.running] == tasks


def test_a_presence_where_workers_are_not_listed_is_nothing(store: Broker) -> None:
    store.consumer.present('{"waiting":1}')
    store.consumer.extend()
    assert [worker.waiting for worker in store.admin.workers()] == ([] if WORKERS in store.lacks else [1])


def test_a_closed_store_opens_again_when_used(store: Broker) -> None:
    store.close()
    store.sender.push([message("a")])
    generation(store)
    assert names(take(store)) == ["a"]


def test_what_a_place_cannot_do_is_in_the_suite() -> None:
    named = {test for place in PLACES.values() for test in getattr(place, "cannot", ())}
    assert named <= set(globals())


# -- moving house --


def test_dead_letters_from_elsewhere(store: Broker, clock: FakeClock) -> None:
    """They keep all but their tags."""
    store.admin.push_dead([])
    assert store.admin.dead() == []
    yaml = '{"content_type":"application/x-yaml","content_encoding":"utf-8","correlation_id":"b"}'
    letters = [
        Dead(7, "q", "because", clock.now() - 61, 3, '{"id":"a"}', None, b"body"),
        Dead(7, "q", "it was", clock.now() - 60, 0, '{"id":"b"}', yaml, b"\x00\xff"),
    ]
    store.admin.push_dead(letters)
    own = generation(store)
    store.sender.push([message("c")])
    (leased,) = take(store)
    store.consumer.settle(own, [DeadLetter(leased.tag, "later")])
    found = store.admin.dead()
    assert [letter[1:] for letter in found[1:]] == [letter[1:] for letter in reversed(letters)]
    assert len({letter.tag for letter in found}) == 3
    assert store.admin.dead_retry() == 3
    assert sorted(names(take(store))) == ["c", '{"id":"a"}', '{"id":"b"}']
    store.admin.push_dead([letters[0]._replace(queue="r")])
    assert [(info.queue, info.dead) for info in store.admin.queues() if info.dead] == [("r", 1)]
    assert [letter.queue for letter in store.admin.dead("r")] == ["r"]
    assert store.admin.dead_discard() == 1


def test_delayed_messages_are_flushed(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message(name, due=clock.now() + 3600) for name in "ab"])
    store.sender.push([message("c", "r", due=clock.now() + 3600)])
    assert store.admin.flush_delayed("q") == 2
    assert store.admin.flush_delayed("q") == 0
    assert names(take(store)) == ["a", "b"]
    assert take(store, "r") == []
