"""The Amazon SQS broker with moto, in one process. (tests/acceptance/test_sqs.py has workers.)"""

from __future__ import annotations

import base64
import json
import random
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import kombu
import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, PublishError
from qworker.transports import open_broker
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.messages import Outgoing, of_envelope
from qworker.transports.held.port import NewMessage, NotAll, Received
from qworker.transports.lease import Ack, DeadLetter, Envelope, Release
from qworker.transports.sqs.broker import SqsServer
from qworker.transports.sqs.queue import SqsQueue
from tests.acceptance.sqs_server import REGION, Sqs
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration
Open = Callable[..., HeldBroker]


@pytest.fixture(scope="module")
def server() -> Iterator[Sqs]:
    with closing(Sqs()) as server:
        yield server


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_(server: Sqs) -> Iterator[Open]:
    opened: list[HeldBroker] = []
    server.reset()

    def open_one(url: str | None = None, lease: float = 15.0, **options: Any) -> HeldBroker:
        transport = {"region": REGION, "wait_time_seconds": 2, **options}
        conf = Settings({"broker_transport_options": transport, "worker_lease_seconds": lease})
        store = open_broker(url or server.url, conf)
        assert isinstance(store, HeldBroker)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def send_undelayed(store: HeldBroker, messages: Sequence[Outgoing]) -> None:
    """Send messages as they arrive after the maximum delay of SQS."""
    queues = store.consumer._bound
    for message in messages:
        queue = queues[message.queue]
        queue.send([NewMessage(queue.text(message), 0, "")])


def test_messages_are_compatible_with_kombu(open_: Open, server: Sqs, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    options = {"region": REGION, "wait_time_seconds": 1}
    with kombu.Connection(server.url, transport_options=options) as connection:
        kombu.Producer(connection.default_channel).publish(
            b"[1]", routing_key=queue, headers={"id": "a", "task": "t"}, content_type="application/json",
            content_encoding="utf-8", serializer=None,
        )  # fmt: skip
        (message,) = receive(store, 1, queue)
        assert json.loads(message.headers) == {"id": "a", "task": "t"}
        assert message.body == b"[1]"
        store.consumer.settle(own, [Ack(message.tag)])
        store.consumer.deregister()
        store.sender.push([envelope("b", queue, body=b"[2]")])
        found = kombu.Queue(queue)(connection.default_channel).get()
        assert (found.headers["id"], found.body, found.content_type) == ("b", b"[2]", "application/json")
        found.ack()
    assert server.counts(queue) == (0, 0, 0)


def test_foreign_messages_are_received(open_: Open, server: Sqs, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    client = server.client()
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    bodies = [
        "words",
        '{"Records": []}',
        "[]",
        base64.b64encode(b"\xff").decode(),
        json.dumps({"properties": {"body_encoding": "rot13"}, "body": "?", "headers": 5}),
    ]
    for body in bodies:
        client.send_message(QueueUrl=url, MessageBody=body)
    found = receive(store, len(bodies), queue)
    assert sorted(message.body.decode() for message in found) == sorted(bodies)
    store.consumer.settle(own, [DeadLetter(message.tag, "nonsense") for message in found])
    assert sorted(letter.body.decode() for letter in store.admin.dead()) == sorted(bodies)


def test_many_and_large_messages(open_: Open, queue: str) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(str(number), queue, body=b"x" * 60_000) for number in range(23)])
    found = receive(store, 23, queue)
    assert sorted(map(int, ids(found))) == list(range(23))
    assert store.consumer.settle(own, [Ack(message.tag) for message in found]) == set()
    with pytest.raises(PublishError):
        store.sender.push([envelope("large", queue, body=b"x" * 2_000_000)])


@pytest.mark.parametrize("large", ["body", "headers"])
def test_message_of_maximum_size_can_be_dead_lettered(open_: Open, queue: str, large: str) -> None:
    """With its reason it exceeds the limit of SQS, like with its count on a release."""
    from moto.sqs.models import MAXIMUM_MESSAGE_LENGTH  # takes a third of a second

    store = open_()
    own = store.consumer.register("w", [queue], 1)
    noise = random.Random(1).randbytes(1_200_000)
    text = base64.b64encode(noise).decode()

    def message(size: int) -> Envelope:
        if large == "body":
            return envelope("a", queue, body=noise[:size])
        return Envelope(queue, json.dumps({"id": "a", "noise": text[:size]}), None, b"[]")

    def bytes_sent(size: int) -> int:
        return len(store.sender._declared[queue].text(of_envelope(message(size), 0.0)))

    store.sender.push([message(0)])
    store.consumer.settle(own, [Ack(receive(store, 1, queue)[0].tag)])
    fits = bisect_right(range(len(noise)), MAXIMUM_MESSAGE_LENGTH, key=bytes_sent) - 1
    with pytest.raises(PublishError):
        store.sender.push([message(fits + 10)])
    store.sender.push([message(fits)])
    (one,) = receive(store, 1, queue)
    with pytest.raises(PublishError):
        store.consumer.settle(own, [Release(one.tag, counted=True)])
    soon = SYSTEM_CLOCK.now() + 1.0
    assert store.consumer.settle(own, [Release(one.tag, soon, counted=True)]) == set()  # kept here
    store.consumer.deregister()  # it goes back without its count
    own = store.consumer.register("w", [queue], 1)
    (one,) = receive(store, 1, queue)
    assert store.consumer.settle(own, [DeadLetter(one.tag, "why " * 100)]) == set()
    (letter,) = store.admin.dead()
    assert (letter.reason, letter.headers, letter.body) == ("why " * 100, one.headers, one.body)
    with pytest.raises(PublishError):
        store.admin.dead_retry()
    assert store.admin.dead_discard() == 1


def test_foreign_message_too_large_for_a_dead_letter_is_delayed(open_: Open, server: Sqs, queue: str) -> None:
    """It is foreign text, which cannot be stored as compactly."""
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    text = base64.b64encode(random.Random(1).randbytes(780_000)).decode()
    client = server.client()
    client.send_message(QueueUrl=client.get_queue_url(QueueName=queue)["QueueUrl"], MessageBody=text)
    store.sender.push([envelope("a", queue)])
    large, small = sorted(receive(store, 2, queue), key=lambda leased: len(leased.body), reverse=True)
    with pytest.raises(PublishError):
        store.consumer.settle(own, [Ack(small.tag), DeadLetter(large.tag, "no task")])
    later = SYSTEM_CLOCK.now() + 60.0
    assert store.consumer.settle(own, [Ack(small.tag), Release(large.tag, later)]) == set()
    assert store.consumer.lease([queue], 0).next_due == later
    assert server.counts(queue) == (0, 0, 1)


def test_settlements_are_repeated_after_an_outage(
    open_: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(str(number), queue) for number in range(3)])
    dead, back, ran = (message.tag for message in receive(store, 3, queue))
    batch = [DeadLetter(dead, "why"), Release(back), Ack(ran)]

    def raise_away(queue: SqsQueue, messages: Sequence[Received]) -> list[Received]:
        raise OSError("raise_away")

    with monkeypatch.context() as patch:
        patch.setattr(SqsQueue, "finish", raise_away)
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                store.consumer.settle(own, batch)
    assert store.consumer.settle(own, batch) == set()
    assert store.consumer.settle(own, batch) == {dead, back, ran}
    assert [letter.reason for letter in store.admin.dead()] == ["why"]
    assert [message.tag for message in receive(store, 1, queue)] == [back]


def test_number_of_calls_per_message(open_: Open, queue: str) -> None:
    """SQS allows ten messages per call, so three calls (with publishing) per ten tasks."""
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    calls: list[str] = []
    events = store.consumer._bound[queue].client.meta.events
    events.register("before-call.sqs", lambda model, **_: calls.append(model.name))
    store.sender.push([envelope(str(number), queue) for number in range(200)])
    for _ in range(2):
        found = receive(store, 100, queue)
        store.consumer.settle(own, [Ack(message.tag) for message in found])
    assert 40 <= len(calls) <= 0.3 * 200, calls


@pytest.mark.parametrize(("code", "expected"), [("InvalidMessageContents", PublishError), ("InternalError",
BrokerUnavailable)])  # fmt: skip
def test_refused_message_of_a_batch_raises(
    open_: Open, queue: str, monkeypatch: pytest.MonkeyPatch, code: str, expected: type[Exception]
) -> None:
    store = open_()
    answer = {"Failed": [{"Id": "0", "Code": code, "Message": "it says", "SenderFault": True}]}
    client = SimpleNamespace(send_message_batch=lambda **given: answer)
    store.sender.push([envelope("a", queue)])
    monkeypatch.setattr(SqsQueue, "client", client)
    with pytest.raises(expected, match="it says"):
        store.sender.push([envelope("b", queue)])


def test_delayed_messages_wait_in_sqs(open_: Open, server: Sqs, queue: str) -> None:
    """SQS delays by 15 minutes at most, so messages that arrive early are delayed again."""
    store = open_()
    store.consumer.register("w", [queue], 1)
    now = SYSTEM_CLOCK.now()
    store.sender.push([envelope("hours", queue, due=now + 9000.0), envelope("soon", queue, due=now + 6.0)])
    assert server.counts(queue) == (0, 2, 0)
    early = of_envelope(envelope("again", queue, due=now + 800.0), now)
    send_undelayed(store, [early])
    (soon,) = receive(store, 1, queue)
    assert ids([soon]) == ["soon"]
    assert SYSTEM_CLOCK.now() >= now + 6.0
    assert server.counts(queue) == (0, 2, 1)
    later = Release(soon.tag, now + 600.0, requeued=True)
    assert store.consumer.settle(store.consumer._generation, [later]) == set()
    assert store.admin.depths([queue])[0][:4] == (queue, *server.counts(queue)) == (queue, 0, 3, 0)
    assert store.admin.purge(queue) == 3


def test_message_deleted_by_others_is_lost(open_: Open, server: Sqs, queue: str) -> None:
    slow, quick = open_(lease=1.0, visibility_timeout=1), open_()
    own, theirs = slow.consumer.register("slow", [queue], 1), quick.consumer.register("quick", [queue], 1)
    slow.sender.push([envelope("a", queue)])
    (message,) = receive(slow, 1, queue)
    (again,) = receive(quick, 1, queue)
    assert quick.consumer.settle(theirs, [Ack(again.tag)]) == set()
    slow.consumer.extend()
    assert slow.consumer.settle(own, [Ack(message.tag)]) == {message.tag}
    assert server.counts(queue) == (0, 0, 0)


@pytest.mark.parametrize("operation", ["finish", "give_back"])
def test_failed_entries_of_a_batch_are_reported_by_index(
    open_: Open, queue: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = open_()
    store.consumer.register("w", [queue], 1)
    store.sender.push([envelope(name, queue) for name in "abc"])
    receive(store, 3, queue)
    late, done, failed = (held.message for held in store.consumer._holdings.leased.values())
    late.expires = 0.0

    def fail(QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        refused = {"Id": Entries[-1]["Id"], "Code": "Throttled", "Message": "slowly", "SenderFault": False}
        return {"Successful": [{"Id": one["Id"]} for one in Entries[:-1]], "Failed": [refused]}

    client = SimpleNamespace(delete_message_batch=fail, change_message_visibility_batch=fail)
    monkeypatch.setattr(SqsQueue, "client", client)
    with pytest.raises(NotAll) as caught:
        getattr(store.consumer._bound[queue], operation)([late, done, failed])
    assert caught.value.left == {0, 2}


def test_fifo_queues_keep_the_order(open_: Open, queue: str) -> None:
    store = open_()
    name = f"{queue}.fifo"
    own = store.consumer.register("w", [name], 1)
    now = SYSTEM_CLOCK.now()
    store.sender.push([envelope(str(number), name) for number in range(5)])
    found = receive(store, 5, name)
    assert ids(found) == list("01234")
    store.consumer.settle(own, [Ack(message.tag) for message in found])
    store.sender.push([envelope("later", name, due=now + 3.0)])
    (later,) = receive(store, 1, name)
    assert SYSTEM_CLOCK.now() >= now + 3.0
    store.consumer.settle(own, [Ack(later.tag)])


def test_predefined_queues(open_: Open, server: Sqs, queue: str) -> None:
    client = server.client()
    urls = {name: client.create_queue(QueueName=name)["QueueUrl"] for name in (queue, "qworker-dead")}
    keys = {"access_key_id": "key", "secret_access_key": "secret"}
    predefined = {name: {"url": url, **keys} for name, url in urls.items()}
    store = open_(predefined_queues=predefined)
    own = store.consumer.register("w", [queue], 1)
    store.sender.push([envelope("a", queue)])
    (message,) = receive(store, 1, queue)
    store.consumer.settle(own, [DeadLetter(message.tag, "why")])
    assert [letter.reason for letter in store.admin.dead()] == ["why"]
    with pytest.raises(ConfigurationError, match=r"predefined_queues.*'other'"):
        store.sender.push([envelope("a", "other")])
    del predefined["qworker-dead"]
    with pytest.raises(ConfigurationError, match=r"predefined_queues.*qworker-dead"):
        open_(predefined_queues=predefined).consumer.register("w", [queue], 1)


def test_unavailable_server_raises_broker_unavailable(open_: Open, queue: str) -> None:
    server = Sqs()
    try:
        store = open_(server.url)
        own = store.consumer.register("w", [queue], 1)
        store.sender.push([envelope("a", queue)])
        (message,) = receive(store, 1, queue)
    finally:
        server.close()
    for _ in range(2):  # the second time, too, as it is still pending
        with pytest.raises(BrokerUnavailable):
            store.consumer.settle(own, [Ack(message.tag)])
    with pytest.raises(BrokerUnavailable):
        store.sender.push([envelope("b", queue)])
    with pytest.raises(BrokerUnavailable):
        open_(server.url).consumer.register("w", [queue], 1)


class Guarded(Sqs):
    """A server that checks credentials."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "INITIAL_NO_AUTH_ACTION_COUNT": "0"}


def test_invalid_keys_raise_configuration_error(open_: Open, queue: str) -> None:
    server = Guarded()
    try:
        with pytest.raises(ConfigurationError, match="security token"):
            open_(server.url).consumer.register("w", [queue], 1)
    finally:
        server.close()


def test_https_scheme_selects_tls() -> None:
    store = open_broker("sqs+https://key:secret@sqs.example/", Settings())
    assert isinstance(store, HeldBroker)
    server = store.sender._server
    assert isinstance(server, SqsServer)
    assert (store.url, server._kombu._options["is_secure"]) == ("sqs://key:secret@sqs.example/", True)


def test_messages_of_a_failed_lease_are_returned_by_the_next(
    open_: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_()
    store.consumer.register("w", [queue], 1)
    now = SYSTEM_CLOCK.now()
    early = of_envelope(envelope("again", queue, due=now + 800.0), now)
    send_undelayed(store, [of_envelope(envelope("a", queue), now), early])
    cut: list[int] = []

    def fail(messages: object, timeout: float = 10.0) -> None:
        cut.append(1)
        raise BrokerUnavailable("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.sender, "send", fail)
        end = time.monotonic() + PATIENCE
        while not cut:
            assert time.monotonic() < end
            with suppress(BrokerUnavailable):
                assert store.consumer.lease([queue], 10).messages == []
                store.consumer.wait(1.0)
    assert ids(store.consumer.lease([queue], 10).messages) == ["a"]
