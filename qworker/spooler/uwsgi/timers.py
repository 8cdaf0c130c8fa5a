"""SignalTimers: which signals are due, according to the timers, crons and file monitors of a table.

Comes from:  the runner's thread, with the time.
Goes to:     that thread: signals for a spooler, and when to call again.
Thread:      the runner's, which passes the time.

The last firings are kept in memory: as with uWSGI, a restart within the minute of a cron fires it again.
Missed firings are made up for once. Each runner has its own timers, so with two runners both fire.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from qworker.errors import SpoolError
from qworker.spooler.uwsgi import runtime
from qworker.spooler.uwsgi.signal_socket import SignalSocket
from qworker.spooler.uwsgi.signal_table import SPOOLER, Cron, Handler, Monitor, SignalTable, Timer

logger = logging.getLogger(__name__)

CRON_SECONDS = 60
"""Minimum seconds between two firings of a cron: it matches for a whole minute."""
MONITOR_SECONDS = 1.0
"""Seconds between two checks of monitored files."""
Stamp: TypeAlias = "tuple[int, ...]"


class DueSignal(NamedTuple):
    """A signal to be delivered. target: 'spooler', or the absolute path of a spool directory."""

    signum: int
    target: str


class _Running:
    """A source and its state."""

    __slots__ = ("fired", "last", "next", "source", "stamp")

    def __init__(self, source: Timer | Cron | Monitor) -> None:
        self.source = source
        self.next = math.nan
        self.last = -math.inf
        self.fired = 0
        self.stamp: Stamp | None = None


class SignalTimers:
    """local: returns the local time of an instant."""

    def __init__(
        self, table: SignalTable, *, local: Callable[[float], time.struct_time] = time.localtime
    ) -> None:
        self._table = table
        self._local = local
        self._running: list[_Running] = []

    def due(self, now: float) -> list[DueSignal]:
        """Return the signals due at *now*, epoch seconds, in order. The first interval of a timer begins with
        the first call that sees it."""
        found = []
        for source in self._table.sources[len(self._running) :]:
            self._running.append(_Running(source))
        for running in self._running:
            if self._fires(running, now):
                handler: Handler | None = self._table.handlers.get(running.source.signum)
                if handler is not None and handler.is_for_spooler:
                    found.append(DueSignal(running.source.signum, handler.target))
        return found

    def next_time(self, now: float) -> float:
        """Return when to call again, if nothing is registered meanwhile; infinity for never."""
        if len(self._running) < len(self._table.sources):
            return now
        return min((self._next(running, now) for running in self._running), default=math.inf)

    def _fires(self, running: _Running, now: float) -> bool:
        source = running.source
        if isinstance(source, Timer):
            return _timer_fires(running, source, now)
        if isinstance(source, Cron):
            second = math.floor(now)
            # After the clock was set back, a cron must still fire.
            if 0 <= second - running.last < CRON_SECONDS or not source.fields.matches(self._local(now)):
                return False
            running.last = second
            return True
        if 0 <= now - running.last < MONITOR_SECONDS:
            return False
        before, running.stamp = running.stamp, stamp_of(source.path)
        running.last = now
        return before is not None and before != running.stamp

    def _next(self, running: _Running, now: float) -> float:
        source = running.source
        if isinstance(source, Timer):
            return running.next
        if isinstance(source, Monitor):
            return running.last + MONITOR_SECONDS
        minute = math.floor(now / 60) * 60 + 60.0
        if source.fields.matches(self._local(now)):
            return min(minute, max(running.last + CRON_SECONDS, now))
        return minute


def _timer_fires(running: _Running, timer: Timer, now: float) -> bool:
    if math.isnan(running.next):
        running.next = now + timer.seconds
    if timer.seconds < running.next - now < math.inf:
        running.next = now + timer.seconds  # the clock was set back
    if running.next > now:
        return False
    running.fired += 1
    if running.fired == timer.iterations:
        running.next = math.inf
        return True
    running.next += timer.seconds
    if running.next <= now:
        running.next = now + timer.seconds
    return True


def stamp_of(path: str) -> Stamp:
    """Return a value that changes when the file does; () when it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# -- SignalSource: all signals that a runner has to deliver --


class SignalSource:
    """The signals for a runner of *directories*, at least one. start() and stop() may be called twice."""

    def __init__(self, directories: Sequence[str], table: SignalTable) -> None:
        self._directories = tuple(map(os.path.realpath, directories))
        self._table = table
        self._timers = SignalTimers(table)
        self._sockets: dict[str, SignalSocket] = {}

    def start(self) -> None:
        """Announce this process, and receive signals. A failure is logged; jobs are run nevertheless."""
        for directory in self._directories:
            if directory not in self._sockets:
                try:
                    runtime.announce(directory)
                    self._sockets[directory] = SignalSocket(directory)
                except SpoolError as error:
                    logger.warning(
                        "spoolers of %s receive no signals from other processes: %s", directory, error
                    )

    def stop(self) -> None:
        """End the announcement, and stop receiving."""
        for directory, receiver in self._sockets.items():
            receiver.close()
            runtime.withdraw(directory)
        self._sockets.clear()

    def filenos(self) -> list[int]:
        """Return the descriptors that are readable when another process has raised a signal."""
        return [receiver.fileno() for receiver in self._sockets.values()]

    def due(self, now: float) -> list[DueSignal]:
        """Return the signals to deliver now, each with the directory whose spooler has to run it. Never
        waits."""
        found = [
            DueSignal(signum, self._directories[0] if target == SPOOLER else os.path.realpath(target))
            for signum, target in self._timers.due(now)
        ]
        for directory, receiver in self._sockets.items():
            for signum in receiver.read():
                if self._table.is_registered(signum):
                    found.append(DueSignal(signum, directory))
                else:
                    logger.warning("received signal %d for %s, which has no handler", signum, directory)
        return [due for due in found if due.target in self._directories]

    def next_time(self, now: float) -> float:
        """Return when to call again if nothing is readable before; infinity for never."""
        return self._timers.next_time(now)
