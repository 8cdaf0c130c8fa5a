"""The end of a worker: only its listener uses the broker, and unsettled tasks are settled or logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import BrokerUnavailable
from qworker.testing import MemoryStore
from qworker.worker import Worker
from tests.support.logging_events import logged
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ALLOWED = frozenset({"wake", "running_path", "lowest_first", "lacks", "url", "ahead"})
"""Attributes that other threads may use, because they do not contact the server."""


class Guarded(MemoryStore):
    """A broker that only the listener's thread may use while *guarded*; *trespassers*: who else tried, and
    what."""

    guarded = False
    trespassers: list[tuple[str, str]]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ALLOWED or not callable(found) or not self.guarded:
            return found
        thread = threading.current_thread().name
        if thread != "listener":
            self.trespassers.append((thread, name))
            raise BrokerUnavailable(f"{thread} calls {name}, which is the listener's")
        return found


class Place:
    """An app with a task that runs until it is let go, one that is acked first, and one with a rate limit."""

    def __init__(self, **settings: Any) -> None:
        self.store = Guarded()
        self.store.trespassers = []
        self.let_go = threading.Event()
        self.ran: list[int] = []
        self.begun = threading.Semaphore(0)
        self.app = QWorker(
            "place", broker=self.store, backend="cache+memory://", set_as_current=False, **settings
        )

        def body(number: int) -> None:
            self.begun.release()
            self.let_go.wait(20)
            self.ran.append(number)

        self.hold = self.app.task(name="hold")(body)
        self.once = self.app.task(name="once", acks_late=False)(body)
        self.limited = self.app.task(name="limited", rate_limit="1/s")(lambda number: self.ran.append(number))

    def start(self) -> Worker:
        worker = Worker(self.app, pool="threads", concurrency=1)
        worker.start()
        self.store.guarded = True
        return worker

    def waiting(self) -> int:
        self.store.guarded = False
        return self.store.messages

    def nothing_is_lost(self) -> bool:
        """Whether each of fill() waits or has run; a thread that a stop does not wait for ends later."""
        return self.waiting() + len(self.ran) >= 11


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place(worker_shutdown_timeout=5)
    yield place
    place.let_go.set()


def fill(place: Place) -> None:
    for number in range(3):
        place.once.delay(number)
        place.hold.delay(10 + number)
        place.limited.delay(20 + number)
    place.hold.apply_async((30,), countdown=2)
    place.hold.apply_async((31,), countdown=3600)


@pytest.mark.parametrize("how", ["warm", "soft", "cold"])
def test_main_thread_does_not_use_the_broker_while_stopping(place: Place, how: str) -> None:
    fill(place)
    worker = place.start()
    assert place.begun.acquire(timeout=20)
    stopping = threading.Thread(target=worker.stop, args=(how,), name="main")
    stopping.start()
    until(lambda: worker.phase != "running")
    place.let_go.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert place.store.trespassers == []
    until(place.nothing_is_lost)


@pytest.mark.parametrize("component", ["listener", "mediator", "schedule"])
def test_main_thread_does_not_use_the_broker_after_a_crash(
    place: Place, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place)
    worker = place.start()
    assert place.begun.acquire(timeout=20)
    crashing = getattr(worker.parts, component)

    def crash(now: float) -> None:
        raise RuntimeError("for the test")

    monkeypatch.setattr(crashing, "step", crash)
    crashing.wake()
    worker.parts.ready.wake()
    until(lambda: worker._crash is not None)
    place.let_go.set()
    worker.stop()
    assert place.store.trespassers == []
    until(place.nothing_is_lost)


def test_main_thread_does_not_use_an_unavailable_broker(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGTERM while the broker is unavailable: running tasks end, and their acks wait for the broker."""
    fill(place)
    worker = place.start()
    assert place.begun.acquire(timeout=20)
    place.store.away = True
    stopping = threading.Thread(target=worker.stop, name="main")
    stopping.start()
    until(lambda: worker.phase == "draining")
    place.let_go.set()
    until(lambda: not worker.parts.pool.in_flight())
    until(lambda: "settlements-wait" in logged(caplog))
    place.store.away = False
    stopping.join(30)
    assert place.store.trespassers == []
    assert worker._abandoned == 0
    assert place.waiting() + len(place.ran) == 11


def test_stop_does_not_wait_for_ever_for_an_unavailable_broker(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(worker_shutdown_timeout=0.2)
    result = place.hold.delay(1)
    worker = place.start()
    assert place.begun.acquire(timeout=20)
    place.store.away = True
    place.let_go.set()
    until(lambda: not worker.parts.pool.in_flight())
    with caplog.at_level(logging.WARNING):
        stopping = threading.Thread(target=worker.stop, name="main")
        stopping.start()
        until(lambda: "settlements-wait" in logged(caplog))
        worker.request_stop("cold")
        stopping.join(30)
    assert not stopping.is_alive()
    assert f"1 tasks ended and will run again: {result.id}" in caplog.text
    assert worker._abandoned == 1, "as the exit code shows"
    place.store.away = False
