"""Transfer: everything arrives as it was, and whatever breaks in between, nothing is in neither place."""

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


class Telling(MemoryStore):
    """Its waits take time of its clock only. envelopes: what it was given. before, after: told "push" and
    "settle" as that is done."""

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
    """The ids of all that is in it."""
    return sorted(ids(everything(store, QUEUES)))


def id_of(letter):
    return json.loads(letter.headers)["id"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def source(clock):
    return Telling(clock)


@pytest.fixture
def target(clock):
    return Telling(clock)


def run(source, target, *arguments, **options):
    """A move whose seconds of silence pass with the clock of the stores."""
    return move(source, target, *arguments, monotonic=source.clock.monotonic, **options)


def test_a_message_arrives_as_it_was(clock, source, target):
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


def test_expiry_is_told_to_the_new_broker(source, target):
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


def test_only_the_queues_that_were_named(source, target):
    source.sender.push([numbered(1), numbered(2, queue="mail")])
    run(source, target, ["mail"])
    assert held(source) == ["id-1"]
    assert held(target) == ["id-2"]


def test_progress_is_told_after_every_batch(source, target):
    source.sender.push([numbered(number) for number in range(BATCH + 1)])
    told = []
    run(source, target, progress=told.append)
    assert told == [BATCH, BATCH + 1]


def test_a_target_that_goes_away_leaves_everything_in_the_source(source, target):
    source.sender.push([numbered(number) for number in range(5)])
    target.away = True
    with pytest.raises(BrokerUnavailable, match=r"0 messages were moved.*run it again"):
        run(source, target)
    assert len(held(source)) == 5
    target.away = False
    assert run(source, target).moved == 5


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_source_that_goes_away_after_a_push_leaves_one_batch_in_both(source, target, good):
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


def test_what_a_killed_move_held_is_waited_for(clock, source, target):
    source.sender.push([numbered(1)])
    killed = source.another()
    killed.consumer.register("move", ["celery"], 0)
    assert killed.consumer.lease(["celery"], 1).messages
    source.admin.workers = list
    assert run(source, target).moved == 1


def test_what_a_worker_runs_is_left_and_told(source, target):
    source.sender.push([numbered(1)])
    worker = source.another()
    worker.consumer.register("worker", ["celery"], 1)
    assert worker.consumer.lease(["celery"], 1).messages
    report = run(source, target)
    assert report.moved == 0
    assert [(info.queue, info.leased) for info in report.left] == [("celery", 1)]


def test_what_another_took_meanwhile_is_counted(source, target):
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


def test_dead_letters_go_along_when_asked(clock, source, target):
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
    assert [letter[1:] for letter in target.admin.dead()] == [letter[1:] for letter in before]
    target.admin.dead_retry()
    assert len(held(target)) == 3


def buried(store, count):
    """*count* dead letters, all of the same moment, are put into *store*."""
    store.letters["dead"].push(
        [Dead(0, "celery", "r", 5.0, 1, numbered(n).headers, None, b"") for n in range(count)]
    )


def test_dead_letters_that_have_arrived_are_only_discarded(source, target):
    buried(source, BATCH + 2)
    letters = source.admin.dead(None, 1000)
    target.letters["dead"].push(letters[:2] + letters[-2:])
    assert run(source, target, dead=True).dead == BATCH + 2
    assert source.admin.dead() == []
    assert sorted(id_of(letter) for letter in target.admin.dead(None, 1000)) == sorted(map(id_of, letters))


@pytest.mark.parametrize(
    "change",
    [{"queue": "mail"}, {"died_at": 6.0}, {"body": b"x"}, {"headers": numbered(1).headers}, {"headers": "{"}],
    ids=str,
)
def test_dead_letters_that_differ_are_not_taken_for_each_other(source, target, change):
    """The same call may die more than once."""
    buried(source, 1)
    (letter,) = source.admin.dead()
    target.letters["dead"].push([letter._replace(**change)])
    run(source, target, dead=True)
    assert len(target.admin.dead()) == 2


def test_a_queue_that_is_named_twice_has_its_dead_letters_once(source, target):
    buried(source, 2)
    assert run(source, target, ["celery", "celery"], dead=True).dead == 2
    assert len(target.admin.dead()) == 2


def test_a_target_that_goes_away_among_the_dead_letters_says_so(source, target):
    source.sender.push([numbered(1)])
    buried(source, 1)

    def vanish(call):
        target.away = True

    target.after = vanish
    with pytest.raises(BrokerUnavailable, match="1 messages were moved, but not all dead letters"):
        run(source, target, dead=True)
    assert len(source.admin.dead()) == 1


class NoneFromElsewhere(MemoryLetters):
    def push(self, letters):
        raise NotSupported("this broker does not accept dead letters from other brokers")


def test_a_broker_without_dead_letters_from_elsewhere_moves_nothing(clock, source):
    source.sender.push([numbered(1)])
    target = MemoryStore(clock)
    target.letters = {"dead": NoneFromElsewhere("dead", target)}
    with pytest.raises(NotSupported, match="dead letters from other brokers"):
        run(source, target, dead=True)
    assert held(source) == ["id-1"]
    assert run(source, target).moved == 1


def test_one_broker_by_two_names_is_noticed_before_anything_is_moved(source):
    source.sender.push([numbered(number) for number in range(3)])
    with pytest.raises(ConfigurationError, match="two names of the same broker"):
        move(source, Telling(source.clock, shared_with=source))
    assert source.settled == []
    assert held(source) == ["id-0", "id-1", "id-2"]


def test_one_broker_by_two_names_is_noticed_where_nothing_can_be_revoked(source):
    def deaf():
        store = Telling(source.clock, shared_with=source)
        store.revocations = None
        return store

    count = 2 * BATCH + 1
    source.sender.push([numbered(number) for number in range(count)])
    with pytest.raises(ConfigurationError, match="nothing was lost"):
        move(deaf(), deaf())
    assert source.messages == count


def test_an_empty_broker(source, target):
    assert run(source, target) == (0, 0, 0, [])
    assert run(source, target, ["none"]) == (0, 0, 0, [])


def test_messages_are_acknowledged_after_they_were_stored(source, target):
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
    ],
)
def test_the_same_place_is_known_by_other_names(one, other, same):
    assert same_place(one, other) is same
