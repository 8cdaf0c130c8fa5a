"""Health: whether a worker is alive and consuming, and if not, why.

Comes from:  Worker, which passes its parts and calls look() from its main loop.
Goes to:     the log, if the broker is silent or a task runs for long; ``http_status.py`` and ``metrics.py``.
Thread:      look() on the main thread; all other methods on any, because they read snapshots.
"""

from __future__ import annotations

import logging
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from qworker.clock import Clock
from qworker.components.component import Component
from qworker.components.pool.contract import TaskPool
from qworker.components.receiving.listener import Listener
from qworker.components.request import Key, Request
from qworker.conf import mask_urls

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of look() in the main loop."""
STUCK_SECONDS = 30.0
"""A main loop that has not called look() for this long is stuck."""
RUNNING = "running"
NAMED_AFTER = (1.0, 60.0, 600.0, 3600.0)
"""Run times in seconds at which a task is logged; after the last one, whenever the run time has doubled."""
WARNED_AFTER = 600.0
"""From this run time on, the lines are warnings if no time limit ends the task."""
HELD_SECONDS = 30.0
"""A problem is reported if no slot was free for this long."""


class Health:
    """hostname, phase: of the worker. stall_seconds: see ``worker_stall_seconds``. long_runs, others: their
    problems are reported."""

    def __init__(
        self,
        hostname: str,
        stall_seconds: float,
        phase: Callable[[], str],
        pool: TaskPool,
        listener: Listener,
        long_runs: LongRuns,
        others: Sequence[Component] = (),
    ) -> None:
        self.hostname = hostname
        self.pool, self.listener = pool, listener
        self._long_runs = long_runs
        self._others = tuple(others)
        self._phase = phase
        self._stall_seconds = stall_seconds
        self._clock = listener.clock
        self._connection = listener.connection
        self._looked = self._clock.monotonic()  # main thread writes, as all below
        self._silent_looks = 0

    # -- main thread --

    look_seconds = LOOK_SECONDS

    def look(self) -> None:
        """Record that the main loop is alive; log when the broker stops answering, and when it is back."""
        now = self._clock.monotonic()
        if now - self._looked < LOOK_SECONDS / 2:
            return
        self._looked = now
        self._long_runs.look()
        if not self._is_silent(now):
            if self._silent_looks > 1:
                logger.warning("consuming again", extra={"event": "consuming"})
            self._silent_looks = 0
            return
        # Logged the second time, because after the machine slept, this thread may run before the others.
        self._silent_looks += 1
        if self._silent_looks == 2:
            logger.error("not consuming: %s", self._silence(now), extra={"event": "not-consuming"})

    # -- any thread --

    def _is_silent(self, now: float) -> bool:
        last = self._connection.answered_at
        return last > 0 and now - last > self._stall_seconds

    def _silence(self, now: float) -> str:
        seconds = now - self._connection.answered_at
        failing = self._connection.failing
        if failing is not None:
            return f"the broker has not answered for {seconds:.0f} s: {mask_urls(failing)}"
        return f"the worker has been waiting for an answer from the broker for {seconds:.0f} s"

    def not_alive(self) -> list[str]:
        """Return why this process should be restarted; [] if it should not."""
        reasons = []
        late = self._clock.monotonic() - self._looked
        if late > STUCK_SECONDS:
            reasons.append(f"the main loop has been stuck for {late:.0f} s")
        if not self.pool.alive:
            reasons.append("the pool has crashed")
        if self._phase() == RUNNING and self._connection.answered_at and not self.listener.alive:
            reasons.append("the listener has crashed")
        return reasons

    def not_ready(self) -> list[str]:
        """Return why no tasks are accepted; [] if they are."""
        now = self._clock.monotonic()
        reasons = self.not_alive()
        phase = self._phase()
        if phase != RUNNING:
            reasons.append(f"the worker is {phase}")
        if not self._connection.answered_at:
            reasons.append("the worker is starting")
        elif self._connection.failing is not None or self._is_silent(now):
            reasons.append(self._silence(now))
        return reasons

    def silence(self) -> float | None:
        """Return the seconds since the broker last answered; None before its first answer."""
        last = self._connection.answered_at
        return max(0.0, self._clock.monotonic() - last) if last else None

    def info(self, reasons: list[str]) -> dict[str, Any]:
        """Return the answer to a probe."""
        return {
            "status": "unavailable" if reasons else "ok",
            "reasons": reasons,
            "worker": self.hostname,
            "phase": self._phase(),
            "problems": [
                mask_urls(text)
                for problems in (self._long_runs.problems, *(part.problems for part in self._others))
                for text in problems()
            ],
        }


class LongRuns:
    """Logs tasks that run longer than a second, again at growing intervals. Otherwise a task that hangs, or
    dies with its worker, would not be in the log. slots: the number of sync tasks that run at once."""

    def __init__(self, clock: Clock, pool: TaskPool, slots: int) -> None:
        self._clock = clock
        self._pool = pool
        self._slots = slots
        self._named: dict[Key, int] = {}  # how often; main thread

    def look(self) -> None:
        """Log the long-running tasks whose next line is due."""
        now = self._clock.monotonic()
        named = {}
        for request, since in self._pool.running():
            seconds = now - since
            if seconds >= NAMED_AFTER[0]:
                times = named[request.key] = _times_named(seconds)
                if times > self._named.get(request.key, 0):
                    _name(request, seconds)
        self._named = named

    def problems(self) -> list[str]:
        """Return one sentence if the same tasks have occupied all slots for long; otherwise []."""
        now, slots = self._clock.monotonic(), self._slots
        held = sorted((run for run in self._pool.running() if not run[0].is_async), key=itemgetter(1))[:slots]
        if len(held) < slots or now - held[-1][1] < HELD_SECONDS:
            return []
        oldest, since = held[0]
        limit = "" if oldest.time_limit else ", and has no time limit"
        return [
            f"none of {slots} slots has been free for {now - held[-1][1]:.0f} s: "
            f"{oldest.name}[{oldest.id}] has run for {now - since:.0f} s{limit}"
        ]


def _times_named(seconds: float) -> int:
    """Return how often a task with this run time should have been logged."""
    last = NAMED_AFTER[-1]
    return bisect_right(NAMED_AFTER, seconds) + (int(math.log2(seconds / last)) if seconds > last else 0)


def _name(request: Request, seconds: float) -> None:
    deliveries = request.leased.deliveries
    hangs = seconds >= WARNED_AFTER and (not request.time_limit or _in_thread(request))
    logger.log(
        logging.WARNING if hangs else logging.INFO,
        "Task %s[%s] has run for %s%s%s%s",
        request.name,
        request.id,
        _length(seconds),
        f", in process {request.pid}" if request.pid else "",
        f" (delivery {deliveries + 1})" if deliveries else "",
        _prospect(request) if seconds >= NAMED_AFTER[1] else "",
        extra={"event": "task-running"},
    )


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _prospect(request: Request) -> str:
    """Describe what can end a long task."""
    if _in_thread(request):
        return "; it runs in a thread, which can only end with its worker"
    if request.time_limit:
        return f"; its time limit is {request.time_limit:g} s"
    if request.name.startswith("qworker.spooler."):  # a file, which cannot be revoked
        return "; it has no time limit: see --spooler-harakiri"
    return f"; it has no time limit. To end it: qworker revoke {request.id} --terminate"


def _in_thread(request: Request) -> bool:
    return not request.is_async and request.pid == os.getpid()
