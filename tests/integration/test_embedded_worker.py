"""Embedded workers: the test process is the program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, signals
from qworker.components.shutdown import SIGNALS
from qworker.errors import BrokerUnavailable, ConfigurationError, QWorkerError
from qworker.testing import MemoryStore
from qworker.transports.lease import Leased
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration


class Broker(MemoryStore):
    """A broker in memory that can be unavailable, or fail."""

    away = broken = False

    def register(self, hostname: str, queues: tuple[str, ...], concurrency: int) -> int:
        if self.away:
            raise BrokerUnavailable("it is away")
        return super().register(hostname, queues, concurrency)

    def lease(self, *limits: Any) -> list[Leased]:
        if self.broken:
            raise RuntimeError("it is broken")
        return super().lease(*limits)


class Program:
    """An app with a task that returns where it runs, and a task that runs until released."""

    def __init__(self, name: str = "program") -> None:
        self.broker = Broker()
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()
        self.app = QWorker(name, broker=self.broker, backend="cache+memory://", set_as_current=False)
        self.where = self.app.task(name="where")(lambda: (os.getpid(), threading.current_thread().name))
        self.hold = self.app.task(name="hold")(self._hold)

    def _hold(self) -> str:
        self.begun.release()
        assert self.let_go.wait(PATIENCE)
        return "held"

    def runs_tasks(self) -> bool:
        return self.where.delay().get(timeout=PATIENCE)[0] == os.getpid()  # type: ignore[no-any-return]


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.let_go.set()


def watchers() -> list[threading.Thread]:
    """Return the threads of workers in this process."""
    return [thread for thread in threading.enumerate() if thread.name in ("worker watch", "listener")]


def test_tasks_run_in_threads_of_the_program(program: Program) -> None:
    assert program.app.conf.worker_pool == "prefork"  # for separate worker programs
    with program.app.Worker(concurrency=2, queues=["celery", "mail"]) as worker:
        assert worker.running
        process, thread = program.where.apply_async(queue="mail").get(timeout=PATIENCE)
        assert process == os.getpid()
        assert thread.startswith("threads ")
    assert not worker.running
    assert worker.error is None
    until(lambda: not watchers())


def test_worker_pool_setting_is_used_if_it_is_in_process(program: Program) -> None:
    program.app.conf.worker_pool = "solo"
    with program.app.Worker(concurrency=4):
        assert program.where.delay().get(timeout=PATIENCE)[1] == "solo 0"


def test_leaving_the_block_drains_running_tasks(program: Program) -> None:
    def let_go(*sender: Any, how: str, **given: Any) -> None:
        assert how == "draining"
        program.let_go.set()

    with program.app.Worker(concurrency=1):
        running = program.hold.delay()
        assert program.begun.acquire(timeout=PATIENCE)
        program.where.delay()
        until(lambda: program.broker.admin.queues()[0].leased == 2)
        signals.worker_shutting_down.connect(let_go, weak=False)
    signals.worker_shutting_down.disconnect(let_go)
    assert running.get(timeout=PATIENCE) == "held"
    (left,) = program.broker.admin.queues()
    assert (left.ready, left.leased) == (1, 0)


def test_exception_in_the_block_stops_the_worker(program: Program) -> None:
    worker = program.app.Worker()

    def block() -> None:
        with worker:
            assert program.runs_tasks()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert not worker.running
    until(lambda: not watchers())


def test_start_and_stop_can_be_repeated(program: Program) -> None:
    worker = program.app.Worker(concurrency=1)
    worker.stop()
    for _ in range(2):
        worker.start()
        worker.start()
        assert program.runs_tasks()
        worker.stop()
        worker.stop()
        assert not worker.running
    until(lambda: not watchers())


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"concurrency": -1}, r"worker_concurrency must be at least 1, but is -1 \(Worker"),
        ({"pool": "gevent"}, "worker_pool must be one of prefork, threads, solo"),
        ({"hostname": "a b"}, "is not a node name"),
    ],
)
def test_invalid_options_raise_at_start(program: Program, options: Any, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        program.app.Worker(**options).start()
    with program.app.Worker():
        assert program.runs_tasks()


def test_error_at_start_is_raised(program: Program) -> None:
    program.app.conf.broker_connection_retry_on_startup = False
    program.broker.away = True
    worker = program.app.Worker()
    with pytest.raises(BrokerUnavailable, match="it is away"):
        worker.start()
    assert not worker.running
    until(lambda: not watchers())
    worker.stop()
    program.broker.away = False
    with worker:
        assert program.runs_tasks()


def test_second_worker_of_an_app_is_refused(program: Program) -> None:
    with program.app.Worker():
        with pytest.raises(QWorkerError, match="already has a worker in this program"):
            program.app.Worker().start()
        assert program.runs_tasks()


def test_several_apps_can_have_a_worker_each(program: Program) -> None:
    other = Program("other")
    with program.app.Worker(), other.app.Worker():
        assert program.runs_tasks()
        assert other.runs_tasks()


def test_signal_handlers_are_not_changed(program: Program) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with program.app.Worker():
        assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("own", "raised", "says"),
    [(None, QWorkerError, "listener failed: RuntimeError"), (KeyError("own"), KeyError, "own")],
    ids=["none", "an error of its own"],
)
def test_failed_worker_stops_and_the_block_raises(
    program: Program, own: Exception | None, raised: type[Exception], says: str
) -> None:
    def block() -> None:
        with program.app.Worker() as worker:
            assert program.runs_tasks()
            program.broker.broken = True
            program.where.delay()
            until(lambda: worker.error)
            until(lambda: not watchers())  # it has stopped by itself
            assert not worker.running
            if own is not None:
                raise own

    with pytest.raises(raised, match=says):
        block()


def test_stop_in_a_signal_receiver_does_not_deadlock(program: Program) -> None:
    worker = program.app.Worker()

    def stop(*sender: Any, **given: Any) -> None:
        worker.stop()

    signals.worker_ready.connect(stop)
    signals.worker_shutdown.connect(stop)
    worker.start()
    until(lambda: not watchers())
    assert not worker.running


def test_keyboard_interrupt_during_stop_stops_at_once(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.app.conf.worker_shutdown_timeout = 5

    def interrupt(*sender: Any, **given: Any) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    worker = program.app.Worker(concurrency=1)
    worker.start()
    program.hold.delay()
    assert program.begun.acquire(timeout=PATIENCE)
    signals.worker_shutting_down.connect(interrupt, weak=False)
    with pytest.raises(KeyboardInterrupt):
        worker.stop()  # otherwise it would wait for the task
    signals.worker_shutting_down.disconnect(interrupt)
    until(lambda: not watchers())
    assert "stopping at once: 1 running tasks are interrupted" in caplog.messages
    assert program.broker.messages == 1, "the task's message is requeued"


@pytest.mark.parametrize("thread", ["another", "ours"])
def test_prefork_is_refused_with_other_threads(program: Program, thread: str) -> None:
    worker = program.app.Worker(pool="prefork")
    if thread == "ours":

        async def lifespan() -> None:
            async with worker:
                pass

        with pytest.raises(ConfigurationError, match="this is not its main thread"):
            asyncio.run(lifespan())
        return
    other = threading.Thread(target=program.let_go.wait, name="of the program")
    other.start()
    with pytest.raises(ConfigurationError, match=r"other threads \(.*of the program.*\).*use pool='threads'"):
        worker.start()
    program.let_go.set()
    other.join()


def test_worker_as_async_context_manager(program: Program) -> None:
    async def serve() -> None:
        async with program.app.Worker(concurrency=1) as worker:
            assert worker.running
            assert await asyncio.to_thread(program.runs_tasks)
        assert not worker.running

    asyncio.run(serve())
    until(lambda: not watchers())


def test_cancelling_the_start_leaves_no_worker(program: Program) -> None:
    program.broker.away = True

    async def serve() -> None:
        async with program.app.Worker():
            raise AssertionError("the worker should not start")

    async def impatient() -> None:
        serving = asyncio.create_task(serve())
        await asyncio.to_thread(until, watchers)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(impatient())
    until(lambda: not watchers())


SHOP = """
import os
from qworker import QWorker

app = QWorker("shop", broker="sqlite:///q.db")

@app.task
def process():
    return os.getpid()
"""


def run(directory: Path, program: str) -> list[str]:
    """Run *program* with the app of SHOP; return what it prints."""
    (directory / "shop.py").write_text(SHOP)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            "import os, sys\nfrom shop import *\n" + program,
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_prefork_in_a_program_without_threads(tmp_path: Path, method: str) -> None:
    program = f"""
with app.Worker(concurrency=1, pool="prefork", start_method="{method}"):
    print(process.delay().get(timeout=20), os.getpid())
"""
    task, ours = run(tmp_path, program)
    assert task != ours


def test_forked_copy_has_no_worker_and_stops_none(tmp_path: Path) -> None:
    """gunicorn's master process forks, for example."""
    program = """
with app.Worker(concurrency=1) as worker:
    copy = os.fork()
    if not copy:
        sys.exit(7 if worker.running else 0)  # through the end of the block
    print(os.waitpid(copy, 0)[1], worker.running, process.delay().get(timeout=20) == os.getpid())
"""
    assert run(tmp_path, program) == ["0", "True", "True"]


def test_worker_created_before_a_fork_can_start_after_it(tmp_path: Path) -> None:
    program = """
worker = app.Worker(concurrency=1)
with worker:
    pass
copy = os.fork()
if copy:
    os.waitpid(copy, 0)
else:
    with worker:
        print(process.delay().get(timeout=20) == os.getpid())
"""
    assert run(tmp_path, program) == ["True"]
