"""The parts of the RabbitMQ transport that need no server: its codec, its delays, its inbox."""

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
    way,
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


def came(header: bytes, body: bytes = b"", number: int = 1, **fields: Any) -> Delivery:
    return Delivery(
        "c", fields.get("exchange", ""), "q", number, fields.get("redelivered", False), header, body
    )


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.integers(0, 9), st.text(max_size=30))
def test_headers_go_through_a_table_and_back(headers: dict[str, Any], priority: int, identity: str) -> None:
    content = read_content(came(content_header(json.dumps(headers), None, 0, identity, priority)))
    assert json.loads(content.text) == headers
    assert (content.priority, content.message_id, content.own) == (priority, identity, {})


@given(st.text(), st.integers(), st.text(max_size=300))
def test_a_header_without_properties_can_always_be_made(text: str, priority: int, identity: str) -> None:
    """It is made when some of a push is on its way already: then it is too late to refuse it."""
    content = read_content(came(content_header(text, None, 0, identity, priority)))
    assert content.priority == max(0, min(priority, 255))


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_the_peers_library_reads_the_same(headers: dict[str, Any]) -> None:
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
def test_what_the_peers_library_writes_is_read(headers: dict[str, Any]) -> None:
    message = Message(
        "", application_headers=headers, content_type="t", correlation_id="c", reply_to="r", type="y"
    )
    raw = b"\x00\x3c\x00\x00" + bytes(8) + message._serialize_properties()
    content = read_content(came(raw))
    assert json.loads(content.text) == headers
    assert json.loads(content.properties or "") == {
        "content_type": "t", "correlation_id": "c", "reply_to": "r", "type": "y",
    }  # fmt: skip


@given(st.binary(max_size=60))
def test_no_header_of_a_strangers_stops_the_reader(table: bytes) -> None:
    raw = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4) + table
    assert isinstance(json.loads(read_content(came(raw)).text), dict)


def test_headers_of_the_servers_are_kept_apart() -> None:
    header = content_header(
        '{"id": "a"}', None, 0, "m", more={"x-qworker-deliveries": 2, "x-death": [{"count": 1}]}
    )
    content = read_content(came(header))
    assert content.own == {"x-qworker-deliveries": 2, "x-death": [{"count": 1}]}
    assert content.text == '{"id":"a"}'
    assert content.properties is None


def test_a_tag_is_the_same_at_each_delivery_and_for_no_other() -> None:
    def tag(text: str, identity: str, body: bytes = b"") -> int:
        message = came(content_header(text, None, 0, identity), body)
        return tag_of(message, read_content(message))

    assert tag('{"id": "a"}', "m") == tag('{"id": "changed"}', "m") != tag('{"id": "a"}', "n")
    assert tag('{"id": "a"}', "") == tag('{"id": "a"}', "") != tag('{"id": "b"}', "")
    assert tag("{}", "", b"1") != tag("{}", "", b"2")
    assert 0 < tag("{}", "m") < 2**63


def test_frames_hold_no_more_than_agreed() -> None:
    frames = message_frames(1, publish_method("", "q", True), b"header", b"b" * 250, 108)
    sizes = []
    while frames:
        size = int.from_bytes(frames[3:7])
        sizes.append((frames[0], size))
        assert frames[7 + size] == 0xCE
        frames = frames[8 + size :]
    assert sizes == [(1, 10), (2, 6), (3, 100), (3, 100), (3, 50)]


def test_a_delivery_is_read() -> None:
    method = b"\x00\x3c\x00\x3c\x01c" + (7).to_bytes(8) + b"\x01\x01x\x03key"
    assert delivery(method, b"h", b"b") == Delivery("c", "x", "key", 7, True, b"h", b"b")


@given(
    st.text(max_size=9), st.integers(0, 2**63), st.booleans(), st.binary(max_size=60),
    st.binary(max_size=9), st.data()
)  # fmt: skip
def test_a_message_is_taken_out_of_what_was_read_or_left_to_the_parser(
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


def test_no_frames_of_other_kinds_are_taken_for_a_message() -> None:
    method = b"\x00\x3c\x00\x3c\x01c" + (7).to_bytes(8) + b"\x00\x00\x01q"
    header = content_header("{}", None, 1, "m")
    parts = {"method": frame(1, 1, method), "header": frame(2, 1, header), "body": frame(3, 1, b"b")}
    assert whole_delivery(b"".join(parts.values()), 0) is not None
    for name, kind, payload in (("method", 1, method), ("header", 2, header), ("body", 3, b"b")):
        for changed in (frame(kind % 3 + 1, 1, payload), frame(kind, 2, payload)):
            assert whole_delivery(b"".join({**parts, name: changed}.values()), 0) is None


# -- delays --


@given(st.floats(1e9, 2e9), st.floats(-10, 40 * 86400))
def test_a_delay_ends_before_what_waits_is_due(now: float, ahead: float) -> None:
    found = way("q", now + ahead, now)
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
    """As a topic exchange does."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


@given(st.text("abq.*#\N{SNOWMAN}\ud800", max_size=300), st.text("abq.*#", max_size=12), st.floats(0.3, 2e6))
def test_a_delay_leads_to_its_target_alone(target: str, other: str, ahead: float) -> None:
    found = way(target, 1e9 + ahead, 1e9)
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
    return came(content_header("{}", None, 2, f"m{number}", priority, more), b"[]", number)


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


def test_one_ack_goes_for_all_up_to_the_first_that_is_missing() -> None:
    inbox = filled(*map(message, range(1, 8)))
    inbox.take(["q"], 6, 0, 0.0)
    assert frames(inbox, 1, 2, 4, 6) == [(2, True), (4, False), (6, False)]
    assert frames(inbox, 5) == [(5, False)]
    assert frames(inbox, 3) == [(3, True)]
    inbox.take(["q"], 1, 0, 0.0)
    assert frames(inbox, 7) == [(7, True)]
    assert frames(inbox) == []


def test_the_most_urgent_are_taken_first() -> None:
    inbox = filled(message(1, 3), message(2, 9), message(3, 3))
    assert [one.priority for one in inbox.take(["q"], 2, 0, 0.0)] == [9, 3]
    assert inbox.waiting == 1


def test_what_is_not_due_waits() -> None:
    inbox = filled(message(1, due=5.0), message(2, due=3.0), message(3))
    assert [one.due for one in inbox.take(["q"], 9, 0, 0.0)] == [None]
    assert inbox.next_due() == 3.0
    assert [one.due for one in inbox.take(["q"], 9, 1, 9.0)] == [3.0]
    assert [one.leased.due for one in inbox.later_than(4.0)] == [5.0]
    assert inbox.next_due() is None


def test_twins_have_tags_of_their_own() -> None:
    inbox = filled(message(1), message(1)._replace(number=2))
    first, second = inbox.take(["q"], 2, 0, 0.0)
    assert first.tag != second.tag


def test_a_quorum_queue_counts_four_returns_for_a_death() -> None:
    header = content_header("{}", None, 0, "m", more={"x-delivery-count": 9, "x-qworker-deliveries": 1})
    inbox = filled(came(header))
    (leased,) = inbox.take(["q"], 1, 0, 0.0)
    assert (leased.deliveries, leased.redelivered) == (3, True)


def test_prefetch_follows_what_is_asked_for() -> None:
    prefetch = Prefetch(4)
    assert prefetch.ask(3) is False
    assert (prefetch.ask(400), prefetch.size) == (True, MOST)
    assert prefetch.relax(100.0, 500) is False  # the first look; it was asked for
    assert prefetch.ask(8, 8) is False
    assert prefetch.relax(100.0 + RELAX_SECONDS, 500) is True
    assert (prefetch.size, prefetch.paused) == (32, False)
    assert prefetch.relax(100.0 + 2 * RELAX_SECONDS, 0) is False  # nothing lies idle
    assert prefetch.relax(100.0 + 3 * RELAX_SECONDS, 5) is True
    assert prefetch.paused is True
    assert prefetch.ask(0, 8) is False
    assert (prefetch.ask(3, 8), prefetch.paused, prefetch.size) == (True, False, 3)


# -- the insides of py-amqp --


def test_a_version_of_py_amqp_without_what_is_used_of_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(amqp.transport.SSLTransport, "_wrap_socket")
    with pytest.raises(ConfigurationError, match=rf"SSLTransport has no _wrap_socket.*{AMQP_VERSIONS}"):
        Link(address_of("amqp://127.0.0.1:1/"), 1.0)


def test_the_versions_of_py_amqp_that_are_known_are_those_that_are_installed() -> None:
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


def test_tls_checks_the_servers_name_unless_told_otherwise(tmp_path: Path) -> None:
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
    [("ca_certs", "did you mean ssl_ca_certs"), ("heart_beat", "heartbeat"), ("x", "there are")],
)
def test_a_parameter_that_there_is_none_of_is_not_passed_over(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no parameter '{name}'.*{hint}"):
        address_of(f"amqps://host/?{name}=1")


def test_queues_are_made_as_celery_makes_them_unless_told_otherwise() -> None:
    assert Queues().arguments("q") == {}
    assert Queues(max_priority=9).arguments("q") == {"x-max-priority": 9}
    assert Queues(type="quorum", max_priority=9).arguments("q") == {"x-queue-type": "quorum"}
    declared = Queues(declared={"q": {"max_priority": 3, "queue_arguments": {"x-max-length": 5}}})
    assert declared.arguments("q") == {"x-max-length": 5, "x-max-priority": 3}
    assert Queues(dead_expires=60.0).arguments(DEAD) == {"x-message-ttl": 60_000}
    assert Queues(dead_expires=4000 * 86400.0).arguments(DEAD) == {}, "over ten years: workers sweep"


@pytest.mark.parametrize("size", [MOST_FRAME + 1, 1_400_000_000, 2**32 - 1])
@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
def test_a_frame_that_is_longer_than_any_is_not_waited_for(size: int, before: int) -> None:
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


def test_the_longest_frame_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = Frames()
        theirs.sendall(b"\x03\0\1" + MOST_FRAME.to_bytes(4, "big") + b"x")
        frames.fill(ours)
        assert not frames.whole()
