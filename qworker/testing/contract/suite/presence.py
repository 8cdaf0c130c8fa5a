"""Presence: workers publish their state, and are listed.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import json

import pytest

from qworker.testing.clock import FakeClock
from qworker.testing.contract import scripts
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, Start, generation, take
from qworker.testing.contract.messages import message
from qworker.testing.contract.parts import present, workers
from qworker.transports.capabilities import WORKERS
from qworker.transports.lease import Ack, Broker


@asks(WORKERS)
def test_live_workers_are_listed(open_: Open, store: Broker, clock: FakeClock, other: Start) -> None:
    store.consumer.deregister()
    watching = open_()
    assert workers(watching) == []
    store.consumer.register("w@test", ["q", "r"], 4)
    (found,) = workers(watching)
    fields = (found.name, found.queues, found.concurrency, found.started)
    assert fields == ("w@test", ("q", "r"), 4, clock.now())
    assert (found.status, found.seen) == ("", clock.now())  # it has not published a state
    victim = other(scripts.hold)
    victim.say("3600")
    victim.hear()
    assert {worker.name for worker in workers(watching)} == {"w@test", "victim@test"}
    victim.kill()
    assert [worker.name for worker in workers(watching)] == ["w@test"]
    store.consumer.deregister()
    assert workers(watching) == []


@asks(WORKERS)
def test_consumer_without_concurrency_is_not_listed_as_worker(open_: Open) -> None:
    """Like a consumer that moves messages to another broker."""
    mover = open_()
    mover.consumer.register("mover@test", ["q"], 0)
    assert workers(open_()) == []
    mover.consumer.deregister()


def presences(store: Broker) -> dict[str, tuple[int, str, str]]:
    """Return waiting, host and version of all live workers, by name."""
    return {worker.name: (worker.waiting, worker.host, worker.version) for worker in workers(store)}


@asks(WORKERS)
def test_presence_is_visible_in_other_processes(open_: Open, store: Broker, other: Start) -> None:
    store.consumer.deregister()
    worker = other(scripts.publish_presence)
    for waiting in (1, 2):  # published with the registration, and with a renewal
        worker.say(json.dumps({"waiting": waiting, "host": "far", "version": "7"}, separators=(",", ":")))
        worker.hear()
        ((name, shown),) = presences(store).items()
        assert (name, shown[0], shown[2]) == ("victim@test", waiting, "7")
    worker.kill()
    assert presences(open_()) == {}


@asks(WORKERS)
def test_each_worker_keeps_its_own_presence_when_it_registers_again(open_: Open) -> None:
    first, second, third = (open_() for _ in range(3))
    for number, store in enumerate((first, second), 1):
        present(store, json.dumps({"waiting": number}))
        store.consumer.register(f"w{number}@test", ["q"], 1)
    third.consumer.register("silent@test", ["q"], 1)
    present(first, json.dumps({"waiting": 7}))
    waiting = {worker.name: worker.waiting for worker in workers(third)}
    assert waiting == {"w1@test": 1, "w2@test": 2, "silent@test": 0}  # it is published with the next renewal
    first.consumer.extend()
    second.consumer.register("w2@test", ["q"], 1)
    third.consumer.extend()
    waiting = {worker.name: worker.waiting for worker in workers(third)}
    assert waiting == {"w1@test": 7, "w2@test": 2, "silent@test": 0}


@asks(WORKERS)
@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"waiting":"x","seen":[]}', "[" * 5000])
def test_invalid_presence_is_ignored(open_: Open, store: Broker, text: str) -> None:
    present(store, text)
    own = generation(store)
    store.sender.push([message("a")])
    store.consumer.extend()
    (taken,) = take(store)
    (found,) = workers(open_())
    assert (found.name, found.queues, found.waiting) == ("again@test", ("q", "r"), 0)
    assert store.consumer.settle(own, [Ack(taken.tag)]) == set()


@asks(WORKERS)
def test_large_presence_is_published(open_: Open, store: Broker) -> None:
    more = {"name": "x" * 255, "started": 1.5, "pid": 7, "queue": "y" * 255}
    tasks = [{"id": f"{number:036}", **more} for number in range(100)]
    present(store, json.dumps({"running": tasks}))
    store.consumer.extend()
    (found,) = workers(open_())
    assert [task._asdict() for task in found.running] == tasks
