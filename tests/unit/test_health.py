"""Health: what probes are told while a worker lives, starts, ends, and while its broker is silent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.status.counters import MAX_NAMES, OTHERS, Counters, Run
from qworker.components.status.health import LongRuns
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.lease import Claim
from qworker.worker import Worker
from tests.support.logging_events import logged
from tests.support.waiting import until


class Stepped:
    """A worker whose listener and main loop turn when the test says so."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.store.url = "memory://u:secret@h/"
        app = QWorker(
            "h", broker=self.store, backend="cache+memory://", clock=self.clock, set_as_current=False
        )
        self.worker = StepWorker(app)
        self.health = self.worker.parts.health
        self.health.listener = Turning(self.worker.parts.listener)  # type: ignore[assignment]

    def turn(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.worker.parts.listener.step(self.clock.monotonic())
        self.health.look()


class Turning:
    """The listener as if its thread ran: a StepWorker has none."""

    alive = True

    def __init__(self, listener: Any) -> None:
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_before_the_first_turn_a_worker_lives_and_is_not_ready() -> None:
    stepped = Stepped()
    assert stepped.health.not_alive() == []
    assert stepped.health.not_ready() == ["the worker is starting"]
    stepped.turn(1)
    assert stepped.health.not_ready() == []
    assert stepped.health.info([])["status"] == "ok"


def test_a_silent_broker_is_told_at_once_to_probes_and_once_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stepped = Stepped()
    stepped.turn(1)
    stepped.store.away = True
    stepped.turn(2)
    (reason,) = stepped.health.not_ready()
    assert reason == "the broker has not answered for 2 s: memory://u:********@h/ is away"
    assert stepped.health.not_alive() == []  # to start it again would not help
    assert "not-consuming" not in logged(caplog)
    for _ in range(20):
        stepped.turn(2)
    assert [r.getMessage() for r in caplog.records if vars(r).get("event") == "not-consuming"] == [
        "not consuming: the broker has not answered for 34 s: memory://u:********@h/ is away"
    ]
    stepped.store.away = False
    with caplog.at_level(logging.WARNING):
        stepped.turn(2)
    assert logged(caplog)[-2:] == ["broker-back", "consuming"]
    assert stepped.health.not_ready() == []
    assert stepped.worker.parts.listener.connection.reconnects == 1
    assert stepped.worker.parts.listener.connection.failures == 21


def test_a_listener_that_hangs_in_the_broker_is_told_from_one_whose_broker_fails() -> None:
    stepped = Stepped()
    stepped.turn(1)
    for _ in range(40):  # the main loop turns, the listener does not
        stepped.clock.advance(1)
        stepped.health.look()
    assert stepped.health.not_ready() == ["the worker has been waiting for an answer of the broker for 40 s"]
    assert stepped.health.silence() == 40


def test_a_machine_that_slept_is_no_silent_broker(caplog: pytest.LogCaptureFixture) -> None:
    stepped = Stepped()
    stepped.turn(1)
    stepped.clock.advance(10_000)
    stepped.health.look()  # the main loop is the first to wake
    stepped.turn(1)
    assert logged(caplog) == []


def test_a_stuck_main_loop_and_a_crashed_part_are_reasons_to_start_again() -> None:
    stepped = Stepped()
    stepped.turn(1)
    stepped.clock.advance(31)
    assert stepped.health.not_alive() == ["the main loop has been stuck for 31 s"]
    stepped.health.look()
    stepped.health.listener.alive = False  # type: ignore[misc]
    assert stepped.health.not_alive() == ["the listener has crashed"]


def test_a_worker_that_stops_is_alive_and_not_ready() -> None:
    stepped = Stepped()
    stepped.turn(1)
    stepped.worker.phase = "draining"
    assert stepped.health.not_alive() == []
    assert stepped.health.not_ready() == ["the worker is draining"]


class Hanging(MemoryStore):
    """A broker that can hang inside of a call, as if its socket had no timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def lease(self, *args: Any, **options: Any) -> Claim:
        self.go.wait()
        return super().lease(*args, **options)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    store = Hanging()
    yield store
    store.go.set()


def test_a_worker_in_a_store_that_hangs_says_so_and_goes_on_when_it_does(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
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

    def said(text: str) -> bool:
        worker.parts.health.look()  # the part of the main loop, which Worker.run() plays
        return text in caplog.text

    try:
        hanging.go.clear()
        until(lambda: said("not consuming: the worker has been waiting"))
        assert worker.parts.health.not_alive() == []
        assert "waiting for an answer" in worker.parts.health.not_ready()[0]
        hanging.go.set()
        until(lambda: said("consuming again"))
        assert worker.parts.health.not_ready() == []
    finally:
        hanging.go.set()
        worker.stop()


def test_names_beyond_the_limit_are_counted_together() -> None:
    counters = Counters()
    counters.count(Run(f"t{number}", "success", 0.01) for number in range(MAX_NAMES + 50))
    ends = counters.ends()
    assert len(ends) == MAX_NAMES + 1
    assert ends[OTHERS, "success"] == 50


def test_run_times_are_counted_into_their_buckets() -> None:
    counters = Counters()
    counters.count(
        [
            Run("a", "success", 0.0005),
            Run("a", "success", 0.001),
            Run("a", "failure", 7000.0),
            Run("a", "lost"),
        ]
    )
    counts, total, seconds = counters.runtimes()
    assert (counts[0], counts[-1], total) == (2, 2, 3)
    assert seconds == pytest.approx(7000.0015)
    assert counters.ends() == {("a", "success"): 2, ("a", "failure"): 1, ("a", "lost"): 1}


class Pool:
    """A pool that runs what the test says."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, float]] = []

    def running(self) -> list[tuple[Any, float]]:
        return self.runs

    def run(self, task_id: str, since: float, **fields: Any) -> None:
        usual = {"name": "t", "id": task_id, "key": task_id, "pid": 7, "is_async": False, "time_limit": None}
        leased = SimpleNamespace(deliveries=fields.pop("deliveries", 0))
        self.runs.append((SimpleNamespace(**{**usual, **fields}, leased=leased), since))


def test_a_task_that_runs_for_a_second_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
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
    pool.run("long", clock.monotonic() - 5, deliveries=2)  # it came again
    runs.look()
    assert logged(caplog).count("task-running") == 2


def test_a_task_that_hangs_is_named_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
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
    ("fields", "level", "told"),
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
def test_what_can_end_a_long_run_is_said(
    fields: dict[str, Any], level: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, pool = FakeClock(), Pool()
    runs = LongRuns(clock, pool, 2)  # type: ignore[arg-type]
    pool.run("long", clock.monotonic(), **fields)
    clock.advance(600)
    runs.look()
    (record,) = caplog.records
    assert record.levelname == level
    assert told in record.getMessage()


def test_slots_that_stay_taken_are_a_problem_that_names_the_task() -> None:
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


def test_probes_are_told_of_slots_that_stay_taken() -> None:
    stepped = Stepped()
    pool = Pool()
    stepped.health._long_runs._pool = pool  # type: ignore[assignment]
    for number in range(stepped.health._long_runs._slots):
        pool.run(f"stuck{number}", stepped.clock.monotonic())
    stepped.turn(31)
    info = stepped.health.info(stepped.health.not_ready())
    assert info["status"] == "ok"
    assert "t[stuck0] has run for 31 s" in info["problems"][0]
