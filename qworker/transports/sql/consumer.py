"""The consumer of the SQL broker: leasing and settling messages.

Comes from:  the Listener.
Goes to:     the tables of ``schema.py``, through a connection of the listener's own.
Thread:      listener only, except wake().
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.process.crash_points import crash_point
from qworker.process.owner_files import runtime_directory
from qworker.process.wakeup import WakeupPipe
from qworker.transports.lease import (
    NO_ROOM,
    Claim,
    Kind,
    Leased,
    Reclaimed,
    Release,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.lease_consumer import NOT_REGISTERED, LeaseConsumer, WorkerRecord
from qworker.transports.recent import Recent
from qworker.transports.sql.link import Claimed, ClaimOrder, Handle, Link, Notified, earliest
from qworker.transports.sql.reclaim import HELD, Reclaimer, forget_silent, sweep, sweep_letters
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import (
    CHECK_OWNER,
    CLAIM_AGAIN,
    LETTERS,
    NEW_OWNER,
    NEXT_NUMBER,
    NOW,
    PRESENT,
    PUT_BACK,
    REVOKED_SINCE,
)
from qworker.transports.sql.settle import settle, settle_within

COPY_SECONDS = 0.05
"""Minimum seconds between copies of the running file, and from the start of a wait() to its copy: by then
children have started the new messages."""
COPY_AGAIN_SECONDS = 1.0
"""Seconds from a copy that failed to the next attempt; it may have waited for a lock."""
CRASH_SECONDS = 3.0
"""How long after a crash of the server new messages are not claimed: a worker reconnects every two seconds,
and then claims its own messages again."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class SQLConsumer(LeaseConsumer):
    """connect: makes a Link. results: where rows of settlements go. uptime: the clock for leases, None: the
    database's."""

    def __init__(
        self,
        connect: Callable[[], Link],
        name: str,
        results: ResultTable,
        clock: Clock,
        lease_seconds: float,
        uptime: Callable[[], float] | None,
    ) -> None:
        super().__init__(clock, lease_seconds, uptime, runtime_directory, urlsplit(name).path)
        self._name = name
        self._handle = Handle(connect, name, self._connected)
        self._results = results
        self._wakeup = PollBackoff()

    def _start_over(self) -> None:
        super()._start_over()
        self._recent = RecentSettlements()
        self._subscription = Subscription()
        self._queues: Collection[str] = ()
        """The queues of the last claim; before the first, the registered ones."""
        self._listed: frozenset[str] = frozenset()
        """The queues in our row, by which publishers notify us."""
        self._notified = False
        """Whether we were notified of a message, and have not claimed since."""
        self._passed_on = False
        """Whether notifications came while there was no room."""
        self._reclaimer = Reclaimer(self._lease_seconds)
        self._copy_at = 0.0
        self._crash = ""
        """The server's last known crash."""
        self._claim_at = 0.0
        """The monotonic time before which nothing new is claimed."""
        self._uncertain: set[int] = set()
        """Tags of messages held when the server crashed, which others may have by now."""

    def _abandon_connections(self) -> None:
        self._wakeup.close()
        self._handle.abandon()

    def _release_connections(self) -> None:
        self._wakeup.close()
        self._handle.close()

    def _run(self, work: Callable[[Link], T]) -> T:
        """Return *work* applied to the connection, while registered."""
        self._require()
        return self._handle.run(work)

    def _connected(self, link: Link) -> None:
        """On a new connection: listen, and restore what the server lost. Raises ConfigurationError when the
        tables lack additions that only their owner may make."""
        if link.lacks_additions:
            raise ConfigurationError(
                "the tables of the broker are from an older qworker, and this user may not extend them "
                f"({link.lacks_additions}): run `qworker queues` once as their owner",
                setting="broker_url",
            )
        self._results.forget_layout()
        if self._generation != NOT_REGISTERED:
            # The server may not know that the last connection has ended, whose locks are in our way. And the
            # lease is kept even if others have locked what follows.
            link.end_session(self._generation)
            self._renew_row(link)
        link.listen(self._generation)
        crash, age = link.crash()
        rest = CRASH_SECONDS - age
        late = self._crash not in ("", crash) and rest <= 0
        if late:  # we noticed late; or this server has taken over from another, a moment ago
            rest = CRASH_SECONDS
        self._crash, self._claim_at = crash, max(self._claim_at, time.monotonic() + rest)
        if self._generation == NOT_REGISTERED:
            return
        self._subscription.missed()
        recent = self._recent
        self._results.prepare(link, recent.all())
        with link.transaction():
            ended = recent.ended()
            if (recent.held or ended) and link.ask(CHECK_OWNER, (self._generation,)):
                link.do(CLAIM_AGAIN, (self._generation, list(recent.held | ended)))
            ours = {tag for (tag,) in link.ask(HELD.format(message="qworker_message"), (self._generation,))}
            orphaned = ours - recent.held
            for settlements in recent.of(orphaned):
                settle_within(link, self._generation, settlements, self._results, self._clock.now())
            if orphaned:
                link.do(PUT_BACK, (list(orphaned), self._generation))
        if late:
            self._uncertain = (recent.held | ended) - ours

    # -- the record in the server --

    def _until(self) -> tuple[str, tuple[float, ...]]:
        """Return the end of a lease that begins now, as an expression and its values."""
        if self._leases_on is None:
            return f"{NOW} + %s", (self._lease_seconds,)
        return "%s", (self._leases_on() + self._lease_seconds,)

    def _insert(self, record: WorkerRecord) -> int:
        self._files.tidy()
        self._wakeup.open()
        until, values = self._until()
        row = (
            *(record.name, record.pid, record.boot, record.lock, record.running),
            *("\n".join(record.queues), record.concurrency, record.started),
            *(*values, record.presence),
        )

        def work(link: Link) -> int:
            link.ask(
                f"SELECT tag FROM {LETTERS['failed']} LIMIT 0"
            )  # missing permissions are reported now, and not when a task has failed
            with link.transaction():
                if self._generation != NOT_REGISTERED:
                    self._remove(link)
                generation = int(link.ask(NEXT_NUMBER.format(table="qworker_owner", column="id"))[0][0])
                link.do(NEW_OWNER.format(until=until, armed=subscribed_until(link)), (generation, *row))
                crash_point("registering")
            link.listen(generation)
            link.flush()  # without the record, a crash of the server would give our messages to others
            if link.notice:
                logger.warning("%s: %s", self._name, link.notice)
            return generation

        generation = self._handle.run(work)
        self._recent = RecentSettlements()
        self._subscription = Subscription()
        self._queues, self._listed = record.queues, frozenset(record.queues)
        return generation

    def _renew(self) -> None:
        self._run(self._renew_on)

    def _renew_on(self, link: Link) -> None:
        crash_point("renewing")
        if not self._renew_row(link):
            raise self._lost()
        if self._listed.difference(self._queues):  # it has given up some
            self._list_queues(link)
        self._copy_running(link)

    def _renew_row(self, link: Link) -> int:
        until, values = self._until()
        also = f", armed_until = {subscribed_until(link)}" if self._subscription.active else ""
        statement = f"UPDATE qworker_owner SET lease_until = {until}{also}, presence = %s WHERE id = %s"
        return link.do(statement, (*values, self._presence, self._generation))

    def _list_queues(self, link: Link) -> None:
        """Let publishers notify us of the queues of the last claim."""
        row = "\n".join(self._queues), self._generation
        link.do("UPDATE qworker_owner SET queues = %s WHERE id = %s", row)
        self._listed = frozenset(self._queues)

    def _copy_running(self, link: Link) -> None:
        """Copy the running file to our row, where it can be read if this machine is gone."""

        def write(tags: set[int]) -> None:
            text = " ".join(map(str, sorted(tags)))
            link.do("UPDATE qworker_owner SET running = %s WHERE id = %s", (text, self._generation))

        self._copy_at = time.monotonic() + COPY_AGAIN_SECONDS
        self._files.copy_running(write)
        self._copy_at = time.monotonic() + COPY_SECONDS

    def _give_back(self) -> None:
        def work(link: Link) -> None:
            with link.transaction():
                self._remove(link)
                link.notify()

        self._handle.run(work)

    def _remove(self, link: Link) -> None:
        """Within a transaction: release everything held under the old generation; uncounted."""
        link.do(
            "UPDATE qworker_message SET state = 0, owner = NULL WHERE owner = %s AND state = 2",
            (self._generation,),
        )
        crash_point("deregistering")
        link.do("DELETE FROM qworker_owner WHERE id = %s", (self._generation,))

    # -- leasing --

    def _claim(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> Claim:
        began, now = time.monotonic(), self._clock.now()
        if self.renewal_is_due():
            self.extend()
        elif began >= self._copy_at:
            self._run(self._copy_running)
        self._handle.open()
        if began < self._claim_at:
            self._subscription.look_at = self._claim_at
            return Claim([])
        self._queues, listed = queues, self._listed
        if not listed.issuperset(queues):
            self._run(self._list_queues)
        asked = limit
        messages: list[Leased] = []
        dues: list[float | None] = []
        last_revocation = None
        for queue in queues:  # one by one: a retry of the next must not lose what one has taken
            order = ClaimOrder(self._generation, queue, now, limit, delayed_limit, until)
            try:
                claimed = self._claim_one(order)
            except BrokerUnavailable:
                if not messages:
                    raise
                dues.append(now)  # its contents are unknown: the next claim will find them, or raise the same
                break
            limit -= len(claimed.ready)
            delayed_limit -= len(claimed.early)
            dues.append(claimed.next_due)
            last_revocation = claimed.last_revocation
            found = claimed.ready + claimed.early
            messages += found
            self._recent.leased(found)
        if messages:
            self._wakeup.found()
            crash_point("claiming")
        full = asked > 0 and limit <= 0
        first = self._subscription.claimed(began, full)
        left = set(queues) if full and (first or self._notified) else set()  # there may be more
        if asked > 0 and self._notified:
            left |= listed.difference(queues)  # the notification may have been for one of these
        with suppress(BrokerUnavailable):
            if left:
                self._wake_another(left)
            self._notified &= asked <= 0
        if self._subscription.has_enough:
            with suppress(BrokerUnavailable):
                self._run(lambda link: self._subscription.pause(link, self._generation))
        return Claim(messages, earliest(dues), last_revocation)

    def _claim_one(self, order: ClaimOrder) -> Claimed:
        return self._run(lambda link: link.claim(order))

    # -- settling --

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        lost = self._run(lambda link: settle(link, generation, settlements, self._results, self._clock.now()))
        if generation == self._generation:
            self._recent.settled(settlements)
            if time.monotonic() >= self._copy_at:
                with suppress(
                    BrokerUnavailable, ConfigurationError
                ):  # it would look as if nothing were settled
                    self._run(self._copy_running)
        return lost

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        def left(link: Link) -> list[int]:
            if not link.ask(CHECK_OWNER, (self._generation,)):
                raise self._lost()
            return [tag for (tag,) in link.ask(PRESENT, (list(tags),))]

        return set(tags) - self._uncertain - set(self._run(left))

    def confirm(self) -> None:
        self._run(lambda link: link.flush())

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        now = None if self._leases_on is None else self._leases_on()
        return self._reclaimer.reclaim(self._run, self._generation, now, silent, self._files.running)

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        now = self._clock.now()
        rows = self._run(lambda link: link.ask(REVOKED_SINCE, (cursor, now)))
        return (rows[-1][0] if rows else cursor), [Revocation(row[1], row[2] == 1, row[3]) for row in rows]

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = sweep_letters(link, LETTERS[kind], now - expires, most)
            if kind == "dead":
                count += forget_silent(link) if self._leases_on is None else 0
                count += sweep(link, self._results, now)
            return count

        return self._run(work)

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        subscription = self._subscription
        leaves = prefetch == NO_ROOM and timeout <= 0  # it does not wait, and is not notified
        if not subscription.active:
            if leaves:
                return False
            rest = subscription.rest()
            if rest > 0 and (self._wakeup.sleep(min(timeout, rest))[0] or timeout < rest):
                return False
            self._run(lambda link: subscription.resume(link, self._generation))
            return True
        if prefetch != NO_ROOM and self._passed_on:
            self._passed_on = False
            return True
        if leaves:
            self._run(lambda link: subscription.pause(link, self._generation))
        until = time.monotonic() + max(0.0, timeout)
        copy_at = time.monotonic() + COPY_SECONDS
        while True:
            notified = self._run(lambda link: link.notified(self._listed))
            self._notified |= notified is Notified.ONE
            if self._notified and prefetch == NO_ROOM:
                self._passed_on = True
                self._wake_another(self._listed)
                self._notified = False
                notified = Notified.ALL if notified is Notified.ALL else Notified.NONE
            now = time.monotonic()
            if notified or subscription.look_is_due(now):
                return True
            if now >= copy_at:
                copy_at = math.inf
                with suppress(BrokerUnavailable):  # which the next call will meet
                    self._run(self._copy_running)
                now = time.monotonic()
            if now >= until:
                return False
            file = self._handle.open().fileno()
            if self._wakeup.rest(file, min(until, subscription.look_at, copy_at) - now):
                return False

    def _wake_another(self, queues: Collection[str]) -> None:
        self._run(lambda link: link.wake_another(self._generation, sorted(queues)))

    def wake(self) -> None:
        self._wakeup.wake()


# -- PollBackoff --
# PollBackoff: sleeping until the database sends a notification, or polling without them. Thread: the
# listener's, except wake().

QUICKEST, SLOWEST = 0.001, 0.25
"""Seconds between two polls without notifications."""
GROWTH = 1.2
"""Factor from one pause to the next; after a message each pause is a fifth of the time since then."""


class PollBackoff(WakeupPipe):
    """pause: seconds until the next poll; it grows while nothing is found."""

    def __init__(self) -> None:
        super().__init__()
        self.pause = SLOWEST

    def found(self) -> None:
        """A claim has found messages: more may come soon."""
        self.pause = QUICKEST

    def rest(self, file: int, seconds: float) -> bool:
        """Sleep until *file* is readable (-1: until the next poll), or so long; True when wake() was
        called."""
        if file < 0:
            seconds = min(seconds, self.pause)
            self.pause = min(self.pause * GROWTH, SLOWEST)
        words, _ = self.sleep(seconds, file)
        return bool(words)


# -- Recent settlements, in case the server loses them --
# The worker's commits need not reach the disk at once, and a server that takes over may lack the last of
# them. A lost ack leaves a message with a live consumer that would never settle it again: so it is settled
# again. A lost claim leaves a message to others, although its consumer is alive and may be running it: so it
# is claimed again, and for a moment after a crash nothing else is claimed.

SECONDS = 3.0
"""How long settlements are kept; PostgreSQL's commits are on the disk after 3 times wal_writer_delay, 0.6
s."""


class RecentSettlements:
    """held: the tags of unsettled messages on lease."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self._recent: Recent[Settlement] = Recent(SECONDS)

    def leased(self, messages: Iterable[Leased]) -> None:
        self.held.update([message.tag for message in messages])

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.held.difference_update([each.tag for each in settlements if not isinstance(each, Store)])
        self._recent.add(settlements)

    def ended(self) -> set[int]:
        """Return tags of messages that must not come again: recently acknowledged, or dead-lettered."""
        found: set[int] = set()
        for each in self.all():
            if isinstance(each, Release):
                found.discard(each.tag)
            elif not isinstance(each, Store):
                found.add(each.tag)
        return found - self.held

    def all(self) -> list[Settlement]:
        """Return the recent settlements."""
        return [each for settlements in self._recent for each in settlements]

    def of(self, tags: Collection[int]) -> Iterator[list[Settlement]]:
        """Return the recent settlements of *tags*, and the results stored with them, oldest first."""
        for settlements in self._recent:
            found = [each for each in settlements if isinstance(each, Store) or each.tag in tags]
            if found:
                yield found


# -- Subscription --
# Subscription: whether publishers notify a consumer, and when it has to poll for what they did not announce.
# A notification costs each publisher something, and a busy consumer does not need it.

SUBSCRIBED_SECONDS = 60.0
"""How long publishers notify a consumer that does not renew it."""
FULL_CLAIMS = 3
"""Number of consecutive full claims after which a consumer is busy."""
PAUSE_SECONDS = 0.25
"""Minimum pause of notifications while a consumer is busy."""
SECOND_LOOK = 0.015
"""Seconds. A message published just before we started to listen was not announced: poll again after this
time."""


def subscribed_until(link: Link) -> str:
    """Return the end of a subscription that begins now, as an expression; of one that polls, none begins."""
    return "0" if link.polls else f"{NOW} + {SUBSCRIBED_SECONDS}"


class Subscription:
    """The subscription of a consumer; active after registration.

    active: publishers notify. look_at: monotonic seconds when there may be unannounced messages;
    inf: there are none.
    """

    def __init__(self) -> None:
        self.active = True
        self.look_at = math.inf
        self._full_claims = 0
        self._paused_until = 0.0

    def claimed(self, began: float, full: bool) -> bool:
        """Record a claim that *began* then. full: it returned the requested number. Return whether it is the
        first such after others: then another consumer should look for the rest."""
        self._full_claims = self._full_claims + 1 if full else 0
        if began >= self.look_at:
            self.look_at = math.inf  # it has seen everything
        return self._full_claims == 1

    @property
    def has_enough(self) -> bool:
        """Whether notifications should pause."""
        return self.active and self._full_claims >= FULL_CLAIMS

    def pause(self, link: Link, generation: int) -> None:
        link.do("UPDATE qworker_owner SET armed_until = 0 WHERE id = %s", (generation,))
        self.active = False
        self._paused_until = time.monotonic() + PAUSE_SECONDS

    def rest(self) -> float:
        """Return the seconds without notifications, because the consumer is busy."""
        return self._paused_until - time.monotonic() if self._full_claims else 0.0

    def resume(self, link: Link, generation: int) -> None:
        link.do(
            f"UPDATE qworker_owner SET armed_until = {subscribed_until(link)} WHERE id = %s", (generation,)
        )
        self.active = True
        self.look_at = time.monotonic() + SECOND_LOOK

    def missed(self) -> None:
        """Events during a lost connection were not announced."""
        self.look_at = time.monotonic()

    def look_is_due(self, now: float) -> bool:
        """Whether to poll, at monotonic *now*; only true once."""
        due = now >= self.look_at
        if due:
            self.look_at = math.inf
        return due
