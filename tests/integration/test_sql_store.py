"""The SQL broker on its servers: databases, connections and results, beyond the contract suite."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from qworker.backends.sql.backend import SQLBackend
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.testing.contract import mark
from qworker.transports.lease import NO_ROOM, Ack, Broker, Consumer, Reclaimed, Release, Store
from qworker.transports.sql.broker import SQLBroker
from qworker.transports.sql.consumer import SQLConsumer
from qworker.transports.sql.link import ClaimOrder
from qworker.transports.sql.reclaim import others
from qworker.transports.sql.schema import waking
from tests.acceptance.proxy import Proxy
from tests.contract.place_sql import PostgreSQLPlace, SQLPlace
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def stores(place: SQLPlace) -> Iterator[Any]:
    opened: list[Broker] = []

    def open_one(**options: Any) -> Broker:
        opened.append(place.open(**options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_tables_of_a_newer_version_are_refused(stores: Any, place: SQLPlace) -> None:
    stores().sender.push([message("a")])
    place.execute("UPDATE qworker_schema SET version = 99")
    with pytest.raises(ConfigurationError, match="newer qworker"):
        stores().sender.push([message("b")])


def test_old_tables_are_upgraded_while_in_use(stores: Any, place: SQLPlace) -> None:
    """Older workers may continue, and more of them may start."""
    stores().sender.push([message("a")])
    place.execute("ALTER TABLE qworker_owner DROP COLUMN presence")
    place.execute("DELETE FROM qworker_schema WHERE id > 1")
    place.execute(
        "INSERT INTO qworker_owner (id, name, pid, boot, lock_path, marks, queues, concurrency, started, "
        "lease_until, armed_until, running) VALUES (1, 'before@test', 1, '', '', '', 'q', 1, 1, 1e12, 0, '')"
    )
    several = [stores() for _ in range(4)]
    threads = [threading.Thread(target=each.admin.workers) for each in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    several[0].consumer.present('{"waiting":3}')
    several[0].consumer.register("w@test", ["q"], 1)
    assert [(one.name, one.waiting) for one in several[1].admin.workers()] == [
        ("before@test", 0),
        ("w@test", 3),
    ]
    assert [leased.headers for leased in several[0].consumer.lease(["q"], 9).messages] == ["a"]
    # The only version that older workers check.
    assert place.version() == 1


def test_upgrade_without_permission_only_allows_publishing(tmp_path: Path) -> None:
    place = PostgreSQLPlace(tmp_path)
    role = place._name  # a role for this test
    owner = place.open()
    url = place.url.replace("options=", f"options=-crole%3D{role}%20", 1)
    try:
        owner.sender.push([message("a")])
        place.execute("ALTER TABLE qworker_owner DROP COLUMN presence")
        place.execute("DELETE FROM qworker_schema WHERE id > 1")
        place.execute(f"CREATE ROLE {role}")
        place.execute(f"GRANT USAGE ON SCHEMA {role} TO {role}")
        for kind in ("TABLES", "SEQUENCES"):
            place.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA {role} TO {role}")
        with closing(SQLBroker(url)) as other:
            other.sender.push([message("b")])
            with pytest.raises(ConfigurationError, match="run `qworker queues` once as their owner"):
                other.consumer.register("w@test", ["q"], 1)
        with closing(place.open()) as upgraded:
            upgraded.admin.queues()
        with closing(SQLBroker(url)) as other:
            other.consumer.register("w@test", ["q"], 1)
            assert [leased.headers for leased in other.consumer.lease(["q"], 9).messages] == ["a", "b"]
    finally:
        owner.close()
        place.clear()
        with closing(place._connect()) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {role}")


def test_a_transaction_only_needs_to_insert_messages(tmp_path: Path) -> None:
    """Publishing in one's own transaction; waiting workers are notified all the same."""
    place = PostgreSQLPlace(tmp_path)
    role = place._name
    with closing(place.open()) as broker, closing(place._connect()) as connection:
        try:
            broker.consumer.register("w@test", ["q"], 1)
            while broker.consumer.wait(0.05):
                broker.consumer.lease(["q"], 1)
            connection.execute(f"CREATE ROLE {role}")
            connection.execute(f"GRANT USAGE ON SCHEMA {role} TO {role}")
            connection.execute(f"GRANT INSERT ON {role}.qworker_message TO {role}")
            connection.execute(f"GRANT USAGE ON SEQUENCE {role}.qworker_message_tag_seq TO {role}")
            connection.execute(f"SET ROLE {role}")
            with connection.transaction():
                broker.sender.join(connection).push([message("a")])
            assert broker.consumer.wait(5) is True
            assert [leased.headers for leased in broker.consumer.lease(["q"], 9).messages] == ["a"]
        finally:
            connection.execute("RESET ROLE")
            broker.close()
            place.clear()
            connection.execute(f"DROP ROLE IF EXISTS {role}")


def test_connections_closed_by_the_server_are_replaced(stores: Any, place: SQLPlace) -> None:
    store = stores()
    store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a")])
    assert store.consumer.wait(30)
    place.end_connections()
    store.sender.push([message("b")])  # it checks its connection first
    with pytest.raises(BrokerUnavailable):
        store.consumer.lease(["q"], 10)
    assert [leased.headers for leased in store.consumer.lease(["q"], 10).messages] == ["a", "b"]
    store.consumer.wait(0)  # listens again, on the new connection
    until(lambda: not store.consumer.wait(0))
    stores().sender.push([message("c")])
    assert store.consumer.wait(30)


def test_wait_ends_when_the_connection_is_closed(stores: Any, place: SQLPlace) -> None:
    store = stores()
    store.consumer.register("w@test", ["q"], 1)
    ending = threading.Timer(0.05, place.end_connections)
    ending.start()
    with pytest.raises(BrokerUnavailable):
        store.consumer.wait(60)
    ending.join()
    assert store.consumer.wait(30) is True


def test_running_messages_are_counted_without_the_running_file(stores: Any) -> None:
    now = [1000.0]
    lost, well = (stores(lease_seconds=15.0, uptime=lambda: now[0]) for _ in range(2))
    lost.consumer.register("lost@test", ["q"], 1)
    well.consumer.register("well@test", ["q"], 1)
    well.sender.push([message("runs"), message("waits")])
    running, _ = lost.consumer.lease(["q"], 10).messages
    mark(lost, running.tag)
    until(lambda: not lost.consumer.wait(0.2))  # once it has received the notification
    Path(lost.consumer.running_path()).unlink()
    now[0] += 16
    assert well.consumer.reclaim() == [Reclaimed("lost@test", 2, 1)]
    assert {each.headers: each.deliveries for each in well.consumer.lease(["q"], 10).messages} == {
        "runs": 1,
        "waits": 0,
    }


def test_an_expired_lease_is_looked_at_again_after_a_late_answer(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = stores(lease_seconds=0.1), stores()
    gone.consumer.register("gone@test", ["q"], 1)
    other.consumer.register("w@test", ["q"], 1)
    other.sender.push([message("a")])
    assert gone.consumer.lease(["q"], 1).messages
    time.sleep(0.2)
    monkeypatch.setattr("qworker.process.owner_files.PROMPT_SECONDS", -1.0)
    assert other.consumer.reclaim() == [], "its owner may only have been unable to renew"
    monkeypatch.undo()
    assert [(one.name, one.returned) for one in other.consumer.reclaim()] == [("gone@test", 1)]


def test_a_look_for_dead_workers_reads_few_rows_of_a_fleet(stores: Any) -> None:
    """Each worker looks; otherwise all would read the rows of all."""
    fleet = [stores(lease_seconds=seconds) for seconds in (0.05, 0.05, 60.0, 70.0, 80.0)]
    generations = [each.consumer.register(f"w{n}@test", ["q"], 1) for n, each in enumerate(fleet)]
    time.sleep(0.2)

    def read(every: bool) -> tuple[list[str], int]:
        found, count = fleet[-1].consumer._handle.run(
            lambda link: others(link, generations[-1], None, True, every)
        )
        return sorted(each.name for each in found if each.until > each.now or each.silent), count

    assert read(every=False) == (["w0@test", "w1@test", "w2@test"], 3)
    assert read(every=True) == (["w0@test", "w1@test", "w2@test", "w3@test"], 5)


def test_the_next_look_for_dead_workers_is_at_most_a_lease_away(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of a large fleet may have died since it was counted."""
    monkeypatch.setattr("qworker.transports.sql.reclaim.LOOK_APART", 1000.0)
    first, second = stores(lease_seconds=2.0), stores(lease_seconds=1.0)
    first.consumer.register("first@test", ["q"], 1)
    second.consumer.register("second@test", ["q"], 1)
    assert first.consumer.reclaim() == []
    rest = first.consumer._reclaimer._look_at - time.monotonic()
    assert 1.0 < rest <= 2.0


# -- Waking one waiting worker on PostgreSQL --


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[PostgreSQLPlace]:
    place = PostgreSQLPlace(tmp_path)
    yield place
    place.clear()


@pytest.fixture
def waiting(postgresql: PostgreSQLPlace) -> Iterator[Callable[[], Consumer]]:
    """Opens consumers that wait for messages of the queue q."""
    brokers: list[Broker] = []

    def open_one() -> Consumer:
        brokers.append(postgresql.open())
        consumer = brokers[-1].consumer
        consumer.register("w@test", ["q"], 1)
        drain(consumer)
        return consumer

    yield open_one
    for broker in brokers:
        with suppress(BrokerUnavailable):  # of the dead
            broker.close()


def disconnect(place: PostgreSQLPlace, *consumers: Consumer) -> None:
    """Have the server end all connections; *consumers* notice it."""
    place.end_connections()
    for consumer in consumers:
        with pytest.raises(BrokerUnavailable):
            consumer.wait(60)


def drain(consumer: Consumer) -> list[Any]:
    """Lease from q until there is nothing more; return the headers."""
    found = consumer.lease(["q"], 9).messages
    while consumer.wait(0.05, 9):
        found += consumer.lease(["q"], 9).messages
    return [leased.headers for leased in found]


def number(consumer: Consumer) -> int:
    """Return the id of *consumer*."""
    assert isinstance(consumer, SQLConsumer)
    return consumer._generation


def channel(place: SQLPlace) -> str:
    ((oid,),) = place._ask("SELECT to_regclass('qworker_message')::oid")
    return f"qworker_{oid}"


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_a_passed_on_notification_does_not_end_a_later_one(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer], used: bool
) -> None:
    """It ends at the first consumer that passed it on; the next one goes on to all."""
    first, second, third = waiting(), waiting(), waiting()
    for consumer in (first, second, third):
        drain(consumer)
    place = channel(postgresql)

    def notify(consumer: Consumer, passed_by: str) -> None:
        postgresql._ask(f"SELECT pg_notify('{place}_{number(consumer)}', '{passed_by}')")
        assert consumer.wait(2)

    notify(second, "" if not used else str(number(third)))
    if used:
        assert second.lease(["q"], 9).messages == []
        row = ("q", 0, None, 0, 0.0, "{}", None, b"")
        assert isinstance(second, SQLConsumer)
        second._run(lambda link: link.add_messages([row] * 3, "qworker_message"))  # unnotified
        assert len(second.lease(["q"], 1).messages) == 1
    else:
        notify(second, str(number(third)))
        second.wait(0.05, NO_ROOM)
    assert third.wait(2)


def test_row_of_a_consumer_does_not_grow_with_the_queues_that_it_has_used(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer]
) -> None:
    consumer = waiting()
    for each in range(50):
        consumer.lease([f"reply.{each}"], 1)
    consumer.lease(["q", "r"], 1)
    consumer.lease(["q"], 1)
    consumer.extend()
    assert postgresql._ask(f"SELECT queues FROM qworker_owner WHERE id = {number(consumer)}") == [("q",)]


def test_a_dead_worker_is_not_notified_while_another_publishes(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer]
) -> None:
    gone, live = waiting(), waiting()
    disconnect(postgresql, live)
    drain(live)
    with closing(postgresql.open()) as broker, closing(postgresql._connect()) as publisher:
        publisher.execute(f"SET search_path = {postgresql._name}")
        with publisher.transaction():
            wake = waking(channel(postgresql), ["q"], number(gone) - 1)
            assert publisher.execute(*wake).fetchone()[0] == number(live)
            for text in "abcd":
                broker.sender.push([message(text)])
                assert live.wait(10, 9) is True
                assert [leased.headers for leased in live.lease(["q"], 9).messages] == [text]


@pytest.mark.parametrize("kept", [False, True])
def test_a_worker_is_notified_if_one_published_when_it_connected(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer], kept: bool
) -> None:
    """kept: the publisher is just looking whether the worker is dead."""
    consumer = waiting()
    disconnect(postgresql, consumer)
    with closing(postgresql.open()) as broker, closing(postgresql._connect()) as publisher:
        publisher.execute(f"SET search_path = {postgresql._name}")
        with publisher.transaction():
            publisher.execute(*waking(channel(postgresql), ["q"]))
            if kept:
                publisher.execute("SELECT pg_advisory_xact_lock(%s)", (number(consumer),))
            connecting = threading.Thread(target=drain, args=(consumer,))
            connecting.start()
            if kept:
                waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"
                until(lambda: publisher.execute(waits, (number(consumer) % 2**32,)).fetchone() is not None)
            else:
                connecting.join(30)
        connecting.join(30)
        broker.sender.push([message("a")])
        assert consumer.wait(10, 9) is True


def test_a_notification_that_is_passed_on_ends_if_the_first_to_do_so_has_died(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer]
) -> None:
    full = [waiting() for _ in range(3)]
    name = channel(postgresql)
    with closing(postgresql.open()) as broker, closing(postgresql._connect()) as listener:
        for consumer in full:
            listener.execute(f"LISTEN {name}_{number(consumer)}")
        broker.sender.push([message("a")])
        (first,) = listener.notifies(timeout=10, stop_after=1)
        gone = next(consumer for consumer in full if first.channel.endswith(str(number(consumer))))
        assert gone.wait(0.05, NO_ROOM) is False
        full.remove(gone)
        postgresql.execute(f"UPDATE qworker_owner SET armed_until = 0 WHERE id = {number(gone)}")
        for _ in range(5):
            for consumer in full:
                consumer.wait(0.05, NO_ROOM)
        passed = [each.payload for each in listener.notifies(timeout=0.2)]
    assert passed.count(str(number(gone))) <= 3
    assert [headers for consumer in full for headers in drain(consumer)] == ["a"]


def test_a_notification_with_an_invalid_payload_is_passed_on(
    postgresql: PostgreSQLPlace, waiting: Callable[[], Consumer]
) -> None:
    """Any user of the database may notify."""
    full, free = waiting(), waiting()
    postgresql.execute(f"NOTIFY {channel(postgresql)}_{number(full)}, 'what''s this'")
    assert full.wait(0.2, NO_ROOM) is False
    assert free.wait(10, 9) is True


def test_what_a_dead_worker_was_notified_of_is_taken_by_others(waiting: Callable[[], Consumer]) -> None:
    gone, other, third = waiting(), waiting(), waiting()
    assert isinstance(gone, SQLConsumer)
    gone._files.let_go()  # like the kernel for a killed process
    assert [one.returned for one in other.reclaim()] == [0]
    assert third.wait(10, 9) is True


def test_a_message_that_is_not_taken_is_not_reported_all_the_time(stores: Any) -> None:
    consumer = stores().consumer
    consumer.register("w@test", ["q"], 1)
    assert consumer.lease(["q"], 1).messages == []
    while consumer.wait(0.05):
        assert consumer.lease(["q"], 1).messages == []
    stores().sender.push([message("a")])
    assert consumer.wait(30) is True
    assert consumer.wait(0.05) is False


def test_busy_worker_is_not_notified(stores: Any) -> None:
    busy, other = stores(), stores()
    own = busy.consumer.register("busy@test", ["q"], 1)
    other.sender.push([message(str(number)) for number in range(10)])
    assert busy.consumer.wait(30)
    for _ in range(3):
        (leased,) = busy.consumer.lease(["q"], 1).messages
        busy.consumer.settle(own, [Ack(leased.tag)])
    other.sender.push([message("unheard")])
    assert busy.consumer.wait(30) is True  # it listens from now on, and polls for missed messages
    assert len(busy.consumer.lease(["q"], 100).messages) == 8
    until(lambda: not busy.consumer.wait(0.02))
    other.sender.push([message("heard")])
    assert busy.consumer.wait(30) is True


def deadlock(place: SQLPlace) -> Exception:
    """Return the server's error for a transaction that can be retried."""
    if isinstance(place, PostgreSQLPlace):
        import psycopg

        return psycopg.errors.DeadlockDetected("deadlock detected")
    import pymysql

    return pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")


@pytest.mark.parametrize("times", [1, 99])
def test_messages_of_a_queue_are_kept_if_the_next_queue_fails(
    stores: Any, place: SQLPlace, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Otherwise they would stay leased, unknown to the consumer, as long as it lives."""
    store, queues = stores(), ["q", "r"]
    store.consumer.register("w@test", queues, 1)
    store.sender.push([message("a", "q"), message("b", "r")])
    link = store.consumer._handle.open()
    claim, calls = link.claim, []

    def fails_second(order: ClaimOrder) -> Any:
        calls.append(order.queue)
        if 1 < len(calls) <= 1 + times:
            raise deadlock(place)
        return claim(order)

    monkeypatch.setattr(link, "claim", fails_second)
    first = store.consumer.lease(queues, 10)
    found = [leased.headers for leased in first.messages]
    assert len(found) == (2 if times == 1 else 1)
    assert (first.next_due is None) == (times == 1), "the failed queue should be polled again"
    monkeypatch.undo()
    found += [leased.headers for leased in store.consumer.lease(queues, 10).messages]
    assert sorted(found) == ["a", "b"]


def test_delayed_messages_are_only_queried_if_there_are_any(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores(), stores()
    store.consumer.register("w@test", ["q"], 1)
    link = store.consumer._handle.open()
    take, queried = link._claim, []

    def watched(order: ClaimOrder) -> Any:
        queried.append(order.delayed_limit)
        return take(order)

    monkeypatch.setattr(link, "_claim", watched)
    assert store.consumer.lease(["q"], 10, 10, 5.0).messages == []
    assert queried == [10]  # nothing was known yet
    other.sender.push([message("a"), message("b")])
    assert len(store.consumer.lease(["q"], 1, 10, 5.0).messages) == 1
    assert queried == [10, 0]
    other.sender.push(
        [message("soon", due=SYSTEM_CLOCK.now() + 2), message("late", due=SYSTEM_CLOCK.now() + 60)]
    )
    assert [leased.headers for leased in store.consumer.lease(["q"], 1, 10, 5.0).messages] == ["b"]
    assert queried == [10, 0, 0]
    assert store.admin.next_due(["q"]) < SYSTEM_CLOCK.now() + 2
    assert [leased.headers for leased in store.consumer.lease(["q"], 10, 10, 5.0).messages] == ["soon"]
    assert queried == [10, 0, 0, 10]
    assert store.consumer.lease(["q"], 10, 10, 5.0).messages == []
    assert queried == [10, 0, 0, 10, 0]


def test_number_of_round_trips_per_operation(place: SQLPlace) -> None:
    """Each round trip costs a wake-up on both sides, and the latency of the network."""
    counted = {}
    with Proxy(urlsplit(place.url).port or {"postgresql": 5432}.get(place.server, 3306)) as proxy:
        store = SQLBroker(proxy.url(place.url))
        own = store.consumer.register("w@test", ["q"], 1)
        store.consumer.extend()

        def exchanges(name: str, work: Callable[[], Any]) -> Any:
            before = proxy.up.pieces
            result = work()
            counted[name] = proxy.up.pieces - before
            return result

        for _ in range(4):  # the first ones connect, and prepare statements
            exchanges("publish", lambda: store.sender.push([message("a")]))
            exchanges("publish 30", lambda: store.sender.push([message("b")] * 30))
            claim = exchanges("claim", lambda: store.consumer.lease(["q"], 100, 10, 5.0))
            assert (len(claim.messages), claim.next_due, claim.last_revocation) == (31, None, 0)
            acks = [Ack(each.tag) for each in claim.messages]
            assert exchanges("ack", partial(store.consumer.settle, own, acks)) == set()
            assert place.count() == 0
            exchanges("claim nothing", lambda: store.consumer.lease(["q"], 100, 10, 5.0).messages)
        store.close()
    each = 1 if place.server == "postgresql" else 2
    assert counted == {
        "publish": 1,
        "publish 30": 1,
        "claim": each,
        "ack": 1,
        "claim nothing": each,
    }


# -- results --


def backend(place: SQLPlace, **options: Any) -> SQLBackend:
    conf = Settings()
    for name, value in options.items():
        setattr(conf, name, value)
    return SQLBackend(f"db+{place.url}", conf, SYSTEM_CLOCK)


@pytest.mark.parametrize("first", ["result store", "broker"])
@pytest.mark.parametrize("extended", [False, True])
def test_results_are_stored_in_celerys_table_with_the_ack(
    stores: Any, place: SQLPlace, first: str, extended: bool
) -> None:
    results = backend(place, result_extended=extended)
    store = stores()
    assert results.same_store(store.url)
    assert not results.same_store("postgresql://elsewhere/test")
    if first == "result store":
        results.add("probe", 1.0)  # creates the table
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a")])
    (leased,) = store.consumer.lease(["q"], 1).messages
    done = datetime.now(UTC).isoformat()

    def row(status: str, value: Any) -> Any:
        meta = {
            "status": status,
            "result": value,
            "traceback": None,
            "children": [],
            "date_done": done,
            "name": "t",
        }
        return results.row("one", meta)

    store.consumer.settle(own, [Store(row("STARTED", None))])
    assert results.get("one")["status"] == "STARTED"  # type: ignore[index]
    assert store.consumer.settle(
        own, [Ack(leased.tag, row("SUCCESS", 42)), Ack(999, results.row("two", {"status": "SUCCESS"}))]
    ) == {999}
    store.consumer.settle(own, [Store(row("FAILURE", None)), Store(row("STARTED", None))])
    found = results.get("one")
    assert found is not None
    assert (found["status"], found["result"]) == ("SUCCESS", 42)
    assert found.get("name") == ("t" if extended else None)
    assert results.get("two") is None
    results.close()


def test_broker_and_result_backend_create_the_same_table(stores: Any, place: SQLPlace) -> None:
    results = backend(place)
    results.add("probe", 1.0)  # creates the tables
    row = results.row("one", {"status": "STARTED"})
    results.close()
    by_results = place.columns("celery_taskmeta")
    place.execute("DROP TABLE celery_taskmeta")
    store = stores()
    store.consumer.settle(store.consumer.register("w@test", ["q"], 1), [Store(row)])
    assert place.columns("celery_taskmeta") == by_results


def test_child_and_worker_can_both_store_a_result(stores: Any, place: SQLPlace) -> None:
    results = backend(place)
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    store.consumer.settle(own, [Store(results.row("one", {"status": "STARTED"}))])
    assert results.store("one", {"status": "FAILURE", "result": "why", "date_done": None})
    store.consumer.settle(own, [Store(results.row("one", {"status": "STARTED"}))])
    assert results.get("one")["status"] == "FAILURE"  # type: ignore[index]
    store.consumer.settle(own, [Store(results.row("one", {"status": "SUCCESS"}))])
    assert results.get("one")["status"] == "SUCCESS"  # type: ignore[index]
    results.close()


# -- unresponsive servers and URLs --


def test_silent_server_raises_within_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for scheme in ("postgresql", "mysql"):
            url = f"{scheme}://me@127.0.0.1:{silent.getsockname()[1]}/test"
            store = SQLBroker(url, connect_timeout=0.5)
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                store.sender.push([message("a")])
            assert time.monotonic() - began < 10  # libpq takes no fewer than two seconds


def test_unresponsive_server_blocks_push_only_for_the_timeout(place: SQLPlace) -> None:
    with Proxy(urlsplit(place.url).port or {"postgresql": 5432}.get(place.server, 3306)) as proxy:
        store = SQLBroker(proxy.url(place.url))
        store.sender.push([message("a")])
        proxy.down.open = False
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            store.sender.push([message("b")], timeout=1)
        assert 0.9 < time.monotonic() - began < 10
        proxy.heal()
        proxy.cut()
        store.sender.push([message("c")], timeout=20)
        assert place.count() in (2, 3), "b may be stored or not"
        store.close()


def test_invalid_queue_name_raises_publish_error(stores: Any, place: SQLPlace) -> None:
    long = "q" * 300 if place.server == "mysql" else "q\x00"
    with pytest.raises(PublishError, match="cannot store this"):
        stores().sender.push([message("a", long)])
    assert place.count() == 0


def test_same_store_compares_server_database_and_schema() -> None:
    results = SimpleNamespace(url="db+postgresql+psycopg2://me:pw@localhost/shop")
    same = SQLBackend.same_store
    assert same(results, "postgresql://other@127.0.0.1:5432/shop")  # type: ignore[arg-type]
    assert not same(results, "postgresql://other@127.0.0.1:5432/elsewhere")  # type: ignore[arg-type]
    assert not same(results, "postgresql://127.0.0.1/shop?options=-csearch_path%3Dx")  # type: ignore[arg-type]
    assert not same(results, "sqlite:///shop")  # type: ignore[arg-type]


# -- a server that lost recent commits in a crash --


def test_lost_ack_is_repeated(stores: Any, place: SQLPlace) -> None:
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message(name) for name in ("acked", "released", "runs")])
    acked, released, _ = store.consumer.lease(["q"], 10).messages
    store.consumer.settle(
        own, [Ack(acked.tag, ("one", "SUCCESS", b"1", None)), Release(released.tag, counted=True)]
    )
    # The state before the lost commit.
    place.execute("DELETE FROM celery_taskmeta WHERE task_id = 'one'")
    columns = "queue, urgency, state, owner, sent, headers, body"
    place.execute(
        f"INSERT INTO qworker_message (tag, {columns}) SELECT {acked.tag}, {columns} FROM qworker_message "
        "WHERE headers = 'runs'"
    )
    place.execute(
        f"UPDATE qworker_message SET state = 2, owner = {own}, deliveries = 0 WHERE tag = {released.tag}"
    )
    place.end_connections()
    with pytest.raises(BrokerUnavailable):
        store.consumer.lease(["q"], 10)
    assert [(each.headers, each.deliveries) for each in store.consumer.lease(["q"], 10).messages] == [
        ("released", 1)
    ]
    assert place.count() == 2
    assert place.result("one") == ("SUCCESS", b"1")


def test_unknown_leased_messages_are_released(stores: Any, place: SQLPlace) -> None:
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a"), message("b")])
    store.consumer.lease(["q"], 1)
    place.execute(f"UPDATE qworker_message SET state = 2, owner = {own} WHERE headers = 'b'")
    place.end_connections()
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    assert [(each.headers, each.redelivered) for each in store.consumer.lease(["q"], 10).messages] == [
        ("b", True)
    ]


def test_lost_claim_is_repeated(stores: Any, place: SQLPlace) -> None:
    """And acks of messages of a lost claim. Released messages, and those that others have by now, are not
    claimed."""
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    names = ("held", "acked", "released", "theirs", "delayed")
    store.sender.push([message(name) for name in names])
    held, acked, released, theirs, delayed = store.consumer.lease(["q"], 10).messages
    store.consumer.settle(own, [Ack(acked.tag, ("one", "SUCCESS", b"1", None)), Release(released.tag)])
    # The state before the lost commits.
    columns = "queue, urgency, sent, headers, body"
    place.execute(
        f"INSERT INTO qworker_message (tag, state, {columns}) SELECT {acked.tag}, 0, {columns} FROM "
        "qworker_message WHERE headers = 'held'"
    )
    place.execute("DELETE FROM celery_taskmeta WHERE task_id = 'one'")
    place.execute(f"UPDATE qworker_message SET state = 0, owner = NULL WHERE tag IN ({held.tag})")
    place.execute(f"UPDATE qworker_message SET state = 1, owner = NULL, due = 1e12 WHERE tag = {delayed.tag}")
    place.execute(f"UPDATE qworker_message SET owner = 7 WHERE tag = {theirs.tag}")
    place.end_connections()
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    other = stores()
    other.consumer.register("other@test", ["q"], 1)
    store.consumer.extend()
    assert [each.headers for each in other.consumer.lease(["q"], 10).messages] == ["released"]
    assert place.result("one") == ("SUCCESS", b"1")
    assert place.count() == len(names) - 1
    lost = store.consumer.settle(own, [Ack(held.tag), Ack(theirs.tag), Ack(delayed.tag)])
    assert lost == {theirs.tag}


def test_reclaimed_consumer_does_not_repeat_its_claims(stores: Any, place: SQLPlace) -> None:
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("a")])
    store.consumer.lease(["q"], 10)
    place.execute(f"DELETE FROM qworker_owner WHERE id = {own}")
    place.execute("UPDATE qworker_message SET state = 0, owner = NULL")
    place.end_connections()
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    with pytest.raises(LeaseLost):
        store.consumer.extend()
    other = stores()
    other.consumer.register("other@test", ["q"], 1)
    assert [each.headers for each in other.consumer.lease(["q"], 10).messages] == ["a"]


def test_settled_before_excludes_messages_of_others(stores: Any, place: SQLPlace) -> None:
    store = stores()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message("done"), message("theirs"), message("ready")])
    done, theirs, ready = (each.tag for each in store.consumer.lease(["q"], 10).messages)
    store.consumer.settle(own, [Ack(done)])
    place.execute(f"UPDATE qworker_message SET owner = 7 WHERE tag = {theirs}")
    place.execute(f"UPDATE qworker_message SET owner = NULL, state = 0 WHERE tag = {ready}")
    assert set(store.consumer.settled_before([done, theirs, ready])) == {done}
    place.execute(f"DELETE FROM qworker_owner WHERE id = {own}")
    with pytest.raises(LeaseLost):
        store.consumer.settled_before([done])
