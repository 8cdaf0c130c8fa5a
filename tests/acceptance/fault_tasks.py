"""The tasks of the fault tests: they work, wait, fail and misbehave, and record their runs in the ledger.

Comes from:  workers that harness.py starts with ``-A tests.acceptance.fault_tasks:app``.
Goes to:     ledger.py.

Settings come from the environment, set by each test.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from qworker import QWorker, Reject, SoftTimeLimitExceeded, group, signals
from tests.acceptance.ledger import run

app = QWorker("faults")


@app.task(name="work", bind=True)
def work(self: Any, number: int = 0, seconds: float = 0.0) -> int:
    """Sleep, and return the number."""
    with run(self):
        if seconds:
            time.sleep(seconds)
    return number


@app.task(name="gather", bind=True)
def gather(self: Any, values: list[Any]) -> list[Any]:
    """The body of a join."""
    with run(self):
        pass
    return values


@app.task(name="spread", bind=True)
def spread(self: Any, number: int = 0, size: int = 3) -> Any:
    """Be replaced by several calls of work(); returns the list of their results."""
    with run(self):
        pass
    return self.replace(group(work.s(number + n) for n in range(size)))


@app.task(name="widen", bind=True)
def widen(self: Any, number: int) -> int:
    """Add a call of work() to the chord."""
    with run(self):
        self.add_to_chord(work.s(number + 1))
    return number


@app.task(name="close", bind=True)
def close(self: Any, values: Any = None, **named: Any) -> Any:
    """The body of a join, or a node of a graph; records the message it runs for in the file ``bodies``."""
    with open("bodies", "a") as file:
        file.write(f"{self.request.id} {self.request.delivery_info['delivery_tag']}\n")
    return named or values


@app.task(name="periodic", bind=True)
def periodic(self: Any) -> None:
    """Records in the file ``periodic``: the entry and due time that it runs for, the message, and the
    delay in seconds."""
    request = self.request
    name, due, tag = (
        request.periodic_task_name,
        request.periodic_task_due,
        request.delivery_info["delivery_tag"],
    )
    late = time.time() - datetime.fromisoformat(due).timestamp()
    with open("periodic", "a") as file:
        file.write(f"{name} {due} {request.id} {tag} {late:.6f}\n")


@app.task(name="work_async", bind=True)
async def work_async(self: Any, number: int = 0, seconds: float = 0.0) -> int:
    with run(self):
        await asyncio.sleep(seconds)
    return number


@app.task(name="once", bind=True, acks_late=False)
def once(self: Any, number: int = 0, seconds: float = 0.0) -> int:
    """May be lost, but never runs twice."""
    with run(self):
        if seconds:
            time.sleep(seconds)
    return number


@app.task(name="tracked", bind=True, track_started=True)
def tracked(self: Any, number: int = 0, seconds: float = 0.0) -> int:
    with run(self):
        time.sleep(seconds)
    return number


@app.task(name="until_file", bind=True)
def until_file(self: Any, path: str) -> str:
    """Run until the file exists."""
    with run(self):
        while not os.path.exists(path):
            time.sleep(0.005)
    return path


@app.task(name="end_with_file", bind=True, reject_on_worker_lost=False)
def end_with_file(self: Any, path: str, how: str) -> None:
    """Run until the file exists, then raise, die, replace or retry."""
    with run(self):
        while not os.path.exists(path):
            time.sleep(0.005)
    if how == "raise":
        raise KeyError(path)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "replace":
        self.replace(close.si(how))
    if not self.request.retries:
        raise self.retry(countdown=0.1)


@app.task(name="until_file_async", bind=True)
async def until_file_async(self: Any, path: str) -> str:
    with run(self):
        while not os.path.exists(path):
            await asyncio.sleep(0.005)
    return path


@app.task(name="flaky", bind=True, max_retries=50)
def flaky(self: Any, times: int, countdown: float = 0.01) -> int:
    """Fail *times* times, then succeed."""
    with run(self):
        if self.request.retries < times:
            raise self.retry(exc=ConnectionError("the service is away"), countdown=countdown)
    return int(self.request.retries)


@app.task(name="back_once", bind=True)
def back_once(self: Any) -> str:
    """Be requeued until the message is redelivered: the example of Celery's guide."""
    with run(self):
        if not self.request.delivery_info["redelivered"]:
            raise Reject("no reason", requeue=True)
    return "received two times"


@app.task(name="back_always", bind=True)
def back_always(self: Any) -> None:
    with run(self):
        raise Reject("not mine", requeue=True)


@app.task(name="die_once", bind=True)
def die_once(self: Any, number: int = 0) -> int:
    """Kill the process at the first delivery only."""
    with run(self):
        if self.request.deliveries == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return number


@app.task(name="fail_with_values")
def fail_with_values() -> None:
    """Raise an error with arguments that JSON has only in kombu's dialect."""
    raise LookupError(uuid.UUID(int=7), datetime(2030, 1, 2, 3, tzinfo=UTC), Decimal("1.5"))


@app.task(name="errback_once")
def errback_once(request: Any, error: BaseException, traceback: str, path: str, how: str) -> None:
    """Write down the error; the first time, then kill the process or outlast the time limit."""
    with open(path, "a") as file:
        first = file.tell() == 0
        file.write(f"{error!r}\n")
    if first and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if first:
        time.sleep(60)


@app.task(name="errback_always")
def errback_always(request: Any, error: BaseException, traceback: str, path: str) -> None:
    """Write down the error, and kill the process."""
    with open(path, "a") as file:
        file.write(f"{error!r}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="send_and_die", bind=True)
def send_and_die(self: Any, count: int) -> int:
    """Send tasks, and kill the process at the first delivery."""
    with run(self):
        for number in range(count):
            work.delay(number)
        if self.request.deliveries == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return count


@app.task(name="leave_grandchild", bind=True)
def leave_grandchild(self: Any) -> None:
    """Start a process that inherits every file, and die at the first delivery."""
    with run(self):
        sleeper = subprocess.Popen(["sleep", "600"], close_fds=False)
        with open("grandchildren", "a") as file:
            file.write(f"{sleeper.pid}\n")
        if self.request.deliveries == 1:
            os._exit(1)


@app.task(name="soft_caught", bind=True, soft_time_limit=0.3)
def soft_caught(self: Any) -> str:
    with run(self):
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            return "caught"
    return "slept"


@app.task(name="soft_missed", bind=True, soft_time_limit=0.3)
def soft_missed(self: Any) -> None:
    with run(self):
        time.sleep(30)


# -- misbehaviour --


def _segfault() -> None:
    ctypes.string_at(0)


def _close_files() -> None:
    os.closerange(3, 4096)


def _fork() -> int:
    """Both processes return from here, but only one of them is the pool's child."""
    return os.fork()


def _too_much_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    try:
        bytearray(2 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _raise(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


class SpitefulError(Exception):
    """An exception whose own methods all fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class ArgumentsError(Exception):
    """An exception that cannot be recreated from its args."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__()


def _kill_worker() -> None:
    """Kill the worker's main process, the topmost one with the same command line."""

    def command(pid: int) -> bytes:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()

    def parent(pid: int) -> int:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    pid = os.getpid()
    while command(parent(pid)) == command(os.getpid()):
        pid = parent(pid)
    os.kill(pid, signal.SIGKILL)
    time.sleep(30)


HABITS: dict[str, Callable[[], Any]] = {
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "segfault": _segfault,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "close files": _close_files,
    "fork": _fork,
    "address space": _too_much_address_space,
    "SystemExit": _raise(SystemExit("out")),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "MemoryError": _raise(MemoryError()),
    "GeneratorExit": _raise(GeneratorExit()),
    "CancelledError": _raise(asyncio.CancelledError()),
    "RecursionError": lambda: HABITS["RecursionError"](),
    "spiteful": _raise(SpitefulError()),
    "arguments": _raise(ArgumentsError(1, 2)),
    "lambda": lambda: lambda: None,
    "object": object,
    "huge": lambda: "x" * (20 << 20),
    "kill parent": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1))[1],
    "kill worker": _kill_worker,
    "kill group": lambda: os.killpg(os.getpgrp(), signal.SIGKILL),
    "close stdout": lambda: os.closerange(1, 3),
    "print": lambda: print("x" * 100_000, flush=True),
}


@app.task(name="misbehave", bind=True)
def misbehave(self: Any, habit: str) -> Any:
    with run(self):
        return HABITS[habit]()


@app.task(name="misbehave_async", bind=True)
async def misbehave_async(self: Any, habit: str) -> Any:
    with run(self):
        return HABITS[habit]()


@app.task(name="cancel_itself", bind=True)
async def cancel_itself(self: Any, how: str) -> None:
    """Be cancelled by something other than the worker."""
    with run(self):
        task: Any = asyncio.current_task()
        if how == "itself":
            task.cancel()
        elif how == "library":
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        else:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        await asyncio.sleep(30)


@app.task(name="deaf_async", bind=True)
async def deaf_async(self: Any) -> None:
    """Never let itself be cancelled."""
    with run(self):
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)


@app.task(name="deaf", bind=True)
def deaf(self: Any, how: str) -> None:
    """Only end when killed: ignore signals, or block in C with the GIL held."""
    with run(self):
        if how == "ignore":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(0.05)
        else:
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):  # a PyDLL call keeps the GIL, so no signal handler runs
                ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@app.task(name="hog", bind=True)
def hog(self: Any, megabytes: int) -> int:
    """Allocate memory and keep it."""
    with run(self):
        _KEPT.append(bytearray(os.urandom(1) * (megabytes << 20)))
    return os.getpid()


_KEPT: list[bytearray] = []


@app.task(name="swallow", bind=True)
def swallow(self: Any, text: str) -> int:
    with run(self):
        return len(text)


@app.task(name="leak_files", bind=True)
def leak_files(self: Any, count: int) -> int:
    with run(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        _LEAKED.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
    return count


_LEAKED: list[int] = []


# -- children that fail at start --


@signals.worker_process_init.connect
def _fail_at_start(**_: Any) -> None:
    how = os.environ.get("FAIL_AT_BIRTH")
    if how == "raise":
        raise RuntimeError("this process was not born to work")
    if how == "exit":
        os._exit(7)
