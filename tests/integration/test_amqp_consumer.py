"""What a worker of RabbitMQ may rely on when connections break and workers die, and with messages at the
server's limits."""

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
    """Before the names of all queues; they are deleted in the end."""
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
    """Where workers of this test keep their files."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def comes_again(store: AMQPBroker) -> list[str]:
    """What there is for *store*, once the marker behind everything that came back has come, too."""
    store.sender.push([envelope("marker")])
    found: list[Leased] = []
    deadline = time.monotonic() + PATIENCE
    while "marker" not in ids(found):
        assert time.monotonic() < deadline, f"only {ids(found)} came"
        found += store.consumer.lease(["q"], 1000).messages
        store.consumer.wait(0.05)
    store.consumer.settle(
        store.consumer._generation, [Ack(leased.tag) for leased in found if ids([leased]) == ["marker"]]
    )
    return [name for name in ids(found) if name != "marker"]


def lose_what_is_said(store: AMQPBroker, proxy: Proxy, settlements: list[Settlement]) -> None:
    """Settle so that the server hears nothing of it, and lose the connection."""
    proxy.up.lost = True
    read = proxy.up.pieces
    store.consumer.settle(store.consumer._generation, settlements)
    until(lambda: proxy.up.pieces != read)  # the proxy has thrown it away
    proxy.cut()
    proxy.heal()


def register_again(store: AMQPBroker, concurrency: int) -> None:
    """As the listener does: until the broker answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            store.consumer.register("w", ["q"], concurrency)
        except BrokerUnavailable:
            assert time.monotonic() < deadline
        else:
            return


# -- what was finished when a connection broke --


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_what_was_acknowledged_when_the_connection_broke_is_not_run_again(
    open_: Open, proxy: Proxy, type: str
) -> None:
    store = open_(proxy, type=type)
    store.consumer.register("w", ["q"], 4)
    store.sender.push([envelope(str(number)) for number in range(8)])
    held = receive(store, 8)
    lose_what_is_said(store, proxy, [Ack(leased.tag) for leased in held[:5]])
    register_again(store, 4)
    assert sorted(comes_again(store)) == ids(held[5:]), "what was not settled is run; what was is not"
    store.consumer.deregister()
    beside = open_()
    beside.consumer.register("v", ["q"], 4)
    assert sorted(comes_again(beside)) == sorted(ids(held[5:])), "and the server has heard of it by now"


def test_a_connection_may_break_twice(open_: Open, proxy: Proxy) -> None:
    store = open_(proxy)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    lose_what_is_said(store, proxy, [Ack(receive(store, 1)[0].tag)])
    for _ in range(2):
        register_again(store, 1)
        assert comes_again(store) == []
        proxy.cut()


def test_what_was_to_start_once_its_ack_is_known_comes_again_when_it_is_not(
    open_: Open, proxy: Proxy
) -> None:
    """A task with acks_late=False does not start then; it must not be taken for finished."""
    store = open_(proxy)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    lose_what_is_said(store, proxy, [Ack(receive(store, 1)[0].tag)])
    with pytest.raises(LeaseLost):
        store.consumer.confirm()
    register_again(store, 1)
    assert comes_again(store) == ["a"]


def test_what_was_sent_anew_comes_once(open_: Open, proxy: Proxy) -> None:
    """The copy is confirmed on another connection; the old one, whose ack was lost,
    is known for what it is."""
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
    lose_what_is_said(store, proxy, settlements)
    store.consumer._publisher = publisher
    register_again(store, 2)
    assert store.consumer._subscription is not None
    inbox = store.consumer._subscription.inbox
    inbox.prefetch.ask(100)
    assert sorted(comes_again(store)) == ["counted", "twice"]
    assert [letter.reason for letter in store.admin.dead()] == ["why"]
    by_name = {ids([held.leased])[0]: held.leased for held in inbox.leased.values()}
    assert (by_name["counted"].deliveries, by_name["twice"].requeued) == (1, 1)


# -- who was running what when it died --


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


def dies(prefix: str, count: int, type: str = "classic") -> str:
    """A worker that has leased *count* messages, and is killed while it runs the poison; how often that was
    counted."""
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


def test_a_death_is_counted_for_what_was_running(open_: Open, prefix: str, directory: Path) -> None:
    store = open_()
    store.sender.push([envelope("poison"), *(envelope(str(number)) for number in range(5))])
    assert [dies(prefix, 6) for _ in range(3)] == ["0", "1", "2"]
    store.consumer.register("w", ["q"], 4)
    found = {ids([leased])[0]: leased for leased in receive(store, 6)}
    assert {name: leased.deliveries for name, leased in found.items()} == {
        "poison": 3, **{str(number): 0 for number in range(5)}
    }  # fmt: skip
    assert all(leased.redelivered for leased in found.values())
    store.consumer.settle(store.consumer._generation, [Release(found["poison"].tag, counted=True)])
    (again,) = receive(store, 1)
    assert again.deliveries == 4, "each death counts once, though its file is still there"
    store.consumer.settle(store.consumer._generation, [Release(again.tag, requeued=True)])
    assert receive(store, 1)[0].deliveries == 4


def test_who_lives_counts_the_death_of_another(open_: Open, prefix: str, directory: Path) -> None:
    """What comes back comes at once, before the dead one's successor is there."""
    store = open_()
    store.sender.push([envelope("poison")])
    assert dies(prefix, 1) == "0"
    first, second = open_(), open_()
    first.consumer.register("w", ["q"], 1)
    assert receive(first, 1)[0].deliveries == 1
    second.consumer.register("v", ["q"], 1)
    first.close()
    assert receive(second, 1)[0].deliveries == 1, "and an orderly end is no death"


def test_a_worker_that_ends_leaves_no_files(open_: Open, directory: Path) -> None:
    store = open_()
    path = store.consumer.running_path()
    assert path is not None
    store.consumer.register("w", ["q"], 1)
    assert Path(path).with_suffix(".lock").exists()
    store.consumer.deregister()
    assert list(Path(path).parent.iterdir()) == []


# -- headers at the limit --


def push_raw(prefix: str, headers: dict[str, Any], **properties: Any) -> None:
    """As another's client publishes."""
    link = Link(address_of(require("rabbitmq")), 5.0)
    channel = link.channel()
    link.call(channel.confirm_select)
    message = amqp.Message("[]", application_headers=headers, content_type="application/json", **properties)
    link.call(channel.basic_publish, message, "", prefix + "q")
    link.close()


def filling(size: int, **more: Any) -> dict[str, Any]:
    """Headers with which a content header of py-amqp's has *size* bytes."""
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
def test_headers_that_fill_a_frame_are_settled(
    open_: Open, prefix: str, settle: Callable[[int], Settlement]
) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    headers = filling(FRAME_MAX - 8)
    push_raw(prefix, headers)
    (leased,) = receive(store, 1)
    assert store.consumer.settle(store.consumer._generation, [settle(leased.tag)]) == set()
    (letter,) = store.admin.dead()
    assert json.loads(letter.headers) == headers
    assert (letter.body, letter.queue) == (b"[]", "q")
    assert letter.reason.startswith(("because because", "it could not go back to its queue: "))
    assert store.admin.dead_retry() == 0, "there is no room to say that it was here before"
    assert [other.tag for other in store.admin.dead()] == [letter.tag]
    assert store.admin.dead_discard([letter.tag]) == 1
    assert comes_again(store) == []


def test_headers_that_nearly_fill_a_frame_go_back(open_: Open, prefix: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    headers = filling(FRAME_MAX - 600)
    push_raw(prefix, headers)
    (leased,) = receive(store, 1)
    store.consumer.settle(store.consumer._generation, [Release(leased.tag, counted=True)])
    (again,) = receive(store, 1)
    assert (again.deliveries, json.loads(again.headers)) == (1, headers)
    store.consumer.settle(store.consumer._generation, [DeadLetter(again.tag, "why " * 1000)])
    assert store.admin.dead_retry() == 1
    assert json.loads(receive(store, 1)[0].headers) == headers


def test_headers_that_no_frame_holds_are_refused_when_they_are_published(open_: Open) -> None:
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
    assert comes_again(store) == ["fits"]


# -- headers of others, and long times --


def test_headers_that_begin_with_x_arrive(open_: Open, prefix: str) -> None:
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
        assert given.items() <= json.loads(leased.headers).items(), "also when it is sent anew"


# -- what the server drops, as what Celery sends with expires --


def test_what_expires_is_not_dropped_for_having_been_here(open_: Open, prefix: str) -> None:
    """Its task is to end as revoked, which a worker says."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    push_raw(prefix, {"id": "a"}, expiration="200", priority=3)
    (leased,) = receive(store, 1)
    assert store.consumer.settle(own, [Release(leased.tag)]) == set()
    time.sleep(0.3)
    (again,) = receive(store, 1)
    assert again == leased


def test_what_expires_goes_from_a_busy_worker_to_others(open_: Open, prefix: str) -> None:
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


def test_what_expires_is_not_finished_for_having_been_sent_anew(
    open_: Open, prefix: str, proxy: Proxy
) -> None:
    """It is on its way when the connection breaks, and comes as one that was delivered before."""
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
    assert comes_again(store) == ["a"]


def test_what_could_not_be_sent_away_is_sent_later(open_: Open, prefix: str) -> None:
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


def test_a_dead_letter_whose_time_is_none(open_: Open) -> None:
    """Somebody else may have written it; no calendar has it."""
    letters = open_().letters["dead"]
    times = (1e300, -1.0, 5.0)
    letters.push([Dead(0, "q", "why", time, 0, "{}", None, b"") for time in times])
    assert [letter.died_at for letter in letters.newest()] == [5.0, 0.0, 0.0]


def test_dead_letters_for_longer_than_the_server_can_be_told(open_: Open) -> None:
    store = open_(dead_expires=4000 * 86400.0)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    store.consumer.settle(store.consumer._generation, [DeadLetter(receive(store, 1)[0].tag, "why")])
    assert len(store.admin.dead()) == 1
    assert store.consumer.sweep("dead", 4000 * 86400.0, 10) == 0
    assert len(store.admin.dead()) == 1


def test_who_cannot_be_announced_waits_before_it_tries_again(open_: Open) -> None:
    """A server that takes no messages keeps the listener waiting for each."""
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
        store.consumer.register("w@test", ["q"], 1)  # over another connection it tells at once
        assert [worker.waiting for worker in store.admin.workers()] == [7]
    finally:
        publisher.send = usual  # type: ignore[method-assign]


def test_what_goes_back_changed_waits_here_while_the_server_takes_no_messages(open_: Open) -> None:
    """Nobody waits for the end of the alarm, other acks arrive, and there is no second copy."""
    store = open_()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([envelope("dies"), envelope("ends")])
    dies, ends = receive(store, 2)
    assert store._publisher.is_taken()
    link = store._publisher._link
    assert link is not None
    link._set_blocked("memory")  # what the server's connection.blocked does
    began = store._publisher._sent
    assert store.consumer.settle(own, [Release(dies.tag, counted=True), Ack(ends.tag)]) == set()
    store.consumer.reclaim()
    store.consumer.extend()
    assert store._publisher._sent == began
    assert store.consumer.settle(own, [Ack(dies.tag)]) == {dies.tag}, "it was settled"
    link._set_unblocked()
    store.consumer.reclaim()
    (again,) = receive(store, 1)
    assert (again.deliveries, again.headers) == (1, dies.headers)
    store.consumer.settle(own, [Ack(again.tag)])
    store.consumer.deregister()
    assert [queue for queue in store.admin.queues() if queue.ready + queue.leased] == []


def test_what_waited_here_when_the_connection_broke_comes_again(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([envelope("dies")])
    (dies,) = receive(store, 1)
    assert store._publisher.is_taken()
    link = store._publisher._link
    assert link is not None
    link._set_blocked("memory")
    store.consumer.settle(own, [Release(dies.tag, counted=True)])
    store.consumer.register("w@test", ["q"], 1)
    (again,) = receive(store, 1)
    assert again.headers == dies.headers
    assert store.consumer.settle(store.consumer._generation, [Ack(again.tag)]) == set()
    link._set_unblocked()
    store.consumer.reclaim()
    assert receive(store, 0) == []
