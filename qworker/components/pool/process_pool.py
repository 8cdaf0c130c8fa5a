"""ProcessPool: child processes that run tasks and are replaced when they die.

Comes from:  Mediator, which submits requests.
Goes to:     children (``child_main.py``) through sockets; requests and their outcomes to the worker.
Thread:      the pool thread reads outcomes, enforces limits, notices deaths and replaces children. Other
             threads use ``children.py``.
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

from qworker import signals
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.components.pool.child_handle import ChildHandle, describe_exit
from qworker.components.pool.children import Children
from qworker.components.pool.contract import Ended, OnEnded, OnRoom, OnStored, PoolSettings, Slots, TaskPool
from qworker.components.pool.frames import OUTCOME, STARTED, UP
from qworker.components.pool.spawner import Spawner
from qworker.components.request import Request
from qworker.errors import QWorkerError
from qworker.process.crash_points import CRASHING, crash_point
from qworker.process.wakeup import WakeupPipe
from qworker.tasks.outcome import INTERRUPTED, LOST, NOT_STARTED, Outcome
from qworker.transports.lease import ResultRow

logger = logging.getLogger(__name__)

LETHAL = frozenset((signal.SIGTERM, signal.SIGKILL, signal.SIGQUIT, signal.SIGABRT))
"""Signals that end a child unless its task catches them."""
CRASH_LOOP_SECONDS = 1.0
"""A child that lived no longer than this died early."""
CRASH_LOOP_DEATHS = 5
"""The worker gives up after this many early deaths in a row per child, if no child has started."""

STRAY_INTERRUPT = Outcome(LOST, text="interrupted by a signal that the worker did not send")


class ProcessPool(TaskPool):
    """A pool of processes.

    - settings: see PoolSettings.
    - spawner: starts children, and reports their deaths.
    - on_ended, on_stored, on_room: see TaskPool. on_crash: called on the pool thread, too.
    - clock, send_signal: the system's, except in tests.
    """

    def __init__(
        self,
        settings: PoolSettings,
        spawner: Spawner,
        on_ended: OnEnded,
        on_stored: OnStored,
        on_room: OnRoom,
        on_crash: Callable[[str, BaseException], None],
        clock: Clock = SYSTEM_CLOCK,
        send_signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        super().__init__(settings, on_ended, on_stored, on_room)
        self._clock = clock
        self._send_signal = send_signal
        self._spawner = spawner
        self._on_crash = on_crash
        self._children = Children(settings, self.runtimes, clock.monotonic)
        self._wakeup = WakeupPipe()
        self._wakeup.open()
        self._thread = threading.Thread(target=self._run, name="pool", daemon=True)
        self._stopping = threading.Event()
        self._crashed = False  # written by the pool thread, as all below
        self._poll = select.poll()
        self._by_file: dict[int, ChildHandle] = {}
        self._early_deaths = 0
        self._spawn_after = 0.0
        self._ever_up = False
        self._cut: list[Request] = []
        self._has_room = False

    # -- life --

    def start(self) -> None:
        if self._thread.is_alive() or self._stopping.is_set():
            return
        self.open()
        self._thread.start()

    def open(self) -> None:
        """Start the children. Tests without a pool thread call this and step()."""
        self._poll.register(self._wakeup, select.POLLIN)
        self._poll.register(self._spawner.fileno(), select.POLLIN)
        for index in range(self._settings.concurrency):
            self._spawn(index)

    @property
    def alive(self) -> bool:
        return not self._crashed

    def quiet(self) -> None:
        self._children.quiet()

    def stop(self, deadline: float) -> list[Request]:
        self.quiet()
        for child in self._children.retire_all():
            child.kill(signal.SIGKILL)
        for child in self._children.all():
            child.channel.hang_up()
        while self._children.all() and self._clock.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.002)
        self._stopping.set()
        self._wakeup.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        self._spawner.close()
        cut, self._cut = self._cut, []
        return cut + [request for child in self._children.all() for request in child.requests()]

    # -- mediator and others --

    def free_slots(self) -> Slots:
        frame = self._settings.frame_seconds
        return self._children.free_slots(lambda child: child.room(frame))

    def free_slots_for(self, runtime: float | None) -> Slots:
        frame = self._settings.frame_seconds
        return self._children.free_slots(lambda child: child.room_for(runtime, frame))

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        refused, look = self._children.assign(requests)
        if look:
            self._wakeup.wake()
        return refused

    def recall(self) -> list[Request]:
        return self._children.recall()

    def terminate(self, request: Request, signal_name: str) -> bool:
        try:
            number = signal.Signals[signal_name]
        except KeyError:  # from another client, which may send any value
            number = signal.SIGTERM
        how = f"terminated by {signal_name}"
        if request.is_async:  # a signal would affect other tasks in its process
            cancelled = self._children.cancel(request, how)
            self._wakeup.wake()
            return cancelled
        child = self._children.mark_for_kill(request, how, lethal=number in LETHAL)
        if child is None:
            return False
        child.kill(number)
        return True

    def interrupt(self) -> None:
        for child in self._children.all():
            if child.jobs:
                child.kill(signal.SIGUSR1)

    def in_flight(self) -> int:
        return self._children.in_flight()

    def busy_beyond(self, seconds: float) -> int:
        return self._children.busy_beyond(seconds, self._clock.monotonic())

    def async_in_flight(self) -> int:
        return self._children.async_in_flight()

    def running(self) -> list[tuple[Request, float]]:
        return self._children.running()

    def info(self) -> dict[str, Any]:
        return {
            "implementation": "prefork",
            "max-concurrency": self._settings.concurrency,
            "processes": [child.pid for child in self._children.all() if child.pid],
            "max-tasks-per-child": self._settings.max_tasks_per_child or "N/A",
            "in-flight": self._children.in_flight(),
        }

    # -- the pool thread --

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step(self._timeout())
        except BaseException as error:  # noqa: BLE001 - the worker stops, and reports the error
            if not self._stopping.is_set():
                self._crashed = True
                self.quiet()
                self._on_crash("pool", error)

    def step(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for events, and handle them."""
        ended: list[Ended] = []
        stored: list[tuple[Request, ResultRow]] = []
        notices = False
        events = self._poll.poll(timeout * 1000)
        self.ending = 1
        for file, event in events:
            if file == self._wakeup.fileno():
                self._wakeup.clear()
                self._watch_writes()
            elif file == self._spawner.fileno():
                notices = True
            elif (child := self._by_file.get(file)) is not None:
                if event & select.POLLOUT and self._children.flush(child):
                    self._poll.modify(file, select.POLLIN)
                if event & ~select.POLLOUT:
                    self._receive(child, ended, stored)
        failure = None
        if notices:  # after the sockets: frames sent by a dead child are valid
            try:
                self._hear_spawner(ended, stored)
            except EOFError as error:  # all children are dead, and no more can be started
                self._reap_all(str(error), ended, stored)
                failure = error
        now = self._clock.monotonic()
        watched = self._children.watch(now)
        for child in watched.overdue:
            child.kill(signal.SIGKILL)
        ended.extend((request, NOT_STARTED) for request in watched.recalled)
        if watched.has_suspects:
            self._has_room = True
            self._watch_writes()
        if stored:
            self._on_stored(stored)
        if ended:
            self._on_ended(ended)
        self.ending = 0
        if failure is not None:
            raise failure
        self._replace(now)
        if self._has_room:
            self._has_room = False
            self._on_room()
        if ended and (slack := self._children.slack()):
            self._clock.sleep(slack)

    def _timeout(self) -> float:
        now = self._clock.monotonic()
        missing = len(self._children.all()) < self._settings.concurrency and self._children.accepting
        timeout = self._children.timeout(now)
        return min(timeout, max(0.01, self._spawn_after - now)) if missing else timeout

    def _watch_writes(self) -> None:
        """Poll sockets that were full, to send the rest as soon as there is room."""
        for file, child in self._by_file.items():
            if child.channel.unsent:
                self._poll.modify(file, select.POLLIN | select.POLLOUT)

    def _receive(
        self, child: ChildHandle, ended: list[Ended], stored: list[tuple[Request, ResultRow]]
    ) -> None:
        frames = child.receive()
        if frames is None:
            self._forget(child)  # the spawner will report how it ended
            return
        now = self._clock.monotonic()
        for kind, *content in frames:
            if kind == OUTCOME:
                sequence, fields, retire = content
                if CRASHING:
                    crash_point("received")
                outcome = Outcome(*fields)
                request = self._children.finished(child, sequence, outcome, retire, now)
                if request is None:
                    continue
                if outcome.kind == INTERRUPTED and not child.interrupted:
                    outcome = STRAY_INTERRUPT  # counted as a death, because it might repeat forever
                ended.append((request, outcome))
            elif kind == STARTED:
                job = child.jobs.get(content[0])
                if job is not None:
                    stored.append((job.request, content[1]))
            elif kind == UP:
                child.up = self._ever_up = True
                self._early_deaths = 0
        if self._children.has_room(child):
            self._has_room = True

    def _forget(self, child: ChildHandle) -> None:
        if self._by_file.pop(child.fileno(), None) is not None:
            self._poll.unregister(child.fileno())

    def _hear_spawner(self, ended: list[Ended], stored: list[tuple[Request, ResultRow]]) -> None:
        for kind, number, value in self._spawner.receive():
            if kind == "up":
                child = self._children.starting(number)
                if child is not None:
                    child.started_as(value)
                continue
            if kind == "gone":
                how = f"the process that forks children and its children have died ({describe_exit(value)})"
                logger.error("%s; it is being replaced", how, extra={"event": "process-died"})
                self._reap_all(how, ended, stored)
                continue
            child = self._children.starting(-number - 1) if number < 0 else self._children.with_pid(number)
            if child is not None:
                self._reap(child, describe_exit(value), ended, stored)

    def _reap_all(self, how: str, ended: list[Ended], stored: list[tuple[Request, ResultRow]]) -> None:
        for child in self._children.all():
            self._reap(child, how, ended, stored)

    def _reap(
        self, child: ChildHandle, how: str, ended: list[Ended], stored: list[tuple[Request, ResultRow]]
    ) -> None:
        """Handle a dead child: read its last outcomes, and end the requests it had not started and those it
        was running."""
        while child.fileno() in self._by_file:
            before = len(ended) + len(stored)
            self._receive(child, ended, stored)
            if len(ended) + len(stored) == before:
                self._forget(child)
        unstarted, running = self._children.remove(child)
        crash_point("child reaped")
        child.channel.close()
        outcome, target = child.killed or (Outcome(LOST, text=how), None)
        how = outcome.text
        ended.extend((request, NOT_STARTED) for request in unstarted)
        if child.retiring and child.killed is None and not self._children.accepting:
            self._cut.extend(running)  # killed by stop(), which returns these requests
        else:
            beside = Outcome(INTERRUPTED, text=how)
            ended.extend((request, outcome if target in (None, request) else beside) for request in running)
        if child.retiring:
            self.recycled += self._children.accepting
        else:
            self.deaths += 1
            logger.warning(
                "pool process %s ended: %s; it is being replaced",
                child.pid,
                how,
                extra={"event": "process-died"},
            )
            if not child.up or self._clock.monotonic() - child.born < CRASH_LOOP_SECONDS:
                self._note_early_death(how)

    def _note_early_death(self, how: str) -> None:
        self._early_deaths += 1
        most = CRASH_LOOP_DEATHS * self._settings.concurrency
        if not self._ever_up and self._early_deaths >= most:
            raise QWorkerError(f"{most} pool processes died while starting, the last one: {how}")
        if self._early_deaths > most:
            self._spawn_after = self._clock.monotonic() + min(5.0, 0.1 * (self._early_deaths - most))

    def _replace(self, now: float) -> None:
        """End idle retiring children, and start missing ones."""
        children = self._children.all()
        for child in children:
            if child.retiring and not child.jobs:
                child.channel.hang_up()
        if (
            self._children.accepting
            and now >= self._spawn_after
            and len(children) < self._settings.concurrency
        ):
            for index in set(range(self._settings.concurrency)) - {child.index for child in children}:
                self._spawn(index)

    def _spawn(self, index: int) -> None:
        settings = self._settings
        if signals.worker_before_create_process.receivers:
            signals.worker_before_create_process.send(self)
        child = None
        try:
            child = ChildHandle(index, settings.max_tasks_per_child, self._clock.monotonic, self._send_signal)
            self._spawner.spawn(
                child.channel.their_socket,
                child.channel.token_reader,
                child.channel.order_reader,
                {
                    "index": index,
                    "hostname": settings.hostname,
                    "max_memory": settings.max_memory_per_child,
                    "running_path": settings.running_path,
                },
            )
        except OSError as error:  # no files, processes or memory are available now
            if child is not None:
                child.channel.close()
            self._spawn_after = self._clock.monotonic() + 1.0
            logger.error(
                "cannot start a pool process: %s; trying again in 1 s",
                error,
                extra={"event": "process-not-started"},
            )
            return
        child.channel.spawned()
        self.starts += 1
        self._children.add(child)
        self._has_room = True
        self._by_file[child.fileno()] = child
        self._poll.register(child.fileno(), select.POLLIN)
