"""ProcessPool: children that run tasks and are replaced when they die.

Comes from:  Mediator, which submits requests.
Goes to:     children (``child.py``) over sockets; Ended requests to the worker.
Thread:      the pool thread reads outcomes, limits and deaths; submit and recall come from other threads.
             What they share is the assignment of requests to children, under one lock that is never held
             while calling out.

A short task may follow others into a child, as long as the child then has at most ``frame_seconds`` of work;
a long or unknown one goes alone to an idle child. What was put behind a task that turns out long is recalled.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from qworker.components.estimates import Estimates
from qworker.components.frames import OUTCOME, STARTED, UP
from qworker.components.pool import INTERRUPTED, LOST, TERMINATED, TIME_LIMIT, UNSTARTED
from qworker.components.pool import Ended, OnEnded, OnStored, PoolSettings, TaskPool
from qworker.components.pool_child import ChildHandle, describe_exit
from qworker.components.spawner import Spawner
from qworker.errors import QWorkerError
from qworker.execution import Outcome
from qworker.request import Request

logger = logging.getLogger(__name__)

STALLED_SECONDS = 0.008
"""A child that has said nothing for so long, with work behind what it runs, has that work recalled."""
COALESCE_SECONDS = 0.0004
"""While short tasks stream, the pool thread looks this seldom, so that outcomes come in batches."""
QUICK_DEATH_SECONDS = 1.0
MAX_QUICK_DEATHS = 5
"""Per child of the pool: so many deaths at birth in a row, with none ever up, and the worker gives up."""


class ProcessPool(TaskPool):
    """settings: see PoolSettings. on_ended and on_stored are called on the pool thread."""

    def __init__(
        self,
        settings: PoolSettings,
        spawner: Spawner,
        on_ended: OnEnded,
        on_stored: OnStored,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        self._settings = settings
        self._spawner = spawner
        self._on_ended = on_ended
        self._on_stored = on_stored
        self._on_crash = on_crash
        self.estimates = Estimates()  # written by the pool thread
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._children: list[ChildHandle] = []  # under _lock; changed by the pool thread
        self._sequence = 0  # under _lock
        self._accepting = True  # under _lock
        self._poll = select.poll()  # pool thread
        self._by_file: dict[int, ChildHandle] = {}  # pool thread
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="pool", daemon=True)
        self._stopping = threading.Event()
        self._quick_deaths = 0  # pool thread
        self._spawn_after = 0.0  # pool thread
        self._ever_up = False  # pool thread
        self._limited = False  # under _lock: some assigned request has a hard limit
        self._crashed = False  # written by the pool thread

    # -- life --

    def start(self) -> None:
        if self._thread.is_alive():
            return
        self._poll.register(self._wake_read, select.POLLIN)
        self._poll.register(self._spawner.fileno(), select.POLLIN)
        for index in range(self._settings.concurrency):
            self._spawn(index)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._crashed

    def quiet(self) -> None:
        with self._lock:
            self._accepting = False
            self._room.notify_all()

    def stop(self, deadline: float) -> list[Request]:
        self.quiet()
        with self._lock:
            cut = [request for child in self._children for request in child.requests()]
            busy = [child for child in self._children if child.jobs]
            for child in self._children:
                child.retiring = True
                child.requests_cut = True
        for child in busy:
            child.kill(signal.SIGKILL)
        for child in self._children:
            child.hang_up()
        while self._spawner.living() and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.002)
        self._stopping.set()
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        self._spawner.close()
        return cut

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            pass

    def _spawn(self, index: int) -> None:
        settings = self._settings
        child = ChildHandle(index)
        try:
            self._spawner.spawn(
                child.their_socket,
                child.token_reader,
                {
                    "index": index,
                    "hostname": settings.hostname,
                    "max_memory": settings.max_memory_per_child,
                    "async_concurrency": settings.async_concurrency,
                    "running_path": settings.running_path,
                },
            )
        except OSError as error:
            child.close()
            self._spawn_after = time.monotonic() + 1.0
            logger.error("cannot start a pool process: %s; trying again in 1 s", error)
            return
        child.spawned()
        with self._lock:
            self._children.append(child)
        self._by_file[child.fileno()] = child
        self._poll.register(child.fileno(), select.POLLIN)

    # -- taking requests: mediator --

    def free_slots(self, timeout: float, idle_only: bool = False) -> int:
        with self._lock:
            slots = self._count_slots(idle_only)
            if not slots and timeout > 0:
                self._room.wait(timeout)
                slots = self._count_slots(idle_only)
            return slots

    def _count_slots(self, idle_only: bool) -> int:
        if not self._accepting:
            return 0
        frame = self._settings.frame_seconds
        return sum(child.room(frame, idle_only) for child in self._children)

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        frame_seconds = self._settings.frame_seconds
        with self._lock:
            if not self._accepting:
                return list(requests)
            for position, request in enumerate(requests):
                seconds = self.estimates.seconds(request.name)
                child = self._choose(request, seconds, frame_seconds)
                if child is None:
                    refused = list(requests[position:])
                    break
                self._sequence += 1
                child.assign(self._sequence, request, seconds if seconds is not None else 1.0)
                self._limited = self._limited or request.time_limit is not None
            else:
                refused = []
            blocked = False
            for child in self._children:
                if child.outgoing:
                    blocked |= not child.flush()
        if blocked or self._limited:
            self._wake()
        return refused

    def _choose(self, request: Request, seconds: float | None, frame_seconds: float) -> ChildHandle | None:
        """The child for *request*: the one with the least work that may take it; None when none may."""
        if request.is_async:
            free = [child for child in self._children if child.takes_async(self._settings.async_concurrency)]
            return min(free, key=ChildHandle.async_load, default=None)
        best: ChildHandle | None = None
        for child in self._children:
            if child.takes(seconds, frame_seconds) and (best is None or child.load < best.load):
                best = child
        return best

    # -- giving back --

    def recall(self) -> list[Request]:
        with self._lock:
            taken = [request for child in self._children for request in child.recall()]
            self._room.notify_all()
        return taken

    def terminate(self, request: Request, signal_name: str) -> bool:
        with self._lock:
            for child in self._children:
                if request in child.requests():
                    child.end = (TERMINATED, request, f"terminated by {signal_name}")
                    break
            else:
                return False
        child.kill(getattr(signal, signal_name, signal.SIGTERM))
        return True

    def interrupt(self) -> None:
        with self._lock:
            busy = [child for child in self._children if child.jobs]
        for child in busy:
            child.kill(signal.SIGUSR1)

    def in_flight(self) -> int:
        with self._lock:
            return sum(len(child.jobs) for child in self._children)

    def async_in_flight(self) -> int:
        with self._lock:
            return sum(child.async_jobs for child in self._children)

    def mean_runtime(self) -> float:
        return self.estimates.mean

    def info(self) -> dict[str, Any]:
        with self._lock:
            return {
                "implementation": "prefork",
                "max-concurrency": self._settings.concurrency,
                "processes": [child.pid for child in self._children if child.pid],
                "max-tasks-per-child": self._settings.max_tasks_per_child or "N/A",
                "in-flight": sum(len(child.jobs) for child in self._children),
            }

    # -- the pool thread --

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
        except BaseException as error:  # the component shell: the worker stops, with the reason
            if not self._stopping.is_set():
                self._crashed = True
                self.quiet()
                self._on_crash("pool", error)

    def _turn(self) -> None:
        events = self._poll.poll(self._patience() * 1000)
        ended: list[Ended] = []
        stored: list[tuple[Request, tuple[Any, ...]]] = []
        notices = False
        for file, event in events:
            if file == self._wake_read:
                os.read(self._wake_read, 65536)
            elif file == self._spawner.fileno():
                notices = True
            else:
                child = self._by_file.get(file)
                if child is not None:
                    if event & select.POLLOUT:
                        self._flush(child)
                    if event & ~select.POLLOUT:
                        self._receive(child, ended, stored)
        if notices:  # after the sockets: what a dead child had still said counts
            self._hear_spawner(ended)
        now = time.monotonic()
        self._watch(now, ended)
        if stored:
            self._on_stored(stored)
        if ended:
            self._on_ended(ended)
        self._replace(now)
        if len(ended) > 1:
            time.sleep(COALESCE_SECONDS)

    def _patience(self) -> float:
        """Seconds that the pool thread may sleep: less when limits or stalls are to be watched."""
        with self._lock:
            if any(len(child.jobs) > 1 and not child.async_jobs for child in self._children):
                return STALLED_SECONDS
            now = time.monotonic()
            wanted = 5.0 if len(self._children) >= self._settings.concurrency else max(0.01, self._spawn_after - now)
            for child in self._children:
                limit = child.next_limit() if self._limited else None
                if limit is not None:
                    wanted = min(wanted, max(0.0, limit[0] - now))
                if not child.up:
                    wanted = min(wanted, 1.0)
            return wanted

    def _flush(self, child: ChildHandle) -> None:
        with self._lock:
            done = child.flush()
        self._poll.modify(child.fileno(), select.POLLIN if done else select.POLLIN | select.POLLOUT)

    def _receive(
        self, child: ChildHandle, ended: list[Ended], stored: list[tuple[Request, tuple[Any, ...]]]
    ) -> None:
        frames = child.receive()
        if frames is None:
            self._poll.unregister(child.fileno())
            self._by_file.pop(child.fileno(), None)
            return  # the spawner will say how it ended
        now = time.monotonic()
        with self._lock:
            for frame in frames:
                if frame[0] == OUTCOME:
                    request = child.finished(frame[1], now)
                    if request is not None:
                        outcome = Outcome(*frame[2])
                        if not request.is_async:
                            self.estimates.learn(request.name, outcome.runtime)
                        ended.append(Ended(request, outcome))
                    limit = self._settings.max_tasks_per_child
                    if frame[3] or (limit is not None and child.total >= limit):
                        child.retiring = True
                elif frame[0] == STARTED:
                    job = child.jobs.get(frame[1])
                    if job is not None:
                        stored.append((job.request, frame[2]))
                elif frame[0] == UP:
                    child.up = self._ever_up = True
                    self._quick_deaths = 0
            if child.room(self._settings.frame_seconds / 2, False):
                self._room.notify()
        if child.outgoing:
            self._poll.modify(child.fileno(), select.POLLIN | select.POLLOUT)

    def _hear_spawner(self, ended: list[Ended]) -> None:
        for kind, number, value in self._spawner.receive():
            with self._lock:
                if kind == "up":
                    child = next((c for c in self._children if c.index == number and not c.pid and not c.gone), None)
                    if child is not None:
                        child.pid = value
                    continue
                wanted = "index" if number < 0 else "pid"
                key = -number - 1 if number < 0 else number
                child = next((c for c in self._children if getattr(c, wanted) == key), None)
            if child is not None:
                self._buried(child, value, ended)

    def _buried(self, child: ChildHandle, status: int, ended: list[Ended]) -> None:
        """A child is dead: take what it had said, then what it had not started, then what it was running."""
        if child.fileno() in self._by_file:
            stored: list[tuple[Request, tuple[Any, ...]]] = []
            self._receive(child, ended, stored)
            if child.fileno() in self._by_file:
                self._by_file.pop(child.fileno())
                self._poll.unregister(child.fileno())
        with self._lock:
            unstarted = child.recall()
            running = child.requests()
            self._children.remove(child)
            child.gone = True
        child.close()
        why, culprit, how = child.end or (LOST, None, describe_exit(status))
        if not child.requests_cut:
            ended.extend(Ended(request, None, UNSTARTED) for request in unstarted)
            for request in running:
                innocent = culprit is not None and request is not culprit
                ended.append(Ended(request, None, INTERRUPTED if innocent else why, how))
        if not child.retiring:
            logger.warning("pool process %s ended: %s; it is being replaced", child.pid, how)
            if not child.up or time.monotonic() - child.born < QUICK_DEATH_SECONDS:
                self._died_young(how)

    def _died_young(self, how: str) -> None:
        self._quick_deaths += 1
        many = MAX_QUICK_DEATHS * self._settings.concurrency
        if not self._ever_up and self._quick_deaths >= many:
            raise EOFError(f"{many} pool processes died at birth, the last one: {how}")
        if self._quick_deaths > many:
            self._spawn_after = time.monotonic() + min(5.0, 0.1 * (self._quick_deaths - many))

    def _watch(self, now: float, ended: list[Ended]) -> None:
        """Enforce hard limits, recall what waits behind a stalled task, kill what never came up."""
        back: list[Request] = []
        kills = []
        with self._lock:
            for child in self._children:
                if child.stalled(now, STALLED_SECONDS):
                    back.extend(child.recall())
                    child.load = 1.0  # what it runs is long: nothing goes behind it
                limit = child.next_limit() if self._limited else None
                if limit is not None and limit[0] <= now:
                    child.end = child.end or (TIME_LIMIT, limit[1], "the hard time limit passed")
                    kills.append(child)
                elif not child.up and now - child.born > self._settings.alive_timeout:
                    how = f"it did not come up within {self._settings.alive_timeout:g} s"
                    child.end = child.end or (LOST, None, how)
                    kills.append(child)
        for child in kills:
            child.kill(signal.SIGKILL)
        ended.extend(Ended(request, None, UNSTARTED) for request in back)

    def _replace(self, now: float) -> None:
        """Let retiring children go that have nothing left, and start those that are missing."""
        with self._lock:
            for child in self._children:
                if child.retiring and not child.jobs:
                    child.hang_up()
            present = {child.index for child in self._children}
        if self._accepting and now >= self._spawn_after:
            for index in set(range(self._settings.concurrency)) - present:
                self._spawn(index)


def need_forking() -> None:
    """Raise QWorkerError where the system cannot fork."""
    if not hasattr(os, "fork"):
        raise QWorkerError("this system cannot fork: use --start-method spawn, or --pool threads")
