"""One suite for failed tasks of every broker that keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qworker.testing import FakeClock, MemoryStore
from qworker.testing.contract import Place, collecting, fixtures
from qworker.testing.contract.fixtures import Open, generation, take
from qworker.transports.capabilities import RESULTS
from qworker.transports.lease import Ack, Again, Broker, DeadLetter, Envelope, Letters
from tests.contract.lease_places import MemoryPlace
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_nats import NatsPlace
from tests.contract.place_redis import RedisClusterPlace, RedisPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqlite import SQLitePlace

pytestmark = pytest.mark.contract
pytest_generate_tests = collecting.pytest_generate_tests
clock, open_, place, store = fixtures.clock, fixtures.open_, fixtures.place, fixtures.store


class KeepingPlace(MemoryPlace):
    """The broker in memory, which keeps failed tasks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._first = MemoryStore(keeps_failed=True)

    def open(self, **options: Any) -> Broker:
        return MemoryStore(**options, shared_with=self._first, keeps_failed=True)


class SweptByAge(AMQPPlace):
    """The server deletes old ones by its own clock: see tests/integration/test_amqp.py."""

    cannot = {**AMQPPlace.cannot, "test_sweep_deletes_old_failed_tasks": "the server deletes them"}


class SweptByItself(NatsPlace):
    """The stream has limits, by the server's clock: see tests/integration/test_nats_store.py."""

    cannot = {
        **NatsPlace.cannot,
        "test_sweep_deletes_surplus_failed_tasks_only": "the server deletes them",
        "test_sweep_deletes_old_failed_tasks": "the server deletes them",
    }


PLACES: dict[str, type[Place]] = {
    "sqlite": SQLitePlace,
    "redis": RedisPlace,
    "redis-cluster": RedisClusterPlace,
    "postgresql": PostgreSQLPlace,
    "mysql": MySQLPlace,
    "mongodb": MongoPlace,
    "nats": SweptByItself,
    "rabbitmq": SweptByAge,
    "memory": KeepingPlace,
}
FAILURE = ("FAILURE", b'{"status": "FAILURE", "result": null}')


def headers(name: str) -> str:
    return json.dumps({"id": name, "task": "t"}, separators=(",", ":"))


def failing(store: Broker, clock: FakeClock, *names: str, queue: str = "q", priority: int = 3) -> Letters:
    """Let calls with these ids fail, one second after another, with stored results; return the failed
    tasks."""
    own = generation(store)
    store.sender.push([Envelope(queue, headers(name), None, b"[1]", priority) for name in names])
    for leased in take(store, queue):
        clock.advance(1)
        name = json.loads(leased.headers)["id"]
        row = (name, *FAILURE, None)
        order = DeadLetter(leased.tag, f"E('{name}')\ntraceback", row, failed=True)
        assert store.consumer.settle(own, [order]) == set()
    return store.letters["failed"]


def ids(kept: Any) -> list[str]:
    return [json.loads(each.headers)["id"] for each in kept]


def test_failed_tasks_are_separate_from_dead_letters(store: Broker, place: Place, clock: FakeClock) -> None:
    failed_tasks = failing(store, clock, "a", "b")
    failing(store, clock, "c", queue="r")
    assert ids(list(failed_tasks.newest())) == ["c", "b", "a"]
    assert ids(list(failed_tasks.newest("q"))) == ["b", "a"]
    assert ids(list(failed_tasks.newest(None, 1))) == ["c"]
    newest = next(failed_tasks.newest())
    assert (newest.queue, newest.reason, newest.body) == ("r", "E('c')\ntraceback", b"[1]")
    assert newest.died_at == pytest.approx(clock.now())
    assert place.count() == 0
    assert store.admin.dead() == []
    assert not any(info.dead for info in store.admin.queues())
    if RESULTS not in store.lacks:
        assert place.result("a") is not None, "stored in the same step"


def test_failed_task_is_sent_again_once_with_changes(store: Broker, place: Place, clock: FakeClock) -> None:
    kept = failing(store, clock, "a", "b")
    by_id = {json.loads(each.headers)["id"]: each.tag for each in list(kept.newest())}
    call = Again(by_id["a"], headers("a"), None, b"[2]")
    assert kept.send_again([call]) == 1
    assert kept.send_again([call]) == 0
    assert ids(list(kept.newest())) == ["b"]
    if RESULTS not in store.lacks:
        assert place.result("a") is None, "a waiting caller should get the new result"
        assert place.result("b") is not None
    (again,) = take(store)
    assert (again.body, again.priority, again.deliveries, again.due) == (b"[2]", 3, 0, None)
    assert json.loads(again.headers)["id"] == "a"
    assert store.consumer.settle(generation(store), [Ack(again.tag)]) is not None


def test_failed_tasks_are_discarded_by_tag_or_all(store: Broker, clock: FakeClock) -> None:
    kept = failing(store, clock, "a", "b", "c")
    tags = {json.loads(each.headers)["id"]: each.tag for each in list(kept.newest())}
    assert kept.discard([tags["b"]]) == 1
    assert kept.discard([tags["b"]]) == 0
    assert kept.discard() == 2
    assert list(kept.newest()) == []


def test_sweep_deletes_surplus_failed_tasks_only(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([Envelope("q", headers("dead"), None, b"[]")])
    (leased,) = take(store)
    store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    kept = failing(store, clock, "a", "b", "c")
    failing(store, clock, "d", queue="r")
    store.consumer.sweep("dead", 0.0, 100)
    assert len(list(kept.newest())) == 4
    assert store.consumer.sweep("failed", 1000.0, 2) == 1
    assert ids(list(kept.newest())) == ["d", "c", "b"]


def test_sweep_deletes_old_failed_tasks(store: Broker, clock: FakeClock) -> None:
    kept = failing(store, clock, "a", "b", "c")
    assert store.consumer.sweep("failed", 1.5, 100) == 1
    assert ids(list(kept.newest())) == ["c", "b"]
    assert store.consumer.sweep("failed", 0.0, 0) + store.consumer.sweep("failed", 0.0, 0) == 2


def test_failed_task_of_an_old_generation_is_not_kept(open_: Open, clock: FakeClock) -> None:
    store = open_(registered=True)
    own = generation(store)
    store.sender.push([Envelope("q", headers("a"), None, b"[]")])
    (leased,) = take(store)
    store.consumer.register("anew", ["q"], 1)
    assert store.consumer.settle(own, [DeadLetter(leased.tag, "why", failed=True)]) == {leased.tag}
    assert list(store.letters["failed"].newest()) == []
