"""Combined: spool directories and an app's own broker, as one broker for a worker.

Comes from:  ``runner``, which gives it to the app of a worker for spool directories.
Goes to:     the app's broker for sending; the app's broker and the directories for consuming.
Thread:      that of each part; _Watch has its own, which only wakes the consumer.

Messages of the directories have negative tags. Where results are kept with the broker, that of a job is
stored before its file is removed.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Collection, Sequence
from contextlib import closing

from qworker.clock import Clock
from qworker.process.wakeup import WakeupPipe
from qworker.spooler.administration.counts import JobCounter
from qworker.spooler.running.consumer import Order
from qworker.spooler.running.dispatch import JobDispatch
from qworker.spooler.running.job_messages import queue_name
from qworker.transports.capabilities import capabilities_of
from qworker.transports.lease import (
    Ack,
    Admin,
    Broker,
    Claim,
    Consumer,
    DeadLetter,
    Hearing,
    Kind,
    Letters,
    QueueInfo,
    Reclaimed,
    Revocation,
    Revocations,
    Settlement,
    Store,
)

POLL_SECONDS = 5.0
"""Maximum seconds of a sleep of _Watch."""


class SpoolCombined(Broker):
    """broker: of the app. spool: takes jobs from the directories. admin: of both."""

    def __init__(self, broker: Broker, spool: JobDispatch, admin: Admin) -> None:
        self._both = _Both(broker.consumer, spool)
        super().__init__(
            broker.url,
            broker.sender,
            self._both,
            admin,
            lacks=broker.lacks,
            letters=broker.letters,
            revocations=broker.revocations,
            presence=broker.presence,
            peeking=broker.peeking,
            delayed=broker.delayed,
            stored_results=broker.stored_results,
            by_queue=broker.by_queue,
            registry=broker.registry,
            lowest_first=broker.lowest_first,
            silent_seconds=broker.silent_seconds,
        )
        self._broker = broker

    @property
    def missing(self) -> str | None:
        return self._broker.missing

    def close(self) -> None:
        try:
            self._both.close()
        finally:
            self._broker.close()


class _NoRevocations(Hearing):
    """Receives no revocations: those in the app's broker are not about jobs of directories."""

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        return cursor, []


class SpoolInstead(Broker):
    """Like SpoolCombined, but the worker only consumes the directories, and not the app's own broker. Failed
    jobs are set aside, not kept as failed tasks; kombu's exchanges stay with the app's broker."""

    def __init__(self, broker: Broker, spool: JobDispatch, admin: Admin) -> None:
        letters: dict[Kind, Letters] = dict(broker.letters)
        letters.pop("failed", None)
        revocations, lacks = broker.revocations, capabilities_of("spool:").lacks
        super().__init__(
            broker.url,
            broker.sender,
            spool,
            admin,
            lacks=lacks,
            letters=letters,
            revocations=revocations and Revocations(revocations.sender, _NoRevocations()),
            presence=broker.presence,
            peeking=broker.peeking,
            delayed=broker.delayed,
            stored_results=None,
            by_queue=None,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self.lacks = lacks  # what this worker's consumer lacks
        self._broker = broker

    @property
    def missing(self) -> str | None:
        return self._broker.missing

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._broker.close()


class _Watch:
    """Wakes a consumer when one of the files that it waits for becomes readable. The thread starts with the
    first wait."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._armed: list[int] = []  # of the listener; replaced as a whole
        self._pipe = WakeupPipe()
        self._thread: threading.Thread | None = None
        self._over = False

    def arm(self, files: Sequence[int]) -> None:
        """Wake the consumer once, as soon as one of *files* can be read."""
        if self._thread is None:
            self._pipe.open()
            self._over = False
            self._thread = threading.Thread(target=self._run, name="spool watch", daemon=True)
            self._thread.start()
        self._armed = list(files)
        self._pipe.wake()

    def close(self) -> None:
        """Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over = True
            self._pipe.wake()
            thread.join(POLL_SECONDS)
            self._pipe.close()

    def _run(self) -> None:
        reported: list[int] | None = None
        while not self._over:
            armed = self._armed
            with contextlib.suppress(OSError, ValueError):  # a directory was closed meanwhile
                _, ready = self._pipe.sleep(POLL_SECONDS, *(() if armed is reported else armed))
                if ready:
                    reported = armed
                    self._consumer.wake()


class _Both(Consumer):
    """The consumers of a broker and of the directories, as one."""

    def __init__(self, own: Consumer, spool: JobDispatch) -> None:
        self._own = own
        self._spool = spool
        self._watch = _Watch(own)
        self._registered = False
        self._spool_first = False

    @property
    def poll_seconds(self) -> float:  # type: ignore[override]
        return self._own.poll_seconds

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = self._own.register(name, queues, concurrency)
        if self._registered:
            self._spool.offer_again()  # the lost lease was the broker's: the files are still held
        else:
            self._spool.register(name, (), concurrency)
            self._registered = True
        return generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        # Each comes first in turn, so that neither starves.
        self._spool_first = not self._spool_first
        own_limit = limit // 2 if self._spool_first else limit
        claim = self._own.lease(queues, own_limit, delayed_limit, eta_window)
        left = max(0, limit - len(claim.messages))
        jobs = self._spool.lease((), left, delayed_limit, eta_window)
        messages = [*claim.messages, *(leased._replace(tag=-leased.tag) for leased in jobs.messages)]
        dues = [due for due in (claim.next_due, jobs.next_due) if due is not None]
        return Claim(messages, min(dues, default=None), claim.last_revocation)

    @property
    def prefetched(self) -> bool:
        return self._own.prefetched

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        own: list[Settlement] = []
        jobs: list[Order] = []
        for settlement in settlements:
            if isinstance(settlement, Store) or settlement.tag >= 0:
                own.append(settlement)
                continue
            jobs.append(settlement._replace(tag=-settlement.tag))
            if isinstance(settlement, Ack | DeadLetter) and (settlement.row or settlement.parts):
                own.append(Store(settlement.row, settlement.parts))
        lost = self._own.settle(generation, own) if own else set()
        return lost | {-tag for tag in self._spool.settle_held(jobs)}

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        own = [tag for tag in tags if tag >= 0]
        return self._own.settled_before(own) if own else ()

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return self._own.in_doubt([tag for tag in tags if tag >= 0])

    def confirm(self) -> None:
        self._own.confirm()

    def extend(self) -> None:
        self._own.extend()

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return self._own.reclaim(silent)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        if self._spool.has_news():
            return True
        self._watch.arm(self._spool.files())
        notified = self._own.wait(min(timeout, self._spool.rest()), prefetch)
        return self._spool.has_news() or notified

    def wake(self) -> None:
        self._own.wake()

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        return self._own.sweep(kind, expires, most)

    def running_path(self) -> str | None:
        return self._own.running_path()

    def deregister(self) -> None:
        try:
            self._own.deregister()
        finally:
            self._watch.close()
            self._spool.deregister()
            self._registered = False

    def close(self) -> None:
        """Close the watch and the directories. The broker is closed by SpoolCombined."""
        self._watch.close()
        self._spool.deregister()


# -- SpoolDepths: the administration of an app's broker, which also counts the jobs of spool directories --


class SpoolDepths(Admin):
    """own: of the app's broker. directories: their jobs are included in every result of depths()."""

    def __init__(self, own: Admin, directories: Sequence[str], clock: Clock) -> None:
        self._own = own
        self._directories = tuple(directories)
        self._clock = clock

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        jobs = [self._count(directory) for directory in self._directories]
        names = {info.queue for info in jobs}
        others = [queue for queue in queues if queue not in names]
        return [*(self._own.depths(others) if others else ()), *jobs]

    def _count(self, directory: str) -> QueueInfo:
        with closing(JobCounter(directory, clock=self._clock)) as counter:
            try:
                counts, _ = counter.look()
            except OSError:
                return QueueInfo(queue_name(directory))
        return QueueInfo(
            queue_name(directory), counts.due, counts.delayed, counts.running, counts.dead or 0, counts.oldest
        )

    def queues(self) -> list[QueueInfo]:
        return self._own.queues()

    @property
    def purges_leased(self) -> bool:
        return self._own.purges_leased

    def purge(self, queue: str) -> int:
        return self._own.purge(queue)
