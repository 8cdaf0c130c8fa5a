"""Workflows called within the caller's own transaction: whatever a call leaves anywhere is there exactly if
that is committed, or ends without anybody being told. On each broker that is a database, with results in it
and elsewhere."""

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


class House:
    """An app whose broker is a database. told: the ids of what has failed, as errbacks get them. beside:
    results are kept in the same database."""

    def __init__(self, url: str, results: str, directory: Path) -> None:
        self.clock = FakeClock(time.time())  # the broker goes by its own
        self.beside = results == "beside"
        options: dict[str, Any] = {}
        if results == "sqlite":
            options["backend"] = f"sqlite:///{directory}/results.db"
        elif results == "redis":
            server = {"global_keyprefix": prefix_of(directory)}
            options.update(backend=require("redis"), result_backend_transport_options=server)
        self.app = QWorker(
            "shop", broker=url, clock=self.clock, result_expires=EXPIRES, set_as_current=False, **options
        )
        self.told: list[str] = []

        @self.app.task(name="give")
        def give(*given: Any, **named: Any) -> Any:
            return [*given, *named.values()]

        @self.app.task(name="tell")
        def tell(failed: str) -> None:
            self.told.append(failed)

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
    """The URL of a broker, and what opens a connection of the caller's to it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/queue.db"
        yield url, lambda: contextlib.closing(sqlite3.connect(tmp_path / "queue.db"))
        return
    place = PLACES[request.param](tmp_path)
    engine = sa.create_engine(DRIVERS[request.param] + "://" + place.url.partition("://")[2])
    yield place.url, engine.connect
    engine.dispose()
    place.clear()


@pytest.fixture(params=["beside", "sqlite", "redis"])
def house(server: tuple[str, Connect], request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(server[0], request.param, tmp_path)
    house.app.broker.admin.queues()
    with StepWorker(house.app):
        pass  # the file and the tables are there
    yield house
    house.app.close()


def _chord(house: House) -> Any:
    header = [house.s(number) for number in range(2)]
    return chord(header, house.s().on_error(house.app.tasks["tell"].s())).apply_async()


def _chain(house: House) -> Any:
    steps = [house.s(number) for number in range(SEGMENT + 2)]
    return chain(*steps).apply_async(link_error=house.app.tasks["tell"].s())


def _graph(house: House) -> Any:
    nodes = {"a": house.s(1), "b": house.s(2), "c": house.s().on_error(house.app.tasks["tell"].s())}
    return graph(nodes, after={"c": {"x": "a", "y": "b"}}).apply_async()


def _nested(house: House) -> Any:
    inner = chord([house.s(1), house.s(2)], house.s())
    return chord([inner, house.s(3)], house.s().on_error(house.app.tasks["tell"].s())).apply_async()


def _many(house: House) -> Any:
    body = house.s().on_error(house.app.tasks["tell"].s())
    return house.app.send_many([chord([house.s(1), house.s(2)], body.clone()), house.s(1)])[0]


def _group(house: House) -> Any:
    return group(house.s(1), house.s(2)).apply_async()


def _plain(house: House) -> Any:
    return house.app.tasks["give"].apply_many([(1,), (2,)])[0]


CALLS = [_chord, _chain, _graph, _nested, _many, _group, _plain]


@pytest.mark.parametrize("call", CALLS)
def test_what_is_rolled_back_is_never_heard_of(
    house: House, server: tuple[str, Connect], call: Callable[[House], Any]
) -> None:
    with server[1]() as connection:
        with house.app.publishing_in(connection):
            call(house)
        connection.rollback()
    assert house.waiting() == 0
    if house.beside:
        assert house.app.backend.joins.count() == 0
    house.work()
    house.clock.advance(EXPIRES + 1)
    for _ in range(4):  # what ends a join may be a part of another, and what waits longer expires later
        house.work()
        house.clock.advance(EXPIRES)
    assert house.told == []
    assert (house.waiting(), house.app.backend.joins.count()) == (0, 0)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_committed_runs(
    house: House, server: tuple[str, Connect], call: Callable[[House], Any]
) -> None:
    with server[1]() as connection:
        with house.app.publishing_in(connection):
            result = call(house)
        assert house.waiting() == 0
        if house.beside:
            assert house.app.backend.joins.count() == 0
        connection.commit()
    assert house.waiting() > 0
    for _ in range(3):
        house.work()
    assert result.get(timeout=0) is not None
    assert (house.told, house.waiting(), house.app.backend.joins.count()) == ([], 0, 0)


def test_what_is_committed_and_lost_later_is_told_of(house: House, server: tuple[str, Connect]) -> None:
    """A member that is never heard of is a failure all the same, once another was."""
    with server[1]() as connection:
        with house.app.publishing_in(connection):
            tell = house.app.tasks["tell"].s()
            late = house.s(2).set(queue="of-nobody")
            result = chord([house.s(1), late], house.s().on_error(tell)).apply_async()
        connection.commit()
    house.work()
    house.clock.advance(EXPIRES + 1)
    for _ in range(3):
        house.work()
    assert house.told == [result.id]


def test_what_cannot_be_sent_leaves_no_join_to_a_caller_who_commits(
    house: House, server: tuple[str, Connect]
) -> None:
    house.app.conf.message_max_bytes = house.app.conf.message_warn_bytes = 1024
    with server[1]() as connection:
        with house.app.publishing_in(connection), pytest.raises(PublishError, match="over the limit"):
            chord([house.s(1), house.s("x" * 3000)], house.s()).apply_async()
        connection.commit()
    assert (house.waiting(), house.app.backend.joins.count()) == (0, 0)


@pytest.mark.parametrize("house", ["beside"], indirect=True)
def test_what_is_dropped_and_existed_before_leaves_no_parts(
    house: House, server: tuple[str, Connect]
) -> None:
    """SQLite numbers a later join like it, and a finished join is remembered."""
    joins, sender, expires = house.app.backend.joins, house.app.broker.sender, time.time() + EXPIRES
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
        table = "part" if house.app.broker.url.startswith("sqlite") else "qworker_part"
        execute = getattr(connection, "exec_driver_sql", None) or connection.execute
        assert sorted(execute(f"SELECT task_id FROM {table}")) == [("c",), ("d",)]


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
@pytest.mark.parametrize("house", ["beside"], indirect=True)
def test_the_connection_may_look_for_tables_elsewhere(house: House, server: tuple[str, Connect]) -> None:
    with server[1]() as connection:
        connection.exec_driver_sql("SET search_path TO pg_catalog")
        with house.app.publishing_in(connection):
            result = _chord(house)
        connection.commit()
    house.work()
    assert result.get(timeout=0) == [[[0], [1]]]


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("call", [_chord, _plain])
def test_who_ends_a_transaction_of_sqlites(tmp_path: Path, level: Any, call: Callable[[House], Any]) -> None:
    """Where the driver begins one, the caller ends it; where each statement is committed, so is a call."""
    house = House(f"sqlite:///{tmp_path}/queue.db", "beside", tmp_path)
    with StepWorker(house.app):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=level)) as connection:
        with house.app.publishing_in(connection):
            call(house)
        connection.rollback()
    assert house.waiting() == (2 if level is None else 0)
    assert house.app.backend.joins.count() == (1 if level is None and call is _chord else 0)
    house.app.close()
