"""Many publishers: threads, processes and forked children.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from qworker.testing.contract import scripts
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, Start, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.place import Assumption, Place
from qworker.transports.lease import Broker


@asks(Assumption.ON_DEMAND)
def test_push_from_many_threads_returns_after_storing(store: Broker, place: Place) -> None:
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
    # The messages of one push are adjacent, and each thread's messages keep their order.
    assert [leased.body for leased in found] == [b"1", b"2"] * 200
    for number in range(8):
        own = [name for name in names(found) if name.startswith(f"{number}-")]
        assert own == sorted(own, key=lambda name: int(name.split("-")[1]))


def test_several_brokers_can_create_the_store_at_once(open_: Open, place: Place) -> None:
    """Each finds nothing there, and creates what it needs."""
    several = [open_() for _ in range(6)]
    threads = [
        threading.Thread(target=each.sender.push, args=([message(str(number))],))
        for number, each in enumerate(several)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(take(open_(registered=True)))) == list("012345")


def test_invalid_message_does_not_fail_pushes_of_other_threads(store: Broker) -> None:
    failures: Counter[str] = Counter()

    def publish(name: str, body: Any) -> None:
        for _ in range(40):
            try:
                store.sender.push([message(name, body=body)])
            except Exception:  # noqa: BLE001 - the test checks the store afterwards
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


def test_several_processes_publish_at_once(store: Broker, other: Start) -> None:
    processes = [other(scripts.publish) for _ in range(3)]
    for process in processes:
        process.hear()
    for process in processes:
        process.say("go")
    for process in processes:
        assert process.ended() == 0
    assert len(set(names(take(store, limit=1000)))) == 300


def test_forked_children_and_their_parent_publish_at_once(store: Broker, other: Start) -> None:
    publisher = other(scripts.publish_and_fork)
    count, *codes = publisher.hear().split()
    assert codes == ["0"] * 4
    found = names(take(store, limit=10_000))
    assert len(found) == len(set(found)) == int(count) + 40


def test_child_can_publish_after_its_parent_has_closed(place: Place, open_: Open, other: Start) -> None:
    # No other store is open meanwhile: closing the last connection may clean up the files.
    publisher = other(scripts.close_before_the_child)
    assert publisher.hear() == "pushed"
    publisher.say("close")
    assert publisher.hear() == "closed"
    assert names(take(open_(registered=True))) == ["parent", "child, before", "child, after"]


@asks(Assumption.ON_DEMAND)
def test_parent_and_child_have_separate_leases(store: Broker, place: Place, other: Start) -> None:
    store.sender.push([message("a"), message("b")])
    process = other(scripts.hold_in_parent_and_child)
    assert process.hear().split()[:2] == ["0", "0"]
    assert place.count() == 0
