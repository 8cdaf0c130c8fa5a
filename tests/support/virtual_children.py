"""Children of the process pool that live in the test's own process and do what the test says.

They communicate through real sockets and token pipes, and take jobs like a real child. Their process ids are
larger than any of the kernel, and signals reach them through ``VirtualSpawner.send_signal``, never through
the kernel.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from qworker.components.pool.child_main import Child
from qworker.components.pool.children import Children
from qworker.components.pool.contract import Ended, PoolSettings, Slots
from qworker.components.pool.frames import (
    OUTCOME,
    RECEIVE_BYTES,
    STARTED,
    UP,
    FrameBuffer,
    Job,
    pack,
    take_tokens,
)
from qworker.components.pool.process_pool import ProcessPool
from qworker.components.request import Request
from qworker.tasks.outcome import (
    SUCCESS,
    Outcome,
)
from tests.support.rooms import Rooms, tags

FIRST_PID = 1 << 30


class VirtualChild:
    """arrived: jobs whose frame has come and that were not looked at; running: the sync one on the
    "main thread";
    loop: the async ones; started: the tags of all that were ever started."""

    def __init__(
        self,
        rooms: Rooms,
        pid: int,
        jobs: socket.socket,
        tokens: int,
        orders: int,
        settings: Mapping[str, Any],
    ) -> None:
        self.pid = pid
        self.index: int = settings["index"]
        self.alive = True
        self.signals: list[int] = []
        self._socket = jobs.dup()
        self._socket.setblocking(False)
        self._tokens = os.dup(tokens)
        self._orders = os.dup(orders)
        self._buffer = FrameBuffer()
        # A real child, which takes tokens.
        self._real = Child(
            rooms.app, self._socket, self._tokens, self._orders, {**settings, "running_path": None}
        )
        self.arrived: list[Job] = []
        self.running: Job | None = None
        self.loop: list[Job] = []
        self.started: list[int] = []
        self.hung_up = False

    def report_started(self) -> None:
        self._say((UP,))

    def _say(self, message: tuple[Any, ...]) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(pack(message))
        self._socket.setblocking(False)

    def read(self) -> None:
        """Read all frames from the socket."""
        while self.alive and not self.hung_up:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.hung_up = True
                return
            for frame in self._buffer.feed(data):
                self.arrived += frame

    def begin(self) -> Job | None:
        """Start the next job that was not recalled; None if all have begun,
        or the main thread is busy."""
        while self.running is None and self.arrived:
            job = self.arrived.pop(0)
            if not self._real._take(job[0]):
                continue
            self.started.append(job[1])
            if '"task": "nap"' in job[6] or '"task":"nap"' in job[6]:
                self.loop.append(job)
            else:
                self.running = job
            return job
        return None

    def work(self) -> None:
        """Read, and start all jobs that can be started."""
        self.read()
        while self.begin() is not None:
            pass

    def tell_started(self, job: Job, row: tuple[Any, ...]) -> None:
        self._say((STARTED, job[0], row))

    def finish(self, runtime: float = 0.001, kind: str = SUCCESS, retire: bool = False) -> int:
        """Finish the running sync job; return its tag."""
        job = self.running
        assert job is not None
        self.running = None
        self._say((OUTCOME, job[0], tuple(Outcome(kind, runtime)), retire))
        return job[1]

    def finish_async(self, position: int = 0, kind: str = SUCCESS) -> int:
        """Finish an async job; return its tag."""
        job = self.loop.pop(position)
        self._say((OUTCOME, job[0], tuple(Outcome(kind, 0.001)), False))
        return job[1]

    def cancelled(self) -> list[int]:
        """The tags of the async jobs to cancel, received since the last call."""
        sequences = take_tokens(self._orders)
        return [job[1] for job in self.loop if job[0] in sequences]

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self._socket.close()
            os.close(self._tokens)
            os.close(self._orders)


class VirtualSpawner:
    """A Spawner of virtual children. failures: how many spawns will fail."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._notices: list[tuple[str, int, int]] = []
        self.children: list[VirtualChild] = []
        self.failures = 0
        self.ended = False
        self.closed = 0
        self.holds_back = False
        """While True, new children send nothing and are not reported as started."""

    # -- for the pool --

    def fileno(self) -> int:
        return self._read

    def spawn(self, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(11, "too many processes")
        child = VirtualChild(self._rooms, FIRST_PID + len(self.children), jobs, tokens, orders, settings)
        self.children.append(child)
        if not self.holds_back:
            self.notify("up", child.index, child.pid)
            child.report_started()

    def receive(self) -> list[tuple[str, int, int]]:
        try:
            os.read(self._read, 65536)
        except BlockingIOError:
            pass
        notices, self._notices = self._notices, []
        if self.ended and not notices:
            raise EOFError("there is nobody left to fork children")
        return notices

    def living(self) -> int:
        return len(self.alive)

    def close(self) -> None:
        self.closed += 1

    # -- for tests --

    def notify(self, *notice: Any) -> None:
        self._notices.append(notice)
        os.write(self._write, b"!")

    @property
    def alive(self) -> list[VirtualChild]:
        return [child for child in self.children if child.alive]

    def die(self, child: VirtualChild, status: int = signal.SIGSEGV) -> None:
        """Kill *child* now."""
        child.close()
        self.notify("exit", child.pid, status)

    def lose_zygote(self) -> None:
        """Kill the zygote with all its children; a new one starts at once."""
        for child in self.alive:
            child.close()
        self.notify("gone", 0, signal.SIGKILL)

    def end(self) -> None:
        """End the zygote with all its children, without a new one."""
        for child in self.alive:
            child.close()
        self.ended = True
        os.write(self._write, b"!")

    def send_signal(self, pid: int, number: int) -> None:
        child = next(one for one in self.children if one.pid == pid)
        child.signals.append(number)
        if child.alive and number in (signal.SIGKILL, signal.SIGTERM):
            self.die(child, number)

    def release(self) -> None:
        for child in self.children:
            child.close()
        for end in (self._read, self._write):
            os.close(end)


class Pool:
    """A ProcessPool driven by step() instead of a thread, with virtual children and a fake clock."""

    def __init__(self, **settings: Any) -> None:
        self.rooms = Rooms()
        self.clock = self.rooms.clock
        self.spawner = VirtualSpawner(self.rooms)
        self.ended: list[Ended] = []
        self.stored: list[tuple[Request, tuple[Any, ...]]] = []
        self.room_told = 0
        self.settings = PoolSettings(
            **{
                "concurrency": 2,
                "hostname": "w@h",
                "async_concurrency": 3,
                "frame_seconds": 0.004,
                **settings,
            }
        )
        self.pool = ProcessPool(
            self.settings,
            self.spawner,
            self.ended.extend,
            self.stored.extend,
            self._tell_room,
            lambda name, error: None,
            self.clock,
            self.spawner.send_signal,
        )
        self.pool.open()
        self.step()

    def _tell_room(self) -> None:
        self.room_told += 1

    @property
    def handles(self) -> Children:
        return self.pool._children

    @property
    def children(self) -> list[VirtualChild]:
        return self.spawner.alive

    def learn(self, name: str, seconds: float) -> None:
        for _ in range(100):
            self.pool.runtimes.learn(name, seconds)

    def step(self) -> None:
        """Run steps of the pool thread until nothing changes any more."""
        for _ in range(100):
            self.pool.step(0)
            if not _readable(self):
                return
        raise AssertionError("the pool never comes to rest")

    def submit(self, *requests: Request) -> list[int]:
        """Submit *requests* to the pool; return the tags of those it refused."""
        return tags(self.pool.submit(requests))

    def work(self) -> None:
        """Let all children read their frames and start what they can."""
        for child in self.children:
            child.work()

    def ends(self) -> list[tuple[int, str]]:
        """``(tag, kind)`` of all requests that have ended since the last call."""
        ended = [(request.tag, outcome.kind) for request, outcome in self.ended]
        self.ended.clear()
        return ended

    def slots(self) -> Slots:
        return self.pool.free_slots()

    def slots_for(self, runtime: float | None) -> Slots:
        return self.pool.free_slots_for(runtime)

    def close(self) -> None:
        self.pool.quiet()
        for child in self.children:
            self.spawner.die(child, 0)
        self.step()
        self.spawner.release()


SHORT = 0.0005
"""The estimated runtime of the task add in a pool from opened()."""


@contextmanager
def opened(**settings: Any) -> Iterator[Pool]:
    """A pool with a runtime estimate for add, closed after the block."""
    pool = Pool(**settings)
    pool.learn("add", SHORT)
    try:
        yield pool
    finally:
        pool.close()


def _readable(pool: Pool) -> bool:
    ready = select.poll()
    for handle in pool.handles.all():
        if handle.fileno() in pool.pool._by_file:
            ready.register(handle.fileno(), select.POLLIN)
    ready.register(pool.spawner.fileno(), select.POLLIN)
    return bool(ready.poll(0))
