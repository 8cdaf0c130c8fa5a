"""How the queues stand: asked seldom, answered quickly, and left out while nobody knows."""

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


class Asked(MemoryStore):
    """Counts the questions, and answers when it may."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.questions = 0
        self.may = threading.Event()
        self.may.set()

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        self.questions += 1
        assert self.may.wait(30)
        return super().depths(queues)


class Desk:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Asked(self.clock)
        self.app = QWorker("depths", broker=self.store, clock=self.clock, set_as_current=False)
        self.depths = QueueDepths(self.app, ["a", "b"])

    def push(self, queue: str, **fields: Any) -> None:
        self.store.sender.push([Envelope(queue, "{}", None, b"[]", **fields)])


def test_every_queue_is_told_of_also_an_empty_one() -> None:
    desk = Desk()
    desk.push("a")
    desk.push("a", due=desk.clock.now() + 60)
    desk.push("elsewhere")
    found = desk.depths.latest()
    assert found is not None
    first, second = found
    assert (first.queue, first.ready, first.delayed, first.dead) == ("a", 1, 1, 0)
    assert second == QueueInfo("b")
    desk.clock.advance(7)
    assert desk.depths.age(first) == pytest.approx(7)
    assert desk.depths.age(second) == 0


def test_the_age_of_what_nobody_noted_is_not_known() -> None:
    desk = Desk()
    assert desk.depths.age(QueueInfo("a", ready=1)) is None
    desk.store.lacks = frozenset({"counts"})
    assert QueueDepths(desk.app, ["a"]).age(QueueInfo("a")) is None


def test_the_broker_is_not_asked_for_every_scrape() -> None:
    desk = Desk()
    for _ in range(5):
        assert desk.depths.latest() is not None
    assert desk.store.questions == 1
    desk.clock.advance(ASK_SECONDS)
    desk.push("a")
    found = desk.depths.latest()
    assert found is not None
    assert found[0].ready == 1
    assert desk.store.questions == 2


def test_while_the_broker_is_away_nothing_is_told_and_it_is_left_alone() -> None:
    desk = Desk()
    assert desk.depths.latest() is not None
    desk.store.away = True
    desk.clock.advance(ASK_SECONDS)
    assert desk.depths.latest() is None
    assert desk.depths.latest() is None
    assert desk.store.questions == 2
    desk.store.away = False
    desk.clock.advance(ASK_SECONDS)
    assert desk.depths.latest() is not None


def test_a_broker_that_takes_its_time_holds_nobody_up() -> None:
    desk = Desk()
    assert desk.depths.latest() is not None
    desk.store.may.clear()
    desk.clock.advance(ASK_SECONDS)
    began = time.monotonic()
    assert desk.depths.latest() is not None  # what it said before
    assert time.monotonic() - began < ANSWER_SECONDS + 5
    desk.clock.advance(KEEP_SECONDS)
    assert desk.depths.latest() is None
    assert desk.store.questions == 2  # one question at a time
    desk.store.may.set()
    until(lambda: desk.depths.latest() is not None)


def test_once_closed_it_asks_no_more() -> None:
    desk = Desk()
    desk.depths.close()
    desk.depths.close()
    assert desk.depths.latest() is None
    assert desk.store.questions == 0
