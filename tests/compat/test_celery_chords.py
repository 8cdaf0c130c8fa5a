"""Chords whose members are counted by Celery's and our result backend with the same Redis keys: the one
that completes a chord sends its body, once."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

import redis  # noqa: E402
from celery.app.task import Context  # noqa: E402

from qworker.backends.joins import Finished  # noqa: E402
from qworker.backends.redis.backend import RedisBackend  # noqa: E402
from qworker.backends.redis.joins import part_value, read_part  # noqa: E402
from qworker.message.exceptions import exception_to_dict  # noqa: E402
from qworker.transports.lease import Part  # noqa: E402
from tests.servers import require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY, Pair, redis_results  # noqa: E402
from tests.support.messages import message  # noqa: E402

pytestmark = BESIDE_CELERY

SECONDS = 30.0


class Both(Pair):
    """Celery's app and ours, on one Redis database as broker and result store, under one prefix."""

    def __init__(self, more: dict[str, Any] | None = None, **settings: Any) -> None:
        """more: options of the result backend."""
        results = redis_results()
        options = results.pop("result_backend_transport_options")
        super().__init__(
            broker_url=require("redis"),
            broker_transport_options=options,
            result_backend_transport_options={**options, **(more or {})},
            **results,
            **settings,
        )
        self.prefix = options["global_keyprefix"]
        self.client = redis.Redis.from_url(require("redis"))
        backend = self.ours.backend
        assert isinstance(backend, RedisBackend)
        self.backend = backend

        @self.theirs.task(name="add", shared=False)
        def add(x: int, y: int) -> int:
            return x + y

        @self.theirs.task(name="total", shared=False)
        def total(values: list[int]) -> int:
            return sum(values)

        self.add, self.total = add, total

    def messages(self) -> list[dict[str, Any]]:
        """Takes all messages out of the queue, whatever their priority."""
        found = []
        for step in ("", *(f"\x06\x16{step}" for step in (3, 6, 9))):
            while (text := self.client.rpop(f"{self.prefix}celery{step}")) is not None:
                found.append(json.loads(text))
        return found

    def chord(self, size: int) -> list[Context]:
        """The requests of the members of a chord that Celery has published."""
        celery.chord([self.add.s(number, number) for number in range(size)], app=self.theirs)(self.total.s())
        return [self.request(each) for each in self.messages()]

    def request(self, envelope: dict[str, Any]) -> Context:
        args, kwargs, embed = json.loads(base64.b64decode(envelope["body"]))
        return Context({**envelope["headers"], **embed, "args": args, "kwargs": kwargs})

    def by_theirs(self, request: Context, state: str, result: Any) -> None:
        self.theirs.backend.on_chord_part_return(request, state, result)

    def by_ours(self, request: Context, state: str, result: Any) -> None:
        stored = exception_to_dict(result) if isinstance(result, BaseException) else result
        value = part_value(self.backend, request.group, request.id, state, stored)
        body = json.dumps(request.chord).encode()
        part = Part(request.group, request.group_index, request.id, state, value, body)
        self.backend.joins.add([part])

    def finish(self) -> list[Finished]:
        """The joins that our workers would finish; finishes them."""
        found = self.backend.joins.claim(10, SECONDS)
        for join in found:
            assert self.backend.joins.finish(join, [message("total", "celery")], self.ours.broker.sender)
        return found

    def keys(self, group: str, which: str = "jtsdc") -> dict[str, Any]:
        """TYPE, members and seconds to live of each key of the chord."""
        found: dict[str, Any] = {}
        for each in which:
            key = f"{self.prefix}celery-taskset-meta-{group}.{each}"
            kind = self.client.type(key).decode()
            if kind == "zset":
                members: Any = [
                    (json.loads(value), score)
                    for value, score in self.client.zrange(key, 0, -1, withscores=True)
                ]
            elif kind == "list":
                members = [json.loads(value) for value in self.client.lrange(key, 0, -1)]
            elif kind == "set":
                members = sorted(self.client.smembers(key))
            else:
                members = self.client.get(key)
            found[each] = (kind, members, round(self.client.ttl(key), -2))
        return found

    def close(self) -> None:
        super().close()
        self.client.close()


@pytest.fixture
def both() -> Iterator[Both]:
    with closing(Both()) as both:
        yield both


VALUES = [
    ("SUCCESS", 1),
    ("SUCCESS", {"x": [None, 1.5, "é"]}),
    ("FAILURE", KeyError("no", 3)),
    ("REVOKED", celery.exceptions.TaskRevokedError("revoked")),
]


@pytest.mark.parametrize("sorted_", [True, False], ids=["sorted", "listed"])
@pytest.mark.parametrize("expires", [3600, 0])
def test_keys_equal_celerys_until_the_chord_is_complete(sorted_: bool, expires: int) -> None:
    """After each part, and at the end."""
    dumps = []
    for side in ("by_theirs", "by_ours"):
        both = Both(more={"result_chord_ordered": sorted_}, result_expires=expires)
        if side == "by_theirs":
            both.theirs.backend.set_chord_size("g", 5)
            both.theirs.backend.add_to_chord("g", None)
        else:
            both.backend.joins.set_size("g", 5)
            assert both.backend.joins.grow("g", "t") == 5
        body = dict(both.total.s())
        dump = [both.keys("g")]
        for number, (state, result) in [*enumerate(VALUES), (1, VALUES[1])]:
            request = Context({"id": f"t{number}", "group": "g", "group_index": number, "chord": body})
            getattr(both, side)(request, state, result)
            dump.append(both.keys("g"))
        both.close()
        dumps.append(dump)
    assert dumps[1] == dumps[0]


def test_keys_left_after_completion_equal_celerys() -> None:
    dumps = []
    for side in ("by_theirs", "by_ours"):
        both = Both()
        requests = both.chord(3)
        for number, request in enumerate(requests):
            getattr(both, side)(request, "SUCCESS", number)
        assert len(both.finish()) == (side == "by_ours")
        keys = both.keys(requests[0].group)
        *mark, seconds = keys.pop("c")
        assert seconds == (86400 if side == "by_ours" else 300), "ours is for tasks that come again, too"
        dumps.append({**keys, "c": mark})
        assert len(both.messages()) == 1
        left = both.client.keys(f"{both.prefix}*{requests[0].group}*")
        assert len(left) == 1, "the mark that it is done"
        both.close()
    assert dumps[1] == dumps[0]


def test_part_values_are_encoded_and_read_like_celerys(both: Both) -> None:
    for state, result in VALUES:
        stored = exception_to_dict(result) if isinstance(result, BaseException) else result
        ours = part_value(both.backend, "g", "t", state, stored)
        encoded = both.theirs.backend.encode_result(result, state)
        theirs = both.theirs.backend.encode([1, "t", state, encoded]).encode()
        assert both.theirs.backend.decode(ours) == both.theirs.backend.decode(theirs)
        assert read_part(both.backend, "g", theirs) == read_part(both.backend, "g", ours)
        assert read_part(both.backend, "g", ours) == ("t", state, stored)


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_part_values_with_other_serializers(serializer: str, compression: str | None) -> None:
    both = Both(
        result_serializer=serializer,
        result_compression=compression,
        result_accept_content=[serializer],
        accept_content=["json", serializer],
    )
    value = {"x": [1, "é"]}
    ours = part_value(both.backend, "g", "t", "SUCCESS", value)
    theirs = both.theirs.backend.encode([1, "t", "SUCCESS", value])
    theirs = theirs if isinstance(theirs, bytes) else theirs.encode()
    assert list(both.theirs.backend.decode(ours)) == [1, "t", "SUCCESS", value]
    assert read_part(both.backend, "g", theirs) == ("t", "SUCCESS", value)
    both.close()


@pytest.mark.parametrize("seed", range(12))
def test_chord_counted_by_both_is_finished_once(both: Both, seed: int) -> None:
    """In any order, with redelivered members; the backend that gets the last part finishes it."""
    chance = random.Random(seed)
    size = chance.randrange(2, 9)
    requests = both.chord(size)
    assert len(requests) == size
    chance.shuffle(requests)
    for request in requests:
        last = chance.choice([both.by_theirs, both.by_ours])
        assert both.finish() == []
        last(request, "SUCCESS", sum(request.args))
        for again in chance.choices(requests[: requests.index(request) + 1], k=chance.randrange(3)):
            chance.choice([both.by_theirs, both.by_ours])(again, "SUCCESS", "another")
    found = both.finish()
    assert len(found) == (last == both.by_ours)
    expected = [2 * number for number in range(size)]
    if found:
        (join,) = found
        assert json.loads(join.body)["task"] == "total"
        assert [part.number for part in join.parts] == list(range(size))
        assert [read_part(both.backend, join.id, part.value)[2] for part in join.parts] == expected
    for request in requests:
        chance.choice([both.by_theirs, both.by_ours])(request, "SUCCESS", "late")
    assert both.finish() == []
    bodies = both.messages()
    assert len(bodies) == 1
    if not found:
        assert both.request(bodies[0]).args == [expected]


def test_concurrent_parts_of_both_send_the_body_once(both: Both) -> None:
    requests = both.chord(40)
    twice = [(request, side) for request in requests for side in (both.by_theirs, both.by_ours)]
    random.Random(3).shuffle(twice)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: each[1](each[0], "SUCCESS", 1), twice))
    both.finish()
    assert len(both.messages()) == 1
    assert both.finish() == []


def test_celery_finishes_a_chord_that_we_completed_but_left(both: Both) -> None:
    """Our claim has expired and a Celery worker gets a member again: then Celery sends the body."""
    requests = both.chord(3)
    for request in requests:
        both.by_ours(request, "SUCCESS", 1)
    (join,) = both.backend.joins.claim(10, SECONDS)
    both.client.delete(f"{both.prefix}celery-taskset-meta-{join.id}.c")
    both.by_theirs(requests[0], "SUCCESS", 1)
    assert len(both.messages()) == 1
    assert not both.backend.joins.finish(join, [message("total", "celery")], both.ours.broker.sender)
    assert both.messages() == []


def test_chord_that_failed_on_celery_is_not_finished_by_us(both: Both) -> None:
    requests = both.chord(3)
    both.by_ours(requests[0], "FAILURE", KeyError("no"))
    both.by_ours(requests[1], "SUCCESS", 1)
    both.by_theirs(requests[2], "SUCCESS", 1)
    for request in requests:
        both.by_ours(request, "SUCCESS", 1)
    assert (both.finish(), both.messages()) == ([], [])
