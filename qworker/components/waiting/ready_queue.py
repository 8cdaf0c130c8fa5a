"""ReadyQueue: requests that may run now, ordered by priority and then by arrival.

Comes from:  Listener and ScheduleController (put_many), Mediator and pool (put_back).
Goes to:     Mediator (get_many).
Thread:      any, under one lock that is never held while calling out.

Sync and ``async def`` tasks have separate queues, because they need different slots and must not wait for
each other. Requests that have ended, but whose end a child must report, also have their own: they come first,
wait for no token, and continue while the worker stops.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

from qworker.components.pool.contract import Slots
from qworker.components.request import Request


class ReadyQueue:
    """lowest_first: whether the lowest priority is the most urgent, as the broker defines."""

    limits: ClassVar[bool] = False
    """Some tasks here wait for tokens, so no request may bypass the queue."""

    def __init__(self, lowest_first: bool = False) -> None:
        self._sign = -1 if lowest_first else 1
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._lines: dict[
            tuple[int, bool], deque[Request]
        ] = {}  # under _lock, as all below: (priority, async)
        self._order: list[tuple[int, bool]] = []
        self._reports: deque[Request] = deque()
        self._count = 0
        self.changes = 0
        """Counts arrivals and calls of wake(); see wait()."""
        self.load = 0.0
        """Expected seconds of the sync requests here."""

    @property
    def wanting_slots(self) -> int:
        """The number of requests that only need a slot; in a TaskBucket, others need a token first."""
        return self._count

    def put_many(self, requests: Iterable[Request]) -> None:
        """Add *requests* behind those of equal priority."""
        with self._lock:
            for request in requests:
                self._add(request)
            self._changed()

    def put_back(self, requests: Iterable[Request], notify: bool = True) -> None:
        """Add requests that were taken before, in order, in front of those of equal priority.

        notify: notify waiting threads; False if the requests cannot run yet.
        """
        back = list(requests)
        if not back:
            return
        with self._lock:
            for request in reversed(back):
                self._add(request, front=True)
            if notify:
                self._changed()

    def _add(self, request: Request, front: bool = False) -> None:
        if request.failing is not None:
            (self._reports.appendleft if front else self._reports.append)(request)
            self._count += 1
            return
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
        """Take requests for *slots*, best first; [] if there are none."""
        with self._lock:
            if not self._reports:
                return self._take(slots)
            reports = self._take_reports(slots)
            asynchronous = sum(request.is_async for request in reports)
            sync = len(reports) - asynchronous
            return reports + self._take(Slots(slots.sync - sync, slots.asynchronous - asynchronous))

    def get_reports(self, slots: Slots) -> list[Request]:
        """Take those requests for *slots* whose end a child must report."""
        with self._lock:
            return self._take_reports(slots)

    def drop_reports(self, drops: Callable[[Request], bool]) -> list[Request]:
        """Take out the requests that a child should report, and that *drops* returns True for."""
        with self._lock:
            return self._leave_reports(drops)

    @property
    def reports(self) -> int:
        """The number of requests whose end a child must report."""
        return len(self._reports)

    def wait(self, timeout: float, seen: int) -> None:
        """Wait up to *timeout* seconds for a change. seen: the value of ``changes`` before the queue was
        found empty; if it has changed since, return at once."""
        with self._lock:
            if self.changes == seen:
                self._arrived.wait(self._longest_wait(timeout))

    def _longest_wait(self, timeout: float) -> float:
        return timeout

    def acking(self, requests: Iterable[Request], number: int) -> None:
        """Count *requests* that are acked before they start (1), or will not start (-1)."""

    def may_start(self, requests: list[Request]) -> list[Request]:
        """Return those of *requests*, which were acked, that may start now."""
        return requests

    def _take_reports(self, slots: Slots) -> list[Request]:
        left = [slots.sync, slots.asynchronous]

        def fits(request: Request) -> bool:
            left[request.is_async] -= 1
            return left[request.is_async] >= 0

        return self._leave_reports(fits)

    def _leave_reports(self, leaves: Callable[[Request], bool]) -> list[Request]:
        taken: list[Request] = []
        kept: deque[Request] = deque()
        for request in self._reports:
            (taken if leaves(request) else kept).append(request)
        self._reports = kept
        self._count -= len(taken)
        return taken

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
        """Take out sync requests from the end until at most *load* seconds of work or *keep* requests are
        left. load: -1.0 to ignore the duration."""
        dropped: list[Request] = []
        with self._lock:
            for key in reversed(self._order):
                line = self._lines[key]
                while line and not key[1] and self.load > load and self._count > keep:
                    dropped.append(self._leave(line.pop()))
        return dropped

    def reweigh(self, seconds: Callable[[Request], float]) -> None:
        """Update the expected duration of each request here."""
        with self._lock:
            self.load = 0.0
            for line in self._lines.values():
                for request in line:
                    request.seconds = seconds(request)
                    if not request.is_async:
                        self.load += request.seconds

    def clear(self) -> list[Request]:
        """Take out all requests that have not ended."""
        with self._lock:
            return self._take(Slots(self._count, self._count))

    def wake(self) -> None:
        """End a wait() early, because there may be new slots. Any thread."""
        with self._lock:
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self._arrived.notify_all()

    def __len__(self) -> int:
        return self._count
