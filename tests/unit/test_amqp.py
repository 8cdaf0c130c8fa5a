"""The parts of the RabbitMQ transport that need no server: codec, delays, inbox, addresses and frames."""

from __future__ import annotations

import json
import socket
import ssl
import tomllib
from pathlib import Path
from typing import Any

import amqp
import pytest
from amqp.basic_message import Message
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import ConfigurationError
from qworker.transports.amqp.codec import (
    Delivery,
    content_header,
    delivery,
    frame,
    message_frames,
    publish_method,
    read_content,
    tag_of,
    whole_delivery,
)
from qworker.transports.amqp.delays import (
    BASE,
    LONGEST,
    MARGIN,
    PLACES,
    UNIT,
    binding,
    milliseconds,
    pattern,
    places,
    route_of,
    word,
    word_of,
)
from qworker.transports.amqp.inbox import MOST, RELAX_SECONDS, Inbox, Prefetch
from qworker.transports.amqp.link import AMQP_VERSIONS, MOST_FRAME, Frames, Link, address_of
from qworker.transports.amqp.queues import DEAD, Queues
from qworker.transports.amqp.table import short
from qworker.transports.own_headers import is_apart
from qworker.transports.tls import Tls
from tests.certificates import Certificates

# -- codec --

NAMES = (st.text(max_size=40) | st.text(max_size=9).map("x-{}".format)).filter(
    lambda name: not is_apart(name)
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=20), children, max_size=4)
    ),
    max_leaves=10,
)


def delivery_of(header: bytes, body: bytes = b"", number: int = 1, **fields: Any) -> Delivery:
    return Delivery(
        "c", fields.get("exchange", ""), "q", number, fields.get("redelivered", False), header, body
    )


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.integers(0, 9), st.text(max_size=30))
def test_headers_survive_a_round_trip_through_a_table(
    headers: dict[str, Any], priority: int, identity: str
) -> None:
    content = read_content(delivery_of(content_header(json.dumps(headers), None, 0, identity, priority)))
    assert json.loads(content.text) == headers
    assert (content.priority, content.message_id, content.own) == (priority, identity, {})


@given(st.text(), st.integers(), st.text(max_size=300))
def test_header_without_properties_can_always_be_encoded(text: str, priority: int, identity: str) -> None:
    """It is encoded when part of the push has been sent already: too late to refuse it."""
    content = read_content(delivery_of(content_header(text, None, 0, identity, priority)))
    assert content.priority == max(0, min(priority, 255))


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_py_amqp_reads_our_headers(headers: dict[str, Any]) -> None:
    message = Message()
    message.inbound_header(content_header(json.dumps(headers), None, 5, "m", 3))
    assert message.headers == headers
    assert (message.body_size, message.properties["delivery_mode"], message.properties["priority"]) == (
        5,
        2,
        3,
    )
    assert message.properties["content_type"] == "application/json"


@given(st.dictionaries(NAMES, VALUES.filter(lambda value: not isinstance(value, float)), max_size=8))
def test_headers_of_py_amqp_are_read(headers: dict[str, Any]) -> None:
    message = Message(
        "", application_headers=headers, content_type="t", correlation_id="c", reply_to="r", type="y"
    )
    raw = b"\x00\x3c\x00\x00" + bytes(8) + message._serialize_properties()
    content = read_content(delivery_of(raw))
    assert json.loads(content.text) == headers
    assert json.loads(content.properties or "") == {
        "content_type": "t", "correlation_id": "c", "reply_to": "r", "type": "y",
    }  # fmt: skip


@given(st.binary(max_size=60))
def test_malformed_header_table_is_tolerated(table: bytes) -> None:
    raw = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4) + table
    assert isinstance(json.loads(read_content(delivery_of(raw)).text), dict)


def test_headers_of_the_server_are_separated() -> None:
    header = content_header(
        '{"id": "a"}', None, 0, "m", more={"x-qworker-deliveries": 2, "x-death": [{"count": 1}]}
    )
    content = read_content(delivery_of(header))
    assert content.own == {"x-qworker-deliveries": 2, "x-death": [{"count": 1}]}
    assert content.text == '{"id":"a"}'
    assert content.properties is None


def test_tag_is_stable_across_deliveries_and_unique() -> None:
    def tag(text: str, identity: str, body: bytes = b"") -> int:
        message = delivery_of(content_header(text, None, 0, identity), body)
        return tag_of(message, read_content(message))

    assert tag('{"id": "a"}', "m") == tag('{"id": "changed"}', "m") != tag('{"id": "a"}', "n")
    assert tag('{"id": "a"}', "") == tag('{"id": "a"}', "") != tag('{"id": "b"}', "")
    assert tag("{}", "", b"1") != tag("{}", "", b"2")
    assert 0 < tag("{}", "m") < 2**63


def test_frames_do_not_exceed_the_negotiated_size() -> None:
    frames = message_frames(1, publish_method("", "q", True), b"header", b"b" * 250, 108)
    sizes = []
    while frames:
        size = int.from_bytes(frames[3:7])
        sizes.append((frames[0], size))
        assert frames[7 + size] == 0xCE
        frames = frames[8 + size :]
    assert sizes == [(1, 10), (2, 6), (3, 100), (3, 100), (3, 50)]


def test_delivery_is_decoded() -> None:
    method = b"\x00\x3c\x00\x3c\x01c" + (7).to_bytes(8) + b"\x01\x01x\x03key"
    assert delivery(method, b"h", b"b") == Delivery("c", "x", "key", 7, True, b"h", b"b")


@given(
    st.text(max_size=9), st.integers(0, 2**63), st.booleans(), st.binary(max_size=60),
    st.binary(max_size=9), st.data()
)  # fmt: skip
def test_whole_delivery_finds_complete_messages_only(
    consumer: str, number: int, redelivered: bool, body: bytes, around: bytes, data: st.DataObject
) -> None:
    method = b"\x00\x3c\x00\x3c%b%b%c\x00\x01q" % (short(consumer), number.to_bytes(8), redelivered)
    header = content_header('{"id": "i"}', None, len(body), "m")
    frames = message_frames(1, method, header, body, 4096)
    found = whole_delivery(around + frames + around, len(around))
    if not body:
        assert found is None
        return
    expected = Delivery(consumer, "", "q", number, redelivered, header, body)
    assert found == (expected, len(around) + len(frames))
    assert whole_delivery(frames[: data.draw(st.integers(0, len(frames) - 1))], 0) is None
    for end in (7 + len(method), 7 + len(method) + 8 + len(header), len(frames) - 1):
        spoiled = bytearray(frames)
        spoiled[end] = 0
        assert whole_delivery(bytes(spoiled), 0) is None
    in_parts = message_frames(1, method, header, body, 8 + max(1, len(body) // 2))
    if in_parts != frames:
        assert whole_delivery(in_parts, 0) is None


def test_whole_delivery_ignores_frames_of_other_types_or_channels() -> None:
    method = b"\x00\x3c\x00\x3c\x01c" + (7).to_bytes(8) + b"\x00\x00\x01q"
    header = content_header("{}", None, 1, "m")
    parts = {"method": frame(1, 1, method), "header": frame(2, 1, header), "body": frame(3, 1, b"b")}
    assert whole_delivery(b"".join(parts.values()), 0) is not None
    for name, kind, payload in (("method", 1, method), ("header", 2, header), ("body", 3, b"b")):
        for changed in (frame(kind % 3 + 1, 1, payload), frame(kind, 2, payload)):
            assert whole_delivery(b"".join({**parts, name: changed}.values()), 0) is None


# -- delays --


@given(st.floats(1e9, 2e9), st.floats(-10, 40 * 86400))
def test_delay_ends_just_before_the_message_is_due(now: float, ahead: float) -> None:
    found = route_of("q", now + ahead, now)
    left = min(ahead * 1000, LONGEST)
    if found is None:
        assert left <= MARGIN + UNIT + 1
        return
    digits = found.key.split(".")[:PLACES]
    waits = sum(milliseconds(PLACES - 1 - at, int(digit, BASE)) for at, digit in enumerate(digits))
    assert MARGIN - 1 <= left - waits <= MARGIN + UNIT + 1
    first = int(found.exchange.rpartition(".")[2])
    assert first == places(now + ahead, now) - 1
    assert all(digit == "0" for digit in digits[: PLACES - 1 - first])
    assert digits[PLACES - 1 - first] != "0"


def matches(pattern: list[str], key: list[str]) -> bool:
    """Match like a topic exchange."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


@given(st.text("abq.*#\N{SNOWMAN}\ud800", max_size=300), st.text("abq.*#", max_size=12), st.floats(0.3, 2e6))
def test_delay_leads_only_to_its_target_queue(target: str, other: str, ahead: float) -> None:
    found = route_of(target, 1e9 + ahead, 1e9)
    assert found is not None
    key = found.key.split(".")
    assert len(found.key.encode("utf-8", "surrogatepass")) <= 255
    assert matches(binding(target).split("."), key)
    assert matches(binding(other).split("."), key) == (other == target)
    assert word_of(found.key) == word(target)
    for place in range(PLACES):
        taken = [digit for digit in range(BASE) if matches(pattern(place, digit).split("."), key)]
        assert taken == [int(key[PLACES - 1 - place], BASE)]


# -- inbox --


def message(number: int, priority: int = 0, due: float | None = None) -> Delivery:
    more = {} if due is None else {"x-qworker-due": due}
    return delivery_of(content_header("{}", None, 2, f"m{number}", priority, more), b"[]", number)


def filled(*messages: Delivery, queue: str = "q") -> Inbox:
    inbox = Inbox(Prefetch(10))
    for one in messages:
        inbox.put(queue, one, 0.0)
    return inbox


def frames(inbox: Inbox, *numbers: int) -> list[tuple[int, bool]]:
    held = [one for one in inbox.leased.values() if one.number in numbers]
    found: list[tuple[int, bool]] = []
    inbox.acks(held, lambda number, multiple: found.append((number, multiple)) or b"")  # type: ignore[func-returns-value]
    return found


def test_multiple_ack_covers_deliveries_up_to_the_first_unacked() -> None:
    inbox = filled(*map(message, range(1, 8)))
    inbox.take(["q"], 6, 0, 0.0)
    assert frames(inbox, 1, 2, 4, 6) == [(2, True), (4, False), (6, False)]
    assert frames(inbox, 5) == [(5, False)]
    assert frames(inbox, 3) == [(3, True)]
    inbox.take(["q"], 1, 0, 0.0)
    assert frames(inbox, 7) == [(7, True)]
    assert frames(inbox) == []


def test_highest_priority_is_taken_first() -> None:
    inbox = filled(message(1, 3), message(2, 9), message(3, 3))
    assert [one.priority for one in inbox.take(["q"], 2, 0, 0.0)] == [9, 3]
    assert inbox.waiting == 1


def test_message_waits_in_the_inbox_until_due() -> None:
    inbox = filled(message(1, due=5.0), message(2, due=3.0), message(3))
    assert [one.due for one in inbox.take(["q"], 9, 0, 0.0)] == [None]
    assert inbox.next_due() == 3.0
    assert [one.due for one in inbox.take(["q"], 9, 1, 9.0)] == [3.0]
    assert [one.leased.due for one in inbox.later_than(4.0)] == [5.0]
    assert inbox.next_due() is None


def test_duplicate_messages_have_different_tags() -> None:
    inbox = filled(message(1), message(1)._replace(number=2))
    first, second = inbox.take(["q"], 2, 0, 0.0)
    assert first.tag != second.tag


def test_four_returns_in_a_quorum_queue_count_as_one_delivery() -> None:
    header = content_header("{}", None, 0, "m", more={"x-delivery-count": 9, "x-qworker-deliveries": 1})
    inbox = filled(delivery_of(header))
    (leased,) = inbox.take(["q"], 1, 0, 0.0)
    assert (leased.deliveries, leased.redelivered) == (3, True)


def test_prefetch_follows_demand() -> None:
    prefetch = Prefetch(4)
    assert prefetch.ask(3) is False
    assert (prefetch.ask(400), prefetch.size) == (True, MOST)
    assert prefetch.relax(100.0, 500) is False  # the first check, and the prefetch was just requested
    assert prefetch.ask(8, 8) is False
    assert prefetch.relax(100.0 + RELAX_SECONDS, 500) is True
    assert (prefetch.size, prefetch.paused) == (32, False)
    assert prefetch.relax(100.0 + 2 * RELAX_SECONDS, 0) is False  # no message waits unused
    assert prefetch.relax(100.0 + 3 * RELAX_SECONDS, 5) is True
    assert prefetch.paused is True
    assert prefetch.ask(0, 8) is False
    assert (prefetch.ask(3, 8), prefetch.paused, prefetch.size) == (True, False, 3)


# -- internals of py-amqp --


def test_unsupported_version_of_py_amqp_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(amqp.transport.SSLTransport, "_wrap_socket")
    with pytest.raises(ConfigurationError, match=rf"SSLTransport has no _wrap_socket.*{AMQP_VERSIONS}"):
        Link(address_of("amqp://127.0.0.1:1/"), 1.0)


def test_supported_versions_of_py_amqp_equal_the_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"amqp{AMQP_VERSIONS}" in project["dependencies"]


# -- addresses, queues --


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", ("127.0.0.1", 5672, "guest", "guest", "/")),
        ("amqp://host", ("host", 5672, "guest", "guest", "/")),
        ("amqp://me:p%40ss@host:5673/shop", ("host", 5673, "me", "p@ss", "shop")),
        ("pyamqp://host//", ("host", 5672, "guest", "guest", "/")),
        ("amqps://me:secret@host/", ("host", 5671, "me", "secret", "/")),
    ],
)
def test_addresses(url: str, expected: tuple[Any, ...]) -> None:
    address = address_of(url)
    assert address[1:6] == expected
    assert "secret" not in address.shown
    assert (address.tls is not None) is url.startswith("amqps")


def test_tls_checks_the_hostname_by_default(tmp_path: Path) -> None:
    authority = str(Certificates(tmp_path).authority)
    strict = address_of("amqps://host/")
    assert (strict.tls, strict.name) == (Tls(), "host")
    assert Tls().check_hostname
    assert Tls().cert_reqs == ssl.CERT_REQUIRED
    for address in (
        address_of("amqp://host/", {"ca_certs": authority}),
        address_of(f"amqp://host/?ssl_ca_certs={authority}"),
    ):
        assert (address.tls, address.port) == (Tls(ca_certs=authority), 5671)
    assert address_of("amqp://host/", {"cert_reqs": ssl.CERT_NONE}).tls == Tls(
        cert_reqs=ssl.CERT_NONE, check_hostname=False
    )
    assert address_of("amqp://host/", {"check_hostname": False}).tls == Tls(check_hostname=False)
    assert address_of("amqp://10.0.0.1/", {"server_hostname": "host"}).name == "host"
    assert address_of("amqp://host/", {"server_hostname": None})[-2:] == (Tls(), "host")
    assert address_of("amqps://10.0.0.1/?ssl_server_hostname=host", {"server_hostname": "no"}).name == "host"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ca_certs", "did you mean ssl_ca_certs"), ("heart_beat", "heartbeat"), ("x", "use one of")],
)
def test_unknown_url_parameter_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no parameter '{name}'.*{hint}"):
        address_of(f"amqps://host/?{name}=1")


def test_queue_arguments_match_celery_by_default() -> None:
    assert Queues().arguments("q") == {}
    assert Queues(max_priority=9).arguments("q") == {"x-max-priority": 9}
    assert Queues(type="quorum", max_priority=9).arguments("q") == {"x-queue-type": "quorum"}
    declared = Queues(declared={"q": {"max_priority": 3, "queue_arguments": {"x-max-length": 5}}})
    assert declared.arguments("q") == {"x-max-length": 5, "x-max-priority": 3}
    assert Queues(dead_expires=60.0).arguments(DEAD) == {"x-message-ttl": 60_000}
    assert Queues(dead_expires=4000 * 86400.0).arguments(DEAD) == {}, (
        "beyond the limit for TTLs: workers sweep"
    )


@pytest.mark.parametrize("size", [MOST_FRAME + 1, 1_400_000_000, 2**32 - 1])
@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
def test_oversized_frame_is_refused(size: int, before: int) -> None:
    ours, theirs = socket.socketpair()
    whole = b"\x08\0\0\0\0\0\0\xce"
    with ours, theirs:
        frames = Frames()
        theirs.sendall(whole * before)
        if before:
            frames.fill(ours)
        theirs.sendall(b"\x03\0\1" + size.to_bytes(4, "big") + b"x" * 100)
        for _ in range(before):
            assert frames.whole()
            frames.pop()
        assert not frames.whole()
        with pytest.raises(OSError, match="longer than the maximum"):
            frames.fill(ours)


def test_frame_of_maximum_size_is_accepted() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = Frames()
        theirs.sendall(b"\x03\0\1" + MOST_FRAME.to_bytes(4, "big") + b"x")
        frames.fill(ours)
        assert not frames.whole()
