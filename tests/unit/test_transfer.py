"""Moving messages between brokers: they arrive unchanged, and an interruption loses none."""

from __future__ import annotations

import json

import pytest

from qworker.errors import BrokerUnavailable, ConfigurationError, NotSupported
from qworker.testing.clock import FakeClock
from qworker.testing.store import MemoryLetters, MemoryStore
from qworker.transports.lease import Ack, Dead, DeadLetter, Envelope
from qworker.transports.transfer import BATCH, move, same_place
from tests.support.messages import call, ids
from tests.support.receiving import everything

HOUR = 3600.0


QUEUES = ("celery", "mail")


class RecordingStore(MemoryStore):
    """A store whose waits only advance its clock. envelopes: those pushed. before, after: called with "push"
    and "settle"."""

    envelopes = ()

    @staticmethod
    def before(call):
        pass

    after = before

    def push(self, envelopes, timeout=10.0):
        self.before("push")
        super().push(envelopes, timeout)
        self.envelopes = [*self.envelopes, *envelopes]
        self.after("push")

    def settle(self, generation, settlements):
        self.before("settle")
        return super().settle(generation, settlements)

    def wait(self, timeout, prefetch=0):
        self.clock.advance(timeout)
        return super().wait(0, prefetch)


def numbered(number, queue="celery", **fields):
    return call(f"id-{number}", queue, **fields)


def held(store):
    """The ids of all messages in *store*."""
    return sorted(ids(everything(store, QUEUES)))


def id_of(dead_letter):
    return json.loads(dead_letter.headers)["id"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def source(clock):
    return RecordingStore(clock)


@pytest.fixture
def target(clock):
    return RecordingStore(clock)


def run(source, target, *arguments, **options):
    """A move that uses the clock of the stores."""
    return move(source, target, *arguments, monotonic=source.clock.monotonic, **options)


def test_messages_arrive_unchanged(clock, source, target):
    due, expires = clock.now() + HOUR, "2040-01-01T00:00:00+00:00"
    source.sender.push(
        [
            numbered(1, priority=7, headers={"signature": "s", "expires": expires}, properties='{"a": 1}'),
            numbered(2, queue="mail", priority=3, due=due),
        ]
    )
    report = run(source, target)
    assert report == (2, 0, 0, [])
    assert source.messages == 0
    now, later = everything(target, QUEUES)
    assert (now.queue, now.priority, now.due, now.properties) == ("celery", 7, None, '{"a": 1}')
    assert json.loads(now.headers) == {
        "task": "tasks.add",
        "id": "id-1",
        "signature": "s",
        "expires": expires,
    }
    assert (later.queue, later.priority, later.due) == ("mail", 3, due)


def test_expiry_is_passed_to_the_target(source, target):
    source.sender.push(
        [numbered(1, headers={"expires": "2040-01-01T00:00:00+00:00"}), Envelope("celery", "{", None, b"")]
    )
    run(source, target)
    assert [sent.expires for sent in target.envelopes] == [2208988800.0, None]


def test_order_is_kept(source, target):
    source.sender.push([numbered(f"{number:04}") for number in range(3 * BATCH)])
    run(source, target)
    moved = ids(everything(target))
    assert moved == sorted(moved)
    assert len(moved) == 3 * BATCH


def test_only_named_queues_are_moved(source, target):
    source.sender.push([numbered(1), numbered(2, queue="mail")])
    run(source, target, ["mail"])
    assert held(source) == ["id-1"]
    assert held(target) == ["id-2"]


def test_progress_is_reported_after_each_batch(source, target):
    source.sender.push([numbered(number) for number in range(BATCH + 1)])
    reported = []
    run(source, target, progress=reported.append)
    assert reported == [BATCH, BATCH + 1]


def test_unavailable_target_leaves_messages_in_the_source(source, target):
    source.sender.push([numbered(number) for number in range(5)])
    target.away = True
    with pytest.raises(BrokerUnavailable, match=r"0 messages were moved.*run it again"):
        run(source, target)
    assert len(held(source)) == 5
    target.away = False
    assert run(source, target).moved == 5


@pytest.mark.parametrize("good", [0, 1, 2])
def test_source_failing_after_a_push_leaves_one_batch_in_both(source, target, good):
    total = 4 * BATCH
    source.sender.push([numbered(number) for number in range(total)])
    calls = []

    def fail(call):
        calls.append(call)
        if calls.count("settle") > good:
            raise BrokerUnavailable("away")

    source.before = fail
    with pytest.raises(BrokerUnavailable, match=f"{good * BATCH} messages were moved, and at most {BATCH}"):
        run(source, target)
    here, there = set(held(source)), set(held(target))
    assert len(here | there) == total
    assert len(here & there) == BATCH


def test_messages_held_by_a_killed_move_are_waited_for(clock, source, target):
    source.sender.push([numbered(1)])
    killed = source.another()
    killed.consumer.register("move", ["celery"], 0)
    assert killed.consumer.lease(["celery"], 1).messages
    source.admin.workers = list
    assert run(source, target).moved == 1


def test_messages_held_by_a_worker_are_left_and_reported(source, target):
    source.sender.push([numbered(1)])
    worker = source.another()
    worker.consumer.register("worker", ["celery"], 1)
    assert worker.consumer.lease(["celery"], 1).messages
    report = run(source, target)
    assert report.moved == 0
    assert [(info.queue, info.leased) for info in report.left] == [("celery", 1)]


def test_messages_reclaimed_meanwhile_are_reported_as_duplicates(source, target):
    source.sender.push([numbered(1), numbered(2)])
    frozen = iter([True])

    def freeze(call):
        if next(frozen, False):
            source.clock.advance(60)
            source.another().consumer.reclaim()

    target.after = freeze
    report = run(source, target)
    assert (report.moved, report.twice) == (4, 2)
    assert held(source) == []
    assert held(target) == ["id-1", "id-1", "id-2", "id-2"]


def test_dead_letters_are_moved_on_request(clock, source, target):
    source.sender.push([numbered(number) for number in range(3)])
    generation = source.consumer.register("undertaker", ["celery"], 1)
    for number, leased in enumerate(source.consumer.lease(["celery"], 10).messages):
        source.consumer.settle(generation, [DeadLetter(leased.tag, f"reason {number}", counted=True)])
        clock.advance(1)
    source.consumer.deregister()
    before = source.admin.dead()
    assert run(source, target).dead == 0
    assert source.admin.dead() == before
    assert run(source, target, dead=True).dead == 3
    assert source.admin.dead() == []
    assert [dead_letter[1:] for dead_letter in target.admin.dead()] == [
        dead_letter[1:] for dead_letter in before
    ]
    target.admin.dead_retry()
    assert len(held(target)) == 3


def add_dead_letters(store, count):
    """Put *count* dead letters with the same time into *store*."""
    store.letters["dead"].push(
        [Dead(0, "celery", "r", 5.0, 1, numbered(n).headers, None, b"") for n in range(count)]
    )


def test_dead_letters_already_at_the_target_are_only_discarded(source, target):
    add_dead_letters(source, BATCH + 2)
    letters = source.admin.dead(None, 1000)
    target.letters["dead"].push(letters[:2] + letters[-2:])
    assert run(source, target, dead=True).dead == BATCH + 2
    assert source.admin.dead() == []
    assert sorted(id_of(dead_letter) for dead_letter in target.admin.dead(None, 1000)) == sorted(
        map(id_of, letters)
    )


@pytest.mark.parametrize(
    "change",
    [{"queue": "mail"}, {"died_at": 6.0}, {"body": b"x"}, {"headers": numbered(1).headers}, {"headers": "{"}],
    ids=str,
)
def test_similar_dead_letters_are_both_kept(source, target, change):
    """The same call may be dead-lettered more than once."""
    add_dead_letters(source, 1)
    (dead_letter,) = source.admin.dead()
    target.letters["dead"].push([dead_letter._replace(**change)])
    run(source, target, dead=True)
    assert len(target.admin.dead()) == 2


def test_dead_letters_of_a_queue_named_twice_are_moved_once(source, target):
    add_dead_letters(source, 2)
    assert run(source, target, ["celery", "celery"], dead=True).dead == 2
    assert len(target.admin.dead()) == 2


def test_target_failing_during_dead_letters_is_an_error(source, target):
    source.sender.push([numbered(1)])
    add_dead_letters(source, 1)

    def vanish(call):
        target.away = True

    target.after = vanish
    with pytest.raises(BrokerUnavailable, match="1 messages were moved, but not all dead letters"):
        run(source, target, dead=True)
    assert len(source.admin.dead()) == 1


class RejectingLetters(MemoryLetters):
    def push(self, letters):
        raise NotSupported("this broker does not accept dead letters from other brokers")


def test_target_that_rejects_dead_letters_gets_no_messages(clock, source):
    source.sender.push([numbered(1)])
    target = MemoryStore(clock)
    target.letters = {"dead": RejectingLetters("dead", target)}
    with pytest.raises(NotSupported, match="dead letters from other brokers"):
        run(source, target, dead=True)
    assert held(source) == ["id-1"]
    assert run(source, target).moved == 1


def test_same_broker_under_two_names_is_detected_before_moving(source):
    source.sender.push([numbered(number) for number in range(3)])
    with pytest.raises(ConfigurationError, match="two names of the same broker"):
        move(source, RecordingStore(source.clock, shared_with=source))
    assert source.settled == []
    assert held(source) == ["id-0", "id-1", "id-2"]


def test_same_broker_is_detected_without_revocations(source):
    def without_revocations():
        store = RecordingStore(source.clock, shared_with=source)
        store.revocations = None
        return store

    count = 2 * BATCH + 1
    source.sender.push([numbered(number) for number in range(count)])
    with pytest.raises(ConfigurationError, match="nothing was lost"):
        move(without_revocations(), without_revocations())
    assert source.messages == count


def test_empty_source(source, target):
    assert run(source, target) == (0, 0, 0, [])
    assert run(source, target, ["none"]) == (0, 0, 0, [])


def test_messages_are_acked_after_the_push(source, target):
    source.sender.push([numbered(1)])
    order = []
    target.after = source.before = order.append
    run(source, target)
    assert order == ["push", "settle"]
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
        ("redis+cluster://a:1,b:2", "redis+cluster://:secret@b:2,a:1", True),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,c:2", False),
    ],
)
def test_same_place(one, other, same):
    assert same_place(one, other) is same
