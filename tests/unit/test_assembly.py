"""The parts of a worker, and the orders in which they start, go quiet and stop."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.assembly import ABSENT, Assembly
from qworker.components.component import Component
from qworker.tasks.outcome import INTERRUPTED
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.worker import Worker
from tests.support.logging_events import logged


class House:
    """A worker without threads, whose tasks run when a test says so."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.app = QWorker(
            "h",
            broker=self.store,
            backend=settings.pop("backend", "cache+memory://"),
            clock=self.clock,
            set_as_current=False,
            **settings,
        )
        self.ran: list[int] = []
        self.add = self.app.task(name="add")(self.ran.append)

    def step_worker(self) -> StepWorker:
        return StepWorker(self.app, on_demand=True)


def names(parts: Any) -> list[str]:
    return [part.name for part in parts]


def test_who_receives_starts_before_who_sends_and_the_source_is_the_last(tmp_path: Path) -> None:
    results = f"sqlite:///{tmp_path}/results.db"
    parts = House(worker_http_address="127.0.0.1:0", backend=results).step_worker().parts
    assert names(parts.start_order) == [
        "http", "pool", "result writer", "joiner", "schedule", "mediator", "listener",
    ]  # fmt: skip


def test_who_sends_stops_before_who_receives_and_who_settles_is_the_last_but_the_probes(
    tmp_path: Path,
) -> None:
    results = f"sqlite:///{tmp_path}/results.db"
    parts = House(worker_http_address="127.0.0.1:0", backend=results).step_worker().parts
    assert names(parts.quiet_order) == ["listener", "mediator", "pool"]
    assert names(stop.part for stop in parts.stop_order) == [
        "mediator", "schedule", "pool", "result writer", "listener", "joiner", "http",
    ]  # fmt: skip


def test_a_part_that_is_not_wanted_is_not_there() -> None:
    parts = House().step_worker().parts
    assert parts.http is None
    assert "http" not in names(parts.start_order)


@pytest.mark.parametrize("part", ["http", "pool", "result writer", "schedule", "mediator", "listener"])
def test_each_part_starts_goes_quiet_and_stops_in_any_order_and_twice(part: str) -> None:
    for order in itertools.permutations(["start", "quiet", "stop"]):
        http = {"worker_http_address": "127.0.0.1:0"} if part == "http" else {}
        worker = Worker(House(worker_pool="threads", worker_concurrency=1, **http).app)
        worker._build()
        (one,) = [each for each in worker.parts.start_order if each.name == part]
        for name in (*order, *order):
            getattr(one, name)()
        one.stop()
        assert one.join(30)
        assert worker._crash is None
        for stop in worker.parts.stop_order:
            stop.part.stop()
            assert stop.part.join(30)


def test_a_part_that_fails_to_stop_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
    worker = house.step_worker()
    house.add.delay(1)
    house.add.delay(2)
    worker.run()
    worker.pool.run(1)
    stopped: list[str] = []
    for part in {stop.part for stop in worker.parts.stop_order} - {ABSENT}:
        monkeypatch.setattr(part, "stop", failing(part, stopped))
    monkeypatch.setattr(worker.parts.quiet_order[0], "quiet", failing(worker.parts.listener, []))
    with caplog.at_level(logging.INFO):
        worker.stop("cold")
    assert stopped == ["mediator", "schedule", "pool", "result writer", "listener", "joiner"]
    assert {"component-failed", "worker-stopped"} <= set(logged(caplog))


def failing(part: Component, called: list[str]) -> Any:
    def act(deadline: float = 0.0) -> None:
        called.append(part.name)
        raise RuntimeError(f"{part.name} for the test")

    return act


def test_what_the_pool_has_not_begun_goes_back_when_it_goes_quiet() -> None:
    house = House()
    worker = house.step_worker()
    for number in range(3):
        house.add.delay(number)
    worker.run()
    begun = worker.pool.held[:1]
    worker.pool.started = [*begun]
    for part in worker.parts.quiet_order:
        part.quiet()
    worker.parts.listener.step(house.clock.monotonic())
    worker.parts.listener.step(house.clock.monotonic())
    assert house.store.held == {request.tag for request in begun}
    assert worker.pool.held == begun


def test_a_run_that_the_stop_cuts_short_is_counted_and_comes_again() -> None:
    house = House()
    worker = house.step_worker()
    house.add.delay(1)
    worker.run()
    assert worker.pool.in_flight() == 1
    worker.parts.listener.quiet()
    worker.parts.running.stop()
    worker.parts.running.stop()
    assert worker.parts.running.cut == 1
    worker.run()
    assert (house.store.held, house.store.messages, house.ran) == (set(), 1, [])


def test_a_run_that_another_ones_end_interrupts_is_not_counted_as_cut_short_by_the_stop() -> None:
    house = House()
    worker = house.step_worker()
    house.add.delay(1)
    worker.run()
    (request,) = worker.pool.held
    worker.pool.end(request, INTERRUPTED)
    assert worker.parts.running.cut == 0
    worker.parts.running.quiet()
    worker.run()
    assert worker.parts.running.cut == 0


def test_no_part_waits_for_another_to_be_made() -> None:
    """Whatever a part is given is there: the assembly sets nothing on it afterwards."""
    made: list[str] = []

    class Watching(Assembly):
        def __setattr__(self, name: str, value: object) -> None:
            made.append(name)
            super().__setattr__(name, value)

    house = House(worker_pool="threads", worker_concurrency=1)
    worker = Worker(house.app)
    parts = Watching(house.app, worker.registration, worker._crashed, lambda: worker.phase, worker._make_pool)
    assert len(made) == len(set(made)) == len(vars(parts))
