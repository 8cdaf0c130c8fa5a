"""The RabbitMQ broker: behaviour that the contract suite, which expects synchronous brokers, cannot test."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.transports import open_broker
from qworker.transports.amqp import link as link_module
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.consumer import GATHER_SECONDS
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.outgoing import outgoing
from qworker.transports.amqp.publisher import PORTION, Publisher
from qworker.transports.amqp.queues import OURS, Queues
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Ack, DeadLetter, Envelope, Leased, Release
from tests.servers import require
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration
Open = Callable[..., AMQPBroker]


@pytest.fixture
def prefix() -> Iterator[str]:
    """Return a prefix for the names of queues, which are deleted at the end."""
    url = require("rabbitmq")
    prefix = f"test.{uuid.uuid4().hex[:10]}."
    yield prefix
    link = Link(address_of(url), 5.0)
    channel = link.channel()
    for queue in ("q", "r", "s", *OURS):
        link.call(channel.queue_delete, prefix + queue)
    link.close()


@pytest.fixture
def open_(prefix: str) -> Iterator[Open]:
    opened: list[AMQPBroker] = []

    def open_one(url: str | None = None, **options: Any) -> AMQPBroker:
        queues = options.pop("queues", {})
        store = AMQPBroker(url or require("rabbitmq"), queues=Queues(prefix=prefix, **queues), **options)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def nothing_comes(store: AMQPBroker, seconds: float = 0.2) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        store.consumer.wait(0.02)
        assert store.consumer.lease(["q"], 100).messages == []


def test_message_keeps_headers_and_properties(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    headers = {
        "id": "é\u0000", "none": None, "yes": True, "no": False, "small": -5, "large": 2**40, "half": 0.5,
        "list": [1, None, ["x"]], "map": {"deep": {"er": []}}, "": "no name",
    }  # fmt: skip
    given = {"content_type": "x", "content_encoding": "binary", "correlation_id": "c", "reply_to": "r"}
    body = bytes(range(256)) * 2000
    store.sender.push(
        [Envelope("q", json.dumps(headers), json.dumps(given), body, 3), Envelope("q", "{}", None, b"")]
    )
    first, second = receive(store, 2)
    assert json.loads(first.headers) == headers
    assert json.loads(first.properties or "") == given
    assert (first.body, first.priority, first.deliveries, first.redelivered) == (body, 3, 0, False)
    assert (second.headers, second.body, second.priority) == ("{}", b"", 0)


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", f'{{"big": {2**70}}}', '{"' + "k" * 300 + '": 1}', '{"id": 1}}}']
)
def test_headers_unsupported_by_amqp_tables_are_kept_as_text(open_: Open, text: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([Envelope("q", text, None, b"")])
    assert receive(store, 1)[0].headers == text


def test_body_of_many_frames(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    body = os.urandom(3_000_000)
    store.sender.push([envelope("large", body=body), envelope("small")])
    assert [leased.body for leased in receive(store, 2)] == [body, b"[]"]


# -- delays --


def test_delayed_messages_are_not_early_and_rarely_late(open_: Open) -> None:
    store, consuming = open_(), open_()
    own = consuming.consumer.register("w", ["q"], 4)
    now = time.time()
    dues = {f"{number}": now + 0.3 + number * 0.007 for number in range(200)}
    store.sender.push([envelope(name, due=due) for name, due in dues.items()])
    late: list[float] = []
    while len(late) < len(dues):
        consuming.consumer.wait(0.05)
        for leased in consuming.consumer.lease(["q"], 100).messages:
            late.append(time.time() - dues[ids([leased])[0]])
            assert leased.due in (None, dues[ids([leased])[0]])  # None: it was due before it arrived
            assert consuming.consumer.settle(own, [Ack(leased.tag)]) == set()
        assert time.time() < now + PATIENCE
    assert min(late) >= 0
    assert sorted(late)[100] < 1


def test_delayed_message_does_not_block_others(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    now = time.time()
    store.sender.push(
        [envelope("in an hour", due=now + 3600), envelope("soon", due=now + 2), envelope("plain")]
    )
    assert ids(receive(store, 1)) == ["plain"]
    assert ids(receive(store, 1)) == ["soon"]
    nothing_comes(store)


def test_release_with_due_time_waits_in_the_server(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    (leased,) = receive(store, 1)
    due = time.time() + 0.5
    assert store.consumer.settle(own, [Release(leased.tag, due, requeued=True)]) == set()
    store.consumer.deregister()
    store.consumer.register("w", ["q"], 1)
    (again,) = receive(store, 1)
    assert time.time() >= due
    assert (again.requeued, again.deliveries, again.due in (None, due)) == (1, 0, True)


def test_message_due_soon_can_be_leased_early(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    due = time.time() + 0.09
    store.sender.push([envelope("a", due=due)])
    (leased,) = store.consumer.lease(["q"], 0, delayed_limit=5, eta_window=5.0).messages or receive(
        store, 1, delayed_limit=5, eta_window=5.0
    )
    assert leased.due in (None, due)  # None: it arrived late, on a busy machine


# -- losing the connection --


def cut(store: AMQPBroker) -> None:
    assert store.consumer._subscription is not None
    store.consumer._subscription.link.connection.carrier.sock.shutdown(socket.SHUT_RDWR)


def test_lost_connection_raises_lease_lost(open_: Open) -> None:
    store = open_()
    old = store.consumer.register("w", ["q"], 2)
    store.sender.push([envelope("a"), envelope("b")])
    held = receive(store, 2)
    cut(store)
    for call in (
        lambda: store.consumer.wait(5),
        store.consumer.extend,
        store.consumer.reclaim,
        lambda: store.consumer.lease(["q"], 1).messages,
        lambda: store.consumer.revoked_since(0),
    ):
        with pytest.raises(LeaseLost):
            call()
    with pytest.raises(LeaseLost):
        store.consumer.settle(old, [Ack(held[0].tag)])
    new = store.consumer.register("w", ["q"], 2)
    assert new != old
    again = receive(store, 2)
    assert {leased.tag for leased in again} == {leased.tag for leased in held}
    assert all(leased.redelivered for leased in again)
    assert store.consumer.settle(old, [Ack(held[0].tag)]) == {held[0].tag}
    assert store.consumer.settle(new, [Ack(leased.tag) for leased in again]) == set()


def test_publisher_reconnects(open_: Open) -> None:
    store = open_()
    store.sender.push([envelope("a")])
    link = store._publisher._link
    assert link is not None
    link.connection.carrier.sock.shutdown(socket.SHUT_RDWR)
    store.sender.push([envelope("b")])
    store.consumer.register("w", ["q"], 1)
    assert ids(receive(store, 2)) == ["a", "b"]


def test_unreachable_server_raises_within_the_timeout(open_: Open) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = open_(f"amqp://guest:secret@127.0.0.1:{silent.getsockname()[1]}//")
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable) as caught:
            store.sender.push([envelope("a")], timeout=0.3)
        assert time.monotonic() - started < 3
        assert "secret" not in str(caught.value)
    with pytest.raises(BrokerUnavailable, match=r"refused|Refused"):
        store.sender.push([envelope("a")], timeout=1.0)


def test_wrong_password_raises_broker_unavailable(open_: Open) -> None:
    port = require("rabbitmq").rpartition(":")[2].rstrip("/")
    with pytest.raises(BrokerUnavailable, match="ACCESS_REFUSED"):
        open_(f"amqp://guest:wrong@127.0.0.1:{port}//").sender.push([envelope("a")])


def test_deleted_queue_is_declared_again(open_: Open, prefix: str) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    store.consumer.settle(own, [Ack(leased.tag) for leased in receive(store, 1)])
    link = Link(address_of(store.url), 5.0)
    link.call(link.channel().queue_delete, prefix + "q")
    link.close()
    store.sender.push([envelope("b"), envelope("c", "r")])
    assert ids(receive(store, 1)) == ["b"]


def test_server_alarm_raises_within_the_timeout(open_: Open) -> None:
    store = open_()
    store.sender.push([envelope("a")])
    link = store._publisher._link
    assert link is not None
    link._set_blocked("memory")  # as on the server's connection.blocked
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="alarm"):
        store.sender.push([envelope("b")], timeout=0.2)
    assert 0.15 < time.monotonic() - started < 5
    link._set_unblocked()
    store.sender.push([envelope("c")])
    store.consumer.register("w", ["q"], 1)
    assert ids(receive(store, 2)) == ["a", "c"]


def test_missed_heartbeats_are_noticed_before_the_timeout(open_: Open) -> None:
    store = open_(heartbeat=0.3)
    store.sender.push([envelope("a")])
    link = store._publisher._link
    assert link is not None
    ours, theirs = socket.socketpair()  # a connection whose peer has vanished
    link.connection.carrier.sock.close()
    link.connection.carrier.sock = ours
    link._poll = select.poll()
    link._poll.register(ours.fileno(), select.POLLIN)
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="did not confirm"):
        store.sender.push([envelope("b")], timeout=20.0)
    assert time.monotonic() - started < 10
    theirs.close()
    store.sender.push([envelope("b")])
    store.consumer.register("w", ["q"], 1)
    assert ids(receive(store, 2)) == ["a", "b"]


def test_message_refused_by_a_full_queue_raises(open_: Open) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    store = open_(queues={"declared": {"q": {"queue_arguments": arguments}}})
    store.sender.push([envelope("a")])
    with pytest.raises(BrokerUnavailable, match="refused"):
        store.sender.push([envelope("b")])


def test_failed_large_push_reports_the_published_messages(open_: Open) -> None:
    arguments = {"x-max-length": PORTION + 10, "x-overflow": "reject-publish"}
    store = open_(queues={"declared": {"q": {"queue_arguments": arguments}}})
    with pytest.raises(
        BrokerUnavailable, match=f"{PORTION} of {2 * PORTION} messages were published.*refused"
    ):
        store.sender.push([envelope(str(number)) for number in range(2 * PORTION)])


class SlowLink(Link):
    """A link that takes a second for 2.5 MB."""

    def write(self, data: bytes, timeout: float | None = None) -> None:
        time.sleep(len(data) * 0.4e-6)
        super().write(data, timeout)


class SlowServer(Server):
    def connect(self, within: float = 5.0) -> Link:
        return SlowLink(self.address, within)


def test_timeout_applies_to_each_portion_of_a_large_push(prefix: str) -> None:
    address = address_of(require("rabbitmq"))
    publisher = Publisher(SlowServer(address, Queues(prefix=prefix), SYSTEM_CLOCK, 4.0, 10.0, 20.0), True)
    messages = [
        outgoing(envelope(str(number), body=bytes(1000)), str(number), prefix, 0.0)
        for number in range(3 * PORTION)
    ]
    started = time.monotonic()
    publisher.send(messages, 2.5)
    assert time.monotonic() - started > 2.5
    publisher.close()


@pytest.mark.parametrize("name", ["Transport", "blocking_read"])
def test_unsupported_py_amqp_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(link_module._Connection, name, getattr(amqp.Connection, name))
    with pytest.raises(ConfigurationError, match=r"py-amqp.*expected socket"):
        Link(address_of(require("rabbitmq")), 5.0)


# -- sharing --


def test_existing_queue_with_other_arguments_is_used(open_: Open, prefix: str) -> None:
    link = Link(address_of(require("rabbitmq")), 5.0)
    link.call(
        link.channel().queue_declare,
        prefix + "q",
        durable=True,
        auto_delete=False,
        arguments={"x-max-priority": 3},
    )
    link.close()
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a")])
    assert ids(receive(store, 1)) == ["a"]


def test_invalid_queue_arguments_raise_configuration_error(open_: Open) -> None:
    store = open_(queues={"declared": {"q": {"queue_arguments": {"x-max-priority": "many"}}}})
    with pytest.raises(ConfigurationError, match="task_queues"):
        store.sender.push([envelope("a")])


def test_server_orders_by_priority(open_: Open) -> None:
    store = open_(queues={"max_priority": 9})
    store.sender.push(
        [envelope(f"{priority}", priority=priority) for priority in (0, 9, 4) for _ in range(20)]
    )
    store.consumer.register("w", ["q"], 1)
    assert ids(receive(store, 60)) == ["9"] * 20 + ["4"] * 20 + ["0"] * 20


def test_all_queues_are_served(open_: Open) -> None:
    store = open_()
    store.sender.push([envelope(queue, queue) for queue in "qrs" for _ in range(30)])
    store.consumer.register("w", ["q", "r", "s"], 8)
    first = [ids(receive(store, 5, "q", "r", "s"))[0] for _ in range(6)]
    assert set(first) == {"q", "r", "s"}


def test_quorum_queues(open_: Open) -> None:
    store = open_(queues={"type": "quorum"})
    own = store.consumer.register("w", ["q"], 4)
    store.sender.push([envelope(str(number)) for number in range(40)])
    messages = receive(store, 40)
    assert (
        store.consumer.settle(own, [Release(messages[0].tag), *(Ack(one.tag) for one in messages[1:])])
        == set()
    )
    (again,) = receive(store, 1)
    assert (ids([again]), again.deliveries, again.tag) == (["0"], 0, messages[0].tag)


def test_busy_worker_releases_prefetched_messages(open_: Open) -> None:
    busy, idle = open_(), open_()
    own = busy.consumer.register("busy", ["q"], 1)
    busy.sender.push([envelope(str(number)) for number in range(1200)])
    busy.consumer.settle(own, [Ack(leased.tag) for leased in receive(busy, 400)])
    (long,) = receive(busy, 1)
    idle.consumer.register("idle", ["q"], 1)
    deadline = time.monotonic() + PATIENCE
    assert busy.consumer._subscription is not None
    inbox = busy.consumer._subscription.inbox
    while inbox.waiting <= 100:  # in transit
        busy.consumer.wait(0.02)
        assert time.monotonic() < deadline, inbox.waiting
    found: list[Leased] = []
    while len(found) < 799:
        busy.consumer.reclaim()
        idle.consumer.wait(0.02)
        found += idle.consumer.lease(["q"], 400).messages
        assert time.monotonic() < deadline, len(found)
    idle.consumer.deregister()
    busy.consumer.wait(0)
    quiet_until = time.monotonic() + 0.3
    while time.monotonic() < quiet_until:
        assert busy.consumer.wait(0.05) is False
    assert busy.consumer.settle(own, [Ack(long.tag)]) == set()
    assert len(receive(busy, 799)) == 799


def test_queue_deleted_while_paused_raises_lease_lost(open_: Open, prefix: str) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    subscription = store.consumer._subscription
    assert subscription is not None
    subscription.inbox.prefetch.paused = True
    subscription.resize()
    link = Link(address_of(store.url), 5.0)
    link.call(link.channel().queue_delete, prefix + "q")
    link.close()
    with pytest.raises(LeaseLost, match="NOT_FOUND"):
        store.consumer.lease(["q"], 1)
    store.consumer.register("w", ["q"], 1)
    assert store.consumer.lease(["q"], 1).messages == []


def test_each_message_is_leased_by_one_consumer(open_: Open) -> None:
    stores = [open_() for _ in range(3)]
    owns = [store.consumer.register(f"w{number}", ["q"], 2) for number, store in enumerate(stores)]
    stores[0].sender.push([envelope(str(number)) for number in range(3000)])
    seen: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while len(seen) < 3000 and time.monotonic() < deadline:
        for store, own in zip(stores, owns, strict=True):
            store.consumer.wait(0.001)
            taken = store.consumer.lease(["q"], 50).messages
            seen += ids(taken)
            # Out of order, so that not all can be acknowledged together.
            assert store.consumer.settle(own, [Ack(leased.tag) for leased in sorted(taken)]) == set()
    assert sorted(seen, key=int) == [str(number) for number in range(3000)]
    assert stores[0].admin.queues() == []


def test_messages_of_a_killed_process_are_redelivered(open_: Open, prefix: str) -> None:
    store = open_()
    store.sender.push([envelope("a")])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        other = AMQPBroker(store.url, queues=Queues(prefix=prefix))
        other.consumer.register("child", ["q"], 1)
        receive(other, 1)
        os.write(writing, b"!")
        time.sleep(PATIENCE)
        os._exit(0)
    os.read(reading, 1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    store.consumer.register("w", ["q"], 1)
    (leased,) = receive(store, 1)
    assert (leased.redelivered, leased.deliveries) == (True, 0)
    os.close(reading)
    os.close(writing)


def test_forked_child_uses_its_own_connection(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("parent", ["q"], 1)
    store.sender.push([envelope("a")])
    (leased,) = receive(store, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.consumer.settle(own, [Ack(leased.tag)])
        except LeaseLost:
            store.sender.push([envelope("from the child")])
            store.close()
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    store.consumer.extend()
    assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
    assert ids(receive(store, 1)) == ["from the child"]


def test_publisher_confirms_with_many_threads(open_: Open) -> None:
    store = open_()

    def publish(thread: int) -> None:
        for number in range(50):
            store.sender.push([envelope(f"{thread}-{number}"), envelope(f"{thread}-{number}+")])

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = store.consumer.register("w", ["q"], 100)
    messages = receive(store, 800)
    assert len(set(ids(messages))) == 800
    assert store.consumer.settle(own, [Ack(leased.tag) for leased in messages]) == set()


def test_publishing_without_confirms(open_: Open) -> None:
    store = open_(confirms=False)
    for number in range(100):
        store.sender.push([envelope(str(number))])
    store.consumer.register("w", ["q"], 100)
    assert len(receive(store, 100)) == 100


# -- dead letters, revocations --


def test_many_dead_letters_are_retried_and_discarded(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope(str(number)) for number in range(1500)])
    for _ in range(3):
        store.consumer.settle(
            own, [DeadLetter(leased.tag, f"why {leased.tag}") for leased in receive(store, 500)]
        )
    everything = store.admin.dead(limit=5000)
    assert len(everything) == 1500
    assert all(dead.reason == f"why {dead.tag}" for dead in everything)
    tags = [dead.tag for dead in everything]
    assert store.admin.dead_retry(tags[:700]) == 700
    assert len(receive(store, 700)) == 700
    assert store.admin.dead_discard(tags) == 800
    assert store.admin.dead() == []


def test_retried_dead_letter_is_a_new_message(open_: Open) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", priority=2)])
    (first,) = receive(store, 1)
    store.consumer.settle(own, [DeadLetter(first.tag, "bad", counted=True)])
    (dead,) = store.admin.dead("q")
    assert (dead.queue, dead.reason, dead.deliveries, dead.body) == ("q", "bad", 1, b"[]")
    assert store.admin.dead("r") == []
    assert [(info.queue, info.dead) for info in store.admin.queues()] == [("q", 1)]
    assert store.admin.dead_retry([dead.tag, 999]) == 1
    (again,) = receive(store, 1)
    assert (again.deliveries, again.redelivered, again.priority) == (0, True, 2)
    assert again.tag != first.tag


def test_worker_started_later_receives_revocations(open_: Open) -> None:
    first = open_()
    first.consumer.register("w", ["q"], 1)
    assert first.consumer.revoked_since(0)[1] == []
    first.sender.revoke([f"task-{number}" for number in range(1200)])
    later = open_()
    later.consumer.register("later", ["q"], 1)
    cursor, found = later.consumer.revoked_since(0)
    assert [one.task_id for one in found] == [f"task-{number}" for number in range(1200)]
    assert later.consumer.revoked_since(cursor) == (cursor, [])
    later.consumer.register("later", ["q"], 1)
    assert later.consumer.revoked_since(cursor) == (cursor, [])


def test_claim_reports_a_new_revocation(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    cursor, _ = store.consumer.revoked_since(0)
    assert store.consumer.lease(["q"], 1).last_revocation == cursor
    store.sender.revoke(["x"])
    deadline = time.monotonic() + PATIENCE
    while store.consumer.lease(["q"], 1).last_revocation == cursor:
        assert time.monotonic() < deadline
    assert [one.task_id for one in store.consumer.revoked_since(cursor)[1]] == ["x"]
    assert not store.consumer.wait(0.0)


def test_revocation_read_by_another_call_ends_the_next_wait(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.revoke(["x"])
    deadline = time.monotonic() + PATIENCE
    while not store.consumer.wait(0.0):  # it is read by reclaim(), not by a wait()
        store.consumer.reclaim()
        assert time.monotonic() < deadline
    assert not store.consumer.wait(0.0)


def test_expired_revocation_is_not_fetched_again(open_: Open) -> None:
    store = open_(queues={"revoke_expires": -1.0})
    store.consumer.register("w", ["q"], 1)
    store.sender.revoke(["x"])
    deadline = time.monotonic() + PATIENCE
    while not (last := store.consumer.lease(["q"], 1).last_revocation):
        assert time.monotonic() < deadline
    assert store.consumer.revoked_since(0) == (last, [])


def test_notifications_of_waiting_messages_are_combined(open_: Open) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 16)  # 64 messages are pushed to it
    store.sender.push([envelope(str(number)) for number in range(4)])
    receive(store, 1)
    sent, notified = 40, 0
    sender = threading.Thread(target=lambda: [store.sender.push([envelope("later")]) for _ in range(sent)])
    began = time.monotonic()
    sender.start()
    while sender.is_alive():
        notified += store.consumer.wait(GATHER_SECONDS)
    most = (time.monotonic() - began) / GATHER_SECONDS
    assert 0 < notified <= most + 1
    while store.consumer.wait(0.0):
        pass
    assert len(receive(store, 20)) == 20
    store.consumer.wake()
    began = time.monotonic()
    assert not store.consumer.wait(PATIENCE)
    assert time.monotonic() - began < 5


def test_purge_returns_the_number_of_messages(open_: Open) -> None:
    store = open_()
    store.sender.push([envelope("a"), envelope("b")])
    assert store.admin.purge("q") == 2
    assert store.admin.purge("unknown") == 0


def test_all_bindings_of_a_kombu_queue_are_declared(prefix: str) -> None:
    from kombu import Exchange, Queue, binding

    media = Exchange(prefix + "media", type="topic")
    conf = Settings()
    conf.update(
        broker_url=require("rabbitmq"),
        broker_transport_options={"queue_name_prefix": prefix},
        task_queues=[
            Queue("r", [binding(media, routing_key="video.#"), binding(media, routing_key="image")])
        ],
    )
    store = open_broker(conf.broker_url, conf)
    assert isinstance(store, AMQPBroker)
    store.consumer.register("w", ["r"], 1)
    link = Link(address_of(store.url), 5.0)
    channel = link.channel()
    for key in ("video.long", "image", "sound"):
        message = amqp.Message("[]", application_headers={"id": key})
        link.call(channel.basic_publish, message, prefix + "media", key)
    assert {json.loads(leased.headers)["id"] for leased in receive(store, 2, "r")} == {"video.long", "image"}
    link.call(channel.exchange_delete, prefix + "media")
    link.close()
    store.close()


def test_settings_are_applied_to_queues(prefix: str) -> None:
    conf = Settings()
    conf.update(
        broker_url=require("rabbitmq"),
        broker_transport_options={"queue_name_prefix": prefix},
        task_queue_max_priority=5,
        task_queues={"r": {"exchange": prefix + "x", "exchange_type": "topic", "routing_key": "some.#"}},
    )
    store = open_broker(conf.broker_url, conf)
    assert isinstance(store, AMQPBroker)
    assert store.server.queues.max_priority == 5
    store.consumer.register("w", ["r"], 1)
    link = Link(address_of(store.url), 5.0)
    channel = link.channel()
    link.call(
        channel.basic_publish, amqp.Message("[]", application_headers={"id": "a"}), prefix + "x", "some.where"
    )
    (leased,) = receive(store, 1, "r")
    assert json.loads(leased.properties or "")["delivery_info"] == {
        "exchange": prefix + "x",
        "routing_key": "some.where",
    }
    link.call(channel.exchange_delete, prefix + "x")
    link.close()
    store.close()
    assert AMQPBroker("amqp://").lacks
    unset = open_broker("amqp://", Settings())
    assert isinstance(unset, AMQPBroker)
    assert unset.server.queues.max_priority is None


def fail_task(store: AMQPBroker, generation: int, name: str) -> None:
    """Let a task of queue q fail permanently."""
    store.sender.push([envelope(name, "q")])
    (leased,) = receive(store, 1)
    assert store.consumer.settle(generation, [DeadLetter(leased.tag, "E()\ntraceback", failed=True)]) == set()


def test_failed_task_that_cannot_be_kept_is_acked(open_: Open, caplog: pytest.LogCaptureFixture) -> None:
    store = open_(queues={"failed_expires": -1.0})  # as if the user may not declare the queue
    generation = store.consumer.register("w@h", ["q"], 1)
    fail_task(store, generation, "one")
    fail_task(store, generation, "two")
    assert list(store.letters["failed"].newest()) == []
    said = [record for record in caplog.records if "failed tasks are not kept" in record.getMessage()]
    assert [record.levelname for record in said] == ["ERROR", "DEBUG"][: len(said)]
    assert "task_keep_failed" in said[0].getMessage()
    store.consumer.deregister()
    assert store.admin.depths(["q"])[0].ready == 0, "neither is redelivered"


def test_failed_task_that_cannot_be_kept_does_not_affect_dead_letters(open_: Open) -> None:
    store = open_(queues={"failed_expires": -1.0})
    generation = store.consumer.register("w@h", ["q"], 1)
    store.sender.push([envelope("one", "q"), envelope("two", "q")])
    one, two = receive(store, 2)
    orders = [DeadLetter(one.tag, "why", failed=True), DeadLetter(two.tag, "why")]
    assert store.consumer.settle(generation, orders) == set()
    assert [letter.tag for letter in store.admin.dead()] == [two.tag]


def test_server_deletes_old_failed_tasks(open_: Open) -> None:
    store = open_(queues={"failed_expires": 0.5})
    generation = store.consumer.register("w@h", ["q"], 1)
    fail_task(store, generation, "one")
    assert len(list(store.letters["failed"].newest())) == 1
    deadline = time.monotonic() + PATIENCE
    while list(store.letters["failed"].newest()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
