"""One suite for every TaskPool, and tests of process pools."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.pool.choice import make_zygote
from qworker.components.pool.contract import Ended, PoolSettings, TaskPool
from qworker.components.pool.process_pool import ProcessPool
from qworker.components.pool.spawner import ZygoteSpawner
from qworker.components.pool.thread_pool import ThreadPool
from qworker.components.request import Failing, Request, receive
from qworker.errors import Ignore, Reject, SoftTimeLimitExceeded
from qworker.message.exceptions import exception_to_dict
from qworker.message.protocol import TaskMessage, encode
from qworker.tasks.outcome import INTERRUPTED, LOST, TERMINATED, TIME_LIMIT, UNSTARTED, Outcome
from qworker.testing import InlinePool
from qworker.transports.lease import Leased
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.contract,
    # The zygote is forked from the test process, which has threads; a worker does not have any yet.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def make_app(directory: Path) -> QWorker:
    """Return an app with tasks. Its file is never opened."""
    app = QWorker("pools", broker=f"sqlite:///{directory}/never-opened.db", set_as_current=False)

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="fail")
    def fail(kind: str) -> None:
        raise {
            "ValueError": ValueError("fail"),
            "SystemExit": SystemExit(3),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "Ignore": Ignore(),
            "Reject": Reject("no", requeue=True),
        }[kind]

    @app.task(name="fail_as_errback")
    def fail_as_errback(request: Any, error: BaseException, traceback: str) -> None:
        fail.run("KeyboardInterrupt")

    @app.task(name="afail")
    async def afail(kind: str) -> None:
        fail.run(kind)

    @app.task(name="nap")
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @app.task(name="wait_for")
    def wait_for(path: str) -> str:
        """Run until the file *path* exists; create ``path.begun`` at the start."""
        Path(f"{path}.begun").touch()
        while not os.path.exists(path):
            time.sleep(0.002)
        return "there"

    @app.task(name="await_for")
    async def await_for(path: str) -> str:
        Path(f"{path}.begun").touch()
        while not os.path.exists(path):
            await asyncio.sleep(0.002)
        return "there"

    @app.task(name="acancel")
    async def acancel(how: str) -> None:
        """Be cancelled, but not by the worker."""
        task: Any = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if how == "itself":
            task.cancel()
        elif how == "a future":
            future = loop.create_future()
            future.cancel()
            await future
        elif how == "a library":
            loop.call_later(0.001, task.cancel)
        elif how == "everything":
            for other in asyncio.all_tasks():
                other.cancel()
        await asyncio.sleep(30)

    @app.task(name="adisturb")
    async def adisturb(how: str) -> str:
        """Disturb the event loop, which other tasks share."""
        loop = asyncio.get_running_loop()
        if how == "stop":
            loop.stop()
        elif how == "exit":
            loop.call_soon(sys.exit, 3)
        elif how == "interrupt":

            async def interrupt() -> None:
                raise KeyboardInterrupt

            await asyncio.wait([asyncio.create_task(interrupt())])
        elif how == "hook":
            raise ValueError("for the hook")
        await asyncio.sleep(0.001)
        return "went on"

    @app.task(name="stubborn")
    async def stubborn(path: str) -> str:
        """Return normally when cancelled."""
        Path(f"{path}.begun").touch()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "tidied up"

    @app.task(name="touch", bind=True)
    def touch(self: Any, path: str) -> int:
        with open(path, "ab") as file:
            file.write(b"x")
        return os.getpid()

    @app.task(name="atouch")
    async def atouch(path: str) -> int:
        return touch.run(path)

    @app.task(name="report_request", bind=True)
    def report_request(self: Any) -> list[Any]:
        request = self.request
        return [request.id, request.hostname, request.deliveries, request.delivery_info, request.retries]

    @app.task(name="tracked", track_started=True)
    def tracked() -> int:
        return 1

    @app.task(name="careful")
    def careful(seconds: float, path: str = "") -> str:
        try:
            if path:
                Path(f"{path}.begun").touch()
            time.sleep(seconds)
        except SoftTimeLimitExceeded:
            return "cleaned up"
        return "slept"

    def alarm(signum: int, frame: object) -> None:
        raise TimeoutError("an alarm of the task's own")

    @app.task(name="alarmed")
    def alarmed(seconds: float) -> str:
        """Use a time limit for a part, like a timeout decorator."""
        before = signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, 5)
        try:
            time.sleep(0.01)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        time.sleep(seconds)
        return "slept"

    @app.task(name="leave_alarm")
    def leave_alarm(first: float, repeat: float, size: int) -> str:
        """Set an alarm and do not cancel it."""
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, first, repeat)
        return "x" * size

    @app.task(name="ignore_signal")
    def ignore_signal() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @app.task(name="misbehave")
    def misbehave(how: str, path: str = "") -> Any:
        """Do something that no task should do."""
        if path:
            Path(path).touch()
        if how == "exit":
            os._exit(7)
        if how == "segfault":
            faulthandler.disable()  # pytest's would print tracebacks
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "close":
            os.closerange(3, 4096)
        if how == "kill group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if how == "kill parent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(30)
        if how == "interrupt":
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(30)
        if how == "fork":
            return os.fork() == 0 or "parent"
        if how == "grow":
            return len(bytearray(150 * 1024 * 1024))
        return None

    app.finalize()
    return app


class Rig:
    """A pool of some kind, the events it has reported, and messages for it."""

    def __init__(self, kind: str, directory: Path, **settings: Any) -> None:
        self.kind = kind
        self.directory = directory
        self.app = make_app(directory)
        self.ends: list[Ended] = []
        self.stored: list[tuple[Request, tuple[Any, ...]]] = []
        self.rooms = 0
        self.crashes: list[BaseException] = []
        self.settings = PoolSettings(
            **{"concurrency": 2, "hostname": "w@h", "async_concurrency": 5, **settings}
        )
        self.tag = 0
        callbacks = (self.ends.extend, self.stored.extend, self._room)
        self.pool: TaskPool
        if kind == "inline":
            self.pool = InlinePool(self.app, self.settings, *callbacks)
        elif kind == "threads":
            self.pool = ThreadPool(self.app, self.settings, *callbacks)
        else:
            zygote = make_zygote(self.app)
            self.pool = ProcessPool(
                self.settings, ZygoteSpawner(zygote), *callbacks, lambda n, e: self.crashes.append(e)
            )
        self.pool.start()

    def _room(self) -> None:
        self.rooms += 1

    def request(
        self, task: str, *args: Any, body: bytes | None = None, deliveries: int = 1, **fields: Any
    ) -> Request:
        self.tag += 1
        encoded = encode(TaskMessage(task=task, id=f"id-{self.tag}", args=args, **fields))
        leased = Leased(
            self.tag,
            "q",
            4,
            None,
            deliveries,
            True,
            0,
            encoded.headers,
            encoded.properties,
            body or encoded.body,
        )
        return receive(self.app, leased, 1, frozenset({"json"}))

    def submit(self, task: str, *args: Any, **fields: Any) -> Request:
        """Submit one request as soon as the pool has a free slot."""
        request = self.request(task, *args, **fields)
        until(lambda: not self.pool.submit([request]))
        return request

    def end_of(self, request: Request) -> Outcome:
        """Wait for the outcome of *request*."""
        return until(lambda: next((outcome for one, outcome in self.ends if one is request), None))

    def run(self, task: str, *args: Any, **fields: Any) -> Outcome:
        while (end := self.end_of(self.submit(task, *args, **fields))).kind == UNSTARTED:
            pass  # on a busy machine a child may be slow to start; the mediator would retry
        return end

    def result(self, outcome: Outcome) -> Any:
        """Return the result in the row of *outcome*."""
        assert outcome.row is not None, outcome
        return self.app.backend.codec.decode(outcome.row[2])["result"]

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def begun(self, name: str) -> None:
        """Wait until a task has started to wait for this file."""
        until((self.directory / f"{name}.begun").exists)

    def close(self) -> None:
        self.pool.quiet()
        self.pool.stop(time.monotonic() + 5)


Make = Callable[..., Rig]


@pytest.fixture
def rig_of(tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def make(kind: str, **settings: Any) -> Rig:
        made.append(Rig(kind, tmp_path, **settings))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
        assert rig.crashes == []


@pytest.fixture(params=["inline", "threads", "processes"])
def rig(request: pytest.FixtureRequest, rig_of: Make) -> Rig:
    return rig_of(request.param)


@pytest.fixture(params=["threads", "processes"])
def busy(request: pytest.FixtureRequest, rig_of: Make) -> Rig:
    """A pool that runs several tasks at once."""
    return rig_of(request.param)


@pytest.fixture
def processes(rig_of: Make) -> Rig:
    return rig_of("processes")


# -- every pool --


def test_task_runs_and_its_outcome_has_the_result(rig: Rig) -> None:
    end = rig.run("add", 2, 3)
    assert (end.kind, rig.result(end)) == ("success", 5)
    assert end.runtime is not None
    assert end.runtime > 0
    until(lambda: rig.pool.in_flight() == 0)


@pytest.mark.parametrize("task", ["fail", "afail"])
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("ValueError", "failure"),
        ("SystemExit", "failure"),
        ("KeyboardInterrupt", "failure"),
        ("Ignore", "ignored"),
        ("Reject", "requeued"),
    ],
)
def test_pool_continues_after_an_exception(rig: Rig, task: str, kind: str, outcome: str) -> None:
    end = rig.run(task, kind)
    assert end.kind == outcome
    if outcome == "failure":
        assert rig.result(end)["exc_type"] == kind
    assert rig.result(rig.run("add", 1, 1)) == 2


def test_async_tasks_run(rig: Rig) -> None:
    assert rig.result(rig.run("nap", 0)) == "rested"
    until(lambda: rig.pool.async_in_flight() == rig.pool.in_flight() == 0)


@pytest.mark.parametrize("how", ["itself", "a future", "a library", "everything"])
def test_async_task_not_cancelled_by_the_worker_fails(rig: Rig, how: str) -> None:
    """Otherwise it would be requeued uncounted, and delivered again for ever."""
    end = rig.run("acancel", how)
    assert end.kind == "failure"
    stored = rig.result(end)
    assert stored["exc_type"] == "CancelledError"
    assert "not by the worker" in stored["exc_message"][0]
    assert rig.result(rig.run("nap", 0)) == "rested"


def test_undecodable_body_is_an_invalid_outcome(rig: Rig) -> None:
    end = rig.run("add", body=b"[[1, 2")
    assert (end.kind, bool(end.text)) == ("invalid", True)
    assert rig.result(rig.run("add", 1, 1)) == 2


def test_task_can_access_its_request(rig: Rig) -> None:
    request = rig.submit("report_request", retries=1)
    info = {
        "exchange": "",
        "routing_key": "q",
        "priority": 4,
        "redelivered": True,
        "delivery_tag": request.tag,
    }
    assert rig.result(rig.end_of(request)) == [request.id, "w@h", 2, info, 1]


@pytest.mark.parametrize("task", ["touch", "atouch"])
def test_request_past_its_deadline_is_not_started(rig: Rig, task: str) -> None:
    late, early = rig.request(task, rig.path("late")), rig.request(task, rig.path("early"))
    now = rig.app.clock.uptime()
    late.starts_before, early.starts_before = now, now + 3600
    until(lambda: not rig.pool.submit([late]))
    assert rig.end_of(late) == Outcome(UNSTARTED)
    until(lambda: not rig.pool.submit([early]))
    assert rig.end_of(early).kind == "success"
    assert not os.path.exists(rig.path("late"))
    until(lambda: rig.pool.in_flight() == 0)


def test_failing_request_past_its_deadline_calls_no_errbacks(rig: Rig) -> None:
    late = rig.request("touch", rig.path("late"))
    late.failing = Failing(Outcome(LOST), "FAILURE", {})
    late.starts_before = rig.app.clock.uptime()
    until(lambda: not rig.pool.submit([late]))
    assert rig.end_of(late) == Outcome(UNSTARTED)


def test_started_state_is_reported_before_the_end(rig: Rig) -> None:
    rig.run("tracked")
    ((request, row),) = rig.stored
    assert request is rig.ends[-1][0]
    assert row[:2] == (request.id, "STARTED")


def test_many_requests_each_end_once(rig: Rig) -> None:
    waiting = [rig.request("add", n, 1) for n in range(300)]
    waiting += [rig.request("nap", 0) for _ in range(50)]
    total = len(waiting)
    ended: list[Ended] = []

    def feed() -> bool:
        """Submit like the mediator, including requests that a stalled child had not started."""
        nonlocal waiting
        while rig.ends:
            request, outcome = rig.ends.pop(0)
            waiting.append(request) if outcome.kind == UNSTARTED else ended.append((request, outcome))
        waiting = rig.pool.submit(waiting)
        return len(ended) == total

    until(feed)
    assert sorted(request.tag for request, _ in ended) == list(range(1, total + 1))
    assert all(outcome.kind == "success" for _, outcome in ended)
    sums = {request.tag: rig.result(outcome) for request, outcome in ended if request.name == "add"}
    assert sums == {tag: tag for tag in range(1, 301)}
    until(lambda: rig.pool.in_flight() == 0)


def test_pool_is_not_idle_while_an_end_is_passed_on(rig: Rig) -> None:
    """A worker that stops would stop its pool before a child is asked to report that end."""
    seen: list[bool] = []
    rig.pool._on_ended = lambda ends: (  # type: ignore[attr-defined]
        seen.append(bool(rig.pool.in_flight() or rig.pool.ending)),
        rig.ends.extend(ends),
    )
    rig.run("add", 2, 3)
    assert seen == [True]
    until(lambda: not (rig.pool.in_flight() or rig.pool.ending))


def test_busy_beyond_counts_long_running_tasks(rig: Rig, tmp_path: Path) -> None:
    if isinstance(rig.pool, InlinePool):
        pytest.skip("inline tasks have ended when submit() returns")
    assert rig.pool.busy_beyond(0.0) == 0
    path = str(tmp_path / "go")
    rig.submit("wait_for", path)
    until(lambda: rig.pool.busy_beyond(0.05) == 1)
    assert rig.pool.busy_beyond(100.0) == 0
    Path(path).touch()
    until(lambda: rig.pool.busy_beyond(0.0) == 0)
    assert rig.pool.latest_runtime() > 0


def test_pool_learns_task_runtimes(rig: Rig) -> None:
    assert (rig.pool.mean_runtime(), rig.pool.expected_runtime("add")) == (0.0, None)
    rig.run("careful", 0.02)
    assert rig.pool.mean_runtime() >= 0.02
    assert (rig.pool.expected_runtime("careful") or 0) >= 0.02
    assert rig.pool.expected_runtime("add") is None


def test_free_slots_are_reported(rig: Rig) -> None:
    rooms = rig.rooms
    rig.run("add", 1, 1)
    until(lambda: rig.rooms > rooms)
    assert rig.pool.free_slots().sync >= 2
    assert rig.pool.free_slots().asynchronous >= 5


def test_quiet_pool_refuses_requests_and_finishes_running_ones(rig: Rig) -> None:
    request = rig.submit("nap", 0.01)
    rig.pool.quiet()
    rig.pool.quiet()
    assert rig.pool.free_slots() == (0, 0)
    refused = [rig.request("add", 1, 1), rig.request("nap", 0)]
    assert rig.pool.submit(refused) == refused
    assert rig.result(rig.end_of(request)) == "rested"


def test_terminate_of_an_unknown_request_returns_false(rig: Rig) -> None:
    assert not rig.pool.terminate(rig.request("add", 1, 1), "SIGKILL")


def test_idle_pool_stops_immediately(rig: Rig) -> None:
    rig.run("add", 1, 1)
    rig.run("nap", 0)
    began = time.monotonic()
    assert rig.pool.stop(began + 60) == []
    assert rig.pool.stop(began + 60) == []
    assert time.monotonic() - began < 30
    assert rig.pool.submit([request := rig.request("add", 1, 1)]) == [request]


def test_start_can_be_called_twice(rig: Rig) -> None:
    rig.pool.start()
    assert rig.result(rig.run("add", 1, 1)) == 2


def test_info_reports_concurrency_and_processes(rig: Rig) -> None:
    rig.run("add", 1, 1)
    info = until(lambda: (found := rig.pool.info())["in-flight"] == 0 and found["processes"] and found)
    assert info["max-concurrency"] == 2
    assert rig.pool.alive


# -- pools that run several tasks at once --


def test_concurrency_limits_running_tasks(busy: Rig) -> None:
    first, second, third = (busy.request("wait_for", busy.path("go")) for _ in range(3))
    assert busy.pool.submit([first, second, third]) == [third]
    busy.begun("go")
    assert busy.pool.free_slots().sync == 0
    assert busy.pool.in_flight() == 2
    Path(busy.path("go")).touch()
    busy.end_of(first)
    busy.end_of(second)


def test_errback_that_raises_an_interrupt_hides_no_end_and_ends_no_thread(busy: Rig) -> None:
    for _ in range(3):  # more than there are threads
        request = busy.request("add", 1, 2, errbacks=[busy.app.tasks["fail_as_errback"].s()])
        request.failing = Failing(Outcome(LOST), "FAILURE", exception_to_dict(ValueError("lost")))
        until(lambda one=request: not busy.pool.submit([one]))
        end = busy.end_of(request)
        assert (end.kind, end.reported) == (LOST, True)
    assert busy.result(busy.run("add", 1, 2)) == 3


def test_running_lists_requests_and_start_times(busy: Rig) -> None:
    before = time.monotonic()
    requests = [busy.request(task, busy.path("go")) for task in ("await_for", "wait_for", "wait_for")]
    assert busy.pool.running() == []
    assert busy.pool.submit(requests) == []
    until(lambda: len(busy.pool.running()) == 3)
    found = busy.pool.running()
    assert {request.id for request, _ in found} == {request.id for request in requests}
    assert all(before <= since <= time.monotonic() for _, since in found)
    Path(busy.path("go")).touch()
    for request in requests:
        busy.end_of(request)
    until(lambda: busy.pool.running() == [])


def test_async_tasks_run_concurrently_with_sync_tasks(busy: Rig) -> None:
    requests = [busy.request("await_for", busy.path("go")) for _ in range(5)]
    waiting: list[Request] = requests

    def feed() -> bool:
        nonlocal waiting
        waiting = busy.pool.submit(waiting)
        return not waiting

    until(feed)
    busy.begun("go")
    assert busy.pool.async_in_flight() == 5
    assert busy.pool.free_slots().sync >= 2
    assert busy.result(busy.run("add", 1, 2)) == 3
    Path(busy.path("go")).touch()
    assert [busy.result(busy.end_of(request)) for request in requests] == ["there"] * 5


def test_recalled_requests_never_run(busy: Rig) -> None:
    for _ in range(20):
        busy.run("touch", busy.path("warm"))  # so that its runtime is known to be short
    block = [busy.submit("wait_for", busy.path(name)) for name in ("go1", "go2")]
    for name in ("go1", "go2"):
        busy.begun(name)
    behind = [busy.request("touch", busy.path("ran")) for _ in range(3)]
    taken = [request for request in behind if request not in busy.pool.submit(behind)]
    back = busy.pool.recall()
    assert all(request in taken for request in back)
    assert not any(request in block for request in back)
    for name in ("go1", "go2"):
        Path(busy.path(name)).touch()
    for request in block:
        busy.end_of(request)
    busy.run("add", 1, 1)
    assert not os.path.exists(busy.path("ran"))


def test_stop_returns_unfinished_requests(busy: Rig) -> None:
    request = busy.submit("wait_for", busy.path("never"))
    busy.begun("never")
    began = time.monotonic()
    assert busy.pool.stop(began + 60) == [request]  # it would run for ever
    assert time.monotonic() - began < 30
    Path(busy.path("never")).touch()  # a thread cannot be killed: let it go
    for thread in threading.enumerate():
        if thread.name.startswith(("threads ", "solo ")):
            thread.join(PATIENCE)
    assert [one for one, _ in busy.ends if one is request] == []


def test_interrupt_ends_async_tasks(busy: Rig) -> None:
    request = busy.submit("await_for", busy.path("never"))
    busy.begun("never")
    busy.pool.interrupt()
    end = busy.end_of(request)
    assert end.kind == "interrupted"


@pytest.mark.parametrize("how", ["stop", "exit", "interrupt"])
def test_task_that_disturbs_the_loop_does_not_end_others(busy: Rig, how: str) -> None:
    others = busy.submit("await_for", busy.path("go"))
    busy.begun("go")
    assert busy.result(busy.run("adisturb", how)) == "went on"
    Path(busy.path("go")).touch()
    assert busy.result(busy.end_of(others)) == "there"


def test_terminate_ends_one_async_task_only(busy: Rig) -> None:
    if busy.kind == "processes":
        until(lambda: len(busy.pool.info()["processes"]) == 2)
    others = [busy.submit("await_for", busy.path("go"))]
    request = busy.submit("await_for", busy.path("never"))
    others += [busy.submit("wait_for", busy.path("go2")), busy.submit("wait_for", busy.path("go3"))]
    for name in ("go", "never", "go2", "go3"):
        busy.begun(name)
    processes = busy.pool.info()["processes"]
    assert busy.pool.terminate(request, "SIGTERM")
    busy.pool.terminate(request, "SIGTERM")  # no effect the second time, or after the end
    end = busy.end_of(request)
    assert end.kind == "terminated"
    for name in ("go", "go2", "go3"):
        Path(busy.path(name)).touch()
    assert [busy.result(busy.end_of(one)) for one in others] == ["there"] * 3
    assert busy.pool.info()["processes"] == processes


def test_terminated_async_task_may_catch_the_cancellation(busy: Rig) -> None:
    request = busy.submit("stubborn", busy.path("begin"))
    busy.begun("begin")
    busy.pool.terminate(request, "SIGKILL")
    assert busy.result(busy.end_of(request)) == "tidied up"


def test_suspects_run_one_at_a_time_beside_other_tasks(busy: Rig) -> None:
    """Suspects are messages whose workers have died several times."""
    paths = [busy.path(f"suspect{number}") for number in range(3)]
    suspects = [busy.request("wait_for", path, deliveries=3) for path in paths[:2]]
    suspects.append(busy.request("await_for", paths[2], deliveries=3))
    assert busy.pool.submit(suspects) == [], "they wait in the pool, without using a slot"
    for number, path in enumerate(paths):
        busy.begun(f"suspect{number}")
        assert busy.result(busy.run("add", number, 1)) == number + 1
        assert [os.path.exists(f"{later}.begun") for later in paths[number + 1 :]] == [False] * (2 - number)
        Path(path).touch()
        assert busy.result(busy.end_of(suspects[number])) == "there"
    until(lambda: busy.pool.in_flight() == 0)


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("task", ["add", "afail"])
def test_suspects_end_in_a_pool_of_one_without_other_work(rig_of: Make, kind: str, task: str) -> None:
    """The pool rests after each, and nothing else happens meanwhile."""
    rig = rig_of(kind, concurrency=1, async_concurrency=1)
    args = (1, 2) if task == "add" else ("ValueError",)
    suspects = [rig.request(task, *args, deliveries=3) for _ in range(3)]
    assert rig.pool.submit(suspects) == []
    for suspect in suspects:
        rig.end_of(suspect)


def test_waiting_suspects_can_be_recalled(busy: Rig) -> None:
    first, second = (busy.request("wait_for", busy.path(name), deliveries=3) for name in ("go", "go2"))
    busy.pool.submit([first])
    busy.begun("go")
    busy.pool.submit([second])
    assert busy.pool.recall() == [second]
    Path(busy.path("go")).touch()
    busy.end_of(first)
    assert not os.path.exists(busy.path("go2.begun"))


# -- processes --


def test_request_in_a_frozen_process_past_its_deadline_is_not_started(rig_of: Make) -> None:
    one = rig_of("processes", concurrency=1)
    until(lambda: one.run("add", 1, 1).kind == "success")
    (pid,) = one.pool.info()["processes"]
    os.kill(pid, signal.SIGSTOP)
    request = one.request("touch", one.path("late"))
    request.starts_before = one.app.clock.uptime() + 0.2
    until(lambda: not one.pool.submit([request]))
    until(lambda: one.app.clock.uptime() > request.starts_before)
    os.kill(pid, signal.SIGCONT)
    assert one.end_of(request) == Outcome(UNSTARTED)
    assert not os.path.exists(one.path("late"))


def test_suspect_has_a_process_of_its_own(processes: Rig) -> None:
    suspect = processes.request("await_for", processes.path("go"), deliveries=3)
    processes.pool.submit([suspect])
    processes.begun("go")
    waiting = [processes.request("await_for", processes.path("go")) for _ in range(5)]
    waiting = processes.pool.submit(waiting)
    until(lambda: processes.pool.in_flight() == 6 - len(waiting))
    assert processes.pool.submit([processes.request("misbehave", "exit", deliveries=3)]) == []
    Path(processes.path("go")).touch()
    assert processes.result(processes.end_of(suspect)) == "there"
    assert suspect.pid not in {one.pid for one, _ in processes.ends if one is not suspect}


def test_interrupt_signal_from_elsewhere_counts_as_a_death(processes: Rig) -> None:
    """If it were taken for the worker's, the task would be delivered again for ever."""
    end = processes.run("misbehave", "interrupt")
    assert end.kind == LOST
    assert "the worker did not send" in end.text
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_soft_limit_is_raised_inside_the_task(processes: Rig) -> None:
    end = processes.run("careful", 30, timelimit=(None, 0.05))
    assert processes.result(end) == "cleaned up"
    end = processes.run("wait_for", processes.path("never"), timelimit=(None, 0.05))
    assert processes.result(end)["exc_type"] == "SoftTimeLimitExceeded"
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_soft_limit_does_not_affect_the_next_task(processes: Rig) -> None:
    for _ in range(5):
        processes.run("add", 1, 1, timelimit=(None, 0.05))
    assert processes.result(processes.run("careful", 0.15)) == "slept"


def test_soft_limit_works_if_the_task_uses_sigalrm(processes: Rig) -> None:
    end = processes.run("alarmed", 30.0, timelimit=(None, 0.1))
    assert processes.result(end)["exc_type"] == "SoftTimeLimitExceeded"


def test_soft_limit_works_after_a_task_ignored_its_signal(rig_of: Make) -> None:
    rig = rig_of("processes", concurrency=1)
    rig.run("ignore_signal")
    assert rig.result(rig.run("careful", 30, timelimit=(None, 0.05))) == "cleaned up"


def test_alarm_left_by_a_task_does_not_affect_the_next(rig_of: Make) -> None:
    rig = rig_of("processes", concurrency=1)
    first = rig.result(rig.run("touch", rig.path("x")))
    assert rig.result(rig.run("leave_alarm", 0.1, 0, 1)) == "x"
    assert rig.result(rig.run("careful", 0.3)) == "slept"
    assert rig.result(rig.run("touch", rig.path("x"))) == first


def test_frequent_alarms_do_not_corrupt_results(rig_of: Make) -> None:
    """They go off while the outcome is being sent."""
    rig = rig_of("processes", concurrency=1)
    first = rig.result(rig.run("touch", rig.path("x")))
    for number in range(30):
        end = rig.run("leave_alarm", 0.0005 * (number % 5 + 1), 0.0005, 3_000_000)
        result = rig.result(end)
        assert len(result) == 3_000_000 or result["exc_type"] == "TimeoutError"
        assert rig.result(rig.run("add", number, 1)) == number + 1
    assert rig.result(rig.run("touch", rig.path("x"))) == first


def test_hard_limit_kills_the_child_and_it_is_replaced(processes: Rig) -> None:
    pids = processes.pool.info()["processes"]
    began = time.monotonic()
    end = processes.run("wait_for", processes.path("never"), timelimit=(0.1, None))
    assert end.kind == TIME_LIMIT
    assert time.monotonic() - began >= 0.1
    until(lambda: len(processes.pool.info()["processes"]) == 2)
    assert set(processes.pool.info()["processes"]) != set(pids)
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_async_time_limits_cancel_the_task_only(processes: Rig) -> None:
    until(lambda: len(processes.pool.info()["processes"]) == 2)
    pids = processes.pool.info()["processes"]
    soft = processes.run("nap", 30, timelimit=(None, 0.05))
    hard = processes.run("nap", 30, timelimit=(0.05, None))
    assert processes.result(soft)["exc_type"] == "SoftTimeLimitExceeded"
    assert processes.result(hard)["exc_type"] == "TimeLimitExceeded"
    assert processes.pool.info()["processes"] == pids


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with code 7"),
        ("segfault", "killed by SIGSEGV"),
        ("kill", "killed by SIGKILL"),
    ],
)
def test_task_that_ends_its_process_is_lost(processes: Rig, how: str, words: str) -> None:
    end = processes.run("misbehave", how)
    assert end.kind == LOST
    assert words in end.text
    assert processes.result(processes.run("add", 1, 1)) == 2
    until(lambda: len(processes.pool.info()["processes"]) == 2)


def test_task_that_closes_all_files_is_lost(processes: Rig) -> None:
    end = processes.run("misbehave", "close")
    assert end.kind == LOST
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_task_that_forks_ends_once(processes: Rig) -> None:
    request = processes.submit("misbehave", "fork")
    assert processes.result(processes.end_of(request)) == "parent"
    processes.run("add", 1, 1)
    assert len([one for one, _ in processes.ends if one is request]) == 1


def test_pool_recovers_when_all_children_are_killed(processes: Rig) -> None:
    running = [processes.submit("wait_for", processes.path(f"go{n}")) for n in range(2)]
    for n in range(2):
        processes.begun(f"go{n}")
    for pid in processes.pool.info()["processes"]:
        os.kill(pid, signal.SIGKILL)
    assert [processes.end_of(request).kind for request in running] == [LOST, LOST]
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_killed_idle_child_is_replaced(processes: Rig) -> None:
    until(lambda: len(processes.pool.info()["processes"]) == 2)
    for pid in processes.pool.info()["processes"]:
        os.kill(pid, signal.SIGKILL)
    for n in range(20):
        end = processes.run("add", n, 1)
        if end.row is None:  # it was sent to a dying child
            assert end.kind in (LOST, UNSTARTED)
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_child_is_replaced_after_max_tasks_per_child(rig_of: Make) -> None:
    rig = rig_of("processes", concurrency=1, max_tasks_per_child=3)
    pids = [rig.result(rig.run("touch", rig.path("x"))) for _ in range(9)]
    assert len(set(pids)) == 3
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 3]


def test_child_over_max_memory_is_replaced(rig_of: Make) -> None:
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize() // 1024
    rig = rig_of("processes", concurrency=1, max_memory_per_child=resident + 60 * 1024)
    first = rig.result(rig.run("touch", rig.path("x")))
    assert rig.result(rig.run("touch", rig.path("x"))) == first
    held = rig.submit("misbehave", "grow")
    assert rig.result(rig.end_of(held)) == 150 * 1024 * 1024
    # glibc has returned the freed memory to the system, so it does not count.
    assert rig.result(rig.run("touch", rig.path("x"))) == first


def test_terminate_sends_the_signal(processes: Rig) -> None:
    request = processes.submit("wait_for", processes.path("never"))
    processes.begun("never")
    assert processes.pool.terminate(request, "SIGTERM")
    end = processes.end_of(request)
    assert end.kind == TERMINATED
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_tasks_in_the_child_of_a_terminated_task_are_requeued(rig_of: Make) -> None:
    rig = rig_of("processes", concurrency=1)
    others = rig.submit("await_for", rig.path("never"))
    rig.begun("never")
    request = rig.submit("wait_for", rig.path("never2"))
    rig.begun("never2")
    rig.pool.terminate(request, "SIGKILL")
    assert (rig.end_of(request).kind, rig.end_of(others).kind) == (TERMINATED, INTERRUPTED)


def test_interrupt_ends_sync_tasks(processes: Rig) -> None:
    careless = processes.submit("wait_for", processes.path("never"))
    careful = processes.submit("careful", 30, processes.path("soon"))
    processes.begun("never")
    processes.begun("soon")
    processes.pool.interrupt()
    assert processes.end_of(careless).kind == INTERRUPTED
    assert processes.result(processes.end_of(careful)) == "cleaned up"


def test_short_task_does_not_wait_behind_a_long_one(rig_of: Make) -> None:
    """Earlier runs were short, so several are sent in one frame; then one of them is long."""
    rig = rig_of("processes", concurrency=1)
    rig.run("careful", 0)
    for _ in range(100):
        rig.pool.runtimes.learn("careful", 0.0)
    long, *behind = [rig.request("careful", seconds) for seconds in (6.0, 0, 0, 0)]
    taken = len(behind) - len(rig.pool.submit([long, *behind]))
    assert taken == 3, "they should be in one frame"
    ends = [rig.end_of(request) for request in behind]
    assert [end.kind for end in ends] == [UNSTARTED] * 3  # the mediator gets them back, for another child
    assert rig.pool.in_flight() == 1, "the long one still runs"
    assert rig.result(rig.end_of(long)) == "slept"


def test_children_end_with_the_pool(processes: Rig) -> None:
    processes.submit("wait_for", processes.path("never"))
    processes.begun("never")
    pids = processes.pool.info()["processes"]
    processes.pool.stop(time.monotonic() + 5)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def zygote_of(rig: Rig) -> int:
    """Return the id of the process that forks the children."""
    pid = until(lambda: rig.pool.info()["processes"])[0]
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_task_that_kills_its_process_group_affects_no_others(processes: Rig) -> None:
    others = processes.submit("wait_for", processes.path("go"))
    processes.begun("go")
    zygote = zygote_of(processes)
    assert processes.run("misbehave", "kill group").kind == LOST
    assert zygote_of(processes) == zygote
    Path(processes.path("go")).touch()
    assert processes.result(processes.end_of(others)) == "there"


def test_each_child_has_its_own_session(processes: Rig) -> None:
    until(lambda: len(processes.pool.info()["processes"]) == 2)
    processes.run("add", 1, 1)
    until(lambda: all(os.getsid(pid) == pid for pid in processes.pool.info()["processes"]))


def test_task_that_kills_the_zygote_is_lost(processes: Rig) -> None:
    others = processes.submit("await_for", processes.path("never"))
    processes.begun("never")
    for _ in range(3):
        end = processes.run("misbehave", "kill parent")
        assert end.kind == LOST
        assert "the process that forks children" in end.text
        assert processes.result(processes.run("add", 1, 1)) == 2
    assert processes.end_of(others).kind == LOST
    until(lambda: len(processes.pool.info()["processes"]) == 2)


def test_children_end_with_the_zygote(processes: Rig) -> None:
    until(lambda: len(processes.pool.info()["processes"]) == 2)
    pids = processes.pool.info()["processes"]
    os.kill(zygote_of(processes), signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert processes.result(processes.run("add", 1, 1)) == 2


def test_pool_crashes_if_it_cannot_fork_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("processes", tmp_path)
    assert isinstance(rig.pool, ProcessPool)
    zygote = rig.pool._spawner._zygote  # type: ignore[attr-defined]
    request = rig.submit("wait_for", rig.path("never"))
    rig.begun("never")
    with caplog.at_level(logging.CRITICAL):
        os.kill(zygote.pid, signal.SIGKILL)
        until(lambda: rig.crashes)
    assert "the process that forks the pool's children has died" in str(rig.crashes[0])
    assert rig.end_of(request).kind == LOST, "it counts as a death, or it would be delivered again for ever"
    assert not rig.pool.alive
    assert rig.pool.free_slots() == (0, 0)
    rig.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_pool_threads_end_with_the_pool(rig_of: Make, kind: str) -> None:
    before = set(threading.enumerate())
    rig = rig_of(kind)
    rig.run("add", 1, 1)
    rig.run("nap", 0)
    started = set(threading.enumerate()) - before
    assert started
    rig.pool.stop(time.monotonic() + 5)
    until(lambda: not any(thread.is_alive() for thread in started))
