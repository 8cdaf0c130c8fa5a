"""The components of a worker, and the order in which they start, go quiet and stop."""

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


class WorkerRig:
    """A worker without threads, whose tasks run when a test calls for it."""

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


def test_components_start_before_those_that_send_to_them(tmp_path: Path) -> None:
    results = f"sqlite:///{tmp_path}/results.db"
    parts = WorkerRig(worker_http_address="127.0.0.1:0", backend=results).step_worker().parts
    assert names(parts.start_order) == [
        "http", "pool", "result writer", "joiner", "schedule", "mediator", "listener",
    ]  # fmt: skip


def test_components_stop_before_those_that_they_send_to(
    tmp_path: Path,
) -> None:
    results = f"sqlite:///{tmp_path}/results.db"
    parts = WorkerRig(worker_http_address="127.0.0.1:0", backend=results).step_worker().parts
    assert names(parts.quiet_order) == ["listener", "mediator", "pool"]
    assert names(stop.part for stop in parts.stop_order) == [
        "mediator", "schedule", "pool", "result writer", "listener", "joiner", "http",
    ]  # fmt: skip


def test_unneeded_component_is_not_made() -> None:
    parts = WorkerRig().step_worker().parts
    assert parts.http is None
    assert "http" not in names(parts.start_order)


@pytest.mark.parametrize("part", ["http", "pool", "result writer", "schedule", "mediator", "listener"])
def test_start_quiet_and_stop_may_be_called_in_any_order_and_twice(part: str) -> None:
    for order in itertools.permutations(["start", "quiet", "stop"]):
        http = {"worker_http_address": "127.0.0.1:0"} if part == "http" else {}
        worker = Worker(WorkerRig(worker_pool="threads", worker_concurrency=1, **http).app)
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


def test_failing_component_does_not_prevent_others_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = WorkerRig()
    worker = rig.step_worker()
    rig.add.delay(1)
    rig.add.delay(2)
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


def test_requests_not_started_by_a_quiet_pool_are_released() -> None:
    rig = WorkerRig()
    worker = rig.step_worker()
    for number in range(3):
        rig.add.delay(number)
    worker.run()
    begun = worker.pool.held[:1]
    worker.pool.started = [*begun]
    for part in worker.parts.quiet_order:
        part.quiet()
    worker.parts.listener.step(rig.clock.monotonic())
    worker.parts.listener.step(rig.clock.monotonic())
    assert rig.store.held == {request.tag for request in begun}
    assert worker.pool.held == begun


def test_run_cut_short_by_a_stop_is_counted_and_released() -> None:
    rig = WorkerRig()
    worker = rig.step_worker()
    rig.add.delay(1)
    worker.run()
    assert worker.pool.in_flight() == 1
    worker.parts.listener.quiet()
    worker.parts.running.stop()
    worker.parts.running.stop()
    assert worker.parts.running.cut == 1
    worker.run()
    assert (rig.store.held, rig.store.messages, rig.ran) == (set(), 1, [])


def test_run_interrupted_before_the_stop_is_not_counted_as_cut_short() -> None:
    rig = WorkerRig()
    worker = rig.step_worker()
    rig.add.delay(1)
    worker.run()
    (request,) = worker.pool.held
    worker.pool.end(request, INTERRUPTED)
    assert worker.parts.running.cut == 0
    worker.parts.running.quiet()
    worker.run()
    assert worker.parts.running.cut == 0


def test_assembly_sets_each_attribute_once() -> None:
    """Each attribute of the assembly is set only once."""
    made: list[str] = []

    class RecordingAssembly(Assembly):
        def __setattr__(self, name: str, value: object) -> None:
            made.append(name)
            super().__setattr__(name, value)

    rig = WorkerRig(worker_pool="threads", worker_concurrency=1)
    worker = Worker(rig.app)
    parts = RecordingAssembly(
        rig.app, worker.registration, worker._crashed, lambda: worker.phase, worker._make_pool
    )
    assert len(made) == len(set(made)) == len(vars(parts))
