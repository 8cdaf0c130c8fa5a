"""ThreadPool: runs tasks in threads of the worker (``--pool threads``; ``solo`` is one thread).

Comes from:  Mediator, which submits requests.
Goes to:     execution, on the pool's threads; requests and their outcomes to the worker.
Thread:      the pool's own threads; shared state is under one lock that is never held while calling out.

For tasks that mostly wait (network, files), and for systems that cannot fork. A thread cannot be killed: hard
and soft time limits and ``terminate`` of sync tasks require the prefork pool.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.components.pool.children import Quarantine
from qworker.components.pool.contract import OnEnded, OnRoom, OnStored, PoolSettings, Slots, TaskPool
from qworker.components.pool.event_loop import AsyncRun, EventLoop
from qworker.components.pool.preparation import Prepared, prepared_request, started_row
from qworker.components.request import Request
from qworker.errors import Terminated
from qworker.process.running_file import RunningFile
from qworker.safe_repr import safe_repr
from qworker.tasks import execution, termination
from qworker.tasks.async_execution import execute_async
from qworker.tasks.outcome import LOST, Outcome

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Interval in which suspects are looked at while there are any."""


class ThreadPool(TaskPool):
    """A pool of threads. name: its name in info()."""

    def __init__(
        self,
        app: QWorker,
        settings: PoolSettings,
        on_ended: OnEnded,
        on_stored: OnStored,
        on_room: OnRoom,
        name: str = "threads",
    ) -> None:
        super().__init__(settings, on_ended, on_stored, on_room)
        self._app = app
        self._name = name
        self._accept = frozenset(app.conf.accept_content)
        self._work: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[Request, float] = {}  # under _lock, oldest first: start time (monotonic)
        self._async_running = 0  # under _lock
        self._quarantine = Quarantine(settings.concurrency)  # under _lock
        self._looks_again = False  # under _lock
        """Whether a timer runs that looks at the quarantine."""
        self._accepting = True  # under _lock
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        self._running_file = RunningFile(settings.running_path)
        self._loop: EventLoop | None = None  # under _lock

    def start(self) -> None:
        if self._threads:
            return
        for number in range(self._settings.concurrency):
            thread = threading.Thread(target=self._run, name=f"{self._name} {number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def alive(self) -> bool:
        return True

    def _free(self) -> int:
        if not self._accepting:
            return 0
        return max(0, self._settings.concurrency - (len(self._running) - self._async_running))

    def free_slots(self) -> Slots:
        with self._lock:
            return Slots(
                self._free(), self._settings.async_concurrency - self._async_running if self._accepting else 0
            )

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        refused: list[Request] = []
        for request in requests:
            with self._lock:
                if self._accepting and request.is_suspect:
                    self._quarantine.add(request, time.monotonic())
                    continue
                limit = self._settings.async_concurrency
                if not self._accepting or (
                    self._async_running >= limit if request.is_async else self._free() <= 0
                ):
                    refused.append(request)
                    continue
                self._put(request)
        self._see_to_suspects()
        return refused

    def _put(self, request: Request) -> None:
        self._running[request] = time.monotonic()
        self._async_running += request.is_async
        request.pid = os.getpid()
        self._work.put(request)

    def _see_to_suspects(self) -> None:
        """Start the next suspect if none is on trial and a thread is free. Otherwise look again later:
        nothing else may happen before the quarantine has rested, or a trial has taken too long."""
        with self._lock:
            if not self._quarantine or not self._accepting:
                return
            now = time.monotonic()
            suspect = self._quarantine.next(self._running.__contains__, now)
            if suspect is not None and (suspect.is_async or self._free() > 0):
                self._quarantine.begin(now)
                self._put(suspect)
            if self._quarantine and not self._looks_again:
                timer = threading.Timer(LOOK_SECONDS, self._look_again)
                timer.daemon = True
                with suppress(RuntimeError):  # no more threads can be started: the next call looks
                    timer.start()
                    self._looks_again = True

    def _look_again(self) -> None:
        with self._lock:
            self._looks_again = False
        self._see_to_suspects()

    def terminate(self, request: Request, signal_name: str) -> bool:
        """See TaskPool. Only an ``async def`` task can be ended."""
        with self._lock:
            if not request.is_async or self._loop is None or request not in self._running:
                return False
            self._loop.cancel(request.key, Terminated(f"terminated by {signal_name}"))
            return True

    def recall(self) -> list[Request]:
        with self._lock:
            taken = self._quarantine.recall()
        while True:
            try:
                request = self._work.get_nowait()
            except queue.Empty:
                return taken
            if request is not None:
                self._remove(request)
                taken.append(request)

    def interrupt(self) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.cancel_all(execution.Interrupted())

    def in_flight(self) -> int:
        with self._lock:
            return len(self._running)

    def async_in_flight(self) -> int:
        with self._lock:
            return self._async_running

    def busy_beyond(self, seconds: float) -> int:
        now = time.monotonic()
        with self._lock:
            return sum(
                not request.is_async and self._left(request, now - began) > seconds
                for request, began in self._running.items()
            )

    def _left(self, request: Request, since: float) -> float:
        expected = self.expected_runtime(request.name) or 0.0
        return expected - since if since < expected else since

    def running(self) -> list[tuple[Request, float]]:
        with self._lock:
            return list(self._running.items())

    def info(self) -> dict[str, Any]:
        return {
            "implementation": self._name,
            "max-concurrency": self._settings.concurrency,
            "processes": [os.getpid()],
            "in-flight": self.in_flight(),
        }

    def quiet(self) -> None:
        with self._lock:
            self._accepting = False

    def stop(self, deadline: float) -> list[Request]:
        """See TaskPool. Busy threads cannot be ended: they are not waited for, and their outcomes are
        dropped."""
        self.quiet()
        for _ in self._threads:
            self._work.put(None)
        with self._lock:
            if self._loop is not None:
                self._loop.stop()
            cut = list(self._running)
            self._running.clear()
            self._async_running = 0
        endless = [request.name for request in cut if not request.is_async]
        if endless:
            logger.warning(
                "%d tasks continue in threads, which cannot be ended, until this process ends: %s",
                len(endless),
                ", ".join(endless[:10]),
            )
            return cut
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._app.clock.monotonic()))
        return cut

    # -- the pool's threads --

    def _run(self) -> None:
        while (request := self._work.get()) is not None:
            prepared: Prepared | Outcome
            try:
                prepared = prepared_request(self._app, self._accept, self._settings.hostname, request)
            except MemoryError as error:  # where a child would die
                prepared = execution.invalid(error)
            if isinstance(prepared, Outcome):
                self._end(request, prepared)
                continue
            if request.failing is not None:
                failing = request.failing.as_plain()
                slot = self._running_file.begin(request.tag)  # an errback may end this process
                try:
                    outcome = termination.report(self._app, prepared.task, prepared.context, *failing)
                except BaseException as error:  # noqa: BLE001 - SystemExit, …, which would end a child
                    outcome = _lost(request, error)
                self._running_file.end(slot)
                self._end(request, outcome)
                continue
            if (row := started_row(self._app, prepared)) is not None:
                self._on_stored([(request, row)])
            if request.is_async:
                with self._lock:
                    self._loop = self._loop or EventLoop()
                self._loop.start(request.key, partial(self._run_async, request, prepared))
            else:
                slot = self._running_file.begin(request.tag)
                try:
                    outcome = execution.execute(
                        self._app, prepared.task, prepared.context, prepared.body, self._leave_copy
                    )
                except BaseException as error:  # noqa: BLE001 - it would end the thread
                    outcome = _lost(request, error)
                self._running_file.end(slot)
                self._end(request, outcome)

    async def _run_async(self, request: Request, prepared: Prepared, run: AsyncRun) -> None:
        slot = self._running_file.begin(request.tag)
        try:
            outcome = await execute_async(
                self._app, *prepared, disarm=self._leave_copy, cancelled=lambda: run.cancelled
            )
        except BaseException as error:  # noqa: BLE001 - nobody else would see it
            outcome = _lost(request, error)
        self._running_file.end(slot)
        self._end(request, outcome)

    def _leave_copy(self) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a task forked: the copy would continue as a second worker

    def _remove(self, request: Request) -> bool:
        """Remove a request; return False if stop() has already removed it."""
        with self._lock:
            known = self._running.pop(request, None) is not None
            self._async_running -= known and request.is_async
        self._see_to_suspects()
        self._on_room()
        return known

    def _end(self, request: Request, outcome: Outcome) -> None:
        with self._lock:
            if not request.is_async and outcome.runtime is not None:
                self.runtimes.learn(request.name, outcome.runtime)
            self.ending += 1
        if self._remove(request):
            self._on_ended([(request, outcome)])
        with self._lock:
            self.ending -= 1


def _lost(request: Request, error: BaseException) -> Outcome:
    logger.exception("the end of task %s[%s] could not be reported", request.name, request.id)
    return Outcome(LOST, text=safe_repr(error))
