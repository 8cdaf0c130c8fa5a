"""The thread that waits for a change in MongoDB: when it rings, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from qworker.transports.mongodb.watch import AGAIN_SECONDS, Watch
from tests.support.waiting import PATIENCE, until


class Stream:
    """Says what the test puts in ``says``; None: nothing was said for the longest that one waits."""

    def __init__(self) -> None:
        self.says: SimpleQueue[Any] = SimpleQueue()
        self.asked = threading.Semaphore(0)
        self.alive = True
        self.closed = threading.Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()

    def try_next(self) -> Any:
        self.asked.release()
        said = self.says.get(timeout=PATIENCE)
        if isinstance(said, Exception):
            raise said
        return said


class Database:
    """What a database is to a Watch. refusal: raised by who asks for a stream."""

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
        self.rung = threading.Semaphore(0)
        self.watch = Watch(self.rung.release, lambda: self.now)
        self.database = Database()

    def begin(self) -> None:
        self.watch.begin(self.database, [])

    def hears(self) -> bool:
        return self.rung.acquire(timeout=PATIENCE)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.watch.close()
    bench.database.stream.says.put(None)


def test_it_rings_when_it_stands_and_at_the_first_change(bench: Bench) -> None:
    bench.begin()
    assert bench.hears()
    assert bench.watch.stands
    bench.database.stream.says.put(None)
    bench.database.stream.says.put({"_id": "token"})
    assert bench.hears()
    assert not bench.watch.stands
    assert bench.database.stream.closed.is_set(), "who has enough to do need not hear of more"
    assert not bench.rung.acquire(blocking=False), "silence is no news"


def test_it_is_asked_once_at_a_time(bench: Bench) -> None:
    bench.begin()
    bench.begin()
    assert bench.hears()
    bench.database.stream.says.put({})
    assert bench.hears()
    assert bench.database.opened == 1
    bench.begin()
    assert bench.hears()
    assert bench.database.opened == 2


@pytest.mark.parametrize("breaks", [OSError("reset"), KeyError("anything")])
def test_a_stream_that_breaks_rings_and_is_left_alone_for_a_while(bench: Bench, breaks: Exception) -> None:
    bench.begin()
    assert bench.hears()
    bench.database.stream.says.put(breaks)
    assert bench.hears(), "something may have been lost with it"
    assert not bench.watch.stands
    bench.begin()
    assert bench.database.opened == 1
    bench.now += AGAIN_SECONDS
    bench.begin()
    assert bench.hears()
    assert bench.watch.stands


def test_a_refusal_is_not_taken_for_good(bench: Bench) -> None:
    bench.database.refusal = RuntimeError("only supported on replica sets")
    bench.begin()
    assert bench.hears()
    assert not bench.watch.stands
    bench.begin()
    assert bench.database.opened == 1
    bench.now += AGAIN_SECONDS
    bench.database.refusal = None
    bench.begin()
    assert bench.hears()
    assert bench.watch.stands


def test_a_stream_that_ends_is_none(bench: Bench) -> None:
    """As when its database is dropped."""
    bench.begin()
    assert bench.hears()
    bench.database.stream.alive = False
    bench.database.stream.says.put(None)
    assert bench.hears()
    bench.begin()
    assert bench.database.opened == 1


def test_closing_waits_for_nothing_and_is_the_end(bench: Bench) -> None:
    bench.begin()
    assert bench.hears()
    bench.watch.close()  # while the server keeps the question
    assert not bench.watch.stands
    bench.database.stream.says.put(None)
    assert bench.database.stream.closed.wait(PATIENCE)
    thread = bench.watch._thread
    assert thread is not None
    until(lambda: not thread.is_alive(), PATIENCE)
    bench.begin()
    assert bench.database.opened == 1
    assert not bench.rung.acquire(blocking=False)
