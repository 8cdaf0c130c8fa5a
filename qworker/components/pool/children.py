"""Children: the children of the process pool, their requests, and their room for more.

Comes from:  ProcessPool: the mediator assigns, the pool thread handles outcomes and deaths.
Goes to:     the children, in frames.
Thread:      any, under one lock, which is never held while calling out.

A child gets short tasks for up to ``frame_seconds`` of work; a long or unknown task goes alone to an idle
child. Jobs behind a task that turns out to be long are recalled, so that short tasks never wait for long
ones. Requests suspected of killing processes run alone in a child, one at a time (``Quarantine``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qworker.components.pool.child_handle import ChildHandle
from qworker.components.pool.contract import PoolSettings, Slots
from qworker.components.pool.runtimes import RuntimeEstimates
from qworker.components.request import Request
from qworker.tasks.outcome import LOST, TERMINATED, Outcome

STALLED_SECONDS = 0.005
"""Work behind a running task is recalled if the child has sent nothing for this long."""
MAX_SLACK_SECONDS = 0.004
"""With this and STALLED_SECONDS, a short task waits at most 10 ms behind one that turns out to be long."""
UNKNOWN_SECONDS = 1.0
"""Assumed duration of a task that has never run here."""

STUCK = Outcome(LOST, text="the process did not start the tasks that it was given")


class WatchResult(NamedTuple):
    """The result of watch(): recalled requests, and children to be killed.

    has_suspects: suspects run or wait, so the room may have changed.
    """

    recalled: list[Request]
    overdue: list[ChildHandle]
    has_suspects: bool


class Children:
    """runtimes: learns from each run. monotonic: the system's clock, except in tests."""

    def __init__(
        self,
        settings: PoolSettings,
        runtimes: RuntimeEstimates,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._settings = settings
        self._runtimes = runtimes
        self._lock = threading.Lock()
        self._handles: list[ChildHandle] = []  # under _lock, as all below
        self._sequence = 0
        self._quarantine = Quarantine(settings.concurrency)
        self._accepting = True
        self._limited = False
        self._watching = False
        """The pool thread will check for stalled children in time."""

    # -- adding and removing: pool thread --

    def add(self, child: ChildHandle) -> None:
        with self._lock:
            self._handles.append(child)

    def remove(self, child: ChildHandle) -> tuple[list[Request], list[Request]]:
        """Remove a dead child; return the requests it had not started, and those it was running."""
        with self._lock:
            unstarted = child.recall()
            self._handles.remove(child)
            child.dead = True
            return unstarted, child.requests()

    def all(self) -> list[ChildHandle]:
        with self._lock:
            return list(self._handles)

    def running(self) -> list[tuple[Request, float]]:
        """Return the requests that have begun, with monotonic start times. Any thread."""
        with self._lock:
            return [run for child in self._handles for run in child.running()]

    def starting(self, index: int) -> ChildHandle | None:
        """Return the child *index*, if its process id is not known yet."""
        return next((child for child in self.all() if child.index == index and not child.pid), None)

    def with_pid(self, pid: int) -> ChildHandle | None:
        return next((child for child in self.all() if child.pid == pid), None)

    # -- assigning: the thread with the mediator's turn --

    @property
    def accepting(self) -> bool:
        return self._accepting

    def quiet(self) -> None:
        with self._lock:
            self._accepting = False

    def free_slots(self, room: Callable[[ChildHandle], int]) -> Slots:
        """Return the free slots. room: returns how many sync requests can be assigned to a child now."""
        with self._lock:
            if not self._accepting:
                return Slots(0, 0)
            most = self._settings.async_concurrency
            return Slots(
                sum([room(child) for child in self._handles]),
                sum([child.async_room(most) for child in self._handles]),
            )

    def assign(self, requests: Sequence[Request]) -> tuple[list[Request], bool]:
        """Assign *requests* to children, in order; return those without room, and whether to wake the pool
        thread: a socket was full, a time limit is running, or a job waits behind another."""
        with self._lock:
            if not self._accepting:
                return list(requests), False
            refused: list[Request] = []
            full = [False, False]  # sync, async: later requests must not overtake refused ones
            for request in requests:
                if request.is_suspect:
                    self._quarantine.add(request, self._monotonic())
                    continue
                seconds = self._runtimes.seconds(request.name)
                child = None if full[request.is_async] else self._choose(request, seconds)
                if child is None:
                    full[request.is_async] = True
                    refused.append(request)
                    continue
                self._give(child, request, UNKNOWN_SECONDS if seconds is None else seconds)
            if self._quarantine:
                self._see_to_suspects()
            stuck = [child for child in self._handles if child.channel.outgoing and not child.channel.flush()]
            unwatched = not self._watching and any(child.sync_jobs > 1 for child in self._handles)
            return refused, bool(stuck) or self._limited or unwatched or bool(self._quarantine)

    def _give(self, child: ChildHandle, request: Request, seconds: float) -> None:
        self._sequence += 1
        child.assign(self._sequence, request, seconds)
        self._limited = self._limited or request.time_limit is not None

    def _see_to_suspects(self) -> None:
        """Reserve a child for the next suspect, and start it as soon as the child is idle."""
        now, quarantine = self._monotonic(), self._quarantine
        suspect = (
            quarantine.next(lambda one: self._child_of(one) is not None, now) if self._accepting else None
        )
        trial = None if quarantine.tried is None else self._child_of(quarantine.tried)
        chosen = None
        if suspect is not None:
            fit = [child for child in self._handles if not (child.retiring or child.worn_out)]
            chosen = min(fit, key=lambda child: (child.sync_jobs, child.async_jobs, child.load), default=None)
        for child in self._handles:
            child.reserved = child is chosen or child is trial
        if suspect is None or chosen is None:
            return
        if not (chosen.jobs if quarantine.is_patient(now) else chosen.sync_jobs):
            quarantine.begin(now)
            self._give(chosen, suspect, UNKNOWN_SECONDS)
            chosen.channel.flush()

    def _choose(self, request: Request, seconds: float | None) -> ChildHandle | None:
        """Return the child with the least work that may take *request*; None if there is none."""
        if request.is_async:
            most = self._settings.async_concurrency
            roomiest = max(self._handles, key=lambda child: child.async_room(most), default=None)
            return roomiest if roomiest is not None and roomiest.async_room(most) else None
        best: ChildHandle | None = None
        for child in self._handles:
            if child.takes(seconds, self._settings.frame_seconds) and (
                best is None or child.load < best.load
            ):
                best = child
        return best

    def flush(self, child: ChildHandle) -> bool:
        with self._lock:
            return child.channel.flush()

    # -- results: pool thread --

    def finished(
        self, child: ChildHandle, sequence: int, outcome: Outcome, retire: bool, now: float
    ) -> Request | None:
        """Record the end of a run; return its request, None if the child no longer has it."""
        with self._lock:
            request = child.finished(sequence, now)
            if request is not None and not request.is_async and outcome.runtime is not None:
                self._runtimes.learn(request.name, outcome.runtime)
            child.retiring = child.retiring or retire or child.worn_out
            if self._quarantine:
                self._see_to_suspects()
            return request

    def has_room(self, child: ChildHandle) -> bool:
        """Whether *child* has room for half a frame; notifying the mediator earlier would make frames
        small."""
        settings = self._settings
        with self._lock:
            return bool(
                child.room(settings.frame_seconds / 2) or child.async_room(settings.async_concurrency)
            )

    def watch(self, now: float) -> WatchResult:
        """Find children that stalled, passed a limit, or did not start."""
        recalled: list[Request] = []
        overdue: list[ChildHandle] = []
        with self._lock:
            has_suspects = bool(self._quarantine)
            if has_suspects:
                self._see_to_suspects()
            for child in self._handles:
                if child.retiring and not child.worn_out:
                    recalled.extend(child.recall())
                stalls_at = child.stalls_at(STALLED_SECONDS)
                if stalls_at is not None and stalls_at <= now:
                    recalled.extend(child.recall())
                    # Its task is long, so nothing must be put behind it.
                    child.load = UNKNOWN_SECONDS if child.sync_jobs else 0.0
                limit = child.next_limit() if self._limited else None
                if limit is not None and limit.at <= now:
                    unbegun = child.recall()
                    recalled.extend(unbegun)
                    if limit.request in unbegun:  # the child had nothing else to do, so it is frozen or stuck
                        child.killed = child.killed or (STUCK, None)
                        overdue.append(child)
                        continue
                    limit = child.next_limit()
                if limit is not None and limit.at <= now:
                    child.killed = child.killed or (limit.outcome, limit.request)
                    overdue.append(child)
                elif not child.up and now - child.born > self._settings.alive_timeout:
                    how = f"it did not start within {self._settings.alive_timeout:g} s"
                    child.killed = child.killed or (Outcome(LOST, text=how), None)
                    overdue.append(child)
        return WatchResult(recalled, overdue, has_suspects)

    def timeout(self, now: float) -> float:
        """Return the seconds until watch() must be called."""
        with self._lock:
            timeout = 0.1 if self._quarantine else 5.0
            stalls = [at for child in self._handles if (at := child.stalls_at(STALLED_SECONDS)) is not None]
            self._watching = bool(stalls)
            if stalls:
                return min(timeout, max(0.0, min(stalls) - now))
            for child in self._handles:
                limit = child.next_limit() if self._limited else None
                if limit is not None:
                    timeout = min(timeout, max(0.0, limit.at - now))
                if not child.up:
                    timeout = min(timeout, 1.0)
        return timeout

    def slack(self) -> float:
        """Return how many seconds the pool thread may sleep, so that outcomes of short tasks arrive in
        batches."""
        with self._lock:
            streaming = [child.load for child in self._handles if child.sync_jobs > 1]
        return min(min(streaming) / 2, MAX_SLACK_SECONDS) if streaming else 0.0

    # -- taking back: any thread --

    def recall(self) -> list[Request]:
        with self._lock:
            taken = [request for child in self._handles for request in child.recall()]
            return taken + self._quarantine.recall()

    def cancel(self, request: Request, how: str) -> bool:
        """Cancel *request*, an async one; its child is killed if it does not end in time. Return False if no
        child has it."""
        with self._lock:
            child = self._child_of(request)
            if child is not None:
                self._limited = True
                child.cancel(request, how)
        return child is not None

    def mark_for_kill(self, request: Request, how: str, lethal: bool) -> ChildHandle | None:
        """Return the child that has *request*. lethal: record that the child is killed because of it."""
        with self._lock:
            child = self._child_of(request)
            if child is not None and lethal:
                child.killed = child.killed or (Outcome(TERMINATED, text=how), request)
        return child

    def _child_of(self, request: Request) -> ChildHandle | None:
        return next(
            (child for child in self._handles if any(one is request for one in child.requests())), None
        )

    def retire_all(self) -> list[ChildHandle]:
        """Stop replacing children; return those that are busy."""
        with self._lock:
            for child in self._handles:
                child.retiring = True
            return [child for child in self._handles if child.jobs]

    def in_flight(self) -> int:
        with self._lock:
            return sum(len(child.jobs) for child in self._handles)

    def busy_beyond(self, seconds: float, now: float) -> int:
        with self._lock:
            return sum(child.sync_jobs > 0 and child.remaining(now) > seconds for child in self._handles)

    def async_in_flight(self) -> int:
        with self._lock:
            return sum(child.async_jobs for child in self._handles)


# -- Quarantine: requests suspected of killing processes, because they were running at several deaths --
# Thread: the one that holds the pool's lock. Suspects run one at a time. Requests that ran beside a task that
# kills its worker have the same number of deaths as that task; when each is tried alone, only that task dies
# again. Normal work continues in the other processes. No suspect waits forever: a trial ends after
# TRIAL_SECONDS, even if the task is still running. If there is only one process, normal work gets it after
# each trial for as long as the trial took.

TRIAL_SECONDS = 30.0
"""Maximum seconds for which a suspect runs without other suspects, or waits for an idle process."""


class Quarantine:
    """places: the number of tasks that the pool runs at once."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: deque[Request] = deque()
        self.tried: Request | None = None
        """The suspect on trial."""
        self._began = 0.0
        self._rests_until = 0.0
        self._asked = 0.0
        """The time since which the first in the queue may begin."""

    def __bool__(self) -> bool:
        return self.tried is not None or bool(self._waiting)

    def add(self, request: Request, now: float) -> None:
        """Append *request* to the queue. now: monotonic seconds, as everywhere here."""
        if not self:
            self._asked = now
        self._waiting.append(request)

    def recall(self) -> list[Request]:
        """Remove and return the waiting requests."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def next(self, runs: Callable[[Request], bool], now: float) -> Request | None:
        """Return the next suspect to try; None if there is none or it must wait. runs: whether a request is
        still running."""
        if self.tried is not None and (now >= self._began + TRIAL_SECONDS or not runs(self.tried)):
            self.tried = None
            self._asked = now
            if self._places == 1:
                self._rests_until = now + (now - self._began)
        if self.tried is not None or not self._waiting or now < self._rests_until:
            self._asked = now
            return None
        return self._waiting[0]

    def is_patient(self, now: float) -> bool:
        """Return whether the next suspect still waits for an idle process."""
        return now < self._asked + TRIAL_SECONDS

    def begin(self, now: float) -> None:
        """Start the trial of the next suspect."""
        self.tried, self._began = self._waiting.popleft(), now
