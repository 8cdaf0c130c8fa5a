"""The leasing side of the SQL broker: who holds which message, and the end of each.

Comes from:  the Listener.
Goes to:     the tables of ``schema.py``, by a connection of the listener's own.
Thread:      listener only, but for wake().
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from qworker.clock import Clock, boot_id, boottime
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import (
    Ack,
    Bury,
    Claim,
    Leased,
    Reclaimed,
    Release,
    ResultRow,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.owner_files import OwnerFiles, runtime_directory
from qworker.transports.sql.link import Claimed, Handle, Link, earliest
from qworker.transports.sql.poll_backoff import QUICKEST, Looker
from qworker.transports.sql.recent_settlements import Memory
from qworker.transports.sql.reclaim import HELD, NOW, forget_silent, reclaim, sweep
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import NEW_OWNER, NEXT_DUE, NEXT_NUMBER, PUT_BACK, REVOKED_SINCE
from qworker.transports.sql.settle import bury, release

ARMED_SECONDS = 60.0
"""For how long publishers ring for a holder that says no more."""
FULL_BEFORE_DISARMED = 3
REST = 0.25
"""For how long who has enough to do is not rung for, unless that changes."""
SECOND_LOOK = 0.015
"""Whoever published while we were about to say that we listen was not heard: look once more, so much
later."""
SLICE = 0.05
"""How soon in a wait the marks are looked at: children have begun by then what they were given."""


T = TypeVar("T")


class Holder:
    """The leasing half of SQLBroker, which supplies clock, handle and results."""

    _clock: Clock
    _results: ResultTable

    def __init__(self, handle: Handle, lease_seconds: float, uptime: Callable[[], float] | None) -> None:
        self._handle = handle
        self._lease_seconds = lease_seconds
        self._uptime = uptime  # None: leases are on the clock of the database
        self._waker = Looker()
        self._turn_of_queues = 0
        self._new_holder()

    def _new_holder(self) -> None:
        self._files = OwnerFiles(runtime_directory)
        self._epoch = 0  # 0: no holder
        self._renew_at = 0.0
        self._generation = 0
        self._news = False
        self._memory = Memory()
        self._armed = False
        self._arm_at = self._mirror_at = 0.0
        self._look_again = False
        self._full = 0
        self._due: tuple[tuple[str, ...], float | None] | None = None
        """What next_due() is to say for which queues, if it is asked next."""
        self._revoked: int | None = None
        """The last revocation that a claim saw, if revoked_since() is asked next."""

    def _disown(self) -> None:
        """In a forked child: what the parent holds stays its own, and dies with it."""
        self._files.let_go()
        self._waker.close()
        self._handle.abandon()
        self._new_holder()

    # -- being a holder --

    def _local(self) -> float:
        return boottime() if self._uptime is None else self._uptime()

    def _until(self) -> tuple[str, tuple[float, ...]]:
        """The end of a lease from now on, as an expression and its values."""
        if self._uptime is None:
            return f"{NOW} + %s", (self._lease_seconds,)
        return "%s", (self._uptime() + self._lease_seconds,)

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._waker.open()
        self._files.take()
        self._files.tidy()
        old = self._epoch
        until, values = self._until()
        statement = NEW_OWNER.format(until=until, armed=f"{NOW} + %s")
        row = (name, os.getpid(), boot_id(), self._files.lock, self._files.running, "\n".join(queues),
        concurrency,
               self._clock.now(), *values, ARMED_SECONDS)  # fmt: skip

        def work(link: Link) -> int:
            with link.transaction():
                if old:
                    self._give_back(link, old)
                epoch = int(link.ask(NEXT_NUMBER.format(table="qworker_owner", column="id"))[0][0])
                link.do(statement, (epoch, *row))
                if CRASHING:
                    crash_point("registering")
            link.listen()
            return epoch

        began = self._local()
        self._results.forget_layout()
        self._epoch = self._handle.run(work)
        self._generation = self._handle.generation
        self._memory = Memory()
        self._armed = True
        self._renew_at = began + self._lease_seconds / 3
        return self._epoch

    def _run(self, work: Callable[[Link], T]) -> T:
        """What *work* makes of the connection; when that is a new one, what the server lost with the old is
        redone."""
        if not self._epoch:
            raise LeaseLost("this process holds no leases: register first")
        self._handle.open()
        if self._generation != self._handle.generation:
            self._results.forget_layout()
            self._handle.run(self._reconnected)
            self._generation = self._handle.generation
            self._news = True  # what was rung on the old connection, nobody heard
        return self._handle.run(work)

    def _reconnected(self, link: Link) -> None:
        link.listen()
        self._results.prepare(link, self._memory.all_recent())
        with link.transaction():
            stray = {tag for (tag,) in link.ask(HELD, (self._epoch,))} - self._memory.held
            for settlements in self._memory.recent(stray):
                acks = {each.tag: each for each in settlements if type(each) is Ack}
                self._settle_all(
                    link, self._epoch, acks, [each for each in settlements if type(each) is not Ack]
                )
            if stray:
                link.do(PUT_BACK, (list(stray), self._epoch))

    def running_path(self) -> str | None:
        return self._files.running or None

    def _renew(self, link: Link) -> None:
        if CRASHING:
            crash_point("renewing")
        began = self._local()
        until, values = self._until()
        armed = f", armed_until = {NOW} + {ARMED_SECONDS}" if self._armed else ""
        if not link.do(
            f"UPDATE qworker_owner SET lease_until = {until}{armed} WHERE id = %s", (*values, self._epoch)
        ):
            raise LeaseLost(
                f"worker {self._epoch} was silent for over {self._lease_seconds:g} s and taken for dead"
            )
        self._renew_at = began + self._lease_seconds / 3

    def _mirror(self, link: Link) -> None:
        """Copy the marks to our row, where they can be read if this whole machine is gone."""

        def write(tags: set[int]) -> None:
            text = " ".join(map(str, sorted(tags)))
            link.do("UPDATE qworker_owner SET running = %s WHERE id = %s", (text, self._epoch))

        self._mirror_at = time.monotonic() + SLICE
        self._files.copy_running(write)

    def _mirror_in_time(self, link: Link) -> None:
        if time.monotonic() >= self._mirror_at:
            self._mirror(link)

    def extend(self) -> None:
        def work(link: Link) -> None:
            self._renew(link)
            self._mirror(link)

        self._run(work)

    # -- leasing --

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        messages = self._lease(queues, limit, delayed_limit, eta_window)
        last_revocation, self._revoked = self._revoked, None
        return Claim(messages, self._next_due(queues), last_revocation)

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        start = self._turn_of_queues = (self._turn_of_queues + 1) % len(queues)
        order = (*queues[start:], *queues[:start])
        now = self._clock.now()

        def claim(queue: str, link: Link) -> Claimed:
            return link.claim(self._epoch, queue, now, limit, now + horizon, near)

        self._run(self._look_after)
        asked = limit
        rows: list[Leased] = []
        dues: list[float | None] = []
        for queue in order:  # each by itself: what one has taken, a retry of the next must not forget
            try:
                ready, early, due, self._revoked = self._run(partial(claim, queue))
            except BrokerUnavailable:
                if not rows:
                    raise
                break  # the next claim will say the same
            limit -= len(ready)
            near -= len(early)
            rows += ready + early
            dues.append(due)
            self._memory.took(rows)
        if CRASHING and rows:
            crash_point("claiming")
        self._due = None if len(dues) < len(order) else (tuple(queues), earliest(dues))
        self._full = self._full + 1 if asked > 0 and limit <= 0 else 0
        if self._armed and self._full >= FULL_BEFORE_DISARMED:
            with suppress(BrokerUnavailable):
                self._run(lambda link: self._arm(link, False))
        rows.sort(key=_urgency)
        return rows

    def _look_after(self, link: Link) -> None:
        if self._local() >= self._renew_at:
            self._renew(link)
        self._mirror_in_time(link)

    def _next_due(self, queues: Sequence[str]) -> float | None:
        known, self._due = self._due, None
        if known is not None and known[0] == tuple(queues):
            return known[1]

        return self._run(partial(next_due, queues))

    # -- settling --

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        self._due = None
        acks = {each.tag: each for each in reversed(settlements) if type(each) is Ack}
        others = [each for each in settlements if type(each) is not Ack]
        twice = {each.tag for each in settlements if type(each) is Ack and acks[each.tag] is not each}
        plain = not others and not any(ack.row for ack in acks.values())

        def work(link: Link) -> set[int]:
            if plain:
                lost = acks.keys() - link.remove(list(acks), epoch)
            else:
                self._results.prepare(link, settlements)
                with link.transaction():
                    lost = self._settle_all(link, epoch, acks, others)
            if epoch == self._epoch:
                self._mirror_in_time(link)
            return lost

        lost = self._run(work)
        if epoch == self._epoch:
            self._memory.settled(settlements)
        return lost | twice

    def confirm(self) -> None:
        self._run(lambda link: link.flush())

    def _settle_all(
        self, link: Link, epoch: int, acks: dict[int, Ack], others: Sequence[Settlement]
    ) -> set[int]:
        now = self._clock.now()
        gone = link.remove(list(acks), epoch) if acks else set()
        if CRASHING:
            crash_point("acking")
        rows: list[ResultRow] = [ack.row for tag, ack in acks.items() if ack.row is not None and tag in gone]
        lost = acks.keys() - gone
        for settlement in others:
            if isinstance(settlement, Store):
                if CRASHING:
                    crash_point("storing")
                rows.append(settlement.row)
            elif isinstance(settlement, Release):
                if not release(link, epoch, settlement, now):
                    lost.add(settlement.tag)
            elif isinstance(settlement, Bury):
                if not bury(link, epoch, settlement, now):
                    lost.add(settlement.tag)
                elif settlement.row is not None:
                    rows.append(settlement.row)
        self._results.store(link, rows)
        if any(isinstance(each, Release) for each in others):
            link.ring()
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        now = None if self._uptime is None else self._uptime()
        return self._run(lambda link: reclaim(link, self._epoch, now, silent))

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        now = self._clock.now()
        rows = self._run(lambda link: link.ask(REVOKED_SINCE, (cursor, now)))
        return (rows[-1][0] if rows else cursor), [Revocation(row[1], row[2] == 1, row[3]) for row in rows]

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = forget_silent(link) if self._uptime is None else 0
            return count + sweep(link, self._results, now, now - dead_expires, dead_max)

        return self._run(work)

    # -- waiting --

    def _arm(self, link: Link, armed: bool) -> None:
        """Let publishers ring for us, or not."""
        until = f"{NOW} + {ARMED_SECONDS}" if armed else "0"
        link.do(f"UPDATE qworker_owner SET armed_until = {until} WHERE id = %s", (self._epoch,))
        self._armed = armed
        self._arm_at = time.monotonic() + REST

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        if not self._armed:
            left = self._arm_at - time.monotonic() if self._full else 0.0
            if left > 0 and (self._waker.sleep(min(timeout, left))[0] or timeout < left):
                return False
            self._run(lambda link: self._arm(link, True))
            self._look_again = True
            return True
        until = time.monotonic() + max(0.0, timeout)
        again = math.inf
        if self._look_again:
            self._look_again = False
            again = time.monotonic() + SECOND_LOOK
        marks_at = time.monotonic() + SLICE
        while True:
            if self._run(lambda link: link.heard()) or self._news:
                self._news = False
                self._waker.pause = QUICKEST
                return True
            now = time.monotonic()
            if now >= marks_at:
                marks_at = math.inf
                self._run(self._mirror)
            if now >= again:
                return True
            if now >= until:
                return False
            link = self._handle.open()
            if self._waker.rest(link.fileno(), min(until, again, marks_at) - now):
                return False

    def wake(self) -> None:
        self._waker.wake()

    # -- the end --

    def deregister(self) -> None:
        epoch, self._epoch = self._epoch, 0

        def work(link: Link) -> None:
            with link.transaction():
                self._give_back(link, epoch)
                link.ring()

        try:
            with self._files.ending():
                if epoch:
                    self._handle.run(work)
        finally:
            self._handle.close()
            self._new_holder()

    def _give_back(self, link: Link, epoch: int) -> None:
        """Hold nothing any more, under the epoch that was; not counted."""
        link.do("UPDATE qworker_message SET state = 0, owner = NULL WHERE owner = %s AND state = 2", (epoch,))
        if CRASHING:
            crash_point("deregistering")
        link.do("DELETE FROM qworker_owner WHERE id = %s", (epoch,))


def next_due(queues: Sequence[str], link: Link) -> float | None:
    """When the first delayed message of *queues* falls due; None when none waits."""
    return earliest([link.ask(NEXT_DUE, (queue,))[0][0] for queue in queues])


def _urgency(leased: Leased) -> tuple[int, int]:
    return (-leased.priority, leased.tag)
