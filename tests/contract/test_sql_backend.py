"""The SQL result backend: notifications, the shared connection that receives them, batched statements."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
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
from tests.servers import port_of
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = pytest.mark.contract

TABLE = "celery_taskmeta"


class Env:
    """Apps with results on one server."""

    def __init__(self, place: SQLPlace) -> None:
        self.place = place
        self._apps: list[QWorker] = []
        self.app = self.make_app()
        self.storing = self.make_app()

    def make_app(self) -> QWorker:
        app = QWorker(
            "env",
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
        """Store each id as its own result, with another app."""
        backend = self.storing.backend
        rows = [backend.row(task_id, backend.meta(task_id, status, task_id)) for task_id in ids]
        backend.store_rows([row for row in rows if row is not None])

    def is_listening(self) -> bool:
        return self.backend.watcher._notifications.opened

    @contextmanager
    def statements(self, app: QWorker | None = None) -> Iterator[list[str]]:
        """Collect the statements sent to the server within the block."""
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
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    yield from _env(request.param(tmp_path))


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[Env]:
    """PostgreSQL, which sends notifications."""
    yield from _env(PostgreSQLPlace(tmp_path))


def _env(place: SQLPlace) -> Iterator[Env]:
    made = Env(place)
    yield made
    made.close()
    place.clear()


def test_unresponsive_server_times_out(env: Env) -> None:
    """The connection stays open, so TCP alone would wait for ever."""
    with Proxy(port_of(env.place.server)) as proxy:
        timeouts = {"connect_timeout": 2} | ({} if env.place.server == "postgresql" else {"read_timeout": 1})
        app = QWorker(
            "patient",
            broker=MemoryStore(FakeClock()),
            backend=f"db+{proxy.url(env.place.url)}",
            database_engine_options={"connect_args": timeouts},
            set_as_current=False,
        )
        backend = app.backend
        assert isinstance(backend, SQLBackend)
        if env.place.server == "postgresql":
            sa.event.listen(
                backend._database.engine,
                "connect",
                lambda connection, record: setattr(connection, "answer_seconds", 0.5),
            )
        assert backend.get("a") is None
        proxy.down.open = False
        began = time.monotonic()
        with pytest.raises(BackendError):  # it checks its tables first
            backend.store("b", backend.meta("b", "SUCCESS", 2))
        assert time.monotonic() - began < 20
        proxy.heal()
        proxy.cut()
        backend.store("c", backend.meta("c", "SUCCESS", 3))
        assert backend.get("c")["result"] == 3  # type: ignore[index]
        app.close()


@pytest.mark.parametrize("names", [{}, {"join": "later_join", "part": "earlier_part"}], ids=["usual", "own"])
def test_lost_connection_leaves_no_table_or_index_out(
    env: Env, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction spans the creation of a table and that of its indexes."""
    monkeypatch.setattr("qworker.backends.sql.database.TRIES", 1)
    env.app.conf.database_table_names = names
    engine, cut = env.backend._database.engine, set[str]()

    def cut_once(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        if statement.lstrip().startswith("CREATE ") and statement not in cut:
            cut.add(statement)
            env.place.end_connections()

    sa.event.listen(engine, "before_cursor_execute", cut_once)
    for _ in range(20):
        with suppress(BackendError):
            env.backend._joins._database.make()
    sa.event.remove(engine, "before_cursor_execute", cut_once)
    found = sa.inspect(engine)
    indexes = {
        name: {column for each in found.get_indexes(name) for column in each["column_names"]}
        for name in found.get_table_names()
    }
    assert sum("CREATE INDEX" in statement for statement in cut) == 4
    assert "date_done" in indexes["celery_taskmeta"]
    assert "date_done" in indexes["celery_tasksetmeta"]
    assert "expires" in indexes["qworker_keyvalue"]
    assert "due" in indexes[names.get("join", "qworker_join")]
    assert names.get("part", "qworker_part") in indexes


def test_psycopg_connection_is_closed_after_a_timeout(postgresql: Env) -> None:
    """psycopg refuses a rollback then, and SQLAlchemy logged two tracebacks about it."""
    with (
        Proxy(port_of("postgresql")) as proxy,
        TimeoutConnection.connect(proxy.url(postgresql.place.url)) as connection,
    ):
        connection.answer_seconds = 0.2
        proxy.down.open = False
        with pytest.raises(psycopg.OperationalError, match="not answered in time"):
            connection.execute("SELECT 1")
        assert connection.closed


def new_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def run_later(work: Callable[[], Any], seconds: float = 0.1) -> threading.Timer:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


# -- statements --


def test_batch_is_stored_with_one_statement(env: Env) -> None:
    ids = new_ids(256)
    env.store("makes", "the", "tables")
    with env.statements(env.storing) as sent:
        env.store(*ids, ids[0])
        env.store(*ids[1:], ids[0], status="FAILURE")
    assert len(sent) == 2
    found = env.backend.get_many(ids)
    assert {(meta["status"], meta["result"] == key) for key, meta in found.items()} == {("SUCCESS", True)}
    assert len(found) == 256


@pytest.mark.parametrize("first", ["result store", "broker"])
def test_broker_stores_a_batch_with_one_statement(env: Env, first: str) -> None:
    ids = new_ids(100)
    if first == "result store":
        env.store("makes", "the", "tables")
    rows = [env.backend.row(task_id, {"status": "SUCCESS", "result": task_id}) for task_id in ids]
    with closing(SQLBroker(env.place.url)) as store:
        own = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([message(task_id) for task_id in ids])
        tags = [leased.tag for leased in store.consumer.lease(["q"], 100).messages]
        counted = CountingLink(store.consumer._handle.open())
        store.consumer._handle._link = counted  # type: ignore[assignment]
        store.consumer.settle(own, [Ack(tag, row) for tag, row in zip(tags, rows, strict=True)])
        assert sum(TABLE in statement and "INSERT" in statement for statement in counted.sent()) == 1
    assert env.backend.get_many(ids).keys() == set(ids)


@pytest.mark.parametrize("first", ["result store", "broker"])
def test_result_ids_may_exceed_32_bits(env: Env, first: str) -> None:
    """Celery's tables end at 2,147,483,647, and each change of a result takes a number."""
    if first == "result store":
        env.store("makes the tables")
    else:
        with closing(SQLBroker(env.place.url)) as store:
            own = store.consumer.register("w@test", ["q"], 1)
            store.sender.push([message("makes the tables")])
            (leased,) = store.consumer.lease(["q"], 1).messages
            row = env.backend.row("x", {"status": "SUCCESS", "result": 1})
            store.consumer.settle(own, [Ack(leased.tag, row)])
    env.place.execute(
        f"ALTER TABLE {TABLE} AUTO_INCREMENT = 3000000000"
        if env.place.server == "mysql"
        else "ALTER SEQUENCE task_id_sequence RESTART WITH 3000000000"
    )
    env.store("one more")
    assert env.backend.get("one more")["result"] == "one more"  # type: ignore[index]


class CountingLink:
    """A Link that records all statements sent to the driver."""

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

    def _note(self, query: Any, proceed: Callable[[], Any]) -> Any:
        self._sent.append(query if isinstance(query, str) else query.decode("utf-8", "replace"))
        return proceed()

    def sent(self) -> list[str]:
        return self._sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def test_many_results_are_read_in_portions(env: Env) -> None:
    ids = new_ids(700)
    env.store(*ids)
    with env.statements() as sent:
        assert len(env.backend.wait(ids, 0)) == 700
    assert len(sent) == 2


def test_results_awaited_together_are_read_together(env: Env) -> None:
    ids = new_ids(100)
    env.store(*ids)

    async def main() -> list[Any]:
        return list(await asyncio.gather(*[AsyncResult[Any](task_id, app=env.app) for task_id in ids]))

    with env.statements() as sent:
        assert asyncio.run(main()) == ids
    whole = [statement for statement in sent if statement.startswith("SELECT celery_taskmeta.id,")]
    assert 1 <= len(whole) <= 5, "the first query may start before the last await"


def test_waiting_threads_share_one_query(env: Env) -> None:
    ids = new_ids(12)
    never = [threading.Thread(target=_timeout, args=(env.app, task_id, 1.0)) for task_id in ids]
    with env.statements() as sent:
        for thread in never:
            thread.start()
        for thread in never:
            thread.join()
    # Each thread queries at get(), when it starts to wait, and at the end; otherwise one query serves all.
    assert len(sent) <= 3 * len(ids) + 60


def _timeout(app: QWorker, task_id: str, seconds: float) -> None:
    with pytest.raises(ResultTimeout):
        AsyncResult[Any](task_id, app=app).get(timeout=seconds)


# -- notifications --


class Subscriber:
    """A plain connection that receives notifications. shares: whether it takes the lock of listeners."""

    def __init__(self, env: Env, shares: bool = True) -> None:
        env.store("makes", "the", "tables")
        self._connection = psycopg.connect(env.place.url, autocommit=True)
        channel = self._connection.execute(f"SELECT {channel_of(TABLE)}").fetchone()
        assert channel is not None
        self._connection.execute(f"LISTEN {channel[0]}")
        if shares:
            self._connection.execute(f"SELECT pg_advisory_lock_shared({lock_of(TABLE)})")

    def notifications(self) -> list[set[str]]:
        """Return the ids of each received notification."""
        found = self._connection.notifies(timeout=0.2)
        return [set(notification.payload.split("\n")) for notification in found]

    def close(self) -> None:
        self._connection.close()


def test_final_results_are_notified_once_per_transaction(postgresql: Env) -> None:
    ids = new_ids(5)
    with closing(Subscriber(postgresql)) as subscriber:
        postgresql.store(*ids, status="STARTED")
        assert subscriber.notifications() == []
        postgresql.store(*ids[:2])
        postgresql.store(*ids, status="FAILURE")
        assert subscriber.notifications() == [set(ids[:2]), set(ids[2:])]  # none for the refused ones
        backend = postgresql.backend
        backend.store("x", backend.meta("x", "SUCCESS"))
        backend.store("x", backend.meta("x", "FAILURE"))
        assert subscriber.notifications() == [{"x"}]


def test_notification_of_many_ids_is_a_single_word(postgresql: Env) -> None:
    with closing(Subscriber(postgresql)) as subscriber:
        fits, too_many = new_ids(216), new_ids(217)
        postgresql.store(*fits)
        postgresql.store(*too_many)
        assert subscriber.notifications() == [set(fits), {"look"}]


def test_no_notification_without_listeners(postgresql: Env) -> None:
    with closing(Subscriber(postgresql, shares=False)) as subscriber:
        postgresql.store(*new_ids(3))
        assert subscriber.notifications() == []


def test_results_stored_with_an_ack_are_notified(postgresql: Env) -> None:
    with closing(Subscriber(postgresql)) as subscriber, closing(SQLBroker(postgresql.place.url)) as store:
        own = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([message("a"), message("b")])
        one, two = store.consumer.lease(["q"], 2).messages
        row = postgresql.backend.row
        acks = [
            Ack(one.tag, row("one", {"status": "SUCCESS"})),
            Ack(two.tag, row("two", {"status": "FAILURE"})),
        ]
        store.consumer.settle(own, acks)
        assert subscriber.notifications() == [{"one", "two"}]


# -- waiting --


def count_listening(env: Env) -> int:
    """Return the number of connections that listen for notifications."""
    (found,) = env.place._ask(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND "
        "objid = "
        "(SELECT oid FROM pg_class WHERE relname = %s AND relnamespace = current_schema()::regnamespace)",
        TABLE,
    )
    return int(found[0])


def test_threads_and_event_loops_share_one_connection(postgresql: Env) -> None:
    ids = new_ids(20)
    found: list[str] = []

    def wait(task_id: str) -> None:
        found.append(AsyncResult[Any](task_id, app=postgresql.app).get(timeout=30))

    async def main() -> list[Any]:
        return list(
            await asyncio.gather(*[AsyncResult[Any](task_id, app=postgresql.app) for task_id in ids[10:]])
        )

    threads = [threading.Thread(target=wait, args=(task_id,)) for task_id in ids[:10]]
    for thread in threads:
        thread.start()
    until(lambda: len(postgresql.backend.watcher.waited_for()) == 10 and postgresql.is_listening())
    run_later(lambda: (until(lambda: len(postgresql.backend.watcher.waited_for()) == 20), store_all()))

    def store_all() -> None:
        assert count_listening(postgresql) == 1
        postgresql.store(*ids)

    assert asyncio.run(main()) == ids[10:]
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(ids[:10])
    until(lambda: not postgresql.backend.watcher.waited_for())


def test_waiting_caller_is_notified_without_polling(postgresql: Env) -> None:
    postgresql.backend.wait(["none"], 0.01)
    until(postgresql.is_listening)
    began = time.monotonic()
    for task_id in new_ids(40):
        timer = run_later(lambda task_id=task_id: postgresql.store(task_id), 0.005)  # type: ignore[misc]
        assert AsyncResult[Any](task_id, app=postgresql.app).get(timeout=30) == task_id
        timer.join()
    assert time.monotonic() - began < 40 * 0.5 / 2  # polling would take half a second each


def test_awaiting_caller_is_notified_without_polling(postgresql: Env) -> None:
    async def main() -> float:
        first = asyncio.ensure_future(_await(postgresql.app, "first"))
        await _until_listening(postgresql)
        began = time.monotonic()
        for task_id in new_ids(20):
            run_later(lambda task_id=task_id: postgresql.store(task_id), 0.005)  # type: ignore[misc]
            assert await _await(postgresql.app, task_id) == task_id
        took = time.monotonic() - began
        await asyncio.to_thread(postgresql.store, "first")
        assert await first == "first"
        return took

    assert asyncio.run(main()) < 20 * 0.5 / 2  # polling would take half a second each


async def _until_listening(env: Env) -> None:
    async with asyncio.timeout(30):
        while not env.is_listening():
            await asyncio.sleep(0.01)


async def _await(app: QWorker, task_id: str) -> Any:
    return await AsyncResult[Any](task_id, app=app)


def test_result_stored_at_the_start_of_a_wait_is_not_missed(postgresql: Env) -> None:
    """The query and LISTEN race with the store, on a new connection each time."""
    began = time.monotonic()
    for number, task_id in enumerate(new_ids(20)):
        postgresql.backend.watcher.close()
        timer = run_later(lambda task_id=task_id: postgresql.store(task_id), number * 0.001)  # type: ignore[misc]
        assert postgresql.backend.wait([task_id], 30)[task_id]["result"] == task_id
        timer.join()
    assert time.monotonic() - began < 7


def test_new_listener_waits_for_transactions_without_notification(postgresql: Env) -> None:
    postgresql.store("makes", "the", "tables")
    # The best of several, as the machine may be busy. Polling would take half a second each time.
    assert min(_seconds_until_received(postgresql) for _ in range(4)) < 0.4


def _seconds_until_received(postgresql: Env) -> float:
    """Return the seconds from the commit of a result, stored while there was no listener, to its arrival."""
    postgresql.backend.watcher.close()
    until(
        lambda: count_listening(postgresql) == 0
    )  # the server releases a lock slightly after the connection was closed
    backend = postgresql.storing.backend
    assert isinstance(backend, SQLBackend)
    task_id = new_ids(1)[0]
    with backend._database.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        values = ([task_id], ["SUCCESS"], [backend.codec.encode_value("found")])
        (step,) = backend._upsert("celery_taskmeta", ("task_id", "status", "result"), list(zip(*values,
        strict=True)), False, "%s")  # type: ignore[misc]  # fmt: skip
        connection.exec_driver_sql(*step)  # there is no listener, so no notification is sent
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(postgresql.backend.wait([task_id], 30)))
        waiting.start()
        until(lambda: blocked(postgresql) == 1)
        began = time.monotonic()
        connection.commit()
        waiting.join()
    assert found[0][task_id]["result"] == "found"
    return time.monotonic() - began


def blocked(env: Env) -> int:
    (found,) = env.place._ask(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE pg_locks.locktype = "
        "'advisory' "
        "AND NOT granted AND application_name = %s",
        env.place._name,
    )
    return int(found[0])


def test_waiting_caller_gets_the_result_after_reconnecting(postgresql: Env) -> None:
    took = []
    for number in range(4):
        task_id, found = f"x{number}", []
        waiting = threading.Thread(target=_collect, args=(postgresql.app, task_id, found))
        waiting.start()
        until(lambda: count_listening(postgresql) == 1 and postgresql.backend.watcher.waited_for())
        postgresql.place.end_connections()
        until(lambda: count_listening(postgresql) == 1)
        began = time.monotonic()
        postgresql.store(task_id)
        waiting.join()
        assert found == [task_id]
        took.append(time.monotonic() - began)
    assert min(took) < 0.45, "polling would find it, too, but later"


def _collect(app: QWorker, task_id: str, found: list[Any]) -> None:
    found.append(AsyncResult[Any](task_id, app=app).get(timeout=30))


def test_awaiting_caller_gets_the_result_after_reconnecting(postgresql: Env) -> None:
    async def main() -> None:
        result = asyncio.ensure_future(_await(postgresql.app, "x"))
        await _until_listening(postgresql)
        await asyncio.to_thread(postgresql.place.end_connections)
        await asyncio.to_thread(postgresql.store, "x")
        assert await asyncio.wait_for(result, 30) == "x"

    asyncio.run(main())


def test_wait_polls_if_listening_fails(postgresql: Env) -> None:
    def refused() -> Any:
        raise OSError("no LISTEN here")

    postgresql.backend.open_source = refused  # type: ignore[method-assign]
    run_later(lambda: postgresql.store("x"))
    assert AsyncResult[Any]("x", app=postgresql.app).get(timeout=30) == "x"


def test_cancelled_await_is_no_longer_watched(env: Env) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(env.app, "never"), 0.1)
        async with asyncio.timeout(30):
            while env.backend.watcher.waited_for():
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_closed_event_loop_leaves_nothing_watched(env: Env) -> None:
    env.store("x")
    gc.disable()  # it would release the loop and everything left in it
    try:
        for _ in range(10):
            assert asyncio.run(_await(env.app, "x")) == "x"
            until(lambda: not env.backend.watcher.waited_for())
    finally:
        gc.enable()
