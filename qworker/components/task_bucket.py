"""TaskBucket: the ready queue of a worker that has rate-limited tasks.

Comes from:  Listener and ScheduleController (put), Mediator (put_back).
Goes to:     Mediator, each limited task no faster than its rate; through *overflow* back to the broker.
Thread:      as ReadyQueue.

Each limited task has a token bucket that holds one token: its runs start at least ``1 / rate`` seconds apart.
What would wait here for over ``HORIZON`` seconds goes back to the broker until then, so that it holds neither
a slot nor anybody else up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from qworker.clock import Clock
from qworker.components.ready_queue import ReadyQueue
from qworker.request import Request

HORIZON = 1.0

Overflow = Callable[[Request, float], None]
"""Called with a request and the epoch second at which it may come back."""


class _Bucket:
    """Of one task: when the next token drops, and until when tokens are promised to what went back."""

    __slots__ = ("interval", "next_token", "promised")

    def __init__(self, rate: float) -> None:
        self.interval = 1.0 / rate
        self.next_token = 0.0
        self.promised = 0.0


class TaskBucket(ReadyQueue):
    """rates: task name → runs a second. Times inside are monotonic seconds."""

    def __init__(self, rates: Mapping[str, float], clock: Clock, overflow: Overflow) -> None:
        super().__init__()
        self._clock = clock
        self._overflow = overflow
        self._buckets = {name: _Bucket(rate) for name, rate in rates.items() if rate > 0}
        self._waiting: list[tuple[float, int, Request]] = []  # under _lock: a heap
        self._number = 0  # under _lock

    def put_many(self, requests: Iterable[Request], front: bool = False) -> None:
        too_far: list[tuple[Request, float]] = []
        now = self._clock.monotonic()
        with self._lock:
            for request in reversed(list(requests)) if front else requests:
                bucket = None if front else self._buckets.get(request.name)
                if bucket is None:  # not limited; or put back: it has had its token
                    self._add(request, front)
                elif bucket.next_token - now > HORIZON:
                    bucket.promised = max(bucket.promised, bucket.next_token) + bucket.interval
                    too_far.append((request, bucket.promised - now))
                else:
                    ripe = max(now, bucket.next_token)
                    bucket.next_token = ripe + bucket.interval
                    self._number += 1
                    heapq.heappush(self._waiting, (ripe, self._number, request))
            self._arrived.notify()
        wall = self._clock.now()
        for request, seconds in too_far:
            self._overflow(request, wall + seconds)

    def _ripe(self) -> bool:
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._add(heapq.heappop(self._waiting)[2])
        return self._count > 0

    def _patience(self, timeout: float) -> float:
        if not self._waiting:
            return timeout
        return min(timeout, max(0.0, self._waiting[0][0] - self._clock.monotonic()))

    def clear(self) -> list[Request]:
        with self._lock:
            waiting = [request for _, _, request in self._waiting]
            self._waiting.clear()
            return self._take(self._count) + waiting

    def __len__(self) -> int:
        return self._count + len(self._waiting)
