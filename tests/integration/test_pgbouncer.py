"""PostgreSQL behind a real PgBouncer in transaction mode: nothing needs a session, or leaves anything in
one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qworker import QWorker
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.lease import Ack
from qworker.transports.sql.broker import SQLBroker
from qworker.transports.sql.links import connector
from tests.acceptance.private_servers import serving
from tests.acceptance.proxy import Proxy
from tests.contract.place_sql import PgBouncerPlace, PostgreSQLPlace
from tests.servers import require
from tests.support.messages import message
from tests.support.waiting import until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PgBouncerPlace]:
    place = PgBouncerPlace(tmp_path)
    yield place
    place.clear()


def link_to(url: str, **options: Any) -> Any:
    return connector(url, 3.0, options)(True)


@pytest.mark.parametrize(
    ("server", "query", "pooled"),
    [
        ("postgresql", "", False),
        ("pgbouncer", "", True),
        ("pgbouncer", "?pooler=session", False),
        ("postgresql", "?pooler=transaction", True),
    ],
)
def test_pooler_is_found_or_stated(server: str, query: str, pooled: bool) -> None:
    with closing(link_to(f"{require(server)}{query}")) as link:
        assert (link.polls, link._connection.prepare_threshold is None) == (pooled, pooled)
        assert bool(link.notice) == (pooled and not query)
    if query:
        with closing(link_to(require(server), pooler=query.partition("=")[2])) as link:
            assert (link.polls, link.notice) == (pooled, "")


def test_unknown_pooler_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="session or transaction, not 'statement'"):
        link_to("postgresql://h/d?pooler=statement")
    with pytest.raises(ConfigurationError, match="result_backend: pooler must be"):
        QWorker("x", backend="db+postgresql://h/d?pooler=x", set_as_current=False).backend  # noqa: B018


def test_connections_to_the_server_are_left_as_they_were(place: PgBouncerPlace) -> None:
    """Settings and locks would reach other clients of the pooler: with synchronous_commit = off they would
    lose commits."""
    with closing(SQLBroker(place.url)) as broker:
        own = broker.consumer.register("w@test", ["q"], 1)
        broker.sender.push([message("a")] * 40)
        claim = broker.consumer.lease(["q"], 100)
        broker.consumer.settle(own, [Ack(each.tag) for each in claim.messages])
        with psycopg.connect(place.url, autocommit=True, prepare_threshold=None) as other:
            for _ in range(12):  # each of the pooler's connections in turn
                rows = other.execute(
                    "SELECT name FROM pg_settings WHERE source = 'session' AND name NOT IN "
                    "('application_name', 'client_encoding', 'DateStyle', 'TimeZone', "
                    "'standard_conforming_strings')"
                ).fetchall()
                assert rows == []
                assert other.execute("SELECT pg_listening_channels()").fetchall() == []
                assert other.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
        locks = place._ask("SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
        "WHERE locktype = 'advisory' AND usename = %s", place._name)  # fmt: skip
        assert locks == []


def test_idle_worker_sends_one_statement_a_look(place: PgBouncerPlace) -> None:
    """At its slowest it looks four times a second, so in as many looks no message waits longer."""
    with Proxy(int(place.url.rpartition(":")[2].partition("/")[0])) as proxy:
        broker = SQLBroker(proxy.url(place.url))
        broker.consumer.register("w@test", ["q", "r"], 1)
        broker.consumer.lease(["q", "r"], 1)
        broker.consumer.wait(0.1)
        before, began = proxy.up.pieces, time.monotonic()
        assert broker.consumer.wait(2.0) is False
        looks = proxy.up.pieces - before
        assert 2 <= looks <= 4 * (time.monotonic() - began) + 2
        broker.sender.push([message("a", queue="r")])
        assert broker.consumer.wait(30.0) is True
        assert len(broker.consumer.lease(["q", "r"], 1).messages) == 1
        broker.close()


def test_publishers_behind_the_pooler_notify_workers_that_are_not(place: PgBouncerPlace) -> None:
    direct = place._ask("SELECT current_database()")[0][0]
    url = f"{require('postgresql').rpartition('/')[0]}/{direct}".replace("//postgres@", f"//{place._name}@")
    worker, publisher = SQLBroker(url), SQLBroker(place.url)
    with closing(worker), closing(publisher):
        worker.consumer.register("w@test", ["q"], 1)
        publisher.sender.push([message("a")])
        assert worker.consumer.wait(5.0) is True
        assert worker.consumer._handle.open().polls is False
        assert len(worker.consumer.lease(["q"], 1).messages) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_results_are_polled_and_prepare_nothing(place: PgBouncerPlace, driver: str) -> None:
    pytest.importorskip(driver)
    url = place.url.replace("postgresql:", f"db+postgresql+{driver}:")
    app = QWorker("x", broker=place.url, backend=url, set_as_current=False)
    for number in range(12):  # psycopg prepares what it has sent five times
        app.backend.store(f"t{number}", app.backend.meta(f"t{number}", "SUCCESS", number))
        assert app.AsyncResult(f"t{number}").get(timeout=10) == number
    assert app.backend.open_source() is None
    app.close()


def test_mode_without_transactions_is_refused() -> None:
    with serving("pgbouncer", server=require("postgresql"), pool_mode="statement") as bouncer:
        broker = SQLBroker(bouncer.url)
        with pytest.raises(ConfigurationError, match="statement mode, which has no transactions"):
            broker.consumer.register("w@test", ["q"], 1)
        broker.close()


def test_search_path_that_the_pooler_does_not_pass_on_is_refused(tmp_path: Path) -> None:
    place = PostgreSQLPlace(tmp_path)
    url = f"{require('pgbouncer')}?{place.url.partition('?')[2]}"
    with pytest.raises(ConfigurationError, match="ALTER ROLE … SET search_path"):
        link_to(url)
    place.clear()


def test_consumer_continues_when_the_pooler_restarts(place: PgBouncerPlace) -> None:
    with serving("pgbouncer", server=require("postgresql")) as bouncer:
        broker = SQLBroker(place.url.replace(place.url.split("@")[1], bouncer.url.split("@")[1]))
        own = broker.consumer.register("w@test", ["q"], 1)
        broker.sender.push([message("a")] * 2)
        held = broker.consumer.lease(["q"], 1).messages
        bouncer.kill()
        bouncer.start()

        def settled() -> bool:
            try:
                return broker.consumer.settle(own, [Ack(held[0].tag)]) == set()
            except BrokerUnavailable:
                return False

        until(settled, 30.0, lambda: "for the ack")
        assert len(broker.consumer.lease(["q"], 5).messages) == 1
        broker.close()
