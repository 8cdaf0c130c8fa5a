"""The wakeup pipe, which ends the sleep of the listener."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from qworker.process.wakeup import WakeupPipe
from qworker.transports.sql.consumer import QUICKEST, SLOWEST, PollBackoff

ROUNDS = 3000


@pytest.fixture
def waker() -> Iterator[WakeupPipe]:
    waker = WakeupPipe()
    waker.open()
    yield waker
    waker.close()


def test_wakes_before_a_sleep_end_only_that_sleep(waker: WakeupPipe) -> None:
    waker.wake()
    waker.wake(b"n")
    assert waker.sleep(60)[0] == b"!n"
    assert waker.sleep(0)[0] == b""


def test_wake_from_another_thread_ends_the_sleep(waker: WakeupPipe) -> None:
    thread = threading.Thread(target=waker.wake)
    began = time.monotonic()
    thread.start()
    assert waker.sleep(60)[0] == b"!"
    assert time.monotonic() - began < 30
    thread.join()


def test_sleep_ends_when_a_file_is_readable(waker: WakeupPipe) -> None:
    (first_read, first_write), (second_read, second_write) = os.pipe(), os.pipe()
    try:
        os.write(second_write, b"x")
        words, ready = waker.sleep(60, first_read, second_read, -1)
        assert words == b""
        assert second_read in ready
        assert first_read not in ready
    finally:
        for end in (first_read, first_write, second_read, second_write):
            os.close(end)


def test_submillisecond_sleep_is_not_rounded_to_zero(waker: WakeupPipe) -> None:
    """poll() takes whole milliseconds: rounded down, a wait of 0.4 ms would be a busy loop."""
    began = time.monotonic()
    waker.sleep(0.0004)
    assert time.monotonic() - began >= 0.0004


def test_wake_works_on_a_full_or_closed_pipe() -> None:
    waker = WakeupPipe()
    waker.wake()
    waker.open()
    waker.open()
    for _ in range(20):
        waker.wake(b"!" * 65536)
    assert waker.clear()
    waker.close()
    waker.close()
    assert waker.fileno() == -1
    waker.wake()


def test_late_wake_does_not_write_to_a_reused_descriptor() -> None:
    """The descriptor of a closed file is soon reused, for example for the socket of a pool process."""
    waker, over = WakeupPipe(), threading.Event()

    def call() -> None:
        while not over.is_set():
            waker.wake()

    threads = [threading.Thread(target=call) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            waker.open()
            waker.close()
            read, write = os.pipe()
            os.close(write)
            try:
                assert os.read(read, 1) == b""
            finally:
                os.close(read)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        for thread in threads:
            thread.join()


def test_poll_pauses_grow_without_messages() -> None:
    backoff = PollBackoff()
    backoff.open()
    try:
        assert backoff.pause == SLOWEST, "not all workers that start look at once"
        backoff.found()
        pauses = []
        for _ in range(40):
            pauses.append(backoff.pause)
            backoff.wake()
            assert backoff.rest(-1, 60) is True
        assert pauses[0] == QUICKEST
        assert pauses == sorted(pauses)
        assert backoff.pause == SLOWEST
        backoff.found()
        assert backoff.rest(-1, 60) is False  # after its own short pause, not after a minute
    finally:
        backoff.close()
