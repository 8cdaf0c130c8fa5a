"""One suite for the joins of every result store."""

from __future__ import annotations

import itertools
import random
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from qworker.backends.joins import DONE_SECONDS_FOR_EVER, PUSH_SECONDS, Finished, Join, Joins
from qworker.errors import BrokerUnavailable, EncodeError
from qworker.testing.clock import FakeClock
from qworker.transports.lease import Broker, Envelope, Part, Sender
from qworker.transports.sql.broker import SQLBroker
from tests.contract.join_places import JOIN_PLACES, JoinPlace, start_process
from tests.contract.join_steps import BODY, QUEUE, SECONDS, drain, parts, sent
from tests.contract.test_interrupted import Cut, cut_points
from tests.support.messages import message, names
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.contract


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on every place, except tests with other processes in memory. ``point`` takes the crash
    points that a place reaches."""
    if "kind" not in metafunc.fixturenames:
        return
    code = metafunc.function.__code__
    other_processes = "kind" in code.co_varnames[: code.co_argcount]
    kinds = {
        kind: place for kind, place in JOIN_PLACES.items() if not (other_processes and place.one_process)
    }
    if "point" in metafunc.fixturenames:
        points = [(kind, point) for kind, place in kinds.items() for point in place.points]
        metafunc.parametrize(("kind", "point"), points)
    else:
        metafunc.parametrize("kind", kinds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def joins(place: JoinPlace, clock: FakeClock) -> Iterator[Joins]:
    backend = place.backend(clock)
    yield backend.joins
    backend.close()


def test_unused_store_has_no_joins(joins: Joins) -> None:
    assert (joins.count(), joins.claim(10, SECONDS)) == (0, [])


# -- parts --


def test_join_is_claimed_when_all_parts_are_recorded(place: JoinPlace, joins: Joins, broker: Broker) -> None:
    joins.open([Join("a", 3, BODY), Join("b", 2, b"")])
    assert joins.count() == 2
    joins.add(parts("a", [0, 1]))
    assert joins.claim(10, SECONDS) == []
    joins.add([*parts("a", [2], "FAILURE"), *parts("b", [0])])
    (join,) = joins.claim(10, SECONDS)
    assert (join.id, join.body, join.overdue) == ("a", BODY, False)
    assert list(join.parts) == [*parts("a", [0, 1]), *parts("a", [2], "FAILURE")]
    assert joins.finish(join, [message("body", QUEUE)], broker.sender)
    assert (joins.count(), sent(broker)) == (1, 1)
    assert joins.claim(10, SECONDS) == []
    joins.drop(["b"])
    assert place.left() == 0


def test_finish_publishes_the_body(joins: Joins, broker: Broker) -> None:
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (join,) = joins.claim(1, SECONDS)
    broker.consumer.register("w1", [QUEUE], 1)
    assert joins.finish(join, [message("x", QUEUE), message("y", QUEUE)], broker.sender)
    assert broker.consumer.wait(PATIENCE)
    found = broker.consumer.lease([QUEUE], 10).messages
    assert names(found) == ["x", "y"]


def test_store_without_joins_accepts_all_calls(place: JoinPlace, joins: Joins, clock: FakeClock) -> None:
    """A store of an older version may lack the tables."""
    backend = place.backend(clock)
    assert backend.store("task", backend.meta("task", "SUCCESS", 1))
    joins.add(parts("a", [0]))
    joins.drop(["a"])
    assert (joins.count(), joins.claim(10, SECONDS), joins.grow("a", "t")) == (0, [], None)
    joins.open([Join("a", 1, BODY)])
    backend.joins.add(parts("a", [0]))
    assert [join.id for join in backend.joins.claim(10, SECONDS)] == ["a"]
    assert backend.get("task")["result"] == 1  # type: ignore[index]
    backend.close()


def test_broker_reports_whether_joins_are_due(
    place: JoinPlace, joins: Joins, broker: Broker, clock: FakeClock
) -> None:
    """A worker claims joins only if its broker reports that there may be one."""
    may_have_due = broker.admin.may_have_due_joins
    reports = isinstance(broker, SQLBroker)
    assert may_have_due(clock.now()) is not reports  # there has never been one
    joins.open([Join("a", 2, BODY, clock.now() + 60.0)])
    assert may_have_due(clock.now()) is not reports
    assert may_have_due(clock.now() + 60.0)  # it is overdue then
    joins.add(parts("a", [0, 1]))
    assert may_have_due(clock.now())
    (join,) = joins.claim(10, SECONDS)
    assert may_have_due(clock.now()) is not reports
    assert may_have_due(clock.now() + SECONDS)  # the claim has ended
    assert joins.finish(join, [], broker.sender)
    assert may_have_due(clock.now()) is not reports


def test_join_without_members_is_claimed_at_once(joins: Joins) -> None:
    joins.open([Join("a", 0, BODY)])
    (join,) = joins.claim(10, SECONDS)
    assert (join.id, join.body, list(join.parts), join.overdue) == ("a", BODY, [], False)


def test_opening_a_join_twice_changes_nothing(joins: Joins) -> None:
    joins.open([Join("a", 2, BODY)])
    joins.add(parts("a", [0]))
    joins.open([Join("a", 9, b"another"), Join("b", 1, b"")])
    joins.add(parts("a", [1]))
    (join,) = joins.claim(10, SECONDS)
    assert (join.id, join.body, len(join.parts)) == ("a", BODY, 2)
    joins.open([Join("a", 9, b"another")])
    assert joins.count() == 2
    assert joins.claim(10, SECONDS) == []


def test_finished_join_is_not_opened_again(
    place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker
) -> None:
    """A redelivered task opens its joins again. A finished join is remembered for a while."""
    joins.open([Join("a", 1, BODY, clock.now() + 1000)])
    joins.add(parts("a", [0]))
    assert len(drain(joins, broker)) == 1
    joins.open([Join("a", 1, BODY), Join("b", 1, BODY)])
    joins.add([*parts("a", [0]), *parts("b", [0])])
    assert (joins.grow("a", "t"), joins.count()) == (None, 1)
    joins.drop(["a", "unknown"])
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0, 1]))
    assert [join.id for join in drain(joins, broker)] == ["b"]
    assert (sent(broker), joins.count(), place.left()) == (2, 0, 0)
    assert place.remembered() == 2
    if not place.one_step:  # Redis has its own clock
        clock.advance(DONE_SECONDS_FOR_EVER)
        assert joins.claim(10, SECONDS) == []
        backend = place.backend(clock)
        backend.sweep(clock.now())
        backend.close()
        assert place.remembered() == 0
        joins.open([Join("a", 1, BODY)])
        assert joins.count() == 1


def test_open_is_atomic(place: JoinPlace, joins: Joins) -> None:
    with pytest.raises(EncodeError, match="not the id of a join"):
        joins.open([Join("a", 2, BODY), Join("b" * 300, 2, BODY)])
    with pytest.raises(EncodeError, match="-1 members"):
        joins.open([Join("a", 2, BODY), Join("b", -1, BODY)])
    assert joins.count() == 0
    joins.open([])
    joins.add([])
    joins.drop([])


def test_repeated_part_is_ignored(joins: Joins) -> None:
    joins.open([Join("a", 2, BODY)])
    again = [Part("a", 0, "another", "FAILURE")]
    joins.add([*parts("a", [0]), *again])
    joins.add(again)
    joins.add([*again, *parts("a", [0])])
    assert joins.claim(10, SECONDS) == []
    joins.add([*again, *parts("a", [1])])
    (join,) = joins.claim(10, SECONDS)
    assert list(join.parts) == parts("a", [0, 1])
    joins.add([*again, *parts("a", [1])])
    assert joins.claim(10, SECONDS) == []


def test_parts_of_many_joins_in_any_order(joins: Joins, broker: Broker) -> None:
    chance = random.Random(7)
    ids = [f"join {number}" for number in range(20)]
    joins.open([Join(name, size, name.encode()) for size, name in enumerate(ids)])
    every = [part for size, name in enumerate(ids) for part in parts(name, range(size))]
    chance.shuffle(every)
    found: list[Finished] = []
    while every:
        some, every = every[: (count := chance.randrange(1, 30))], every[count:]
        joins.add(some)
        found += drain(joins, broker)
    assert {join.id: list(join.parts) for join in found} == {
        name: parts(name, range(size)) for size, name in enumerate(ids)
    }
    assert all(join.body == join.id.encode() for join in found)
    assert (len(found), joins.count(), sent(broker)) == (20, 0, 20)


UNUSUAL_IDS = ("", "é" * 200, "x" * 300, "with\0nul", "\udc80", "blank ", "A", "Ä")


def test_invalid_parts_are_not_stored(place: JoinPlace, joins: Joins) -> None:
    joins.open([Join("a", 2, BODY)])
    before = place.left()
    joins.add(parts("unknown", [0, 1]))
    joins.add(parts("a", [-1, 2, 3, 2**31, 2**63, 2**80]))
    for name in UNUSUAL_IDS:
        joins.add(parts(name, [0, 1]))
    assert place.left() == before
    joins.drop(["a", "unknown"])
    joins.add(parts("a", [0, 1]))
    assert (place.left(), joins.count(), joins.claim(10, SECONDS)) == (0, 0, [])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"id": 1}', b"\xff"])
def test_damaged_file_does_not_affect_other_joins(tmp_path: Path, clock: FakeClock, data: bytes) -> None:
    place = JOIN_PLACES["filesystem"](tmp_path)
    backend = place.backend(clock)
    joins = backend.joins
    joins.open([Join("damaged", 1, BODY)])
    for path in tmp_path.rglob("*join*"):
        if path.is_file():
            path.write_bytes(data)
    joins.open([Join("torn", 1, BODY)])
    joins.add(parts("torn", [0]))
    for path in tmp_path.rglob("*part*"):
        path.write_bytes(b"{")
    joins.open([Join("a", 0, BODY)])
    assert {join.id: join.overdue for join in joins.claim(10, SECONDS)} == {"torn": True, "a": False}
    backend.close()


def test_similar_ids_are_distinguished(joins: Joins) -> None:
    ids = ["é" * 200, "A", "a", "Ä", "a/b", "../a", "a%2Fb", "日本", "x" * 255, "x" * 254]
    joins.open([Join(name, 1, name.encode()) for name in ids])
    for name in ids:
        joins.add(parts(name, [0]))
        (join,) = joins.claim(10, SECONDS)
        assert (join.id, join.body.decode(), list(join.parts)) == (name, name, parts(name, [0]))


# -- size --


def test_grown_join_waits_for_added_members(joins: Joins) -> None:
    joins.open([Join("a", 2, BODY)])
    joins.add(parts("a", [0]))
    assert [joins.grow("a", f"t{number}") for number in range(2, 43)] == list(range(2, 43))
    joins.add(parts("a", [1]))
    assert joins.claim(10, SECONDS) == []
    joins.add(parts("a", range(2, 42)))
    assert joins.claim(10, SECONDS) == []
    joins.add(parts("a", [42, 43]))
    (join,) = joins.claim(10, SECONDS)
    assert list(join.parts) == parts("a", range(43))
    assert joins.grow("a", "late") is None
    assert joins.grow("unknown", "t") is None


def test_growing_twice_by_the_same_call_adds_it_once(joins: Joins) -> None:
    """A redelivered task adds its calls again, and they may have ended meanwhile."""
    joins.open([Join("a", 1, BODY, 4e9), Join("b", 1, BODY)])
    for _ in range(2):
        assert [joins.grow("a", name) for name in ("x", "y")] == [1, 2]
        assert joins.grow("b", "y") == 1
        joins.add(parts("a", [1]))
    joins.add(parts("a", [0, 2]))
    assert joins.grow("a", "x") == 1
    (join,) = joins.claim(10, SECONDS)
    assert (list(join.parts), join.overdue) == (parts("a", range(3)), False)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("missing", ["first", "last"])
def test_join_of_any_size_can_grow(joins: Joins, size: int, missing: str) -> None:
    joins.open([Join("a", size, BODY)])
    joins.add(parts("a", range(size - 1) if missing == "last" else range(1, size)))
    assert joins.grow("a", "added") == size
    joins.add(parts("a", range(size)))
    assert joins.claim(10, SECONDS) == []
    joins.add(parts("a", [size]))
    (join,) = joins.claim(10, SECONDS)
    assert list(join.parts) == parts("a", range(size + 1))


def test_large_join_uses_bounded_memory(joins: Joins, broker: Broker) -> None:
    size = 20_000
    joins.open([Join("a", size, BODY)])
    tracemalloc.start()
    for start in range(0, size, 1000):
        joins.add(parts("a", range(start, start + 1000)))
    _, most = tracemalloc.get_traced_memory()
    assert most < 2 * 1024**2, "recording should only hold the given parts"
    (join,) = joins.claim(10, SECONDS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size * 2048
    assert list(join.parts) == parts("a", range(size))
    assert joins.finish(join, [message("body", QUEUE)], broker.sender)
    assert joins.count() == 0


def test_claim_limits_the_number_of_members(joins: Joins) -> None:
    joins.open([Join(f"{number}", 40_000, BODY, 1.0) for number in range(4)])
    assert [len(joins.claim(10, SECONDS)) for _ in range(3)] == [3, 1, 0]


# -- claims --


def test_join_is_claimed_once(place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker) -> None:
    other = place.backend(clock)
    joins.open([Join(str(number), 1, BODY) for number in range(5)])
    for number in range(5):
        joins.add(parts(str(number), [0]))
    first, second = joins.claim(2, SECONDS), other.joins.claim(10, SECONDS)
    assert [join.id for join in first] == ["0", "1"]
    assert [join.id for join in second] == ["2", "3", "4"]
    assert joins.claim(10, SECONDS) == other.joins.claim(10, SECONDS) == []
    for join in (*first, *second):
        assert joins.finish(join, [], broker.sender)
    assert place.left() == 0
    other.close()


def test_expired_claim_cannot_finish_the_join(
    place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker
) -> None:
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (early,) = joins.claim(1, SECONDS)
    clock.advance(SECONDS - 1)
    assert joins.claim(1, SECONDS) == []
    clock.advance(2)
    (late,) = joins.claim(1, SECONDS)
    assert (late.id, late.body, late.parts) == (early.id, early.body, early.parts)
    assert late.token != early.token
    assert not joins.finish(early, [message("body", QUEUE)], broker.sender)
    assert sent(broker) == 0
    assert joins.finish(late, [message("body", QUEUE)], broker.sender)
    assert not joins.finish(late, [message("body", QUEUE)], broker.sender)
    assert not joins.finish(early, [message("body", QUEUE)], broker.sender)
    assert (sent(broker), place.left()) == (1, 0)


class SlowSender(Sender):
    """Sends with *sender* after *meanwhile*."""

    def __init__(self, sender: Sender, meanwhile: Callable[[], None]) -> None:
        self.sender = sender
        self.meanwhile = meanwhile

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.meanwhile()
        self.sender.push(envelopes, timeout)


def test_claim_that_expires_while_the_body_is_sent_does_not_finish_the_join(
    place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker
) -> None:
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (early,) = joins.claim(1, SECONDS)
    claimed: list[Finished] = []

    def meanwhile() -> None:
        clock.advance(max(SECONDS, PUSH_SECONDS) + 1)
        claimed.extend(joins.claim(1, SECONDS))

    assert not joins.finish(early, [message("body", QUEUE)], SlowSender(broker.sender, meanwhile))
    (late,) = claimed
    assert (late.id, late.parts, sent(broker)) == ("a", early.parts, 1)
    assert joins.finish(late, [message("body", QUEUE)], broker.sender)
    assert (joins.count(), place.left()) == (0, 0)


def test_old_claim_cannot_finish_a_reopened_join(joins: Joins, clock: FakeClock, broker: Broker) -> None:
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (join,) = joins.claim(1, SECONDS)
    joins.drop(["a"])
    joins.open([Join("a", 1, BODY)])
    assert not joins.finish(join, [message("body", QUEUE)], broker.sender)
    assert (joins.count(), sent(broker)) == (1, 0)


class UnavailableSender(Sender):
    """The sender of a broker that is unavailable."""

    def push(self, envelopes: object, timeout: float = 10.0) -> None:
        raise BrokerUnavailable("away")


def test_join_is_kept_if_its_body_cannot_be_sent(joins: Joins, clock: FakeClock, broker: Broker) -> None:
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (join,) = joins.claim(1, SECONDS)

    with pytest.raises(BrokerUnavailable, match="away"):
        joins.finish(join, [message("body", QUEUE)], UnavailableSender())
    assert (joins.count(), sent(broker)) == (1, 0)
    clock.advance(2 * SECONDS + 1)
    (again,) = joins.claim(1, SECONDS)
    assert joins.finish(again, [message("body", QUEUE)], broker.sender)
    assert sent(broker) == 1


def test_another_worker_takes_over_from_one_that_tries_again(
    joins: Joins, clock: FakeClock, broker: Broker
) -> None:
    """Each attempt extended the claim, so a worker that was cut off from the broker kept it for ever."""
    joins.open([Join("a", 1, BODY)])
    joins.add(parts("a", [0]))
    (join,) = joins.claim(1, SECONDS)
    bodies = [message("body", QUEUE)]
    for attempt, advance in enumerate((PUSH_SECONDS - 1, 2.0)):
        assert joins.claim(1, SECONDS) == []
        with pytest.raises(BrokerUnavailable):
            joins.finish(join._replace(attempt=attempt), bodies, UnavailableSender())
        clock.advance(advance)
    (other,) = joins.claim(1, SECONDS)
    assert not joins.finish(join._replace(attempt=2), bodies, UnavailableSender())
    assert joins.finish(other, bodies, broker.sender)
    assert (joins.count(), sent(broker)) == (0, 1)


def test_hold_allows_one_message_of_a_body(place: JoinPlace, clock: FakeClock) -> None:
    backends = [place.backend(clock) for _ in range(4)]
    numbers = (7, 2**63 - 1, 0, 12)
    with ThreadPoolExecutor(4) as threads:
        got = set(threads.map(lambda each, number: each.joins.hold("x", number, 60), backends, numbers))
    (first,) = got
    assert first in numbers
    assert {each.joins.hold("x", 99, 60) for each in backends} == got
    assert backends[0].joins.hold("y", 99, 60) == 99
    if not place.one_step:  # Redis has its own clock
        clock.advance(61)
        assert backends[0].joins.hold("x", 99, 60) == 99
    for each in backends:
        each.close()


# -- overdue and dropped joins --


def test_overdue_join_is_claimed_with_the_parts_it_has(
    place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker
) -> None:
    joins.open([Join("a", 3, BODY, clock.now() + 10), Join("b", 1, BODY)])
    joins.add(parts("a", [1]))
    assert joins.claim(10, SECONDS) == []
    clock.advance(10)
    backend = place.backend(clock)
    backend.sweep(clock.now())
    backend.close()
    (join,) = joins.claim(10, SECONDS)
    assert (join.id, join.overdue, list(join.parts)) == ("a", True, parts("a", [1]))
    assert joins.claim(10, SECONDS) == []
    joins.add(parts("a", [0, 2]))
    assert joins.claim(10, SECONDS) == [], "it is complete, but claimed"
    clock.advance(SECONDS)
    (again,) = joins.claim(10, SECONDS)
    assert (again.overdue, len(again.parts)) == (True, 3)
    assert joins.finish(again, [], broker.sender)
    joins.drop(["b"])
    assert place.left() == 0


def test_dropped_join_is_deleted(place: JoinPlace, joins: Joins, broker: Broker) -> None:
    joins.open([Join(name, 70, BODY) for name in "abc"])
    joins.add([*parts("a", range(70)), *parts("b", range(3))])
    (join,) = joins.claim(10, SECONDS)
    joins.drop(["a", "b", "unknown"])
    assert not joins.finish(join, [message("body", QUEUE)], broker.sender)
    assert (joins.count(), sent(broker)) == (1, 0)
    joins.drop(["c"])
    assert place.left() == 0


# -- many at once --


def test_parts_recorded_by_many_threads(place: JoinPlace, broker: Broker) -> None:
    backend = place.backend()
    ids = [f"j{number}" for number in range(12)]
    backend.joins.open([Join(name, 40, BODY) for name in ids])
    done: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        mine = [part for name in ids for part in parts(name, range(40)) if (part.number + seed) % 4 < 2]
        chance.shuffle(mine)
        own = place.backend() if seed % 2 and not place.one_process else backend
        try:
            while mine:
                some, mine = mine[: (count := chance.randrange(1, 25))], mine[count:]
                own.joins.add(some)
                done.extend(join.id for join in drain(own.joins, broker))
        finally:
            if own is not backend:
                own.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    done.extend(join.id for join in drain(backend.joins, broker))
    assert sorted(done) == sorted(ids)
    assert (sent(broker), place.left()) == (len(ids), 0)
    backend.close()


ADDING = """
import random
chance = random.Random(int(arguments[0]))
mine = [part for number in range(8) for part in parts(f"j{number}", range(30))]
chance.shuffle(mine)
while mine:
    some, mine = mine[: (count := chance.randrange(1, 12))], mine[count:]
    joins.add(some)
    for join in drain(joins, broker):
        print(join.id, flush=True)
"""


def test_parts_recorded_by_many_processes(
    place: JoinPlace, kind: str, tmp_path: Path, broker: Broker
) -> None:
    joins = place.backend().joins
    joins.open([Join(f"j{number}", 30, BODY) for number in range(8)])
    others = [start_process(kind, tmp_path, ADDING, str(seed)) for seed in range(3)]
    done = Counter(name for other in others for name in other.communicate(timeout=PATIENCE * 3)[0].split())
    done.update(join.id for join in drain(joins, broker))
    assert [other.returncode for other in others] == [0, 0, 0]
    assert done == {f"j{number}": 1 for number in range(8)}
    assert (sent(broker), place.left()) == (8, 0)


# -- interrupts --


@pytest.mark.parametrize("name", ["open", "add", "claim", "finish", "drop"])
def test_operations_interrupted_at_any_point_can_be_repeated(
    place: JoinPlace, joins: Joins, clock: FakeClock, broker: Broker, name: str
) -> None:
    """An interrupted operation leaves no lock behind, and another thread can repeat it."""
    numbers = itertools.count()

    def prepared() -> tuple[str, Callable[[], object]]:
        join = f"{name} {next(numbers)}"
        opening = partial(joins.open, [Join(join, 2, BODY)])
        adding = partial(joins.add, parts(join, [0, 1]))
        claiming = partial(joins.claim, 5, SECONDS)
        if name == "open":
            return join, opening
        opening()
        if name == "add":
            return join, adding
        adding()
        if name == "claim":
            return join, claiming
        if name == "drop":
            return join, partial(joins.drop, [join])
        (claimed,) = claiming()
        return join, partial(joins.finish, claimed, [message(join, QUEUE)], broker.sender)

    def continue_after(join: str) -> None:
        if name == "open":
            joins.open([Join(join, 2, BODY)])
        if name == "drop":
            joins.drop([join])
        if name in ("open", "add"):
            joins.add(parts(join, [0, 1]))
        clock.advance(2 * SECONDS + 1)
        while not drain(joins, broker) and name != "open" and joins.count():
            clock.advance(SECONDS + 1)  # the interrupted operation may continue, and claim it

    with ThreadPoolExecutor(1) as other:
        join, work = prepared()
        points = cut_points(work)
        every: list[str] = []
        other.submit(continue_after, join).result(PATIENCE)
        for at in points:
            broker.admin.purge(QUEUE)
            join, work = prepared()
            cut = Cut(work, at)
            other.submit(continue_after, join).result(PATIENCE)
            once = {0} if name == "drop" else {1, 2} if name == "finish" and not place.settles else {1}
            assert sent(broker) in once, cut.where
            if name == "open":  # it may continue, and open the join once more
                every.append(join)
                joins.drop(every)
            else:
                assert (joins.count(), place.left()) == (0, 0), cut.where
    joins.drop(every)
    assert (joins.count(), place.left()) == (0, 0)


# -- kill -9 --

WORKING = """
joins.open([Join("a", 40, b"body"), Join("b", 2, b"body")])
print("opened", flush=True)
joins.add([*parts("a", range(39)), *parts("b", [0])])
joins.add([*parts("a", [38, 39]), *parts("b", [0, 1])])
drain(joins, broker)
"""


def test_crash_while_recording_or_finishing(
    place: JoinPlace, kind: str, tmp_path: Path, broker: Broker, point: str
) -> None:
    """Interrupted steps are repeated, like a redelivered message."""
    hit = tmp_path / "hit"
    other = start_process(kind, tmp_path, WORKING, crash_at=f"{point}@{hit}")
    output, _ = other.communicate(timeout=PATIENCE)
    assert output == "opened\n"
    assert other.returncode == -signal.SIGKILL
    clock = FakeClock(now=4e9)
    backend = place.backend(clock)
    joins = backend.joins
    backend.sweep(clock.now())
    known = joins.count()
    if point in ("recording-parts", "parts-recorded"):
        assert known == 2
    joins.add([*parts("a", range(40)), *parts("b", range(2))])
    found = drain(joins, broker)
    assert all(list(join.parts) == parts(join.id, range(40 if join.id == "a" else 2)) for join in found)
    broker.consumer.register("w1", [QUEUE], 1)
    bodies = Counter(names(broker.consumer.lease([QUEUE], 100).messages))
    assert sum(bodies.values()) - len(bodies) <= (point == "body-sent")
    assert set(bodies) == {"a", "b"}
    assert (joins.count(), place.left()) == (0, 0)
    backend.close()
