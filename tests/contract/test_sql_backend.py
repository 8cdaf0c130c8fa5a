"""What only the result store in a database does: notifications, one connection that hears them, statements by
the batch."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from qworker import QWorker
from qworker.backends.sql.backend import SQLBackend
from qworker.errors import BackendError, ResultTimeout
from qworker.results.result import AsyncResult
from qworker.testing import FakeClock, MemoryStore
from qworker.transports.lease import Ack
from qworker.transports.sql.broker import SQLBroker
from qworker.transports.sql.result_upserts import channel_of, lock_of
from qworker.transports.sql.timeout_connection import TimeoutConnection
from tests.acceptance.proxy import Proxy
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace, SQLPlace
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = pytest.mark.contract

TABLE = "celery_taskmeta"


class Shop:
    """Apps with results in one place."""

    def __init__(self, place: SQLPlace) -> None:
        self.place = place
        self._apps: list[QWorker] = []
        self.app = self.make_app()
        self.storing = self.make_app()

    def make_app(self) -> QWorker:
        app = QWorker(
            "shop",
            broker=MemoryStore(FakeClock()),
            backend=f"db+{self.place.url}",
            set_as_current=False,
        )
        self._apps.append(app)
        return app

    @property
    def backend(self) -> SQLBackend:
        backend = self.app.backend
        assert isinstance(backend, SQLBackend)
        return backend

    def store(self, *ids: str, status: str = "SUCCESS") -> None:
        """Store the id of each as its result, as another process would."""
        backend = self.storing.backend
        rows = [backend.row(task_id, backend.meta(task_id, status, task_id)) for task_id in ids]
        backend.store_rows([row for row in rows if row is not None])

    def hears(self) -> bool:
        return self.backend.watcher._source is not None

    @contextmanager
    def statements(self, app: QWorker | None = None) -> Iterator[list[str]]:
        """What is sent to the server within the block."""
        sent: list[str] = []
        backend = (app or self.app).backend
        assert isinstance(backend, SQLBackend)
        backend.get("warm")

        def note(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
            sent.append(statement)

        sa.event.listen(backend._database.engine, "before_cursor_execute", note)
        yield sent
        sa.event.remove(backend._database.engine, "before_cursor_execute", note)

    def close(self) -> None:
        for app in self._apps:
            app.close()


@pytest.fixture(params=[PostgreSQLPlace, MySQLPlace], ids=["postgresql", "mysql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    yield from _shop(request.param(tmp_path))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Shop]:
    """Of PostgreSQL, which tells."""
    yield from _shop(PostgreSQLPlace(tmp_path))


def _shop(place: SQLPlace) -> Iterator[Shop]:
    made = Shop(place)
    yield made
    made.close()
    place.clear()


def test_a_server_that_falls_silent_is_given_up(shop: Shop) -> None:
    """Its end of the connection is there, so TCP would wait for ever."""
    with Proxy(5432 if shop.place.server == "postgresql" else 3306) as proxy:
        timeouts = {"connect_timeout": 2} | ({} if shop.place.server == "postgresql" else {"read_timeout": 1})
        app = QWorker(
            "patient",
            broker=MemoryStore(FakeClock()),
            backend=f"db+{proxy.url(shop.place.url)}",
            database_engine_options={"connect_args": timeouts},
            set_as_current=False,
        )
        backend = app.backend
        assert isinstance(backend, SQLBackend)
        if shop.place.server == "postgresql":
            sa.event.listen(
                backend._database.engine,
                "connect",
                lambda connection, record: setattr(connection, "answer_seconds", 0.5),
            )
        assert backend.get("a") is None
        proxy.down.open = False
        began = time.monotonic()
        with pytest.raises(BackendError):  # it looks for its tables first
            backend.store("b", backend.meta("b", "SUCCESS", 2))
        assert time.monotonic() - began < 20
        proxy.heal()
        proxy.cut()
        backend.store("c", backend.meta("c", "SUCCESS", 3))
        assert backend.get("c")["result"] == 3  # type: ignore[index]
        app.close()


def test_psycopg_is_asked_for_nothing_more_where_it_waits_for_an_answer(told: Shop) -> None:
    """It refuses that, and SQLAlchemy wrote two tracebacks about its rollback into the log."""
    with Proxy(5432) as proxy, TimeoutConnection.connect(proxy.url(told.place.url)) as connection:
        connection.answer_seconds = 0.2
        proxy.down.open = False
        with pytest.raises(psycopg.OperationalError, match="not answered in time"):
            connection.execute("SELECT 1")
        assert connection.closed


def new_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def later(work: Callable[[], Any], seconds: float = 0.1) -> threading.Timer:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


# -- statements --


def test_a_batch_is_one_statement(shop: Shop) -> None:
    ids = new_ids(256)
    shop.store("makes", "the", "tables")
    with shop.statements(shop.storing) as sent:
        shop.store(*ids, ids[0])
        shop.store(*ids[1:], ids[0], status="FAILURE")
    assert len(sent) == 2
    found = shop.backend.get_many(ids)
    assert {(meta["status"], meta["result"] == key) for key, meta in found.items()} == {("SUCCESS", True)}
    assert len(found) == 256


@pytest.mark.parametrize("first", ["result store", "broker"])
def test_the_broker_stores_a_batch_by_one_statement_too(shop: Shop, first: str) -> None:
    ids = new_ids(100)
    if first == "result store":
        shop.store("makes", "the", "tables")
    rows = [shop.backend.row(task_id, {"status": "SUCCESS", "result": task_id}) for task_id in ids]
    with closing(SQLBroker(shop.place.url)) as store:
        own = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([message(task_id) for task_id in ids])
        tags = [leased.tag for leased in store.consumer.lease(["q"], 100).messages]
        counted = Counting(store.consumer._handle.open())
        store.consumer._handle._link = counted  # type: ignore[assignment]
        store.consumer.settle(own, [Ack(tag, row) for tag, row in zip(tags, rows, strict=True)])
        assert sum(TABLE in statement and "INSERT" in statement for statement in counted.sent()) == 1
    assert shop.backend.get_many(ids).keys() == set(ids)


@pytest.mark.parametrize("first", ["result store", "broker"])
def test_there_are_more_numbers_than_any_queue_can_use_up(shop: Shop, first: str) -> None:
    """Celery's tables have 2,147,483,647, of which each change of a result takes one."""
    if first == "result store":
        shop.store("makes the tables")
    else:
        with closing(SQLBroker(shop.place.url)) as store:
            own = store.consumer.register("w@test", ["q"], 1)
            store.sender.push([message("makes the tables")])
            (leased,) = store.consumer.lease(["q"], 1).messages
            row = shop.backend.row("x", {"status": "SUCCESS", "result": 1})
            store.consumer.settle(own, [Ack(leased.tag, row)])
    shop.place.execute(
        f"ALTER TABLE {TABLE} AUTO_INCREMENT = 3000000000"
        if shop.place.server == "mysql"
        else "ALTER SEQUENCE task_id_sequence RESTART WITH 3000000000"
    )
    shop.store("one more")
    assert shop.backend.get("one more")["result"] == "one more"  # type: ignore[index]


class Counting:
    """A Link whose statements are counted, whichever way it takes to the driver."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._sent: list[str] = []
        connection = link._connection
        if isinstance(connection, psycopg.Connection):
            execute = connection.execute
            connection.execute = lambda query, *rest: self._note(query, lambda: execute(query, *rest))  # type: ignore[method-assign, assignment]
        else:
            query_ = connection.query
            connection.query = lambda query, *rest: self._note(query, lambda: query_(query, *rest))

    def _note(self, query: Any, go_on: Callable[[], Any]) -> Any:
        self._sent.append(query if isinstance(query, str) else query.decode("utf-8", "replace"))
        return go_on()

    def sent(self) -> list[str]:
        return self._sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def test_many_results_are_read_by_the_portion(shop: Shop) -> None:
    ids = new_ids(700)
    shop.store(*ids)
    with shop.statements() as sent:
        assert len(shop.backend.wait(ids, 0)) == 700
    assert len(sent) == 2


def test_all_that_is_awaited_together_is_read_together(shop: Shop) -> None:
    ids = new_ids(100)
    shop.store(*ids)

    async def main() -> list[Any]:
        return list(await asyncio.gather(*[AsyncResult[Any](task_id, app=shop.app) for task_id in ids]))

    with shop.statements() as sent:
        assert asyncio.run(main()) == ids
    whole = [statement for statement in sent if statement.startswith("SELECT celery_taskmeta.id,")]
    assert 1 <= len(whole) <= 5, "the first look may begin while others still come"


def test_one_look_serves_all_threads_that_wait(shop: Shop) -> None:
    ids = new_ids(12)
    never = [threading.Thread(target=_timeout, args=(shop.app, task_id, 1.0)) for task_id in ids]
    with shop.statements() as sent:
        for thread in never:
            thread.start()
        for thread in never:
            thread.join()
    # By each: get(), one when it is new, and one at the end. Then one for all.
    assert len(sent) <= 3 * len(ids) + 60


def _timeout(app: QWorker, task_id: str, seconds: float) -> None:
    with pytest.raises(ResultTimeout):
        AsyncResult[Any](task_id, app=app).get(timeout=seconds)


# -- what is told --


class Listener:
    """A plain connection that hears what is told. shares: as those do who want to be told."""

    def __init__(self, shop: Shop, shares: bool = True) -> None:
        shop.store("makes", "the", "tables")
        self._connection = psycopg.connect(shop.place.url, autocommit=True)
        channel = self._connection.execute(f"SELECT {channel_of(TABLE)}").fetchone()
        assert channel is not None
        self._connection.execute(f"LISTEN {channel[0]}")
        if shares:
            self._connection.execute(f"SELECT pg_advisory_lock_shared({lock_of(TABLE)})")

    def told(self) -> list[set[str]]:
        """The ids of each notification that has come."""
        found = self._connection.notifies(timeout=0.2)
        return [set(notification.payload.split("\n")) for notification in found]

    def close(self) -> None:
        self._connection.close()


def test_what_has_ended_is_told_once_a_transaction(told: Shop) -> None:
    ids = new_ids(5)
    with closing(Listener(told)) as listener:
        told.store(*ids, status="STARTED")
        assert listener.told() == []
        told.store(*ids[:2])
        told.store(*ids, status="FAILURE")
        assert listener.told() == [set(ids[:2]), set(ids[2:])]  # and nothing of what was refused
        backend = told.backend
        backend.store("x", backend.meta("x", "SUCCESS"))
        backend.store("x", backend.meta("x", "FAILURE"))
        assert listener.told() == [{"x"}]


def test_too_many_ids_are_told_by_a_word(told: Shop) -> None:
    with closing(Listener(told)) as listener:
        fits, too_many = new_ids(216), new_ids(217)
        told.store(*fits)
        told.store(*too_many)
        assert listener.told() == [set(fits), {"look"}]


def test_nothing_is_told_when_nobody_wants_to_hear(told: Shop) -> None:
    with closing(Listener(told, shares=False)) as listener:
        told.store(*new_ids(3))
        assert listener.told() == []


def test_results_with_the_ack_are_told(told: Shop) -> None:
    with closing(Listener(told)) as listener, closing(SQLBroker(told.place.url)) as store:
        own = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([message("a"), message("b")])
        one, two = store.consumer.lease(["q"], 2).messages
        row = told.backend.row
        acks = [
            Ack(one.tag, row("one", {"status": "SUCCESS"})),
            Ack(two.tag, row("two", {"status": "FAILURE"})),
        ]
        store.consumer.settle(own, acks)
        assert listener.told() == [{"one", "two"}]


# -- who waits --


def listening(shop: Shop) -> int:
    """How many connections of this place want to be told."""
    (found,) = shop.place._ask(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND "
        "objid = "
        "(SELECT oid FROM pg_class WHERE relname = %s AND relnamespace = current_schema()::regnamespace)",
        TABLE,
    )
    return int(found[0])


def test_threads_and_loops_of_a_process_share_one_connection(told: Shop) -> None:
    ids = new_ids(20)
    found: list[str] = []

    def wait(task_id: str) -> None:
        found.append(AsyncResult[Any](task_id, app=told.app).get(timeout=30))

    async def main() -> list[Any]:
        return list(await asyncio.gather(*[AsyncResult[Any](task_id, app=told.app) for task_id in ids[10:]]))

    threads = [threading.Thread(target=wait, args=(task_id,)) for task_id in ids[:10]]
    for thread in threads:
        thread.start()
    until(lambda: len(told.backend.watcher.waited_for()) == 10 and told.hears())
    later(lambda: (until(lambda: len(told.backend.watcher.waited_for()) == 20), store_all()))

    def store_all() -> None:
        assert listening(told) == 1
        told.store(*ids)

    assert asyncio.run(main()) == ids[10:]
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(ids[:10])
    until(lambda: not told.backend.watcher.waited_for())


def test_who_waits_is_told_and_does_not_find_it_by_looking(told: Shop) -> None:
    told.backend.wait(["none"], 0.01)
    until(told.hears)
    began = time.monotonic()
    for task_id in new_ids(40):
        timer = later(lambda task_id=task_id: told.store(task_id), 0.005)  # type: ignore[misc]
        assert AsyncResult[Any](task_id, app=told.app).get(timeout=30) == task_id
        timer.join()
    assert time.monotonic() - began < 40 * 0.5 / 2  # half a second each, if it had to look


def test_who_awaits_is_told(told: Shop) -> None:
    async def main() -> float:
        first = asyncio.ensure_future(_await(told.app, "first"))
        await _until_it_hears(told)
        began = time.monotonic()
        for task_id in new_ids(20):
            later(lambda task_id=task_id: told.store(task_id), 0.005)  # type: ignore[misc]
            assert await _await(told.app, task_id) == task_id
        took = time.monotonic() - began
        await asyncio.to_thread(told.store, "first")
        assert await first == "first"
        return took

    assert asyncio.run(main()) < 20 * 0.5 / 2  # half a second each, if it had to look


async def _until_it_hears(shop: Shop) -> None:
    async with asyncio.timeout(30):
        while not shop.hears():
            await asyncio.sleep(0.01)


async def _await(app: QWorker, task_id: str) -> Any:
    return await AsyncResult[Any](task_id, app=app)


def test_what_is_stored_while_somebody_begins_to_wait_is_not_missed(told: Shop) -> None:
    """The look and LISTEN race with the store, on a connection that is made anew each time."""
    began = time.monotonic()
    for number, task_id in enumerate(new_ids(20)):
        told.backend.watcher.close()
        timer = later(lambda task_id=task_id: told.store(task_id), number * 0.001)  # type: ignore[misc]
        assert told.backend.wait([task_id], 30)[task_id]["result"] == task_id
        timer.join()
    assert time.monotonic() - began < 7


def test_who_comes_to_listen_waits_for_those_who_did_not_tell(told: Shop) -> None:
    told.store("makes", "the", "tables")
    # The best of some, for a machine may be busy: not told, it would take half a second each time.
    assert min(_seconds_until_heard(told) for _ in range(4)) < 0.4


def _seconds_until_heard(told: Shop) -> float:
    """Of a result whose transaction had begun before anybody listened, after its commit."""
    told.backend.watcher.close()
    until(
        lambda: listening(told) == 0
    )  # the server lets go of a lock a little after its connection was closed
    backend = told.storing.backend
    assert isinstance(backend, SQLBackend)
    task_id = new_ids(1)[0]
    with backend._database.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        values = ([task_id], ["SUCCESS"], [backend.encode_value("found")])
        (step,) = backend._upsert("celery_taskmeta", ("task_id", "status", "result"), list(zip(*values,
        strict=True)), False, "%s")  # type: ignore[misc]  # fmt: skip
        connection.exec_driver_sql(*step)  # nobody listens, so nobody will be told
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(told.backend.wait([task_id], 30)))
        waiting.start()
        until(lambda: blocked(told) == 1)
        began = time.monotonic()
        connection.commit()
        waiting.join()
    assert found[0][task_id]["result"] == "found"
    return time.monotonic() - began


def blocked(shop: Shop) -> int:
    (found,) = shop.place._ask(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE pg_locks.locktype = "
        "'advisory' "
        "AND NOT granted AND application_name = %s",
        shop.place._name,
    )
    return int(found[0])


def test_who_waits_hears_the_result_though_all_connections_were_cut(told: Shop) -> None:
    took = []
    for number in range(4):
        task_id, found = f"x{number}", []
        waiting = threading.Thread(target=_collect, args=(told.app, task_id, found))
        waiting.start()
        until(lambda: listening(told) == 1 and told.backend.watcher.waited_for())
        told.place.end_connections()
        until(lambda: listening(told) == 1)
        began = time.monotonic()
        told.store(task_id)
        waiting.join()
        assert found == [task_id]
        took.append(time.monotonic() - began)
    assert min(took) < 0.45, "a look would find it, too, but later"


def _collect(app: QWorker, task_id: str, found: list[Any]) -> None:
    found.append(AsyncResult[Any](task_id, app=app).get(timeout=30))


def test_who_awaits_survives_cut_connections(told: Shop) -> None:
    async def main() -> None:
        result = asyncio.ensure_future(_await(told.app, "x"))
        await _until_it_hears(told)
        await asyncio.to_thread(told.place.end_connections)
        await asyncio.to_thread(told.store, "x")
        assert await asyncio.wait_for(result, 30) == "x"

    asyncio.run(main())


def test_a_server_that_cannot_be_listened_to_is_looked_at(told: Shop) -> None:
    def refused() -> Any:
        raise OSError("no LISTEN here")

    told.backend.open_source = refused  # type: ignore[method-assign]
    later(lambda: told.store("x"))
    assert AsyncResult[Any]("x", app=told.app).get(timeout=30) == "x"


def test_nothing_is_watched_any_more_that_nobody_awaits_any_more(shop: Shop) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(shop.app, "never"), 0.1)
        async with asyncio.timeout(30):
            while shop.backend.watcher.waited_for():
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_loop_that_ends_leaves_nothing_that_is_watched(shop: Shop) -> None:
    shop.store("x")
    gc.disable()  # it would let go of the loop, and of all that it has left
    try:
        for _ in range(10):
            assert asyncio.run(_await(shop.app, "x")) == "x"
            until(lambda: not shop.backend.watcher.waited_for())
    finally:
        gc.enable()
