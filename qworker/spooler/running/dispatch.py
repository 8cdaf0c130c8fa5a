"""JobDispatch: passes names of spool files to the processes that claim and run them.

Comes from:  the Listener, which asks for messages; the directories, with files written by uWSGI or others.
Goes to:     ``jobs``, in a child, by messages of the task that runs jobs: each names one file, or several.
Thread:      listener.

Nothing is locked here. The process that runs a job holds the lock of its file, so the kernel releases it when
the process dies, and a name given to two processes is run by one of them. A message that has run several jobs
and left none of the files ends normally. Otherwise the files are checked: a job's file is gone, or due at
another time, or it is tried again.

A message has several short jobs. Jobs behind a long one do not wait for it: after a moment their names are
given to other processes, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.spooler.running.consumer import DirectoryConsumer, Lane, Order
from qworker.spooler.running.job_messages import MakeMessage, signal_message
from qworker.spooler.uwsgi.timers import DueSignal, SignalSource
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.transports.lease import Ack, Leased, Release

MOST = 128
"""Maximum files in one message."""
FIRST = 16
"""The same while the duration of jobs is unknown."""
SHORT_SECONDS = 0.02
"""The intended maximum duration of one message."""
AT_ONCE = 4
"""Messages for each process in one lease()."""
NAMES_AT_ONCE = 128
"""Maximum names in these messages: processes would wait while more are searched for."""
POLL_COOLDOWN = 0.003
"""How long notifications are ignored after a useless one: each running job causes several, too."""
STALE_SECONDS = 0.25
"""After this time, names that were handed out are given to others, too."""


class JobLane(Lane):
    """A directory of jobs. most: maximum files in a message. has_results: messages end with their job's
    return value, which does not show whether the file is still there."""

    def __init__(
        self, directory: SpoolDirectory, message: MakeMessage, most: int = MOST, *, has_results: bool = False
    ) -> None:
        super().__init__("", directory)
        self.message = message
        self.has_results = has_results
        self._most = most
        self.size = min(FIRST, most)
        """How many files the next message names."""

    def are_gone(self, paths: Sequence[str]) -> bool:
        """Return whether none of these files is left, after their message has ended normally. A revocation
        ends one like that, too, but leaves at least the last file."""
        return bool(paths) and not self.has_results and not self.directory.holds(paths[-1])

    def learn(self, files: int, seconds: float) -> None:
        """Adapt the size of messages: a process took *seconds* for this number of *files*."""
        each = max(seconds / files, 1e-6)
        self.size = max(1, min(self._most, int(SHORT_SECONDS / each)))


class _Given(NamedTuple):
    """A message that was handed out, at the monotonic time *at* and epoch second *since*. signal: its signal;
    then *paths* is ()."""

    lane: JobLane
    paths: tuple[str, ...]
    at: float
    since: float
    leased: Leased
    signal: DueSignal | None = None


def _has_not_begun(order: Order) -> bool:
    """Return whether the worker gives back a message that no process has received."""
    return isinstance(order, Release) and not (order.redelivered or order.counted or order.requeued)


def _is_cut_short(order: Order) -> bool:
    """Return whether the run ended because the worker stops."""
    return isinstance(order, Release) and order.redelivered and not (order.counted or order.requeued)


class JobDispatch(DirectoryConsumer[JobLane]):
    """Hands out names, without locking files. signals: signals that the processes handle, too."""

    poll_cooldown = POLL_COOLDOWN

    def __init__(
        self,
        open_lanes: Callable[[Sequence[str]], list[JobLane]],
        clock: Clock = SYSTEM_CLOCK,
        signals: SignalSource | None = None,
    ) -> None:
        super().__init__(open_lanes, clock)
        self._signals = signals
        self._given: dict[int, _Given] = {}
        self._again: list[int] = []
        self._settled_at = 0.0
        self._raised: list[DueSignal] = []
        """Signals that were not handed out yet, or were given back: they have no files."""

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        if self._signals is not None:
            self._signals.start()
        return generation

    def deregister(self) -> None:
        if self._signals is not None:
            self._signals.stop()
        super().deregister()

    def rescan(self) -> None:
        """Scan all directories soon. Any thread; safe in a signal handler."""
        for lane in self._lanes:
            lane.directory.rescan()
        self.wake()

    def files(self) -> list[int]:
        return super().files() + ([] if self._signals is None else self._signals.filenos())

    def rest(self) -> float:
        return min(super().rest(), self._until_stale(), self._until_signal())

    def _until_stale(self) -> float:
        """Return the seconds until names are given to others, too; infinity if there are none."""
        for given in self._given.values():
            if given.paths[1:]:
                return max(0.0, given.at + STALE_SECONDS - self._clock.monotonic())
        return math.inf

    def _until_signal(self) -> float:
        if self._signals is None:
            return math.inf
        now = self._clock.now()
        return max(0.0, self._signals.next_time(now) - now)

    def settle_held(self, orders: Sequence[Order]) -> set[int]:
        lost: set[int] = set()
        back: list[DueSignal] = []
        ended_of: dict[JobLane, list[_Given]] = {}
        for order in orders:
            given = self._given.pop(order.tag, None)
            if given is None:
                lost.add(order.tag)
                continue
            if given.signal is not None and _has_not_begun(order):
                back.append(given.signal)
            ended = not isinstance(order, Release) or order.requeued
            if _is_cut_short(order):
                for path in given.paths:
                    given.lane.directory.uncount(path, given.since)
            if isinstance(order, Ack) and given.lane.are_gone(given.paths):
                given.lane.directory.gone(given.paths)
            else:
                given.lane.directory.tried(given.paths, given.since, at_once=not ended)
            if ended and given.paths:
                ended_of.setdefault(given.lane, []).append(given)
        self._raised[:0] = back
        now = self._clock.monotonic()
        for lane, several in ended_of.items():
            # The time in which the processes certainly had jobs.
            busy = now - max(self._settled_at, min(given.at for given in several))
            lane.learn(sum(len(given.paths) for given in several), busy * self._concurrency)
        self._settled_at = now
        return lost

    def offer_again(self) -> None:
        self._again = list(self._given)

    def _process_notifications(self, ready: set[int]) -> bool:
        news = super()._process_notifications(ready)
        news = self._collect_signals() or news
        for lane in self._lanes:
            if self._give_to_others(lane):
                lane.drained = False
                news = True
        return news

    def _most_at_once(self) -> int:
        most = max((lane.size for lane in self._lanes), default=1)
        return max(1, min(AT_ONCE, NAMES_AT_ONCE // most)) * self._concurrency

    def _collect_signals(self) -> bool:
        """Collect the due signals; return whether there were any. They are not notified again if there is no
        room."""
        due = [] if self._signals is None else self._signals.due(self._clock.now())
        self._raised += due
        return bool(due)

    def _offered(self, limit: int) -> list[Leased]:
        again, self._again = self._again, []
        messages = [self._given[tag].leased for tag in again if tag in self._given]
        self._collect_signals()
        raised, self._raised = self._raised[:limit], self._raised[limit:]
        return messages + [self._give_signal(signal) for signal in raised]

    def _give_signal(self, signal: DueSignal) -> Leased:
        tag = next(self._tags)
        leased = signal_message(tag, *signal)
        clock = self._clock
        self._given[tag] = _Given(self._lanes[0], (), clock.monotonic(), clock.now(), leased, signal)
        return leased

    def _take(self, lane: JobLane, limit: int) -> list[Leased]:
        self._give_to_others(lane)
        paths: list[str] = []
        while len(paths) < lane.size * min(limit, self._concurrency):
            path = lane.directory.next_path()
            if path is None:
                break
            paths.append(path)
        each = max(1, min(lane.size, math.ceil(len(paths) / self._concurrency)))
        return [self._give(lane, paths[first : first + each]) for first in range(0, len(paths), each)]

    def _give(self, lane: JobLane, paths: Sequence[str]) -> Leased:
        tag = next(self._tags)
        leased = lane.message(tag, paths)
        self._given[tag] = _Given(lane, tuple(paths), self._clock.monotonic(), self._clock.now(), leased)
        return leased

    def _give_to_others(self, lane: JobLane) -> bool:
        """Offer names that were handed out a while ago to others: all but the first of a message may not have
        begun. Return whether there were any."""
        before = self._clock.monotonic() - STALE_SECONDS
        some = False
        for tag, given in self._given.items():
            if given.at > before:
                break
            if given.lane is lane and len(given.paths) > 1:
                lane.directory.tried(given.paths, given.since, at_once=True)
                self._given[tag] = given._replace(paths=())
                lane.size = 1
                some = True
        return some

    def _after_fork(self) -> None:
        self._signals = None  # the sockets and the announcement are the parent's
        super()._after_fork()

    def _forget(self) -> None:
        self._given.clear()
        self._again.clear()
