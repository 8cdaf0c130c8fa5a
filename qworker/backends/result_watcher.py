"""ResultWatcher: waits for results on behalf of threads, event loops and promises.

Comes from:  ``Backend.watcher``: one for each result store of a process, reset after a fork.
Goes to:     a Source, through which the store announces results: a named pipe, pub/sub, LISTEN, the reply
             queue. The store is also polled: twice a second, or with growing pauses if there are no
             notifications.
Thread:      one of the waiting threads is the leader: it sleeps on the source, reads results, and passes them
             to the other threads. Event loops and promises each have a WaiterThread, which any thread may
             call.

A thread that waits alone is the leader, and needs no other thread. If a source must be read even without
waiters (``Backend.listens``), only the WaiterThread of the event loops leads.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from qworker import states
from qworker.backends.waiters import POLL_SECONDS, Found, Meta, Notifications, Waiter, WatchedStore
from qworker.errors import BackendError, DamagedResult
from qworker.interrupts import reraise_interrupt
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe

logger = logging.getLogger(__name__)

QUICKEST, SLOWEST = 0.001, 0.25
"""Pauses between two polls if there are no notifications."""
MANY = 100
"""For a thread that waits for more ids than this, the pause between two polls of all its ids is a multiple of
a poll's duration, limited by the seconds below."""
REST_WITH_SOURCE, REST_WITHOUT_SOURCE, REST_BETWEEN_POLLS = 0.1, 2.0, 2.0
LINGER = 10.0
"""Seconds after which the idle thread of a WaiterThread ends."""
STALLED = 1.5
"""If the leader has not read for this many seconds, the other threads poll themselves."""
BETWEEN_WARNINGS = 60.0
"""Seconds between two warnings that promises wait."""
OUTAGE_SECONDS = 20.0
"""How long a store that has answered may be unavailable before waiting callers get an error. (Celery on Redis
tries twenty times, a second apart.) A caller that begins to wait in the meantime gets the error at once,
because it does its first read itself."""


class ResultWatcher:
    """Watches *backend* for all waiters in this process. linger: seconds after which idle threads end.
    outage: seconds for which the store may be unavailable. poll: the longest pause between two polls.
    stalled: seconds after which threads no longer trust the leader."""

    def __init__(
        self,
        backend: WatchedStore,
        linger: float = LINGER,
        outage: float = OUTAGE_SECONDS,
        poll: float = POLL_SECONDS,
        stalled: float = STALLED,
    ) -> None:
        self.backend = backend
        self.linger = linger
        self.poll = poll
        self._outage = outage
        self.stalled = stalled
        self._start_anew()
        _watchers.add(self)

    def _start_anew(self) -> None:
        self._waiters: dict[int, weakref.ref[Waiter]] = {}
        """By id(). No lock: all operations on it are atomic. The weak references remove waiters that were
        interrupted before leave()."""
        self._opening = threading.Lock()
        self._wakeup = WakeupPipe()
        """Wakes the leader. Opened under _opening."""
        self._turn = threading.Lock()
        """The thread that holds this lock leads."""
        self._whole = True  # no leader was interrupted; this and all below: under _turn
        self._notifications = Notifications(self.backend)
        self._times = PollTimes(self.poll)
        self._served_at = 0.0
        self._answered_at = -math.inf
        """When the store last answered."""
        self._closing: threading.Event | None = None
        """Assigned by any thread that wants the source closed. The leader sets the event."""
        self.loops = WaiterThread(self, "qworker-results", reads=self.backend.listens)
        self.promises = WaiterThread(self, "qworker-promises", patient=True)

    # -- waiters --

    def mark(self) -> int | None:
        """Return a mark for ``wait(looked=…)``; call this before reading all ids. wait() then need not read
        them again, because it considers notifications since. None if the source does not support it."""
        return self._notifications.mark()

    def wait(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
        looked: int | None = None,
    ) -> dict[str, Meta]:
        """See Backend.wait()."""
        waiter = Waiter(frozenset(ids), self._longest_pause(interval), looked)
        with closing(self._ended(waiter, ids, timeout, on_interval)) as each:
            return next(filter(None, map(readable, each)), {})

    def wait_each(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
    ) -> Iterator[dict[str, Found]]:
        """See Backend.wait_each(), without its first read."""
        missing, watched = set(ids), set(ids)
        waiter = Waiter(watched, self._longest_pause(interval))
        with closing(self._ended(waiter, missing, timeout, on_interval)) as each:
            for found in each:
                if ended := {task_id: meta for task_id, meta in found.items() if task_id in missing}:
                    missing.difference_update(ended)
                    watched.difference_update(ended)
                    yield ended
        if missing and (ended := final(self.backend.read_many(missing))):
            yield ended  # ended just before the timeout

    def _longest_pause(self, interval: float) -> float:
        return max(0.001, min(interval, self.poll))

    def _ended(
        self,
        waiter: Waiter,
        missing: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None,
    ) -> Generator[dict[str, Found]]:
        """Yield the final results that *waiter* gets, {} after a wait without one, for *timeout* seconds.
        missing: the ids of the results that are still missing."""
        clock, longest = self.backend.clock, waiter.interval
        deadline = None if timeout is None else clock.monotonic() + timeout
        call_at = 0.0
        try:
            while missing and (left := longest if deadline is None else deadline - clock.monotonic()) > 0:
                if on_interval is not None and time.monotonic() >= call_at:
                    on_interval()
                    call_at = time.monotonic() + longest
                found: dict[str, Found] = {}
                for news in self.attend(waiter, min(longest, left)):
                    # If the leader's read has failed, this one raises the reason.
                    found.update(self.backend.read_many(missing) if isinstance(news, Exception) else news)
                if not found and time.monotonic() - self._served_at > self.stalled:
                    found = self.own_look(missing) or {}
                yield final(found)
        finally:
            self.leave(waiter)

    def own_look(self, ids: Collection[str]) -> dict[str, Found] | None:
        """Return the stored results of *ids*, read by the calling thread; None if the store has just become
        unavailable. Raises BackendError when it has been unavailable for longer."""
        try:
            found = self.backend.read_many(ids) if ids else {}
        except BackendError:
            if self._may_come_back():
                return None
            raise
        if ids:
            self._answered_at = time.monotonic()
        return found

    def attend(self, waiter: Waiter, seconds: float) -> list[Mapping[str, Found] | Exception]:
        """Wait for news of *waiter* for up to *seconds*, and return it. Lead meanwhile, if no other thread
        does.

        Raises the store's errors. Must be followed by leave().
        """
        if id(waiter) not in self._waiters:
            self._join(waiter)
        if not self._may_lead(waiter):
            self.loops.ensure()
        elif self._in_turn(lambda: self._lead(waiter, seconds)):
            self._pass_on(waiter)
            return waiter.taken(0)
        waiter.asleep = True
        try:
            # If the leader has just stopped, there may be news already: do not wait, but lead next.
            led = self._turn.locked() or not self._may_lead(waiter)
            return waiter.taken(seconds if led else 0)
        finally:
            waiter.asleep = False

    def _join(self, waiter: Waiter) -> None:
        with self._opening:
            self._wakeup.open()
        key = id(waiter)
        self._waiters[key] = weakref.ref(waiter, partial(self._waiters.pop, key))
        self.wake()

    def leave(self, waiter: Waiter) -> None:
        """Remove *waiter*, which has stopped waiting. Safe to call twice."""
        self._waiters.pop(id(waiter), None)
        if self._in_turn(self._fall_silent):
            self._pass_on(waiter)

    def _in_turn(self, work: Callable[[], None]) -> bool:
        """Call *work*; return False, without calling it, if another thread leads. An interrupt releases the
        lock."""
        turn, got = self._turn, list[bool]()  # keep the lock, because a fork replaces self._turn
        try:
            got.extend(map(turn.acquire, (False,)))
            if True in got:
                work()
        finally:
            if True in got:
                turn.release()
        return True in got

    def _fall_silent(self) -> None:
        """Unsubscribe from everything, or close a source that must be read, if there is no waiter left."""
        self._obey()
        if not self._waiters and self._whole and self._notifications.opened:
            self._whole = False
            if self.backend.listens:
                self._notifications.close()
            else:
                self._notifications.unsubscribe()
            self._whole = True

    def wake(self) -> None:
        """Wake the leader, because there are new ids to wait for."""
        if self._turn.locked():
            self._wakeup.wake()

    def _may_lead(self, waiter: Waiter) -> bool:
        return not self.backend.listens or waiter is self.loops.waiter

    def _pass_on(self, leader: Waiter) -> None:
        """Let another thread lead, because *leader* stops."""
        for waiter in self._all():
            if waiter is not leader and waiter.asleep and self._may_lead(waiter):
                waiter.news.put({})
                return

    def waited_for(self) -> set[str]:
        """Return the ids that any waiter waits for."""
        return set().union(*(waiter.ids for waiter in self._all()))

    def _all(self) -> list[Waiter]:
        return [waiter for reference in list(self._waiters.values()) if (waiter := reference()) is not None]

    # -- the thread that leads --

    def _lead(self, leader: Waiter, seconds: float) -> None:
        """Serve all waiters until *leader* has news, or *seconds* have passed."""
        if not self._whole:  # an interrupted leader may have lost notifications
            self._notifications.close()
            self._times.postpone(0.0)
        self._whole = False
        until = time.monotonic() + seconds
        try:
            self._serve_or_bear()
            while leader.news.empty() and (now := time.monotonic()) < until:
                self._wakeup.sleep(min(until, self._times.next) - now, self._notifications.fileno())
                self._serve_or_bear()
        except Exception as error:
            reraise_interrupt(error)
            self._times.postpone(time.monotonic() + SLOWEST)
            for waiter in self._all():
                if waiter is not leader:
                    waiter.news.put(error)
            self._whole = True
            raise
        self._whole = True

    def _serve_or_bear(self) -> None:
        """Serve all waiters. If the store has just become unavailable, retry in a moment."""
        try:
            self._serve()
        except BackendError as error:
            if isinstance(error, DamagedResult) or not self._may_come_back():
                raise
            logger.debug("the result store is unavailable; still waiting for results: %s", error)
            self._served_at = time.monotonic()
            self._times.postpone(self._served_at + SLOWEST)

    def _may_come_back(self) -> bool:
        """Return whether the store has answered recently. Any thread."""
        return time.monotonic() - self._answered_at < self._outage

    def _serve(self) -> None:
        """Read results that were announced or never read, and all results when a poll is due.

        Waiters with many ids are polled separately and less often, because that takes long.
        """
        self._obey()
        waiters = self._all()
        events = self._notifications.events
        wanted = set[str]()
        for waiter in waiters:
            if waiter.looked is not None:
                if waiter.looked == events:
                    waiter.new.clear()
                waiter.looked = None
            if waiter.new:
                wanted.update(filter(waiter.ids.__contains__, waiter.taken_anew()))
        many = [waiter.ids for waiter in waiters if len(waiter.ids) > MANY]
        came, notified = bool(wanted), self._notifications.opened
        announced = self._notifications.read(waiters, came)
        if notified and not self._notifications.opened:
            self._times.hurry()
        due = self._times.due(time.monotonic(), announced is None, bool(many))
        if announced:
            wanted.update(*(filter(waiter.ids.__contains__, announced) for waiter in waiters))
        if due.all:
            wanted.update(*(waiter.ids for waiter in waiters if len(waiter.ids) <= MANY))
        if due.many:
            wanted.update(*many)
        if wanted:
            self._look(wanted, waiters)
        self._served_at = time.monotonic()
        slowest = min([SLOWEST, *(waiter.interval for waiter in waiters)])
        self._times.read(due, self._served_at, came, self._notifications.opened, slowest)

    def _look(self, ids: set[str], waiters: Sequence[Waiter]) -> None:
        ended = final(self.backend.read_many(ids))
        self._answered_at = time.monotonic()
        for waiter in waiters if ended else ():
            if theirs := {task_id: found for task_id, found in ended.items() if task_id in waiter.ids}:
                waiter.give(theirs)

    def _obey(self) -> None:
        """Close the source if close() was called."""
        closed, self._closing = self._closing, None
        if closed is not None:
            self._notifications.close()
            closed.set()

    # -- closing --

    def close(self) -> None:
        """Close the source and end idle threads. Waiters continue with another source. Safe to call
        twice."""
        self.loops.dismiss()
        self.promises.dismiss()
        closed = threading.Event()
        self._closing = closed
        if not self._in_turn(self._obey):
            self._wakeup.wake()
            closed.wait(1.0)

    def _after_fork(self) -> None:
        """In a forked child: waiters, leader and connection belong to the parent."""
        notifications = self._notifications
        self._start_anew()
        notifications.abandon()


class DueRead(NamedTuple):
    """What the leader reads now, and when it began."""

    began: float
    all: bool
    """All results that are waited for."""
    many: bool
    """Those of waiters with many ids."""
    has_many: bool
    """Whether there are such waiters."""


class PollTimes:
    """When the leader reads all results. Used by the leader only. poll: the longest pause in seconds."""

    def __init__(self, poll: float) -> None:
        self._poll = poll
        self._at = 0.0
        self._many_at = math.inf
        """Infinite until results of a waiter with many ids have been read."""
        self._many_rested_at = 0.0
        """From when these may be read if any of them may have ended."""
        self._pause = QUICKEST
        """The next pause, if there are no notifications."""

    @property
    def next(self) -> float:
        """When any of them is due next."""
        return min(self._at, self._many_at)

    def postpone(self, until: float) -> None:
        """Let all be due at *until*."""
        self._at = self._many_at = until

    def hurry(self) -> None:
        """Let the pauses be short again."""
        self._pause = QUICKEST

    def due(self, now: float, any_may_have_ended: bool, has_many: bool) -> DueRead:
        """Return what to read *now*."""
        many_at = min(self._many_at, self._many_rested_at) if any_may_have_ended else self._many_at
        many = has_many and (now >= many_at or self._many_at == math.inf)
        if has_many and not many:
            self._many_at = many_at
        return DueRead(now, any_may_have_ended or now >= self._at, many, has_many)

    def read(self, due: DueRead, done: float, came: bool, notified: bool, slowest: float) -> None:
        """Compute the next times, because *due* was read until *done*.

        - came: whether ids were new.
        - notified: whether the store sends notifications. Otherwise the pauses grow up to *slowest*, and are
          at least as long as a read.
        """
        took = done - due.began
        if notified:
            if due.all:
                self._at = done + self._poll
        else:
            if came:
                self._pause = QUICKEST
            elif due.all:
                self._pause *= 1.5
            self._pause = min(self._pause, slowest)
            at = done + max(self._pause, min(took, SLOWEST))
            self._at = at if due.all else min(self._at, at)
        if not due.has_many:
            self._many_at = math.inf
        elif due.many and notified:
            self._many_rested_at = done + min(10 * took, REST_WITH_SOURCE)
            self._many_at = done + max(self._poll, min(50 * took, REST_BETWEEN_POLLS))
        elif due.many:
            self._many_rested_at = self._many_at = done + max(self._pause, min(3 * took, REST_WITHOUT_SOURCE))


class WaiterThread:
    """A thread that waits on behalf of callers that must not block, and calls their callbacks.

    patient: continue while the store is unavailable, instead of passing the error to all callbacks. reads:
    also read the source for other waiters, and for a while after the last one.
    """

    def __init__(self, watcher: ResultWatcher, name: str, patient: bool = False, reads: bool = False) -> None:
        self._watcher = watcher
        self._name = name
        self._patient = patient
        self._reads = reads
        # Re-entrant, because the garbage collector may cancel a callback while this thread holds the lock.
        self._lock = threading.RLock()
        self._calls: dict[str, list[Callable[[Found | Exception], object]]] = {}  # under _lock
        self.waiter = Waiter(self._calls)
        self._thread: threading.Thread | None = None  # under _lock
        self._idle = False  # under _lock
        self._stay_until = 0.0  # under _lock
        self._log_at = -math.inf  # of its thread

    def call(self, task_id: str, callback: Callable[[Found | Exception], object]) -> None:
        """Call callback(metadata) when the task has ended, or callback(error) when the result cannot be
        read."""
        self.call_many({task_id: callback})

    def call_many(self, callbacks: Mapping[str, Callable[[Found | Exception], object]]) -> None:
        """Like call(), with a callback for each id."""
        with self._lock:
            for task_id, callback in callbacks.items():
                self._calls.setdefault(task_id, []).append(callback)
            self.waiter.new.extend(callbacks)
            self.ensure()
            self._rouse()
        self._watcher.wake()

    def cancel_many(self, callbacks: Mapping[str, Callable[[Found | Exception], object]]) -> None:
        """Like cancel(), with a callback for each id."""
        for task_id, callback in callbacks.items():
            self.cancel(task_id, callback)

    def cancel(self, task_id: str, callback: Callable[[Found | Exception], object]) -> None:
        """Remove the callback. Safe to call twice."""
        with self._lock:
            callbacks = self._calls.get(task_id, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks:
                self._calls.pop(task_id, None)

    def ensure(self) -> None:
        """Start the thread if it is not running."""
        # is_alive(): an interrupt may have prevented the start.
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._stay_until = time.monotonic() + self._watcher.linger
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def dismiss(self) -> None:
        """End the thread when it is idle."""
        with self._lock:
            self._stay_until = 0.0
            self._rouse()

    def _rouse(self) -> None:
        if self._idle:
            self._idle = False
            self.waiter.news.put({})

    def _run(self) -> None:
        try:
            while (idle := self._stays()) is not None:
                if idle > 0:
                    self._watcher.leave(self.waiter)
                    self.waiter.taken(idle)
                    continue
                try:
                    for news in self._watcher.attend(self.waiter, self._watcher.poll):
                        self._give(news)
                except Exception as error:  # noqa: BLE001 - passed to the callbacks
                    self._give(error)
        finally:
            self._watcher.leave(self.waiter)

    def _stays(self) -> float | None:
        """Return the seconds for which the thread may stay idle, 0 if there is work; None: it must end,
        because another may start from now on."""
        with self._lock:
            now = time.monotonic()
            if self._calls or (self._reads and self._watcher.waited_for()):
                self._stay_until = now + self._watcher.linger
                return 0.0
            if now >= self._stay_until:
                self._thread = None
                return None
            self._idle = not self._reads
            return self._stay_until - now if self._idle else 0.0

    def _give(self, news: Mapping[str, Found] | Exception) -> None:
        if isinstance(news, Exception):
            if self._patient:
                clock = self._watcher.backend.clock
                if (now := clock.monotonic()) >= self._log_at:  # the store may be away for hours
                    self._log_at = now + BETWEEN_WARNINGS
                    logger.warning("promises are waiting for the result store: %s", news)
                clock.sleep(1.0)
                return
            news = dict.fromkeys(list(self._calls), news)  # type: ignore[arg-type]
        for task_id, found in news.items():
            with self._lock:
                callbacks = self._calls.pop(task_id, [])
            for callback in callbacks:
                callback(found)


def final(found: Mapping[str, Found]) -> dict[str, Found]:
    """Return those results in *found* that are final or unreadable."""
    return {
        task_id: each
        for task_id, each in found.items()
        if isinstance(each, DamagedResult) or each["status"] in states.READY_STATES
    }


def readable(ended: Mapping[str, Found]) -> dict[str, Meta]:
    """Return the readable metadata in *ended*. Raises DamagedResult if there are only unreadable results."""
    metadata = {}
    damaged = None
    for task_id, found in ended.items():
        if isinstance(found, DamagedResult):
            damaged = found
        else:
            metadata[task_id] = found
    if damaged is not None and not metadata:
        raise damaged
    return metadata


_watchers = forgetful()
