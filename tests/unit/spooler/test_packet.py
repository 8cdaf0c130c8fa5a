"""The packet format, compared with files of a real uWSGI."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import InvalidPacket, SpoolError
from qworker.spooler.files.packet import LARGEST, decode, encode
from tests.support.uwsgi_files import Sample, samples

VALID = [sample for sample in samples("valid") if sample.id != "bug-empty-key"]
MALFORMED = samples("malformed")


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: sample.id)
def test_packets_of_uwsgi_are_decoded(sample: Sample) -> None:
    packet = decode(sample.image)
    assert sample.holds(packet.pairs)
    assert len(packet.body) == sample.entry["body_len"]
    if packet.body:
        assert hashlib.sha256(packet.body).hexdigest() == sample.entry["body_sha256"]


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: sample.id)
def test_encoding_gives_the_bytes_of_uwsgi(sample: Sample) -> None:
    packet = decode(sample.image)
    assert encode(packet.pairs) + packet.body == sample.image


@pytest.mark.parametrize("sample", MALFORMED, ids=lambda sample: sample.id)
def test_malformed_packets_are_accepted_exactly_as_by_uwsgi(sample: Sample) -> None:
    if sample.entry["uwsgi_executed"]:
        packet = decode(sample.image)
        assert sample.holds(packet.pairs)
        assert len(packet.body) == sample.entry["body_len"]
    else:
        with pytest.raises(InvalidPacket, match="byte"):
            decode(sample.image)


def test_example_of_the_manual() -> None:
    assert encode({"hello": "world"}) == bytes((17, 14, 0, 0, 5, 0, *b"hello", 5, 0, *b"world"))


keys = st.binary(min_size=1, max_size=50)


@given(st.dictionaries(keys, st.binary(max_size=300)), st.binary(max_size=100))
def test_packets_round_trip(pairs: dict[bytes, bytes], body: bytes) -> None:
    assert decode(encode(pairs) + body) == (pairs, body)


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers()))
def test_text_is_utf8_and_numbers_are_decimal(pairs: dict[str, str | int]) -> None:
    assert decode(encode(pairs)).pairs == {key.encode(): str(value).encode() for key, value in pairs.items()}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_invalid_packet(image: bytes) -> None:
    try:
        packet = decode(image)
    except InvalidPacket:
        return
    assert decode(encode(packet.pairs) + packet.body) == packet


@given(st.dictionaries(keys, st.binary(max_size=20)), st.data())
def test_truncated_packet_is_rejected(pairs: dict[bytes, bytes], data: st.DataObject) -> None:
    image = encode(pairs)
    with pytest.raises(InvalidPacket):
        decode(image[: data.draw(st.integers(0, len(image) - 1))])


def test_damaged_packets_raise_only_invalid_packet() -> None:
    chance = random.Random(17)
    images = [bytearray(sample.image[:500]) for sample in VALID]
    for _ in range(20_000):
        image = bytearray(chance.choice(images))
        for _ in range(chance.randint(1, 4)):
            image[chance.randrange(len(image))] = chance.randrange(256)
        try:
            pairs, body = decode(bytes(image))
        except InvalidPacket:
            continue
        assert all(pairs)
        assert len(body) <= len(image)


def test_largest_packet() -> None:
    assert len(encode({"k": bytes(LARGEST - 5)})) == 4 + LARGEST
    with pytest.raises(SpoolError, match=r"'k'.*body"):
        encode({"k": bytes(LARGEST - 4)})


@pytest.mark.parametrize("size", [65_536, 70_000, 200_000])
def test_overlong_keys_and_values_are_rejected(size: int) -> None:
    with pytest.raises(SpoolError, match="65,535"):
        encode({"k": bytes(size)})
    with pytest.raises(SpoolError, match="65,535"):
        encode({b"k" * size: b""})


def test_oversized_packet_is_rejected() -> None:
    with pytest.raises(SpoolError, match="65,535"):
        encode({f"{number:06}": "value" for number in range(5_000)})


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ({"k": None}, "'k'.*NoneType.*leave the pair out"),
        ({"k": 1.5}, "'k'.*float"),
        ({"k": True}, "'k'.*bool"),
        ({"k": ["v"]}, "'k'.*list"),
        ({None: "v"}, "key.*NoneType"),
        ({"": "v"}, "empty key"),
        ({b"": "v"}, "empty key"),
        ({"k": "\ud800"}, "'k'.*surrogates"),
        ({"k": 10**5000}, "'k'.*digit"),
    ],
)
def test_invalid_pairs_are_rejected(pairs: dict[str, str], says: str) -> None:
    with pytest.raises(SpoolError, match=says):
        encode(pairs)


def test_bytes_like_values_are_encoded() -> None:
    assert decode(encode({"a": bytearray(b"1"), "b": memoryview(b"2")})).pairs == {b"a": b"1", b"b": b"2"}


def test_encoding_does_not_change_the_pairs() -> None:
    pairs = {"k": 1, "body": "b"}
    encode(pairs)
    assert pairs == {"k": 1, "body": "b"}


def test_last_of_text_and_bytes_keys_wins() -> None:
    assert decode(encode({"k": "text", b"k": b"bytes"})).pairs == {b"k": b"bytes"}
