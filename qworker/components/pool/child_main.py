"""The child of the process pool: receives jobs, runs them, and reports their outcomes.

Comes from:  the zygote (or billiard's forkserver or spawn), with a socket, the token pipe and its settings.
Goes to:     ``tasks/execution.py`` for each job; the outcome back through the socket.
Thread:      the child's main thread runs sync tasks; an event loop in a second thread runs ``async def``
             tasks.

An outcome is sent at once, so a long task never delays the outcome of a short one. The child ends when its
socket closes, so a dead worker leaves no orphans.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from qworker import interrupts, signals
from qworker.components.pool.event_loop import AsyncRun, EventLoop
from qworker.components.pool.frames import (
    OUTCOME,
    RECEIVE_BYTES,
    STARTED,
    TOKEN,
    UP,
    FrameBuffer,
    Job,
    pack,
)
from qworker.components.pool.preparation import Prepared, prepared_or_ended, started_row
from qworker.errors import SoftTimeLimitExceeded, Terminated
from qworker.process.crash_points import CRASHING, crash_point
from qworker.process.memory import resident
from qworker.process.running_file import RunningFile
from qworker.tasks import execution, termination
from qworker.tasks.async_execution import execute_async
from qworker.tasks.outcome import EXPECTED, FAILURE, Outcome
from qworker.transports.lease import Leased

logger = logging.getLogger(__name__)


def main(app: Any, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> int:
    """Run the child until its socket closes; return the exit code."""
    os.setsid()  # so that a task that kills its process group kills no other processes
    jobs.settimeout(None)  # the program may have set a default timeout
    child = Child(app, jobs, tokens, orders, settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(SIGNAL, child.interrupt)
    signals.worker_process_init.send(app, index=settings["index"])
    try:
        child.run()
    except OSError as error:
        # A task closed the socket, the worker has died, or there are no more file descriptors.
        logger.debug("this process cannot continue: %s", error)
        return 1
    finally:
        signals.worker_process_shutdown.send(app, pid=os.getpid(), exitcode=0)
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


class Child:
    """The child's side of the protocol.

    - jobs: the socket for jobs and outcomes.
    - tokens, orders: the read ends of the pipes; see frames.py.
    - settings: index, hostname, max_memory (KiB, or None), running_path (or None).
    """

    def __init__(
        self, app: Any, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._socket = jobs
        self._tokens = tokens
        self._orders = orders
        self._pid = os.getpid()
        self._token = 0  # main thread: a token for a job that has not arrived yet
        self._send_lock = threading.Lock()
        self._loop: EventLoop | None = None
        self._limit = SoftLimit()
        self._alarms_are_tasks = True
        """No alarm was set when this process became ready, so any alarm was set by a task."""
        self._running_file = RunningFile(settings.get("running_path"), settings["index"])
        self._hostname = settings["hostname"]
        self._accept = frozenset(app.conf.accept_content)
        self._max_memory = settings.get("max_memory")

    def run(self) -> None:
        buffer = FrameBuffer()
        self._alarms_are_tasks = not any(signal.getitimer(signal.ITIMER_REAL))
        self._send((UP,))
        while data := self._socket.recv(RECEIVE_BYTES):
            for frame in buffer.feed(data):
                for job in frame:
                    if self._take(job[0]):
                        self._start(job)

    def _take(self, sequence: int) -> bool:
        """Take the token of job *sequence*; return False if the job was recalled."""
        while self._token < sequence:
            try:
                data = os.read(self._tokens, 8)
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError("the token pipe is closed")
            (self._token,) = TOKEN.unpack(data)
        return self._token == sequence

    def _start(self, job: Job) -> None:
        if CRASHING:
            crash_point("token taken")
        sequence, tag, queue, priority, deliveries, redelivered, text, properties, failing, before, body = job
        leased = Leased(tag, queue, priority, None, deliveries, redelivered, 0, text, properties, body)
        app = self._app
        prepared = prepared_or_ended(app, self._accept, self._hostname, None, leased, failing, before)
        if isinstance(prepared, Outcome):
            self._report(sequence, prepared)
            return
        task, context, arguments, soft, _ = prepared
        if failing is not None:
            self._report(sequence, termination.report(app, task, context, *failing))
            return
        if (row := started_row(app, prepared)) is not None:
            self._send((STARTED, sequence, row))
            if CRASHING:
                crash_point("started")
        if task.is_async:
            self._event_loop().start(sequence, partial(self._run_async, sequence, tag, prepared))
            return
        self._running_file.set(0, tag)
        if CRASHING:
            crash_point("running")
        since = time.perf_counter()
        try:
            interrupts.begin()
            if soft:
                signal.signal(SIGNAL, self.interrupt)  # an earlier task may have replaced the handler
                self._limit.begin(soft)
            outcome = execution.execute(app, task, context, arguments, self._over)
        except BaseException as error:  # noqa: BLE001 - raised by a signal just as the body began or ended
            last = error
            try:
                if self._alarms_are_tasks:
                    signal.setitimer(signal.ITIMER_REAL, 0)  # first, because alarms may repeat quickly
            except BaseException as later:  # noqa: BLE001 - the last one counts
                last = later
            self._over()
            outcome = execution.cut_short(app, task, context, last, since)
        if CRASHING:
            crash_point("ran")
        self._running_file.set(0, 0)
        self._report(sequence, outcome)
        if CRASHING:
            crash_point("reported")

    async def _run_async(self, sequence: int, tag: int, prepared: Prepared, run: AsyncRun) -> None:
        slot = self._running_file.begin(tag)
        outcome = await execute_async(
            self._app, *prepared, disarm=self._leave_copy, cancelled=lambda: run.cancelled
        )
        self._running_file.end(slot)
        self._report(sequence, outcome)

    def _event_loop(self) -> EventLoop:
        if self._loop is None:
            self._loop = EventLoop()
            self._loop.watch(self._orders, self._obey)
        return self._loop

    def _obey(self, orders: bytes) -> None:
        """Cancel the async tasks named in *orders*. On the loop's thread."""
        assert self._loop is not None
        for (sequence,) in TOKEN.iter_unpack(orders):
            self._loop.cancel(sequence, Terminated("terminated on request"))

    def _report(self, sequence: int, outcome: Outcome) -> None:
        retire = bool(self._max_memory) and _resident() > (self._max_memory or 0)
        broken = _out_of_files() if outcome.kind in (FAILURE, EXPECTED) else None
        self._send((OUTCOME, sequence, tuple(outcome), retire or broken is not None))
        # Further jobs would fail for the same reason, so this child ends, and they run in another one.
        if broken is not None:
            logger.error("%s: too many files are open in this process, so it ends", outcome.text)
            raise broken

    def _send(self, message: tuple[Any, ...]) -> None:
        data = pack(message)
        with self._send_lock:
            self._socket.sendall(data)

    def interrupt(self, signum: int, frame: object) -> None:
        """Handle SIGUSR1: the soft limit has passed, or the worker interrupts tasks to stop."""
        exceeded = self._limit.has_exceeded()
        if exceeded:
            interrupts.interrupt(SoftTimeLimitExceeded())
        elif exceeded is None:
            if self._loop is not None:
                self._loop.cancel_all(execution.Interrupted())
            interrupts.interrupt(execution.Interrupted())

    def _over(self) -> None:
        """End the interrupts of the body, so that none hits the code after it or the next task. An alarm left
        by the body fires here or never."""
        interrupts.end()
        self._leave_copy()
        self._limit.end()
        if self._alarms_are_tasks:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _leave_copy(self) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # the task forked: the copy must not continue


def _out_of_files() -> OSError | None:
    """Return the error of opening a file in this process; None if it works."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error
    return None


def _resident() -> int:
    """Return the resident memory of this process in KiB; elsewhere than on Linux, the most it has had."""
    now = resident(os.getpid())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if now is None else now // 1024


# -- SoftLimit: signals the main thread of a child when its task has reached the soft limit --
# Thread: the main one; and one that waits for the limit, started with the first limit. SIGALRM is left to the
# tasks: a process has only one alarm, and most timeout decorators replace it.

SIGNAL = signal.SIGUSR1


class SoftLimit:
    """The soft limit of the task on the main thread of a process."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._deadline: list[float] = []  # written by the main thread
        """[monotonic seconds]; [] when nothing runs. Deadlines are compared by identity."""
        self._exceeded: list[float] | None = None  # set by this thread, cleared by the main one
        self._sleeps_until = math.inf  # this thread
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, seconds: float) -> None:
        """Start the limit of a task that may run for *seconds*."""
        self._deadline = [time.monotonic() + seconds]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="soft limit", daemon=True)
            self._thread.start()
        elif self._deadline[0] < self._sleeps_until:
            self._wake.put(None)

    def end(self) -> None:
        """Cancel the limit; the task has ended."""
        self._deadline = []

    def has_exceeded(self) -> bool | None:
        """Return whether the running task has just reached its limit; None if the signal has another sender.
        For the signal handler."""
        exceeded, self._exceeded = self._exceeded, None
        return None if exceeded is None else exceeded is self._deadline

    def _run(self) -> None:
        signalled: list[float] = []
        while True:
            self._sleeps_until = math.inf  # from here on, the start of a task wakes this thread
            deadline = self._deadline
            left = math.inf if not deadline or deadline is signalled else deadline[0] - time.monotonic()
            if left <= 0:
                signalled = self._exceeded = deadline
                signal.pthread_kill(self._main, SIGNAL)
                continue
            self._sleeps_until = math.inf if left == math.inf else deadline[0]
            with suppress(Empty):
                self._wake.get(timeout=None if left == math.inf else left)
