"""ScheduleController: the thread that owns the EtaSchedule, the heap of requests that are not due yet.

Comes from:  Listener (enter), for messages due within ``worker_eta_window``.
Goes to:     ReadyQueue when they are due, never earlier.
Thread:      schedule; owns the heap. Others use enter(), remove() and clear().

The heap is ordered by wall clock, like ETAs. The thread waits no longer than MAX_REST, so that it notices a
clock that was set forward.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable

from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue

MAX_REST = 1.0


class EtaSchedule:
    """A heap of requests by due time, under one lock. Removed requests stay as tombstones until they reach
    the top."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, int, Request]] = []  # under _lock: due, tag, number
        self._present: dict[Request, int] = {}  # under _lock: their numbers; the rest are tombstones
        self._number = 0  # under _lock: of the latest request

    def push(self, due: float, request: Request) -> bool:
        """Add *request*; return whether it is the next one due."""
        with self._lock:
            self._number += 1
            heapq.heappush(self._heap, (due, request.tag, self._number, request))
            self._present[request] = self._number
            self._drop_tombstones()
            return self._heap[0][3] is request

    def pop_due(self, now: float) -> list[Request]:
        """Take the requests due at the epoch second *now*, earliest first."""
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                entry = heapq.heappop(self._heap)
                del self._present[entry[3]]
                due.append(entry[3])
                self._drop_tombstones()
        return due

    def _is_tombstone(self, entry: tuple[float, int, int, Request]) -> bool:
        return self._present.get(entry[3]) != entry[2]

    def remove(self, request: Request) -> bool:
        """Remove *request*; return False if it is not here."""
        with self._lock:
            if self._present.pop(request, None) is None:
                return False
            if len(self._heap) > 2 * len(self._present) + 64:  # more tombstones than requests: rebuild
                self._heap = [entry for entry in self._heap if not self._is_tombstone(entry)]
                heapq.heapify(self._heap)
            self._drop_tombstones()
            return True

    def _drop_tombstones(self) -> None:
        """Remove tombstones from the top of the heap, so that its due time is the next one."""
        while self._heap and self._is_tombstone(self._heap[0]):
            heapq.heappop(self._heap)

    def next_due(self) -> float | None:
        with self._lock:
            return self._heap[0][0] if self._heap else None

    def snapshot(self) -> list[tuple[float, Request]]:
        """Return ``(due, request)`` of all requests, earliest first."""
        with self._lock:
            return [(entry[0], entry[3]) for entry in sorted(self._heap) if not self._is_tombstone(entry)]

    def clear(self) -> list[Request]:
        """Take out all requests."""
        return self.pop_due(math.inf)

    def __len__(self) -> int:
        return len(self._present)


class ScheduleController(ThreadComponent):
    """moved: called after requests fell due."""

    name = "schedule"

    def __init__(
        self,
        clock: Clock,
        on_crash: Callable[[str, BaseException], None],
        ready: ReadyQueue,
        moved: Callable[[], None],
    ) -> None:
        super().__init__(clock, on_crash)
        self.schedule = EtaSchedule()
        self._ready = ready
        self._moved = moved

    def enter(self, due: float, request: Request) -> None:
        """Keep *request* until epoch second *due*. Any thread."""
        if self.schedule.push(due, request):
            self.wake()

    def step(self, now: float) -> float | None:
        wall = self.clock.now()
        due = self.schedule.pop_due(wall)
        if due:
            self._ready.put_many(due)
            self._moved()
        following = self.schedule.next_due()
        return None if following is None else min(MAX_REST, max(0.0, following - wall))
