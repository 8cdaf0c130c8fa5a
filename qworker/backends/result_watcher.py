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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from qworker import states
from qworker.backends.waiters import POLL_SECONDS, Found, Meta, Source, Waiter, Watched
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
OUTAGE_SECONDS = 20.0
"""How long a store that has answered may be unavailable before waiting callers get an error. (Celery on Redis
tries twenty times, a second apart.) A caller that begins to wait in the meantime gets the error at once,
because it does its first read itself."""
FIRST_RETRY, LAST_RETRY = 0.05, 30.0
"""Seconds after which a source that failed twice or more is opened again."""


class ResultWatcher:
    """Watches *backend* for all waiters in this process. linger: seconds after which idle threads end.
    outage: seconds for which the store may be unavailable. poll: the longest pause between two polls.
    stalled: seconds after which threads no longer trust the leader."""

    def __init__(
        self,
        backend: Watched,
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
        self._source: Source | None = None
        self._source_events = 0
        """Counts reads, openings and closings of the source: a new waiter has missed what came before."""
        self._failures = 0
        self._open_at = 0.0
        self._subscribed = 0
        self._look_at = 0.0
        self._look_at_many = math.inf
        """Infinite until results of a waiter with many ids have been polled."""
        self._rested_at = 0.0
        self._served_at = 0.0
        self._answered_at = -math.inf
        """When the store last answered."""
        self._pause = QUICKEST
        self._closing: threading.Event | None = None
        """Assigned by any thread that wants the source closed. The leader sets the event."""
        self.loops = WaiterThread(self, "qworker-results", reads=self.backend.listens)
        self.promises = WaiterThread(self, "qworker-promises", patient=True)

    # -- waiters --

    def mark(self) -> int | None:
        """Return a mark for ``wait(looked=…)``; call this before reading all ids. wait() then need not read
        them again, because it considers notifications since. None if the source does not support it."""
        events = self._source_events
        return events if getattr(self._source, "announces_all", False) else None

    def wait(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
        looked: int | None = None,
    ) -> dict[str, Meta]:
        """See Backend.wait()."""
        clock = self.backend.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        longest = max(0.001, min(interval, self.poll))
        waiter = Waiter(frozenset(ids), longest, looked)
        try:
            while True:
                left = longest if deadline is None else deadline - clock.monotonic()
                if left <= 0:
                    return {}
                if on_interval is not None:
                    on_interval()
                found: dict[str, Found] = {}
                for news in self.attend(waiter, min(longest, left)):
                    # If the leader's read has failed, this one raises the reason.
                    found.update(self.backend.read_many(ids) if isinstance(news, Exception) else news)
                if not found and time.monotonic() - self._served_at > self.stalled:
                    found = self.own_look(ids) or {}
                if ended := readable(final(found)):
                    return ended
        finally:
            self.leave(waiter)

    def wait_each(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
    ) -> Iterator[dict[str, Found]]:
        """See Backend.wait_each(), without its first read."""
        clock = self.backend.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        longest = max(0.001, min(interval, self.poll))
        missing, watched = set(ids), set(ids)
        waiter = Waiter(watched, longest)
        call_at = 0.0
        try:
            while missing:
                left = longest if deadline is None else deadline - clock.monotonic()
                if left <= 0:
                    break
                if on_interval is not None and time.monotonic() >= call_at:
                    on_interval()
                    call_at = time.monotonic() + longest
                found: dict[str, Found] = {}
                for news in self.attend(waiter, min(longest, left)):
                    # If the leader's read has failed, this one raises the reason.
                    found.update(self.backend.read_many(missing) if isinstance(news, Exception) else news)
                if not found and time.monotonic() - self._served_at > self.stalled:
                    found = self.own_look(missing) or {}
                if ended := {each: meta for each, meta in final(found).items() if each in missing}:
                    missing.difference_update(ended)
                    watched.difference_update(ended)
                    yield ended
        finally:
            self.leave(waiter)
        if missing and (ended := final(self.backend.read_many(missing))):
            yield ended  # ended just before the timeout

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
        if not self._waiters and self._whole and self._source is not None:
            self._whole = False
            if self.backend.listens:
                self._close_source()
            else:
                self._unsubscribe(self._source)
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
        """Return the ids of all waiters."""
        return set().union(*(waiter.ids for waiter in self._all()))

    def _all(self) -> list[Waiter]:
        return [waiter for reference in list(self._waiters.values()) if (waiter := reference()) is not None]

    # -- the thread that leads --

    def _lead(self, leader: Waiter, seconds: float) -> None:
        """Serve all waiters until *leader* has news, or *seconds* have passed."""
        if not self._whole:  # an interrupted leader may have lost notifications
            self._close_source()
            self._look_at = self._look_at_many = 0.0
        self._whole = False
        until = time.monotonic() + seconds
        try:
            self._serve_or_bear()
            while leader.news.empty() and (now := time.monotonic()) < until:
                file = -1 if self._source is None else self._source.fileno()
                self._wakeup.sleep(min(until, self._look_at, self._look_at_many) - now, file)
                self._serve_or_bear()
        except Exception as error:
            reraise_interrupt(error)
            self._look_at = self._look_at_many = time.monotonic() + SLOWEST
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
            logger.debug("waiting for results continues although the store fails: %s", error)
            self._served_at = time.monotonic()
            self._look_at = self._look_at_many = self._served_at + SLOWEST

    def _may_come_back(self) -> bool:
        """Tell whether the store has answered recently. Any thread."""
        return time.monotonic() - self._answered_at < self._outage

    def _serve(self) -> None:
        """Read results that were announced or never read, and all results when a poll is due.

        Waiters with many ids are polled separately and less often, because that takes long.
        """
        waiters = self._all()
        wanted: set[str] = set()
        many, count = [], 0
        for waiter in waiters:
            ids = waiter.ids
            count += len(ids)
            if waiter.looked is not None:
                if waiter.looked == self._source_events:
                    waiter.new.clear()
                waiter.looked = None
            if waiter.new:
                wanted.update(filter(ids.__contains__, waiter.taken_anew()))
            if len(ids) > MANY:
                many.append(ids)
        came = bool(wanted)
        announced = self._read_source(waiters, count, came)
        began = time.monotonic()
        everything = announced is None or began >= self._look_at
        if announced:
            wanted.update(*(filter(waiter.ids.__contains__, announced) for waiter in waiters))
        if everything and count > len(wanted):
            wanted.update(*(waiter.ids for waiter in waiters if len(waiter.ids) <= MANY))
        look_at_many = min(self._look_at_many, self._rested_at) if announced is None else self._look_at_many
        if many and (began >= look_at_many or look_at_many == math.inf):
            look_at_many = 0.0
            wanted.update(*many)
        if wanted:
            self._look(wanted, waiters)
        done = self._served_at = time.monotonic()
        if self._source is not None:
            if everything:
                self._look_at = done + self.poll
        else:
            # No notifications: the pauses grow, and are at least as long as a read (up to SLOWEST).
            slowest = min([SLOWEST, *(waiter.interval for waiter in waiters)])
            if came:
                self._pause = QUICKEST
            elif everything:
                self._pause = self._pause * 1.5
            self._pause = min(self._pause, slowest)
            look_at = done + max(self._pause, min(done - began, SLOWEST))
            self._look_at = look_at if everything else min(self._look_at, look_at)
        if not many:
            self._look_at_many = math.inf
        elif not look_at_many:
            self._rest(done, done - began)
        else:
            self._look_at_many = look_at_many

    def _rest(self, done: float, took: float) -> None:
        """Compute the earliest and the latest time of the next read of many ids; the last one *took* so many
        seconds."""
        if self._source is not None:
            self._rested_at = done + min(10 * took, REST_WITH_SOURCE)
            self._look_at_many = done + max(self.poll, min(50 * took, REST_BETWEEN_POLLS))
        else:
            self._rested_at = self._look_at_many = done + max(self._pause, min(3 * took, REST_WITHOUT_SOURCE))

    def _look(self, ids: set[str], waiters: Sequence[Waiter]) -> None:
        ended = final(self.backend.read_many(ids))
        self._answered_at = time.monotonic()
        for waiter in waiters if ended else ():
            if theirs := {task_id: found for task_id, found in ended.items() if task_id in waiter.ids}:
                waiter.give(theirs)

    def _read_source(self, waiters: Sequence[Waiter], count: int, came: bool) -> Collection[str] | None:
        """Return the announced ids; None: any may have ended. Opens the source if necessary.

        count: number of ids that *waiters* wait for. came: some of them are new.
        """
        self._obey()
        source = self._source
        try:
            if source is None:
                if not count or time.monotonic() < self._open_at:
                    return ()
                self._source_events += 1
                source = self._source = self.backend.open_source()
                if source is None:
                    self._open_at = math.inf
                    return ()
                self._subscribe(source, waiters)
                self._failures = 0
                return None
            if came or count < self._subscribed // 2:  # not after each result, because this takes linear time
                self._subscribe(source, waiters)
            self._source_events += 1
            return source.announced()
        except Exception as error:  # noqa: BLE001 - sources may raise anything; results are polled meanwhile
            reraise_interrupt(error)
            self._failed(error)
            if source is None:  # it could not be opened
                return ()
            self._pause = QUICKEST
            return None

    def _subscribe(self, source: Source, waiters: Sequence[Waiter]) -> None:
        ids = set[str]().union(*(waiter.ids for waiter in waiters))
        source.subscribe(ids)
        self._subscribed = len(ids)

    def _unsubscribe(self, source: Source) -> None:
        try:
            self._subscribe(source, ())
        except Exception as error:  # noqa: BLE001 - the next waiter opens another source
            reraise_interrupt(error)
            self._failed(error)

    def _obey(self) -> None:
        """Close the source if close() was called."""
        closing, self._closing = self._closing, None
        if closing is not None:
            self._close_source()
            closing.set()

    def _failed(self, error: Exception) -> None:
        logger.log(
            logging.INFO if self._failures == 3 else logging.DEBUG,
            "results are polled, because notifications from the server failed: %s",
            error,
        )
        # An idle connection may have been closed, so the first retry is immediate.
        delay = min(FIRST_RETRY * 2**self._failures, LAST_RETRY) if self._failures else 0.0
        self._open_at = time.monotonic() + delay
        self._failures += 1
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        self._source_events += 1
        if source is not None:
            try:
                source.close()
            except Exception as error:  # noqa: BLE001 - the source is discarded in any case
                reraise_interrupt(error)
                logger.debug("closing the source of notifications: %s", error)

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
        source = self._source
        self._start_anew()
        if source is not None:
            source.abandon()


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
                logger.warning("promises are waiting for the result store: %s", news)
                self._watcher.backend.clock.sleep(1.0)
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
