"""Brokers used through kombu, with memory and files as examples."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kombu.compression import compress
from kombu.transport import TRANSPORT_ALIASES

from qworker import QWorker
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, NotSupported
from qworker.testing.clock import FakeClock
from qworker.transports import SCHEMES, open_broker
from qworker.transports.held.broker import HeldBroker
from qworker.transports.lease import Ack, DeadLetter, Envelope, Release
from tests.support.kombu_brokers import kombu_broker
from tests.support.messages import envelope, ids
from tests.support.receiving import receive

pytestmark = pytest.mark.integration
Open = Callable[..., HeldBroker]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue() -> str:
    """Return a new name: kombu's memory transport is global to the process."""
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["memory", "filesystem"])
def open_(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    opened: list[HeldBroker] = []
    options = {
        f"data_folder_{way}": str(tmp_path / "messages") for way in ("in", "out")
    } | {"control_folder": str(tmp_path / "control")}  # fmt: skip

    def open_one(**more: Any) -> HeldBroker:
        given = options if request.param == "filesystem" else {}
        store = kombu_broker(f"{request.param}://", options=dict(given), clock=clock, **more)
        opened.append(store)
        return store

    (tmp_path / "messages").mkdir()
    yield open_one
    for store in opened:
        for name in {*store.sender._declared, "qworker.dead"}:
            store.admin.purge(name)
        store.close()


def test_messages_are_delivered_unchanged(open_: Open, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    body = bytes(range(256))
    properties = {"content_type": "x", "content_encoding": "binary", "correlation_id": "c"}
    store.sender.push(
        [Envelope(queue, '{"id":"é"}', json.dumps(properties), body), Envelope(queue, "no JSON", None, b"")]
    )
    first, second = sorted(
        store.consumer.lease([queue], 10).messages, key=lambda leased: len(leased.body), reverse=True
    )
    assert json.loads(first.headers) == {"id": "é"}
    assert json.loads(first.properties or "") == properties
    assert (first.body, first.deliveries, first.redelivered, first.due) == (body, 0, False, None)
    assert second.headers == "no JSON"
    assert store.consumer.lease([queue], 10).messages == []
    assert store.consumer.settle(own, [Ack(first.tag), Ack(second.tag), Ack(1)]) == {1}
    assert store.consumer.settle(own, [Ack(first.tag)]) == {first.tag}
    assert [info for info in store.admin.queues() if info.queue == queue] == []


def test_headers_with_x_prefix_are_delivered(open_: Open, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    given = {"id": "a", "x-tenant": "acme", "x-none": None}
    store.sender.push(
        [Envelope(queue, json.dumps({**given, "x-qworker-deliveries": 1, "x-death": []}), None, b"")]
    )
    for deliveries in (1, 2):
        (leased,) = store.consumer.lease([queue], 1).messages
        assert (json.loads(leased.headers), leased.deliveries) == (given, deliveries)
        store.consumer.settle(own, [Release(leased.tag, counted=True)])


def test_lease_respects_the_limit_for_each_queue(open_: Open, queue: str) -> None:
    store = open_()
    store.consumer.register("w", [queue, queue + "r"], 1)
    store.sender.push([envelope(str(number), name) for number in range(10) for name in (queue, queue + "r")])
    taken = [store.consumer.lease([queue, queue + "r"], 5).messages for _ in range(4)]
    assert [len(messages) for messages in taken] == [5, 5, 5, 5]
    assert Counter(leased.queue for leased in taken[0] + taken[1]) == {queue: 5, queue + "r": 5}


def test_released_message_keeps_its_counts(open_: Open, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope("a", queue)])
    (leased,) = store.consumer.lease([queue], 1).messages
    store.consumer.settle(own, [Release(leased.tag)])
    (leased,) = store.consumer.lease([queue], 1).messages
    assert (leased.deliveries, leased.requeued) == (0, 0)
    store.consumer.settle(own, [Release(leased.tag, counted=True)])
    (leased,) = store.consumer.lease([queue], 1).messages
    store.consumer.settle(own, [Release(leased.tag, requeued=True)])
    (leased,) = store.consumer.lease([queue], 1).messages
    assert (leased.deliveries, leased.requeued, leased.redelivered) == (1, 1, True)


def test_delayed_messages_wait_in_the_worker(open_: Open, queue: str, clock: FakeClock) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    now = clock.now()
    store.sender.push(
        [
            envelope("later", queue, due=now + 60),
            envelope("near", queue, due=now + 3),
            envelope("plain", queue),
        ]
    )
    claim = store.consumer.lease([queue], 10)
    (plain,) = claim.messages
    assert (ids([plain]), claim.next_due) == (["plain"], now + 3)
    store.consumer.settle(own, [Release(plain.tag, now + 10, requeued=True)])
    assert ids(store.consumer.lease([queue], 0, delayed_limit=5, eta_window=5.0).messages) == ["near"]
    clock.advance(10)
    (again,) = store.consumer.lease([queue], 10).messages
    assert (ids([again]), again.requeued, again.due) == (["plain"], 1, now + 10)
    clock.advance(50)
    assert ids(store.consumer.lease([queue], 10).messages) == ["later"]


def test_messages_over_the_eta_limit_are_requeued(open_: Open, queue: str, clock: FakeClock) -> None:
    store = open_(eta_limit=2)
    store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(str(number), queue, due=clock.now() + 60) for number in range(3)])
    assert store.consumer.lease([queue], 10).messages == []
    clock.advance(60)
    assert sorted(ids(receive(store, 3, queue))) == ["0", "1", "2"]


def test_dead_letters(open_: Open, queue: str, clock: FakeClock) -> None:
    store = open_()
    store.admin.dead_discard()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(name, queue) for name in "abc"])
    taken = store.consumer.lease([queue], 3).messages  # files have no order
    for leased in taken:
        clock.advance(1)
        store.consumer.settle(own, [DeadLetter(leased.tag, f"why {ids([leased])[0]}", counted=True)])
    letters = store.admin.dead()
    first, second, third = ids(taken)
    assert [letter.reason for letter in letters] == [f"why {name}" for name in (third, second, first)]
    assert (letters[0].queue, letters[0].died_at, letters[0].deliveries) == (queue, clock.now(), 1)
    assert [(info.queue, info.dead) for info in store.admin.queues() if info.queue == queue] == [(queue, 3)]
    assert store.admin.dead_retry([letters[0].tag, 5]) == 1
    (again,) = store.consumer.lease([queue], 5).messages
    assert (ids([again]), again.deliveries, again.redelivered) == ([third], 0, True)
    assert store.admin.dead_discard([letters[1].tag]) == 1
    assert [letter.reason for letter in store.admin.dead()] == [f"why {first}"]
    assert store.admin.dead_discard() == 1


def test_reading_dead_letters_waits_for_another_reader(open_: Open, queue: str) -> None:
    store = open_()
    store.admin.dead_discard()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope("a", queue)])
    (leased,) = store.consumer.lease([queue], 1).messages
    store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    with ThreadPoolExecutor(1) as other:
        with store.admin._dead_letters.taken():
            reading = other.submit(store.admin.dead)
            with pytest.raises(TimeoutError):
                reading.result(0.1)
        assert [letter.reason for letter in reading.result()] == ["why"]


def test_refused_settlement_leaves_its_batch_consistent(open_: Open, queue: str) -> None:
    """Messages that were already sent are not sent again."""
    store = open_()
    store.admin.dead_discard()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(name, queue) for name in "abcd"])
    ran, bad, counted, invalid = (leased.tag for leased in store.consumer.lease([queue], 4).messages)
    batch = [Ack(ran), DeadLetter(bad, "why"), Release(counted, counted=True), Release(invalid, "late")]  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(TypeError):
            store.consumer.settle(own, batch)
    assert store.consumer.settle(own, batch[:2]) == set()
    assert store.consumer.settle(own, [*batch[2:3], Release(invalid), Ack(bad)]) == {bad}
    assert len(store.admin.dead()) == 1
    again = store.consumer.lease([queue], 4).messages
    assert sorted(leased.deliveries for leased in again) == [0, 1]


def test_new_generation_releases_messages_of_the_old_one(open_: Open, queue: str) -> None:
    store = open_()
    old = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope("a", queue)])
    (leased,) = store.consumer.lease([queue], 1).messages
    new = store.consumer.register("w", [queue], 1)
    (again,) = store.consumer.lease([queue], 1).messages
    assert again.tag == leased.tag
    assert store.consumer.settle(old, [Ack(leased.tag)]) == {leased.tag}
    assert store.consumer.settle(new, [Ack(again.tag)]) == set()
    store.consumer.deregister()
    store.consumer.deregister()
    with pytest.raises(LeaseLost):
        store.consumer.lease([queue], 1)


def test_wait_ends_with_a_push_or_wake(open_: Open, queue: str) -> None:
    store = open_(poll=20.0)
    store.consumer.register("w", [queue], 1)
    started = time.monotonic()
    assert store.consumer.wait(0.01) is False
    store.sender.push([envelope("a", queue)])
    assert store.consumer.wait(10) is True
    store.consumer.wake()
    assert store.consumer.wait(10) is False
    assert time.monotonic() - started < 10


def test_missing_capabilities_are_declared(open_: Open) -> None:
    store = open_()
    assert {"fanout", "workers", "eta"} <= store.lacks
    assert (store.presence, store.revocations, store.peeking, store.delayed) == (None,) * 4
    with pytest.raises(NotSupported, match="cannot be revoked"):
        QWorker(broker=store, set_as_current=False).control.revoke("a")


def test_every_scheme_of_kombu_is_supported() -> None:
    conf = Settings()
    assert isinstance(open_broker("memory://", conf), HeldBroker)
    assert isinstance(open_broker("sqla+sqlite:///x", conf), HeldBroker)
    with pytest.raises(ConfigurationError, match="did you mean"):
        open_broker("amqpx://", conf)


def test_missing_library_is_reported_before_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = Settings()
    with pytest.raises(ConfigurationError, match=r"The kazoo .*: pip install .kombu\[zookeeper\]"):
        open_broker("zookeeper://127.0.0.1/", conf)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "kombu.transport.confluentkafka", raising=False)
    with pytest.raises(ConfigurationError) as failure:
        open_broker("kafka://127.0.0.1/", conf)
    assert str(failure.value) == (
        'broker_url: kafka:// needs a library that is not installed: pip install "kombu[confluentkafka]"'
    )


@pytest.mark.parametrize(
    ("url", "missing", "why"),
    [
        ("pyro://localhost/broker", "Pyro4", r".*Pyro4.*: pip install .kombu\[pyro4\]"),
        ("slmq://user:key@localhost", "softlayer_messaging", r".*: pip install .kombu\[slmq\]"),
        (
            "sqla+postgresql+psycopg2://localhost/broker",
            "psycopg2",
            r".*psycopg2.*: install this driver, or name another, as in sqla\+postgresql\+psycopg://",
        ),
        ("sqla+nosuch://localhost/broker", "nosuch", r".*URL is invalid.*nosuch"),
    ],
)
def test_library_that_kombu_imports_late_is_reported_before_connecting(
    url: str, missing: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=f"needs a library that is not installed{why}"):
        open_broker(url, Settings())


def test_task_is_published_through_kombu(queue: str) -> None:
    app = QWorker("plain", broker_url="memory://", task_default_queue=queue)

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    result = add.delay(2, 3)
    app.broker.consumer.register("w", [queue], 1)
    (leased,) = app.broker.consumer.lease([queue], 1).messages
    assert json.loads(leased.headers)["id"] == result.id
    assert leased.properties is None
    assert json.loads(leased.body)[0] == [2, 3]
    app.broker.close()


def test_depths_report_ready_messages(open_: Open, queue: str) -> None:
    store = open_()
    store.sender.push([envelope("a", queue), envelope("b", queue)])
    assert [(info.queue, info.ready) for info in store.admin.depths([queue])] == [(queue, 2)]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_body_is_delivered_unchanged(open_: Open, queue: str, compression: str) -> None:
    """Otherwise kombu would decompress it before its signature is verified."""
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    text = json.dumps({"id": "a", "compression": compression})
    body = compress(b"[]" * 100, compression)[0]
    store.sender.push([Envelope(queue, text, None, body)])
    for settlement in (Release, Ack):
        (leased,) = store.consumer.lease([queue], 10).messages
        assert (json.loads(leased.headers)["compression"], leased.body) == (compression, body)
        assert store.consumer.settle(own, [settlement(leased.tag)]) == set()


@pytest.mark.parametrize(
    "scheme",
    sorted(
        scheme
        for scheme, transport in TRANSPORT_ALIASES.items()
        if isinstance(transport, str) and scheme not in SCHEMES
    ),
)
def test_unusable_kombu_transport_raises_a_clear_error(scheme: str) -> None:
    """Without their libraries, some of them raise NameError, or objects that are not exceptions."""
    with suppress(ConfigurationError, BrokerUnavailable):
        open_broker(f"{scheme}://127.0.0.1:1/x", Settings({})).consumer.register("w@test", ["q"], 1)
