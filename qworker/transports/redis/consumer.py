"""The leasing side of the Redis broker: who holds which message.

Comes from:  the Listener.
Goes to:     the scripts; ``waiting.py`` for waiting, ``reclaim.py`` for what the dead held.
Thread:      listener only, but for wake().
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qworker.clock import Clock, boot_id, boottime
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import MAX_LEASE_BYTES, Claim, Leased, Reclaimed, Revocation, Settlement
from qworker.transports.owner_files import OwnerFiles, runtime_directory
from qworker.transports.redis.connection import Link, Script, checked, pack
from qworker.transports.redis.dead_letters import PORTION, SWEEP, Letters
from qworker.transports.redis.envelope import from_payload
from qworker.transports.redis.layout import Layout
from qworker.transports.redis.reclaim import Watch
from qworker.transports.redis.scripts import ENLIST, EXTEND, GIVE_BACK, LEASE, MARK, SETTLE
from qworker.transports.redis.settling import operations
from qworker.transports.redis.url import Endpoint
from qworker.transports.redis.waiting import Doorbell, Numbers

RESTORE_SECONDS = 10.0
"""How often to look for what stock consumers left behind."""
POLL_SECONDS = 0.25
"""How often to look for what others published with a priority, of which no bell tells."""
MARK_SECONDS = 0.1
"""How often at most to tell the server which messages are being run."""
ALL = (0, 2**53)
MOST_AHEAD = 8
"""How many messages of a queue may be taken at once while we wait: few, for a worker that is frozen takes
them too."""


class Holder(Letters):
    """The leasing half of RedisBroker, which supplies clock, layout, links and where the server is."""

    _where: Endpoint
    _clock: Clock
    _layout: Layout

    def __init__(self, lease_seconds: float, uptime: Callable[[], float] | None) -> None:
        self._lease_seconds = lease_seconds
        self._leases_on = uptime
        """The clock of the leases; None: the server's."""
        self._uptime = uptime or boottime
        self._link = Link(self._where)
        self._doorbell = Doorbell(self._where, self._layout)
        self._turn_of_queues = 0
        self._new_holder()

    def _new_holder(self) -> None:
        self._files = OwnerFiles(runtime_directory)
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        self._epoch = 0  # 0: no holder
        self._held: dict[int, bytes] = {}
        """tag → field of ``unacked``."""
        self._number = 0
        self._strays: list[tuple[int, int]] = []
        """Numbers of claims of which no answer came: what they took is ours without our knowing."""
        self._renew_at = 0.0
        self._restore_at = self._mark_at = self._poll_at = 0.0
        self._watch = Watch(self._layout)
        self._queues: tuple[str, ...] = ()
        self._listened = False
        """Whether wait() has listened for revocations since revoked_since() was asked."""
        self._emptied = False
        """Whether the last claim left nothing behind."""
        self._due: tuple[tuple[str, ...], float | None] | None = None
        """What next_due() is to say for which queues, if it is asked next."""
        self._doorbell.claims.clear()

    def _disown(self) -> None:
        """In a forked child: what the parent holds stays its own, and dies with it."""
        self._files.let_go()
        self._link.abandon()
        self._doorbell.abandon()
        self._link, self._doorbell = Link(self._where), Doorbell(self._where, self._layout)
        self._new_holder()

    def _call(self, script: Script, *arguments: Any) -> Any:
        return self._layout.run(self._link, script, self._clock.now(), *arguments)

    def _lease_now(self) -> str:
        return "" if self._leases_on is None else repr(self._leases_on())

    # -- holding --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._check_eviction()
        self._give_back()
        self._files.take()
        self._files.tidy()
        record = {
            "name": name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "queues": "\n".join(queues),
            "concurrency": concurrency,
            "started": repr(self._clock.now()),
            "lease_seconds": repr(self._lease_seconds),
            "lock": self._files.lock,
            "marks": self._files.running,
        }
        fields = [part for pair in record.items() for part in pair]
        self._renew_at = self._uptime() + self._lease_seconds / 3
        if CRASHING:
            crash_point("registering")
        self._doorbell.open(queues)
        self._epoch = int(
            self._call(ENLIST, self._lease_now(), repr(self._lease_seconds), len(queues), *queues, *fields)
        )
        self._queues = tuple(queues)
        return self._epoch

    def _check_eviction(self) -> None:
        """Refuse a server that throws away messages when its memory is full."""
        (reply,) = self._link.ask(pack(("INFO", "memory")))
        text = b"" if isinstance(reply, Exception) else reply
        _, found, rest = text.partition(b"maxmemory_policy:")
        policy = rest.split(None, 1)[0].decode() if found else ""
        if policy.startswith("allkeys-") and not self._layout.allow_eviction:
            raise ConfigurationError(
                f"{self._where.safe_url} has maxmemory-policy {policy}: when its memory is full it deletes "
                "messages. "
                "Set it to noeviction, or accept the loss: broker_transport_options = "
                '{"allow_eviction": True}',
                setting="broker_url",
            )

    def _require(self) -> None:
        if not self._epoch:
            raise LeaseLost("this process holds no leases: register first")

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"worker {self._epoch} was silent for over {self._lease_seconds:g} s and taken for dead"
        )

    def running_path(self) -> str | None:
        return self._files.running or None

    def extend(self) -> None:
        self._require()
        if CRASHING:
            crash_point("renewing")
        now = self._uptime()
        fields = self._held.values()
        if self._call(EXTEND, self._epoch, self._lease_now(), repr(self._lease_seconds), *fields) is None:
            raise self._lost()
        self._renew_at = now + self._lease_seconds / 3

    # -- leasing --

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        messages = self._lease(queues, limit, delayed_limit, eta_window)
        # Whoever revoked since the last wait() is told of by the next.
        listened, self._listened = self._listened, False
        last_revocation = 0 if listened and not self._doorbell.revoked else None
        return Claim(messages, self._next_due(queues), last_revocation)

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        self._require()
        if self._uptime() >= self._renew_at:
            self.extend()
        self._recover_strays()
        taken = self._take_ahead(queues)
        limit, near = max(0, limit - len(taken)), max(0, near)
        if (taken and self._emptied) or not (limit or near):
            return taken
        try:
            return taken + self._claim(queues, limit, near, horizon)
        except (BrokerUnavailable, LeaseLost):
            if taken:
                return taken  # the next claim will say the same
            raise

    def _claim(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        start = self._turn_of_queues = (self._turn_of_queues + 1) % len(queues)
        numbers = self._reserve(limit + near)
        turn = (*queues[start:], *queues[:start])
        try:
            found = self._call(LEASE, *self._claiming(turn, limit, near, horizon, numbers[0]))
        except BaseException:
            self._strays.append(numbers)
            raise
        if found is None:
            raise self._lost()
        if CRASHING and len(found) > 1:
            crash_point("claiming")
        self._due = tuple(queues), float(found[0]) if found[0] else None
        self._emptied = limit > 0 and len(found) // 2 < limit
        return self._take(found)

    def _reserve(self, count: int) -> Numbers:
        first = self._number
        self._number += count
        return first, self._number

    def _claiming(
        self, queues: Sequence[str], limit: int, near: int, horizon: float, first: int
    ) -> tuple[Any, ...]:
        """What LEASE is to be told."""
        steps, until = self._layout.scale.steps, repr(self._clock.now() + horizon)
        return (self._epoch, limit, near, until, MAX_LEASE_BYTES, first, len(steps), *steps, *queues)

    def _ahead_of(self, limit: int, queue: str) -> tuple[bytes, Numbers]:
        """The claim that waits behind a BLMOVE, and its numbers."""
        numbers = self._reserve(limit)
        claiming = self._claiming((queue,), limit, 0, 0.0, numbers[0])
        return self._layout.packed(LEASE, self._clock.now(), *claiming), numbers

    def _take_ahead(self, queues: Sequence[str]) -> list[Leased]:
        """What was claimed while we waited."""
        claims = [(numbers, answer) for numbers, answer in self._doorbell.claims if answer is not None]
        self._doorbell.claims.clear()
        if not claims:
            return []
        if CRASHING:
            crash_point("claiming")
        found = [part for _, answer in claims for part in answer[1:]]
        self._emptied = all(len(answer) // 2 < end - first for (first, end), answer in claims)
        self._due = None
        if len(queues) == 1 and len(claims) == 1:
            due = claims[0][1][0]
            self._due = tuple(queues), float(due) if due else None
        return self._take([b"", *found])

    def _take(self, found: list[bytes]) -> list[Leased]:
        """The messages of a claim, as fields and payloads after one another."""
        scale, held = self._layout.scale, self._held
        names: dict[bytes, str] = {}
        doubles = []
        rows = []
        for at in range(1, len(found), 2):
            field = found[at]
            queue = field.split(b":", 4)[4]
            name = names.get(queue) or names.setdefault(queue, queue.decode())
            message = from_payload(found[at + 1], scale, name)
            if message.tag in held:  # two copies: a stock consumer took ours for lost
                doubles.append(held[message.tag])
            held[message.tag] = field
            rows.append(message)
        if doubles:
            with contextlib.suppress(BrokerUnavailable):  # then they go back when we end
                self._call(SETTLE, *(part for field in doubles for part in ("ack", field)))
        rows.sort(key=lambda leased: scale.to_kombu(leased.priority))
        return rows

    def _recover_strays(self) -> None:
        self._strays += [numbers for numbers, answer in self._doorbell.claims if answer is None]
        self._doorbell.claims[:] = [claim for claim in self._doorbell.claims if claim[1] is not None]
        while self._strays:
            self._call(GIVE_BACK, self._epoch, "", "stray", *self._strays[0])
            del self._strays[0]

    def _next_due(self, queues: Sequence[str]) -> float | None:
        self._require()
        known, self._due = self._due, None
        if known is not None and known[0] == tuple(queues):
            return known[1]
        return next_due(self._link, self._layout, queues)

    # -- settling --

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        self._require()
        held = self._held if epoch == self._epoch else {}
        arguments, tags, lost = operations(settlements, held, self._clock.now(), self._layout.results_prefix)
        if arguments:
            if CRASHING:
                crash_point("acking")
            for field in self._call(SETTLE, *arguments):
                lost.add(tags[field])
        for tag in tags.values():
            del held[tag]
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        self._require()
        if self._uptime() >= self._renew_at:
            with contextlib.suppress(LeaseLost):  # the next claim will say so
                self.extend()
        now = None if self._leases_on is None else self._leases_on()
        found = self._watch.reclaim(self._link, self._epoch, self._clock.now(), now, silent)
        if self._uptime() >= self._restore_at:
            self._restore_at = self._uptime() + RESTORE_SECONDS
            self._watch.restore(self._link, self._clock.now())
        return found

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._require()
        self._doorbell.revoked = False
        return self._revoked_since(self._link, cursor)

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        self._require()
        before = repr(self._clock.now() - dead_expires)
        count: int = self._call(SWEEP, before, dead_max, PORTION)
        return count

    def _copy_marks(self) -> None:
        """Let other hosts know which messages are being run, should this one fall silent."""
        now = time.monotonic()
        if now < self._mark_at or not self._epoch:
            return
        self._mark_at = now + MARK_SECONDS
        with contextlib.suppress(BrokerUnavailable):
            self._files.copy_running(lambda tags: self._call(MARK, self._epoch, " ".join(map(str, tags))))

    # -- waiting --

    @property
    def prefetched(self) -> bool:
        return bool(self._doorbell.claims)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._require()
        if prefetch <= 0:
            self._doorbell.call_off()
        if self._doorbell.claims:
            return True
        end = time.monotonic() + timeout
        each = min(prefetch // max(1, len(self._queues)), MOST_AHEAD)
        claim = partial(self._ahead_of, each) if each > 0 else None
        while True:
            self._copy_marks()
            left = end - time.monotonic()
            part = min(left, MARK_SECONDS) if self._held else left
            try:
                if self._emptied and left > 0:
                    self._doorbell.arm(claim)
                    part = min(part, POLL_SECONDS)
                rang = self._doorbell.wait(part)
                if rang is False and self._emptied:
                    rang = self._others_published()
            except BrokerUnavailable:
                return True  # the next claim will say what is wrong
            self._listened = True
            if rang:
                self._due, self._emptied = None, False
            if rang is not False or left <= 0:
                return bool(rang)

    def _others_published(self) -> bool:
        now = time.monotonic()
        if now < self._poll_at or not self._queues:
            return False
        self._poll_at = now + POLL_SECONDS
        keys = [
            self._layout.list_of(queue, step)
            for queue in self._queues
            for step in self._layout.scale.steps
            if step or not self._doorbell.blocks
        ]
        return bool(checked(self._link, self._link.ask(pack(("EXISTS", *keys)))[0]))

    def wake(self) -> None:
        self._doorbell.wake()

    # -- the end --

    def deregister(self) -> None:
        try:
            with self._files.ending():
                self._doorbell.call_off()
                self._give_back()
        finally:
            self._link.close()
            self._new_holder()

    def _give_back(self) -> None:
        """Hold nothing any more, under the epoch that was; not counted."""
        if self._epoch:
            if CRASHING:
                crash_point("deregistering")
            self._call(GIVE_BACK, self._epoch, "", "own", *ALL)
        self._hold_nothing()


def next_due(link: Link, layout: Layout, queues: Sequence[str]) -> float | None:
    """When the first delayed message of *queues* falls due; None when none waits."""
    commands = b"".join(
        pack(("ZRANGE", layout.key(f"delayed.{queue}"), 0, 0, "WITHSCORES")) for queue in queues
    )
    replies = link.ask(commands, len(queues))
    dues = [checked(link, reply) for reply in replies]
    return min((float(due[1]) for due in dues if due), default=None)
