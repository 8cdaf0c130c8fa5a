"""Health: results of probes while a worker starts, runs and stops, and while its broker does not answer."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.status.counters import MAX_NAMES, OTHERS, Counters, EndedRun
from qworker.components.status.health import LongRuns
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.lease import Claim
from qworker.worker import Worker
from tests.support.logging_events import logged
from tests.support.waiting import until


class SteppedWorker:
    """A worker whose listener and main loop take steps when a test calls for it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.store.url = "memory://u:secret@h/"
        app = QWorker(
            "h", broker=self.store, backend="cache+memory://", clock=self.clock, set_as_current=False
        )
        self.worker = StepWorker(app)
        self.health = self.worker.parts.health
        self.health.listener = RunningListener(self.worker.parts.listener)  # type: ignore[assignment]

    def step(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.worker.parts.listener.step(self.clock.monotonic())
        self.health.look()


class RunningListener:
    """The listener with a live thread, which that of a StepWorker lacks."""

    alive = True

    def __init__(self, listener: Any) -> None:
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_starting_worker_is_alive_and_not_ready() -> None:
    rig = SteppedWorker()
    assert rig.health.not_alive() == []
    assert rig.health.not_ready() == ["the worker is starting"]
    rig.step(1)
    assert rig.health.not_ready() == []
    assert rig.health.info([])["status"] == "ok"


def test_unavailable_broker_fails_probes_at_once_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = SteppedWorker()
    rig.step(1)
    rig.store.away = True
    rig.step(2)
    (reason,) = rig.health.not_ready()
    assert reason == "the broker has not answered for 2 s: memory://u:********@h/ is away"
    assert rig.health.not_alive() == []  # a restart would not help
    assert "not-consuming" not in logged(caplog)
    for _ in range(20):
        rig.step(2)
    assert [r.getMessage() for r in caplog.records if vars(r).get("event") == "not-consuming"] == [
        "not consuming: the broker has not answered for 34 s: memory://u:********@h/ is away"
    ]
    rig.store.away = False
    with caplog.at_level(logging.WARNING):
        rig.step(2)
    assert logged(caplog)[-2:] == ["broker-back", "consuming"]
    assert rig.health.not_ready() == []
    assert rig.worker.parts.listener.connection.reconnects == 1
    assert rig.worker.parts.listener.connection.failures == 21


def test_listener_hanging_in_a_call_is_reported_as_waiting() -> None:
    rig = SteppedWorker()
    rig.step(1)
    for _ in range(40):  # the main loop runs, the listener does not
        rig.clock.advance(1)
        rig.health.look()
    assert rig.health.not_ready() == ["the worker has been waiting for an answer from the broker for 40 s"]
    assert rig.health.silence() == 40


def test_suspended_machine_is_not_reported_as_a_silent_broker(caplog: pytest.LogCaptureFixture) -> None:
    rig = SteppedWorker()
    rig.step(1)
    rig.clock.advance(10_000)
    rig.health.look()  # the main loop wakes first
    rig.step(1)
    assert logged(caplog) == []


def test_stuck_main_loop_or_crashed_component_fails_liveness() -> None:
    rig = SteppedWorker()
    rig.step(1)
    rig.clock.advance(31)
    assert rig.health.not_alive() == ["the main loop has been stuck for 31 s"]
    rig.health.look()
    rig.health.listener.alive = False  # type: ignore[misc]
    assert rig.health.not_alive() == ["the listener has crashed"]


def test_stopping_worker_is_alive_and_not_ready() -> None:
    rig = SteppedWorker()
    rig.step(1)
    rig.worker.phase = "draining"
    assert rig.health.not_alive() == []
    assert rig.health.not_ready() == ["the worker is draining"]


class HangingStore(MemoryStore):
    """A broker that can hang in lease(), as if its socket had no timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def lease(self, *args: Any, **options: Any) -> Claim:
        self.go.wait()
        return super().lease(*args, **options)


@pytest.fixture
def hanging() -> Iterator[HangingStore]:
    store = HangingStore()
    yield store
    store.go.set()


def test_worker_reports_a_hanging_broker_and_recovers(
    hanging: HangingStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = QWorker(
        "hangs",
        broker=hanging,
        backend="cache+memory://",
        set_as_current=False,
        worker_stall_seconds=1,
        worker_pool="threads",
    )
    worker = Worker(app, concurrency=1)
    worker.start()

    def log_contains(text: str) -> bool:
        worker.parts.health.look()  # as in the main loop of Worker.run()
        return text in caplog.text

    try:
        hanging.go.clear()
        until(lambda: log_contains("not consuming: the worker has been waiting"))
        assert worker.parts.health.not_alive() == []
        assert "waiting for an answer" in worker.parts.health.not_ready()[0]
        hanging.go.set()
        until(lambda: log_contains("consuming again"))
        assert worker.parts.health.not_ready() == []
    finally:
        hanging.go.set()
        worker.stop()


def test_task_names_beyond_the_limit_are_counted_together() -> None:
    counters = Counters()
    counters.count(EndedRun(f"t{number}", "success", 0.01) for number in range(MAX_NAMES + 50))
    ends = counters.ends()
    assert len(ends) == MAX_NAMES + 1
    assert ends[OTHERS, "success"] == 50


def test_runtimes_are_counted_in_buckets() -> None:
    counters = Counters()
    counters.count(
        [
            EndedRun("a", "success", 0.0005),
            EndedRun("a", "success", 0.001),
            EndedRun("a", "failure", 7000.0),
            EndedRun("a", "lost"),
        ]
    )
    counts, total, seconds = counters.runtimes()
    assert (counts[0], counts[-1], total) == (2, 2, 3)
    assert seconds == pytest.approx(7000.0015)
    assert counters.ends() == {("a", "success"): 2, ("a", "failure"): 1, ("a", "lost"): 1}


class Pool:
    """A pool whose running tasks are given by the test."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, float]] = []

    def running(self) -> list[tuple[Any, float]]:
        return self.runs

    def run(self, task_id: str, since: float, **fields: Any) -> None:
        usual = {"name": "t", "id": task_id, "key": task_id, "pid": 7, "is_async": False, "time_limit": None}
        leased = SimpleNamespace(deliveries=fields.pop("deliveries", 0))
        self.runs.append((SimpleNamespace(**{**usual, **fields}, leased=leased), since))


def test_task_running_for_a_second_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, pool = FakeClock(), Pool()
    runs = LongRuns(clock, pool, 2)  # type: ignore[arg-type]
    pool.run("long", clock.monotonic(), deliveries=1)
    runs.look()
    assert "task-running" not in logged(caplog)
    clock.advance(1.5)
    pool.run("short", clock.monotonic())
    for _ in range(3):
        runs.look()
    assert logged(caplog).count("task-running") == 1
    assert caplog.records[-1].getMessage() == "Task t[long] has run for 1.5 s, in process 7 (delivery 2)"
    pool.runs.clear()
    runs.look()
    pool.run("long", clock.monotonic() - 5, deliveries=2)  # redelivered
    runs.look()
    assert logged(caplog).count("task-running") == 2


def test_hanging_task_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, pool = FakeClock(), Pool()
    runs = LongRuns(clock, pool, 2)  # type: ignore[arg-type]
    pool.run("stuck", clock.monotonic())
    named = []
    for minute in range(24 * 60 + 1):
        runs.look()
        if caplog.records:
            named.append((minute, caplog.records[-1]))
            caplog.clear()
        clock.advance(60)
    assert [minute for minute, _ in named] == [1, 10, 60, 120, 240, 480, 960]
    assert [record.levelname for _, record in named] == ["INFO"] + ["WARNING"] * 6
    advice = "in process 7; it has no time limit. To end it: qworker revoke stuck --terminate"
    assert [record.getMessage() for _, record in named[1:3]] == [
        f"Task t[stuck] has run for 10 min, {advice}",
        f"Task t[stuck] has run for 1.0 h, {advice}",
    ]
    assert {record.event for _, record in named} == {"task-running"}


@pytest.mark.parametrize(
    ("fields", "level", "advice"),
    [
        ({"time_limit": 900.0}, "INFO", "in process 7; its time limit is 900 s"),
        ({"is_async": True, "pid": os.getpid()}, "WARNING", "qworker revoke long --terminate"),
        (
            {"pid": os.getpid(), "time_limit": 900.0},
            "WARNING",
            "runs in a thread, which can only end with its",
        ),
        ({"name": "qworker.spooler.run"}, "WARNING", "it has no time limit: see --spooler-harakiri"),
    ],
)
def test_log_of_a_long_run_says_how_to_end_it(
    fields: dict[str, Any], level: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, pool = FakeClock(), Pool()
    runs = LongRuns(clock, pool, 2)  # type: ignore[arg-type]
    pool.run("long", clock.monotonic(), **fields)
    clock.advance(600)
    runs.look()
    (record,) = caplog.records
    assert record.levelname == level
    assert advice in record.getMessage()


def test_permanently_occupied_slots_are_reported_with_the_task() -> None:
    clock, pool = FakeClock(), Pool()
    runs = LongRuns(clock, pool, 2)  # type: ignore[arg-type]
    pool.run("stuck", clock.monotonic())
    clock.advance(10)
    pool.run("limited", clock.monotonic(), time_limit=60.0)
    pool.run("aside", clock.monotonic() - 99, is_async=True)
    clock.advance(29)
    assert runs.problems() == []
    clock.advance(1)
    (problem,) = runs.problems()
    assert (
        problem == "none of 2 slots has been free for 30 s: t[stuck] has run for 40 s, and has no time limit"
    )
    del pool.runs[0]
    assert runs.problems() == []


def test_probe_reports_permanently_occupied_slots() -> None:
    rig = SteppedWorker()
    pool = Pool()
    rig.health._long_runs._pool = pool  # type: ignore[assignment]
    for number in range(rig.health._long_runs._slots):
        pool.run(f"stuck{number}", rig.clock.monotonic())
    rig.step(31)
    info = rig.health.info(rig.health.not_ready())
    assert info["status"] == "ok"
    assert "t[stuck0] has run for 31 s" in info["problems"][0]
