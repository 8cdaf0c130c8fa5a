"""Delayed messages in RabbitMQ: somebody deletes what is on their way, or kills the server."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp.exceptions import NotFound

from qworker.errors import BrokerUnavailable
from qworker.transports.amqp.broker import AMQPBroker
from qworker.transports.amqp.delays import DUE_EXCHANGE, NOWHERE, binding, exchange, queue, way
from qworker.transports.amqp.link import Link, address_of
from qworker.transports.amqp.queues import DEAD, Queues
from qworker.transports.lease import Ack
from tests.acceptance.brokers import Broken
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
def test_what_waited_comes_as_it_was_sent(open_: Open, kind: str, name: str) -> None:
    store = open_(type=kind)
    store.consumer.register("w", [name], 1)
    sent = envelope("a", name, due=time.time() + 2.0, headers={"x": [1]}, body=b"[1]")
    store.sender.push([envelope("plain", name), sent])
    plain, came = receive(store, 2, name)
    assert json.loads(came.headers) == json.loads(sent.headers)
    assert (came.body, came.properties) == (b"[1]", plain.properties)
    assert (came.deliveries, came.redelivered, came.requeued) == (0, False, 0)


def test_what_finds_its_queue_gone_becomes_a_dead_letter(open_: Open, link: Link) -> None:
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


def test_who_makes_a_queue_again_gets_what_waits_for_it(open_: Open, link: Link) -> None:
    store, worker = open_(), open_()
    store.sender.push([envelope("a", due=time.time() + 1.5)])
    delete(link, "q")
    worker.consumer.register("w", ["q"], 1)
    assert ids(receive(worker, 1)) == ["a"]


def test_what_has_no_end_any_more_holds_back_no_other(open_: Open, link: Link) -> None:
    """RabbitMQ hands on 32 messages of a queue at a time: so many without an end would stop all others."""
    store, others = open_(prefix="gone."), open_()
    others.consumer.register("w", ["q"], 1)
    due = time.time() + 3.0
    store.sender.push([envelope(str(number), due=due) for number in range(64)])
    delete(link, "gone.q")
    delete(link, f"gone.{DEAD}")
    others.sender.push([envelope("other", due=due + 0.02)])
    assert ids(receive(others, 1)) == ["other"]
    until(lambda: waiting(link, NOWHERE) == 64)


def test_a_binding_that_was_deleted_is_made_again(open_: Open, link: Link) -> None:
    """By hand, or with a queue that Celery made anew."""
    store, later = open_(), open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["a"]
    link.call(link.channel().queue_unbind, "q", DUE_EXCHANGE, binding("q"))
    later.sender.push([envelope("b", due=time.time() + 1.0)])
    assert ids(receive(store, 1)) == ["b"]


def test_queues_of_the_way_that_were_deleted_are_made_again(open_: Open, link: Link) -> None:
    store = open_()
    store.consumer.register("w", ["q", "r"], 1)
    store.sender.push([envelope("first", name, due=time.time() + 1.0) for name in "qr"])
    receive(store, 2, "q", "r")
    for digit in range(1, 16):
        delete(link, queue(0, digit))
    now = time.time()
    names = [str(tenths) for tenths in range(5, 25)]
    store.sender.push([envelope(name, "qr"[int(name) % 2], due=now + int(name) / 10) for name in names])
    # One that takes another way to the same queue may be sent twice.
    came: set[str] = set()
    while len(came) < len(names):
        came |= set(ids(receive(store, 1, "q", "r")))
    assert sorted(came, key=int) == names


def test_what_a_worker_can_wait_for_needs_no_queues(open_: Open, link: Link) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", due=(due := time.time() + 0.15))])
    assert ids(receive(store, 1)) == ["a"]
    assert time.time() >= due
    with pytest.raises(NotFound):
        link.call(link.channel().exchange_declare, DUE_EXCHANGE, "topic", passive=True)


def test_an_exchange_of_the_way_that_was_deleted_is_made_again(open_: Open, link: Link) -> None:
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
def test_delays_of_many_days_wait_in_the_first_place(open_: Open, link: Link, days: float) -> None:
    store = open_()
    now = time.time()
    due = now + days * 86400
    found = way("q", due, now)
    assert found is not None
    assert found.key[0] in ("e", "f")
    store.sender.push([envelope("a", due=due)])
    until(lambda: waiting(link, queue(5, int(found.key[0], 16))) == 1)


def test_what_the_user_may_not_make_is_said(broken: Broken, open_: Open) -> None:
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


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("rest", [0.1, 1.5])
def test_a_server_that_is_killed_loses_nothing_that_it_confirmed(
    broken: Broken, open_: Open, kind: str, rest: float
) -> None:
    """Neither what waits, nor what has just been handed on; rest: seconds from the last push. The first call
    makes the queues: RabbitMQ loses what is in a quorum queue that it made half a second ago."""
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
        found |= set(ids(messages))
        store.consumer.settle(generation, [Ack(leased.tag) for leased in messages])


def _registered(store: AMQPBroker) -> int:
    try:
        return store.consumer.register("w", ["q"], 1)
    except BrokerUnavailable:
        return 0
