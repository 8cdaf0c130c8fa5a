"""DirectoryConsumer: the shared code of consumers of spool directories: lanes, turns, and waiting.

Comes from:  the Listener, through ``Consumer`` in ``transports/lease.py``.
Goes to:     ``dispatch`` (jobs, claimed by children) and ``spool_broker`` (messages of ``spool://``, claimed
             here).
Thread:      the listener only, except wake().

The kernel releases a lock with the process that holds it, so the messages of a dead worker are free at once:
there are no leases to renew, to lose or to reclaim. A frozen worker keeps its messages.
"""

from __future__ import annotations

import math
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Generic, TypeVar

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import LeaseLost
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Ack,
    Claim,
    Consumer,
    DeadLetter,
    Kind,
    Leased,
    Reclaimed,
    Release,
    Settlement,
    Store,
)

Order = Ack | Release | DeadLetter
"""A settlement of a message."""

_consumers = forgetful()
_guard = threading.Lock()
_latest = 0  # under _guard


def _next_generation(now: float) -> int:
    """Return a generation that is unique in this process."""
    global _latest
    with _guard:
        _latest = max(int(now * 1e6), _latest + 1)
        return _latest


class Lane:
    """A directory of messages. queue: the queue of its messages; "": consumed with every queue."""

    def __init__(self, queue: str, directory: SpoolDirectory) -> None:
        self.queue = queue
        self.directory = directory
        self.drained = False
        """Whether everything was taken, without a notification since."""


L = TypeVar("L", bound=Lane)


class DirectoryConsumer(Consumer, Generic[L]):
    """open_lanes: called with the queues to consume, by register() and later."""

    poll_cooldown = 0.0
    """How long notifications are ignored after a useless one; 0: never."""

    prefetched = False

    def __init__(self, open_lanes: Callable[[Sequence[str]], list[L]], clock: Clock = SYSTEM_CLOCK) -> None:
        self._open_lanes = open_lanes
        self._clock = clock
        self._lanes: list[L] = []
        self._queues: set[str] = set()
        """The queues for which lanes were opened."""
        self._generation = 0
        self._tags = count(1)
        self._turn = 0
        self._concurrency = 1
        self._more = False
        """Whether the last lease() left messages that had room, so that the leased ones can begin."""
        self._cooldown_until = -math.inf
        """On the monotonic clock."""
        self._wakeup = WakeupPipe()
        _consumers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: close descriptors that would keep the parent's locks after its death."""
        self._forget()
        self._close_lanes()
        self._wakeup = WakeupPipe()
        self._generation = 0

    # -- for subclasses --

    @abstractmethod
    def _take(self, lane: L, limit: int) -> list[Leased]:
        """Return up to *limit* messages of *lane*; [] when there are none left."""

    @abstractmethod
    def settle_held(self, orders: Sequence[Order]) -> set[int]:
        """Carry out *orders*; return the tags that are no longer held."""

    @abstractmethod
    def offer_again(self) -> None:
        """Deliver all held messages again: the previous receiver has lost them, or was asked to give them
        back."""

    @abstractmethod
    def _forget(self) -> None:
        """Release everything held, as if it had never been taken."""

    # -- Consumer --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._forget()
        self._close_lanes()
        self._wakeup.open()
        self._lanes = self._open_lanes(queues)
        self._queues = set(queues)
        self._concurrency = max(1, concurrency)
        self._generation = _next_generation(self._clock.now())
        return self._generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        self._require()
        messages = self._offered(limit)
        size = sum(len(leased.body) for leased in messages)
        if unknown := [queue for queue in queues if queue not in self._queues]:
            self._lanes += self._open_lanes(unknown)
            self._queues.update(unknown)
        lanes = self._in_turn(queues)
        most = min(limit, self._most_at_once())
        for lane in lanes:
            lane.directory.look()
            lane.drained = False
            while not lane.drained and len(messages) < most and size < MAX_LEASE_BYTES:
                taken = self._take(lane, most - len(messages))
                lane.drained = not taken
                messages += taken
                size += sum(len(leased.body) for leased in taken)
        self._more = most <= len(messages) < limit
        due = min((lane.directory.next_due() for lane in lanes), default=math.inf)
        # Nothing is taken before it is due, so that other workers may take it: the listener returns when it
        # is due.
        ahead = eta_window if delayed_limit > 0 else 0.0
        return Claim(messages, None if due == math.inf else due + ahead)

    def _most_at_once(self) -> int:
        """Return the maximum messages of one lease(), whatever its limit: they start when it returns, and the
        next call follows at once."""
        return sys.maxsize

    def _offered(self, limit: int) -> list[Leased]:
        """Return the messages of offer_again(), and up to *limit* that belong to no lane."""
        return []

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        orders = [each for each in settlements if not isinstance(each, Store)]
        if generation != self._generation:
            return {order.tag for order in orders}
        return self.settle_held(orders)

    def extend(self) -> None:
        self._require()

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return []

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        _, ready = self._wakeup.sleep(min(timeout, self.rest()), *self.files())
        return self._process_notifications(ready)

    def _process_notifications(self, ready: set[int]) -> bool:
        """Process the readable ones of files(); return whether there may be something to lease."""
        news, self._more = self._more, False
        notified = False
        for lane in self._lanes:
            if lane.directory.fileno() in ready:
                lane.directory.take_in()
                notified = True
                if not self.poll_cooldown:
                    lane.drained, news = False, True
            if lane.drained and lane.directory.rest() <= 0.0:
                lane.drained = False  # notified once: without room for it, it is not notified again
                news = True
        if notified and not news:
            self._cooldown_until = self._clock.monotonic() + self.poll_cooldown
        return news

    def wake(self) -> None:
        self._wakeup.wake()

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        return ()  # settle() has no answer that could be lost

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return ()

    def confirm(self) -> None:
        """Does nothing: settlements are certain when settle() returns."""

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        return 0  # jobs that were set aside are not run

    def running_path(self) -> str | None:
        return None

    def deregister(self) -> None:
        self._forget()
        self._close_lanes()
        self._wakeup.close()
        self._generation = 0

    # -- for a caller that also waits for other things --

    def files(self) -> list[int]:
        """Return the descriptors that are readable when there may be something to lease."""
        if self._ignored_for() > 0.0:
            return []
        return [lane.directory.fileno() for lane in self._lanes]

    def rest(self) -> float:
        """Return the seconds for which there is nothing new to lease, unless one of files() can be read."""
        if self._more:
            return 0.0
        rest = min((lane.directory.rest() for lane in self._lanes if lane.drained), default=math.inf)
        return min(rest, self._ignored_for() or math.inf)

    def has_news(self) -> bool:
        """Return whether there may be something new since the last lease(); once. Never waits."""
        return self.wait(0.0)

    # -- inside --

    def _ignored_for(self) -> float:
        """Return the seconds for which notifications are ignored; 0.0 when they are not."""
        return max(0.0, self._cooldown_until - self._clock.monotonic())

    def _require(self) -> None:
        if not self._generation:
            raise LeaseLost("this process takes nothing: register first")

    def _in_turn(self, queues: Sequence[str]) -> list[L]:
        lanes = [lane for lane in self._lanes if not lane.queue or lane.queue in queues]
        self._turn += 1
        first = self._turn % len(lanes) if lanes else 0
        return lanes[first:] + lanes[:first]

    def _close_lanes(self) -> None:
        for lane in self._lanes:
            lane.directory.close()
        self._lanes = []
