"""Transfer: everything arrives as it was, and whatever breaks in between, nothing is in neither place."""

from __future__ import annotations

import json

import pytest

from qworker.errors import BrokerUnavailable, NotSupported
from qworker.testing.clock import FakeClock
from qworker.testing.store import MemoryStore
from qworker.transports.lease import Ack, Admin, DeadLetter, Envelope
from qworker.transports.transfer import BATCH, move, same_place

HOUR = 3600.0


def envelope(number, queue="celery", **fields):
    headers = json.dumps({"task": "add", "id": f"id-{number}", **fields.pop("headers", {})})
    return Envelope(queue, headers, fields.pop("properties", None), b"[]", **fields)


def everything(store, queues=("celery", "mail")):
    """All that can be leased, due or not."""
    store.consumer.register("reader", queues, 1)
    taken = [
        *store.consumer.lease(queues, 10_000).messages,
        *store.consumer.lease(queues, 0, delayed_limit=10_000, eta_window=1e9).messages,
    ]
    store.consumer.deregister()
    return taken


def ids(store):
    return sorted(json.loads(leased.headers)["id"] for leased in everything(store))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def source(clock):
    return MemoryStore(clock)


@pytest.fixture
def target(clock):
    return MemoryStore(clock)


def run(source, target, *arguments, **options):
    """A move whose seconds of silence pass with the clock of the stores."""
    store_wait = source.consumer.wait
    source.consumer.wait = lambda timeout: (source.clock.advance(timeout), store_wait(0))[1]
    return move(source, target, *arguments, monotonic=source.clock.monotonic, **options)


def test_a_message_arrives_as_it_was(clock, source, target):
    due, expires = clock.now() + HOUR, "2040-01-01T00:00:00+00:00"
    source.sender.push(
        [
            envelope(1, priority=7, headers={"signature": "s", "expires": expires}, properties='{"a": 1}'),
            envelope(2, queue="mail", priority=3, due=due),
        ]
    )
    report = run(source, target)
    assert report == (2, 0, 0, [])
    assert source.messages == 0
    now, later = everything(target)
    assert (now.queue, now.priority, now.due, now.properties) == ("celery", 7, None, '{"a": 1}')
    assert json.loads(now.headers) == {"task": "add", "id": "id-1", "signature": "s", "expires": expires}
    assert (later.queue, later.priority, later.due) == ("mail", 3, due)


def test_expiry_is_told_to_the_new_broker(source):
    target = Recording(source.clock)
    source.sender.push(
        [envelope(1, headers={"expires": "2040-01-01T00:00:00+00:00"}), Envelope("celery", "{", None, b"")]
    )
    run(source, target)
    assert [sent.expires for sent in target.envelopes] == [2208988800.0, None]


class Recording(MemoryStore):
    """A store that remembers the envelopes it was given."""

    envelopes = ()

    def push(self, envelopes, timeout=10.0):
        super().push(envelopes, timeout)
        self.envelopes = [*self.envelopes, *envelopes]


def test_order_is_kept(source, target):
    source.sender.push([envelope(f"{number:04}") for number in range(3 * BATCH)])
    run(source, target)
    moved = [json.loads(leased.headers)["id"] for leased in everything(target)]
    assert moved == sorted(moved)
    assert len(moved) == 3 * BATCH


def test_only_the_queues_that_were_named(source, target):
    source.sender.push([envelope(1), envelope(2, queue="mail")])
    run(source, target, ["mail"])
    assert ids(source) == ["id-1"]
    assert ids(target) == ["id-2"]


def test_progress_is_told_after_every_batch(source, target):
    source.sender.push([envelope(number) for number in range(BATCH + 1)])
    told = []
    run(source, target, progress=told.append)
    assert told == [BATCH, BATCH + 1]


def test_a_target_that_goes_away_leaves_everything_in_the_source(source, target):
    source.sender.push([envelope(number) for number in range(5)])
    target.away = True
    with pytest.raises(BrokerUnavailable, match=r"0 messages were moved.*run it again"):
        run(source, target)
    assert len(ids(source)) == 5
    target.away = False
    assert run(source, target).moved == 5


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_source_that_goes_away_after_a_push_leaves_one_batch_in_both(source, target, good):
    total = 4 * BATCH
    source.sender.push([envelope(number) for number in range(total)])
    settle = source.consumer.settle
    calls = []

    def fail(epoch, settlements):
        calls.append(settlements)
        if len(calls) > good:
            raise BrokerUnavailable("away")
        return settle(epoch, settlements)

    source.consumer.settle = fail
    with pytest.raises(BrokerUnavailable, match=f"{good * BATCH} messages were moved, and at most {BATCH}"):
        run(source, target)
    here, there = set(ids(source)), set(ids(target))
    assert len(here | there) == total
    assert len(here & there) == BATCH


def test_what_a_killed_move_held_is_waited_for(clock, source, target):
    source.sender.push([envelope(1)])
    killed = source.another()
    killed.consumer.register("move", ["celery"], 0)
    assert killed.consumer.lease(["celery"], 1).messages
    source.admin.workers = list
    assert run(source, target).moved == 1


def test_what_a_worker_runs_is_left_and_told(source, target):
    source.sender.push([envelope(1)])
    worker = source.another()
    worker.consumer.register("worker", ["celery"], 1)
    assert worker.consumer.lease(["celery"], 1).messages
    report = run(source, target)
    assert report.moved == 0
    assert [(info.queue, info.leased) for info in report.left] == [("celery", 1)]


def test_what_another_took_meanwhile_is_counted(source, target):
    source.sender.push([envelope(1), envelope(2)])
    push = target.sender.push
    frozen = iter([True])

    def push_slowly(envelopes, timeout):
        push(envelopes, timeout)
        if next(frozen, False):
            source.clock.advance(60)
            source.another().consumer.reclaim()

    target.sender.push = push_slowly
    report = run(source, target)
    assert (report.moved, report.twice) == (4, 2)
    assert ids(source) == []
    assert ids(target) == ["id-1", "id-1", "id-2", "id-2"]


def test_dead_letters_go_along_when_asked(clock, source, target):
    source.sender.push([envelope(number) for number in range(3)])
    epoch = source.consumer.register("undertaker", ["celery"], 1)
    for number, leased in enumerate(source.consumer.lease(["celery"], 10).messages):
        source.consumer.settle(epoch, [DeadLetter(leased.tag, f"reason {number}", counted=True)])
        clock.advance(1)
    source.consumer.deregister()
    before = source.admin.dead()
    assert run(source, target).dead == 0
    assert source.admin.dead() == before
    assert run(source, target, dead=True).dead == 3
    assert source.admin.dead() == []
    assert [letter[1:] for letter in target.admin.dead()] == [letter[1:] for letter in before]
    target.admin.dead_retry()
    assert len(ids(target)) == 3


class WithoutDead(MemoryStore):
    push_dead = Admin.push_dead


def test_a_broker_without_dead_letters_from_elsewhere_moves_nothing(clock, source):
    source.sender.push([envelope(1)])
    target = WithoutDead(clock)
    with pytest.raises(NotSupported, match="no dead letters from elsewhere"):
        run(source, target, dead=True)
    assert ids(source) == ["id-1"]
    assert run(source, target).moved == 1


def test_an_empty_broker(source, target):
    assert run(source, target) == (0, 0, 0, [])
    assert run(source, target, ["none"]) == (0, 0, 0, [])


def test_messages_are_acknowledged_after_they_were_stored(source, target):
    source.sender.push([envelope(1)])
    order = []
    push, settle = target.sender.push, source.consumer.settle
    target.sender.push = lambda *given: (push(*given), order.append("push"))
    source.consumer.settle = lambda *given: (order.append("ack"), settle(*given))[1]
    run(source, target)
    assert order == ["push", "ack"]
    assert [type(settlement) for settlement in source.settled] == [Ack]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://localhost", "redis://127.0.0.1:6379/0", True),
        ("redis://:secret@h/1", "redis://h:6379/1", True),
        ("redis://h/1", "redis://h/2", False),
        ("rediss://h/1", "valkeys://h/1", True),
        ("sqlite:///a.db", "sqlite:///./a.db", True),
        ("sqlite:///a.db", "sqlite:///b.db", False),
        ("amqp://guest:guest@h//", "pyamqp://h:5672", True),
        ("amqp://h/one", "amqp://h/two", False),
        ("sqlite:///a.db", "redis://h", False),
    ],
)
def test_the_same_place_is_known_by_other_names(one, other, same):
    assert same_place(one, other) is same
