"""What only joins on Redis do: chords in Celery's layout, keys that expire or are not what they should be.
What all stores do is in test_joins.py; what is held beside Celery itself is in ``tests/compat``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.backends.joins import Finished, Join
from qworker.backends.redis.backend import RedisBackend
from qworker.backends.redis.joins import RedisJoins, part_value, read_part
from qworker.errors import BackendError, DamagedResult
from qworker.testing.clock import FakeClock
from qworker.transports.lease import Ack, Broker, Part
from tests.contract.join_places import RedisAlonePlace, RedisJoinPlace, run_beside
from tests.contract.join_steps import QUEUE, SECONDS, parts, sent
from tests.support.messages import message, names
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.contract

BODY = b'{"task": "body", "args": []}'
WHICH = (".j", ".t", ".s", ".d", ".c")


class Room:
    """A result store, its joins, and Celery's keys beside them."""

    def __init__(self, place: RedisJoinPlace) -> None:
        self.place = place
        self.clock = FakeClock()
        backend = place.backend(self.clock)
        assert isinstance(backend, RedisBackend)
        self.backend = backend
        self.joins: RedisJoins = backend.joins
        self.broker: Broker = place.broker()
        self.client = place.redis.client
        self.prefix = place.redis.prefix

    def key(self, which: str, group: str = "g") -> str:
        return f"{self.prefix}celery-taskset-meta-{group}{which}"

    def part(self, number: int, status: str = "SUCCESS", result: object = None) -> Part:
        task_id = f"t{number}"
        value = part_value(self.backend, "g", task_id, status, result)
        return Part("g", number, task_id, status, value, BODY)

    def there(self) -> set[str]:
        """Which of Celery's keys there are."""
        return {which for which in WHICH if self.client.exists(self.key(which))}

    def finish(self, join: Finished) -> bool:
        return self.joins.finish(join, [message("body", QUEUE)], self.broker.sender)

    def close(self) -> None:
        self.backend.close()
        self.broker.close()
        self.place.clear()


@pytest.fixture(params=[RedisJoinPlace, RedisAlonePlace], ids=["redis", "redis-alone"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    room = Room(request.param(tmp_path))
    yield room
    room.close()


# -- records that a stranger has written --


def test_a_join_whose_name_is_no_text_is_dropped(room: Room) -> None:
    name = b"\xff"
    room.client.hset(f"{room.prefix}qworker.join.".encode() + name, mapping={"size": 0, "body": "x"})
    room.client.zadd(f"{room.prefix}qworker.joins", {name: 0})
    room.joins.open([Join("a", 0, BODY)])
    assert [join.id for join in room.joins.claim(10, SECONDS)] == ["a"]
    assert room.joins.count() == 1


@pytest.mark.parametrize(
    ("number", "value"), [("x", b"SUCCESS\nt1"), ("", b"SUCCESS\nt1"), ("1", b"\xff"), ("1.5", b"SUCCESS")]
)
def test_a_damaged_part_is_missing(room: Room, number: str, value: bytes) -> None:
    room.joins.open([Join("a", 2, BODY)])
    room.client.hset(f"{room.prefix}qworker.part.a", number, value)
    room.joins.add([Part("a", 0, "t0", "SUCCESS")])
    (join,) = room.joins.claim(10, SECONDS)
    assert join.overdue
    assert [part.task_id for part in join.parts] == ["t0"]


def test_a_run_that_is_no_text_stops_nothing(room: Room) -> None:
    room.joins.set_size("g", 1)
    room.client.hset(f"{room.prefix}qworker.join.g", "run", b"\xff")
    room.joins.add([room.part(0)])
    (join,) = room.joins.claim(10, SECONDS)
    assert join.run == "\ufffd"


# -- chords --


def test_the_size_is_kept_until_the_last_member_is_due_and_longer(room: Room) -> None:
    room.joins.set_size("g", 3)
    room.joins.set_size("h", 3, delay=5000.5)
    more = room.client.ttl(room.key(".s", "h")) - room.client.ttl(room.key(".s"))
    assert 4990 < more <= 5001


def test_what_is_counted_is_kept_as_long_as_the_size(room: Room) -> None:
    room.joins.set_size("g", 3, delay=5000.5)
    room.joins.add([room.part(0)])
    room.joins.grow("g", "added")
    room.joins.add([room.part(1)])
    keys = [*(room.key(each) for each in (".j", ".t", ".s", ".d")), f"{room.prefix}qworker.added.g"]
    assert [key for key in keys if room.client.ttl(key) <= 86400 + 4990] == []


def test_a_chord_that_our_part_completes_is_ours(room: Room) -> None:
    room.joins.set_size("g", 3)
    room.joins.add([room.part(2, result=[2]), room.part(0, result={"x": 0}), room.part(0, result={"x": 0})])
    assert room.joins.claim(10, SECONDS) == []
    assert room.joins.count() == 0
    room.joins.add([room.part(1, "FAILURE", {"exc_type": "KeyError"}), room.part(1)])
    (join,) = room.joins.claim(10, SECONDS)
    assert (join.id, join.body, join.overdue) == ("g", BODY, False)
    assert [part[:4] for part in join.parts] == [
        ("g", 0, "t0", "SUCCESS"),
        ("g", 1, "t1", "FAILURE"),
        ("g", 2, "t2", "SUCCESS"),
    ]
    assert [read_part(room.backend, "g", part.value)[2] for part in join.parts] == [
        {"x": 0},
        {"exc_type": "KeyError"},
        [2],
    ]
    assert room.joins.claim(10, SECONDS) == []
    assert room.finish(join)
    assert not room.finish(join)
    assert (sent(room.broker), room.joins.count(), room.there()) == (1, 0, {".c"})
    assert room.client.get(room.key(".c")) == b"done"
    assert 0 < room.client.ttl(room.key(".c")) <= 86400
    room.joins.add([room.part(number) for number in range(3)])
    assert (room.there(), room.place.left(), room.joins.claim(10, SECONDS)) == ({".c"}, 0, [])


def test_all_keys_of_a_chord_expire(room: Room) -> None:
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0)])
    assert room.joins.grow("g", "t2") == 2
    room.joins.add([room.part(1), room.part(2)])
    assert room.there() == set(WHICH)
    keys = [room.key(which) for which in WHICH]
    keys += [f"{room.prefix}qworker.join.g", f"{room.prefix}qworker.added.g"]
    assert all(0 < room.client.ttl(key) <= 86400 for key in keys)
    room.joins.drop(["g"])
    assert (room.there(), room.place.left()) == (set(), 0)


def test_a_chord_that_grows_waits_for_more(room: Room) -> None:
    assert room.joins.grow("g", "t2") is None
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0)])
    for _ in range(2):  # as by a task that is delivered again
        assert [room.joins.grow("g", f"t{number}") for number in (2, 3, 4)] == [2, 3, 4]
    room.joins.add([room.part(number) for number in range(1, 4)])
    assert room.joins.claim(10, SECONDS) == []
    room.joins.add([room.part(4)])
    assert room.joins.grow("g", "t5") is None
    assert len(room.joins.claim(10, SECONDS)) == 1


def test_parts_may_come_before_the_size_does(room: Room) -> None:
    room.joins.add([room.part(0), room.part(1)])
    assert room.joins.claim(10, SECONDS) == []
    room.joins.set_size("g", 3)
    room.joins.add([room.part(2)])
    assert len(room.joins.claim(10, SECONDS)) == 1


@pytest.mark.parametrize("when", ["open", "complete", "claimed", "finished"])
def test_a_size_that_is_told_again_changes_nothing(room: Room, when: str) -> None:
    """As by a member of a chain that comes again, and begins its chord again."""
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0)])
    if when != "open":
        room.joins.add([room.part(1)])
    found = room.joins.claim(10, SECONDS) if when in ("claimed", "finished") else []
    if when == "finished":
        assert room.finish(found.pop())
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0), room.part(1)])
    found += room.joins.claim(10, SECONDS)
    assert [room.finish(join) for join in found] == ([] if when == "finished" else [True])
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0), room.part(1)])
    assert (room.joins.claim(10, SECONDS), sent(room.broker)) == ([], 1)


def test_members_without_a_number_come_last(room: Room) -> None:
    room.joins.set_size("g", 2)
    room.joins.add([room.part(-1), room.part(0)])
    (join,) = room.joins.claim(10, SECONDS)
    assert [(part.number, part.task_id) for part in join.parts] == [(0, "t0"), (1, "t-1")]


def test_a_claim_on_a_chord_is_taken_over(room: Room) -> None:
    room.joins.set_size("g", 1)
    room.joins.add([room.part(0)])
    (early,) = room.joins.claim(10, SECONDS)
    room.clock.advance(SECONDS + 1)
    (late,) = room.joins.claim(10, SECONDS)
    assert (early.parts, early.token != late.token) == (late.parts, True)
    assert not room.finish(early)
    assert room.finish(late)
    assert sent(room.broker) == 1


@pytest.mark.parametrize("lapsed", ["expired", "done", "cleaned up"])
def test_a_chord_that_celery_took_over_is_celerys(room: Room, lapsed: str) -> None:
    room.joins.set_size("g", 1)
    room.joins.add([room.part(0)])
    (join,) = room.joins.claim(10, SECONDS)
    if lapsed == "expired":
        room.client.set(room.key(".c"), "another", ex=5)
    else:
        room.client.delete(*(room.key(which) for which in WHICH))
        if lapsed == "done":
            room.client.set(room.key(".c"), "done", ex=300)
    room.clock.advance(SECONDS + 1)
    assert room.joins.claim(10, SECONDS) == []
    assert not room.finish(join)
    assert sent(room.broker) == 0
    assert room.joins.count() == (lapsed == "expired")
    if lapsed == "expired":  # and whoever took it over died
        room.client.delete(room.key(".c"))
        room.clock.advance(6)
        (again,) = room.joins.claim(10, SECONDS)
        assert room.finish(again)
        assert sent(room.broker) == 1


def test_a_claim_that_lapsed_and_that_nobody_took_still_holds(room: Room) -> None:
    room.joins.set_size("g", 1)
    room.joins.add([room.part(0)])
    (join,) = room.joins.claim(10, SECONDS)
    room.client.delete(room.key(".c"))
    assert room.finish(join)
    assert sent(room.broker) == 1


def test_members_in_a_list(room: Room) -> None:
    place = room.place
    options = {"global_keyprefix": room.prefix, "result_chord_ordered": False}
    backend = place.open(place.redis.url, room.clock, result_backend_transport_options=options)
    assert isinstance(backend, RedisBackend)
    backend.joins.set_size("g", 2)
    backend.joins.add([room.part(1), room.part(0)])
    assert room.client.type(room.key(".j")) == b"list"
    (join,) = backend.joins.claim(10, SECONDS)
    assert [part.task_id for part in join.parts] == ["t1", "t0"]
    assert room.finish(join)
    backend.close()


def test_an_ack_records_the_part_of_a_chord(tmp_path: Path) -> None:
    room = Room(RedisJoinPlace(tmp_path))
    room.joins.set_size("g", 1)
    generation = room.broker.consumer.register("w1@test", ["q"], 1)
    room.broker.sender.push([message("a"), message("b")])
    one, two = room.broker.consumer.lease(["q"], 2).messages
    consumer = room.broker.consumer
    assert consumer.settle(generation, [Ack(one.tag + 1000, None, (room.part(0),))]) == {one.tag + 1000}
    assert room.joins.claim(10, SECONDS) == []
    acks = [Ack(one.tag, None, (room.part(0), *parts("unknown", [0]))), Ack(two.tag, None, (room.part(0),))]
    assert consumer.settle(generation, acks) == set()
    (join,) = room.joins.claim(10, SECONDS)
    assert [part.task_id for part in join.parts] == ["t0"]
    room.close()


# -- what should not be --


def spoil(room: Room, key: str, kind: str) -> None:
    room.client.delete(key)
    if kind == "list":
        room.client.rpush(key, "x")
    elif kind == "hash":
        room.client.hset(key, "x", "y")
    else:
        room.client.set(key, kind)


@pytest.mark.parametrize("kind", ["list", "hash"])
@pytest.mark.parametrize("which", WHICH)
def test_a_chord_with_a_key_of_a_wrong_type_is_given_up(room: Room, which: str, kind: str) -> None:
    room.joins.set_size("g", 2)
    spoil(room, room.key(which), kind)
    room.joins.add([room.part(0), room.part(1)])
    (join,) = room.joins.claim(10, SECONDS)
    assert (join.id, join.body, join.overdue) == ("g", BODY, True)
    assert room.joins.claim(10, SECONDS) == []
    assert room.finish(join)
    assert (room.there(), sent(room.broker), room.place.left()) == ({".c"}, 1, 0)


@pytest.mark.parametrize("size", ["abc", "", "-1", "nan", "1e999", "99999999999999999999"])
def test_a_chord_of_an_absurd_size_is_given_up(room: Room, size: str) -> None:
    room.client.set(room.key(".s"), size)
    room.joins.add([room.part(0)])
    (join,) = room.joins.claim(10, SECONDS)
    assert join.overdue
    assert room.finish(join)
    room.joins.add([room.part(1)])
    assert room.joins.claim(10, SECONDS) == []


@pytest.mark.parametrize("value", [b"", b"\xff", b"{}", b"[1,2,3]", b'[1,2,"SUCCESS",3]', b"[" * 100_000])
def test_a_member_that_cannot_be_read_has_failed(room: Room, value: bytes) -> None:
    room.joins.set_size("g", 2)
    room.joins.add([room.part(0), Part("g", 1, "t1", "SUCCESS", value, b"\xffno JSON")])
    (join,) = room.joins.claim(10, SECONDS)
    assert join.body == b"\xffno JSON"
    assert ("g", 1, "", "FAILURE") in [part[:4] for part in join.parts]
    with pytest.raises(DamagedResult, match="stored result"):
        read_part(room.backend, "g", value)
    assert room.finish(join)


def test_a_join_whose_key_is_another_thing_is_refused(room: Room) -> None:
    spoil(room, f"{room.prefix}qworker.join.a", "text")
    with pytest.raises(BackendError, match=r"qworker\.join\.a is not a key of joins: delete it"):
        room.joins.open([Join("b", 1, b""), Join("a", 1, b"")])
    assert room.joins.count() == 0
    room.joins.add(parts("a", [0]))
    assert room.joins.grow("a", "t") is None
    room.joins.drop(["a"])
    assert room.place.left() == 0


def test_an_index_that_is_another_thing_is_told_of(room: Room) -> None:
    room.joins.open([Join("a", 1, b"")])
    spoil(room, f"{room.prefix}qworker.joins", "text")
    with pytest.raises(BackendError, match=r"qworker\.joins is not a key of joins: delete it"):
        room.joins.open([Join("b", 1, b"")])
    with pytest.raises(BackendError, match=r"qworker\.joins is not a key of joins: delete it"):
        room.joins.claim(10, SECONDS)
    room.joins.add(parts("a", [0]))
    room.client.delete(f"{room.prefix}qworker.joins")


def test_parts_that_are_another_thing_are_lost_and_the_join_is_given_up(room: Room) -> None:
    room.joins.open([Join("a", 1, b"", room.clock.now() + 10)])
    spoil(room, f"{room.prefix}qworker.part.a", "text")
    room.joins.add(parts("a", [0]))
    assert room.joins.claim(10, SECONDS) == []
    room.clock.advance(11)
    (join,) = room.joins.claim(10, SECONDS)
    assert (join.overdue, list(join.parts)) == (True, [])
    assert room.finish(join)
    assert room.client.keys(f"{room.prefix}qworker.part*") == []


@pytest.mark.parametrize("chord", [False, True])
def test_a_server_that_lost_all(room: Room, chord: bool) -> None:
    if chord:
        room.joins.set_size("g", 1)
        room.joins.add([room.part(0)])
    else:
        room.joins.open([Join("g", 1, b"")])
        room.joins.add(parts("g", [0]))
    (join,) = room.joins.claim(10, SECONDS)
    room.place.redis.lose()
    assert not room.finish(join)
    room.joins.add(parts("g", [0]))
    assert (sent(room.broker), room.joins.count(), room.joins.claim(10, SECONDS)) == (0, 0, [])
    assert room.place.left() == 0


def test_a_join_that_is_gone_leaves_its_place(room: Room) -> None:
    """As after the time for which a join is kept."""
    room.joins.open([Join("a", 1, b"", room.clock.now() + 10)])
    ttl = room.client.ttl(f"{room.prefix}qworker.join.a")
    assert 86400 < ttl <= 86410
    room.joins.open([Join("b", 2, b"", room.clock.now() + 10)])
    room.joins.add(parts("b", [0]))
    assert 86400 < room.client.ttl(f"{room.prefix}qworker.part.b") <= 86410
    room.client.delete(f"{room.prefix}qworker.join.a")
    room.clock.advance(11)
    assert [join.id for join in room.joins.claim(10, SECONDS)] == ["b"]
    assert room.joins.count() == 1


def test_a_body_of_many_messages_is_published_whole(room: Room) -> None:
    """More than one command of a script takes."""
    room.joins.open([Join("a", 0, b"")])
    (join,) = room.joins.claim(10, SECONDS)
    later = room.clock.now() + 4e9
    many = [message(str(number), QUEUE) for number in range(9000)]
    many += [message(f"later {number}", QUEUE, due=later) for number in range(9000)]
    assert room.joins.finish(join, many, room.broker.sender)
    info = room.broker.admin.depths([QUEUE])[0]
    assert (info.ready, info.delayed) == (9000, 9000)
    room.broker.consumer.register("w1@test", [QUEUE], 1)
    assert names(room.broker.consumer.lease([QUEUE], 2).messages) == ["0", "1"]


# -- kill -9 --

WORKING = """
from qworker.transports.lease import Part
def chord():
    return [Part("g", n, f"t{n}", "SUCCESS", b'[1, "t%d", "SUCCESS", %d]' % (n, n), b"{}") for n in (0, 1, 2)]
joins.set_size("g", 3)
joins.add(chord()[:2])
print("counted", flush=True)
joins.add(chord()[1:])
drain(joins, broker)
"""


@pytest.mark.parametrize(
    "point", ["recording-parts", "parts-recorded", "finishing-join", "body-sent", "join-finished"]
)
@pytest.mark.parametrize("kind", ["redis", "redis-alone"])
def test_a_chord_whose_worker_was_killed_at(kind: str, point: str, tmp_path: Path) -> None:
    place = {"redis": RedisJoinPlace, "redis-alone": RedisAlonePlace}[kind](tmp_path)
    room = Room(place)
    hit = tmp_path / "hit"
    other = run_beside(kind, tmp_path, WORKING, crash_at=f"{point}@{hit}")
    told, _ = other.communicate(timeout=PATIENCE)
    assert told == ("" if "parts" in point else "counted\n")
    assert hit.exists() == (other.returncode == -signal.SIGKILL) == (point in place.points)
    room.joins.add([room.part(number, result=number) for number in range(3)])
    room.clock.advance(4e9)
    for join in (found := room.joins.claim(10, SECONDS)):
        assert [read_part(room.backend, "g", part.value) for part in join.parts] == [
            (f"t{number}", "SUCCESS", number) for number in range(3)
        ]
        assert room.finish(join)
    after = point in ("body-sent", "join-finished") or not hit.exists()
    assert len(found) == (not after or (point == "body-sent" and hit.exists()))
    assert sent(room.broker) == 1 + (point == "body-sent" and hit.exists())
    assert (room.there(), room.place.left()) == ({".c"}, 0)
    room.close()
