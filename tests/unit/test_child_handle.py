"""What the parent sends to a child, and how much at a time."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from qworker.components.pool.child_channel import FRAME_BYTES
from qworker.components.pool.child_handle import OVERDUE, TELL_SECONDS, ChildHandle
from qworker.components.pool.frames import LENGTH, UP, FrameBuffer, pack
from qworker.components.request import Failing
from tests.support.rooms import Rooms


def exchange(sizes: list[int]) -> tuple[list[list[int]], list[bool]]:
    """Assign jobs with arguments of such sizes, and read as a slow child does. Returns the sequences in each
    frame that it got, and what flush() answered each time."""
    rooms, child = Rooms(), ChildHandle(0)
    theirs, buffer = child.channel.their_socket, FrameBuffer()
    theirs.setblocking(False)
    frames: list[list[int]] = []
    flushed: list[bool] = []
    try:
        for sequence, size in enumerate(sizes, 1):
            child.assign(sequence, rooms.request(sequence, "add", "x" * size), 0.001)
        while not flushed or not flushed[-1]:
            flushed.append(child.flush())
            while True:
                try:
                    data = theirs.recv(65536)
                except BlockingIOError:
                    break
                for frame in buffer.feed(data):
                    jobs: Any = frame
                    frames.append([job[0] for job in jobs])
                    assert all(len(job[-1]) > sizes[job[0] - 1] for job in jobs)
    finally:
        child.channel.close()
    return frames, flushed


@pytest.mark.parametrize(("limit", "seconds"), [(3, TELL_SECONDS), (2 * TELL_SECONDS, 2 * TELL_SECONDS)])
def test_the_end_of_a_task_has_time_to_be_told(limit: float, seconds: float) -> None:
    rooms, child = Rooms(), ChildHandle(0)
    try:
        request = rooms.request(1, timelimit=[limit, None])
        child.assign(1, request, 0.001)
        first = child.next_limit()
        request.failing = Failing(OVERDUE, "FAILURE", {})
        later = child.next_limit()
        assert first is not None
        assert later is not None
        assert later.at - first.at == seconds - limit
    finally:
        child.channel.close()


def test_short_jobs_share_a_frame() -> None:
    frames, flushed = exchange([10] * 50)
    assert frames == [list(range(1, 51))]
    assert flushed == [True]


def test_large_jobs_come_in_frames_of_their_own_so_that_the_first_can_begin() -> None:
    frames, _ = exchange([FRAME_BYTES, 10, 10, FRAME_BYTES, 10])
    assert frames == [[1], [2, 3, 4], [5]]


@pytest.mark.parametrize("size", [3_000_000, 300_000])
def test_what_does_not_fit_into_the_socket_follows_when_there_is_room(size: int) -> None:
    frames, flushed = exchange([size] * 10)
    assert frames == [[number] for number in range(1, 11)]
    assert flushed[0] is False
    assert flushed[-1] is True


@pytest.mark.parametrize("body", [None, 7, 1.5, "text"])
def test_a_body_that_is_none_goes_to_the_child_which_says_what_is_wrong_with_it(body: Any) -> None:
    rooms, child = Rooms(), ChildHandle(0)
    try:
        request = rooms.request(1)
        request.leased = request.leased._replace(body=body)
        child.assign(1, request, 0.001)
        assert child.flush()
        (frame,) = FrameBuffer().feed(child.channel.their_socket.recv(65536))
        assert frame[0][-1] == body
    finally:
        child.channel.close()


@pytest.mark.parametrize("written", [b"\xff" * 8, LENGTH.pack(5) + b"hello", LENGTH.pack(1) + b"("])
def test_who_writes_what_no_child_does_is_killed(written: bytes) -> None:
    """By whatever a task writes into the files of its process. What it said before that counts."""
    signals: list[tuple[int, int]] = []
    child = ChildHandle(0, send_signal=lambda pid, number: signals.append((pid, number)))
    child.started_as(4321)
    try:
        child.channel.their_socket.sendall(pack((UP,)) + written)
        assert child.receive() == [(UP,)]
        assert signals == [(4321, signal.SIGKILL)]
        child.channel.their_socket.close()
        assert child.receive() is None
    finally:
        child.channel.close()


def test_what_was_given_before_its_process_is_known_is_told_of_it() -> None:
    """Presence and the log name the process that runs a task."""
    child = ChildHandle(0, send_signal=lambda pid, number: None)
    try:
        early, late = Rooms().request(1), Rooms().request(2)
        child.assign(1, early, 0.0)
        child.started_as(4321)
        child.assign(2, late, 0.0)
        assert (early.pid, late.pid) == (4321, 4321)
    finally:
        child.channel.close()
