"""The demo's tasks, each showing one capability of a worker.

Comes from:  the driver, through the broker, like any task.
Goes to:     analysis for the work; results to the driver.
Thread:      runs in the children of the worker that the driver starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

from qworker import QWorker, Task
from qworker.cli.demo.analysis import NotPython, analyse_file

app = QWorker("qworker.cli.demo", result_extended=True, result_expires=3600)

WAIT_SECONDS = 0.5
RATE_A_SECOND = 10
FAILURES_OF_THE_FLAKY_READER = 2


@app.task(name="demo.analyse", bind=True, throws=(NotPython,), max_retries=1)
def analyse(self: Task[..., Any], path: str, encoding: str | None = None) -> dict[str, Any]:
    """Count the contents of one file; retry it as Latin-1 if its declared encoding is wrong."""
    started = time.time()
    try:
        found = analyse_file(path, encoding)
    except (UnicodeError, LookupError) as error:
        raise self.retry(exc=error, kwargs={"encoding": "latin-1"}, countdown=0.2) from error
    return {**found, **_run(self, started)}


@app.task(name="demo.read_flaky", bind=True, autoretry_for=(OSError,), max_retries=5, default_retry_delay=0.3)
def read_flaky(self: Task[..., Any], path: str) -> dict[str, Any]:
    """Read a file from a simulated network disk that fails the first times."""
    started = time.time()
    if self.request.retries < FAILURES_OF_THE_FLAKY_READER:
        raise OSError(f"the disk is tired (attempt {self.request.retries + 1})")
    return {"size": len(Path(path).read_bytes()), **_run(self, started)}


@app.task(name="demo.digest", bind=True)
async def digest(self: Task[..., Any], number: int) -> dict[str, Any]:
    """Wait for something slow, such as a network, then hash and compress; hundreds of these wait at once."""
    started = time.time()
    await asyncio.sleep(WAIT_SECONDS)
    block = hashlib.sha256(str(number).encode()).digest() * 64
    return {
        "digest": hashlib.sha256(block).hexdigest(),
        "size": len(zlib.compress(block)),
        **_run(self, started),
    }


@app.task(name="demo.appointment", bind=True)
def appointment(self: Task[..., Any], due: float) -> dict[str, Any]:
    """Do nothing at a given time; *due* is that time in epoch seconds."""
    started = time.time()
    return {"late": started - due, **_run(self, started)}


@app.task(name="demo.notify", bind=True, rate_limit=f"{RATE_A_SECOND}/s")
def notify(self: Task[..., Any], number: int) -> dict[str, Any]:
    """Call a service with a limit of calls per second."""
    return {"number": number, **_run(self, time.time())}


@app.task(name="demo.die_once", bind=True)
def die_once(self: Task[..., Any], marker: str) -> dict[str, Any]:
    """Kill its own process the first time; the worker must notice and run it again."""
    started = time.time()
    try:
        with Path(marker).open("x") as note:
            note.write(str(os.getpid()))
    except FileExistsError:
        killed = int(Path(marker).read_text())
        return {"killed": killed, "killed_at": Path(marker).stat().st_mtime, **_run(self, started)}
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _run(task: Task[..., Any], started: float) -> dict[str, Any]:
    """Return where and when this run took place, for the report's timeline."""
    return {"pid": os.getpid(), "started": started, "ended": time.time(), "retries": task.request.retries}
