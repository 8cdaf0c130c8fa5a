"""Frames between parent and child, and the tokens that decide who has a job."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.components.pool.frames import (
    LENGTH,
    MOST_FRAME,
    NO_FRAMES,
    TOKEN,
    FrameBuffer,
    pack,
    pack_tokens,
    take_tokens,
)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(values=st.lists(PLAIN, max_size=8), data=st.data())
def test_frames_are_decoded_for_any_split_of_the_bytes(values: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(pack, values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    buffer = FrameBuffer()
    got: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += buffer.feed(stream[start:end])
    assert got == values


def test_frame_is_complete_with_its_last_byte() -> None:
    buffer, frame = FrameBuffer(), pack(("x" * 100, 1))
    assert list(buffer.feed(frame[:-1])) == []
    assert list(buffer.feed(frame[-1:])) == [("x" * 100, 1)]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_tokens_are_taken_once_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, pack_tokens([5, 6, 7]))
    assert take_tokens(reader) == [5, 6, 7]
    assert take_tokens(reader) == []


@given(sequences=st.lists(st.integers(0, 2**64 - 1), max_size=128))
def test_tokens_have_a_fixed_size(sequences: list[int]) -> None:
    packed = pack_tokens(sequences)
    assert len(packed) == TOKEN.size * len(sequences)
    assert [one for (one,) in struct.iter_unpack("=Q", packed)] == sequences


@given(seed=st.integers(0, 10_000), frames=st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_each_job_is_either_started_or_recalled(seed: int, frames: list[int]) -> None:
    """The child reads single tokens; the parent may take the rest at any time."""
    chance = random.Random(seed)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    started: list[int] = []
    recalled: list[int] = []
    sequence = 0
    for size in frames:
        os.write(writer, pack_tokens(list(range(sequence + 1, sequence + size + 1))))
        sequence += size
        for _ in range(chance.randrange(0, 2 * size)):
            try:
                started.append(TOKEN.unpack(os.read(reader, 8))[0])
            except BlockingIOError:
                break
        if chance.random() < 0.4:
            recalled += take_tokens(reader)
    recalled += take_tokens(reader)
    os.close(reader)
    os.close(writer)
    assert sorted(started + recalled) == list(range(1, sequence + 1))


@pytest.mark.parametrize("size", [MOST_FRAME + 1, 2**32 - 1])
def test_oversized_frame_is_refused(size: int) -> None:
    buffer = FrameBuffer()
    assert list(buffer.feed(pack("whole"))) == ["whole"]
    with pytest.raises(NO_FRAMES):
        list(buffer.feed(LENGTH.pack(size)))


@given(st.binary(min_size=1, max_size=40))
def test_arbitrary_data_is_decoded_or_refused(data: bytes) -> None:
    """marshal may also accept the data."""
    with suppress(*NO_FRAMES):
        list(FrameBuffer().feed(LENGTH.pack(len(data)) + data))
