"""SpoolBroker: a spool directory as the broker of an app, ``spool:///dir``.

Comes from:  ``broker_url``.
Goes to:     a directory for each queue below ``.qw-queues``, with a file for each message.
Thread:      the sender and the administration any; the consumer the listener's.

It is for one machine, and only needs a file system. Jobs written by uWSGI are in the spool directory itself:
a worker runs them with ``--spooler``.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import BrokerUnavailable, ConfigurationError, InvalidPacket, NotSupported, SpoolError
from qworker.spooler.administration.admin import Aside, ListedJob, SpoolAdmin
from qworker.spooler.broker.message_files import (
    AT_ONCE,
    QUEUES,
    from_file,
    queue_folder,
    queue_of,
    sent_at,
    stamp,
    tag_of,
    to_job,
)
from qworker.spooler.files.claiming import ClaimedFile
from qworker.spooler.files.place import prepared
from qworker.spooler.files.writing import NewJob, Sync, Writer, write_together
from qworker.spooler.running.consumer import DirectoryConsumer, Lane, Order
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.transports.capabilities import (
    DELIVERY_COUNT,
    FAILED_TASKS,
    FANOUT,
    NO_FANOUT,
    PEEK,
    PROCESSES_ONLY,
    RESULTS,
    WHOLE_PUSH,
    WORKERS,
    Capabilities,
)
from qworker.transports.connect_errors import refuse_parameters, refuse_setting
from qworker.transports.lease import (
    Ack,
    Admin,
    Again,
    Broker,
    Dead,
    DeadLetter,
    Delayed,
    Envelope,
    Kind,
    Leased,
    Letters,
    QueueInfo,
    Release,
    Sender,
    page_of,
)

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "Spool directory",
    ("spool",),
    accepted="written to a file of its own, on the disk (`sync` in `broker_transport_options`); of "
    "many sent together, some may be accepted although an error was raised",
    redelivered="at once: the kernel drops a dead worker's locks; a frozen worker keeps its messages",
    eta="the time of modification of the file; claimed when due",
    priority="0 to 9, a directory each",
    fanout=NO_FANOUT,
    dead_letters="the directory `.qw-dead`",
    delivery_count="in an attribute of the file, when a worker notices the death of a process; the "
    "death of a whole worker is not counted",
    note="One host. uWSGI's spooler and qworker's can process the same directory; see [Spoolers]"
    "(../how-to/run-a-spooler.md).",
    lacks=frozenset({FANOUT, DELIVERY_COUNT, WORKERS, RESULTS, WHOLE_PUSH, PEEK, FAILED_TASKS}),
    in_part=PROCESSES_ONLY,
)

# -- MessageConsumer: messages of ``spool://``, claimed by the worker that runs them --

logger = logging.getLogger(__name__)

LATEST = 2.0**53
"""Times of files must be before this epoch second."""


class _HeldMessage(NamedTuple):
    claim: ClaimedFile
    leased: Leased


class MessageConsumer(DirectoryConsumer[Lane]):
    """Holds the locks of delivered messages."""

    def __init__(
        self, open_lanes: Callable[[Sequence[str]], list[Lane]], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(open_lanes, clock)
        self._held: dict[int, _HeldMessage] = {}
        self._stuck: list[ClaimedFile] = []
        """Messages that have ended but could not be settled."""

    def _forget(self) -> None:
        for held in self._held.values():
            held.claim.let_go()
        self._held.clear()
        self._stuck.clear()

    def offer_again(self) -> None:
        """Does nothing: only SpoolCombined calls it, and not for this consumer."""

    def _take(self, lane: Lane, limit: int) -> list[Leased]:
        while (claim := lane.directory.next()) is not None:
            try:
                leased = self._read(claim)
            except InvalidPacket as error:
                try:
                    claim.set_aside(str(error))
                except OSError as problem:
                    claim.decline()
                    logger.error("%s cannot be set aside, and is left alone: %s", claim.path, problem)
                continue
            self._held[leased.tag] = _HeldMessage(claim, leased)
            return [leased]
        return []

    def _read(self, claim: ClaimedFile) -> Leased:
        deliveries = claim.attempts
        requeued, redelivered = divmod(claim.returns, 2)
        return from_file(
            claim.pairs,
            claim.body,
            self._tag(claim),
            due=claim.due(),
            deliveries=deliveries,
            requeued=requeued,
            redelivered=bool(redelivered or deliveries),
        )

    def _tag(self, claim: ClaimedFile) -> int:
        tag = tag_of(claim.name, claim.inode)
        while tag in self._held:  # two processes sent within the same microsecond
            tag += 1
        return tag

    def settle_held(self, orders: Sequence[Order]) -> set[int]:
        for order in orders:  # check first, so that all or none are settled
            if isinstance(order, Release) and order.due is not None and not abs(order.due) < LATEST:
                raise ValueError(f"no file can be due at {order.due!r}")
        lost: set[int] = set()
        for order in orders:
            held = self._held.pop(order.tag, None)
            if held is None:
                lost.add(order.tag)
                continue
            try:
                self._settle(held.claim, held.leased, order)
            except OSError as error:
                # The message has ended and must not run again: it stays locked while this process lives.
                self._stuck.append(held.claim)
                logger.error("%s cannot be settled, and stays locked: %s", held.claim.path, error)
        return lost

    def _settle(self, claim: ClaimedFile, leased: Leased, order: Order) -> None:
        if isinstance(order, Ack):
            claim.finish()
            return
        if order.counted:
            claim.begin()
        if isinstance(order, DeadLetter):
            claim.set_aside(str(order.reason))
            return
        if order.redelivered or order.requeued:
            claim.note_returns(
                (leased.requeued + order.requeued) * 2 + (order.redelivered or claim.returns % 2)
            )
        due = AT_ONCE if order.due is None else order.due
        if order.due is None and leased.due is not None:
            due = leased.due
        claim.give_back_for(due)


SWEEP_AT_A_TIME = 1000
"""Maximum dead letters of a queue that are deleted in one sweep()."""


class _QueueDirectories:
    """The directories of the queues in the spool directory *path*, created when needed."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock

    def queue(self, name: str) -> str:
        """Return the directory of a queue, created if missing."""
        base = prepared(self.path)
        folder = f"{base}/{QUEUES}/{queue_folder(name)}"
        for each in (f"{base}/{QUEUES}", folder):  # here, because prepared() logs a warning
            with suppress(OSError):
                os.mkdir(each, 0o750)
        return prepared(folder)

    def administer(self, queue: str) -> closing[SpoolAdmin]:
        """Return the administration of a queue's files."""
        return closing(SpoolAdmin(self.queue(queue)))

    def known(self) -> list[str]:
        """Return the queues that have a directory, by name."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(map(queue_of, os.listdir(f"{self.path}/{QUEUES}")))
        return []

    def lanes(self, queues: Sequence[str]) -> list[Lane]:
        """Return a lane for each of *queues*, whose directories have been read."""
        lanes = [
            Lane(
                queue,
                SpoolDirectory(self.queue(queue), ordered=True, times_of_priorities=False, clock=self.clock),
            )
            for queue in queues
        ]
        for lane in lanes:
            lane.directory.read_through()
            lane.drained = True
        return lanes


class SpoolSender(Sender):
    """sync: what is on the disk when push() returns."""

    def __init__(self, place: _QueueDirectories, sync: Sync) -> None:
        self._place = place
        self._sync = sync
        self._writers: dict[str, Writer] = {}
        self._lock = threading.Lock()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        jobs: dict[str, list[NewJob]] = {}
        sent = stamp(self._place.clock.now())
        for index, envelope in enumerate(envelopes):
            if not isinstance(envelope.body, bytes):
                raise TypeError(f"the body of a message must be bytes, not {type(envelope.body).__name__}")
            jobs.setdefault(envelope.queue, []).append(to_job(envelope, sent.name(index)))
        try:
            write_together([(self._writer(queue), several) for queue, several in jobs.items()])
        except (SpoolError, OSError) as error:
            with self._lock:
                for queue in jobs:
                    self._writers.pop(queue, None)  # its directory may have been deleted
            raise BrokerUnavailable(f"the spool directory accepts no messages: {error}") from error

    def _writer(self, queue: str) -> Writer:
        with self._lock:
            writer = self._writers.get(queue)
            if writer is None:
                writer = self._writers[queue] = Writer(
                    self._place.queue(queue),
                    sync=self._sync,
                    exact=True,
                    clock=self._place.clock,
                )
            return writer


class SpoolQueues(Admin, Delayed):
    """The queues of a spool directory, for administration."""

    purges_leased = False

    def __init__(self, place: _QueueDirectories) -> None:
        self._place = place

    def queues(self) -> list[QueueInfo]:
        infos = [self._info(queue) for queue in self._place.known()]
        return [info for info in infos if info.ready or info.delayed or info.leased or info.dead]

    def next_due(self, queues: Sequence[str]) -> float | None:
        now = self._place.clock.now()
        dues = [
            job.due for queue in queues for job in self._waiting(queue) if job.due > now and not job.running
        ]
        return min(dues, default=None)

    def purge(self, queue: str) -> int:
        return self._each(queue, lambda admin, job: admin.remove(job.path))

    def flush_delayed(self, queue: str) -> int:
        now = self._place.clock.now()
        return self._each(
            queue, lambda admin, job: admin.set_due(job.path, AT_ONCE), only=lambda job: job.due > now
        )

    def _info(self, queue: str) -> QueueInfo:
        ready = delayed = leased = 0
        oldest: float | None = None
        now = self._place.clock.now()
        for job in self._waiting(queue):
            if job.running:
                leased += 1
            elif job.due > now:
                delayed += 1
            else:
                ready += 1
                sent = sent_at(job.path.rpartition("/")[2])
                oldest = sent if oldest is None or (sent is not None and sent < oldest) else oldest
        with self._place.administer(queue) as admin:
            dead = len(admin.set_aside_names())
        return QueueInfo(queue, ready, delayed, leased, dead, oldest)

    def _waiting(self, queue: str) -> list[ListedJob]:
        """Return the messages in a queue; [] when the queue does not exist."""
        if queue not in self._place.known():
            return []
        with self._place.administer(queue) as admin:
            return list(admin.waiting())

    def _each(
        self,
        queue: str,
        act: Callable[[SpoolAdmin, ListedJob], object],
        only: Callable[[ListedJob], bool] = lambda job: True,
    ) -> int:
        """Apply *act* to the messages in *queue* that are not running; return their number."""
        number = 0
        if queue in self._place.known():
            with self._place.administer(queue) as admin:
                for job in list(admin.waiting()):
                    if not job.running and only(job):
                        with suppress(SpoolError):  # it has just been taken
                            act(admin, job)
                            number += 1
        return number


class SpoolLetters(Letters):
    """The dead letters of a spool directory: the files that were set aside. A letter has the tag of its
    message. Each call reads all of them."""

    portion = sys.maxsize

    def __init__(self, place: _QueueDirectories, sender: SpoolSender) -> None:
        self._place = place
        self._sender = sender

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        letters = [letter for letter, _, _ in self._dead(queue)]
        return page_of(sorted(letters, key=lambda letter: -letter.tag), limit, after)

    def retry(self, tags: Sequence[int] | None = None) -> int:
        return self._each(tags, lambda admin, name: admin.retry(name, dead=True, due=AT_ONCE, returns=1))

    def send_again(self, calls: Sequence[Again]) -> int:
        """See Letters.send_again(), but each is sent in two steps: a crash between them leaves a message both
        sent and kept."""
        kept = {letter.tag: (letter, queue, name) for letter, queue, name in self._dead(None)}
        number = 0
        for call in calls:
            if call.tag not in kept:
                continue
            letter, queue, name = kept[call.tag]
            again = Envelope(letter.queue, call.headers, call.properties, call.body)
            with self._place.administer(queue) as admin, suppress(SpoolError):  # another process has it
                admin.remove(name, dead=True, first=partial(self._sender.push, [again]))
                number += 1
        return number

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._each(tags, lambda admin, name: admin.remove(name, dead=True))

    def push(self, letters: Sequence[Dead]) -> None:
        raise NotSupported("this broker does not accept dead letters from other brokers")

    def _dead(self, queue: str | None) -> Iterator[tuple[Dead, str, str]]:
        """Yield the dead letters of *queue* (None: of all), each with its queue and the name of its file."""
        for known in self._place.known():
            if queue not in (None, known):
                continue
            with self._place.administer(known) as admin:
                for letter in admin.set_aside():
                    dead = _dead_letter(admin, letter, known)
                    if dead is not None:
                        yield dead, known, letter.name

    def _each(self, tags: Sequence[int] | None, act: Callable[[SpoolAdmin, str], object]) -> int:
        number = 0
        chosen = [(queue, name) for dead, queue, name in self._dead(None) if tags is None or dead.tag in tags]
        for queue, name in chosen:
            with self._place.administer(queue) as admin, suppress(SpoolError):
                act(admin, name)
                number += 1
        return number


def _dead_letter(admin: SpoolAdmin, letter: Aside, queue: str) -> Dead | None:
    """Return the dead letter of a file that was set aside; None if it was just deleted."""
    try:
        inode, (pairs, body) = admin.read_set_aside(letter.name)
    except InvalidPacket:
        inode, pairs, body = 0, {}, b""
    except SpoolError:
        return None
    note, tag = letter.note, tag_of(letter.name, inode)
    try:
        found = from_file(pairs, body, tag, due=AT_ONCE)
    except InvalidPacket:
        found = Leased(tag, queue, 0, None, 0, False, 0, "{}", None, body)
    return Dead(
        tag, found.queue, note.reason, note.at, note.attempts, found.headers, found.properties, found.body
    )


class _Consumer(MessageConsumer):
    """Consumes the queues of a place, and deletes its old dead letters."""

    def __init__(self, place: _QueueDirectories) -> None:
        super().__init__(place.lanes, place.clock)
        self._place = place

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        queues = self._place.known() if kind == "dead" else ()
        return sum(self._sweep(queue, expires, most) for queue in queues)

    def _sweep(self, queue: str, dead_expires: float, dead_max: int) -> int:
        with self._place.administer(queue) as admin:
            if not admin.set_aside_names():
                return 0
            letters = sorted(admin.set_aside(), key=lambda letter: -letter.note.at)
            latest = self._clock.now() - dead_expires
            old = [
                letter.name for n, letter in enumerate(letters) if n >= dead_max or letter.note.at < latest
            ]
            removed = 0
            for name in old[:SWEEP_AT_A_TIME]:
                with suppress(SpoolError):
                    admin.remove(name, dead=True)
                    removed += 1
            return removed


class SpoolBroker(Broker):
    """directory: of the spool. sync: see Writer."""

    sender: SpoolSender
    consumer: MessageConsumer
    admin: SpoolQueues

    def __init__(self, directory: str, *, sync: Sync = Sync.DIRECTORY, clock: Clock = SYSTEM_CLOCK) -> None:
        url, place = f"spool://{directory}", _QueueDirectories(directory, clock)
        sender = SpoolSender(place, sync)
        letters: dict[Kind, Letters] = {"dead": SpoolLetters(place, sender)}
        queues = SpoolQueues(place)
        super().__init__(
            url,
            sender,
            _Consumer(place),
            queues,
            lacks=CAPABILITIES.lacks,
            letters=letters,
            revocations=None,
            presence=None,
            peeking=None,
            delayed=queues,
            stored_results=None,
            by_queue=None,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self._directory = directory

    @property
    def missing(self) -> str | None:
        return None if os.path.lexists(self._directory) else self._directory

    def close(self) -> None:
        self.consumer.deregister()


def open_broker(url: str | None, conf: Settings) -> SpoolBroker:
    """Return the broker at *url*, ``spool:///dir``; directories are created on first use.

    The only option (``broker_transport_options``) is ``sync``: nothing, file or directory.
    """
    refuse_parameters(url or "", "broker_url")
    refuse_setting(conf.broker_use_ssl, "a spool is a directory on this machine, so remove the setting")
    parts = urlsplit(url or "")
    directory = unquote(parts.path)
    if parts.netloc or not directory.startswith("/") or not directory.strip("/"):
        raise ConfigurationError(
            "broker_url names a spool directory as spool:///var/spool/jobs: three slashes, the absolute path",
            setting="broker_url",
        )
    options = dict(conf.broker_transport_options)
    if unknown := sorted(set(options) - {"sync"}):
        raise ConfigurationError(
            f"broker_transport_options: spool:// only has the option sync, not {unknown[0]!r}",
            setting="broker_transport_options",
        )
    try:
        sync = Sync(options.get("sync", Sync.DIRECTORY.value))
    except ValueError:
        raise ConfigurationError(
            f"sync is {options['sync']!r:.40}, but must be one of: {', '.join(each.value for each in Sync)}",
            setting="broker_transport_options",
        ) from None
    return SpoolBroker(os.path.realpath(directory), sync=sync)
