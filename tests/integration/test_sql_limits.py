"""Limits of SQL servers: texts, sizes, long ids, and other session modes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pymysql
import pytest

from qworker import QWorker, states
from qworker.backends.sql.joins import SQLJoins
from qworker.components.receiving.settlements import Settlements
from qworker.errors import BrokerUnavailable, EncodeError, LeaseLost, PublishError
from qworker.testing import FakeClock
from qworker.testing.worker import StepWorker
from qworker.transports.lease import Ack, RowsLocked
from qworker.transports.sql.broker import SQLBroker
from qworker.transports.sql.link import IDLE_SECONDS, Link
from qworker.transports.sql.links import family_of
from qworker.transports.sql.mysql import CONSUMER, MySQLLink
from qworker.transports.sql.postgresql import LOCK_SCHEMA, PostgreSQLLink
from qworker.transports.sql.result_rows import LONGEST_ID, key_of, pack
from qworker.transports.sql.schema import NOW
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace, SQLPlace
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = pytest.mark.integration

LEASE_LEFT = f"SELECT lease_until - {NOW} FROM qworker_owner WHERE id = %s"
HOSTILE = ("bob\0", "bob\ud800", "bob\U0001f600", "'\\\"%s;--\\", "\x7f\x1b[31m\u202e")


@pytest.fixture
def mysql(tmp_path: Path) -> Iterator[SQLPlace]:
    made = MySQLPlace(tmp_path)
    yield made
    made.clear()


@pytest.fixture
def app(place: SQLPlace) -> Iterator[QWorker]:
    """Return an app with broker and results in one database."""
    app = QWorker(
        "limits", broker=place.url, backend=f"db+{place.url}", set_as_current=False, result_extended=True
    )
    yield app
    app.close()


@pytest.fixture
def worker(app: QWorker) -> Iterator[StepWorker]:
    with StepWorker(app) as worker:
        yield worker


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_unusual_exception_text_does_not_stop_the_worker(app: QWorker, worker: StepWorker, text: str) -> None:
    @app.task(name="fails")
    def fails(value: str) -> None:
        raise ValueError(f"unknown user {value}")

    @app.task(name="fine")
    def fine(number: int) -> int:
        return number

    failing = fails.delay(text)
    others = [fine.delay(number) for number in range(5)]
    worker.run()
    assert [other.get(timeout=10) for other in others] == list(range(5))
    with pytest.raises(ValueError, match="unknown user") as caught:
        failing.get(timeout=10)
    assert caught.value.args == (f"unknown user {text}",)
    assert "ValueError: unknown user" in (failing.traceback or "")
    assert app.broker.admin.queues() == []


def test_update_state_works_with_the_table_of_the_broker(app: QWorker, worker: StepWorker) -> None:
    seen = []

    @app.task(name="progress", bind=True)
    def progress(self: Any) -> int:
        self.update_state(state="PROGRESS", meta={"done": 1})
        seen.append(self.AsyncResult(self.request.id).state)
        return 7

    first = progress.delay()
    worker.run()  # the broker has created the table
    second = progress.delay()
    worker.run()
    assert [first.get(timeout=10), second.get(timeout=10)] == [7, 7]
    assert seen == ["PROGRESS", "PROGRESS"]


@pytest.mark.parametrize("length", [LONGEST_ID, LONGEST_ID + 1, 200, 255])
def test_long_ids_are_supported(app: QWorker, worker: StepWorker, length: int) -> None:
    @app.task(name="fine")
    def fine(number: int) -> int:
        return number

    ids = [f"{number}-".ljust(length - 1, "x") + last for number, last in enumerate("ab", 1)]
    ids.append(ids[0][:-1] + "b")  # differs only in the part that does not fit
    results = [fine.apply_async((number,), task_id=id) for number, id in enumerate(ids)]
    worker.run()
    assert [result.get(timeout=10) for result in results] == [0, 1, 2]
    assert [result.id for result in results] == ids
    found = app.backend.get_many(ids)
    assert {id: meta["task_id"] for id, meta in found.items()} == {id: id for id in ids}
    results[0].forget()
    assert app.backend.get(ids[0]) is None
    assert app.backend.get(ids[2]) is not None


def test_similar_ids_are_distinguished(app: QWorker, worker: StepWorker) -> None:
    @app.task(name="fine")
    def fine(number: int) -> int:
        return number

    ids = ["id-a", "id-A", "id-\u00e4", "id-a "]
    results = [fine.apply_async((number,), task_id=id) for number, id in enumerate(ids)]
    worker.run()
    assert [result.get(timeout=10) for result in results] == [0, 1, 2, 3]


def test_key_of_long_ids_is_a_digest() -> None:
    assert key_of("x" * LONGEST_ID) == "x" * LONGEST_ID
    assert len(key_of("ü" * 255)) == LONGEST_ID
    assert key_of("x" * 156) != key_of("x" * 157)


# -- max_allowed_packet --


def longest_of(store: SQLBroker) -> int:
    link: Any = store.consumer._handle.open()
    return int(link._connection.longest)


def test_max_allowed_packet_is_exact(mysql: SQLPlace) -> None:
    with closing(mysql.open()) as store:
        assert isinstance(store, SQLBroker)
        link: Any = store.consumer._handle.open()
        start = "SELECT length('"
        text = "x" * (longest_of(store) - 2 - len(start) - len("')"))
        assert link.ask(f"{start}{text}')") == [(len(text),)]
        with pytest.raises(pymysql.err.DataError, match="max_allowed_packet"):
            link.ask(f"{start}{text}x')")
        assert link.ask("SELECT 1") == [(1,)], "the connection can still be used"


def test_result_over_max_allowed_packet_becomes_a_failure(mysql: SQLPlace) -> None:
    app = QWorker("limits", broker=mysql.url, backend=f"db+{mysql.url}", set_as_current=False)
    with closing(mysql.open()) as store:
        assert isinstance(store, SQLBroker)
        generation = store.consumer.register("w@test", ["q"], 2)
        store.sender.push([message(str(number)) for number in range(3)])
        tags = [leased.tag for leased in store.consumer.lease(["q"], 3).messages]
        large = pack({"status": "SUCCESS", "result": b"'" * (longest_of(store) * 2 // 3), "traceback": None,
                      "children": None, "date_done": None})  # fmt: skip
        good = [app.backend.row(name, app.backend.meta(name, "SUCCESS", name)) for name in ("one", "two")]
        connections = store.consumer._handle.connections
        Settlements(app, store.consumer).carry_out(
            generation,
            [Ack(tags[0], good[0]), Ack(tags[1], ("large", "SUCCESS", large, None)), Ack(tags[2], good[1])],
        )
        assert store.consumer._handle.connections == connections, "the server has not closed the connection"
        assert store.admin.queues() == []
    meta = app.backend.get("large")
    assert meta is not None
    assert meta["status"] == states.FAILURE
    assert "max_allowed_packet" in meta["result"]["exc_message"][0]
    assert [app.backend.get(name)["result"] for name in ("one", "two")] == ["one", "two"]  # type: ignore[index]
    app.close()


def test_message_over_max_allowed_packet_is_refused_at_once(mysql: SQLPlace) -> None:
    with closing(mysql.open()) as store:
        assert isinstance(store, SQLBroker)
        store.sender.push([message("small")])
        began = time.monotonic()
        with pytest.raises(PublishError, match="max_allowed_packet"):
            store.sender.push([message("large", body=b"'" * longest_of(store)), message("beside")])
        assert time.monotonic() - began < 20, "it was not retried"
        store.sender.push([message("small")])
        assert [info.ready for info in store.admin.queues()] == [2]


def test_result_backend_refuses_results_over_max_allowed_packet(mysql: SQLPlace) -> None:
    app = QWorker("limits", backend=f"db+{mysql.url}", set_as_current=False, message_max_bytes=64 * 1024**2)
    meta = app.backend.meta("large", "SUCCESS", '"' * 9_000_000)
    with pytest.raises(EncodeError, match="max_allowed_packet"):
        app.backend.store("large", meta)
    with pytest.raises(EncodeError, match="max_allowed_packet"):
        app.backend.store_rows([app.backend.row("large", meta)])
    assert app.backend.store("small", app.backend.meta("small", "SUCCESS", 1))
    app.close()


# -- sessions --


@pytest.mark.parametrize("mode", ["NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", ""])
def test_values_are_escaped_for_the_sql_mode(mysql: SQLPlace, mode: str) -> None:
    """Sessions set their own mode. The server notifies PyMySQL of changes, which adapts its escaping."""
    with closing(mysql.open()) as store:
        assert isinstance(store, SQLBroker)
        own = store.consumer.register("w@test", ["q"], 2)
        for link in (store.consumer._handle.open(), store._shared.open()):
            (found,) = link.ask("SELECT @@sql_mode")[0]
            assert "STRICT_ALL_TABLES" in found
            assert "NO_BACKSLASH_ESCAPES" not in found
            link.do(f"SET SESSION sql_mode = '{mode}'")
        body = bytes(range(256)) * 4 + b"'\\'' OR 1=1 -- \\"
        headers = "'\\'\"\\\\; DROP TABLE x; -- \U0001f600\\"
        store.sender.push([message(headers, body=body, properties=headers) for _ in range(50)])
        for leased in store.consumer.lease(["q"], 100).messages:
            assert (leased.headers, leased.properties, leased.body) == (headers, headers, body)
            store.consumer.settle(own, [Ack(leased.tag, (f"id-{leased.tag}'\\", "SUCCESS", body, None))])
        assert store.admin.queues() == []
        ((count,),) = store.consumer._handle.open().ask(
            "SELECT count(*) FROM celery_taskmeta WHERE result = %s", (body,)
        )
        assert count == 50


def test_consumers_report_locked_rows_at_once(place: SQLPlace) -> None:
    """A listener that waited again and again would lose its lease. Others try again."""
    statement = "UPDATE qworker_schema SET version = version WHERE id = 1"
    with closing(SQLBroker(place.url)) as holder, closing(SQLBroker(place.url, lease_seconds=1.0)) as other:
        tries = []

        def wait(link: Link) -> None:
            tries.append(time.monotonic())
            link.do(statement)

        def hold(link: Link) -> None:
            link.do(statement)
            with pytest.raises(BrokerUnavailable, match="another transaction has locked rows"):
                other.consumer._handle.run(wait)

        holder._shared.transact(hold)
        assert len(tries) == 1
        assert time.monotonic() - tries[0] < 5.0
        other.consumer._handle.run(wait)  # the connection is still usable


def test_server_ends_idle_transactions_of_joins(app: QWorker, place: SQLPlace) -> None:
    setting = {
        "postgresql": "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
        "mysql": "SELECT 1000 * @@idle_transaction_timeout",
    }[family_of(place.url)]
    joins = app.backend.joins
    assert isinstance(joins, SQLJoins)
    ((milliseconds,),) = joins._database.transact(lambda session: session.ask(setting))
    assert int(milliseconds) == 1000 * IDLE_SECONDS


def test_commits_are_confirmed_in_one_exchange(tmp_path: Path) -> None:
    """A worker that froze between two statements would lose its connection, and with it the tasks whose
    early acknowledgement was to be confirmed."""
    place = PostgreSQLPlace(tmp_path)
    try:
        with closing(SQLBroker(place.url)) as broker, (tmp_path / "trace").open("w+") as trace:

            def confirm(link: Link) -> None:
                assert isinstance(link, PostgreSQLLink)
                server = link._connection.pgconn
                for _ in range(3):  # more than psycopg's threshold for prepared statements
                    link.flush()
                server.trace(trace.fileno())
                link.flush()
                server.untrace()

            broker.consumer._handle.run(confirm)
            messages = (tmp_path / "trace").read_text().splitlines()
            assert [line.split("\t")[3] for line in messages if "\tF\t" in line] == ["Query"]
    finally:
        place.clear()


@pytest.mark.parametrize("what", ["qworker_owner", "qworker_message"])
def test_session_of_a_frozen_worker_is_ended(place: SQLPlace, what: str) -> None:
    """It is silent while it claims or settles. A worker that waited for it would lose its own lease."""
    uptime = FakeClock()
    with (
        closing(SQLBroker(place.url, uptime=uptime.uptime)) as frozen,
        closing(SQLBroker(place.url, uptime=uptime.uptime)) as other,
    ):
        frozen.sender.push([message(str(number)) for number in range(3)])
        frozen.consumer.register("frozen@host", ["q"], 1)
        assert len(frozen.consumer.lease(["q"], 3).messages) == 3
        other.consumer.register("other@host", ["q"], 1)
        uptime.advance(10.0)
        other.consumer.extend()

        def freeze(link: Link) -> None:
            if family_of(place.url) == "mysql":  # which would end it by itself
                link.do("SET SESSION idle_transaction_timeout = 0")
            with link.transaction():
                link.ask(f"SELECT * FROM {what} LIMIT 1 FOR UPDATE")
                for seconds in (6.0, 13.0):  # its lease has ended, but it may be sending a large result
                    uptime.advance(seconds)
                    other.consumer.extend()
                    assert other.consumer.reclaim() == []
                link.ask("SELECT 1")
                uptime.advance(2.0)
                other.consumer.extend()
                began = time.monotonic()
                assert other.consumer.reclaim() == []
                assert time.monotonic() - began < 2.0
                found = until(other.consumer.reclaim)  # the server needs a moment to end it
                assert [(each.name, each.returned) for each in found] == [("frozen@host", 3)]
                link.ask("SELECT 1")

        with pytest.raises(BrokerUnavailable):
            frozen.consumer._handle.run(freeze)
        assert len(other.consumer.lease(["q"], 3).messages) == 3
        with pytest.raises(LeaseLost):
            frozen.consumer.extend()


def test_sweep_does_not_wait_for_the_rows_of_other_consumers(place: SQLPlace) -> None:
    with (
        closing(SQLBroker(place.url)) as gone,
        closing(SQLBroker(place.url)) as working,
        closing(SQLBroker(place.url, lease_seconds=1.0)) as sweeping,
    ):
        gone.consumer.register("gone@host", ["q"], 1)
        generation = working.consumer.register("working@host", ["q"], 1)
        sweeping.consumer.register("sweeping@host", ["q"], 1)
        place.execute("UPDATE qworker_owner SET lease_until = lease_until - 9999 WHERE name = 'gone@host'")

        def claim(link: Link) -> None:
            with link.transaction():
                link.ask("SELECT id FROM qworker_owner WHERE id = %s FOR UPDATE", (generation,))
                assert sweeping.consumer.sweep("dead", 60.0, 100) == 1  # RowsLocked, if it waited

        working.consumer._handle.run(claim)
        left = sweeping.consumer._handle.run(lambda link: link.ask("SELECT name FROM qworker_owner"))
        assert {name for (name,) in left} == {"working@host", "sweeping@host"}


def test_session_that_makes_tables_may_be_idle_for_a_limited_time(mysql: SQLPlace) -> None:
    """It holds a lock that others wait for, even if its process is frozen."""
    with closing(SQLBroker(mysql.url)) as store:
        link = store.consumer._handle.open()
        assert isinstance(link, MySQLLink)
        usual = link.ask("SELECT @@wait_timeout")
        with link._making():
            assert link.ask("SELECT @@wait_timeout") == [(IDLE_SECONDS,)]
        assert link.ask("SELECT @@wait_timeout") == usual != [(IDLE_SECONDS,)]


def test_own_former_session_is_ended(place: SQLPlace) -> None:
    """The server has not noticed that its connection has broken, and keeps rows locked."""
    with closing(SQLBroker(place.url)) as broker, closing(SQLBroker(place.url)) as former:
        broker.sender.push([message("one")])
        consumer: Any = broker.consumer
        generation = consumer.register("w@host", ["q"], 1)
        (leased,) = consumer.lease(["q"], 1).messages
        consumer._handle.close()  # from now on, *former* plays its connection

        def settle(link: Link) -> None:
            link.listen(generation)
            if family_of(place.url) == "mysql":  # which would end it by itself
                link.do("SET SESSION idle_transaction_timeout = 0")
            with link.transaction():
                link.ask("SELECT tag FROM qworker_message WHERE tag = %s FOR UPDATE", (leased.tag,))
                assert consumer.settle(generation, [Ack(leased.tag)]) == set()
                link.ask("SELECT 1")

        with pytest.raises(BrokerUnavailable):
            former.consumer._handle.run(settle)
        assert broker.admin.queues() == []
        consumer._handle.close()
        consumer.extend()  # its session has the name again

        def freeze(link: Link) -> None:
            with link.transaction():
                link.ask("SELECT id FROM qworker_owner FOR UPDATE")
                assert former.consumer._handle.run(lambda other: other.end_session(generation))
                link.ask("SELECT 1")

        with pytest.raises(BrokerUnavailable):
            consumer._handle.run(freeze)


def test_settling_is_reported_although_the_row_of_the_worker_is_locked(place: SQLPlace) -> None:
    with closing(SQLBroker(place.url, lease_seconds=2.0)) as broker, closing(SQLBroker(place.url)) as other:
        broker.sender.push([message("one")])
        consumer: Any = broker.consumer
        generation = consumer.register("w@h", ["q"], 1)
        (leased,) = consumer.lease(["q"], 1).messages
        consumer._files.copy_running(lambda tags: None)
        consumer._files._copied = b"others"  # a child has begun another task since
        consumer._copy_at = 0.0

        def lock(link: Link) -> None:
            with link.transaction():
                link.ask("SELECT id FROM qworker_owner WHERE id = %s FOR UPDATE", (generation,))
                try:
                    lost = consumer.settle(generation, [Ack(leased.tag)])
                except RowsLocked:  # settling needs the row, too
                    assert place.count() == 1
                else:
                    assert (lost, place.count()) == (set(), 0)

        other.consumer._handle.run(lock)


def test_sessions_of_nobody_else_are_ended(place: SQLPlace) -> None:
    with closing(SQLBroker(place.url)) as broker, closing(SQLBroker(place.url)) as other:
        consumer: Any = broker.consumer
        generation = consumer.register("w@host", ["q"], 1)
        consumer.extend()
        assert not consumer._handle.run(lambda link: link.end_session(generation)), "its own"
        consumer.extend()
        link: Any = other.consumer._handle.open()
        if family_of(place.url) == "mysql":
            number = link._connection.server_thread_id
            link._connection.server_thread_id = (number[0] + 10**6,)  # as behind a proxy
            assert not link.end_session(generation)
            link._connection.server_thread_id = number
        else:
            consumer._handle.close()
            with closing(SQLBroker(place.url)) as publisher:  # it tries whether the consumer listens
                asking: Any = publisher.consumer._handle.open()
                with asking.transaction():
                    until(lambda: asking.ask("SELECT pg_try_advisory_xact_lock(%s)", (generation,))[0][0])
                    assert not link.end_session(generation)
                    asking.ask("SELECT 1")
        consumer.extend()
        assert until(lambda: link.end_session(generation))
        with pytest.raises(BrokerUnavailable):
            consumer.extend()


def test_tables_in_other_schemas_are_made_at_the_same_time(tmp_path: Path) -> None:
    places = [PostgreSQLPlace(tmp_path / name) for name in "ab"]
    try:
        with closing(SQLBroker(places[0].url)) as first, closing(SQLBroker(places[1].url)) as second:
            making: Any = first.consumer._handle.open()
            other: Any = second.consumer._handle.open()
            other.do("SET lock_timeout = '2s'")
            with making.transaction():
                making.do(LOCK_SCHEMA)
                other.create()
    finally:
        for each in places:
            each.clear()


def test_lease_is_kept_while_a_table_is_locked(place: SQLPlace) -> None:
    """Also by a worker that has to connect again."""
    family = family_of(place.url)
    statement = {
        "postgresql": "BEGIN; LOCK TABLE qworker_message IN SHARE MODE",
        "mysql": "LOCK TABLES qworker_message READ",
    }[family]
    with (
        closing(SQLBroker(place.url)) as holder,
        closing(SQLBroker(place.url, lease_seconds=2.0)) as broker,
        closing(SQLBroker(place.url)) as other,
    ):
        broker.sender.push([message("one")])
        consumer: Any = broker.consumer
        generation = consumer.register("w@host", ["q"], 1)
        (leased,) = consumer.lease(["q"], 1).messages

        def lock(link: Link) -> None:
            link.do(statement)
            began = time.monotonic()
            while time.monotonic() < began + 3.0:
                with pytest.raises(RowsLocked):
                    consumer.settle(generation, [Ack(leased.tag)])
                consumer.extend()
            began = time.monotonic()
            while time.monotonic() < began + 3.0:
                consumer._handle.close()
                with pytest.raises(RowsLocked):
                    consumer.extend()
            ((left,),) = other.consumer._handle.run(lambda link: link.ask(LEASE_LEFT, (generation,)))
            assert left > 0
            link.do("COMMIT" if family == "postgresql" else "UNLOCK TABLES")

        holder.consumer._handle.run(lock)
        assert consumer.settle(generation, [Ack(leased.tag)]) == set()


def test_workers_may_not_be_allowed_to_end_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Then the messages of other silent workers are reclaimed all the same."""
    place, role = PostgreSQLPlace(tmp_path), f"qworker_test_{uuid4().hex}"
    function = "FUNCTION pg_terminate_backend(int, bigint)"
    database = urlsplit(place.url)
    url = database._replace(netloc=f"{role}:secret@{database.netloc.rpartition('@')[2]}").geturl()
    uptime = FakeClock()
    for statement in (
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT ALL ON SCHEMA {place._name} TO {role}",
        f"REVOKE EXECUTE ON {function} FROM PUBLIC",
    ):
        place.execute(statement)
    try:
        with ExitStack() as stack:
            frozen, silent, other = (
                stack.enter_context(closing(SQLBroker(url, uptime=uptime.uptime))) for _ in range(3)
            )
            frozen.sender.push([message(str(number)) for number in range(4)])
            for name, each in (("frozen", frozen), ("silent", silent)):
                each.consumer.register(f"{name}@host", ["q"], 1)
                assert len(each.consumer.lease(["q"], 2).messages) == 2
            other.consumer.register("other@host", ["q"], 1)
            for _ in range(4):
                uptime.advance(10.0)
                other.consumer.extend()

            def freeze(link: Link) -> None:
                with link.transaction():
                    link.ask("SELECT * FROM qworker_message ORDER BY tag LIMIT 1 FOR UPDATE")
                    assert [each.name for each in other.consumer.reclaim()] == ["silent@host"]
                    until(lambda: other.consumer.reclaim() or caplog.text)
                    assert other.consumer.reclaim() == []

            frozen.consumer._handle.run(freeze)
            assert caplog.text.count("cannot be ended from here") == 1
            assert [each.name for each in other.consumer.reclaim()] == ["frozen@host"]
    finally:
        place.execute(f"GRANT EXECUTE ON {function} TO PUBLIC")
        place.clear()
        with closing(place._connect()) as connection:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_locks_of_similar_databases_have_different_names(mysql: SQLPlace) -> None:
    with closing(SQLBroker(mysql.url)) as store:
        link = store.consumer._handle.open()
        ((own,),) = link.ask("SELECT database()")
        names = {own} | {f"{own}_{'x' * 30}_{last}" for last in "ab"}
        try:
            found = set()
            for name in names:
                link.do(f"CREATE DATABASE IF NOT EXISTS {name}")
                link.do(f"USE {name}")
                found |= {lock for (lock,) in link.ask(f"SELECT {CONSUMER}", (10**14,))}
        finally:
            for name in names - {own}:
                link.do(f"DROP DATABASE IF EXISTS {name}")
        assert len(found) == len(names)
        assert max(map(len, found)) <= 64


def test_joins_work_where_every_statement_is_prepared(tmp_path: Path) -> None:
    place = PostgreSQLPlace(tmp_path)
    url = f"db+{place.url}{'&' if '?' in place.url else '?'}prepare_threshold=0"
    app = QWorker("limits", broker="memory://", backend=url, set_as_current=False)
    try:
        joins = app.backend.joins
        assert isinstance(joins, SQLJoins)
        for number in range(3):
            assert joins._database.transact(lambda session, n=number: session.ask("SELECT %s", (n,)))
    finally:
        app.close()
        place.clear()
