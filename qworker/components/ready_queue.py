"""ReadyQueue: requests that may run now, most urgent first, first come first served among equals.

Comes from:  Listener and ScheduleController (put), Mediator (put_back).
Goes to:     Mediator (get_many).
Thread:      any, under one lock that is never held while calling out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from qworker.request import Request


class ReadyQueue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._by_priority: dict[int, deque[Request]] = {}  # under _lock
        self._order: list[int] = []  # under _lock: the priorities there are, most urgent first
        self._count = 0  # under _lock

    def put_many(self, requests: Iterable[Request], front: bool = False) -> None:
        """Add *requests*; front: before their equals, in the given order."""
        with self._lock:
            for request in reversed(list(requests)) if front else requests:
                self._add(request, front)
            self._arrived.notify()

    def _add(self, request: Request, front: bool = False) -> None:
        priority = request.leased.priority
        line = self._by_priority.get(priority)
        if line is None:
            line = self._by_priority[priority] = deque()
            self._order = sorted(self._by_priority, reverse=True)
        if front:
            line.appendleft(request)
        else:
            line.append(request)
        self._count += 1

    def get_many(self, limit: int, timeout: float) -> list[Request]:
        """Take up to *limit* requests, best first; wait up to *timeout* seconds for the first. [] when none came."""
        with self._lock:
            if not self._ripe() and timeout > 0:
                self._arrived.wait(self._patience(timeout))
                self._ripe()
            return self._take(limit)

    def _ripe(self) -> bool:
        """Whether anything could be taken."""
        return self._count > 0

    def _patience(self, timeout: float) -> float:
        return timeout

    def _take(self, limit: int) -> list[Request]:
        taken: list[Request] = []
        for priority in self._order:
            line = self._by_priority[priority]
            while line and len(taken) < limit:
                taken.append(line.popleft())
        self._count -= len(taken)
        return taken

    def drop_last(self, count: int) -> list[Request]:
        """Take out up to *count* requests from the end: what would run last."""
        dropped: list[Request] = []
        with self._lock:
            for priority in reversed(self._order):
                line = self._by_priority[priority]
                while line and len(dropped) < count:
                    dropped.append(line.pop())
            self._count -= len(dropped)
        return dropped

    def clear(self) -> list[Request]:
        """Take out everything."""
        with self._lock:
            return self._take(self._count)

    def wake(self) -> None:
        """End a get_many() early. Any thread."""
        with self._lock:
            self._arrived.notify_all()

    def __len__(self) -> int:
        return self._count
