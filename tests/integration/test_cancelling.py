"""Cancelled workflows: nothing runs, and nothing is left when results expire."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group
from qworker.canvas.plan import SEGMENT
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import ChordError, TaskRevokedError
from qworker.results.tree import line
from qworker.testing import FakeClock, StepWorker
from qworker.transports.lease import Broker
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace, SQLPlace
from tests.integration.test_workflow_leftovers import BROKER_KEYS
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SERVERS: dict[str, type[SQLPlace]] = {"postgresql": PostgreSQLPlace, "mysql": MySQLPlace}
TABLES = (
    *("qworker_message", "qworker_dead", "qworker_join", "qworker_part", "qworker_keyvalue"),
    *("celery_taskmeta", "celery_tasksetmeta"),
)
REVOCATIONS = {"revoked", "sqlite_sequence"}
"""Revocations are kept for ``revoke_expires``."""


class Env:
    """An app whose results expire after an hour. left: returns the existing rows or keys."""

    def __init__(
        self, broker: str | Broker, results: str, left: Callable[[], Set[Any]], clock: Clock, **conf: Any
    ) -> None:
        self.left = left
        self.app = QWorker("stop", broker=broker, backend=results, clock=clock, set_as_current=False, **conf)
        self.app.conf.result_expires = 3600
        self.ran: list[Any] = []
        task = self.app.task

        @task(name="run")
        def run(*args: Any, **values: Any) -> int:
            self.ran.append(args)
            return 1

        @task(name="stop", bind=True)
        def stop(this: Any, *args: Any, **values: Any) -> None:
            self.result.revoke()

    def flow(self, kind: str, first: str = "run") -> Any:
        run = self.app.signature
        if kind == "chain":
            return chain(run(first), *(run("run") for _ in range(3 * SEGMENT)))
        if kind == "chord":
            return chord([run(first), *(run("run") for _ in range(4))], run("run") | run("run"))
        if kind == "nested":
            inner = (
                run("run") | group(run("run"), chain(*(run("run") for _ in range(SEGMENT + 3)))) | run("run")
            )
            return run(first) | group(inner, inner) | run("run") | group(run("run"), run("run"))
        nodes = {name: run(first if name == "a" else "run") for name in "abcd"}
        return graph({**nodes, "e": self.flow("nested")}, {"b": "a", "c": "a", "d": ["b", "c"], "e": ["d"]})

    def expire(self, worker: StepWorker) -> None:
        """Let results, segments of chains and levels of graphs expire. On Redis, these are keys with a TTL,
        which are not counted."""
        if isinstance(self.app.clock, FakeClock):
            self.app.clock.advance(10 * 86400)
            worker.run()
            self.app.backend.sweep(self.app.clock.now())

    def new(self) -> Set[Any]:
        return self.left() - self.before


def rows_of_sqlite(path: Path) -> Set[Any]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            (table, *row)
            for table in tables
            if table not in REVOCATIONS
            for row in connection.execute(f'SELECT count(*) FROM "{table}"')
            if row != (0,)
        }


def rows_of_server(place: SQLPlace) -> Set[Any]:
    return {
        (table, *row)
        for table in TABLES
        for row in place._ask(f"SELECT count(*) FROM {table}")
        if row != (0,)
    }


def keys_of_redis(place: RedisPlace) -> Set[Any]:
    """Return the keys without a TTL that are not internal to the broker."""
    lasting = {
        key.decode().removeprefix(place.prefix) for key in place.all_keys() if place.client.ttl(key) == -1
    }
    return {key for key in lasting if not f":{key}".startswith(BROKER_KEYS)} | {("held", place.count())}


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis celery", "redis shared", "rabbitmq"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    with ExitStack() as ends:
        yield (env := made(request.param, tmp_path, ends))
        env.app.close()


def made(kind: str, directory: Path, ends: ExitStack) -> Env:
    if kind == "sqlite":
        url = f"sqlite:///{directory}/queue.db"
        return Env(url, url, lambda: rows_of_sqlite(directory / "queue.db"), FakeClock())
    if kind in SERVERS:
        server = SERVERS[kind](directory)
        ends.callback(server.clear)
        return Env(server.url, f"db+{server.url}", lambda: rows_of_server(server), FakeClock())
    redis = RedisPlace(directory)
    ends.callback(redis.clear)
    named: dict[str, Any] = {"result_backend_transport_options": {"global_keyprefix": redis.prefix}}
    if kind != "rabbitmq":
        named["broker_transport_options"] = named["result_backend_transport_options"]
        named["canvas_format"] = kind.partition(" ")[2]
        return Env(redis.url, redis.url, lambda: keys_of_redis(redis), SYSTEM_CLOCK, **named)
    rabbitmq = AMQPPlace(directory)
    ends.callback(rabbitmq.clear)
    named["task_default_queue"] = "q"
    return Env(
        rabbitmq.open(),
        redis.url,
        lambda: keys_of_redis(redis) | {("ready", rabbitmq.count())},
        SYSTEM_CLOCK,
        **named,
    )


@pytest.mark.parametrize("kind", ["chain", "chord", "nested", "graph"])
@pytest.mark.parametrize("when", ["before", "running"])
def test_revoke_cancels_the_whole_workflow(env: Env, kind: str, when: str) -> None:
    with StepWorker(env.app) as worker:
        env.app.signature("run").delay()
        worker.run()
        env.before = env.left()
        flow = env.flow(kind, "run" if when == "before" else "stop")
        env.result = result = flow()
        if when == "before":
            result.revoke()
            until(lambda: env.app.broker.consumer.revoked_since(0)[1])  # RabbitMQ delivers them at any time
        env.ran.clear()
        worker.run()
        if when == "before":  # otherwise the worker already has some members
            assert env.ran == []
        singles = [single for each in line(result) for single in each._singles()]
        ended = {each.state for each in singles}
        assert ended <= {"REVOKED", "FAILURE", "SUCCESS"}
        assert ended & {"REVOKED", "FAILURE"}
        with pytest.raises((TaskRevokedError, ChordError), match="revoked"):
            result.get(timeout=5)
        env.expire(worker)
        assert env.new() == set()


def test_finished_members_are_not_revoked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    env = Env(url, url, set, FakeClock())
    with StepWorker(env.app) as worker:
        result = env.flow("chord")()
        worker.run()
        assert result.get(timeout=5) == 1
        assert [each.get(timeout=5) for each in line(result)]
        result.revoke()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        assert connection.execute("SELECT count(*) FROM revoked").fetchone() == (0,)
    env.app.close()
