"""Spooler sockets: parsing of connections, access control, and the jobs that are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import ConfigurationError, SpoolError
from qworker.spooler.files.packet import decode, encode
from qworker.spooler.files.writing import Writer
from qworker.spooler.network import framing
from qworker.spooler.network.framing import ENQUEUED, REFUSED, Limits, extended, read_answer, read_key
from qworker.spooler.network.peers import Access, TcpAddress, UnixAddress, parse_address
from qworker.spooler.network.receiving import AT_ONCE, MOST_UNSENT, SLOWEST, Conversation, ReceivedPacket
from qworker.spooler.network.server import Admission
from qworker.testing import FakeClock
from tests.support.spools import files

KEY = b"0123456789abcdef"
OK = encode({"k": "v"})


class RequestRecorder:
    """Records requests instead of writing jobs."""

    def __init__(self, reason: str = "") -> None:
        self.requests: list[ReceivedPacket] = []
        self._reason = reason

    def __call__(self, request: ReceivedPacket) -> str:
        self.requests.append(request)
        if self._reason:
            raise SpoolError(self._reason)
        return f"job{len(self.requests)}"


def talk(*parts: bytes, taken: RequestRecorder | None = None, **limits: object) -> Conversation:
    conversation = Conversation(Limits(**limits), taken or RequestRecorder(), 0.0)  # type: ignore[arg-type]
    for number, part in enumerate(parts):
        conversation.received(part, float(number))
    return conversation


def answers(conversation: Conversation) -> list[tuple[bool, str | None, str | None]]:
    """The answers to extended packets."""
    found, image = [], bytes(conversation.unsent)
    while image:
        end = 4 + (image[1] | image[2] << 8)
        found.append(read_answer(image[:end])[:3])
        image = image[end:]
    return found


# -- parsing --


def test_only_the_first_packet_is_accepted() -> None:
    taken = RequestRecorder()
    conversation = talk(OK + OK + b"rest", taken=taken)
    assert taken.requests == [ReceivedPacket(OK, b"", False)]
    assert (conversation.unsent, conversation.ending, conversation.unread) == (ENQUEUED, True, True)
    conversation.received(OK, 0.0)
    assert len(taken.requests) == 1
    assert not talk(OK).unread


def test_packet_can_arrive_byte_by_byte() -> None:
    for image in (OK, extended(OK, b"body")):
        taken = RequestRecorder()
        conversation = talk(*(image[at : at + 1] for at in range(len(image))), taken=taken)
        assert [request.packet[4:] for request in taken.requests] == [OK[4:]]
        assert taken.requests[0].body == (b"" if image == OK else b"body")
        assert conversation.unsent


def test_incomplete_packet_is_not_answered() -> None:
    for end in range(len(OK)):
        assert not talk(OK[:end]).unsent
    image = extended(OK, b"body")
    for end in range(len(image)):
        assert not talk(image[:end]).unsent


def test_other_modifiers_close_the_connection() -> None:
    for modifier in {*range(256)} - {17}:
        conversation = talk(bytes((modifier,)) + OK[1:])
        assert conversation.ending
        assert not conversation.unsent


def test_packet_size_is_limited_by_buffer_size() -> None:
    fits, too_large = (encode({"k": "v" * (100 - 5 + more)}) for more in (0, 1))
    assert talk(fits, buffer_size=100).unsent == ENQUEUED
    conversation = talk(too_large[:4], buffer_size=100)
    assert conversation.ending
    assert not conversation.unsent


def test_rejection_is_answered() -> None:
    assert talk(OK, taken=RequestRecorder("no")).unsent == REFUSED
    conversation = talk(extended(OK, b"") * 2, taken=RequestRecorder("no"))
    assert answers(conversation) == [(False, None, "no")] * 2
    assert not conversation.ending


def test_connection_takes_several_packets_with_bodies() -> None:
    taken = RequestRecorder()
    conversation = talk(extended(OK, b"a") + extended(OK, b""), extended(OK, b"c") + OK + OK, taken=taken)
    assert [request.body for request in taken.requests] == [b"a", b"", b"c", b""]
    assert bytes(conversation.unsent).endswith(ENQUEUED)
    del conversation.unsent[-4:]
    assert answers(conversation) == [(True, f"job{number}", None) for number in (1, 2, 3)]
    assert conversation.ending


def test_extension_can_be_disabled() -> None:
    taken = RequestRecorder()
    conversation = talk(extended(OK, b"body"), taken=taken, extension=False)
    assert conversation.unsent == ENQUEUED
    assert conversation.ending
    assert [request.body for request in taken.requests] == [b""]


def test_other_second_modifiers_are_ignored() -> None:
    for modifier2 in {*range(256)} - {1}:
        assert talk(OK[:3] + bytes((modifier2,)) + OK[4:]).unsent == ENQUEUED


@pytest.mark.parametrize("length", [11, 1 << 62, (1 << 64) - 1])
def test_oversized_body_is_rejected_before_it_arrives(length: int) -> None:
    image = extended(OK, b"")[:-8] + length.to_bytes(8, "little")
    conversation = talk(image, max_body=10)
    assert conversation.ending
    assert conversation.unread
    (answer,) = answers(conversation)
    assert f"{length:,}" in str(answer[2])


def test_packets_per_turn_are_limited() -> None:
    conversation = talk(extended(OK, b"") * 2 * AT_ONCE)
    assert conversation.more
    assert len(answers(conversation)) == AT_ONCE
    conversation.received(b"", 1.0)
    assert not conversation.more
    assert len(answers(conversation)) == 2 * AT_ONCE


def test_unread_answers_are_limited() -> None:
    taken = RequestRecorder("x" * 1000)
    conversation = talk(taken=taken)
    for _ in range(1000):
        conversation.received(extended(OK, b""), 0.0)
    assert len(taken.requests) < 100
    assert len(conversation.unsent) < 2 * MOST_UNSENT
    assert conversation.more
    conversation.unsent.clear()
    conversation.received(b"", 0.0)
    assert conversation.unsent


def test_timeouts_of_a_connection() -> None:
    image = extended(OK, b"x" * SLOWEST * 3)
    conversation = talk(timeout=4, keep_alive=60)
    assert (conversation.since, conversation.timeout) == (0, 4)
    conversation.received(image[:10], 1)
    assert (conversation.since, conversation.timeout) == (0, 4), "the first bytes do not extend the timeout"
    conversation.received(image[10:30], 2)
    assert (conversation.since, conversation.timeout) == (2, 7), "the body extends it once"
    conversation.received(image[30:40], 3)
    assert (conversation.since, conversation.timeout) == (2, 7)
    conversation.received(image[40:], 4)
    assert (conversation.since, conversation.timeout) == (4, 60), "keep-alive until the next packet"
    conversation.received(image[:1], 5)
    assert (conversation.since, conversation.timeout) == (5, 4)


@given(st.lists(st.binary(max_size=40)), st.booleans())
def test_arbitrary_bytes_are_accepted_or_rejected(parts: list[bytes], extension: bool) -> None:
    taken = RequestRecorder("no")
    conversation = talk(*(b"\x11" + part for part in parts), taken=taken, extension=extension)
    assert bool(taken.requests) <= bool(conversation.unsent), "each request is answered"
    assert not (conversation.ending and (conversation.held or conversation.more))


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30)), max_size=6), st.data())
def test_fragmentation_does_not_matter(jobs: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(extended(encode({"k": value}), body) for value, body in jobs)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    taken = RequestRecorder()
    begins = [0, *cuts]
    talk(*(stream[a:b] for a, b in zip(begins, [*cuts, len(stream)], strict=True)), taken=taken)
    found = [(decode(request.packet).pairs[b"k"], request.body) for request in taken.requests]
    assert found == jobs


def test_invalid_limits_are_rejected() -> None:
    for wrong in ({"buffer_size": 65_536}, {"buffer_size": 0}, {"timeout": 0}, {"max_connections": 0}):
        with pytest.raises(ConfigurationError):
            Limits(**wrong)  # type: ignore[arg-type]


# -- writing --


@pytest.fixture
def admit(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a job to "one", or to "two" if it names that; KEY is the signing key."""
    clock = FakeClock(now=1_700_000_000.0)
    writers = [Writer(tmp_path / name) for name in ("one", "two")]
    admission = Admission(writers, KEY, clock)

    def do(pairs: dict[str, object] | bytes, body: bytes = b"", must: bool = False) -> str:
        packet = pairs if isinstance(pairs, bytes) else encode(pairs)  # type: ignore[arg-type]
        return admission.admit(ReceivedPacket(packet, body, bool(body)), must)

    return do


def test_job_is_written_unchanged(admit: Callable[..., str], tmp_path: Path) -> None:
    pairs = {"at": "1800000000.5", "priority": "10", "spooler": str(tmp_path / "two"), "body": "a pair"}
    name = admit(pairs, b"body")
    assert name.startswith("10/uwsgi_spoolfile_on_")
    path = tmp_path / "two" / name
    assert decode(path.read_bytes()) == (
        {key.encode(): value.encode() for key, value in pairs.items()},
        b"body",
    )
    assert os.stat(path).st_mtime == 1_800_000_001


def test_written_packet_has_the_modifiers_of_a_file(admit: Callable[..., str], tmp_path: Path) -> None:
    twice = b"\x01\0a\x01\x001\x01\0a\x01\x002"
    name = admit(bytes((17, len(twice), 0, 5)) + twice, b"body")
    assert (tmp_path / "one" / name).read_bytes() == bytes((17, len(twice), 0, 0)) + twice + b"body"


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"priority": "../x"}, "priority"),
        ({"priority": "1/2"}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"priority": "."}, "priority"),
        ({"priority": "1\0"}, "priority"),
        ({"priority": "²"}, "priority"),
        ({"priority": "1" * 300}, "priority"),
        ({"at": "soon"}, "epoch seconds"),
        ({"at": "-5"}, "epoch seconds"),
        ({"at": "1e400"}, "epoch seconds"),
        ({"at": "nan"}, "epoch seconds"),
        ({"at": " 5"}, "epoch seconds"),
        ({"at": "9" * 400}, "epoch seconds"),
        ({"at": "999999999999999"}, "9999"),
        ({"spooler": "two"}, "no spool directory"),
        ({"spooler": "/etc"}, "no spool directory"),
        ({"spooler": "{one}/"}, "no spool directory"),
        ({"spooler": "{one}/../two"}, "no spool directory"),
        ({"spooler": "{one}/../../"}, "no spool directory"),
        ({"spooler": "0"}, "no spool directory"),
        ({"ud_spool_func": "f", "args": "pickle"}, "pickled"),
        ({"ud_spool_func": "f", "kwargs": ""}, "pickled"),
    ],
)
def test_unsafe_options_are_rejected(
    admit: Callable[..., str], tmp_path: Path, pairs: dict[str, str], reason: str
) -> None:
    with pytest.raises(SpoolError, match=reason):
        admit({key: value.replace("{one}", str(tmp_path / "one")) for key, value in pairs.items()})
    assert files(tmp_path) == []


def test_empty_options_are_ignored(admit: Callable[..., str], tmp_path: Path) -> None:
    assert "/" not in admit({"at": "", "priority": "", "spooler": ""})
    assert "/" not in admit({"at": "0"})
    assert len(files(tmp_path / "one")) == 2


def test_args_without_a_function_are_plain_pairs(admit: Callable[..., str]) -> None:
    assert admit({"args": "a", "kwargs": "b"})
    assert admit({"ud_spool_func": "f"})


def test_malformed_pairs_are_rejected(admit: Callable[..., str], tmp_path: Path) -> None:
    for image in (b"\x11\5\0\0\5\0he\xff", b"\x11\4\0\0\0\0\0\0", b"\x11\1\0\0\0"):
        with pytest.raises(SpoolError):
            admit(image)
    assert files(tmp_path) == []


class Broken(Writer):
    def write(self, *args: object, **options: object) -> str:
        raise OSError(5, "Input/output error")


def test_write_error_rejects_the_job(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="Input/output error"):
        Admission([Broken(tmp_path / "one")], None).admit(ReceivedPacket(OK, b"", False), False)


def test_answers_can_contain_any_error_text() -> None:
    for text in ("x" * 100_000, "\ud800", "\udcff", "ä"):
        conversation = talk(extended(OK, b""), taken=RequestRecorder(text))
        ((enqueued, _, error),) = answers(conversation)
        assert not enqueued
        assert error


def test_jobs_are_rejected_without_a_directory() -> None:
    with pytest.raises(SpoolError, match="no spool directory here"):
        Admission([], None).admit(ReceivedPacket(OK, b"", False), False)


# -- signatures --


def sign(
    pairs: dict[bytes, bytes], body: bytes = b"", key: bytes = KEY, now: float = 1_700_000_000.0
) -> bytes:
    signature = framing.signature(pairs, body, key, now)
    return encode({**pairs, framing.PAIR: signature})  # type: ignore[dict-item]


def test_signature_is_removed_from_a_signed_job(admit: Callable[..., str], tmp_path: Path) -> None:
    pairs = {b"z": b"1", b"args": b"p", b"a": b"2", b"ud_spool_func": b"f"}
    path = tmp_path / "one" / admit(sign(pairs, b"body"), b"body", must=True)
    assert decode(path.read_bytes()) == (pairs, b"body")


@pytest.mark.parametrize("must", [True, False])
def test_changed_or_old_jobs_are_rejected(admit: Callable[..., str], tmp_path: Path, must: bool) -> None:
    good = sign({b"a": b"1", b"at": b"5"}, b"body")
    changed = encode({**decode(good).pairs, b"at": b"6"})  # type: ignore[dict-item]
    more = encode({**decode(good).pairs, b"more": b""})  # type: ignore[dict-item]
    less = encode({key: value for key, value in decode(good).pairs.items() if key != b"at"})
    later = good.replace(b"1:1700000060:", b"1:1700000061:")
    assert later != good
    cases = [
        (changed, b"body"), (more, b"body"), (less, b"body"), (later, b"body"), (good, b"other"),
        (good, b""),
        (sign({b"a": b"1"}, b"body", key=b"fedcba9876543210"), b"body"),
        (sign({b"a": b"1"}, b"body", now=1_700_000_000 - 61), b"body"),
        (sign({b"a": b"1"}, b"body", now=1_700_000_000 + 61), b"body"),
        (encode({"qw_sig": ""}), b""), (encode({"qw_sig": "1:x:y"}), b""),
        (encode({"qw_sig": "1:" + "9" * 5000 + ":y"}), b""), (encode({"qw_sig": b"\xff::\xff"}), b""),
    ]  # fmt: skip
    for packet, body in cases:
        with pytest.raises(SpoolError, match="signature"):
            admit(packet, body, must=must)
    assert files(tmp_path) == []
    assert admit(good, b"body", must=must)


def test_unsigned_job_is_rejected_if_signatures_are_required(admit: Callable[..., str]) -> None:
    with pytest.raises(SpoolError, match="not signed"):
        admit({"a": "1"}, must=True)


def test_signed_job_is_rejected_without_a_key(tmp_path: Path) -> None:
    admission = Admission([Writer(tmp_path / "one")], None)
    with pytest.raises(SpoolError, match="no key"):
        admission.admit(ReceivedPacket(sign({b"a": b"1"}), b"", False), False)


def test_key_is_read_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b" " + KEY + b"\n")
    path.chmod(0o640)
    assert read_key(path) == KEY
    path.chmod(0o604)
    with pytest.raises(ConfigurationError, match="chmod"):
        read_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        read_key(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_key(tmp_path / "none")


# -- addresses and peers --


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:3031", TcpAddress("10.0.0.1", 3031)),
        (":3031", TcpAddress("127.0.0.1", 3031)),
        ("*:3031", TcpAddress("0.0.0.0", 3031)),
        ("[::1]:3031", TcpAddress("::1", 3031)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("@name:1", UnixAddress("name:1", True)),
        ("/run/a:1", UnixAddress("/run/a:1", False)),
        ("socket", UnixAddress("socket", False)),
    ],
)
def test_addresses_are_parsed(text: str, expected: TcpAddress | UnixAddress) -> None:
    address = parse_address(text)
    assert address == expected
    assert parse_address(str(address)) == expected


@pytest.mark.parametrize(
    "text", ["", "@", "host:", "host:port", "host:65536", "::1:3031", "a\0/b", "/" + "x" * 107, "host:٣"]
)
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_address(text)


def test_listening_on_other_interfaces_needs_a_key_or_networks() -> None:
    for host in ("0.0.0.0", "10.0.0.1", "::", "2001:db8::1"):
        with pytest.raises(ConfigurationError, match="networks"):
            Access().check_listening(ip_address(host), host)
        Access(key=KEY).check_listening(ip_address(host), host)
        Access(networks=("10.0.0.0/8",)).check_listening(ip_address(host), host)
    for host in ("127.0.0.1", "127.8.8.8", "::1"):
        Access().check_listening(ip_address(host), host)


def test_allowed_ip_addresses() -> None:
    networks = Access(networks=("10.0.0.0/8", "2001:db8::/32", "192.0.2.7"))
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::5", "192.0.2.7", "127.0.0.1", "::1"):
        assert networks.allows_ip(host), host
    for host in ("11.0.0.1", "::ffff:11.0.0.1", "2001:db9::5", "192.0.2.8", "fe80::1%1"):
        assert not networks.allows_ip(host), host
        assert not Access().allows_ip(host), host
        assert Access(key=KEY).allows_ip(host), "remote jobs must be signed"
        assert not Access(key=KEY, networks=("10.0.0.0/8",)).allows_ip(host), host


def test_invalid_access_is_rejected() -> None:
    for wrong in ({"networks": ("10.0.0.1/8",)}, {"networks": ("x",)}, {"key": b"short"}):
        with pytest.raises(ConfigurationError):
            Access(**wrong)  # type: ignore[arg-type]
    assert "0123" not in repr(Access(key=KEY))
    assert not Access(users={os.getuid(), 0}).for_others
    assert Access(users={12345}).for_others
