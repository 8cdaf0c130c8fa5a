"""SpoolConsumer: spool directories as a worker's listener consumes them.

Comes from:  the Listener, by the promise of ``transports/lease.py``.
Goes to:     the directories' claims, each held until its message is settled.
Thread:      listener only, but for wake().

The kernel frees a lock with the process that has it, so what a dead worker held is free at once: there is
nothing to renew, to lose and to take back. A worker that is frozen keeps what it has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import LeaseLost
from qworker.spooler.claiming import Claim as FileClaim
from qworker.spooler.directory import SpoolDirectory
from qworker.transports.forked import forgetful
from qworker.transports.lease import (
    MAX_LEASE_BYTES,
    Ack,
    Claim,
    Consumer,
    DeadLetter,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.wakeup import WakeupPipe

logger = logging.getLogger(__name__)

_consumers = forgetful()

Read = Callable[[FileClaim, int, int], Leased]
"""Makes the message of a claim, with this tag; the last is how often it was begun."""


Order = Ack | Release | DeadLetter


class Policy(NamedTuple):
    """What becomes of a job that did not succeed: it is set aside when it was begun *max_attempts* times
    (None: never), and waits before the second attempt for *backoff* seconds, which double with each one, up
    to *most*."""

    max_attempts: int | None
    backoff: float
    most: float

    def delay(self, attempts: int) -> float:
        """Seconds until it is to be begun again, having been begun so often."""
        return min(self.backoff * 2.0 ** min(max(0, attempts - 1), 60), self.most)


class Lane:
    """A directory of which messages are made.

    queue: for whose consumers; "": for all. policy: None where messages say themselves what becomes of them.
    """

    def __init__(self, queue: str, directory: SpoolDirectory, read: Read, policy: Policy | None) -> None:
        self.queue = queue
        self.directory = directory
        self.read = read
        self.policy = policy
        self.drained = False
        """Whether all that was there has been claimed, and nothing was told of since."""


class _Held(NamedTuple):
    """What a message stands for. attempts: how often it was begun when it was claimed."""

    lane: Lane
    claim: FileClaim
    leased: Leased
    attempts: int


class SpoolConsumer(Consumer):
    """lanes: opened when this consumer registers, for the queues that it asks for."""

    def __init__(
        self, open_lanes: Callable[[Sequence[str]], list[Lane]], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._open_lanes = open_lanes
        self._clock = clock
        self._lanes: list[Lane] = []
        self._generation = 0
        self._tags = count(1)
        self._turn = 0
        self._held: dict[int, _Held] = {}
        self._stuck: list[_Held] = []
        """What has ended, and could not be removed."""
        self._offered: list[int] = []
        """Tags of what is held and to be given out again."""
        self._wakeup = WakeupPipe()
        _consumers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: close what would keep the parent's locks after its death."""
        self.release()
        self._close_lanes()
        self._wakeup = WakeupPipe()
        self._generation = 0

    # -- the promise --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self.release()
        self._close_lanes()
        self._wakeup.open()
        self._lanes = self._open_lanes(queues)
        self._generation = max(int(self._clock.now() * 1e6), self._generation + 1)
        return self._generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        if not self._generation:
            raise LeaseLost("this process claims nothing: register first")
        messages = [self._held[tag].leased for tag in self._offered]
        self._offered.clear()
        size = sum(len(leased.body) for leased in messages)
        lanes = self._in_turn(queues)
        for lane in lanes:
            lane.drained = False
            lane.directory.look()
            while len(messages) < limit and size < MAX_LEASE_BYTES:
                leased = self._next(lane)
                if leased is None:
                    lane.drained = True
                    break
                messages.append(leased)
                size += len(leased.body)
        due = min((lane.directory.next_due() for lane in lanes), default=math.inf)
        # Nothing is claimed ahead of its time, so that others may have it: who asks for what is due soon is to
        # come back when it is due.
        ahead = eta_window if delayed_limit > 0 else 0.0
        return Claim(messages, None if due == math.inf else due + ahead)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        orders = [each for each in settlements if not isinstance(each, Store)]
        if generation != self._generation:
            return {order.tag for order in orders}
        return self.settle_held(orders)

    def settle_held(self, orders: Sequence[Order]) -> set[int]:
        """Carry out *orders*; return the tags that are held no longer."""
        lost: set[int] = set()
        for order in orders:
            held = self._held.pop(order.tag, None)
            if held is None:
                lost.add(order.tag)
                continue
            try:
                _settle(held, order, self._clock.now())
            except OSError as error:
                # It has ended, and must not run again: it stays locked as long as this process lives.
                self._stuck.append(held)
                logger.error("%s cannot be settled, and stays locked: %s", held.claim.path, error)
        return lost

    def extend(self) -> None:
        if not self._generation:
            raise LeaseLost("this process claims nothing: register first")

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return []

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        _, ready = self._wakeup.sleep(min(timeout, self.rest()), *self.files())
        news = False
        for lane in self._lanes:
            if lane.drained and (lane.directory.fileno() in ready or lane.directory.rest() <= 0.0):
                lane.drained = False  # told once: who has no room for it is not told again
                news = True
        return news

    def wake(self) -> None:
        self._wakeup.wake()

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        return cursor, []

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        return 0

    def running_path(self) -> str | None:
        return None

    def deregister(self) -> None:
        self.release()
        self._close_lanes()
        self._wakeup.close()
        self._generation = 0

    # -- for who waits for other things, too --

    def files(self) -> list[int]:
        """What can be read when there may be something to lease."""
        return [lane.directory.fileno() for lane in self._lanes if lane.drained]

    def rest(self) -> float:
        """Seconds for which there is nothing new to lease, unless one of files() can be read."""
        return min((lane.directory.rest() for lane in self._lanes if lane.drained), default=math.inf)

    def has_news(self) -> bool:
        """Whether there may be something that was not known at the last lease(); said once. Never waits."""
        return self.wait(0.0)

    def offer_again(self) -> None:
        """Have all that is held given out once more: who had it knows nothing of it any more, or is asked."""
        self._offered = list(self._held)

    def release(self) -> None:
        """Give everything back, as if it had never been claimed."""
        for held in self._held.values():
            held.claim.let_go()
        self._held.clear()
        self._offered.clear()

    # -- inside --

    def _in_turn(self, queues: Sequence[str]) -> list[Lane]:
        lanes = [lane for lane in self._lanes if not lane.queue or lane.queue in queues]
        self._turn += 1
        first = self._turn % len(lanes) if lanes else 0
        return lanes[first:] + lanes[:first]

    def _next(self, lane: Lane) -> Leased | None:
        """Claim the next job of *lane*; None when there is none."""
        claim = lane.directory.next()
        if claim is None:
            return None
        tag = next(self._tags)
        attempts = claim.attempts
        leased = lane.read(claim, tag, attempts)
        self._held[tag] = _Held(lane, claim, leased, attempts)
        return leased

    def _close_lanes(self) -> None:
        for lane in self._lanes:
            lane.directory.close()
        self._lanes = []


def _settle(held: _Held, settlement: Order, now: float) -> None:
    claim, policy = held.claim, held.lane.policy
    if isinstance(settlement, Ack):
        claim.finish()
    elif isinstance(settlement, DeadLetter):
        claim.set_aside(settlement.reason)
    elif policy is None:
        due = now if settlement.due is None else settlement.due
        if settlement.counted:
            claim.begin()
        claim.give_back(max(0.0, due - now), returned=settlement.requeued)
    else:
        _return_job(held, settlement, policy)


def _return_job(held: _Held, settlement: Release, policy: Policy) -> None:
    """A job is not done. How often it was begun says what its process cannot say any more."""
    claim = held.claim
    attempts = claim.attempts
    if settlement.counted and attempts == held.attempts:  # its process died before it could count
        attempts = claim.begin()
    if attempts == held.attempts and settlement.requeued:
        claim.decline()
    elif not settlement.counted and not settlement.requeued:
        claim.let_go(held.attempts)  # it did not come to run, or not to its end, since the worker ends
    elif policy.max_attempts is not None and attempts >= policy.max_attempts:
        claim.set_aside(f"it was begun {attempts} times, and did not succeed")
    else:
        claim.give_back(policy.delay(attempts), returned=not settlement.counted)
