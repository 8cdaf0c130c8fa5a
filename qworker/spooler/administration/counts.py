"""JobCounter: counts the jobs of a spool directory in each state, and how many come and go.

Comes from:  `qworker spool watch`.
Goes to:     the directory's names, times and locks, read only; no packet is read.
Thread:      any; one at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.spooler.administration.admin import aside_names
from qworker.spooler.files.locks import best_lock
from qworker.spooler.files.packet import PREFIX, is_priority
from qworker.spooler.watching import inotify
from qworker.spooler.watching.inotify import Inotify
from qworker.spooler.watching.scanning import FoundFile

LOCKS = 2000
"""Maximum locks checked in one count; checking more would take too long."""

_COMES = inotify.MOVED_TO | inotify.CREATE
_GOES = inotify.MOVED_FROM | inotify.DELETE
_HOW = inotify.ONLY_DIRECTORY | inotify.NO_LINK


class Counts(NamedTuple):
    """The counts of a directory.

    - due: due jobs that are not running. running: jobs whose lock is held.
    - delayed: jobs that are due later. dead: those that were set aside; None without permission to read them.
    - oldest: due time of the oldest due job; next_due: due time of the next delayed job. Epoch seconds; None
      without such a job.
    - complete: whether the locks of all due jobs were checked; otherwise some of the due jobs may be running.
    """

    due: int
    running: int
    delayed: int
    dead: int | None
    oldest: float | None
    next_due: float | None
    complete: bool


class Flow(NamedTuple):
    """The numbers of jobs added and removed in the last *seconds*. complete: False when some may not have
    been counted."""

    came: int
    went: int
    seconds: float
    complete: bool


class JobCounter:
    """path: a directory, which may disappear and come back."""

    def __init__(self, path: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self._lock = best_lock(path)
        self._clock = clock
        self._inotify: Inotify | None = None
        with suppress(OSError):
            self._inotify = Inotify()
        self._watched: set[int] = set()
        self._came = self._went = 0
        self._lost = False
        self._names: set[str] | None = None
        self._since: float | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable after a change; -1 without notifications."""
        return -1 if self._inotify is None else self._inotify.fileno()

    def close(self) -> None:
        """Safe to call twice."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def listen(self) -> None:
        """Count the notifications since the last call. Never waits. Call it when fileno() is readable: the
        kernel's queue holds some ten thousand events."""
        if self._inotify is None:
            return
        while events := self._inotify.read():
            for watch, mask, name in events:
                if mask & inotify.OVERFLOW:
                    self._lost = True
                elif name.startswith(PREFIX) and watch in self._watched:
                    if mask & _COMES:
                        self._came += 1
                    elif mask & _GOES:
                        self._went += 1

    def look(self) -> tuple[Counts, Flow | None]:
        """Return the counts, with arrivals and departures since the last look; None at the first one.

        OSError when the directory cannot be read; then the next look counts as the first.
        """
        try:
            return self._look()
        except OSError:
            self._since = self._names = None
            raise

    def _look(self) -> tuple[Counts, Flow | None]:
        moment = time.monotonic()
        before, self._watched = self._watched, set()
        entries = list(self._everything())
        # Arrivals in a new priority, before it was watched, were not notified.
        self._lost = self._lost or not self._watched <= before
        counts = self._counted(entries)
        self.listen()
        names = {entry.path for entry in entries}
        flow = None
        if self._since is not None:
            came, went, complete = self._came, self._went, not self._lost
            if self._inotify is None and self._names is not None:
                # Jobs that were added and removed between two scans are not seen.
                came, went = len(names - self._names), len(self._names - names)
                complete = False
            flow = Flow(came, went, moment - self._since, complete)
        self._came = self._went = 0
        self._since, self._lost = moment, False
        self._names = names if self._inotify is None else None
        return counts, flow

    def _everything(self) -> Iterator[FoundFile]:
        """Yield the jobs in the directory and its priorities, and watch these from now on."""
        folders = [""]
        for folder in folders:  # grows meanwhile
            place = f"{self.path}/{folder}" if folder else self.path
            before = f"{folder}/" if folder else ""
            self._watch(place)
            try:
                found = os.scandir(place)
            except OSError:
                if not folder:
                    raise
                continue  # a priority that was just deleted, or that we may not read
            with found:
                for entry in found:
                    is_job = entry.name.startswith(PREFIX)
                    if not is_job and not is_priority(entry.name):
                        continue
                    with suppress(FileNotFoundError):  # it was just removed
                        if is_job and entry.is_file(follow_symlinks=False):
                            due = entry.stat(follow_symlinks=False).st_mtime
                            yield FoundFile(before + entry.name, due)
                        elif not is_job and entry.is_dir(follow_symlinks=False):
                            folders.append(before + entry.name)

    def _watch(self, place: str) -> None:
        """Watch *place*. Called for each count, because another directory may have replaced it; otherwise the
        watch stays the same."""
        if self._inotify is None:
            return
        try:
            self._watched.add(self._inotify.add(place, _COMES | _GOES | _HOW))
        except OSError:
            self._lost = True

    def _counted(self, entries: list[FoundFile]) -> Counts:
        now = self._clock.now()
        due = [entry for entry in entries if entry.due <= now]
        running = 0
        with suppress(FileNotFoundError):
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                running = sum(self._is_held(entry.path, directory) for entry in due[:LOCKS])
            finally:
                os.close(directory)
        later = [entry.due for entry in entries if entry.due > now]
        return Counts(
            len(due) - running,
            running,
            len(later),
            self._dead(),
            min((entry.due for entry in due), default=None),
            min(later, default=None),
            len(due) <= LOCKS,
        )

    def _is_held(self, path: str, directory: int) -> bool:
        try:
            return self._lock.is_held(path, directory)
        except OSError:  # it was just removed, or access is denied
            return False

    def _dead(self) -> int | None:
        try:
            return len(aside_names(self.path))
        except OSError:
            return None
