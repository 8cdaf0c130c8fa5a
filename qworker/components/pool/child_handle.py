"""ChildHandle: the parent's view of one pool child: its jobs, its limits and its end.

Comes from:  ProcessPool, which makes one for each child.
Goes to:     the child, through its ChildChannel: frames through a socket, and through two pipes a token for
             each job and orders to cancel one.
Thread:      under the pool's lock, except receive(), received(), kill(), hang_up() and close(), which
             belong to the pool thread.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
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

FRAME_BYTES = 128 * 1024
"""Approximate size of the bodies in a frame."""


class ChildChannel:
    """The channel to one child, which inherits their_socket, token_reader and order_reader."""

    def __init__(self) -> None:
        self.outgoing: list[Job] = []
        """Jobs for the next flush()."""
        self.unsent: deque[memoryview] = deque()
        """Frames as memoryviews, so that the rest of a large one is not copied for each send."""
        self._buffer = FrameBuffer()
        self.socket, self.their_socket = socket.socketpair()
        self.socket.setblocking(False)
        for end in (self.socket, self.their_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.token_reader, self._token_writer = os.pipe()
        self.order_reader, self._order_writer = os.pipe()
        for file in (self.token_reader, self.order_reader, self._order_writer):
            os.set_blocking(file, False)
        self._open = True

    def spawned(self) -> None:
        """Close our copies of the child's ends, except for the tokens, which may be recalled."""
        self.their_socket.close()
        os.close(self.order_reader)
        self.order_reader = -1

    def _pack(self, jobs: list[Job]) -> None:
        """Send the tokens of *jobs*, and make frames of the jobs: several of large ones, so that the child
        begins before all have arrived."""
        # Tokens first: a child that finds no token for a job assumes that it was recalled.
        os.write(self._token_writer, pack_tokens([job[0] for job in jobs]))
        first = size = 0
        for index, job in enumerate(jobs, 1):
            body: object = job[-1]  # may be of any type, as it is untrusted; the child will refuse it
            size += len(body) if isinstance(body, bytes | str) else 0
            if size >= FRAME_BYTES or index == len(jobs):
                self.unsent.append(memoryview(pack(jobs[first:index])))
                first, size = index, 0

    def flush(self) -> bool:
        """Send jobs and frames that wait; return False if the socket is full and some are left."""
        if self.outgoing:
            jobs, self.outgoing = self.outgoing, []
            self._pack(jobs)
        while self.unsent:
            data = self.unsent[0]
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return False
            except OSError:
                self.unsent.clear()  # the child is dead; the pool thread will notice and end its jobs
                break
            if sent < len(data):
                self.unsent[0] = data[sent:]
            else:
                self.unsent.popleft()
        return True

    def recalled(self) -> list[int]:
        """Take back the tokens of the jobs that have not started, and return their sequence numbers."""
        return take_tokens(self.token_reader) if self._open else []

    def cancel(self, sequence: int) -> None:
        """Order the child to cancel an async job."""
        try:
            os.write(self._order_writer, pack_tokens([sequence]))
        except OSError:
            pass  # the child is dead or does not react; its limit will end it

    # -- pool thread --

    def received(self) -> Iterable[Any]:
        """Return the received frames, and None if the child has closed the socket. Iteration raises one of
        NO_FRAMES for invalid data, after the valid frames."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return ()
        except OSError:
            data = b""
        return self._buffer.feed(data) if data else (None,)

    def hang_up(self) -> None:
        """Make the child end after its current jobs. Safe to call twice."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """Close all ends. Safe to call twice."""
        if self._open:
            self._open = False
            self.socket.close()
            self.their_socket.close()
            os.close(self.token_reader)
            os.close(self._token_writer)
            os.close(self._order_writer)
            if self.order_reader >= 0:
                os.close(self.order_reader)


logger = logging.getLogger(__name__)

MAX_JOBS = 128
"""Maximum jobs in one child, however short they are."""
ASYNC_GRACE_SECONDS = 2.0
"""The child itself cancels an async task at its hard limit; the parent kills the child this much later."""
CANCEL_SECONDS = 5.0
"""A cancelled async task may take this long to end before its process is killed."""
TELL_SECONDS = 60.0
"""Minimum time to report the end of a killed task, however short its time limit is."""

OVERDUE = Outcome(TIME_LIMIT, text="the hard time limit passed")


class Assigned(NamedTuple):
    """A request in a child, its expected seconds, and the monotonic time at which it was assigned."""

    request: Request
    seconds: float
    since: float


class Limit(NamedTuple):
    """If *request* still runs at the monotonic time *at*, the child is killed with the reason *outcome*."""

    at: float
    request: Request
    outcome: Outcome


class ChildHandle:
    """The parent's side of one child.

    - index: its position in the pool, which its replacement takes over.
    - max_tasks: the number of tasks after which it is replaced. None: no limit.
    - monotonic, send_signal: the system's, except in tests.
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
        """Signals to send as soon as the process id is known."""
        self.interrupted = False
        """The running task was interrupted."""
        self._cancelled: dict[int, Limit] = {}
        """Cancelled async jobs, and when the child is killed if they do not end."""
        self.up = False
        self.dead = False
        self.retiring = False
        """It gets no more jobs, and is replaced after its current ones."""
        self.reserved = False
        """It is reserved for, or runs, a request that must run alone."""
        self.killed: tuple[Outcome, Request | None] | None = None
        """The reason for its kill and the request that caused it. Without a request, the reason is the
        outcome of all its requests."""
        self.born = monotonic()
        self.jobs: dict[int, Assigned] = {}
        self.async_jobs = 0
        self.load = 0.0
        """Expected seconds of its sync jobs."""
        self.total = 0
        """Total number of jobs assigned."""
        self.last_heard = 0.0
        """Monotonic time when its current sync job began, or the one before ended."""
        self.channel = ChildChannel()

    def fileno(self) -> int:
        return self.channel.socket.fileno()

    # -- capacity --

    def room(self, frame_seconds: float) -> int:
        """Return how many short sync requests may be assigned now."""
        if self._takes_no_more() or self.load >= frame_seconds:
            return 0
        return max(0, MAX_JOBS - self.sync_jobs)

    def room_for(self, runtime: float | None, frame_seconds: float) -> int:
        """Return how many sync requests of *runtime* seconds may be assigned now; if that is unknown (None),
        one if the child is idle."""
        if self._takes_no_more():
            return 0
        if not self.sync_jobs:
            return min(MAX_JOBS, max(1, int(frame_seconds / runtime))) if runtime else 1
        # At least half a frame, so that frames do not shrink.
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
        """Whether it has reached its maximum number of tasks."""
        return self._max_tasks is not None and self.total >= self._max_tasks

    def takes(self, seconds: float | None, frame_seconds: float) -> bool:
        if self._takes_no_more():
            return False
        if not self.sync_jobs:
            return True
        return seconds is not None and self.load + seconds <= frame_seconds and self.sync_jobs < MAX_JOBS

    def async_room(self, most: int) -> int:
        """Return how many async requests may be assigned now: none while the main thread, which reads the
        socket, is busy."""
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
        self.channel.outgoing.append(
            (
                sequence,
                leased.tag,
                leased.queue,
                leased.priority,
                leased.deliveries,
                leased.redelivered,
                leased.headers,
                leased.properties,
                None if request.failing is None else request.failing.as_plain(),
                request.starts_before,
                leased.body,
            )
        )

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
        """Recall the jobs that have not started; return their requests."""
        if self.dead:
            return []
        taken = []
        for sequence in self.channel.recalled():
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
        """Return the monotonic time from which its task is longer than expected; None if no other waits
        behind it."""
        if self.sync_jobs < 2:
            return None
        expected = next(job.seconds for job in self.jobs.values() if not job.request.is_async)
        return self.last_heard + max(seconds, 1.5 * expected)

    def cancel(self, request: Request, how: str) -> None:
        """Make the child cancel *request*, a running async task. If it does not end, the child is killed."""
        for sequence, assigned in self.jobs.items():
            if assigned.request is request and sequence not in self._cancelled:
                self._cancelled[sequence] = Limit(
                    self._monotonic() + CANCEL_SECONDS,
                    request,
                    Outcome(TERMINATED, text=f"{how}: the task did not end after it was cancelled"),
                )
                self.channel.cancel(sequence)
                return

    def remaining(self, now: float) -> float:
        """Return the estimated seconds of its remaining work. A late task is expected to take twice as long
        as it has so far."""
        since = now - self.last_heard
        return self.load - since if since < self.load else since

    def running(self) -> list[tuple[Request, float]]:
        """Return the running requests with monotonic start times: all async jobs, and the first sync job."""
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
        """Return the earliest limit of the running requests; None if there is none."""
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
                first = False  # sync jobs run one after the other: only the first one is running
                if limit is not None:
                    # It started when its predecessor's outcome was sent, which arrived later, so it is not
                    # killed too early.
                    limits.append(Limit(max(since, self.last_heard) + limit, request, OVERDUE))
        return min(limits, default=None, key=lambda limit: limit.at)

    # -- pool thread --

    def receive(self) -> list[Any] | None:
        """Return the received frames; None if the child has closed the socket.

        A child that sends invalid data is killed, because its state is unknown: a task may write to any of
        its process's files.
        """
        frames: list[Any] = []
        try:
            for frame in self.channel.received():
                if frame is None:
                    return None
                frames.append(frame)  # frames before an invalid one are valid
        except NO_FRAMES as error:
            logger.error(
                "killing pool process %d: its code wrote to the socket that reports the ends of tasks (%s)",
                self.pid,
                error,
                extra={"event": "child-unreadable"},
            )
            self.kill(signal.SIGKILL)
            return frames or None
        return frames

    def started_as(self, pid: int) -> None:
        """Record its process id, also in assigned requests, and send pending signals."""
        self.pid = pid
        for request, _, _ in list(self.jobs.values()):
            request.pid = pid
        for number in self._pending_signals:
            self.kill(number)

    def kill(self, number: int) -> None:
        """Send a signal, as soon as the process id is known."""
        self.interrupted = self.interrupted or number == signal.SIGUSR1
        if not self.pid:
            if number not in self._pending_signals:
                self._pending_signals.append(number)
        elif not self.dead:
            try:
                self._send_signal(self.pid, number)
            except ProcessLookupError:
                pass


def describe_exit(status: int) -> str:
    """Describe the end of a process from its wait status; -1: it was never started."""
    if status < 0:
        return "could not be forked: too many processes, or no memory"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = ", possibly because memory ran out" if number == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    return f"exited with code {os.WEXITSTATUS(status)}"
