"""Workflows called within the caller's transaction: everything that a call stores exists if and only if it is
committed, or expires silently. On each broker that is a database, with results in it and elsewhere."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qworker import QWorker, chain, chord, graph, group
from qworker.backends.joins import Join
from qworker.canvas.plan import SEGMENT
from qworker.errors import PublishError
from qworker.testing import FakeClock, StepWorker
from qworker.transports.lease import Part
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

EXPIRES = 600.0
PLACES = {"postgresql": PostgreSQLPlace, "mysql": MySQLPlace}
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class Env:
    """An app whose broker is a database. notified: the ids that errbacks got. same: whether results are in
    the same database."""

    def __init__(self, url: str, results: str, directory: Path) -> None:
        self.clock = FakeClock(time.time())  # the broker uses its own
        self.same = results == "same"
        options: dict[str, Any] = {}
        if results == "sqlite":
            options["backend"] = f"sqlite:///{directory}/results.db"
        elif results == "redis":
            server = {"global_keyprefix": prefix_of(directory)}
            options.update(backend=require("redis"), result_backend_transport_options=server)
        self.app = QWorker(
            "shop", broker=url, clock=self.clock, result_expires=EXPIRES, set_as_current=False, **options
        )
        self.notified: list[str] = []

        @self.app.task(name="give")
        def give(*given: Any, **named: Any) -> Any:
            return [*given, *named.values()]

        @self.app.task(name="tell")
        def tell(failed: str) -> None:
            self.notified.append(failed)

    def s(self, *args: Any) -> Any:
        return self.app.tasks["give"].s(*args)

    def waiting(self) -> int:
        return sum(info.ready + info.delayed for info in self.app.broker.admin.queues())

    def work(self) -> None:
        with StepWorker(self.app, concurrency=4) as worker:
            worker.run()


Connect = Callable[[], "contextlib.AbstractContextManager[Any]"]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Connect]]:
    """Return the URL of a broker, and a function that opens a connection of the caller."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/queue.db"
        yield url, lambda: contextlib.closing(sqlite3.connect(tmp_path / "queue.db"))
        return
    place = PLACES[request.param](tmp_path)
    engine = sa.create_engine(DRIVERS[request.param] + "://" + place.url.partition("://")[2])
    yield place.url, engine.connect
    engine.dispose()
    place.clear()


@pytest.fixture(params=["same", "sqlite", "redis"])
def env(server: tuple[str, Connect], request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    env = Env(server[0], request.param, tmp_path)
    env.app.broker.admin.queues()
    with StepWorker(env.app):
        pass  # creates the file and the tables
    yield env
    env.app.close()


def _chord(env: Env) -> Any:
    header = [env.s(number) for number in range(2)]
    return chord(header, env.s().on_error(env.app.tasks["tell"].s())).apply_async()


def _chain(env: Env) -> Any:
    steps = [env.s(number) for number in range(SEGMENT + 2)]
    return chain(*steps).apply_async(link_error=env.app.tasks["tell"].s())


def _graph(env: Env) -> Any:
    nodes = {"a": env.s(1), "b": env.s(2), "c": env.s().on_error(env.app.tasks["tell"].s())}
    return graph(nodes, after={"c": {"x": "a", "y": "b"}}).apply_async()


def _nested(env: Env) -> Any:
    inner = chord([env.s(1), env.s(2)], env.s())
    return chord([inner, env.s(3)], env.s().on_error(env.app.tasks["tell"].s())).apply_async()


def _many(env: Env) -> Any:
    body = env.s().on_error(env.app.tasks["tell"].s())
    return env.app.send_many([chord([env.s(1), env.s(2)], body.clone()), env.s(1)])[0]


def _group(env: Env) -> Any:
    return group(env.s(1), env.s(2)).apply_async()


def _plain(env: Env) -> Any:
    return env.app.tasks["give"].apply_many([(1,), (2,)])[0]


CALLS = [_chord, _chain, _graph, _nested, _many, _group, _plain]


@pytest.mark.parametrize("call", CALLS)
def test_rolled_back_workflow_leaves_nothing(
    env: Env, server: tuple[str, Connect], call: Callable[[Env], Any]
) -> None:
    with server[1]() as connection:
        with env.app.publishing_in(connection):
            call(env)
        connection.rollback()
    assert env.waiting() == 0
    if env.same:
        assert env.app.backend.joins.count() == 0
    env.work()
    env.clock.advance(EXPIRES + 1)
    for _ in range(4):  # a join may be a part of another, and then expires later
        env.work()
        env.clock.advance(EXPIRES)
    assert env.notified == []
    assert (env.waiting(), env.app.backend.joins.count()) == (0, 0)


@pytest.mark.parametrize("call", CALLS)
def test_committed_workflow_runs(env: Env, server: tuple[str, Connect], call: Callable[[Env], Any]) -> None:
    with server[1]() as connection:
        with env.app.publishing_in(connection):
            result = call(env)
        assert env.waiting() == 0
        if env.same:
            assert env.app.backend.joins.count() == 0
        connection.commit()
    assert env.waiting() > 0
    for _ in range(3):
        env.work()
    assert result.get(timeout=0) is not None
    assert (env.notified, env.waiting(), env.app.backend.joins.count()) == ([], 0, 0)


def test_lost_member_of_a_committed_chord_fails_it(env: Env, server: tuple[str, Connect]) -> None:
    """A member that never ends is a failure, once another member has ended."""
    with server[1]() as connection:
        with env.app.publishing_in(connection):
            tell = env.app.tasks["tell"].s()
            late = env.s(2).set(queue="of-nobody")
            result = chord([env.s(1), late], env.s().on_error(tell)).apply_async()
        connection.commit()
    env.work()
    env.clock.advance(EXPIRES + 1)
    for _ in range(3):
        env.work()
    assert env.notified == [result.id]


def test_unsendable_chord_leaves_no_join_after_commit(env: Env, server: tuple[str, Connect]) -> None:
    env.app.conf.message_max_bytes = env.app.conf.message_warn_bytes = 1024
    with server[1]() as connection:
        with env.app.publishing_in(connection), pytest.raises(PublishError, match="over the limit"):
            chord([env.s(1), env.s("x" * 3000)], env.s()).apply_async()
        connection.commit()
    assert (env.waiting(), env.app.backend.joins.count()) == (0, 0)


@pytest.mark.parametrize("env", ["same"], indirect=True)
def test_dropping_existing_joins_deletes_their_parts(env: Env, server: tuple[str, Connect]) -> None:
    """SQLite reuses its number for a later join, and a finished join is remembered."""
    joins, sender, expires = env.app.backend.joins, env.app.broker.sender, time.time() + EXPIRES
    joins.open([Join("finished", 1, b"", expires), Join("open", 2, b"", expires)])
    joins.add([Part("finished", 0, "a", "SUCCESS"), Part("open", 0, "b", "SUCCESS")])
    (finished,) = joins.claim(2, EXPIRES)
    assert joins.finish(finished, [], sender)
    with server[1]() as connection:
        opening = joins.within(sender.join(connection))
        assert opening is not None
        opening.drop(["finished", "open"])
        connection.commit()
    joins.open([Join("finished", 1, b"", expires), Join("later", 2, b"", expires)])
    joins.add([Part("later", 0, "c", "SUCCESS"), Part("later", 1, "d", "SUCCESS")])
    assert [[found.id, *(part.task_id for part in found.parts)] for found in joins.claim(2, EXPIRES)] == [
        ["later", "c", "d"]
    ]
    with server[1]() as connection:
        table = "part" if env.app.broker.url.startswith("sqlite") else "qworker_part"
        execute = getattr(connection, "exec_driver_sql", None) or connection.execute
        assert sorted(execute(f"SELECT task_id FROM {table}")) == [("c",), ("d",)]


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
@pytest.mark.parametrize("env", ["same"], indirect=True)
def test_connection_may_have_another_search_path(env: Env, server: tuple[str, Connect]) -> None:
    with server[1]() as connection:
        connection.exec_driver_sql("SET search_path TO pg_catalog")
        with env.app.publishing_in(connection):
            result = _chord(env)
        connection.commit()
    env.work()
    assert result.get(timeout=0) == [[[0], [1]]]


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("call", [_chord, _plain])
def test_sqlite_isolation_levels(tmp_path: Path, level: Any, call: Callable[[Env], Any]) -> None:
    """If the driver begins a transaction, the caller ends it. In autocommit mode, calls are sent at once."""
    env = Env(f"sqlite:///{tmp_path}/queue.db", "same", tmp_path)
    with StepWorker(env.app):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=level)) as connection:
        with env.app.publishing_in(connection):
            call(env)
        connection.rollback()
    assert env.waiting() == (2 if level is None else 0)
    assert env.app.backend.joins.count() == (1 if level is None and call is _chord else 0)
    env.app.close()
