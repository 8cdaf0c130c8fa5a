"""TaskBucket: the ready queue of a worker that has rate-limited tasks.

Comes from:  Listener and ScheduleController (put_many), Mediator and pool (put_back).
Goes to:     Mediator, each limited task no faster than its rate; through *overflow* back to the broker.
Thread:      as ReadyQueue.

Each limited task has a line of its own and a bucket that holds one token: it gets its token when it is taken
to run, so runs start at least ``1 / rate`` seconds apart however long slots were missing. What would wait here
for over HORIZON seconds goes back to the broker until then, so that it holds neither a slot nor anybody up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from qworker.clock import Clock
from qworker.components.ready_queue import ReadyQueue, Slots
from qworker.request import Request

HORIZON = 1.0

Overflow = Callable[[Request, float], None]
"""Called with a request and the epoch second at which it may come back."""


class _Bucket:
    """Of one task: its line, when the next token drops, and until when tokens are promised to what went back."""

    __slots__ = ("interval", "line", "next_token", "promised")

    def __init__(self, rate: float) -> None:
        self.interval = 1.0 / rate
        self.line: deque[Request] = deque()
        self.next_token = 0.0
        self.promised = 0.0

    def wait(self, now: float) -> float:
        """Seconds that one more request would wait."""
        return max(0.0, self.next_token - now) + len(self.line) * self.interval


class TaskBucket(ReadyQueue):
    """rates: task name → runs a second. Times inside are monotonic seconds."""

    limits = True

    def __init__(
        self, rates: Mapping[str, float], clock: Clock, overflow: Overflow, lowest_first: bool = False
    ) -> None:
        super().__init__(lowest_first)
        self._clock = clock
        self._overflow = overflow
        self._buckets = {name: _Bucket(rate) for name, rate in rates.items() if rate > 0}  # under _lock
        self._waiting = 0  # under _lock

    def put_many(self, requests: Iterable[Request]) -> None:
        too_far: list[tuple[Request, float]] = []
        now = self._clock.monotonic()
        with self._lock:
            for request in requests:
                bucket = self._buckets.get(request.name)
                if bucket is None:
                    self._add(request)
                elif (wait := bucket.wait(now)) > HORIZON:
                    bucket.promised = max(bucket.promised, now + wait) + bucket.interval
                    too_far.append((request, bucket.promised - now))
                else:
                    bucket.line.append(request)
                    self._waiting += 1
            self._changed()
        wall = self._clock.now()
        for request, seconds in too_far:
            self._overflow(request, wall + seconds)

    def _take(self, slots: Slots) -> list[Request]:
        if not self._waiting:
            return super()._take(slots)
        now = self._clock.monotonic()
        taken: list[Request] = []
        left = [slots.sync, slots.asynchronous]
        for bucket in self._buckets.values():
            line = bucket.line
            if line and bucket.next_token <= now and left[line[0].is_async] > 0:
                bucket.next_token = now + bucket.interval
                left[line[0].is_async] -= 1
                self._waiting -= 1
                taken.append(line.popleft())
        taken.extend(super()._take(Slots(*left)))
        taken.sort(key=lambda request: -self._sign * request.leased.priority)
        return taken

    def _patience(self, timeout: float) -> float:
        tokens = [bucket.next_token for bucket in self._buckets.values() if bucket.line]
        return min(timeout, max(0.0, min(tokens) - self._clock.monotonic())) if tokens else timeout

    def clear(self) -> list[Request]:
        with self._lock:
            waiting = [request for bucket in self._buckets.values() for request in bucket.line]
            for bucket in self._buckets.values():
                bucket.line.clear()
            self._waiting = 0
            return super()._take(Slots(self._count, self._count)) + waiting

    def __len__(self) -> int:
        return self._count + self._waiting
