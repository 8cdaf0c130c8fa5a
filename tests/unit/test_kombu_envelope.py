"""Messages in Celery's formats: recorded from Celery 5.7, and exchanged with kombu itself."""

from __future__ import annotations

import json
import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from qworker.errors import InvalidTaskMessage, SecurityError
from qworker.message.protocol import (
    EncodedMessage,
    TaskMessage,
    decode_body,
    encode,
    from_kombu,
    from_v1,
    parse_headers,
    parse_properties,
    receive,
    to_kombu,
    upgrade,
)
from qworker.message.reading import NO_EMBED

ACCEPT = frozenset({"json"})
RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "celery_5_7.json").read_text())


def opened(name: str, accept: frozenset[str] = ACCEPT) -> tuple[dict[str, Any], dict[str, Any], Any]:
    encoded = from_kombu(RECORDED[name])
    headers, properties, body = receive(*encoded, accept)
    return headers, properties, body or decode_body(encoded.body, headers, properties, accept)


# -- recorded messages --


def test_plain_celery_call_equals_ours_except_for_the_origin() -> None:
    headers, properties, body = opened("plain")
    sent = encode(
        TaskMessage("proj.add", "plain", (1, 2), origin=headers["origin"], ignore_result=False)
    ).headers
    assert parse_headers(sent) == headers
    theirs = json.loads(from_kombu(RECORDED["plain"]).headers)
    assert list(theirs) == list(parse_headers(sent))
    ours = json.loads(sent)
    assert ours == {name: theirs[name] for name in ours}
    assert not any(theirs[name] for name in theirs.keys() - ours.keys())
    assert body == ((1, 2), {}, NO_EMBED)
    assert properties["correlation_id"] == "plain"


def test_call_with_every_option() -> None:
    headers, _, body = opened("full")
    assert (headers["eta"], headers["expires"]) == ("2030-01-01T00:00:00+00:00", "2031-01-01T00:00:00+00:00")
    assert (headers["timelimit"], headers["shadow"], headers["my"]) == ([10, 5], "sh", "h")
    assert headers["ignore_result"] is True
    assert body.args == (1,)
    assert body.kwargs == {"y": "é"}
    assert body.embed["callbacks"][0]["task"] == "proj.add"
    assert body.embed["errbacks"][0]["immutable"] is True


def test_compressed_call_with_tagged_types() -> None:
    assert opened("gzip")[2].args == (datetime(2030, 1, 1), b"\xff")


def test_pickled_call_is_refused_unless_accepted() -> None:
    with pytest.raises(SecurityError):
        opened("pickle")
    assert opened("pickle", frozenset({"pickle"}))[2].args == (1, 2)


def test_protocol_1() -> None:
    headers, _, body = opened("v1")
    assert (headers["task"], headers["id"], headers["root_id"]) == ("proj.add", "v1", "v1")
    assert (headers["eta"], headers["timelimit"], headers["retries"]) == (
        "2030-01-01T00:00:00+00:00",
        [10, 5],
        0,
    )
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("(1,)", "{'y': [b'z']}")
    assert body.kwargs == {"y": [b"z"]}
    assert body.embed["callbacks"][0]["task"] == "proj.add"


# -- protocol 1, malformed --


def v1(**changes: Any) -> bytes:
    call = {"task": "t", "id": "i", "args": [1], "kwargs": {}, "retries": 0, "utc": True, **changes}
    return json.dumps({name: value for name, value in call.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not valid JSON"),
        (b"7", "no 'task' in the headers, and the body is 7"),
        (b"[[1],{},{}]", "no 'task'"),
        (b"{}", "no 'task'"),
        (v1(task=...), "no 'task'"),
        (v1(task=7), "header 'task' is 7"),
        (v1(id=...), "header 'id' is missing"),
        (v1(id=[]), "header 'id'"),
        (v1(args=7), "args are 7"),
        (v1(kwargs=[]), "kwargs are"),
        (v1(retries="x"), "header 'retries'"),
        (v1(eta=float("nan")), "header 'eta' is nan"),
        (v1(eta="soon", utc=False), "header 'eta' is 'soon'"),
        (v1(timelimit=[1]), "header 'timelimit'"),
        (v1(callbacks=[7]), "embedded callbacks"),
        (v1(taskset=7), "header 'group' is 7"),
    ],
)
def test_malformed_protocol_1_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason):
        from_v1(parse_properties(None), body, ACCEPT)
    with pytest.raises(InvalidTaskMessage, match=reason):
        receive("{}", None, body, ACCEPT)


def test_protocol_1_with_minimal_fields() -> None:
    headers, body = from_v1(parse_properties(None), v1(args=..., kwargs=..., taskset="g"), ACCEPT)
    assert (headers["group"], body) == ("g", ((), {}, NO_EMBED))


def test_protocol_1_local_times() -> None:
    naive = datetime(2030, 1, 1, 12)
    body = v1(eta=naive.isoformat(), expires="2030-01-01T00:00:00+02:00", utc=False)
    headers, _ = from_v1(parse_properties(None), body, ACCEPT)
    assert datetime.fromisoformat(headers["eta"]) == naive.astimezone()
    assert headers["expires"] == "2030-01-01T00:00:00+02:00"


def test_upgrade_to_protocol_2_keeps_the_serializer() -> None:
    headers, properties, body = opened("v1")
    encoded = upgrade(headers, properties, body)
    assert parse_headers(encoded.headers) == headers
    again = parse_properties(encoded.properties)
    assert again["reply_to"] == properties["reply_to"]
    assert decode_body(encoded.body, headers, again, ACCEPT) == body

    pickled = pickle.dumps({"task": "t", "id": "i", "args": ({1, 2},), "kwargs": {}})
    properties = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
    accept = frozenset({"pickle"})
    headers, body = from_v1(properties, pickled, accept)
    encoded = upgrade(headers, properties, body)
    assert decode_body(encoded.body, headers, parse_properties(encoded.properties), accept).args == ({1, 2},)
    with pytest.raises(InvalidTaskMessage, match="cannot be converted to protocol 2"):
        upgrade(headers, parse_properties(None), body)


def test_protocol_1_cannot_be_signed() -> None:
    class Signer:
        def verify(self, headers: Any, body: bytes, properties: Any = None) -> None: ...

    with pytest.raises(SecurityError, match="cannot be signed"):
        from_v1(parse_properties(None), v1(), ACCEPT, Signer())


# -- kombu's envelope --

TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(
    st.builds(
        TaskMessage,
        TEXT,
        TEXT,
        st.lists(st.integers() | st.text() | st.binary(), max_size=3).map(tuple),
        reply_to=st.none() | TEXT,
        serializer=st.sampled_from(["json", "pickle"]),
        compression=st.sampled_from([None, "gzip"]),
    ),
    st.integers(0, 9),
)
def test_kombu_round_trip(message: TaskMessage, priority: int) -> None:
    encoded = encode(message)
    envelope = json.loads(json.dumps(to_kombu(encoded, routing_key="celery", priority=priority)))
    assert from_kombu(envelope) == encoded
    assert envelope["properties"]["priority"] == priority


def test_envelope_equals_that_of_celery() -> None:
    theirs = RECORDED["plain"]
    ours = to_kombu(from_kombu(theirs), routing_key="celery")
    assert ours.keys() == theirs.keys()
    assert ours["properties"].keys() == theirs["properties"].keys()
    assert {**ours, "properties": None, "body": None} == {**theirs, "properties": None, "body": None}


def test_messages_are_exchanged_with_kombu() -> None:
    with Connection("memory://") as connection:
        channel = connection.channel()
        queue = Queue("kombu-test", Exchange(""), routing_key="foreign-test", channel=channel)
        queue.declare()
        encoded = encode(TaskMessage("proj.add", "i", (1, b"\xff"), {"x": "é"}, compression="gzip"))
        channel._put("kombu-test", to_kombu(encoded, routing_key="foreign-test"))
        message = queue.get(accept=["json"])
        assert isinstance(message, virtual.Message)
        assert message.payload == [[1, b"\xff"], {"x": "é"}, NO_EMBED]
        assert message.headers["task"] == "proj.add"
        assert message.properties["correlation_id"] == "i"

        connection.Producer(channel).publish(
            [[1], {}, NO_EMBED],
            routing_key="kombu-test",
            headers={"task": "proj.add", "id": "i"},
            correlation_id="i",
        )
        back = from_kombu(channel._get("kombu-test"))
        assert decode_body(
            back.body, parse_headers(back.headers), parse_properties(back.properties), ACCEPT
        ).args == (1,)
        queue.delete()


def test_redelivery_is_marked_in_headers_and_delivery_info() -> None:
    envelope = to_kombu(encode(TaskMessage("t", "i")), redelivered=True, delivery_tag="tag")
    assert envelope["headers"]["redelivered"] is True
    assert envelope["properties"]["delivery_info"]["redelivered"] is True
    assert envelope["properties"]["delivery_tag"] == "tag"


def test_protocol_1_passes_through_kombu_unchanged() -> None:
    encoded = EncodedMessage("{}", None, v1())
    assert from_kombu(to_kombu(encoded)).body == encoded.body


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (None, "not an object"),
        ([], "not an object"),
        ({"headers": []}, "headers of the envelope"),
        ({"headers": {}, "properties": 7}, "properties of the envelope"),
        ({"headers": {}}, "body of the envelope"),
        ({"headers": {}, "body": 7}, "body of the envelope"),
        ({"headers": {}, "body": "*", "properties": {"body_encoding": "base64"}}, "not base64"),
        ({"headers": {}, "body": None, "properties": {"body_encoding": "base64"}}, "not base64"),
        ({"headers": {}, "body": "é", "properties": {"body_encoding": "base64"}}, "not base64"),
        ({"headers": {"x": object()}, "body": ""}, "not JSON"),
        ({"headers": {}, "body": "", "content-type": {1}}, "not JSON"),
    ],
)
def test_malformed_envelopes_are_refused(envelope: Any, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason):
        from_kombu(envelope)


def test_envelope_with_a_plain_text_body() -> None:
    assert from_kombu({"headers": {"task": "t", "id": "i"}, "body": "[[],{},null]"}).body == b"[[],{},null]"


def test_exchange_of_a_kombu_envelope_is_kept() -> None:
    info = {"exchange": "news", "routing_key": "a.b"}
    encoded = from_kombu(
        {"body": "[]", "headers": {"id": "i"}, "properties": {"delivery_info": info, "message_id": "m"}}
    )
    assert encoded.properties is not None
    back = to_kombu(encoded, routing_key="queue")
    assert back["properties"]["delivery_info"] == info
    assert back["properties"]["message_id"] == "m"


def test_default_exchange_needs_no_properties() -> None:
    info = {"exchange": "", "routing_key": "queue"}
    encoded = from_kombu(
        {"body": "[]", "headers": {"id": "i"}, "properties": {"correlation_id": "i", "delivery_info": info}}
    )
    assert encoded.properties is None
    assert to_kombu(encoded, routing_key="queue")["properties"]["delivery_info"] == info
