"""Delayed messages in RabbitMQ, while queues and exchanges on their path are deleted or the server is
killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from amqp.exceptions import NotFound

from qworker.errors import BrokerUnavailable
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.delays import DUE_EXCHANGE, NOWHERE, binding, exchange, queue, route_of
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.queues import DEAD, Queues
from qworker.transports.lease import Ack
from tests.acceptance.brokers import Broken
from tests.support.cases import cases
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("broken", ["rabbitmq"], indirect=True),
]
Open = Callable[..., AMQPBroker]


@pytest.fixture
def open_(broken: Broken) -> Iterator[Open]:
    opened: list[AMQPBroker] = []

    def open_one(**options: Any) -> AMQPBroker:
        opened.append(AMQPBroker(broken.direct, queues=Queues(**options)))
        return opened[-1]

    with broken.exposed():
        yield open_one
        for store in opened:
            store.close()


@pytest.fixture
def link(broken: Broken, open_: Open) -> Iterator[Link]:
    """A link to the virtual host of this test."""
    link = Link(address_of(broken.direct), 5.0)
    yield link
    link.close()


def delete(link: Link, name: str) -> None:
    link.call(link.channel().queue_delete, name)


def waiting(link: Link, name: str) -> int:
    return int(link.call(link.channel().queue_declare, name, passive=True).message_count)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("name", ["q", "#", "a.*", "q" * 250])
def test_delayed_message_arrives_unchanged(open_: Open, kind: str, name: str) -> None:
    store = open_(type=kind)
    store.consumer.register("w", [name], 1)
    sent = envelope("a", name, due=time.time() + 2.0, headers={"x": [1]}, body=b"[1]")
    store.sender.push([envelope("plain", name), sent])
    plain, came = receive(store, 2, name)
    assert json.loads(came.headers) == json.loads(sent.headers)
    assert (came.body, came.properties) == (b"[1]", plain.properties)
    assert (came.deliveries, came.redelivered, came.requeued) == (0, False, 0)


def test_delayed_message_without_its_queue_becomes_a_dead_letter(open_: Open, link: Link) -> None:
    store = open_()
    store.sender.push([envelope("a", due=(due := time.time() + 1.5))])
    delete(link, "q")
    (dead,) = until(store.admin.dead)
    assert (dead.queue, dead.reason) == ("q", "its queue was gone when it was due")
    assert dead.died_at == pytest.approx(due)
    assert store.admin.dead_retry([dead.tag]) == 1
    store.consumer.register("w", ["q"], 1)
    assert ids(receive(store, 1)) == ["a"]
    assert store.admin.dead() == []


def test_recreated_queue_gets_its_delayed_messages(open_: Open, link: Link) -> None:
    store, worker = open_(), open_()
    store.sender.push([envelope("a", due=time.time() + 4.0)])  # not while the queue is missing
    delete(link, "q")
    worker.consumer.register("w", ["q"], 1)
    assert ids(receive(worker, 1)) == ["a"]


def test_undeliverable_delayed_messages_do_not_block_others(open_: Open, link: Link) -> None:
    """RabbitMQ dead-letters 32 messages of a queue at a time: that many undeliverable ones would block all
    others."""
    store, others = open_(prefix="gone."), open_()
    others.consumer.register("w", ["q"], 1)
    due = time.time() + 3.0
    store.sender.push([envelope(str(number), due=due) for number in range(64)])
    delete(link, "gone.q")
    delete(link, f"gone.{DEAD}")
    others.sender.push([envelope("other", due=due + 0.02)])
    assert ids(receive(others, 1)) == ["other"]
    until(lambda: waiting(link, NOWHERE) == 64)


def test_deleted_binding_is_recreated(open_: Open, link: Link) -> None:
    """Deleted by hand, or with a queue that Celery recreated."""
    store, later = open_(), open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["a"]
    link.call(link.channel().queue_unbind, "q", DUE_EXCHANGE, binding("q"))
    later.sender.push([envelope("b", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["b"]


def test_deleted_delay_queues_are_recreated(open_: Open, link: Link) -> None:
    store = open_()
    store.consumer.register("w", ["q", "r"], 1)
    store.sender.push([envelope("first", name, due=time.time() + 1.0) for name in "qr"])
    receive(store, 2, "q", "r")
    for digit in range(1, 16):
        delete(link, queue(0, digit))
    now = time.time()
    names = [str(tenths) for tenths in range(5, 25)]
    store.sender.push([envelope(name, "qr"[int(name) % 2], due=now + int(name) / 10) for name in names])
    # A message that changes its path to the same queue may arrive twice.
    came: set[str] = set()
    while len(came) < len(names):
        came |= set(ids(receive(store, 1, "q", "r")))
    assert sorted(came, key=int) == names


def test_short_delay_needs_no_delay_queues(open_: Open, link: Link) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", due=(due := time.time() + 0.15))])
    assert ids(receive(store, 1)) == ["a"]
    assert time.time() >= due
    with pytest.raises(NotFound):
        link.call(link.channel().exchange_declare, DUE_EXCHANGE, "topic", passive=True)


def test_deleted_delay_exchange_is_recreated(open_: Open, link: Link) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("first", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["first"]
    link.call(link.channel().exchange_delete, exchange(0))
    with pytest.raises(BrokerUnavailable, match="no exchange"):
        store.sender.push([envelope("a", due=time.time() + 1.0)])
    store.sender.push([envelope("b", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["b"]


@pytest.mark.parametrize("days", [19.3, 19.42, 45, 4000])
def test_long_delays_wait_in_the_highest_digit(open_: Open, link: Link, days: float) -> None:
    store = open_()
    now = time.time()
    due = now + days * 86400
    found = route_of("q", due, now)
    assert found is not None
    assert found.key[0] in ("e", "f")
    store.sender.push([envelope("a", due=due)])
    until(lambda: waiting(link, queue(5, int(found.key[0], 16))) == 1)


def test_missing_permissions_for_delay_queues_are_reported(broken: Broken, open_: Open) -> None:
    broken.server.do("add_user", "sender", "secret")
    host = broken.direct.rpartition("/")[2]
    broken.server.do("set_permissions", "-p", host, "sender", r"^(q|qworker\.dead)$", ".*", ".*")
    store = AMQPBroker(broken.direct.replace("guest:guest", "sender:secret"))
    try:
        with pytest.raises(
            BrokerUnavailable, match=r"does not create queues for delayed.*qworker\.delay\.nowhere.*3\.10"
        ):
            store.sender.push([envelope("a", due=time.time() + 5.0)])
        store.sender.push([envelope("b")])
        broken.server.do("set_permissions", "-p", host, "sender", ".*", ".*", ".*")
        store.sender.push([envelope("c", due=time.time() + 0.5)])
        store.consumer.register("w", ["q"], 1)
        assert ids(receive(store, 2)) == ["b", "c"]
    finally:
        store.close()
        broken.server.do("delete_user", "sender")


@pytest.mark.parametrize(
    ("rest", "kind"),
    cases(product((0.1, 1.5), ("classic", "quorum")), [(0.1, "classic"), (1.5, "quorum")]),
)
def test_killed_server_keeps_confirmed_delayed_messages(
    broken: Broken, open_: Open, kind: str, rest: float
) -> None:
    """Neither waiting messages nor those just delivered are lost; rest: seconds after the last push. The
    first call creates the queues: RabbitMQ may lose messages in a quorum queue created half a second ago."""
    store = open_(type=kind)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("0", due=time.time() + 1.0)])
    receive(store, 1)
    store.consumer.deregister()
    chance, sent = random.Random(rest), {"0"}
    end = time.time() + 2.0
    while time.time() < end:
        many = [
            envelope(str(len(sent) + number), due=time.time() + chance.uniform(0.1, 3.0))
            for number in range(20)
        ]
        store.sender.push(many)
        sent |= {str(len(sent) + number) for number in range(20)}
    time.sleep(rest)
    broken.server.kill()
    broken.server.start()
    broken.server.wait()
    found: set[str] = set()
    generation = until(lambda: _registered(store))
    deadline = time.monotonic() + PATIENCE
    while found != sent:
        missing = sorted(sent - found, key=int)
        assert time.monotonic() < deadline, f"{len(missing)} of {len(sent)} are lost: {missing[:20]}"
        store.consumer.wait(0.1)
        messages = store.consumer.lease(["q"], 100).messages
        if messages:  # a server that has just started may be slow
            deadline = time.monotonic() + PATIENCE
        found |= set(ids(messages))
        store.consumer.settle(generation, [Ack(leased.tag) for leased in messages])


def _registered(store: AMQPBroker) -> int:
    try:
        return store.consumer.register("w", ["q"], 1)
    except BrokerUnavailable:
        return 0
