"""TaskPool: the interface of a pool. One suite of tests applies to all pools.

Comes from:  Mediator (free_slots, free_slots_for, submit), Worker (start, quiet, stop), Listener (terminate).
Goes to:     children (ProcessPool), threads (ThreadPool), or inline in tests.
Thread:      each method says which may call it. The callbacks are called on the pool's own threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qworker.components.pool.runtimes import RuntimeEstimates
from qworker.components.request import Request
from qworker.tasks.outcome import Outcome
from qworker.transports.lease import ResultRow

OnRoom = Callable[[], None]
"""Called when there may be new room."""
Ended = tuple[Request, Outcome]
"""A request that left the pool, and its outcome; UNSTARTED if it did not run."""
OnEnded = Callable[[Sequence[Ended]], None]
OnStored = Callable[[Sequence[tuple[Request, ResultRow]]], None]
"""Called with rows of running requests to be stored now."""


class Slots(NamedTuple):
    """The number of requests of each kind that the pool can take."""

    sync: int
    asynchronous: int


class PoolSettings(NamedTuple):
    """Settings for every pool.

    - concurrency: the number of sync tasks that run at once.
    - hostname: the name of the worker, shown to tasks.
    - async_concurrency: the number of async tasks that run at once in a process, in addition to sync ones.
    - frame_seconds: the maximum expected work in a child; a longer task goes there alone.
    - max_tasks_per_child, max_memory_per_child (KiB): limits after which a child is replaced. None: no limit.
    - running_path: the path of the running file. None: not used.
    - alive_timeout (seconds): a child that takes longer to start is killed.
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
    """A place where tasks run. on_ended, on_stored, on_room: called on the pool's own threads."""

    def __init__(
        self, settings: PoolSettings, on_ended: OnEnded, on_stored: OnStored, on_room: OnRoom
    ) -> None:
        self._settings = settings
        self._on_ended = on_ended
        self._on_stored = on_stored
        self._on_room = on_room
        self.runtimes = RuntimeEstimates()  # written by the pool's own thread, or under its lock
        self.ending = 0
        """More than 0 while on_ended() is called for requests that in_flight() no longer counts. It is raised
        before they are taken out, so read in_flight() first."""
        self.starts = self.deaths = self.recycled = 0
        """Numbers of processes that were started, that died or were killed, and that were replaced because of
        their number of tasks or their size."""

    @abstractmethod
    def start(self) -> None:
        """Begin to accept requests. Raises QWorkerError if no process or thread can be started."""

    @abstractmethod
    def free_slots(self) -> Slots:
        """Return how many short requests may be submitted now; long ones may be refused.

        *on_room* is called when there is more room. Called by the thread that has the mediator's turn: the
        mediator's, the pool's or the listener's.
        """

    def free_slots_for(self, runtime: float | None) -> Slots:
        """Return how many requests may be submitted now; the first of them is certain to be accepted.

        runtime: expected seconds of each sync request. None: unknown, so each takes an idle process or
        thread. Called like free_slots().
        """
        return self.free_slots()

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> list[Request]:
        """Take *requests* in order; return those without room. Once one is refused, so are all later ones of
        its kind, sync or async.

        A request that cannot start in time (Request.starts_before) ends as UNSTARTED. Called like
        free_slots().
        """

    @abstractmethod
    def terminate(self, request: Request, signal_name: str) -> bool:
        """End the run of *request* with a signal; return False if it is not running here. Any thread."""

    @abstractmethod
    def recall(self) -> list[Request]:
        """Take back and return the requests that have not started. Any thread."""

    @abstractmethod
    def interrupt(self) -> None:
        """Interrupt running tasks (SoftTimeLimitExceeded inside the task). Any thread."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests are in the pool. Any thread."""

    @abstractmethod
    def async_in_flight(self) -> int:
        """Return how many ``async def`` tasks are in the pool; they need no own process or thread. Any
        thread."""

    @abstractmethod
    def running(self) -> list[tuple[Request, float]]:
        """Return the requests known to have begun, with monotonic start times. Any thread."""

    def mean_runtime(self) -> float:
        """Return the average seconds of recent sync tasks; 0.0 before the first. Any thread."""
        return self.runtimes.mean

    def expected_runtime(self, name: str) -> float | None:
        """Return the expected seconds of a task named *name*; None if none has run here. Any thread."""
        return self.runtimes.seconds(name)

    def latest_runtime(self) -> float:
        """Return the seconds of the sync task that ended last; 0.0 before the first. Any thread."""
        return self.runtimes.latest

    @abstractmethod
    def busy_beyond(self, seconds: float) -> int:
        """Return how many processes or threads are expected to be busy for more than *seconds*. A late or
        unknown sync task is expected to take twice as long as it has so far. Any thread."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return a snapshot for reports. Any thread."""

    @abstractmethod
    def quiet(self) -> None:
        """Accept no more requests. Safe to call twice."""

    @abstractmethod
    def stop(self, deadline: float) -> list[Request]:
        """Stop everything by the monotonic *deadline*; return the requests whose runs were interrupted."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the pool has not crashed."""
