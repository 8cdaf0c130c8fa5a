"""Queue depths: cached, answered quickly, and omitted while they are unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.status.queue_depths import ANSWER_SECONDS, ASK_SECONDS, KEEP_SECONDS, QueueDepths
from qworker.testing import FakeClock, MemoryStore
from qworker.transports.lease import Envelope, QueueInfo
from tests.support.waiting import until


class BlockingStore(MemoryStore):
    """Counts the queries, and blocks them on demand."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.queries = 0
        self.unblocked = threading.Event()
        self.unblocked.set()

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        self.queries += 1
        assert self.unblocked.wait(30)
        return super().depths(queues)


class Setup:
    def __init__(self, patience: float = ANSWER_SECONDS) -> None:
        self.clock = FakeClock()
        self.store = BlockingStore(self.clock)
        self.app = QWorker("depths", broker=self.store, clock=self.clock, set_as_current=False)
        self.depths = QueueDepths(self.app, ["a", "b"], patience)

    def push(self, queue: str, **fields: Any) -> None:
        self.store.sender.push([Envelope(queue, "{}", None, b"[]", **fields)])


def test_all_queues_are_reported_including_empty_ones() -> None:
    setup = Setup()
    setup.push("a")
    setup.push("a", due=setup.clock.now() + 60)
    setup.push("elsewhere")
    found = setup.depths.latest()
    assert found is not None
    first, second = found
    assert (first.queue, first.ready, first.delayed, first.dead) == ("a", 1, 1, 0)
    assert second == QueueInfo("b")
    setup.clock.advance(7)
    assert setup.depths.age(first) == pytest.approx(7)
    assert setup.depths.age(second) == 0


def test_age_without_a_recorded_time_is_unknown() -> None:
    setup = Setup()
    assert setup.depths.age(QueueInfo("a", ready=1)) is None
    setup.store.lacks = frozenset({"counts"})
    assert QueueDepths(setup.app, ["a"]).age(QueueInfo("a")) is None


def test_depths_are_cached_between_scrapes() -> None:
    setup = Setup()
    for _ in range(5):
        assert setup.depths.latest() is not None
    assert setup.store.queries == 1
    setup.clock.advance(ASK_SECONDS)
    setup.push("a")
    found = setup.depths.latest()
    assert found is not None
    assert found[0].ready == 1
    assert setup.store.queries == 2


def test_unavailable_broker_gives_no_depths_and_is_not_asked_again_at_once() -> None:
    setup = Setup()
    assert setup.depths.latest() is not None
    setup.store.away = True
    setup.clock.advance(ASK_SECONDS)
    assert setup.depths.latest() is None
    assert setup.depths.latest() is None
    assert setup.store.queries == 2
    setup.store.away = False
    setup.clock.advance(ASK_SECONDS)
    assert setup.depths.latest() is not None


def test_slow_broker_does_not_block_callers() -> None:
    setup = Setup(patience=0.05)
    until(lambda: setup.depths.latest() is not None)
    setup.store.unblocked.clear()
    setup.clock.advance(ASK_SECONDS)
    began = time.monotonic()
    assert setup.depths.latest() is not None  # the previous answer
    assert time.monotonic() - began < 5
    setup.clock.advance(KEEP_SECONDS)
    assert setup.depths.latest() is None
    assert setup.store.queries == 2  # one query at a time
    setup.store.unblocked.set()
    until(lambda: setup.depths.latest() is not None)


def test_no_queries_after_close() -> None:
    setup = Setup()
    setup.depths.close()
    setup.depths.close()
    assert setup.depths.latest() is None
    assert setup.store.queries == 0
