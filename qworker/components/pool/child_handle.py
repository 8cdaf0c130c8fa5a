"""ChildHandle: the parent's picture of one pool child, and its ends of the socket and the two pipes.

Comes from:  ProcessPool, which makes one for each child.
Goes to:     the child, in frames.
Thread:      everything under the pool's lock, but receive(), kill() and close(), which are the pool thread's.
"""

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from qworker.components.pool.frames import (
    NO_FRAMES,
    RECEIVE_BYTES,
    FrameBuffer,
    Job,
    pack,
    pack_tokens,
    take_tokens,
)
from qworker.components.request import Request
from qworker.tasks.outcome import TERMINATED, TIME_LIMIT, Outcome

logger = logging.getLogger(__name__)

MAX_JOBS = 128
"""In one child, however short they are."""
FRAME_BYTES = 128 * 1024
"""Of the bodies in a frame, about."""
ASYNC_GRACE_SECONDS = 2.0
"""An async task is cancelled at its hard limit by the child itself; the parent kills it only this much
later."""
CANCEL_SECONDS = 5.0
"""So long an async task that is cancelled on request may take to end; then its process is killed."""
TELL_SECONDS = 60.0
"""So long at least may it take to tell the end of a task that was killed, however short its time limit is."""

OVERDUE = Outcome(TIME_LIMIT, text="the hard time limit passed")


class Assigned(NamedTuple):
    """A request that a child has: how many seconds it is expected to take, and since when (monotonic) it is
    there."""

    request: Request
    seconds: float
    since: float


class Limit(NamedTuple):
    """The child is killed at *at* (monotonic) for the sake of *request*, if that runs by then; *outcome* says
    why."""

    at: float
    request: Request
    outcome: Outcome


class ChildHandle:
    """The parent's side of one child.

    - index: its place in the pool, which a replacement takes over.
    - max_tasks: after so many it is replaced. None: never.
    - monotonic, send_signal: the system's, but for tests.
    """

    def __init__(
        self,
        index: int,
        max_tasks: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        send_signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        self.index = index
        self._max_tasks = max_tasks
        self._monotonic = monotonic
        self._send_signal = send_signal
        self.pid = 0
        self._pending_signals: list[int] = []
        """What to send as soon as the process id is known."""
        self.interrupted = False
        """We have asked what runs there to end."""
        self._cancelled: dict[int, Limit] = {}
        """Async jobs that are to end on request."""
        self.up = False
        self.dead = False
        self.retiring = False
        """It gets no more, and is replaced when it has ended what it has."""
        self.reserved = False
        """It is kept for a request that is to run there alone, or runs one."""
        self.killed: tuple[Outcome, Request | None] | None = None
        """Why we killed it, and for whose sake: for that of nobody (None) it is the outcome of all."""
        self.born = monotonic()
        self.jobs: dict[int, Assigned] = {}
        self.async_jobs = 0
        self.load = 0.0
        """Seconds that its sync jobs are expected to take."""
        self.total = 0
        """How many jobs it was given, all in all."""
        self.last_heard = 0.0
        """Monotonic time at which its latest sync job began, or the one before that ended."""
        self.outgoing: list[Job] = []
        self._unsent: deque[memoryview] = deque()
        """Frames, as views: what is left of a large one is not copied for each send."""
        self._buffer = FrameBuffer()
        self._socket, self.their_socket = socket.socketpair()
        self._socket.setblocking(False)
        for end in (self._socket, self.their_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.token_reader, self._token_writer = os.pipe()
        self.order_reader, self._order_writer = os.pipe()
        for file in (self.token_reader, self.order_reader, self._order_writer):
            os.set_blocking(file, False)
        self._open = True

    def spawned(self) -> None:
        """The child has its ends: let go of ours of them (but for the tokens, which we may take back)."""
        self.their_socket.close()
        os.close(self.order_reader)
        self.order_reader = -1

    def fileno(self) -> int:
        return self._socket.fileno()

    # -- what it may take --

    def room(self, frame_seconds: float) -> int:
        """How many sync requests could be assigned now, if they are short."""
        if self._takes_no_more() or self.load >= frame_seconds:
            return 0
        return max(0, MAX_JOBS - self.sync_jobs)

    def room_for(self, runtime: float | None, frame_seconds: float) -> int:
        """How many sync requests could be assigned now that take *runtime* seconds each; None: nobody knows,
        so that one goes to a child that runs none."""
        if self._takes_no_more():
            return 0
        if not self.sync_jobs:
            return min(MAX_JOBS, max(1, int(frame_seconds / runtime))) if runtime else 1
        # Half a frame at least, so that frames do not shrink.
        if not runtime or self.load > frame_seconds / 2 or not self.takes(runtime, frame_seconds):
            return 0
        return min(MAX_JOBS - self.sync_jobs, max(1, int((frame_seconds - self.load) / runtime)))

    @property
    def sync_jobs(self) -> int:
        return len(self.jobs) - self.async_jobs

    def _takes_no_more(self) -> bool:
        return self.retiring or self.dead or self.worn_out or self.reserved

    @property
    def worn_out(self) -> bool:
        """Whether it was given all the tasks that one child may run."""
        return self._max_tasks is not None and self.total >= self._max_tasks

    def takes(self, seconds: float | None, frame_seconds: float) -> bool:
        if self._takes_no_more():
            return False
        if not self.sync_jobs:
            return True
        return seconds is not None and self.load + seconds <= frame_seconds and self.sync_jobs < MAX_JOBS

    def async_room(self, most: int) -> int:
        """How many async requests it may take: none while its main thread is busy, since that reads the
        socket."""
        if self._takes_no_more() or self.sync_jobs:
            return 0
        return most - self.async_jobs

    # -- assigning --

    def assign(self, sequence: int, request: Request, seconds: float) -> None:
        now = self._monotonic()
        if not self.sync_jobs:
            self.last_heard = now
        self.jobs[sequence] = Assigned(request, seconds, now)
        self.total += 1
        if request.is_async:
            self.async_jobs += 1
        else:
            self.load += seconds
        request.pid = self.pid
        leased = request.leased
        self.outgoing.append(
            (
                sequence,
                leased.tag,
                leased.queue,
                leased.priority,
                leased.deliveries,
                leased.redelivered,
                leased.headers,
                leased.properties,
                None if request.failing is None else request.failing.told(),
                request.starts_before,
                leased.body,
            )
        )

    def flush(self) -> bool:
        """Send what is assigned; False when the socket is full and the rest waits."""
        if self.outgoing:
            # The tokens first: a child that finds none for a job takes the job for recalled.
            os.write(self._token_writer, pack_tokens([job[0] for job in self.outgoing]))
            self._pack()
        while self._unsent:
            data = self._unsent[0]
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                return False
            except OSError:
                self._unsent.clear()  # the child is dead: its end will be noticed, and its jobs with it
                break
            if sent < len(data):
                self._unsent[0] = data[sent:]
            else:
                self._unsent.popleft()
        return True

    def _pack(self) -> None:
        """Put what is assigned into frames: of large jobs several, so that the child begins before all of
        them are there."""
        jobs, self.outgoing = self.outgoing, []
        first = size = 0
        for index, job in enumerate(jobs, 1):
            body: object = job[-1]  # whatever a stranger has put there: the child will refuse it
            size += len(body) if isinstance(body, bytes | str) else 0
            if size >= FRAME_BYTES or index == len(jobs):
                self._unsent.append(memoryview(pack(jobs[first:index])))
                first, size = index, 0

    @property
    def waits_to_write(self) -> bool:
        return bool(self._unsent)

    def finished(self, sequence: int, now: float) -> Request | None:
        assigned = self.jobs.pop(sequence, None)
        if assigned is None:
            return None
        self._cancelled.pop(sequence, None)
        if assigned.request.is_async:
            self.async_jobs -= 1
        else:
            self.last_heard = now
            self.load = max(0.0, self.load - assigned.seconds) if self.sync_jobs else 0.0
        return assigned.request

    def requests(self) -> list[Request]:
        return [assigned.request for assigned in self.jobs.values()]

    def recall(self) -> list[Request]:
        """Take back the jobs that have not started."""
        if self.dead or not self._open:
            return []
        taken = []
        for sequence in take_tokens(self.token_reader):
            assigned = self.jobs.pop(sequence, None)
            if assigned is not None:
                taken.append(assigned.request)
                self.total -= 1
                if assigned.request.is_async:
                    self.async_jobs -= 1
                else:
                    self.load -= assigned.seconds
        return taken

    # -- watching --

    def stalls_at(self, seconds: float) -> float | None:
        """Monotonic time from which the task it runs takes longer than anybody thought, with others waiting
        behind it; None when none waits."""
        if self.sync_jobs < 2:
            return None
        expected = next(job.seconds for job in self.jobs.values() if not job.request.is_async)
        return self.last_heard + max(seconds, 1.5 * expected)

    def cancel(self, request: Request, how: str) -> None:
        """Have the child cancel *request*, which is async and runs there; if it does not end, it is killed
        later."""
        for sequence, assigned in self.jobs.items():
            if assigned.request is request and sequence not in self._cancelled:
                self._cancelled[sequence] = Limit(
                    self._monotonic() + CANCEL_SECONDS,
                    request,
                    Outcome(TERMINATED, text=f"{how}: it did not let itself be cancelled"),
                )
                try:
                    os.write(self._order_writer, pack_tokens([sequence]))
                except OSError:
                    pass  # the child is dead, or hears nothing: see the limit
                return

    def remaining(self, now: float) -> float:
        """Seconds for which it probably has work: what is late is expected to take as long again as it
        has."""
        since = now - self.last_heard
        return self.load - since if since < self.load else since

    def running(self) -> list[tuple[Request, float]]:
        """What has begun here, each with the monotonic time since when: of the sync jobs the first."""
        found: list[tuple[Request, float]] = []
        first = True
        for request, _, since in self.jobs.values() if self.up else ():
            if request.is_async:
                found.append((request, since))
            elif first:
                first = False
                found.append((request, max(since, self.last_heard)))
        return found

    def next_limit(self) -> Limit | None:
        """The next time at which something that runs here must have ended; None when nothing must."""
        limits = list(self._cancelled.values())
        first = True
        for request, _, since in self.jobs.values():
            limit = request.time_limit
            if limit is not None and request.failing is not None:
                limit = max(limit, TELL_SECONDS)
            if request.is_async:
                if limit is not None:
                    limits.append(Limit(since + limit + ASYNC_GRACE_SECONDS, request, OVERDUE))
            elif first:
                first = False  # the sync jobs run one after the other: only the first one is running
                if limit is not None:
                    # It started after its predecessor's outcome at the latest: never too early a kill.
                    limits.append(Limit(max(since, self.last_heard) + limit, request, OVERDUE))
        return min(limits, default=None, key=lambda limit: limit.at)

    # -- pool thread --

    def receive(self) -> list[Any] | None:
        """The frames that have come; None when the child has hung up, or says what no child does: a task may
        write into any of its process's files. Then it is killed, for nobody knows any more what it runs."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        frames: list[Any] = []
        try:
            for frame in self._buffer.feed(data):
                frames.append(frame)  # what came before it counts
        except NO_FRAMES as error:
            logger.error(
                "process %d of the pool is killed: something in it wrote into the file by which it tells how "
                "tasks end (%s)",
                self.pid,
                error,
                extra={"event": "child-unreadable"},
            )
            self.kill(signal.SIGKILL)
            return frames or None
        return frames

    def started_as(self, pid: int) -> None:
        """Its process id is known now: tell it of what was given to it before, and send the signals that are
        owed to it."""
        self.pid = pid
        for request, _, _ in list(self.jobs.values()):
            request.pid = pid
        for number in self._pending_signals:
            self.kill(number)

    def kill(self, number: int) -> None:
        """Send a signal; as soon as the process id is known."""
        self.interrupted = self.interrupted or number == signal.SIGUSR1
        if not self.pid:
            if number not in self._pending_signals:
                self._pending_signals.append(number)
        elif not self.dead:
            try:
                self._send_signal(self.pid, number)
            except ProcessLookupError:
                pass

    def hang_up(self) -> None:
        """Tell the child to end when it has done what it has. Safe to call twice."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        if self._open:
            self._open = False
            self._socket.close()
            self.their_socket.close()
            os.close(self.token_reader)
            os.close(self._token_writer)
            os.close(self._order_writer)
            if self.order_reader >= 0:
                os.close(self.order_reader)


def describe_exit(status: int) -> str:
    """Say how a process ended, from its wait status; -1: it was never born."""
    if status < 0:
        return "could not be forked: too many processes, or no memory"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = ", possibly for want of memory" if number == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    return f"exited with code {os.WEXITSTATUS(status)}"
