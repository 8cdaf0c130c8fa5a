"""TaskBucket: the ready queue of a worker that has rate-limited tasks.

Comes from:  Listener and ScheduleController (put_many), Mediator and pool (put_back).
Goes to:     Mediator, each limited task no faster than its rate; through *overflow* back to the broker.
Thread:      like ReadyQueue.

Each limited task has its own queue and a bucket for one token. A request takes the token when it is taken to
run, so starts are at least ``1 / rate`` seconds apart, even after a time without slots. Each request reserves
the first free moment. If that is more than LONGEST_WAIT seconds away, the request goes back to the broker
until then, so that it blocks no others. When it returns, it has its old position, before all later ones. So
the order is kept, and no request waits forever.

A request that is acked first takes a second token when it may start, because its ack may have been slow. No
more wait for acks than can start within LONGEST_WAIT.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import NamedTuple

from qworker.clock import Clock
from qworker.components.pool.contract import Slots
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue

LONGEST_WAIT = 1.0
MOST_LATE = 256
"""Maximum requests in a queue beyond those of LONGEST_WAIT: they returned in time, but there was no slot."""
MOST_REMEMBERED = 10_000
"""Maximum number of reservations kept for requests in the broker; others reserve again when they return."""
FORGET_SECONDS = 60.0
"""A request that has not returned this long after its moment has gone to another worker."""

Overflow = Callable[[Request, float], None]
"""Called with a request and the epoch second at which it may return."""


class _Reservation(NamedTuple):
    """A position in a queue: the reserved monotonic time, and a number for the order of arrival."""

    reserved: float
    number: int
    request: Request


class _Bucket:
    """The state of one task: its queue, the time of the next token, and reservations."""

    __slots__ = (
        "_away", "_last", "_number", "_taken", "acking", "interval", "line", "most", "next_token", "started",
    )  # fmt: skip

    def __init__(self, rate: float) -> None:
        self.interval = 1.0 / rate
        self.most = int(LONGEST_WAIT * rate) + MOST_LATE
        self.line: list[_Reservation] = []
        self.next_token = 0.0
        self._last: float | None = None
        """The latest reservation."""
        self._away: dict[str, float] = {}
        """Task id → reservation of requests in the broker, earliest first."""
        self._number = 0
        self.started = -inf
        """When the last request started."""
        self.acking = 0
        """The number of requests that are acked before they start."""
        self._taken: tuple[Request | None, float, float] = (None, 0.0, 0.0)
        """The last request that took a token, and next_token and started before."""

    def free_at(self) -> float:
        """Return when the first request may be taken."""
        if self.acking and self.acking * self.interval >= LONGEST_WAIT:
            return inf
        request = self.line[0].request
        if request.acked:
            return self.start_at()
        return max(self.next_token, self.start_at()) if request.acks_late else self.next_token

    def start_at(self) -> float:
        """Return when the next request may start; one that is acked first may be taken before."""
        return self.started + self.interval

    def take(self, now: float) -> Request:
        """Return the first request, with its token."""
        request = self.line.pop(0).request
        self._taken = request, self.next_token, self.started
        self.next_token = now + self.interval
        if request.acked or request.acks_late:
            self.started = now
        return request

    def start(self, request: Request, now: float) -> bool:
        """Start *request*, which is acked, if it may start now."""
        if now < self.start_at():
            return False
        self._taken = request, self.next_token, self.started
        self.started = now
        self.acking -= 1
        return True

    def put_back(self, request: Request) -> None:
        """Put *request*, which has not run, before all others; it needs a token again."""
        self.line.insert(0, _Reservation(-inf, 0, request))
        last, token, started = self._taken
        if request is last:
            self.next_token, self.started, self._taken = token, started, (None, 0.0, 0.0)

    def reserve(self, now: float) -> float:
        """Reserve the first free moment."""
        moment = max(now, self.next_token) + len(self.line) * self.interval
        if self._last is not None:
            moment = max(moment, self._last + self.interval)
        self._last = moment
        return moment

    def enter(self, request: Request, reserved: float) -> _Reservation | None:
        """Add *request* to the queue; remove and return the last one if there are too many."""
        self._number += 1
        insort(self.line, _Reservation(reserved, self._number, request))
        return self.line.pop() if len(self.line) > self.most else None

    def sent_away(self, request: Request, reserved: float, now: float) -> None:
        """Remember the reservation of *request*, which goes back to the broker."""
        away = self._away
        while away and away[first := next(iter(away))] < now - FORGET_SECONDS:
            del away[first]
        if len(away) < MOST_REMEMBERED:
            away[request.id] = reserved

    def returned(self, request: Request, now: float, wall: float) -> float | None:
        """Return the earlier reservation of *request*, by this or another worker; None if it is new."""
        reserved = self._away.pop(request.id, None)
        if reserved is None and request.leased.due is not None and request.eta is None:
            return now + min(0.0, request.leased.due - wall)
        return reserved


class TaskBucket(ReadyQueue):
    """rates: task name → runs per second. Times inside are monotonic seconds."""

    limits = True

    def __init__(
        self, rates: Mapping[str, float], clock: Clock, overflow: Overflow, lowest_first: bool = False
    ) -> None:
        super().__init__(lowest_first)
        self._clock = clock
        self._overflow = overflow
        self._buckets = {name: _Bucket(rate) for name, rate in rates.items() if rate > 0}  # under _lock
        self._waiting = 0  # under _lock
        self._waited_at = -inf  # under _lock

    def put_many(self, requests: Iterable[Request]) -> None:
        too_far: list[tuple[Request, float]] = []
        now, wall = self._clock.monotonic(), self._clock.now()
        with self._lock:
            for request in requests:
                bucket = self._buckets.get(request.name)
                if bucket is None or request.failing is not None:
                    self._add(request)
                elif (away := self._stand(bucket, request, now, wall)) is not None:
                    bucket.sent_away(*away, now)
                    too_far.append(away)
            self._changed()
        for request, reserved in too_far:
            self._overflow(request, wall + reserved - now)

    def _add(self, request: Request, front: bool = False) -> None:
        bucket = self._buckets.get(request.name)
        if bucket is None or not front or request.failing is not None:
            super()._add(request, front)
        else:
            bucket.put_back(request)
            self._waiting += 1

    def _stand(
        self, bucket: _Bucket, request: Request, now: float, wall: float
    ) -> tuple[Request, float] | None:
        """Add *request* to its queue; return the request that has to go back to the broker, and its
        reservation; None if none has to."""
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
            if line and bucket.free_at() <= now and left[line[0].request.is_async] > 0:
                request = bucket.take(now)
                left[request.is_async] -= 1
                self._waiting -= 1
                taken.append(request)
        if taken:
            self._changed()  # the mediator waits for the next token, whoever took this one
        taken.extend(super()._take(Slots(*left)))
        taken.sort(key=lambda request: -self._sign * request.leased.priority)
        return taken

    def _longest_wait(self, timeout: float) -> float:
        """Wait for the next token, but only once: a request that did not take it then waits for a slot."""
        now, since = self._clock.monotonic(), self._waited_at
        self._waited_at = now
        tokens = [bucket.free_at() for bucket in self._buckets.values() if bucket.line]
        tokens += [bucket.start_at() for bucket in self._buckets.values() if bucket.acking]
        later = [token for token in tokens if token > since]
        return min(timeout, max(0.0, min(later) - now)) if later else timeout

    def acking(self, requests: Iterable[Request], number: int) -> None:
        with self._lock:
            for request in requests:
                if (bucket := self._buckets.get(request.name)) is not None:
                    bucket.acking += number

    def may_start(self, requests: list[Request]) -> list[Request]:
        with self._lock:
            now, buckets = self._clock.monotonic(), self._buckets
            return [
                request
                for request in requests
                if (bucket := buckets.get(request.name)) is None or bucket.start(request, now)
            ]

    def clear(self) -> list[Request]:
        with self._lock:
            waiting = [place.request for bucket in self._buckets.values() for place in bucket.line]
            for bucket in self._buckets.values():
                bucket.line.clear()
            self._waiting = 0
            return super()._take(Slots(self._count, self._count)) + waiting

    def __len__(self) -> int:
        return self._count + self._waiting
