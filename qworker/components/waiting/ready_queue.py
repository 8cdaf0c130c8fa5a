"""ReadyQueue: requests that may run now, most urgent first, first come first served among equals.

Comes from:  Listener and ScheduleController (put_many), Mediator and pool (put_back).
Goes to:     Mediator (get_many).
Thread:      any, under one lock that is never held while calling out.

Sync and ``async def`` tasks stand in two lines, since they need slots of different kinds: the one must not
keep the other waiting.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

from qworker.components.pool.contract import Slots
from qworker.components.request import Request


class ReadyQueue:
    """lowest_first: of priorities the lowest is the most urgent, as the broker has it; else the highest."""

    limits: ClassVar[bool] = False
    """Some tasks here wait for tokens, so that nobody may pass the queue by."""

    def __init__(self, lowest_first: bool = False) -> None:
        self._sign = -1 if lowest_first else 1
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._lines: dict[
            tuple[int, bool], deque[Request]
        ] = {}  # under _lock, as all below: (priority, async)
        self._order: list[tuple[int, bool]] = []
        self._count = 0
        self.changes = 0
        """How often something came, or wake() was called; see wait()."""
        self.load = 0.0
        """Seconds that the sync requests here are expected to take."""

    @property
    def wanting_slots(self) -> int:
        """How many want nothing but a slot; in a TaskBucket there are some that want a token first."""
        return self._count

    def put_many(self, requests: Iterable[Request]) -> None:
        """Add *requests* behind their equals."""
        with self._lock:
            for request in requests:
                self._add(request)
            self._changed()

    def put_back(self, requests: Iterable[Request], tell: bool = True) -> None:
        """Add requests that were taken from here before: in front of their equals, in the given order.

        tell: that there is something to be had; not when who took them finds that they cannot run yet.
        """
        back = list(requests)
        if not back:
            return
        with self._lock:
            for request in reversed(back):
                self._add(request, front=True)
            if tell:
                self._changed()

    def _add(self, request: Request, front: bool = False) -> None:
        key = (request.leased.priority, request.is_async)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            self._order = sorted(self._lines, key=self._urgency, reverse=True)
        if front:
            line.appendleft(request)
        else:
            line.append(request)
        self._count += 1
        if not request.is_async:
            self.load += request.seconds

    def _urgency(self, line: tuple[int, bool]) -> tuple[int, bool]:
        priority, is_async = line
        return self._sign * priority, is_async

    def get_many(self, slots: Slots) -> list[Request]:
        """Take requests for *slots*, best first; [] when there are none."""
        with self._lock:
            return self._take(slots)

    def wait(self, timeout: float, seen: int) -> None:
        """Wait up to *timeout* seconds for anything to change. seen: what ``changes`` was when nothing was to
        be had; if it has changed since, there is no waiting."""
        with self._lock:
            if self.changes == seen:
                self._arrived.wait(self._longest_wait(timeout))

    def _longest_wait(self, timeout: float) -> float:
        return timeout

    def _take(self, slots: Slots) -> list[Request]:
        taken: list[Request] = []
        left = [slots.sync, slots.asynchronous]
        for key in self._order:
            line = self._lines[key]
            while line and left[key[1]] > 0:
                left[key[1]] -= 1
                taken.append(self._leave(line.popleft()))
        return taken

    def _leave(self, request: Request) -> Request:
        self._count -= 1
        if not request.is_async:
            self.load = self.load - request.seconds if self._count else 0.0
        return request

    def drop_last(self, load: float, keep: int) -> list[Request]:
        """Take out sync requests from the end until at most *load* seconds or *keep* requests are left. load:
        -1.0 for whatever they take."""
        dropped: list[Request] = []
        with self._lock:
            for key in reversed(self._order):
                line = self._lines[key]
                while line and not key[1] and self.load > load and self._count > keep:
                    dropped.append(self._leave(line.pop()))
        return dropped

    def reweigh(self, seconds: Callable[[Request], float]) -> None:
        """Ask anew what each request here is expected to take."""
        with self._lock:
            self.load = 0.0
            for line in self._lines.values():
                for request in line:
                    request.seconds = seconds(request)
                    if not request.is_async:
                        self.load += request.seconds

    def clear(self) -> list[Request]:
        """Take out everything."""
        with self._lock:
            return self._take(Slots(self._count, self._count))

    def wake(self) -> None:
        """Say that there may be new slots: ends a wait() early. Any thread."""
        with self._lock:
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self._arrived.notify_all()

    def __len__(self) -> int:
        return self._count
