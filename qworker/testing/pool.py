"""InlinePool: a TaskPool without threads or processes, controlled by a test.

Comes from:  the Mediator, or a test, which submits requests.
Goes to:     execution, in the thread that calls submit() or run(); the worker, with outcomes.
Thread:      the caller's.

Requests run inside submit(), or, with ``on_demand``, one by one when the test calls run(). end() simulates
events that a test cannot cause in its own process, such as a kill.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qworker.components.pool.contract import OnEnded, OnRoom, OnStored, PoolSettings, Slots, TaskPool
from qworker.components.pool.preparation import prepared_request, started_row
from qworker.components.request import Request
from qworker.tasks import execution, termination
from qworker.tasks.async_execution import execute_async
from qworker.tasks.outcome import TERMINATED, UNSTARTED, Outcome

if TYPE_CHECKING:
    import asyncio

    from qworker.app import QWorker


class InlinePool(TaskPool):
    """settings: see PoolSettings. on_demand: hold requests until run() is called.

    held: requests that have not run yet, in order of arrival. started: requests that a test has marked as
    running, which recall() does not return. busy_for_long: the result of busy_beyond(), set by a test.
    terminated: ``(request, signal)`` for each call of terminate().
    """

    def __init__(
        self,
        app: QWorker,
        settings: PoolSettings,
        on_ended: OnEnded,
        on_stored: OnStored,
        on_room: OnRoom,
        *,
        on_demand: bool = False,
    ) -> None:
        super().__init__(settings, on_ended, on_stored, on_room)
        self._app = app
        self._on_demand = on_demand
        self._accept = frozenset(app.conf.accept_content)
        self._accepting = True
        self.held: list[Request] = []
        self.busy_for_long = 0
        self.started: list[Request] = []
        self.terminated: list[tuple[Request, str]] = []

    # -- for tests --

    def run(self, limit: int | None = None) -> int:
        """Run up to *limit* held requests, oldest first; return how many ran."""
        count = 0
        while self.held and (limit is None or count < limit):
            self.execute(self.held[0])
            count += 1
        return count

    def end(self, request: Request, why: str, how: str = "") -> None:
        """End *request* without running it. why: LOST, TIME_LIMIT, INTERRUPTED or UNSTARTED. how: the text of
        the outcome."""
        self.ending += 1
        self._take_out(request)
        self._on_ended([(request, Outcome(why, text=how))])
        self.ending -= 1
        self._on_room()

    # -- TaskPool --

    def start(self) -> None:
        """Do nothing."""

    @property
    def alive(self) -> bool:
        return True

    def free_slots(self) -> Slots:
        return self._slots()

    def _slots(self) -> Slots:
        if not self._accepting:
            return Slots(0, 0)
        asynchronous = self.async_in_flight()
        sync = len(self.held) - asynchronous
        return Slots(
            max(0, self._settings.concurrency - sync), max(0, self._settings.async_concurrency - asynchronous)
        )

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        refused: list[Request] = []
        for request in requests:
            if self._slots()[request.is_async] < 1:
                refused.append(request)
                continue
            request.pid = os.getpid()
            self.held.append(request)
        if not self._on_demand:
            self.run()
        return refused

    def _take_out(self, request: Request) -> None:
        self.held.remove(request)
        if request in self.started:
            self.started.remove(request)

    def execute(self, request: Request) -> None:
        """Run the held *request*, and report its outcome."""
        outcome = self.outcome_of(request)
        self.ending += 1
        self._take_out(request)
        if not request.is_async and outcome.runtime is not None:
            self.runtimes.learn(request.name, outcome.runtime)
        self._on_ended([(request, outcome)])
        self.ending -= 1
        self._on_room()

    @cached_property
    def _loop(self) -> asyncio.Runner:
        """The event loop of all ``async def`` tasks."""
        import asyncio

        return asyncio.Runner()

    def outcome_of(self, request: Request) -> Outcome:
        """Run *request*; return the outcome that a child process would report."""
        prepared = prepared_request(self._app, self._accept, self._settings.hostname, request)
        if isinstance(prepared, Outcome):
            return prepared
        if request.failing is not None:
            return termination.report(self._app, prepared.task, prepared.context, *request.failing.as_plain())
        if (row := started_row(self._app, prepared)) is not None:
            self._on_stored([(request, row)])
        if request.is_async:
            return self._loop.run(execute_async(self._app, *prepared))
        return execution.execute(self._app, prepared.task, prepared.context, prepared.body)

    def terminate(self, request: Request, signal_name: str) -> bool:
        if request not in self.held:
            return False
        self.terminated.append((request, signal_name))
        self.end(request, TERMINATED, f"terminated by {signal_name}")
        return True

    def recall(self) -> list[Request]:
        taken = [request for request in self.held if request not in self.started]
        for request in taken:
            self.held.remove(request)
        return taken

    def interrupt(self) -> None:
        """End all held requests as unstarted."""
        for request in list(self.held):
            self.end(request, UNSTARTED)

    def in_flight(self) -> int:
        return len(self.held)

    def async_in_flight(self) -> int:
        return sum(request.is_async for request in self.held)

    def busy_beyond(self, seconds: float) -> int:
        return self.busy_for_long

    def running(self) -> list[tuple[Request, float]]:
        return [(request, self._app.clock.monotonic()) for request in self.started]

    def info(self) -> dict[str, Any]:
        return {
            "implementation": "inline",
            "max-concurrency": self._settings.concurrency,
            "processes": [os.getpid()],
            "in-flight": self.in_flight(),
        }

    def quiet(self) -> None:
        self._accepting = False

    def stop(self, deadline: float) -> list[Request]:
        self.quiet()
        if "_loop" in vars(self):
            self._loop.close()
            del self._loop
        cut, self.held, self.started = self.held, [], []
        return cut
