"""Messages in Redis lists: ours come back unchanged, kombu's are read, and arbitrary entries do not
raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("hiredis", reason='pip install "qworker-queue[redis]"')

from qworker.naming import task_id
from qworker.transports.lease import Envelope, Leased
from qworker.transports.redis.envelope import Scale, from_payload, route, tag_of, to_payload

OURS = Scale()
CELERYS = Scale(translated=False)
HEADERS = '{"lang":"py","task":"proj.add","id":"4c1f-1","argsrepr":"(\\"}, \\\\\\"properties\\\\\\": {\\")"}'


def payload(envelope: Envelope, scale: Scale = OURS) -> bytes:
    return to_payload(
        envelope, b"1700000000.5", route(envelope.queue, envelope.priority, scale)[1], task_id()
    )


@given(
    headers=st.one_of(st.text(), st.dictionaries(st.text(), st.text()).map(json.dumps)),
    properties=st.one_of(st.none(), st.text(), st.just('{"content_type":"x","reply_to":"y"}')),
    body=st.binary(),
    priority=st.integers(0, 9),
    due=st.one_of(st.none(), st.floats(1, 1e11)),
    queue=st.text(min_size=1),
    translated=st.booleans(),
)
def test_message_round_trips(
    headers: str,
    properties: str | None,
    body: bytes,
    priority: int,
    due: float | None,
    queue: str,
    translated: bool,
) -> None:
    scale = Scale(translated=translated)
    text = payload(Envelope(queue, headers, properties, body, priority, due), scale)
    found = from_payload(text, scale, queue)
    assert found == Leased(found.tag, queue, priority, due, 0, False, 0, headers, properties, body)
    assert 0 < found.tag < 2**63


def test_payload_is_a_kombu_envelope() -> None:
    value = json.loads(payload(Envelope("mail", HEADERS, None, b"[[],{},{}]", 9)))
    tag = value["properties"].pop("delivery_tag")
    assert value == {
        "qworker": {
            "deliveries": 0, "redelivered": False, "parked": 0, "due": None, "sent": 1700000000.5,
            "sizes": [len(HEADERS), 16],
        },
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {
            "correlation_id": "4c1f-1",
            "reply_to": None,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "mail"},
            "priority": 0,
            "body_encoding": "base64",
        },
        "headers": json.loads(HEADERS),
        "body": "W1tdLHt9LHt9XQ==",
    }  # fmt: skip
    assert len(tag) == 36


def test_content_type_is_stored_where_kombu_expects_it() -> None:
    properties = (
        '{"content_type":"application/x-python-serialize","content_encoding":"binary","reply_to":"r"}'
    )
    value = json.loads(payload(Envelope("q", HEADERS, properties, b"x")))
    assert (value["content-type"], value["content-encoding"]) == ("application/x-python-serialize", "binary")
    assert value["properties"]["reply_to"] == "r"
    assert value["properties"]["correlation_id"] == "4c1f-1"


def test_message_restored_by_kombu_keeps_its_tag_and_is_redelivered() -> None:
    first = payload(Envelope("q", HEADERS, None, b"body", 3, 5.5))
    value = json.loads(first)
    value["headers"]["redelivered"] = True
    value["properties"]["delivery_info"]["redelivered"] = True
    before, after = from_payload(first, OURS), from_payload(json.dumps(value).encode(), OURS)
    assert after[:4] == before[:4]
    assert after.redelivered is True
    assert after.body == b"body"
    assert json.loads(after.headers) == {**json.loads(HEADERS), "redelivered": True}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"nonsense", b"{}", b"[]", b"null", b"\xff\xfe", b'{"body": 1}', b'{"headers": [], "body": ""}',
        b'{"headers": {}, "properties": 7, "body": ""}', b"[" * 100_000,
        b'{"headers": {}, "properties": {"body_encoding": "base64"}, "body": "!"}',
        b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": null, "sent": 1.0, '
        b'"sizes": [9, 9]}}',
        b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": 1..2, "sent": 1.0, '
        b'"sizes": [0, 0]',
    ],
)  # fmt: skip
def test_malformed_envelope_becomes_an_empty_message(text: bytes) -> None:
    found = from_payload(text, OURS, "q")
    assert found.tag > 0
    assert found.body == b""


@given(st.binary())
def test_arbitrary_payloads_do_not_raise(text: bytes) -> None:
    from_payload(text, OURS)
    whole = payload(Envelope("q", HEADERS, None, b"body"))
    from_payload(whole[: len(text)] + text + whole[len(text) :], OURS)
    from_payload(whole[: len(text)] + text + whole[2 * len(text) :], OURS)


def test_priorities_are_inverted_for_kombu() -> None:
    assert [OURS.step(priority) for priority in range(-1, 11)] == [9, 9, 6, 6, 6, 3, 3, 3, 0, 0, 0, 0]
    assert [CELERYS.step(priority) for priority in range(10)] == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert [OURS.from_kombu(value) for value in (0, 9, None, "x", 99, "5")] == [9, 0, 9, 9, 0, 4]


def test_tags_are_distinct_positive_numbers() -> None:
    assert tag_of(b"a") != tag_of(b"b")
    assert tag_of(b"a") == tag_of(b"a") > 0
    assert tag_of(b"00000000-0000-4000-8000-000000000000") == 1
