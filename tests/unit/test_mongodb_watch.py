"""The thread that waits for changes in MongoDB: when it notifies, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from qworker.transports.mongodb.watch import AGAIN_SECONDS, Watch
from tests.support.waiting import PATIENCE, until


class Stream:
    """A change stream that returns or raises what the test puts into ``answers``; None: no change in time."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.asked = threading.Semaphore(0)
        self.alive = True
        self.closed = threading.Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()

    def try_next(self) -> Any:
        self.asked.release()
        answer = self.answers.get(timeout=PATIENCE)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Database:
    """The part of a database that Watch uses. refusal: raised by watch()."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.refusal: Exception | None = None
        self.opened = 0

    def watch(self, stages: list[Any], max_await_time_ms: int) -> Stream:
        self.opened += 1
        if self.refusal is not None:
            raise self.refusal
        return self.stream


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.notifications = threading.Semaphore(0)
        self.watch = Watch(self.notifications.release, lambda: self.now)
        self.database = Database()

    def begin(self) -> None:
        self.watch.begin(self.database, [])

    def notified(self) -> bool:
        return self.notifications.acquire(timeout=PATIENCE)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.watch.close()
    bench.database.stream.answers.put(None)


def test_watch_notifies_when_open_and_at_the_first_change(bench: Bench) -> None:
    bench.begin()
    assert bench.notified()
    assert bench.watch.active
    bench.database.stream.answers.put(None)
    bench.database.stream.answers.put({"_id": "token"})
    assert bench.notified()
    assert not bench.watch.active
    assert bench.database.stream.closed.is_set(), "no stream is needed while there is work"
    assert not bench.notifications.acquire(blocking=False), "no change, no notification"


def test_second_begin_opens_no_second_stream(bench: Bench) -> None:
    bench.begin()
    bench.begin()
    assert bench.notified()
    bench.database.stream.answers.put({})
    assert bench.notified()
    assert bench.database.opened == 1
    bench.begin()
    assert bench.notified()
    assert bench.database.opened == 2


@pytest.mark.parametrize("error", [OSError("reset"), KeyError("anything")])
def test_broken_stream_notifies_and_is_reopened_after_a_pause(bench: Bench, error: Exception) -> None:
    bench.begin()
    assert bench.notified()
    bench.database.stream.answers.put(error)
    assert bench.notified(), "changes may have been lost"
    assert not bench.watch.active
    bench.begin()
    assert bench.database.opened == 1
    bench.now += AGAIN_SECONDS
    bench.begin()
    assert bench.notified()
    assert bench.watch.active


def test_refused_stream_is_retried_after_a_pause(bench: Bench) -> None:
    bench.database.refusal = RuntimeError("only supported on replica sets")
    bench.begin()
    assert bench.notified()
    assert not bench.watch.active
    bench.begin()
    assert bench.database.opened == 1
    bench.now += AGAIN_SECONDS
    bench.database.refusal = None
    bench.begin()
    assert bench.notified()
    assert bench.watch.active


def test_ended_stream_notifies_and_is_not_reopened_at_once(bench: Bench) -> None:
    """For instance, because its database was dropped."""
    bench.begin()
    assert bench.notified()
    bench.database.stream.alive = False
    bench.database.stream.answers.put(None)
    assert bench.notified()
    bench.begin()
    assert bench.database.opened == 1


def test_close_does_not_wait_and_is_final(bench: Bench) -> None:
    bench.begin()
    assert bench.notified()
    bench.watch.close()  # while the server has not answered
    assert not bench.watch.active
    bench.database.stream.answers.put(None)
    assert bench.database.stream.closed.wait(PATIENCE)
    thread = bench.watch._thread
    assert thread is not None
    until(lambda: not thread.is_alive(), PATIENCE)
    bench.begin()
    assert bench.database.opened == 1
    assert not bench.notifications.acquire(blocking=False)
