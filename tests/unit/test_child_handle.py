"""ChildHandle: what the parent sends to a child, and how much at a time."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from qworker.components.pool.child_handle import FRAME_BYTES, OVERDUE, TELL_SECONDS, ChildHandle
from qworker.components.pool.frames import LENGTH, UP, FrameBuffer, pack
from qworker.components.request import Failing
from tests.support.rooms import Rooms


def exchange(sizes: list[int]) -> tuple[list[list[int]], list[bool]]:
    """Assign jobs with arguments of these sizes, and read them like a slow child. Return the sequence numbers
    in each frame, and the results of flush()."""
    rooms, child = Rooms(), ChildHandle(0)
    theirs, buffer = child.channel.their_socket, FrameBuffer()
    theirs.setblocking(False)
    frames: list[list[int]] = []
    flushed: list[bool] = []
    try:
        for sequence, size in enumerate(sizes, 1):
            child.assign(sequence, rooms.request(sequence, "add", "x" * size), 0.001)
        while not flushed or not flushed[-1]:
            flushed.append(child.channel.flush())
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
def test_child_has_time_to_report_an_overdue_task(limit: float, seconds: float) -> None:
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


def test_large_jobs_are_sent_in_separate_frames() -> None:
    frames, _ = exchange([FRAME_BYTES, 10, 10, FRAME_BYTES, 10])
    assert frames == [[1], [2, 3, 4], [5]]


@pytest.mark.parametrize("size", [3_000_000, 300_000])
def test_rest_of_a_full_socket_is_sent_when_there_is_room(size: int) -> None:
    frames, flushed = exchange([size] * 10)
    assert frames == [[number] for number in range(1, 11)]
    assert flushed[0] is False
    assert flushed[-1] is True


@pytest.mark.parametrize("body", [None, 7, 1.5, "text"])
def test_invalid_body_is_passed_to_the_child(body: Any) -> None:
    rooms, child = Rooms(), ChildHandle(0)
    try:
        request = rooms.request(1)
        request.leased = request.leased._replace(body=body)
        child.assign(1, request, 0.001)
        assert child.channel.flush()
        (frame,) = FrameBuffer().feed(child.channel.their_socket.recv(65536))
        assert frame[0][-1] == body
    finally:
        child.channel.close()


@pytest.mark.parametrize("written", [b"\xff" * 8, LENGTH.pack(5) + b"hello", LENGTH.pack(1) + b"("])
def test_child_that_writes_invalid_frames_is_killed(written: bytes) -> None:
    """A task may write to any file descriptor of its process. Earlier frames are kept."""
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


def test_requests_assigned_before_the_start_get_the_pid() -> None:
    """Presence and log lines show the process that runs a task."""
    child = ChildHandle(0, send_signal=lambda pid, number: None)
    try:
        early, late = Rooms().request(1), Rooms().request(2)
        child.assign(1, early, 0.0)
        child.started_as(4321)
        child.assign(2, late, 0.0)
        assert (early.pid, late.pid) == (4321, 4321)
    finally:
        child.channel.close()
