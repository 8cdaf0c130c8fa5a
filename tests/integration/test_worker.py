"""A whole worker with its threads and processes, in this process, on the embedded broker and a real clock."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, Task, signals
from qworker.components.component import Component
from qworker.errors import (
    BrokerUnavailable,
    ConfigurationError,
    QWorkerError,
    TaskRevoked,
    Terminated,
    WorkerShutdown,
    WorkerTerminate,
)
from qworker.transports.lease import Envelope
from qworker.worker import Worker
from tests.support.logging_events import logged
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.integration,
    # The zygote is forked from the test's process, which has threads; a worker has none yet.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Env:
    """An app on a file of its own and the workers that a test starts. Tasks write into files, which children
    share."""

    def __init__(self, directory: Path, pool: str) -> None:
        self.directory = directory
        self.pool = pool
        self.workers: list[Worker] = []
        self.apps: list[QWorker] = []
        self.app = self.make_app()

    def make_app(self, **settings: Any) -> QWorker:
        """Return an app on the same file, with the tasks."""
        settings.setdefault("broker", f"sqlite:///{self.directory}/q.db")
        app = QWorker("env", set_as_current=False, **settings)
        self.apps.append(app)
        log, directory = self.directory / "log", self.directory

        def note(what: Any) -> None:
            with open(log, "a") as file:
                file.write(f"{what} {time.time()} {os.getpid()}\n")

        @app.task(name="note")
        def note_task(what: Any) -> Any:
            note(what)
            return what

        @app.task(name="fail")
        def fail(what: Any) -> None:
            note(what)
            raise ValueError(what)

        @app.task(name="again", bind=True, max_retries=2)
        def again(self: Task[..., Any], what: Any) -> str:
            note(what)
            if self.request.retries < 2:
                raise self.retry(countdown=0.05)
            return "third time lucky"

        @app.task(name="hold")
        def hold(name: str) -> str:
            """Run until a file of that name exists."""
            note(name)
            while not (directory / name).exists():
                time.sleep(0.002)
            return name

        @app.task(name="slow", rate_limit="10/s")
        def slow(what: Any) -> None:
            note(what)

        @app.task(name="once", acks_late=False)
        def once(what: Any) -> None:
            note(what)

        napping: list[float] = []

        @app.task(name="nap")
        async def nap(seconds: float) -> int:
            napping.append(seconds)
            await asyncio.sleep(seconds)
            together = len(napping)
            napping.pop()
            return together

        @app.task(name="pid")
        def pid() -> int:
            return os.getpid()

        @app.task(name="die", max_deliveries=2)
        def die() -> None:
            note("die")
            os.kill(os.getpid(), signal.SIGKILL)

        return app

    def task(self, name: str) -> Task[..., Any]:
        return self.app.tasks[name]

    def start(self, app: QWorker | None = None, **options: Any) -> Worker:
        worker = Worker(app or self.app, **{"pool": self.pool, "concurrency": 2, **options})
        self.workers.append(worker)
        worker.start()
        return worker

    def release(self, name: str) -> None:
        (self.directory / name).touch()

    def log(self) -> list[tuple[str, float, int]]:
        """Return what ran, when, and in which process, in order."""
        path = self.directory / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(what, float(at), int(pid)) for what, at, pid in (line.split() for line in lines)]

    def ran(self) -> list[str]:
        return [what for what, _, _ in self.log()]

    def queues(self) -> dict[str, int]:
        infos = self.app.broker.admin.queues()
        return {
            name: sum(getattr(info, name) for info in infos)
            for name in ("ready", "delayed", "leased", "dead")
        }

    def is_empty(self) -> bool:
        return not any(self.queues().values())


@pytest.fixture(params=["threads", "prefork"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    yield from opened(tmp_path, request.param)


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[Env]:
    yield from opened(tmp_path, "prefork")


@contextmanager
def dump_stacks_before_timeout(directory: Path) -> Iterator[None]:
    """Print where every thread of this process and of the pool's is,
    if it takes nearly all of the PATIENCE."""

    def dump() -> None:
        with open(directory / f"stacks.{os.getpid()}", "w") as file:
            faulthandler.dump_traceback(file)

    def watch(*sender: Any, **given: Any) -> None:
        # By a thread: the later dumps of faulthandler are one timer, which a forked child can neither use nor
        # stop.
        timer = threading.Timer(PATIENCE - 5, dump)
        timer.daemon = True
        timer.start()

    with open(directory / f"stacks.{os.getpid()}", "w") as ours:
        faulthandler.dump_traceback_later(PATIENCE - 5, file=ours)
        signals.worker_process_init.connect(watch)
        try:
            yield
        finally:
            signals.worker_process_init.disconnect(watch)
            faulthandler.cancel_dump_traceback_later()
    for file in directory.glob("stacks.*"):
        print(f"{file.name}:\n{file.read_text()}")


def opened(directory: Path, pool: str) -> Iterator[Env]:
    env = Env(directory, pool)
    with dump_stacks_before_timeout(directory):
        yield env
    for name in "abcdefgh":
        env.release(name)  # whatever a test left behind: a thread cannot be killed
    for worker in env.workers:
        worker.stop("cold")
    for app in env.apps:
        app.close()


def test_tasks_run_and_return_results(env: Env) -> None:
    env.start()
    results = [env.task("note").delay(n) for n in range(50)]
    assert [result.get(timeout=PATIENCE) for result in results] == list(range(50))
    until(env.is_empty)
    assert sorted(map(int, env.ran())) == list(range(50))


def test_tasks_sent_before_the_start_run(env: Env) -> None:
    results = env.task("note").apply_many([(n,) for n in range(20)])
    env.start()
    assert [result.get(timeout=PATIENCE) for result in results] == list(range(20))


def test_failure_is_raised_for_the_caller(env: Env) -> None:
    env.start()
    with pytest.raises(ValueError, match="why"):
        env.task("fail").delay("why").get(timeout=PATIENCE)
    assert env.task("note").delay(1).get(timeout=PATIENCE) == 1


def test_tasks_run_in_order_of_priority(env: Env) -> None:
    for n in range(9):
        env.task("note").apply_async((n,), priority=n % 3)
    env.start(concurrency=1)
    until(env.is_empty)
    assert env.ran() == list("258147036")


def test_eta_task_runs_on_time(env: Env) -> None:
    env.start()
    sent = time.time()
    result = env.task("note").apply_async(("later",), countdown=0.3)
    env.task("note").delay("now").get(timeout=PATIENCE)
    result.get(timeout=PATIENCE)
    assert env.ran() == ["now", "later"]
    late = env.log()[1][1] - (sent + 0.3)
    assert 0 <= late < 1


def test_retries_run_until_they_succeed(env: Env) -> None:
    env.start()
    assert env.task("again").delay("x").get(timeout=PATIENCE) == "third time lucky"
    times = [at for _, at, _ in env.log()]
    assert len(times) == 3
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(times))


def test_rate_limit_does_not_delay_other_tasks(env: Env) -> None:
    env.start()
    env.task("slow").apply_many([(f"slow{n}",) for n in range(15)])
    assert env.task("note").delay("quick").get(timeout=PATIENCE) == "quick"
    assert sum(what.startswith("slow") for what, _, _ in env.log()) < 15, "some still wait for their turn"
    until(env.is_empty)
    times = sorted(at for what, at, _ in env.log() if what.startswith("slow"))
    assert len(times) == 15
    # Between a token and the start lies the way into a process: only the whole can be timed.
    assert times[-1] - times[0] > 1.2


def test_revoked_tasks_do_not_run(env: Env) -> None:
    before = env.task("note").delay("before")
    before.revoke()
    worker = env.start(concurrency=1)
    holding = env.task("hold").delay("a")
    until(lambda: "a" in env.ran())
    waiting = env.task("note").delay("waiting")
    soon = env.task("note").apply_async(("soon",), countdown=0.2)
    waiting.revoke()
    soon.revoke()
    until(lambda: {waiting.id, soon.id} <= set(worker.parts.state.revoked))
    env.release("a")
    holding.get(timeout=PATIENCE)
    for result in (before, waiting, soon):
        with pytest.raises(TaskRevoked):
            result.get(timeout=PATIENCE)
    assert env.ran() == ["a"]
    until(env.is_empty)


def test_running_task_is_terminated_on_request(forking: Env) -> None:
    forking.start()
    result = forking.task("hold").delay("never")
    until(forking.ran)
    result.revoke(terminate=True, signal="SIGKILL")
    with pytest.raises(Terminated):
        result.get(timeout=PATIENCE)
    assert forking.task("note").delay(1).get(timeout=PATIENCE) == 1
    until(forking.is_empty)


def test_task_that_expires_in_the_worker_is_not_run(env: Env) -> None:
    env.start(concurrency=1)
    holding = env.task("hold").delay("a")
    until(env.ran)
    late = env.task("note").apply_async(("late",), expires=0.05)
    time.sleep(0.06)  # the clock is real
    env.release("a")
    holding.get(timeout=PATIENCE)
    with pytest.raises(TaskRevoked, match="expired"):
        late.get(timeout=PATIENCE)
    assert env.ran() == ["a"]


def test_early_acks(env: Env) -> None:
    env.start()
    results = [env.task("once").delay(n) for n in range(10)]
    for result in results:
        result.get(timeout=PATIENCE)
    assert sorted(env.ran()) == sorted(map(str, range(10)))
    until(env.is_empty)


def test_async_tasks_run_concurrently(env: Env) -> None:
    env.start()
    results = [env.task("nap").delay(0.3) for _ in range(20)]
    assert env.task("note").delay("beside").get(timeout=PATIENCE) == "beside"
    assert max(result.get(timeout=PATIENCE) for result in results) > 1  # in one process


def test_invalid_messages_become_dead_letters(env: Env) -> None:
    env.app.conf.update(task_unknown_delays=())
    env.app.broker.sender.push([Envelope("celery", "no json", None, b"")])
    unknown = env.app.send_task("nobody.knows")
    cut = Envelope("celery", '{"task": "note", "id": "cut"}', None, b"[[1]")
    acked = Envelope("celery", '{"task": "once", "id": "acked"}', None, b"[[1]")  # before it is read
    env.app.broker.sender.push([cut, acked])
    good = env.task("note").delay(1)
    env.start()
    assert good.get(timeout=PATIENCE) == 1
    until(lambda: env.queues() == {"ready": 0, "delayed": 0, "leased": 0, "dead": 4})
    dead = {dead.headers: dead.body for dead in env.app.broker.admin.dead()}
    assert dead.keys() >= {"no json", cut.headers, acked.headers}
    assert dead[acked.headers] == acked.body
    for result in (unknown, env.app.AsyncResult("cut"), env.app.AsyncResult("acked")):
        assert until(result.ready)
        assert result.failed()


def test_task_that_kills_its_process_becomes_a_dead_letter(forking: Env) -> None:
    worker = forking.start()
    result = forking.task("die").delay()
    until(lambda: forking.queues()["dead"] == 1)
    assert forking.ran() == ["die"] * 2
    assert result.failed()
    assert "killed by SIGKILL" in forking.app.broker.admin.dead()[0].reason
    assert until(lambda: len(worker.info()["pool"]["processes"]) == 2)


class Killing(Task[..., Any]):
    """A task whose hooks kill its process."""

    def after_return(self, *given: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("acks_late", [True, False])
def test_end_stored_before_a_hook_kills_its_process_stays(forking: Env, acks_late: bool) -> None:
    options = {"base": Killing, "acks_late": acks_late, "reject_on_worker_lost": False}

    @forking.app.task(name="done", **options)
    def done() -> int:
        return 5

    @forking.app.task(name="failed", **options)
    def failed() -> None:
        raise ValueError("why")

    forking.start()
    results = done.delay(), failed.delay()
    assert until(forking.is_empty)
    assert results[0].get(timeout=PATIENCE) == 5
    with pytest.raises(ValueError, match="why"):
        results[1].get(timeout=PATIENCE)


def test_results_in_a_separate_store(env: Env, tmp_path: Path) -> None:
    app = env.make_app(backend=f"file://{tmp_path}/results")
    (tmp_path / "results").mkdir()
    env.start(app)
    done, failed = app.tasks["note"].delay(1), app.tasks["fail"].delay("why")
    revoked = app.tasks["note"].apply_async((2,), countdown=0.1)
    revoked.revoke()
    assert done.get(timeout=PATIENCE) == 1
    with pytest.raises(ValueError, match="why"):
        failed.get(timeout=PATIENCE)
    with pytest.raises(TaskRevoked):
        revoked.get(timeout=PATIENCE)
    until(env.is_empty)


def test_two_workers_on_one_file_share_the_work(env: Env) -> None:
    env.start()
    env.start(env.make_app())
    for name in "abcdefgh":
        env.task("hold").delay(name)
    until(lambda: len(env.ran()) == 4)  # at once: it takes both
    results = [env.task("note").delay(n) for n in range(100)]
    for name in "abcdefgh":
        env.release(name)
    assert [result.get(timeout=PATIENCE) for result in results] == list(range(100))
    assert sorted(env.ran()) == sorted([*"abcdefgh", *map(str, range(100))])
    until(env.is_empty)
    assert len(env.app.broker.admin.workers()) == 2


def test_warm_stop_finishes_running_tasks_and_releases_the_rest(env: Env) -> None:
    worker = env.start(concurrency=1, prefetch_multiplier=4)
    running = env.task("hold").delay("a")
    rest = [env.task("note").delay(n) for n in range(3)]
    soon = env.task("note").apply_async((9,), countdown=0.7)
    until(lambda: env.queues()["leased"] == 5 and "a" in env.ran())
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: env.queues()["leased"] == 1)
    assert stopping.is_alive()
    env.release("a")
    stopping.join(PATIENCE)
    assert running.get(timeout=PATIENCE) == "a"
    assert env.ran() == ["a"]
    left = env.queues()
    assert (left["ready"] + left["delayed"], left["leased"]) == (4, 0)
    assert env.app.broker.admin.workers() == []
    env.start(env.make_app())
    assert [result.get(timeout=PATIENCE) for result in (*rest, soon)] == [0, 1, 2, 9]


def test_idle_worker_stops_immediately(env: Env) -> None:
    worker = env.start()
    env.task("note").delay(1).get(timeout=PATIENCE)
    began = time.monotonic()
    worker.stop()
    worker.stop()
    assert time.monotonic() - began < 10


def test_info_reports_the_worker(env: Env) -> None:
    worker = env.start(hostname="w@h", queues=["celery", "mail"])
    env.task("note").delay(1).get(timeout=PATIENCE)
    env.task("note").apply_async((2,), queue="mail").get(timeout=PATIENCE)
    info = until(lambda: (found := worker.info())["total"] == {"finished": 2} and found)
    assert (info["hostname"], info["phase"], info["queues"]) == ("w@h", "running", ["celery", "mail"])
    assert (info["pid"], info["reserved"], info["pool"]["in-flight"]) == (os.getpid(), 0, 0)


def test_default_socket_timeout_does_not_affect_the_worker(env: Env) -> None:
    """Many programs set one, against unresponsive servers; an idle worker is not one."""
    socket.setdefaulttimeout(0.1)
    try:
        worker = env.start()
        pids = {env.task("pid").delay().get(timeout=PATIENCE)}
        time.sleep(0.5)
        assert env.task("note").delay(1).get(timeout=PATIENCE) == 1
        pids.add(env.task("pid").delay().get(timeout=PATIENCE))
        assert pids <= {os.getpid(), *worker.info()["pool"].get("processes", ())}, "a process was replaced"
        assert worker.parts.pool.deaths == 0
    finally:
        socket.setdefaulttimeout(None)


def test_worker_signals_are_sent_in_order(env: Env) -> None:
    said: list[str] = []
    names = (
        "celeryd_init", "worker_init", "celeryd_after_setup", "worker_ready", "worker_shutting_down",
        "worker_shutdown",
    )  # fmt: skip
    receivers = []
    for name in names:

        def receiver(which: str = name, **given: Any) -> None:
            said.append(which)

        getattr(signals, name).connect(receiver)
        receivers.append((name, receiver))
    try:
        env.start().stop()
    finally:
        for name, receiver in receivers:
            getattr(signals, name).disconnect(receiver)
    assert said == list(names)


# -- run(), as the command line does --


def run(env: Env, meanwhile: Callable[[Worker], Any], **options: Any) -> int:
    """Run a worker here, in the main thread, with *meanwhile* beside it once it is ready; return its exit
    code."""

    def ready() -> None:
        threading.Thread(target=meanwhile, args=(worker,), daemon=True).start()

    worker = Worker(env.app, **{"pool": env.pool, "concurrency": 2, "on_ready": ready, **options})
    return worker.run()


@pytest.mark.parametrize("order", ["SIGTERM", "SIGINT", "warm"])
def test_first_signal_stops_the_worker_warmly(env: Env, order: str) -> None:
    def meanwhile(worker: Worker) -> None:
        results.append(env.task("hold").delay("a"))
        until(env.ran)
        if order == "warm":
            worker.request_stop("warm")
        else:
            os.kill(os.getpid(), getattr(signal, order))
        until(lambda: worker.phase == "draining")
        env.release("a")

    results: list[Any] = []
    before = signal.getsignal(signal.SIGTERM)
    assert run(env, meanwhile) == 0
    assert results[0].get(timeout=PATIENCE) == "a"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("orders", [["SIGTERM", "SIGTERM"], ["SIGQUIT"]])
def test_second_signal_requeues_running_tasks(forking: Env, orders: list[str]) -> None:
    def meanwhile(worker: Worker) -> None:
        forking.task("hold").delay("never")
        until(forking.ran)
        for order in orders:
            os.kill(os.getpid(), getattr(signal, order))
            until(lambda: worker.phase != "running")

    assert run(forking, meanwhile) == 3  # a task was abandoned
    assert forking.queues() == {"ready": 1, "delayed": 0, "leased": 0, "dead": 0}
    forking.app.broker.consumer.register("next@h", ["celery"], 1)
    (leased,) = forking.app.broker.consumer.lease(["celery"], 1).messages
    assert leased.deliveries == 0


@pytest.mark.parametrize(
    ("ending", "code"), [(WorkerShutdown(7), 7), (WorkerShutdown(), 0), (WorkerTerminate(8), 8)]
)
def test_receiver_can_stop_the_worker_with_an_exit_code(forking: Env, ending: SystemExit, code: int) -> None:
    """Like in Celery: WorkerShutdown finishes running tasks, WorkerTerminate requeues them."""
    held = forking.task("hold").delay("a")

    @signals.worker_ready.connect
    def ready(sender: Any, **more: Any) -> None:
        until(forking.ran)
        if isinstance(ending, WorkerShutdown):
            forking.release("a")
        raise ending

    try:
        assert Worker(forking.app, pool="prefork", concurrency=1).run() == code
    finally:
        signals.worker_ready.disconnect(ready)
    if isinstance(ending, WorkerShutdown):
        assert held.get(timeout=PATIENCE) == "a"
    else:
        assert forking.queues()["ready"] == 1


@pytest.mark.parametrize("ending", [WorkerShutdown(5), WorkerTerminate(5)])
def test_worker_shutdown_raised_in_a_thread_stops_the_worker(
    env: Env, ending: SystemExit, caplog: pytest.LogCaptureFixture
) -> None:
    def received(**more: Any) -> None:
        raise ending

    signals.task_received.connect(received)
    try:
        assert run(env, lambda worker: env.task("once").delay(1)) == 5
    finally:
        signals.task_received.disconnect(received)
    assert "worker-failed" not in logged(caplog)
    assert env.queues()["ready"] == 1


def test_tasks_are_interrupted_and_requeued_after_the_timeout(forking: Env) -> None:
    forking.app.conf.update(worker_shutdown_timeout=0.1, worker_soft_shutdown_timeout=5)

    def meanwhile(worker: Worker) -> None:
        forking.task("hold").delay("never")
        until(forking.ran)
        worker.request_stop("warm")

    assert run(forking, meanwhile) == 3, "a task was cut short"
    assert forking.queues() == {"ready": 1, "delayed": 0, "leased": 0, "dead": 0}


def test_crashed_component_stops_the_worker_with_the_reason(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    def meanwhile(worker: Worker) -> None:
        env.task("note").delay(1).get(timeout=PATIENCE)

        def broken(*given: Any, **more: Any) -> Any:
            raise RuntimeError("a bug in the mediator")

        worker.parts.mediator.step = broken  # type: ignore[method-assign]
        env.task("note").delay(2)

    with caplog.at_level(logging.ERROR):
        assert run(env, meanwhile) == 1
    assert "the mediator failed, so the worker stops: a bug in the mediator" in caplog.text
    assert env.queues()["leased"] == 0


def test_crash_of_an_embedded_worker_is_logged_at_once(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    worker = env.start()
    with caplog.at_level(logging.ERROR):
        worker.parts.schedule.step = lambda now: 1 / 0  # type: ignore[method-assign, assignment]
        worker.parts.schedule.wake()
        until(lambda: "worker-failed" in logged(caplog))
    worker.stop()
    assert logged(caplog).count("worker-failed") == 1


def test_failed_start_raises_and_leaves_no_threads(env: Env, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    app = env.make_app(broker=f"sqlite:///{tmp_path}/file/q.db")
    threads = set(threading.enumerate())
    worker = Worker(app, pool=env.pool, concurrency=1)
    with pytest.raises((ConfigurationError, BrokerUnavailable)) as caught:
        worker.run()
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, QWorkerError)
    until(lambda: not [thread for thread in set(threading.enumerate()) - threads if thread.is_alive()])


def test_extra_components_start_after_the_broker_has_answered(env: Env) -> None:
    answered: list[float] = []

    class Extra(Component):
        def start(self) -> None:
            answered.append(worker.parts.listener.connection.answered_at)

    worker = Worker(env.app, pool=env.pool, concurrency=1, extras=[lambda on_crash: Extra()])
    worker.start()
    worker.stop()
    assert len(answered) == 1
    assert answered[0] > 0


def test_failed_component_leaves_no_process(forking: Env) -> None:
    def broken(on_crash: object) -> Component:
        raise ConfigurationError("there is no such part")

    worker = Worker(forking.app, pool="prefork", concurrency=1, extras=[broken])
    with pytest.raises(ConfigurationError, match="no such part"):
        worker.run()
    assert worker._zygote is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker._zygote.pid, 0)


def test_failing_result_store_does_not_stop_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qworker.components.ending.result_writer.TRIES", 4)
    env = Env(tmp_path, "threads")
    app = env.make_app(backend="cache+memory://")
    store = app.backend.store_rows
    broken = threading.Event()
    broken.set()

    def store_rows(rows: Any) -> None:
        if broken.is_set():
            raise ZeroDivisionError("a fault")
        store(rows)

    monkeypatch.setattr(app.backend, "store_rows", store_rows)
    worker = Worker(app, concurrency=1, pool="threads")
    worker.start()
    try:
        lost = app.tasks["note"].delay("lost")
        (letter,) = until(app.broker.admin.dead)
        assert "ZeroDivisionError" in letter.reason
        broken.clear()
        assert app.tasks["note"].delay("next").get(timeout=PATIENCE) == "next"
        assert app.broker.admin.dead_retry() == 1
        assert lost.get(timeout=PATIENCE) == "lost"
    finally:
        worker.stop()
        env.app.close()
        app.close()
