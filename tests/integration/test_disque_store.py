"""The Disque broker: foreign jobs, refusals, several nodes, and the number of calls."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, PublishError
from qworker.transports import open_broker
from qworker.transports.disque.link import BROKEN, Link
from qworker.transports.disque.url import Address
from qworker.transports.held.broker import HeldBroker
from qworker.transports.lease import Ack, DeadLetter, Leased, Release
from tests.support.disque_server import DisqueServer
from tests.support.messages import message
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[DisqueServer]:
    with closing(DisqueServer()) as server:
        yield server


def opened(url: str, **options: Any) -> HeldBroker:
    transport = {"wait_time_seconds": 1, "retry": 2, **options}
    broker = open_broker(url, Settings({"broker_transport_options": transport, "worker_lease_seconds": 1.0}))
    assert isinstance(broker, HeldBroker)
    return broker


@pytest.fixture
def store(server: DisqueServer) -> Iterator[HeldBroker]:
    with closing(opened(server.url)) as store:
        yield store


def got(store: HeldBroker, count: int, limit: int = 100, seconds: float = 10.0) -> list[Leased]:
    found: list[Leased] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += store.consumer.lease(["q"], limit).messages
        if len(found) < count:
            store.consumer.wait(0.05)
    return found


def test_number_of_calls_for_each_task(server: DisqueServer, store: HeldBroker) -> None:
    """A busy worker fetches, keeps and acknowledges many jobs in one exchange each."""
    before = server.trips()
    for _ in range(10):
        store.sender.push([message(f"m{number}", "q") for number in range(100)])
    generation = store.consumer.register("w@test", ["q"], 2)
    ended = 0
    while ended < 1000:
        batch = got(store, 1, limit=64)
        assert store.consumer.settle(generation, [Ack(one.tag) for one in batch]) == set()
        ended += len(batch)
    assert server.calls("getjob", "ackjob", "nack") / 1000 < 0.1
    assert server.calls("working") < 1100, "once for each job, many in one exchange"
    trips = (server.trips() - before) / 1000
    assert trips < 0.2


def test_foreign_job_is_kept(server: DisqueServer, store: HeldBroker) -> None:
    """Only WORKING tells when it is queued again, so it is called at once."""
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


def test_job_that_waited_longer_than_its_retry_is_kept(server: DisqueServer, store: HeldBroker) -> None:
    """Its retry time runs from queueing: a second worker must not get it while the first is alive."""
    store.sender.push([message(f"m{number}", "q") for number in range(8)])
    time.sleep(3.4)  # of 2 × 2 s
    generation = store.consumer.register("w@test", ["q"], 2)
    jobs = got(store, 8)
    with closing(opened(server.url)) as other:
        other.consumer.register("two@test", ["q"], 2)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            store.consumer.extend()
            assert other.consumer.lease(["q"], 8).messages == []
            time.sleep(0.05)
        assert store.consumer.settle(generation, [Ack(one.tag) for one in jobs]) == set()
    assert len(jobs) == 8
    assert server.ask("JSCAN")[1] == []


def test_job_too_old_to_be_kept_is_replaced(server: DisqueServer, store: HeldBroker) -> None:
    """One is too old on arrival, and the other becomes so; Disque would have deleted both."""
    generation = store.consumer.register("w@test", ["q"], 2)
    server.ask("ADDJOB", "q", "old", "0", "RETRY", "2", "TTL", "3")
    time.sleep(1.7)
    server.ask("ADDJOB", "q", "becomes old", "0", "RETRY", "2", "TTL", "4")
    jobs = got(store, 2)
    with closing(opened(server.url)) as other:
        other.consumer.register("two@test", ["q"], 2)
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            store.consumer.extend()
            assert other.consumer.lease(["q"], 8).messages == []
            time.sleep(0.05)
        assert len(server.ask("JSCAN")[1]) == 2
        assert store.consumer.settle(generation, [Ack(one.tag) for one in jobs]) == set()
    assert server.ask("JSCAN")[1] == []


def test_reading_a_dead_letter_renews_its_ttl(server: DisqueServer) -> None:
    """From half its TTL on: Disque no longer allows WORKING then, and a new job replaces it."""
    with closing(opened(server.url, retry=1, ttl=5)) as store:
        generation = store.consumer.register("w@test", ["q"], 2)
        store.sender.push([message("m", "q")])
        (job,) = got(store, 1)
        store.consumer.settle(generation, [DeadLetter(job.tag, "why")])
        time.sleep(3.0)
        assert [letter.reason for letter in store.admin.dead()] == ["why"]
        time.sleep(3.0)
        assert [letter.reason for letter in store.admin.dead()] == ["why"]
        assert store.admin.dead_discard() == 1


def test_job_not_kept_in_time_is_redelivered_uncounted(server: DisqueServer, store: HeldBroker) -> None:
    """The dead worker may only have held it, so it does not count as a death."""
    store.sender.push([message("m", "q")])
    store.consumer.register("w@test", ["q"], 2)
    (first,) = got(store, 1)
    with closing(opened(server.url)) as other:
        other.consumer.register("two@test", ["q"], 2)
        (second,) = got(other, 1)
        assert second.redelivered
        assert second.deliveries == first.deliveries == 0


def test_deregistering_returns_jobs_without_retry(server: DisqueServer, store: HeldBroker) -> None:
    store.consumer.register("w@test", ["q"], 2)
    server.ask("ADDJOB", "q", "once", "0", "RETRY", "0")
    assert len(got(store, 1)) == 1
    store.consumer.deregister()
    assert server.ask("QLEN", "q") == 1


def test_uncertain_release_is_not_repeated(server: DisqueServer) -> None:
    """It would be queued for a third worker while the second runs it."""
    with closing(opened(server.url, retry=60)) as store, closing(opened(server.url, retry=60)) as other:
        own = store.consumer.register("w@test", ["q"], 1)
        store.sender.push([message("m", "q")])
        (taken,) = got(store, 1)
        store.consumer._polls.close()  # so that it does not fetch it itself
        server.fault(drop=1)
        with pytest.raises(BrokerUnavailable):
            store.consumer.settle(own, [Release(taken.tag)])
        other.consumer.register("x@test", ["q"], 1)
        assert len(got(other, 1)) == 1
        other.consumer._polls.close()
        assert store.consumer.settle(own, [Release(taken.tag)]) == set()
        assert [info.ready for info in other.admin.queues()] == [0]


def test_depths_does_not_scan_jobs(server: DisqueServer, store: HeldBroker) -> None:
    """depths() calls QLEN for each queue; queues() scans all jobs once."""
    store.sender.push([message("m", "q"), message("n", "q"), message("o", "r")])
    store.consumer.register("w@test", ["q"], 2)
    got(store, 1, limit=1)
    depths = store.admin.depths(["q", "r", "none"])
    assert [(info.queue, info.ready) for info in depths] == [("q", 1), ("r", 1), ("none", 0)]
    assert server.calls("jscan") == 0
    found = store.admin.queues()
    assert [(info.queue, info.ready, info.leased) for info in found] == [("q", 1, 1), ("r", 1, 0)]
    assert server.calls("jscan") == 1


def test_delayed_job_waits_in_disque(server: DisqueServer, store: HeldBroker) -> None:
    store.sender.push([message("m", "q", due=time.time() + 3.0)])
    with closing(opened(server.url)) as other:  # it does not know the queue yet
        (info,) = other.admin.queues()
    assert (info.queue, info.ready, info.delayed, info.leased) == ("q", 0, 1, 0)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("PAUSED Queue paused in input, try later", BrokerUnavailable),
        ("NOREPL Not enough reachable nodes", BrokerUnavailable),
        ("ERR something is wrong with it", PublishError),
    ],
)
def test_refusal_is_raised(
    server: DisqueServer, store: HeldBroker, refusal: str, error: type[Exception]
) -> None:
    server.fault(refuse=5, text=refusal)
    with pytest.raises(error, match=refusal.removeprefix("ERR ")):
        store.sender.push([message("m", "q")])


def test_only_refused_jobs_are_added_again(server: DisqueServer, store: HeldBroker) -> None:
    """For example, if a node becomes full in the middle."""
    store.sender.push([message("first", "q")])
    server.fault(refuse=2, text="PAUSED Queue paused in input, try later")
    store.sender.push([message(str(number), "q") for number in range(5)])
    assert [info.ready for info in store.admin.queues()] == [1 + 5]


def test_full_queue_raises_broker_unavailable(server: DisqueServer) -> None:
    with closing(opened(server.url, maxlen=2)) as store:
        store.sender.push([message("m", "q"), message("n", "q")])
        with pytest.raises(BrokerUnavailable, match="MAXLEN"):
            store.sender.push([message("o", "q")])


def test_deregistering_does_not_wait_for_a_poll(server: DisqueServer) -> None:
    with closing(opened(server.url, wait_time_seconds=10)) as store:
        store.consumer.register("w@test", ["q"], 2)
        store.consumer.lease(["q"], 1)
        time.sleep(0.2)  # a poll is in progress
        began = time.monotonic()
        store.consumer.deregister()
        assert time.monotonic() - began < 0.8


def test_worker_connects_to_the_node_with_its_jobs() -> None:
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


def test_leaving_node_is_avoided() -> None:
    with closing(DisqueServer(2)) as server, closing(opened(server.url)) as store:
        store.sender.push([message("m", "q")])
        for node in (0, 1):
            server.ask("CLUSTER", "LEAVING", "yes", node=node)
            with closing(opened(server.url, replicate=1)) as fresh:
                fresh.sender.push([message("n", "q")])
            server.ask("CLUSTER", "LEAVING", "no", node=node)


HELLO = b"*2\r\n:1\r\n$3\r\nabc\r\n"


@pytest.mark.parametrize(
    "reply",
    [b"$1400000000\r\n", b"*1000000000\r\n", b"*4294967295\r\n", b"$many\r\n", b"*1\r\n" * 100_000, b"+"],
    ids=["bytes", "elements", "more elements", "no number", "nested", "no end"],
)
def test_oversized_replies_are_not_read(reply: bytes) -> None:
    """A malicious server could fill the memory."""
    most, sent = 2**20, 0

    def answer() -> None:
        nonlocal sent
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            while b"HELLO" not in connection.recv(65536):
                connection.sendall(b"+OK\r\n")
            connection.sendall(HELLO)
            connection.recv(65536)
            connection.sendall(reply)
            while sent < 64 * most:
                connection.sendall(b"x" * 65536)
                sent += 65536

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        link = Link(Address("127.0.0.1", listening.getsockname()[1]), None, 5.0, most)
        with pytest.raises(BROKEN):
            link.ask([("PING",)])
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert sent < 32 * most
