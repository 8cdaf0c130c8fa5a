"""Damaged envelopes: reading one from any transport gives a message that a worker can lease and settle."""

from __future__ import annotations

import base64
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu import Connection

from qworker.errors import MessageError
from qworker.message.protocol import receive
from qworker.transports.amqp.codec import Delivery
from qworker.transports.amqp.inbox import Inbox, Prefetch
from qworker.transports.amqp.table import table
from qworker.transports.held.messages import dead, leased, read
from qworker.transports.lease import DeadLetter, Envelope, Leased, Release
from qworker.transports.own_headers import LATEST, MOST_COUNT
from tests.support.kombu_brokers import kombu_broker

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [-1, 2**31, 2**63, 10**400, 1e308, math.inf, -math.inf, math.nan, "1" * 5000, "1.2.3", ""]
    )
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def check(found: Leased) -> None:
    for number, most in ((found.tag, 2**63 - 1), (found.priority, MOST_COUNT)):
        assert type(number) is int
        assert 0 <= number <= most
    assert found.due is None or (type(found.due) is float and 0 <= found.due <= LATEST)
    for number in (found.deliveries, found.requeued):
        assert type(number) is int
        assert 0 <= number <= MOST_COUNT
    assert type(found.redelivered) is bool
    assert type(found.headers) is str
    assert type(found.body) is bytes
    assert found.properties is None or type(found.properties) is str
    try:
        receive(found.headers, found.properties, found.body, frozenset({"json"}))
    except MessageError:
        pass


def _dumps(value: Any) -> str:
    return json.dumps(value)


# -- Redis --


def _redis() -> Any:
    pytest.importorskip("hiredis", reason='pip install "qworker-queue[redis]"')
    from qworker.transports.redis import envelope

    return envelope


def _ours() -> bytes:
    redis = _redis()
    tail = redis.route("q", 3, redis.Scale())[1]
    envelope = Envelope("q", '{"task":"t","id":"i"}', '{"reply_to":"r"}', b"[[],{},{}]", 3, 1700000000.5)
    text: bytes = redis.to_payload(envelope, b"1700000000.5", tail, str(uuid.UUID(int=7)))
    return text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"body": "W', b'"body": "!'),  # invalid base64 of the same length
        (b'"due": 1700000000.5', b'"due": 1.2.3'),
        (b'"due": 1700000000.5', b'"due": 1e999'),
        (b'"due": 1700000000.5', b'"due": e'),
        (b'"deliveries": 0', b'"deliveries": ' + b"1" * 5000),
        (b'"deliveries": 0', b'"deliveries": ' + b"1" * 400),
        (b'"parked": 0', b'"parked": ' + b"1" * 5000),
        (b'"sizes": [', b'"sizes": [' + b"1" * 5000),
        (b'"sizes": [21, 16]', b'"sizes": [1, 1]'),
        (b'"properties": "', b'"properties": \xff"'),
    ],
)
def test_envelope_with_a_damaged_field(old: bytes, new: bytes) -> None:
    assert old in _ours()
    check(_redis().from_payload(_ours().replace(old, new, 1), _redis().Scale(), "q"))


@given(data=st.data())
def test_envelope_with_random_damage(data: st.DataObject) -> None:
    text = bytearray(_ours())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        text[start:end] = data.draw(
            st.binary(max_size=9)
            | st.sampled_from([b"1" * 5000, b"null", b"1e999", b"{", b"]", b'"', b"NaN"])
        )
    check(_redis().from_payload(bytes(text), _redis().Scale(), "q"))


@given(
    own=st.dictionaries(
        st.sampled_from(["deliveries", "redelivered", "parked", "due", "sent", "properties"]), ANY
    )
    | ANY,
    parts=st.dictionaries(
        st.sampled_from(["headers", "properties", "body", "content-type", "content-encoding"]), ANY
    ),
    inside=st.dictionaries(
        st.sampled_from(
            ["priority", "delivery_tag", "delivery_info", "body_encoding", "reply_to", "correlation_id"]
        ),
        ANY,
    ),
)
@example(own={"due": 10**400}, parts={"body": ""}, inside={"priority": math.inf})
@example(own={"deliveries": 10**400}, parts={}, inside={"priority": "1" * 5000})
def test_envelope_with_arbitrary_fields(own: Any, parts: dict[str, Any], inside: dict[str, Any]) -> None:
    value = {"qworker": own, "headers": {"task": "t", "id": "i"}, "properties": inside, "body": "", **parts}
    try:
        text = _dumps(value).encode()
    except ValueError:  # numbers too long to write; the cases above have them as text
        assume(False)
    check(_redis().from_payload(text, _redis().Scale(), "q"))


# -- RabbitMQ --

IN_TABLES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
OWN = ("deliveries", "parked", "redelivered", "due", "headers", "queue", "reason", "died")


@given(
    own=st.dictionaries(
        st.sampled_from([f"x-qworker-{name}" for name in OWN] + ["x-delivery-count"]), IN_TABLES
    ),
    headers=st.dictionaries(st.sampled_from(["task", "id", "eta", "retries", "stamps"]), IN_TABLES),
)
@example(own={"x-qworker-due": math.inf}, headers={})
@example(own={"x-qworker-due": math.nan, "x-qworker-deliveries": 2**62}, headers={})
def test_rabbitmq_message_with_arbitrary_headers(own: dict[str, Any], headers: dict[str, Any]) -> None:
    data = table({**headers, **own})
    inbox = Inbox(Prefetch(10))
    header = b"\0\x3c\0\0" + (2).to_bytes(8, "big") + b"\x20\0" + data
    inbox.put("q", Delivery("c", "", "q", 1, False, header, b"[]"), 1e9)
    inbox.promote_due(LATEST)
    (found,) = inbox.take(["q"], 10, 10, LATEST)
    check(found)


@given(st.binary(max_size=60))
def test_rabbitmq_message_with_arbitrary_bytes_as_headers(data: bytes) -> None:
    inbox = Inbox(Prefetch(10))
    header = b"\0\x3c\0\0" + (2).to_bytes(8, "big") + b"\x20\0" + len(data).to_bytes(4, "big") + data
    inbox.put("q", Delivery("c", "", "q", 1, False, header, b"[]"), 1e9)
    inbox.promote_due(LATEST)
    (found,) = inbox.take(["q"], 10, 10, LATEST)
    check(found)


# -- the other transports of kombu --


class _Message:
    def __init__(self, **fields: Any) -> None:
        self.headers = self.properties = self.content_type = self.content_encoding = None
        self.body: Any = b""
        self.delivery_tag: Any = "tag"
        self.delivery_info: Any = {}
        self.__dict__.update(fields)


@given(
    fields=st.dictionaries(
        st.sampled_from(
            [
                "headers",
                "properties",
                "content_type",
                "content_encoding",
                "body",
                "delivery_tag",
                "delivery_info",
            ]
        ),
        ANY | st.sets(st.integers(), max_size=2) | st.binary(max_size=9),
    ),
    own=st.dictionaries(st.sampled_from([f"x-qworker-{name}" for name in OWN]), ANY),
)
@example(fields={"headers": [1], "body": 10**15}, own={})
def test_kombu_message_with_arbitrary_fields(fields: dict[str, Any], own: dict[str, Any]) -> None:
    content = read(_Message(**fields))
    check(leased("q", content, content.tag))
    content = read(_Message(headers=own))
    check(leased("q", content, content.tag))
    assert type(dead(content).died_at) is float


@pytest.mark.parametrize(
    "payload",
    [
        {"body": "x"},
        {"properties": {}},
        {"properties": {"delivery_tag": "1", "body_encoding": "base64"}, "body": "!"},
        {"properties": {"delivery_tag": "1"}, "headers": [1], "body": {"a": 1}},
        {"properties": [], "headers": {}},
        [],
        7,
    ],
)
def test_message_unreadable_for_kombu_has_no_task(payload: Any) -> None:
    queue = f"q{uuid.uuid4().hex[:8]}"
    store = kombu_broker("memory://", options={})
    generation = store.consumer.register("w", [queue], 1)
    with Connection("memory://") as connection:
        connection.default_channel._put(queue, payload)
    (found,) = store.consumer.lease([queue], 10).messages
    check(found)
    assert store.consumer.settle(generation, [Release(found.tag)]) == set()
    (found,) = store.consumer.lease([queue], 10).messages
    assert store.consumer.settle(generation, [DeadLetter(found.tag, "no message")]) == set()
    assert store.admin.dead_discard() == 1
    store.close()


# -- SQS --


@given(
    body=st.one_of(
        st.text(max_size=40),
        st.dictionaries(st.sampled_from(["headers", "properties", "body", "content-type"]), ANY)
        .map(lambda value: _try(value))
        .map(lambda text: base64.b64encode(text.encode()).decode()),
    ),
    count=ANY,
)
def test_sqs_message_with_arbitrary_fields(body: str, count: Any) -> None:
    pytest.importorskip("boto3", reason='pip install "qworker-queue[sqs]"')
    from qworker.transports.sqs.queue import SqsQueue

    class Channel:
        @staticmethod
        def _new_queue(name: str) -> str:
            return name

    found = {
        "Body": body, "ReceiptHandle": "r", "MessageId": "m",
        "Attributes": {"ApproximateReceiveCount": count},
    }  # fmt: skip
    content = read(SqsQueue(Channel(), "q", 30, 30).received(found))
    check(leased("q", content, content.tag))


def _try(value: Any) -> str:
    try:
        return _dumps(value)
    except ValueError:
        return "{}"
