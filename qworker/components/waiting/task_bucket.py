"""TaskBucket: the ready queue of a worker that has rate-limited tasks.

Comes from:  Listener and ScheduleController (put_many), Mediator and pool (put_back).
Goes to:     Mediator, each limited task no faster than its rate; through *overflow* back to the broker.
Thread:      as ReadyQueue.

Each limited task has a line of its own and a bucket that holds one token: it gets its token when it is taken
to run, so runs start at least ``1 / rate`` seconds apart however long slots were missing. Each request
reserves the first moment that is free. What would wait here for over LONGEST_WAIT seconds goes back to the
broker until its moment, so that it holds neither a slot nor anybody up; when it returns it has its old place
in the line, before all that came later. So the order is kept, and nobody waits for ever.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from qworker.clock import Clock
from qworker.components.pool.contract import Slots
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue

LONGEST_WAIT = 1.0
MOST_LATE = 256
"""How many may wait beyond what fits into LONGEST_WAIT: who returned in time while there was no slot to run
in."""
MOST_REMEMBERED = 10_000
"""Of those in the broker, whose reservations are remembered; the others reserve anew when they return."""
FORGET_SECONDS = 60.0
"""Who has not returned so long after its moment is with another worker."""

Overflow = Callable[[Request, float], None]
"""Called with a request and the epoch second at which it may come back."""


class _Place(NamedTuple):
    """In a line: the monotonic time that was reserved, and a number that makes equal ones stand as they
    came."""

    reserved: float
    number: int
    request: Request


class _Bucket:
    """Of one task: its line, when the next token drops, and what is reserved."""

    __slots__ = ("_away", "_last", "_number", "interval", "line", "most", "next_token")

    def __init__(self, rate: float) -> None:
        self.interval = 1.0 / rate
        self.most = int(LONGEST_WAIT * rate) + MOST_LATE
        self.line: list[_Place] = []
        self.next_token = 0.0
        self._last: float | None = None
        """The latest moment that is reserved."""
        self._away: dict[str, float] = {}
        """Task id → what those reserved that went back, the earliest first."""
        self._number = 0

    def reserve(self, now: float) -> float:
        """The first moment that is free, which is taken then."""
        moment = max(now, self.next_token) + len(self.line) * self.interval
        if self._last is not None:
            moment = max(moment, self._last + self.interval)
        self._last = moment
        return moment

    def enter(self, request: Request, reserved: float) -> _Place | None:
        """Have *request* stand in line; return the last one if it is one too many."""
        self._number += 1
        insort(self.line, _Place(reserved, self._number, request))
        return self.line.pop() if len(self.line) > self.most else None

    def sent_away(self, request: Request, reserved: float, now: float) -> None:
        """Remember what *request* has reserved, which goes back to the broker."""
        away = self._away
        while away and away[first := next(iter(away))] < now - FORGET_SECONDS:
            del away[first]
        if len(away) < MOST_REMEMBERED:
            away[request.id] = reserved

    def returned(self, request: Request, now: float, wall: float) -> float | None:
        """What *request* reserved before, here or at another worker; None when it is new."""
        reserved = self._away.pop(request.id, None)
        if reserved is None and request.leased.due is not None and request.eta is None:
            return now + min(0.0, request.leased.due - wall)
        return reserved


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
        now, wall = self._clock.monotonic(), self._clock.now()
        with self._lock:
            for request in requests:
                bucket = self._buckets.get(request.name)
                if bucket is None:
                    self._add(request)
                elif (away := self._stand(bucket, request, now, wall)) is not None:
                    bucket.sent_away(*away, now)
                    too_far.append(away)
            self._changed()
        for request, reserved in too_far:
            self._overflow(request, wall + reserved - now)

    def _stand(
        self, bucket: _Bucket, request: Request, now: float, wall: float
    ) -> tuple[Request, float] | None:
        """Have *request* stand in its line; return who has to go back to the broker, and until when."""
        reserved = bucket.returned(request, now, wall)
        if reserved is None:
            reserved = bucket.reserve(now)
            if reserved - now > LONGEST_WAIT:
                return request, reserved
        last = bucket.enter(request, reserved)
        self._waiting += last is None
        return None if last is None else (last.request, bucket.reserve(now))

    def _take(self, slots: Slots) -> list[Request]:
        if not self._waiting:
            return super()._take(slots)
        now = self._clock.monotonic()
        taken: list[Request] = []
        left = [slots.sync, slots.asynchronous]
        for bucket in self._buckets.values():
            line = bucket.line
            if line and bucket.next_token <= now and left[line[0].request.is_async] > 0:
                request = line.pop(0).request
                bucket.next_token = now + bucket.interval
                left[request.is_async] -= 1
                self._waiting -= 1
                taken.append(request)
        taken.extend(super()._take(Slots(*left)))
        taken.sort(key=lambda request: -self._sign * request.leased.priority)
        return taken

    def _longest_wait(self, timeout: float) -> float:
        tokens = [bucket.next_token for bucket in self._buckets.values() if bucket.line]
        return min(timeout, max(0.0, min(tokens) - self._clock.monotonic())) if tokens else timeout

    def clear(self) -> list[Request]:
        with self._lock:
            waiting = [place.request for bucket in self._buckets.values() for place in bucket.line]
            for bucket in self._buckets.values():
                bucket.line.clear()
            self._waiting = 0
            return super()._take(Slots(self._count, self._count)) + waiting

    def __len__(self) -> int:
        return self._count + self._waiting
