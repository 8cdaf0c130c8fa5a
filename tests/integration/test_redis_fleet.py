"""What a fleet costs its Redis: commands per message, commands of idle workers, connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')

from qworker.transports.lease import NO_ROOM, Leased  # noqa: E402
from qworker.transports.redis.broker import RedisBroker  # noqa: E402
from qworker.transports.redis.connection import IDLE_SECONDS, pack  # noqa: E402
from tests.acceptance.private_servers import Redis  # noqa: E402
from tests.support.fleet import fleet, taken  # noqa: E402
from tests.support.messages import message, names  # noqa: E402
from tests.support.waiting import until  # noqa: E402

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[Redis]:
    server = Redis()
    yield server
    server.close()


@pytest.fixture
def client(server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def open_(server: Redis) -> Iterator[Callable[..., RedisBroker]]:
    with ExitStack() as opened:

        def open_one(**options: Any) -> RedisBroker:
            broker = RedisBroker(server.url, **options)
            opened.callback(broker.close)
            return broker

        yield open_one


def calls(client: Any) -> dict[str, int]:
    """Return how often each command was called, also by scripts."""
    stats: Mapping[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


def test_commands_per_message_do_not_grow_with_idle_workers(
    open_: Callable[..., RedisBroker], client: Any
) -> None:
    sender, costs = open_().sender, {}
    for size in (2, 10, 30):
        with fleet(open_, size) as workers:
            until(lambda least=size: client.info("clients")["blocked_clients"] >= least)
            before = calls(client)
            for number in range(20):
                sender.push([message(str(number))])
                until(lambda done=number + 1: taken(workers) == done)
                until(lambda: client.hlen("unacked") == 0)
            after = calls(client)
            costs[size] = {
                name: (after[name] - before.get(name, 0)) / 20
                for name in ("evalsha", "eval", "bzpopmin", "blmove", "lpush", "zadd", "publish")
                if name in after
            }
            assert max(worker.taken for worker in workers) < 20 or size == 1, "one worker gets everything"
        client.flushall()
    assert all(cost["evalsha"] <= 3.5 for cost in costs.values()), costs
    assert all(cost["bzpopmin"] <= 1.2 for cost in costs.values()), costs


def test_idle_workers_cost_next_to_nothing(open_: Callable[..., RedisBroker], client: Any) -> None:
    """Two of ten renew their leases in these two seconds, or claim because they have waited for long."""
    with fleet(open_, 10):
        time.sleep(0.5)  # the last one has just registered
        before = calls(client)
        time.sleep(2.0)
        after = calls(client)
        connections = len(client.client_list()) - 1
    spent = {name: count - before.get(name, 0) for name, count in after.items() if name != "info"}
    assert spent.get("evalsha", 0) + spent.get("bzpopmin", 0) <= 12, spent
    assert spent["exists"] <= 4, "only one of them watches the queue"
    assert connections <= 2 * 10 + 1, "and that one has another connection"


def test_what_a_woken_worker_leaves_wakes_the_next(open_: Callable[..., RedisBroker], client: Any) -> None:
    client.set("qworker.watcher.q", "0")  # a watching worker would wake others, but later
    consumers = [open_().consumer for _ in range(3)]
    for consumer in consumers:
        consumer.register("w", ["q"], 1)
        consumer.lease(["q"], 1)
        consumer.wait(0.05, 1)
    open_().sender.push([message(str(number)) for number in range(5)])
    until(lambda: client.hlen("unacked") == 3)
    assert client.zcard("qworker.marker.q") == 1
    first = [name for consumer in consumers if consumer.wait(10, 1) for name in leased(consumer)]
    assert sorted(first) == ["0", "1", "2"]
    assert leased(consumers[0]) == ["3"]
    assert leased(consumers[0]) == ["4"]
    assert leased(consumers[0]) == []
    assert client.zcard("qworker.marker.q") == 0, "nobody is woken for nothing"


def leased(consumer: Any) -> list[str]:
    return names(consumer.lease(["q"], 1).messages)


def test_a_worker_that_gets_room_takes_what_came_meanwhile(open_: Callable[..., RedisBroker]) -> None:
    broker = open_()
    broker.consumer.register("w", ["q"], 1)
    assert broker.consumer.lease(["q"], 1).messages == []
    assert broker.consumer.wait(0.05, NO_ROOM) is False
    broker.sender.push([message("a")])
    assert broker.consumer.wait(0.05, NO_ROOM) is False
    assert broker.consumer.wait(10, 1) is True
    assert names(broker.consumer.lease(["q"], 1).messages) == ["a"]


def stock(client: Any, name: str, step: str = "") -> None:
    """Publish like a producer that knows no markers."""
    client.lpush(f"q{step}", name)


@pytest.mark.parametrize("step", ["", "\x06\x163"])
def test_a_message_of_a_stock_publisher_wakes_one_worker(
    open_: Callable[..., RedisBroker], client: Any, step: str
) -> None:
    with fleet(open_, 5) as workers:
        until(lambda: client.info("clients")["blocked_clients"] >= 5)
        before = calls(client)
        stock(client, "from another", step)
        until(lambda: taken(workers) == 1)
        assert calls(client)["bzpopmin"] - before["bzpopmin"] <= 2


def test_another_worker_watches_when_the_watching_one_leaves(
    open_: Callable[..., RedisBroker], client: Any
) -> None:
    first = open_().consumer
    own = first.register("first", ["q"], 1)
    first.lease(["q"], 1)
    first.wait(0.05, 1)
    assert client.get("qworker.watcher.q") == str(own).encode()
    with fleet(open_, 2) as workers:
        assert client.get("qworker.watcher.q") == str(own).encode()
        first.deregister()
        until(lambda: client.get("qworker.watcher.q") not in (None, str(own).encode()))
        began = time.monotonic()
        stock(client, "from another")
        until(lambda: taken(workers) == 1)
        assert time.monotonic() - began < 10, "until a worker looked without being woken"


def test_a_worker_may_lose_its_place_as_watcher_when_a_message_arrives(
    open_: Callable[..., RedisBroker], client: Any
) -> None:
    consumer = open_().consumer
    consumer.register("w", ["q"], 1)
    consumer.lease(["q"], 1)
    consumer.wait(0.05, 1)
    client.set("qworker.watcher.q", "another")
    stock(client, "a")
    client.zadd("qworker.marker.q", {"0": 0})
    until(lambda: not client.zcard("qworker.marker.q"))  # both have arrived
    assert consumer.wait(10, 1)
    assert names(consumer.lease(["q"], 1).messages) == ["a"]


def test_nothing_is_left_of_workers_that_end(open_: Callable[..., RedisBroker], client: Any) -> None:
    with fleet(open_, 3):
        open_().sender.revoke(["x"])
    assert [key for key in client.keys("qworker.*") if key.startswith((b"qworker.w", b"qworker.owner"))] == []


def test_a_delayed_message_is_known_to_the_one_that_is_woken(
    open_: Callable[..., RedisBroker], client: Any
) -> None:
    broker = open_()
    broker.consumer.register("w", ["q"], 1)
    assert broker.consumer.lease(["q"], 1).next_due is None
    assert broker.consumer.wait(0.05, 1) is False
    due = time.time() + 1000
    open_().sender.push([message("later", due=due)])
    assert broker.consumer.wait(10, 1) is True
    assert broker.consumer.lease(["q"], 1).next_due == due


def test_a_lost_marker_delays_a_message_by_one_wait_at_most(
    open_: Callable[..., RedisBroker], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher died before it set the marker."""
    monkeypatch.setattr("qworker.transports.redis.waiting.BLOCK_SECONDS", (0.5, 0.6))
    watching, other = open_().consumer, open_().consumer
    for consumer in (watching, other):
        consumer.register("w", ["q"], 1)
        consumer.lease(["q"], 1)
        consumer.wait(0.05, 1)
    open_().sender.push([message("a")])
    found: list[Leased] = []

    def look() -> list[Leased]:
        for consumer in (watching, other):
            consumer.wait(0.05, 1)
            if consumer.prefetched:
                found.extend(consumer.lease(["q"], 0).messages)
        return found

    until(look)
    client.lpush("q\x06\x169", "without a marker")
    found.clear()
    client.delete("qworker.watcher.q")  # nobody watches
    until(look)
    assert names(found) == ["without a marker"]


@pytest.mark.parametrize("refused", ["its lease expired", "it gave up the claim"])
def test_a_marker_taken_by_a_worker_whose_claim_is_refused_wakes_another(
    open_: Callable[..., RedisBroker], client: Any, refused: str
) -> None:
    """A frozen worker waits longest, so it gets the marker of the messages that are taken from it."""
    frozen, other = open_(lease_seconds=0.1).consumer, open_().consumer
    generation = frozen.register("frozen", ["q"], 1)
    sender = open_().sender
    if refused == "its lease expired":
        sender.push([message("a")])
    held = names(frozen.lease(["q"], 1).messages)  # from now on it watches the list
    if not held:
        client.hset(f"qworker.owner.{generation}", "from", 1000)
    assert frozen.wait(0.05, 1) is False
    other.register("other", ["q"], 1)
    assert other.lease(["q"], 1).messages == []
    assert other.wait(0.05, 1) is False
    if held:
        until(lambda: [one.returned for one in other.reclaim()] == [1])
    else:
        sender.push([message("a")])
    assert other.wait(10, 1) is True
    assert names(other.lease(["q"], 1).messages) == ["a"]


def test_worker_closes_connections_that_it_does_not_use(
    open_: Callable[..., RedisBroker], client: Any
) -> None:
    broker = open_()
    consumer = broker.consumer
    consumer.register("w", ["q"], 1)
    used = broker._links
    with used.lent() as first, used.lent() as second:
        assert [link.ask(pack(("PING",))) for link in (first, second)] == [[b"PONG"], [b"PONG"]]
    assert len(client.client_list()) == 4
    consumer.reclaim()
    assert len(client.client_list()) == 4, "they were used just now"
    first.used_at -= IDLE_SECONDS
    second.used_at -= IDLE_SECONDS
    consumer.reclaim()
    until(lambda: len(client.client_list()) == 2)
    with used.lent() as again:
        assert again.ask(pack(("PING",))) == [b"PONG"]
    assert broker.admin.queues() == []
