"""The jobs of the spooler's fault tests: they work, wait, fail and misbehave, and record their runs in the
ledger. And tasks for the same worker.

Comes from:  workers that spool_site.py starts with ``-A tests.acceptance.spool_jobs:app``.
Goes to:     ledger.py. The pair ``id`` is a job's id; the pair ``do`` says what it does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from qworker import QWorker
from qworker.spooler import uwsgi_api
from tests.acceptance import ledger
from tests.acceptance.ledger import ENDED, STARTED, run

app = QWorker("spooled")


@app.task(name="work", bind=True)
def work(self: Any, number: int = 0, seconds: float = 0.0) -> int:
    """Sleep, and return the number."""
    with run(self):
        if seconds:
            time.sleep(seconds)
    return number


@app.task(name="until_file", bind=True)
def until_file(self: Any, path: str) -> None:
    """Wait until *path* exists."""
    with run(self):
        wait_for(path)


@app.task(name="leave_a_child", bind=True)
def leave_a_child(self: Any, path: str) -> None:
    """Fork a process that lives until *path* exists, and wait for the same."""
    with run(self):
        fork(path)
        wait_for(path)


def to_task(env: dict[Any, Any]) -> Any:
    """A bridge rule: jobs with a number become tasks, all others run here."""
    return work.s(int(env[b"number"])) if b"number" in env else None


def wait_for(path: str | bytes) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def fork(path: str | bytes) -> None:
    """Leave a process behind that lives until *path* exists."""
    if os.fork() == 0:
        try:
            wait_for(path)
        finally:
            os._exit(0)


def kill_itself(env: dict[Any, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(env: dict[Any, Any]) -> None:
    ctypes.string_at(0)


def leave(env: dict[Any, Any]) -> None:
    os._exit(0)


def exit_code(env: dict[Any, Any]) -> None:
    sys.exit(3)


def hang(env: dict[Any, Any]) -> None:
    while True:
        time.sleep(0.01)


def wait(env: dict[Any, Any]) -> None:
    wait_for(env[b"file"])


def leave_child(env: dict[Any, Any]) -> None:
    fork(env[b"file"])


def leave_child_and_die(env: dict[Any, Any]) -> None:
    """The first time only. The process it leaves behind lives on."""
    if env[b"file"] and not os.path.exists(env[b"file"] + b".begun"):
        os.close(os.open(env[b"file"] + b".begun", os.O_CREAT, 0o600))
        fork(env[b"file"])
        os.kill(os.getpid(), signal.SIGKILL)


def come_back_twice(env: dict[Any, Any]) -> None:
    """Return in two processes, in the forked copy with an error if requested; records the exit code of the
    copy."""
    child = os.fork()
    if child == 0:
        if env[b"how"] == b"exit":
            sys.exit(7)
        if env[b"how"] == b"raise":
            fail(env)
        raise Return
    _, status = os.waitpid(child, 0)
    ledger.write(ENDED, f"copy-ended-with-{os.waitstatus_to_exitcode(status)}", 0, 0)


class Return(Exception):
    """Ends the job without an end record."""


def first_time(env: dict[Any, Any]) -> bool:
    """Whether the file of the job did not exist yet; creates it."""
    try:
        os.close(os.open(env[b"file"], os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def fail_once(env: dict[Any, Any]) -> None:
    if first_time(env):
        fail(env)


def kill_once(env: dict[Any, Any]) -> None:
    if first_time(env):
        kill_itself(env)


def fail(env: dict[Any, Any]) -> None:
    raise ValueError("as asked for")


def sleep(env: dict[Any, Any]) -> None:
    time.sleep(float(env[b"seconds"]))


def nothing(env: dict[Any, Any]) -> None:
    pass


DOES: dict[bytes, Callable[[dict[Any, Any]], None]] = {
    b"": nothing,
    b"kill": kill_itself,
    b"segfault": segfault,
    b"leave": leave,
    b"exit": exit_code,
    b"hang": hang,
    b"wait": wait,
    b"leave a child": leave_child,
    b"leave a child and die": leave_child_and_die,
    b"come back twice": come_back_twice,
    b"fail": fail,
    b"fail once": fail_once,
    b"kill once": kill_once,
    b"sleep": sleep,
}


def spooler(env: dict[Any, Any]) -> object:
    id = env.get(b"id", b"?").decode()
    ledger.write(STARTED, id, 0, 0)
    try:
        DOES[env.get(b"do", b"")](env)
    except Return:
        return uwsgi_api.SPOOL_OK
    ledger.write(ENDED, id, 0, 0)
    return eval(env.get(b"return", b"-2"))


uwsgi_api.spooler = spooler
