"""The packet, held against what real uWSGI wrote and did."""

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
def test_what_uwsgi_wrote_is_read(sample: Sample) -> None:
    packet = decode(sample.image)
    assert sample.holds(packet.pairs)
    assert len(packet.body) == sample.entry["body_len"]
    if packet.body:
        assert hashlib.sha256(packet.body).hexdigest() == sample.entry["body_sha256"]


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: sample.id)
def test_the_same_bytes_are_written(sample: Sample) -> None:
    packet = decode(sample.image)
    assert encode(packet.pairs) + packet.body == sample.image


@pytest.mark.parametrize("sample", MALFORMED, ids=lambda sample: sample.id)
def test_what_uwsgi_ran_is_read_and_nothing_else(sample: Sample) -> None:
    if sample.entry["uwsgi_executed"]:
        packet = decode(sample.image)
        assert sample.holds(packet.pairs)
        assert len(packet.body) == sample.entry["body_len"]
    else:
        with pytest.raises(InvalidPacket, match="byte"):
            decode(sample.image)


def test_the_example_of_the_manual() -> None:
    assert encode({"hello": "world"}) == bytes((17, 14, 0, 0, 5, 0, *b"hello", 5, 0, *b"world"))


keys = st.binary(min_size=1, max_size=50)


@given(st.dictionaries(keys, st.binary(max_size=300)), st.binary(max_size=100))
def test_what_is_written_is_read(pairs: dict[bytes, bytes], body: bytes) -> None:
    assert decode(encode(pairs) + body) == (pairs, body)


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers()))
def test_text_is_utf8_and_numbers_are_decimal(pairs: dict[str, str | int]) -> None:
    assert decode(encode(pairs)).pairs == {key.encode(): str(value).encode() for key, value in pairs.items()}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_refused(image: bytes) -> None:
    try:
        packet = decode(image)
    except InvalidPacket:
        return
    assert decode(encode(packet.pairs) + packet.body) == packet


@given(st.dictionaries(keys, st.binary(max_size=20)), st.data())
def test_a_packet_that_was_cut_is_refused(pairs: dict[bytes, bytes], data: st.DataObject) -> None:
    image = encode(pairs)
    with pytest.raises(InvalidPacket):
        decode(image[: data.draw(st.integers(0, len(image) - 1))])


def test_bits_that_flip_do_no_harm() -> None:
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


def test_the_most_that_fits() -> None:
    assert len(encode({"k": bytes(LARGEST - 5)})) == 4 + LARGEST
    with pytest.raises(SpoolError, match=r"'k'.*body"):
        encode({"k": bytes(LARGEST - 4)})


@pytest.mark.parametrize("size", [65_536, 70_000, 200_000])
def test_what_is_too_long_is_refused_and_not_cut(size: int) -> None:
    with pytest.raises(SpoolError, match="65,535"):
        encode({"k": bytes(size)})
    with pytest.raises(SpoolError, match="65,535"):
        encode({b"k" * size: b""})


def test_many_pairs_are_too_much_together() -> None:
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
def test_what_cannot_be_written_is_refused(pairs: dict[str, str], says: str) -> None:
    with pytest.raises(SpoolError, match=says):
        encode(pairs)


def test_other_bytes_are_bytes() -> None:
    assert decode(encode({"a": bytearray(b"1"), "b": memoryview(b"2")})).pairs == {b"a": b"1", b"b": b"2"}


def test_the_callers_pairs_stay_as_they_are() -> None:
    pairs = {"k": 1, "body": "b"}
    encode(pairs)
    assert pairs == {"k": 1, "body": "b"}


def test_of_a_key_spelled_twice_the_last_wins() -> None:
    assert decode(encode({"k": "text", b"k": b"bytes"})).pairs == {b"k": b"bytes"}
