"""The consumer of the MongoDB broker: leasing and settling messages.

Comes from:  the Listener.
Goes to:     the collections of ``layout.py``.
Thread:      listener only, except wake() and published().

A claim does not check our own record in the same step. So the record is read afterwards: a consumer that was
considered dead before gives back what it has taken, and raises LeaseLost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pymongo import ReplaceOne, UpdateOne

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable
from qworker.process.crash_points import crash_point
from qworker.process.owner_files import runtime_directory
from qworker.transports.lease import (
    Ack,
    Claim,
    DeadLetter,
    Kind,
    Leased,
    Reclaimed,
    Release,
    ResultRow,
    Revocation,
    Settlement,
    Store,
)
from qworker.transports.lease_consumer import NOT_REGISTERED, LeaseConsumer, WorkerRecord
from qworker.transports.mongodb import result_documents
from qworker.transports.mongodb.claim import promote_due, take_early, take_ready
from qworker.transports.mongodb.layout import DELAYED, READY, RECORD_OF_ALL, Document, leased, ready
from qworker.transports.mongodb.letters import KEPT
from qworker.transports.mongodb.reclaim import forget_silent, reclaim, return_orphaned, sweep, sweep_letters
from qworker.transports.mongodb.sender import FIELD, SeenRevocations, last_number
from qworker.transports.mongodb.server import Collections, Server
from qworker.transports.mongodb.watch import MESSAGE, Looking, changes


def forget(found: Collections, generation: int, tags: Collection[int]) -> set[int]:
    """Acknowledge *tags* without results; return those that *generation* does not hold."""
    if not tags:
        return set()
    ids = list(tags)
    crash_point("acking")
    count = found.message.delete_many({"_id": {"$in": ids}, "owner": generation}).deleted_count
    if count == len(ids):
        return set()
    others = {int(each["_id"]) for each in found.message.find({"_id": {"$in": ids}}, {"_id": 1})}
    # Of those that nobody holds any more, some had ended before, and it is unknown which.
    return others if count + len(others) == len(ids) else set(ids)


def settle(
    found: Collections, generation: int, held: Collection[int], settlements: Sequence[Settlement], now: float
) -> set[int]:
    """Carry out *settlements*; return the tags that *generation* does not hold, among those in *held*.

    This is one transaction if the server supports it, as a replica set does. On a single server the writes
    have an order: results first, then letters, and the deletion of a message last. After an interruption
    another consumer stores the same again.
    """
    lost: set[int] = set()
    orders: dict[int, Ack | Release | DeadLetter] = {}
    stores: list[Store] = []
    for each in settlements:
        if isinstance(each, Store):
            stores.append(each)
        elif each.tag not in held or each.tag in orders:
            lost.add(each.tag)
        else:
            orders[each.tag] = each
    plain = [each.tag for each in orders.values() if type(each) is Ack and each.row is None]
    if len(plain) == len(orders) and not stores:
        return lost | forget(found, generation, plain)
    acks = [each for each in orders.values() if isinstance(each, Ack)]
    if found.replicated and len(acks) == len(orders):
        with suppress(_NotAllOurs):
            rows = [each.row for each in stores if each.row is not None]
            rows += [each.row for each in acks if each.row is not None]
            found.atomically(lambda session: _acknowledge(found, generation, list(orders), rows, session))
            return lost
    return lost | found.atomically(lambda session: _settle(found, generation, orders, stores, now, session))


class _NotAllOurs(Exception):
    """Others hold some of the acknowledged messages, and it is unknown which: the transaction is rolled
    back."""


def _acknowledge(
    found: Collections, generation: int, tags: Sequence[int], rows: Sequence[ResultRow], session: Any
) -> None:
    """Acknowledge *tags*, and store *rows*, if *generation* holds all of them; this is determined by
    deleting, not by reading before."""
    crash_point("acking")
    which = {"_id": {"$in": list(tags)}, "owner": generation}
    if tags and found.message.delete_many(which, session=session).deleted_count != len(tags):
        raise _NotAllOurs
    if rows:
        crash_point("storing")
    result_documents.store(found, rows, session)


def _settle(
    found: Collections,
    generation: int,
    orders: dict[int, Ack | Release | DeadLetter],
    stores: Sequence[Store],
    now: float,
    session: Any,
) -> set[int]:
    dying = [tag for tag, each in orders.items() if isinstance(each, DeadLetter)]
    ours = (
        {
            each["_id"]: each
            for each in found.message.find(
                {"_id": {"$in": list(orders)}, "owner": generation},
                None if dying else {"_id": 1},
                session=session,
            )
        }
        if orders
        else {}
    )
    rows: list[ResultRow] = [store.row for store in stores if store.row is not None]
    dead: list[Any] = []
    failed: list[Any] = []
    releases: list[Any] = []
    gone: list[int] = []
    for tag, each in orders.items():
        if tag not in ours:
            continue
        if isinstance(each, Release):
            releases.append(UpdateOne({"_id": tag, "owner": generation}, _release(each, now)))
            continue
        if each.row is not None:
            rows.append(each.row)
        if isinstance(each, DeadLetter):
            letter = ReplaceOne({"_id": tag}, _letter(ours[tag], each, now), upsert=True)
            (failed if each.failed else dead).append(letter)
        gone.append(tag)
    if rows:
        crash_point("storing")
    result_documents.store(found, rows, session)
    for collection, letters in ((found.dead, dead), (found.failed, failed)):
        if letters:
            collection.bulk_write(letters, ordered=False, session=session)
    if dead or failed:
        crash_point("dead-lettering")
    if releases:
        crash_point("releasing")
        found.message.bulk_write(releases, ordered=False, session=session)
    if gone:
        crash_point("acking")
        found.message.delete_many({"_id": {"$in": gone}, "owner": generation}, session=session)
    return orders.keys() - ours.keys()


def _release(order: Release, now: float) -> Document:
    due = order.due
    changes: Document = {"s": DELAYED if due is not None and due > now else READY}
    if due is not None:
        changes["due"] = due
    if order.counted or order.redelivered:
        changes["r"] = True
    added = {"n": int(order.counted), "p": int(order.requeued)}
    return {"$set": changes, "$inc": added, "$unset": {"owner": ""}}


def _letter(message: Document, order: DeadLetter, now: float) -> Document:
    kept = {name: message[name] for name in KEPT}
    return {**kept, "reason": order.reason, "died_at": now, "n": message["n"] + int(order.counted)}


COPY_SECONDS = 0.1
"""Minimum interval of copying the running file to our record."""
ORPHANS_SECONDS = 10.0
"""Interval of searching for messages of generations that do not exist."""

T = TypeVar("T")


class MongoConsumer(LeaseConsumer):
    """uptime: the clock for leases, None: the server's."""

    def __init__(
        self, server: Server, clock: Clock, lease_seconds: float, uptime: Callable[[], float] | None
    ) -> None:
        self._server = server
        self._looking = Looking()
        super().__init__(clock, lease_seconds, uptime, runtime_directory, server.safe_url)

    def _start_over(self) -> None:
        super()._start_over()
        self._queues: tuple[str, ...] = ()
        """The queues of the last claim; before the first, those of our record."""
        self._watched_queues: frozenset[str] = frozenset()
        """The queues announced by a change stream: those of our record, and all claimed since."""
        self._forget_lease()

    def _forget_lease(self) -> None:
        self._held: set[int] = set()
        self._doubtful: set[int] = set()
        """Tags of settlements that may have been carried out, without an answer."""
        self._unsure = False
        """Whether a claim may have taken more than we know of."""
        self._drained = True
        """Whether the last claim left no ready messages."""
        self._next_due: float | None = None
        """When the first delayed message left by the last claim is due."""
        self._revocations = SeenRevocations()
        self._revoked = -1
        """The last number of a revocation seen; -1: none was read."""
        self._newest = 0
        """The tag of the newest message seen."""
        self._copy_at = self._orphans_at = 0.0

    def _abandon_connections(self) -> None:
        self._looking.close()

    def _release_connections(self) -> None:
        self._looking.close()

    def _run(self, work: Callable[[Collections], T]) -> T:
        """Return *work* applied to the collections, while registered."""
        self._require()
        return self._server.run(work)

    # -- the record in the server --

    def _renewal(self) -> tuple[Document, Document]:
        """Return the fields that renew the lease in our record, and the clock."""
        if self._leases_on is None:
            return {}, {"$currentDate": {"renewed": True}}
        return {"until": self._leases_on() + self._lease_seconds}, {}

    def _insert(self, record: WorkerRecord) -> int:
        self._files.tidy()
        self._looking.open()
        fields, clock = self._renewal()
        fields |= {**record._asdict(), "queues": list(record.queues), "lease": self._lease_seconds}

        def work(found: Collections) -> int:
            if self._generation != NOT_REGISTERED:
                self._remove(found)
            generation = found.number("generation")
            found.owner.update_one({"_id": generation}, {"$set": fields, **clock}, upsert=True)
            crash_point("registering")
            self._revoked = last_number(found)
            return generation

        generation = self._server.run(work)
        revoked = self._revoked
        self._forget_lease()
        self._revoked, self._queues, self._watched_queues = revoked, record.queues, frozenset(record.queues)
        return generation

    def _renew(self) -> None:
        crash_point("renewing")
        fields, clock = self._renewal()
        change = {"$set": {**fields, "presence": self._presence}, **clock}
        which = {"_id": self._generation, "ended": None}
        if not self._run(lambda found: found.owner.update_one(which, change).matched_count):
            raise self._lost()
        self._copy_running()

    def _copy_running(self) -> None:
        """Copy the running file to our record, where it can be read if this machine is gone."""

        def write(tags: set[int]) -> None:
            change = {"$set": {"tags": sorted(tags)}}
            self._run(lambda found: found.owner.update_one({"_id": self._generation}, change))

        now = time.monotonic()
        if now >= self._copy_at:
            self._copy_at = now + COPY_SECONDS
            self._files.copy_running(write)

    def _give_back(self) -> None:
        self._server.run(self._remove)

    def _remove(self, found: Collections) -> None:
        """Release everything held under the old generation; uncounted."""
        found.message.update_many({"owner": self._generation}, ready())
        crash_point("deregistering")
        found.owner.delete_one({"_id": self._generation})

    # -- leasing --

    def _claim(self, queues: Sequence[str], limit: int, delayed_limit: int, until: float) -> Claim:
        if self.renewal_is_due():
            self.extend()
        else:
            self._copy_running()
        if self._unsure:
            self._run(self._return_unknown)
        self._ask_for(tuple(queues))
        taken: list[Document] = []
        try:
            next_due, last = self._run(
                lambda found: self._take(found, queues, limit, delayed_limit, until, taken)
            )
        except BrokerUnavailable:
            self._unsure = True
            if not taken:
                raise
            next_due, last = self._clock.now(), None  # the next claim will find it, or raise the same
        if taken:
            crash_point("claiming")
        messages = [leased(document) for document in taken]
        self._held.update(message.tag for message in messages)
        return Claim(messages, next_due, last)

    def _ask_for(self, queues: tuple[str, ...]) -> None:
        """Watch *queues* from now on, in addition to the registered ones."""
        if queues == self._queues:
            return
        self._queues = queues
        if not self._watched_queues.issuperset(queues):
            self._watched_queues |= frozenset(queues)
            self._looking.end_watch()

    def _take(
        self,
        found: Collections,
        queues: Sequence[str],
        limit: int,
        delayed_limit: int,
        until: float,
        taken: list[Document],
    ) -> tuple[float | None, int | None]:
        """Take messages into *taken*; return when the next is due, and the last revocation."""
        generation, now, left = self._generation, self._clock.now(), limit
        next_due = promote_due(found, queues, now) if left <= 0 else None
        early = 0
        for queue in queues:
            if left > 0:
                ready_ones, next_due = take_ready(found, generation, queue, left, queues, now)
                taken += ready_ones
                left -= len(ready_ones)
            if next_due is not None and next_due <= until and early < delayed_limit:
                soon = take_early(found, generation, queue, delayed_limit - early, until)
                taken += soon
                early += len(soon)
        if early:
            next_due = promote_due(found, queues, now)
        if limit > 0:
            self._drained = left > 0
        self._next_due = next_due
        records = {
            each["_id"]: each
            for each in found.owner.find(
                {"_id": {"$in": [RECORD_OF_ALL, generation]}}, {FIELD: 1, "ended": 1}
            )
        }
        if taken and "ended" in records.get(generation, {"ended": 0}):
            found.message.update_many({"owner": generation}, ready())
            taken.clear()
            raise self._lost()
        return next_due, int(records.get(RECORD_OF_ALL, {}).get(FIELD, 0))

    def _return_unknown(self, found: Collections) -> None:
        """Give back what claims without an answer took."""
        ours = {each["_id"] for each in found.message.find({"owner": self._generation}, {"_id": 1})}
        unknown = list(ours - self._held - self._doubtful)
        if unknown:
            found.message.update_many({"_id": {"$in": unknown}, "owner": self._generation}, ready())
        self._unsure = False

    def _urgency(self, leased: Leased) -> tuple[int, int]:
        return -leased.priority, leased.tag

    # -- settling --

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        held = self._held if generation == self._generation else set()
        now = self._clock.now()
        tags = {each.tag for each in settlements if not isinstance(each, Store)} & held
        try:
            lost = self._run(lambda found: settle(found, generation, held, settlements, now))
        except BrokerUnavailable:
            self._doubtful |= tags
            raise
        self._doubtful -= tags
        self._held -= tags
        with suppress(BrokerUnavailable):  # it would look as if nothing were settled
            self._copy_running()
        return lost

    # -- now and then --

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        now = None if self._leases_on is None else self._leases_on()
        found = self._run(lambda found: reclaim(found, self._generation, now, silent))
        if time.monotonic() >= self._orphans_at:
            self._orphans_at = time.monotonic() + ORPHANS_SECONDS
            self._run(return_orphaned)
        return found

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        now = self._clock.now()
        return self._run(lambda found: self._revocations.since(found, cursor, now))

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        now = self._clock.now()

        def work(found: Collections) -> int:
            count = sweep_letters(getattr(found, kind), now - expires, most)
            if kind == "dead":
                count += forget_silent(found) if self._leases_on is None else 0
                count += sweep(found, now)
            return count

        return self._run(work)

    # -- waiting --

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._require()
        end = time.monotonic() + timeout
        while True:
            self._copy_running()
            if self._looking.is_due and self._look():
                self._looking.found()
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            words = self._looking.rest(left)
            if words.replace(MESSAGE, b""):  # wake(); other notifications are handled by the next wait()
                self._looking.found()
                return False

    def _look(self) -> bool:
        self._looking.begun()
        try:
            return self._run(self._is_new)
        except BrokerUnavailable:
            self._looking.missed()
            raise

    def _is_new(self, found: Collections) -> bool:
        """Whether there is something new: a revocation; a message, or one due earlier than all before, if the
        queues were drained; a message newer than all before, if not."""
        revoked, known = last_number(found), self._revoked
        self._revoked = revoked
        if self._drained:
            where = {"q": {"$in": list(self._queues)}}
            earlier = {} if self._next_due is None else {"due": {"$lt": self._next_due}}
            either = [{**where, "s": READY}, {**where, "s": DELAYED, **earlier}]
            news = found.message.find_one({"$or": either}, {"_id": 1}) is not None
            if news:
                self._drained = False
                self._newest = self._newest_of(found)
        else:
            before, self._newest = self._newest, self._newest_of(found)
            news = self._newest > before
        if not news and revoked == known and found.replicated:
            self._looking.watch(found.database, changes(found.names, sorted(self._watched_queues), FIELD))
        return news or revoked != known

    def _newest_of(self, found: Collections) -> int:
        newest = found.message.find_one({}, {"_id": 1}, sort=[("_id", -1)])
        return 0 if newest is None else int(newest["_id"])

    def published(self) -> None:
        """Record that this process has published a message. Any thread."""
        self._looking.published()

    def wake(self) -> None:
        self._looking.wake()
