"""TaskPool: what a pool must do for the worker. One contract suite holds for all pools.

Comes from:  Mediator (free_slots, free_slots_for, submit), Worker (start, quiet, stop), Listener (terminate).
Goes to:     wherever tasks run: children (ProcessPool), threads (ThreadPool), inline in tests.
Thread:      each method says which may call it. The callbacks are called on the pool's own threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qworker.components.request import Request
from qworker.tasks.outcome import Outcome
from qworker.transports.lease import ResultRow

OnRoom = Callable[[], None]
"""Called when there may be room that was not there before."""
Ended = tuple[Request, Outcome]
"""A request that left the pool, and how; UNSTARTED: it is given back."""
OnEnded = Callable[[Sequence[Ended]], None]
OnStored = Callable[[Sequence[tuple[Request, ResultRow]]], None]
"""Called with rows of running requests that are to be stored now."""


class Slots(NamedTuple):
    """How many requests of each kind the pool can take."""

    sync: int
    asynchronous: int


class PoolSettings(NamedTuple):
    """What every pool needs to know.

    - concurrency: how many sync tasks run at once.
    - hostname: the name of the worker, which tasks see.
    - async_concurrency: how many async tasks run at once in a process, beside the sync ones.
    - frame_seconds: at most so much expected work waits in a child; a longer task goes there alone.
    - max_tasks_per_child, max_memory_per_child (KiB): a child that reaches it is replaced. None: no limit.
    - running_path: of the running file. None: nobody reads one.
    - alive_timeout (seconds): a child that has not come up by then is killed.
    """

    concurrency: int
    hostname: str
    async_concurrency: int = 100
    frame_seconds: float = 0.005
    max_tasks_per_child: int | None = None
    max_memory_per_child: int | None = None
    running_path: str | None = None
    alive_timeout: float = 10.0


class TaskPool(ABC):
    """A place where tasks run."""

    def __init__(self) -> None:
        self.runtimes = RuntimeEstimates()  # written by the pool's own thread, as all here
        self.starts = self.deaths = self.recycled = 0
        """How many processes were started, how many ended before their time, and how many were replaced since
        they had run their number of tasks, or were too large."""

    @abstractmethod
    def start(self) -> None:
        """Begin to take requests. Raises QWorkerError when not one process or thread can be had."""

    @abstractmethod
    def free_slots(self) -> Slots:
        """How many requests may be submitted now, if they are short: a long one may be refused.

        When there are more, *on_room* is called. Called by who has the mediator's turn: the mediator, the
        pool's own thread or the listener.
        """

    def free_slots_for(self, runtime: float | None) -> Slots:
        """How many requests may be submitted now; the first of them is sure to be accepted.

        runtime: seconds that each sync one of them is expected to take. None: nobody knows, so each takes a
        process or thread that runs nothing. Called as free_slots() is.
        """
        return self.free_slots()

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> list[Request]:
        """Take *requests* in order; return those that found no room: of each kind, sync and async, the first
        one that did not and all after it.

        One that cannot start in time (Request.starts_before) does not start, and leaves as UNSTARTED.
        Called by who has the mediator's turn, as free_slots() is.
        """

    @abstractmethod
    def terminate(self, request: Request, signal_name: str) -> bool:
        """End the run of *request* by a signal; False when it is not running here. Any thread."""

    @abstractmethod
    def recall(self) -> list[Request]:
        """Take back everything that has not started. Any thread."""

    @abstractmethod
    def interrupt(self) -> None:
        """Ask what runs to end now (SoftTimeLimitExceeded inside the task). Any thread."""

    @abstractmethod
    def in_flight(self) -> int:
        """How many requests are in the pool. Any thread."""

    @abstractmethod
    def async_in_flight(self) -> int:
        """How many of them are ``async def`` tasks, which take no process or thread of their own. Any
        thread."""

    @abstractmethod
    def running(self) -> list[tuple[Request, float]]:
        """What has begun, as far as is known here, each with the monotonic time since when. Any thread."""

    def mean_runtime(self) -> float:
        """Seconds that recent sync tasks took, on average; 0.0 when none has run yet. Any thread."""
        return self.runtimes.mean

    def expected_runtime(self, name: str) -> float | None:
        """Seconds that a task of that name takes; None when none has run here. Any thread."""
        return self.runtimes.seconds(name)

    def latest_runtime(self) -> float:
        """Seconds that the sync task took that ended last; 0.0 when none has run yet. Any thread."""
        return self.runtimes.latest

    @abstractmethod
    def busy_beyond(self, seconds: float) -> int:
        """How many processes or threads will, by all that is known, run on for more than *seconds* with what
        they have. A sync task that nobody knows, or that takes longer than it should, is expected to take as
        long again as it has. Any thread."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """A snapshot for reports. Any thread."""

    @abstractmethod
    def quiet(self) -> None:
        """Take no more requests. Safe to call twice."""

    @abstractmethod
    def stop(self, deadline: float) -> list[Request]:
        """End everything by the monotonic *deadline*; return the requests whose runs were cut short."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False when the pool has crashed."""


# -- Runtime estimates: how long a task of each name takes, learned from its runs --
# Thread: written by the pool thread, read by any.

WEIGHT = 0.2
"""Of the newest run, in the moving average of its name."""
MEAN_UP, MEAN_DOWN = 0.2, 0.02
"""Of the newest run, in the average of all: it rises quickly and falls slowly, since to fetch too much is
worse than to fetch too often."""
OVERHEAD = 0.000025
"""Seconds that a run costs besides the task's own code."""
MAX_NAMES = 10_000


class RuntimeEstimates:
    def __init__(self) -> None:
        self._by_name: dict[str, float] = {}  # pool thread
        self.mean = 0.0
        """Moving average over all runs, seconds; 0.0 before the first."""
        self.latest = 0.0
        """Seconds of the run that ended last; 0.0 before the first."""

    def seconds(self, name: str) -> float | None:
        """How long the next run of *name* will take; None when it has never run here."""
        return self._by_name.get(name)

    def learn(self, name: str, runtime: float) -> None:
        """A run took *runtime* seconds. One much longer than expected counts at once: caution first."""
        runtime += OVERHEAD
        self.latest = runtime
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= MAX_NAMES:
                self._by_name.clear()
            known = runtime
        self._by_name[name] = max(known + WEIGHT * (runtime - known), runtime / 4)
        weight = MEAN_UP if runtime > self.mean else MEAN_DOWN
        self.mean = self.mean + weight * (runtime - self.mean) if self.mean else runtime
