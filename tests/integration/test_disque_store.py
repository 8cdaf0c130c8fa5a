"""What is Disque's own: jobs of strangers, refusals, several nodes, and how often it is called."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, PublishError
from qworker.transports import open_broker
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.lease import Ack, Leased
from tests.support.disque_server import DisqueServer
from tests.support.messages import message

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[DisqueServer]:
    with closing(DisqueServer()) as server:
        yield server


def opened(url: str, **options: Any) -> KombuBroker:
    transport = {"wait_time_seconds": 1, "retry": 2, **options}
    broker = open_broker(url, Settings({"broker_transport_options": transport, "worker_lease_seconds": 1.0}))
    assert isinstance(broker, KombuBroker)
    return broker


@pytest.fixture
def store(server: DisqueServer) -> Iterator[KombuBroker]:
    with closing(opened(server.url)) as store:
        yield store


def got(store: KombuBroker, count: int, limit: int = 100, seconds: float = 10.0) -> list[Leased]:
    found: list[Leased] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += store.consumer.lease(["q"], limit).messages
        if len(found) < count:
            store.consumer.wait(0.05)
    return found


def test_calls_for_each_task(server: DisqueServer, store: KombuBroker) -> None:
    """A worker at load asks for many jobs, and ends many, at a time."""
    before = server.trips()
    for _ in range(10):
        store.sender.push([message(f"m{number}", "q") for number in range(100)])
    generation = store.consumer.register("w@test", ["q"], 2)
    ended = 0
    while ended < 1000:
        batch = got(store, 1, limit=64)
        assert store.consumer.settle(generation, [Ack(one.tag) for one in batch]) == set()
        ended += len(batch)
    commands = server.calls("getjob", "ackjob", "working", "nack")
    assert commands / 1000 < 0.1
    assert (server.trips() - before) / 1000 < 0.2


def test_a_strangers_job_is_kept(server: DisqueServer, store: KombuBroker) -> None:
    """Nobody says when it is queued again but WORKING, which is asked at once."""
    generation = store.consumer.register("w@test", ["q"], 2)
    server.ask("ADDJOB", "q", "not ours", "0", "RETRY", "2")
    (job,) = got(store, 1)
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        store.consumer.extend()
        time.sleep(0.1)
    assert server.ask("QLEN", "q") == 0
    assert store.consumer.settle(generation, [Ack(job.tag)]) == set()
    assert server.ask("JSCAN")[1] == []


def test_what_is_not_kept_in_time_is_counted(server: DisqueServer, store: KombuBroker) -> None:
    store.sender.push([message("m", "q")])
    store.consumer.register("w@test", ["q"], 2)
    (first,) = got(store, 1)
    with closing(opened(server.url)) as other:
        other.consumer.register("two@test", ["q"], 2)
        (second,) = got(other, 1)
        assert second.redelivered
        assert second.deliveries == first.deliveries + 1


def test_who_leaves_gives_back_what_is_run_once_at_most(server: DisqueServer, store: KombuBroker) -> None:
    store.consumer.register("w@test", ["q"], 2)
    server.ask("ADDJOB", "q", "once", "0", "RETRY", "0")
    assert len(got(store, 1)) == 1
    store.consumer.deregister()
    assert server.ask("QLEN", "q") == 1


def test_what_is_due_later_waits_in_disque(server: DisqueServer, store: KombuBroker) -> None:
    store.sender.push([message("m", "q", due=time.time() + 3.0)])
    (info,) = store.admin.depths(["q"])
    assert (info.ready, info.delayed, info.leased) == (0, 1, 0)
    store.consumer.register("w@test", ["q"], 2)
    assert len(got(store, 1)) == 1


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("PAUSED Queue paused in input, try later", BrokerUnavailable),
        ("NOREPL Not enough reachable nodes", BrokerUnavailable),
        ("ERR something is wrong with it", PublishError),
    ],
)
def test_what_is_refused_is_said(
    server: DisqueServer, store: KombuBroker, refusal: str, error: type[Exception]
) -> None:
    server.fault(refuse=5, text=refusal)
    with pytest.raises(error, match=refusal.removeprefix("ERR ")):
        store.sender.push([message("m", "q")])


def test_a_full_queue_takes_no_more(server: DisqueServer) -> None:
    with closing(opened(server.url, maxlen=2)) as store:
        store.sender.push([message("m", "q"), message("n", "q")])
        with pytest.raises(BrokerUnavailable, match="MAXLEN"):
            store.sender.push([message("o", "q")])


def test_the_end_waits_for_nothing(server: DisqueServer) -> None:
    with closing(opened(server.url, wait_time_seconds=10)) as store:
        store.consumer.register("w@test", ["q"], 2)
        store.consumer.lease(["q"], 1)
        time.sleep(0.2)  # the question is under way
        began = time.monotonic()
        store.consumer.deregister()
        assert time.monotonic() - began < 0.8


def test_a_worker_goes_where_its_jobs_are_made() -> None:
    with closing(DisqueServer(3)) as server:
        last = server.nodes[2]
        with closing(opened(f"disque://127.0.0.1:{server.nodes[0].port}", replicate=1)) as store:
            generation = store.consumer.register("w@test", ["q"], 2)
            for number in range(1200):
                server.ask("ADDJOB", "q", str(number), "0", "REPLICATE", "1", node=2)
            ended = 0
            while ended < 1200:
                batch = got(store, 1)
                store.consumer.settle(generation, [Ack(one.tag) for one in batch])
                ended += len(batch)
            assert last.commands["getjob"] > 0


def test_a_node_that_leaves_is_left() -> None:
    with closing(DisqueServer(2)) as server, closing(opened(server.url)) as store:
        store.sender.push([message("m", "q")])
        for node in (0, 1):
            server.ask("CLUSTER", "LEAVING", "yes", node=node)
            with closing(opened(server.url, replicate=1)) as fresh:
                fresh.sender.push([message("n", "q")])
            server.ask("CLUSTER", "LEAVING", "no", node=node)
