"""Joins on Redis: chords in Celery's layout, expiring keys, damaged keys.

The suite for all stores is in test_joins.py; tests with Celery itself are in ``tests/compat``."""

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
from tests.contract.join_places import RedisAlonePlace, RedisJoinPlace, start_process
from tests.contract.join_steps import QUEUE, SECONDS, parts, sent
from tests.support.messages import message, names
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.contract

BODY = b'{"task": "body", "args": []}'
WHICH = (".j", ".t", ".s", ".d", ".c")


class Env:
    """A result store, its joins, and Celery's keys."""

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

    def existing(self) -> set[str]:
        """Return the suffixes of Celery's keys that exist."""
        return {which for which in WHICH if self.client.exists(self.key(which))}

    def finish(self, join: Finished) -> bool:
        return self.joins.finish(join, [message("body", QUEUE)], self.broker.sender)

    def close(self) -> None:
        self.backend.close()
        self.broker.close()
        self.place.clear()


@pytest.fixture(params=[RedisJoinPlace, RedisAlonePlace], ids=["redis", "redis-alone"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    env = Env(request.param(tmp_path))
    yield env
    env.close()


# -- damaged records --


def test_join_with_undecodable_name_is_dropped(env: Env) -> None:
    name = b"\xff"
    env.client.hset(f"{env.prefix}qworker.join.".encode() + name, mapping={"size": 0, "body": "x"})
    env.client.zadd(f"{env.prefix}qworker.joins", {name: 0})
    env.joins.open([Join("a", 0, BODY)])
    assert [join.id for join in env.joins.claim(10, SECONDS)] == ["a"]
    assert env.joins.count() == 1


@pytest.mark.parametrize(
    ("number", "value"), [("x", b"SUCCESS\nt1"), ("", b"SUCCESS\nt1"), ("1", b"\xff"), ("1.5", b"SUCCESS")]
)
def test_damaged_part_counts_as_missing(env: Env, number: str, value: bytes) -> None:
    env.joins.open([Join("a", 2, BODY)])
    env.client.hset(f"{env.prefix}qworker.part.a", number, value)
    env.joins.add([Part("a", 0, "t0", "SUCCESS")])
    (join,) = env.joins.claim(10, SECONDS)
    assert join.overdue
    assert [part.task_id for part in join.parts] == ["t0"]


def test_undecodable_run_is_replaced(env: Env) -> None:
    env.joins.set_size("g", 1)
    env.client.hset(f"{env.prefix}qworker.join.g", "run", b"\xff")
    env.joins.add([env.part(0)])
    (join,) = env.joins.claim(10, SECONDS)
    assert join.run == "\ufffd"


# -- chords --


def test_size_expires_later_with_delayed_members(env: Env) -> None:
    env.joins.set_size("g", 3)
    env.joins.set_size("h", 3, delay=5000.5)
    more = env.client.ttl(env.key(".s", "h")) - env.client.ttl(env.key(".s"))
    assert 4990 < more <= 5001


def test_parts_expire_as_late_as_the_size(env: Env) -> None:
    env.joins.set_size("g", 3, delay=5000.5)
    env.joins.add([env.part(0)])
    env.joins.grow("g", "added")
    env.joins.add([env.part(1)])
    keys = [*(env.key(each) for each in (".j", ".t", ".s", ".d")), f"{env.prefix}qworker.added.g"]
    assert [key for key in keys if env.client.ttl(key) <= 86400 + 4990] == []


def test_chord_completed_by_qworker_is_finished_by_qworker(env: Env) -> None:
    env.joins.set_size("g", 3)
    env.joins.add([env.part(2, result=[2]), env.part(0, result={"x": 0}), env.part(0, result={"x": 0})])
    assert env.joins.claim(10, SECONDS) == []
    assert env.joins.count() == 0
    env.joins.add([env.part(1, "FAILURE", {"exc_type": "KeyError"}), env.part(1)])
    (join,) = env.joins.claim(10, SECONDS)
    assert (join.id, join.body, join.overdue) == ("g", BODY, False)
    assert [part[:4] for part in join.parts] == [
        ("g", 0, "t0", "SUCCESS"),
        ("g", 1, "t1", "FAILURE"),
        ("g", 2, "t2", "SUCCESS"),
    ]
    assert [read_part(env.backend, "g", part.value)[2] for part in join.parts] == [
        {"x": 0},
        {"exc_type": "KeyError"},
        [2],
    ]
    assert env.joins.claim(10, SECONDS) == []
    assert env.finish(join)
    assert not env.finish(join)
    assert (sent(env.broker), env.joins.count(), env.existing()) == (1, 0, {".c"})
    assert env.client.get(env.key(".c")) == b"done"
    assert 0 < env.client.ttl(env.key(".c")) <= 86400
    env.joins.add([env.part(number) for number in range(3)])
    assert (env.existing(), env.place.left(), env.joins.claim(10, SECONDS)) == ({".c"}, 0, [])


def test_chord_keys_expire(env: Env) -> None:
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0)])
    assert env.joins.grow("g", "t2") == 2
    env.joins.add([env.part(1), env.part(2)])
    assert env.existing() == set(WHICH)
    keys = [env.key(which) for which in WHICH]
    keys += [f"{env.prefix}qworker.join.g", f"{env.prefix}qworker.added.g"]
    assert all(0 < env.client.ttl(key) <= 86400 for key in keys)
    env.joins.drop(["g"])
    assert (env.existing(), env.place.left()) == (set(), 0)


def test_grown_chord_waits_for_added_members(env: Env) -> None:
    assert env.joins.grow("g", "t2") is None
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0)])
    for _ in range(2):  # like a redelivered task
        assert [env.joins.grow("g", f"t{number}") for number in (2, 3, 4)] == [2, 3, 4]
    env.joins.add([env.part(number) for number in range(1, 4)])
    assert env.joins.claim(10, SECONDS) == []
    env.joins.add([env.part(4)])
    assert env.joins.grow("g", "t5") is None
    assert len(env.joins.claim(10, SECONDS)) == 1


def test_parts_may_arrive_before_the_size(env: Env) -> None:
    env.joins.add([env.part(0), env.part(1)])
    assert env.joins.claim(10, SECONDS) == []
    env.joins.set_size("g", 3)
    env.joins.add([env.part(2)])
    assert len(env.joins.claim(10, SECONDS)) == 1


@pytest.mark.parametrize("when", ["open", "complete", "claimed", "finished"])
def test_setting_the_size_again_changes_nothing(env: Env, when: str) -> None:
    """Like a redelivered task of a chain, which starts its chord again."""
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0)])
    if when != "open":
        env.joins.add([env.part(1)])
    found = env.joins.claim(10, SECONDS) if when in ("claimed", "finished") else []
    if when == "finished":
        assert env.finish(found.pop())
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0), env.part(1)])
    found += env.joins.claim(10, SECONDS)
    assert [env.finish(join) for join in found] == ([] if when == "finished" else [True])
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0), env.part(1)])
    assert (env.joins.claim(10, SECONDS), sent(env.broker)) == ([], 1)


def test_members_without_a_number_come_last(env: Env) -> None:
    env.joins.set_size("g", 2)
    env.joins.add([env.part(-1), env.part(0)])
    (join,) = env.joins.claim(10, SECONDS)
    assert [(part.number, part.task_id) for part in join.parts] == [(0, "t0"), (1, "t-1")]


def test_expired_claim_on_a_chord_is_taken_over(env: Env) -> None:
    env.joins.set_size("g", 1)
    env.joins.add([env.part(0)])
    (early,) = env.joins.claim(10, SECONDS)
    env.clock.advance(SECONDS + 1)
    (late,) = env.joins.claim(10, SECONDS)
    assert (early.parts, early.token != late.token) == (late.parts, True)
    assert not env.finish(early)
    assert env.finish(late)
    assert sent(env.broker) == 1


@pytest.mark.parametrize("lapsed", ["expired", "done", "cleaned up"])
def test_chord_taken_over_by_celery_cannot_be_finished(env: Env, lapsed: str) -> None:
    env.joins.set_size("g", 1)
    env.joins.add([env.part(0)])
    (join,) = env.joins.claim(10, SECONDS)
    if lapsed == "expired":
        env.client.set(env.key(".c"), "another", ex=5)
    else:
        env.client.delete(*(env.key(which) for which in WHICH))
        if lapsed == "done":
            env.client.set(env.key(".c"), "done", ex=300)
    env.clock.advance(SECONDS + 1)
    assert env.joins.claim(10, SECONDS) == []
    assert not env.finish(join)
    assert sent(env.broker) == 0
    assert env.joins.count() == (lapsed == "expired")
    if lapsed == "expired":  # and the new holder died
        env.client.delete(env.key(".c"))
        env.clock.advance(6)
        (again,) = env.joins.claim(10, SECONDS)
        assert env.finish(again)
        assert sent(env.broker) == 1


def test_lapsed_claim_without_a_new_holder_is_valid(env: Env) -> None:
    env.joins.set_size("g", 1)
    env.joins.add([env.part(0)])
    (join,) = env.joins.claim(10, SECONDS)
    env.client.delete(env.key(".c"))
    assert env.finish(join)
    assert sent(env.broker) == 1


def test_unordered_chord_members_are_stored_in_a_list(env: Env) -> None:
    place = env.place
    options = {"global_keyprefix": env.prefix, "result_chord_ordered": False}
    backend = place.open(place.redis.url, env.clock, result_backend_transport_options=options)
    assert isinstance(backend, RedisBackend)
    backend.joins.set_size("g", 2)
    backend.joins.add([env.part(1), env.part(0)])
    assert env.client.type(env.key(".j")) == b"list"
    (join,) = backend.joins.claim(10, SECONDS)
    assert [part.task_id for part in join.parts] == ["t1", "t0"]
    assert env.finish(join)
    backend.close()


def test_ack_records_the_part_of_a_chord(tmp_path: Path) -> None:
    env = Env(RedisJoinPlace(tmp_path))
    env.joins.set_size("g", 1)
    generation = env.broker.consumer.register("w1@test", ["q"], 1)
    env.broker.sender.push([message("a"), message("b")])
    one, two = env.broker.consumer.lease(["q"], 2).messages
    consumer = env.broker.consumer
    assert consumer.settle(generation, [Ack(one.tag + 1000, None, (env.part(0),))]) == {one.tag + 1000}
    assert env.joins.claim(10, SECONDS) == []
    acks = [Ack(one.tag, None, (env.part(0), *parts("unknown", [0]))), Ack(two.tag, None, (env.part(0),))]
    assert consumer.settle(generation, acks) == set()
    (join,) = env.joins.claim(10, SECONDS)
    assert [part.task_id for part in join.parts] == ["t0"]
    env.close()


# -- damaged chords and joins --


def damage(env: Env, key: str, kind: str) -> None:
    env.client.delete(key)
    if kind == "list":
        env.client.rpush(key, "x")
    elif kind == "hash":
        env.client.hset(key, "x", "y")
    else:
        env.client.set(key, kind)


@pytest.mark.parametrize("kind", ["list", "hash"])
@pytest.mark.parametrize("which", WHICH)
def test_chord_with_a_key_of_a_wrong_type_is_overdue(env: Env, which: str, kind: str) -> None:
    env.joins.set_size("g", 2)
    damage(env, env.key(which), kind)
    env.joins.add([env.part(0), env.part(1)])
    (join,) = env.joins.claim(10, SECONDS)
    assert (join.id, join.body, join.overdue) == ("g", BODY, True)
    assert env.joins.claim(10, SECONDS) == []
    assert env.finish(join)
    assert (env.existing(), sent(env.broker), env.place.left()) == ({".c"}, 1, 0)


@pytest.mark.parametrize("size", ["abc", "", "-1", "nan", "1e999", "99999999999999999999"])
def test_chord_of_an_invalid_size_is_overdue(env: Env, size: str) -> None:
    env.client.set(env.key(".s"), size)
    env.joins.add([env.part(0)])
    (join,) = env.joins.claim(10, SECONDS)
    assert join.overdue
    assert env.finish(join)
    env.joins.add([env.part(1)])
    assert env.joins.claim(10, SECONDS) == []


@pytest.mark.parametrize("value", [b"", b"\xff", b"{}", b"[1,2,3]", b'[1,2,"SUCCESS",3]', b"[" * 100_000])
def test_undecodable_member_counts_as_failed(env: Env, value: bytes) -> None:
    env.joins.set_size("g", 2)
    env.joins.add([env.part(0), Part("g", 1, "t1", "SUCCESS", value, b"\xffno JSON")])
    (join,) = env.joins.claim(10, SECONDS)
    assert join.body == b"\xffno JSON"
    assert ("g", 1, "", "FAILURE") in [part[:4] for part in join.parts]
    with pytest.raises(DamagedResult, match="stored result"):
        read_part(env.backend, "g", value)
    assert env.finish(join)


def test_opening_a_join_with_a_key_of_a_wrong_type_is_refused(env: Env) -> None:
    damage(env, f"{env.prefix}qworker.join.a", "text")
    with pytest.raises(BackendError, match=r"qworker\.join\.a does not contain a join: delete it"):
        env.joins.open([Join("b", 1, b""), Join("a", 1, b"")])
    assert env.joins.count() == 0
    env.joins.add(parts("a", [0]))
    assert env.joins.grow("a", "t") is None
    env.joins.drop(["a"])
    assert env.place.left() == 0


def test_index_of_a_wrong_type_is_reported(env: Env) -> None:
    env.joins.open([Join("a", 1, b"")])
    damage(env, f"{env.prefix}qworker.joins", "text")
    with pytest.raises(BackendError, match=r"qworker\.joins does not contain a join: delete it"):
        env.joins.open([Join("b", 1, b"")])
    with pytest.raises(BackendError, match=r"qworker\.joins does not contain a join: delete it"):
        env.joins.claim(10, SECONDS)
    env.joins.add(parts("a", [0]))
    env.client.delete(f"{env.prefix}qworker.joins")


def test_parts_of_a_wrong_type_are_lost(env: Env) -> None:
    env.joins.open([Join("a", 1, b"", env.clock.now() + 10)])
    damage(env, f"{env.prefix}qworker.part.a", "text")
    env.joins.add(parts("a", [0]))
    assert env.joins.claim(10, SECONDS) == []
    env.clock.advance(11)
    (join,) = env.joins.claim(10, SECONDS)
    assert (join.overdue, list(join.parts)) == (True, [])
    assert env.finish(join)
    assert env.client.keys(f"{env.prefix}qworker.part*") == []


@pytest.mark.parametrize("chord", [False, True])
def test_join_cannot_be_finished_after_data_loss(env: Env, chord: bool) -> None:
    if chord:
        env.joins.set_size("g", 1)
        env.joins.add([env.part(0)])
    else:
        env.joins.open([Join("g", 1, b"")])
        env.joins.add(parts("g", [0]))
    (join,) = env.joins.claim(10, SECONDS)
    env.place.redis.lose()
    assert not env.finish(join)
    env.joins.add(parts("g", [0]))
    assert (sent(env.broker), env.joins.count(), env.joins.claim(10, SECONDS)) == (0, 0, [])
    assert env.place.left() == 0


def test_expired_join_is_removed_from_the_index(env: Env) -> None:
    """The key of a join expires some time after its deadline."""
    env.joins.open([Join("a", 1, b"", env.clock.now() + 10)])
    ttl = env.client.ttl(f"{env.prefix}qworker.join.a")
    assert 86400 < ttl <= 86410
    env.joins.open([Join("b", 2, b"", env.clock.now() + 10)])
    env.joins.add(parts("b", [0]))
    assert 86400 < env.client.ttl(f"{env.prefix}qworker.part.b") <= 86410
    env.client.delete(f"{env.prefix}qworker.join.a")
    env.clock.advance(11)
    assert [join.id for join in env.joins.claim(10, SECONDS)] == ["b"]
    assert env.joins.count() == 1


def test_body_of_many_messages_is_published_completely(env: Env) -> None:
    """More messages than one command of a script accepts."""
    env.joins.open([Join("a", 0, b"")])
    (join,) = env.joins.claim(10, SECONDS)
    later = env.clock.now() + 4e9
    many = [message(str(number), QUEUE) for number in range(9000)]
    many += [message(f"later {number}", QUEUE, due=later) for number in range(9000)]
    assert env.joins.finish(join, many, env.broker.sender)
    info = env.broker.admin.depths([QUEUE])[0]
    assert (info.ready, info.delayed) == (9000, 9000)
    env.broker.consumer.register("w1@test", [QUEUE], 1)
    assert names(env.broker.consumer.lease([QUEUE], 2).messages) == ["0", "1"]


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
def test_chord_after_a_crash_of_its_worker(kind: str, point: str, tmp_path: Path) -> None:
    place = {"redis": RedisJoinPlace, "redis-alone": RedisAlonePlace}[kind](tmp_path)
    env = Env(place)
    hit = tmp_path / "hit"
    other = start_process(kind, tmp_path, WORKING, crash_at=f"{point}@{hit}")
    output, _ = other.communicate(timeout=PATIENCE)
    assert output == ("" if "parts" in point else "counted\n")
    assert hit.exists() == (other.returncode == -signal.SIGKILL) == (point in place.points)
    env.joins.add([env.part(number, result=number) for number in range(3)])
    env.clock.advance(4e9)
    for join in (found := env.joins.claim(10, SECONDS)):
        assert [read_part(env.backend, "g", part.value) for part in join.parts] == [
            (f"t{number}", "SUCCESS", number) for number in range(3)
        ]
        assert env.finish(join)
    after = point in ("body-sent", "join-finished") or not hit.exists()
    assert len(found) == (not after or (point == "body-sent" and hit.exists()))
    assert sent(env.broker) == 1 + (point == "body-sent" and hit.exists())
    assert (env.existing(), env.place.left()) == ({".c"}, 0)
    env.close()
