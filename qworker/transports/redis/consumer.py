"""The consumer of the Redis broker: leasing and settling messages.

Comes from:  the Listener.
Goes to:     the scripts; ``waiting.py`` for held messages and waiting, ``reclaim.py`` for those of dead
             consumers.
Thread:      listener only, except wake().
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.process.crash_points import CRASHING, crash_point
from qworker.process.owner_files import runtime_directory
from qworker.transports.lease import (
    NO_ROOM,
    Ack,
    Claim,
    DeadLetter,
    Kind,
    Leased,
    Part,
    Reclaimed,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.lease_consumer import NOT_REGISTERED, LeaseConsumer, WorkerRecord
from qworker.transports.redis.connection import Link, Script, close_idle_links, pack
from qworker.transports.redis.database import Database
from qworker.transports.redis.join_rows import JoinKeys, part_arguments
from qworker.transports.redis.letters import PORTION, SWEEP
from qworker.transports.redis.reclaim import Reclaimer
from qworker.transports.redis.result_rows import row_arguments
from qworker.transports.redis.scripts import EXTEND, GIVE_BACK, LEASE, MARK, REGISTER, RUNNING, SETTLE
from qworker.transports.redis.sender import revoked_since
from qworker.transports.redis.waiting import Answer, Claims, Numbers, Waiter

RESTORE_SECONDS = 60.0
"""Maximum interval of checks for messages left by stock consumers."""
POLL_SECONDS = 0.25
"""Interval of claims if the server does not let us wait for markers."""
WATCH_SECONDS = 5.0
"""Minimum interval of claims that may make this worker watch queues, apart from those during a wait."""
RUNNING_SECONDS = 0.1
"""Minimum interval of updating the running messages in the server."""
ALL = (0, 2**53)
MOST_PREFETCHED = 8
"""How many messages may be taken at once during a wait: few, because a frozen worker takes them too."""


class RedisConsumer(LeaseConsumer):
    """uptime: the clock for leases; None: the server's."""

    poll_seconds = 60.0  # wait() claims more often

    def __init__(self, database: Database, lease_seconds: float, uptime: Callable[[], float] | None) -> None:
        self._database = database
        self._layout = database.layout
        self._link = Link(database.where)
        self._waiter = Waiter(database.where, database.layout)
        super().__init__(database.clock, lease_seconds, uptime, runtime_directory, f"{database.where.db}")

    def _start_over(self) -> None:
        super()._start_over()
        self._queues: tuple[str, ...] = ()
        """The queues of the last claim; before the first, the registered ones."""
        self._claims = Claims(self._layout, NOT_REGISTERED)
        self._reclaimer = Reclaimer(self._layout)
        self._restore_at = self._running_at = self._watch_at = 0.0

    def _abandon_connections(self) -> None:
        self._link.abandon()
        self._waiter.abandon()

    def _release_connections(self) -> None:
        self._link.close()
        self._waiter.drop()

    def close(self) -> None:
        """Stop being a consumer, and close everything that deregister() leaves open."""
        try:
            self.deregister()
        finally:
            self._waiter.close()

    def _call(self, script: Script, *arguments: Any) -> Any:
        return self._layout.run(self._link, script, self._clock.now(), *arguments)

    def _lease_now(self) -> str:
        return "" if self._leases_on is None else repr(self._leases_on())

    # -- registration --

    def _insert(self, record: WorkerRecord) -> int:
        self._refuse_eviction()
        self._remove()
        self._files.tidy()
        fields = {
            "name": record.name,
            "pid": record.pid,
            "host": record.host,
            "boot": record.boot,
            "queues": "\n".join(record.queues),
            "concurrency": record.concurrency,
            "started": repr(record.started),
            "lease_seconds": repr(self._lease_seconds),
            "lock": record.lock,
            "marks": record.running,
            "presence": record.presence,
        }
        crash_point("registering")
        generation = int(
            self._call(
                REGISTER,
                self._lease_now(),
                repr(self._lease_seconds),
                len(record.queues),
                *record.queues,
                *(part for pair in fields.items() for part in pair),
            )
        )
        self._queues = record.queues
        self._claims = Claims(self._layout, generation)
        self._waiter.open(generation)
        return generation

    def _refuse_eviction(self) -> None:
        """Raise ConfigurationError for a server that deletes messages when its memory is full."""
        (reply,) = self._link.ask(pack(("INFO", "memory")))
        text = b"" if isinstance(reply, Exception) else reply
        _, found, rest = text.partition(b"maxmemory_policy:")
        policy = rest.split(None, 1)[0].decode() if found else ""
        if policy.startswith("allkeys-") and not self._layout.allow_eviction:
            raise ConfigurationError(
                f"{self._database.where.safe_url} has maxmemory-policy {policy}: when its memory is full it "
                "deletes messages. Set it to noeviction, or accept the loss: broker_transport_options = "
                '{"allow_eviction": True}',
                setting="broker_url",
            )

    def _remove(self) -> None:
        """Release everything held under the old generation; uncounted."""
        if self._generation != NOT_REGISTERED:
            crash_point("deregistering")
            self._call(GIVE_BACK, self._generation, "", "own", *ALL)
        self._generation = NOT_REGISTERED

    def _give_back(self) -> None:
        self._waiter.stop()
        self._remove()
        self._pass_on(self._waiter.taken)

    def _renew(self) -> None:
        crash_point("renewing")
        fields = self._claims.held.values()
        lease = self._lease_now(), repr(self._lease_seconds)
        began = time.monotonic()
        reply = self._call(EXTEND, self._generation, *lease, self._presence, *fields)
        if reply is None:
            raise self._lost()
        if self._leases_on is None:
            self._reclaimer.note_leases(int(reply[0]), began + float(reply[1]))

    # -- leasing --

    def _claim(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> Claim:
        if self.renewal_is_due():
            self.extend()
        if self._queues != tuple(queues):
            self._queues = tuple(queues)
            self._waiter.call_off()
        self._return_orphaned()
        self._pass_on(self._waiter.taken.difference(queues))
        waiter, prefetched = self._waiter, [each for each in self._waiter.prefetches if each.answer]
        waiter.prefetches.clear()
        answers = [each.answer for each in prefetched if each.answer is not None]
        messages = [message for answer in answers for message in self._take(answer)]
        if messages and waiter.drained and all(each.queues == self._queues for each in prefetched):
            next_due = min((each.next_due for each in answers if each.next_due is not None), default=None)
            return Claim(messages, next_due, max(each.last_revocation for each in answers))
        limit = max(0, limit - len(messages))
        try:
            answer = self._ask_for_messages(self._queues, limit, max(0, delayed_limit), until)
        except (BrokerUnavailable, LeaseLost):
            if messages:
                return Claim(messages)  # the next claim will raise the same
            raise
        waiter.answered(self._queues, answer, limit)
        return Claim(messages + self._take(answer), answer.next_due, answer.last_revocation)

    def _ask_for_messages(
        self, queues: Sequence[str], limit: int, delayed_limit: int, until: float
    ) -> Answer:
        now = time.monotonic()
        # There are no stock publishers on a cluster.
        if watch := now >= self._watch_at and not self._database.where.cluster:
            self._watch_at = now + WATCH_SECONDS
        arguments, numbers = self._claims.prepare(queues, limit, delayed_limit, until, watch)
        try:
            reply = self._call(LEASE, *arguments)
        except BaseException:
            self._claims.orphaned.append(numbers)
            raise
        if reply is None:
            raise self._lost()
        return Answer.of(reply)

    def _take(self, answer: Answer) -> list[Leased]:
        if answer.fields:
            crash_point("claiming")
        messages, copies = self._claims.take(answer)
        if copies:
            with contextlib.suppress(BrokerUnavailable):  # then they go back when we end
                self._call(SETTLE, *(part for field in copies for part in ("ack", field)))
        return messages

    def _return_orphaned(self) -> None:
        """Give back what claims without an answer took."""
        prefetches, orphaned = self._waiter.prefetches, self._claims.orphaned
        orphaned += [each.numbers for each in prefetches if each.answer is None]
        prefetches[:] = [each for each in prefetches if each.answer is not None]
        while orphaned:
            self._call(GIVE_BACK, self._generation, "", "orphaned", *orphaned[0])
            del orphaned[0]

    def _urgency(self, leased: Leased) -> tuple[int, int]:
        # Otherwise they stay in the order of the lists
        return self._layout.scale.to_kombu(leased.priority), 0

    # -- settling --

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        if not all(isinstance(each, Store) for each in settlements):
            self._require()
        held = self._claims.held if generation == self._generation else {}
        arguments, tags, lost = operations(settlements, held, self._clock.now(), self._layout.join_keys)
        if arguments:
            if CRASHING:
                crash_point("acking")
                if any(getattr(settlement, "parts", ()) for settlement in settlements):
                    crash_point("recording-parts")
            for field in self._call(SETTLE, *arguments):
                lost.add(tags[field])
            crash_point("parts-recorded")
        for tag in tags.values():
            del held[tag]
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        self._require()
        if self.renewal_is_due():
            with contextlib.suppress(LeaseLost):  # the next claim will raise it
                self.extend()
        now = None if self._leases_on is None else self._leases_on()
        found = self._reclaimer.reclaim(
            self._link, self._generation, self._clock.now(), now, silent, self._files.running
        )
        close_idle_links()
        if silent and self._uptime() >= self._restore_at:
            self._restore_at = self._uptime() + min(RESTORE_SECONDS, self._layout.visibility_timeout / 6)
            self._reclaimer.restore(self._link, self._clock.now())
        return found

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._require()
        return revoked_since(self._link, self._layout, cursor, self._clock.now())

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        self._require()
        count: int = self._call(SWEEP, kind, repr(self._clock.now() - expires), most, PORTION)
        return count

    # -- waiting --

    @property
    def prefetched(self) -> bool:
        return bool(self._waiter.prefetches)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._require()
        waiter = self._waiter
        if prefetch <= 0:
            waiter.call_off()
        if waiter.prefetches:
            return True
        end = time.monotonic() + timeout
        queues = () if prefetch == NO_ROOM else self._queues
        claim = partial(self._packed_claim, min(prefetch, MOST_PREFETCHED)) if prefetch > 0 else None
        while True:
            self._publish_running()
            if prefetch == NO_ROOM:
                self._pass_on(waiter.taken)
            left = end - time.monotonic()
            part = min(left, RUNNING_SECONDS) if self._claims.held else left
            if left > 0 or prefetch == NO_ROOM:
                waiter.arm(self._link, queues, claim)
                part = min(part, waiter.lists.poll(self._link) if waiter.blocks else POLL_SECONDS)
            if waiter.prefetches:  # the connection was lost
                return True
            news = waiter.wait(part)
            if prefetch == NO_ROOM:
                self._pass_on(waiter.taken)
            if news is False and not waiter.blocks:
                return True
            if news is not False or left <= 0:
                return bool(news)

    def _pass_on(self, queues: Collection[str]) -> None:
        """Set the markers of *queues* again, which we have taken, so that another worker looks there."""
        if queues:
            self._call(MARK, *sorted(queues))
            self._waiter.taken.difference_update(list(queues))

    def _packed_claim(self, limit: int) -> tuple[bytes, Numbers]:
        """Return the claim that waits behind a BZPOPMIN, and its numbers."""
        arguments, numbers = self._claims.prepare(self._queues, limit)
        return self._layout.packed(LEASE, self._clock.now(), *arguments), numbers

    def _publish_running(self) -> None:
        """Publish the running messages for other hosts, in case this one falls silent."""
        now = time.monotonic()
        if now < self._running_at:
            return
        self._running_at = now + RUNNING_SECONDS
        self._files.copy_running(lambda tags: self._call(RUNNING, self._generation, " ".join(map(str, tags))))

    def wake(self) -> None:
        self._waiter.wake()


# -- Settlements as arguments of SETTLE: a word for each, followed by its values --


def operations(
    settlements: Sequence[Settlement], held: Mapping[int, bytes], now: float, keys: JoinKeys
) -> tuple[list[Any], dict[bytes, int], set[int]]:
    """Return the arguments for *settlements*; the tags of the fields that they name; and the tags that are
    not held.

    held: tag → field of leased messages. now: epoch seconds. keys: of the result store, if it is here too.
    """
    arguments: list[Any] = []
    tags: dict[bytes, int] = {}
    lost: set[int] = set()
    prefix = keys.prefix
    for settlement in settlements:
        if isinstance(settlement, Store):
            if settlement.row is None:
                arguments += ("store nothing",)
            else:
                arguments += ("store", *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
            continue
        tag = settlement.tag
        field = held.get(tag)
        if field is None or field in tags:
            lost.add(tag)
            continue
        tags[field] = tag
        if isinstance(settlement, Ack):
            if settlement.row is None:
                arguments += ("ack", field)
            else:
                arguments += ("ack and store", field, *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
        elif isinstance(settlement, DeadLetter):
            place = "failed" if settlement.failed else "dead"
            letter = (field, place, tag, settlement.reason, int(settlement.counted))
            if settlement.row is None:
                arguments += ("dead letter", *letter)
            else:
                arguments += ("dead letter and store", *letter, *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
        else:
            again = int(settlement.counted or settlement.redelivered)
            due = "" if settlement.due is None else repr(_number(settlement.due))
            arguments += ("release", field, int(settlement.counted), int(settlement.requeued), again, due)
    return arguments, tags, lost


def _parts(parts: Sequence[Part], keys: JoinKeys) -> Sequence[Any]:
    """Return the operation that records *parts*, if the one before it found its message."""
    arguments = part_arguments(parts, keys)
    return ("parts", len(arguments), keys.prefix, *arguments)


def _number(due: float) -> float:
    """Return *due*, unless it would stop a script halfway."""
    if math.isnan(due):
        raise ValueError("not a valid due time")
    return float(due)
