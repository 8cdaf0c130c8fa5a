"""The RabbitMQ consumer: broken connections, crashed workers, and messages at the server's limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest

from qworker.errors import BrokerUnavailable, LeaseLost, PublishError
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.queues import OURS, Queues
from qworker.transports.lease import Ack, Dead, DeadLetter, Leased, Release, Settlement
from qworker.transports.own_headers import DUE
from tests.acceptance.proxy import Proxy
from tests.servers import require
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration
REPOSITORY = Path(__file__).resolve().parents[2]
FRAME_MAX = 131072
Open = Callable[..., AMQPBroker]


@pytest.fixture
def prefix() -> Iterator[str]:
    """Return a prefix for the names of queues, which are deleted at the end."""
    url = require("rabbitmq")
    prefix = f"test.{uuid.uuid4().hex[:10]}."
    yield prefix
    link = Link(address_of(url), 5.0)
    channel = link.channel()
    for queue in ("q", "r", *OURS):
        link.call(channel.queue_delete, prefix + queue)
    link.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    address = address_of(require("rabbitmq"))
    proxy = Proxy(address.port, address.host)
    yield proxy
    proxy.close()


@pytest.fixture
def open_(prefix: str) -> Iterator[Open]:
    opened: list[AMQPBroker] = []

    def open_one(proxy: Proxy | None = None, **queues: Any) -> AMQPBroker:
        url = require("rabbitmq")
        if proxy is not None:
            address = address_of(url)
            url = url.replace(f"{address.host}:{address.port}", f"127.0.0.1:{proxy.port}")
        store = AMQPBroker(url, queues=Queues(prefix=prefix, **queues))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for the files of workers."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def redelivered_ids(store: AMQPBroker) -> list[str]:
    """Return all messages for *store* before a marker, which is behind all redelivered ones."""
    store.sender.push([envelope("marker")])
    found: list[Leased] = []
    deadline = time.monotonic() + PATIENCE
    while "marker" not in ids(found):
        assert time.monotonic() < deadline, f"only {ids(found)} arrived"
        found += store.consumer.lease(["q"], 1000).messages
        store.consumer.wait(0.05)
    store.consumer.settle(
        store.consumer._generation, [Ack(leased.tag) for leased in found if ids([leased]) == ["marker"]]
    )
    return [name for name in ids(found) if name != "marker"]


def lose_settlements(store: AMQPBroker, proxy: Proxy, settlements: list[Settlement]) -> None:
    """Settle so that the server does not receive it, and lose the connection."""
    proxy.up.lost = True
    read = proxy.up.pieces
    store.consumer.settle(store.consumer._generation, settlements)
    until(lambda: proxy.up.pieces != read)  # the proxy has discarded it
    proxy.cut()
    proxy.heal()


def register_again(store: AMQPBroker, concurrency: int) -> None:
    """Register like the listener: until the broker answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            store.consumer.register("w", ["q"], concurrency)
        except BrokerUnavailable:
            assert time.monotonic() < deadline
        else:
            return


# -- settled messages when a connection breaks --


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_acked_messages_are_not_run_again_after_reconnecting(open_: Open, proxy: Proxy, type: str) -> None:
    store = open_(proxy, type=type)
    store.consumer.register("w", ["q"], 4)
    store.sender.push([envelope(str(number)) for number in range(8)])
    held = receive(store, 8)
    lose_settlements(store, proxy, [Ack(leased.tag) for leased in held[:5]])
    register_again(store, 4)
    assert sorted(redelivered_ids(store)) == ids(held[5:]), "only unsettled messages run again"
    store.consumer.deregister()
    reopened = open_()
    reopened.consumer.register("v", ["q"], 4)
    assert sorted(redelivered_ids(reopened)) == sorted(ids(held[5:])), "the server knows the acks by now"


@pytest.mark.parametrize("messages", [0, 4])
def test_waiting_reports_a_lost_connection(open_: Open, proxy: Proxy, messages: int) -> None:
    """Before anything is sent, which would be in doubt. messages: they came before, and fill the inbox."""
    store = open_(proxy)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope(str(number)) for number in range(messages)])
    if messages:
        receive(store, 1)
        inbox = store.consumer._subscription.inbox  # type: ignore[union-attr]
        until(lambda: store.consumer.wait(0.02) or inbox.waiting == messages - 1)
    proxy.cut()
    time.sleep(0.5)  # until this side knows
    store.consumer.wake()
    with pytest.raises(LeaseLost):
        store.consumer.wait(1.0)
    with pytest.raises(LeaseLost):
        store.consumer.wait(0.1)


def test_connection_may_break_twice(open_: Open, proxy: Proxy) -> None:
    store = open_(proxy)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    lose_settlements(store, proxy, [Ack(receive(store, 1)[0].tag)])
    for _ in range(2):
        register_again(store, 1)
        assert redelivered_ids(store) == []
        proxy.cut()


def test_early_ack_that_was_lost_is_redelivered(open_: Open, proxy: Proxy) -> None:
    """A task with acks_late=False does not start in that case, so it must not count as finished."""
    store = open_(proxy)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    lose_settlements(store, proxy, [Ack(receive(store, 1)[0].tag)])
    with pytest.raises(LeaseLost):
        store.consumer.confirm()
    register_again(store, 1)
    assert redelivered_ids(store) == ["a"]


def test_republished_message_is_delivered_once(open_: Open, proxy: Proxy) -> None:
    """The copy is confirmed on another connection. The ack of the original is lost, but it is recognised."""
    store, aside = open_(proxy), open_()
    store.consumer.register("w", ["q"], 2)
    store.consumer._publisher, publisher = aside._publisher, store._publisher
    aside.sender.push([envelope("counted"), envelope("dead"), envelope("twice")])
    counted, dead, twice = receive(store, 3)
    settlements = [
        Release(counted.tag, counted=True),
        DeadLetter(dead.tag, "why"),
        Release(twice.tag, requeued=True),
    ]
    lose_settlements(store, proxy, settlements)
    store.consumer._publisher = publisher
    register_again(store, 2)
    assert store.consumer._subscription is not None
    inbox = store.consumer._subscription.inbox
    inbox.prefetch.ask(100)
    assert sorted(redelivered_ids(store)) == ["counted", "twice"]
    assert [letter.reason for letter in store.admin.dead()] == ["why"]
    by_name = {ids([held.leased])[0]: held.leased for held in inbox.leased.values()}
    assert (by_name["counted"].deliveries, by_name["twice"].requeued) == (1, 1)


# -- deaths of workers --


WORKER = """
import struct, sys
from pathlib import Path
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.queues import Queues
store = AMQPBroker(sys.argv[1], queues=Queues(prefix=sys.argv[2], type=sys.argv[3]))
store.consumer.register("victim", ["q"], 4)
held = []
while len(held) < int(sys.argv[4]):
    held += store.consumer.lease(["q"], 100).messages
    store.consumer.wait(0.05)
running = [leased.tag for leased in held if "poison" in leased.headers]
Path(store.consumer.running_path()).write_bytes(b"".join(struct.pack("=q", tag) for tag in (0, *running)))
print(*(leased.deliveries for leased in held if "poison" in leased.headers), flush=True)
sys.stdin.read()
"""


def run_and_kill_worker(prefix: str, count: int, type: str = "classic") -> str:
    """Kill a worker that has leased *count* messages, while it runs the poison; return the delivery count."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, require("rabbitmq"), prefix, type, str(count)],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    try:
        return process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_death_is_counted_for_running_messages(open_: Open, prefix: str, directory: Path) -> None:
    store = open_()
    store.sender.push([envelope("poison"), *(envelope(str(number)) for number in range(5))])
    assert [run_and_kill_worker(prefix, 6) for _ in range(3)] == ["0", "1", "2"]
    store.consumer.register("w", ["q"], 4)
    found = {ids([leased])[0]: leased for leased in receive(store, 6)}
    assert {name: leased.deliveries for name, leased in found.items()} == {
        "poison": 3, **{str(number): 0 for number in range(5)}
    }  # fmt: skip
    assert all(leased.redelivered for leased in found.values())
    store.consumer.settle(store.consumer._generation, [Release(found["poison"].tag, counted=True)])
    (again,) = receive(store, 1)
    assert again.deliveries == 4, "each death counts once, although its file still exists"
    store.consumer.settle(store.consumer._generation, [Release(again.tag, requeued=True)])
    assert receive(store, 1)[0].deliveries == 4


def test_another_worker_counts_the_death(open_: Open, prefix: str, directory: Path) -> None:
    """Messages are redelivered at once, before the dead worker is replaced."""
    store = open_()
    store.sender.push([envelope("poison")])
    assert run_and_kill_worker(prefix, 1) == "0"
    first, second = open_(), open_()
    first.consumer.register("w", ["q"], 1)
    assert receive(first, 1)[0].deliveries == 1
    second.consumer.register("v", ["q"], 1)
    first.close()
    assert receive(second, 1)[0].deliveries == 1, "a regular end is not a death"


def test_deregistering_deletes_the_owner_files(open_: Open, directory: Path) -> None:
    store = open_()
    path = store.consumer.running_path()
    assert path is not None
    store.consumer.register("w", ["q"], 1)
    assert Path(path).with_suffix(".lock").exists()
    store.consumer.deregister()
    assert list(Path(path).parent.iterdir()) == []


# -- headers at the limit --


def push_raw(prefix: str, headers: dict[str, Any], **properties: Any) -> None:
    """Publish like another client."""
    link = Link(address_of(require("rabbitmq")), 5.0)
    channel = link.channel()
    link.call(channel.confirm_select)
    message = amqp.Message("[]", application_headers=headers, content_type="application/json", **properties)
    link.call(channel.basic_publish, message, "", prefix + "q")
    link.close()


def headers_of_size(size: int, **more: Any) -> dict[str, Any]:
    """Return headers such that py-amqp's content header has *size* bytes."""
    headers = {"id": "a", "task": "t", "large": "", **more}
    message = amqp.Message("[]", application_headers=headers, content_type="application/json")
    headers["large"] = "x" * (size - len(message._serialize_properties()) - 12)
    return headers


@pytest.mark.parametrize(
    "settle",
    [
        lambda tag: DeadLetter(tag, "because " * 20_000),
        lambda tag: Release(tag, counted=True),
        lambda tag: Release(tag, due=time.time() + 60, requeued=True),
    ],
)
def test_headers_that_fill_a_frame_can_be_dead_lettered(
    open_: Open, prefix: str, settle: Callable[[int], Settlement]
) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    headers = headers_of_size(FRAME_MAX - 8)
    push_raw(prefix, headers)
    (leased,) = receive(store, 1)
    assert store.consumer.settle(store.consumer._generation, [settle(leased.tag)]) == set()
    (letter,) = store.admin.dead()
    assert json.loads(letter.headers) == headers
    assert (letter.body, letter.queue) == (b"[]", "q")
    assert letter.reason.startswith(("because because", "it could not go back to its queue: "))
    assert store.admin.dead_retry() == 0, "there is no room for another header"
    assert [other.tag for other in store.admin.dead()] == [letter.tag]
    assert store.admin.dead_discard([letter.tag]) == 1
    assert redelivered_ids(store) == []


def test_headers_that_nearly_fill_a_frame_can_be_released(open_: Open, prefix: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    headers = headers_of_size(FRAME_MAX - 600)
    push_raw(prefix, headers)
    (leased,) = receive(store, 1)
    store.consumer.settle(store.consumer._generation, [Release(leased.tag, counted=True)])
    (again,) = receive(store, 1)
    assert (again.deliveries, json.loads(again.headers)) == (1, headers)
    store.consumer.settle(store.consumer._generation, [DeadLetter(again.tag, "why " * 1000)])
    assert store.admin.dead_retry() == 1
    assert json.loads(receive(store, 1)[0].headers) == headers


def test_headers_larger_than_a_frame_are_refused(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    fits = envelope("fits", headers={"large": "x" * (FRAME_MAX - 4500)})
    too_large = envelope("large", headers={"large": "é" * (FRAME_MAX // 2)})
    for batch in ([too_large], [fits, too_large], [too_large._replace(due=time.time() + 60)]):
        with pytest.raises(
            PublishError, match=r"have 131\d{3} bytes, RabbitMQ accepts 126968: nothing was published"
        ):
            store.sender.push(batch)
    store.sender.push([fits])
    assert redelivered_ids(store) == ["fits"]


# -- foreign headers --


def test_headers_with_x_prefix_are_delivered(open_: Open, prefix: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    given = {"x-tenant": "acme", "x-request-id": 7, "x-deliver": None}
    store.sender.push([envelope("a", headers=given), envelope("b", headers={**given, "none": 2**70})])
    servers = {"x-death": [{"count": 1}], "x-first-death-queue": "q", "x-qworker-deliveries": 2}
    push_raw(prefix, {"id": "c", **given, **servers})
    for leased in receive(store, 3):
        headers = json.loads(leased.headers)
        assert {name: value for name, value in headers.items() if name.startswith("x-")} == given
        store.consumer.settle(store.consumer._generation, [Release(leased.tag, counted=True)])
    for leased in receive(store, 3):
        assert given.items() <= json.loads(leased.headers).items(), "also if it is republished"


# -- messages with an expiration, as Celery sends with expires --


def test_expiring_message_survives_a_release(open_: Open, prefix: str) -> None:
    """A worker must end its task as revoked."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    push_raw(prefix, {"id": "a"}, expiration="200", priority=3)
    (leased,) = receive(store, 1)
    assert store.consumer.settle(own, [Release(leased.tag)]) == set()
    time.sleep(0.3)
    (again,) = receive(store, 1)
    assert again == leased


def test_expiring_messages_of_a_busy_worker_are_released(open_: Open, prefix: str) -> None:
    busy, idle = open_(), open_()
    busy.consumer.register("busy", ["q"], 1)
    busy.sender.push([envelope("long")])
    receive(busy, 1)
    for name in ("a", "b"):
        push_raw(prefix, {"id": name}, expiration="4000")
    expired = time.monotonic() + 4.1
    assert busy.consumer._subscription is not None
    inbox = busy.consumer._subscription.inbox
    until(lambda: busy.consumer.wait(0.02) or inbox.waiting == 2)
    until(lambda: busy.consumer.reclaim() or inbox.waiting == 0)
    time.sleep(max(0.0, expired - time.monotonic()))
    idle.consumer.register("idle", ["q"], 1)
    assert ids(receive(idle, 2)) == ["a", "b"]


def test_republished_expiring_message_is_not_lost(open_: Open, prefix: str, proxy: Proxy) -> None:
    """It is in transit when the connection breaks, and arrives marked as redelivered."""
    store, aside = open_(proxy), open_()
    own = store.consumer.register("w", ["q"], 1)
    push_raw(prefix, {"id": "a"}, expiration="60000")
    (leased,) = receive(store, 1)
    store.consumer._publisher = aside._publisher
    read, proxy.down.lost = proxy.down.pieces, True
    store.consumer.settle(own, [Release(leased.tag)])
    until(lambda: proxy.down.pieces != read)
    proxy.cut()
    proxy.heal()
    register_again(store, 1)
    assert redelivered_ids(store) == ["a"]


def test_delayed_message_that_cannot_be_moved_is_moved_later(open_: Open, prefix: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    publisher, due = store._publisher, time.time() + 3.0
    usual, failed = publisher.send, []

    def send(*arguments: Any) -> None:
        failed.append(arguments)
        raise BrokerUnavailable("not confirmed")

    publisher.send = send  # type: ignore[method-assign]
    try:
        push_raw(prefix, {"id": "a", DUE: due})
        with pytest.raises(BrokerUnavailable, match="not confirmed"):
            receive(store, 1)
    finally:
        publisher.send = usual  # type: ignore[method-assign]
    store.consumer.reclaim()
    assert ids(receive(store, 1)) == ["a"]
    assert time.time() >= due
    assert len(failed) == 1


def test_dead_letter_with_an_invalid_time(open_: Open) -> None:
    """Other clients may write times that no calendar contains."""
    letters = open_().letters["dead"]
    times = (1e300, -1.0, 5.0)
    letters.push([Dead(0, "q", "why", time, 0, "{}", None, b"") for time in times])
    assert [letter.died_at for letter in letters.newest()] == [5.0, 0.0, 0.0]


def test_dead_expires_beyond_the_servers_limit(open_: Open) -> None:
    store = open_(dead_expires=4000 * 86400.0)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    store.consumer.settle(store.consumer._generation, [DeadLetter(receive(store, 1)[0].tag, "why")])
    assert len(store.admin.dead()) == 1
    assert store.consumer.sweep("dead", 4000 * 86400.0, 10) == 0
    assert len(store.admin.dead()) == 1


def test_failed_presence_update_is_not_retried_at_once(open_: Open) -> None:
    """Each attempt blocks the listener while the server accepts no messages."""
    store = open_()
    store.consumer.register("w@test", ["q"], 1)
    publisher, sent = store._publisher, []

    def send(messages: Any, timeout: float) -> None:
        sent.extend(messages)
        raise BrokerUnavailable("a memory alarm")

    usual, publisher.send = publisher.send, send  # type: ignore[method-assign]
    try:
        for _ in range(3):
            store.consumer.extend()
        assert len(sent) == 1
        publisher.send = usual  # type: ignore[method-assign]
        store.consumer.present(json.dumps({"waiting": 7}))
        store.consumer.register("w@test", ["q"], 1)  # a new connection publishes at once
        assert [worker.waiting for worker in store.admin.workers()] == [7]
    finally:
        publisher.send = usual  # type: ignore[method-assign]


def test_counted_release_waits_during_a_server_alarm(open_: Open) -> None:
    """The consumer does not block, other acks are sent, and no second copy is published."""
    store = open_()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([envelope("run_and_kill_worker"), envelope("ends")])
    run_and_kill_worker, ends = receive(store, 2)
    assert store._publisher.is_taken()
    link = store._publisher._link
    assert link is not None
    link._set_blocked("memory")  # what the server's connection.blocked does
    began = store._publisher._confirms.sent
    assert (
        store.consumer.settle(own, [Release(run_and_kill_worker.tag, counted=True), Ack(ends.tag)]) == set()
    )
    store.consumer.reclaim()
    store.consumer.extend()
    assert store._publisher._confirms.sent == began
    assert store.consumer.settle(own, [Ack(run_and_kill_worker.tag)]) == {run_and_kill_worker.tag}, (
        "it was settled"
    )
    link._set_unblocked()
    store.consumer.reclaim()
    (again,) = receive(store, 1)
    assert (again.deliveries, again.headers) == (1, run_and_kill_worker.headers)
    store.consumer.settle(own, [Ack(again.tag)])
    store.consumer.deregister()
    assert [queue for queue in store.admin.queues() if queue.ready + queue.leased] == []


def test_waiting_release_is_redelivered_after_reconnecting(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([envelope("run_and_kill_worker")])
    (run_and_kill_worker,) = receive(store, 1)
    assert store._publisher.is_taken()
    link = store._publisher._link
    assert link is not None
    link._set_blocked("memory")
    store.consumer.settle(own, [Release(run_and_kill_worker.tag, counted=True)])
    store.consumer.register("w@test", ["q"], 1)
    (again,) = receive(store, 1)
    assert again.headers == run_and_kill_worker.headers
    assert store.consumer.settle(store.consumer._generation, [Ack(again.tag)]) == set()
    link._set_unblocked()
    store.consumer.reclaim()
    assert receive(store, 0) == []
