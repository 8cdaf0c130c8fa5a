"""SpoolDirectory: finds and claims the jobs of one spool directory.

Comes from:  a directory that others write to, and where other spoolers, ours and uWSGI's, claim jobs, too.
Goes to:     claims of due jobs.
Thread:      one calls everything here; a claimed file may be released in any thread, which wakes this one.

Files are found in three ways: notifications of written files, a heap with the due times of delayed files, and
an occasional scan, which finds what the others missed. Between the small steps of a scan new files are
checked, so that many delayed files do not hold up new ones.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.process.wakeup import WakeupPipe
from qworker.spooler.files.claiming import GRACE_SECONDS, ClaimedFile, ClaimedPlace, Reason, Refusal
from qworker.spooler.files.locks import FileLock, best_lock
from qworker.spooler.files.place import prepared
from qworker.spooler.options import FREQUENCY_SECONDS
from qworker.spooler.watching.candidates import WHOLE, Candidates, Share
from qworker.spooler.watching.scanning import FoundFile, scan, scan_in_order
from qworker.spooler.watching.watcher import NO_CHANGES, Changes, Watcher

logger = logging.getLogger(__name__)

STEP = 100
"""Entries that a scan reads before new files are checked."""
MOST_READS = 64
"""Maximum reads of notifications while none is about a file to try."""
LONGEST_SLEEP = 3600.0
COARSE = 0.05
"""Seconds by which the times of a file system may lag."""
CLAIMS_BETWEEN = 32
"""Maximum files that are tried before new files are checked."""


class SpoolDirectory:
    """A spool directory, for claiming jobs, or for others that claim them.

    - path: created if missing.
    - ordered: natural order, with priorities.
    - frequency: seconds between two scans, or a function that returns them, called before each scan.
    - lock: None for best_lock().
    - owners: user ids whose jobs are run; None for our own and root.
    - shared: everybody may write there.
    - share: which files are tried first, without an order.
    - times_of_priorities: a priority is skipped until the modification time of its directory, as with uWSGI.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ordered: bool = False,
        frequency: float | Callable[[], float] = FREQUENCY_SECONDS,
        grace: float = GRACE_SECONDS,
        lock: FileLock | None = None,
        owners: Collection[int] | None = None,
        shared: bool = False,
        share: Share = WHOLE,
        times_of_priorities: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path = prepared(path, shared=shared)
        self._frequency = frequency if callable(frequency) else lambda: frequency
        self._ordered = ordered
        self._times_of_priorities = times_of_priorities
        self._clock = clock
        self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._ended: deque[tuple[str, Refusal | None]] = deque()
        self._claims = ClaimedPlace(
            self._directory,
            lock=best_lock(self.path) if lock is None else lock,
            owners={os.getuid(), 0} if owners is None else owners,
            grace=grace,
            clock=clock,
            ended=self._end,
        )
        self._candidates = Candidates(clock, ordered=ordered, share=share)
        self._wakeup = WakeupPipe()
        self._wakeup.open()
        self._watcher = Watcher(self.path, ordered=ordered)
        self._scanning: Iterator[FoundFile] | None = None
        self._scanned_to = ""
        self._next_scan = -math.inf
        self._again = False
        self._tried = 0
        self._asleep = False

    def next(self) -> ClaimedFile | None:
        """Claim the next due job; None if there is none. Never waits. The caller must end the claim."""
        while (path := self.next_path()) is not None:
            found = self._claims.claim(path)
            if isinstance(found, ClaimedFile):
                return found
            self._candidates.refuse(path, found)
        return None

    def next_path(self) -> str | None:
        """Return the next file for another process to claim; None if there is none. Never waits. The caller
        must call tried() or gone() afterwards."""
        candidates = self._candidates
        while True:
            if self._tried <= 0 or not candidates:
                self._look_for_new()
            if self._scanning is not None and self._is_to_scan():
                self._scan_on()
                continue
            path = candidates.take()
            if path is None:
                return None
            self._tried -= 1
            known = candidates.refused(path)
            if known is None or (still := self._claims.look(path, known)) is None:
                return path
            candidates.refuse(path, still)

    def tried(self, paths: Iterable[str], since: float, *, at_once: bool = False) -> None:
        """Record that files of next_path() were tried, after epoch second *since*; their state shows the
        outcome. at_once: they may not have been tried at all, so those still due come again at once."""
        is_there, done, directory = os.access, self._candidates.done, self._directory
        for path in paths:
            # Most are gone, and an exception would take as long again.
            if is_there(path, os.F_OK, dir_fd=directory):
                self._tried_in_vain(path, since, at_once)
            else:
                done(path)

    def holds(self, path: str) -> bool:
        """Return whether the file exists."""
        return os.access(path, os.F_OK, dir_fd=self._directory)

    def gone(self, paths: Iterable[str]) -> None:
        """Record that files of next_path() were tried, and no longer exist."""
        done = self._candidates.done
        for path in paths:
            done(path)

    def _tried_in_vain(self, path: str, since: float, at_once: bool) -> None:
        try:
            due = os.stat(path, dir_fd=self._directory, follow_symlinks=False).st_mtime
        except OSError:
            self._candidates.done(path)
            return
        if due >= since or at_once:  # given back, which sets its time
            self._candidates.refuse(path, Refusal(Reason.NOT_DUE, due))
        else:
            self._candidates.leave(path)

    def uncount(self, path: str, since: float) -> None:
        """Do not count an attempt begun after epoch second *since*, whose process was ended by our worker.
        Does nothing if the file is locked."""
        found = self._claims.claim(path)
        if isinstance(found, ClaimedFile):
            attempts = found.attempts
            begun = attempts > found.returns and found.changed() >= since - COARSE
            found.let_go(attempts - 1 if begun else None)

    def wait(self, most: float = math.inf) -> None:
        """Return when there may be a job, when wake() is called, or after *most* seconds."""
        self._asleep = True  # from now on, the end of a claim wakes this thread
        self._wakeup.sleep(min(most, self.rest()), self.fileno())
        self._asleep = False
        self.look()

    def fileno(self) -> int:
        """Return the descriptor that is readable when there may be a job, for callers that wait for other
        files, too; -1: no notifications."""
        return self._watcher.fileno()

    def rest(self) -> float:
        """Return the seconds for which there is no job, unless fileno() can be read."""
        self._watch_attributes()
        if self._candidates or self._scanning is not None or self._ended or self._again:
            return 0.0
        until_due = self.next_due() - self._clock.now()
        until_scan = self._next_scan - self._clock.monotonic()
        return max(0.0, min(until_due, until_scan, LONGEST_SLEEP))

    def next_due(self) -> float:
        """Return when the next waiting file is to be tried, epoch seconds; infinity if there is none."""
        return self._candidates.next_time()

    def look(self) -> None:
        """Make next() check for new files first."""
        self._tried = 0

    def take_in(self) -> None:
        """Process the notifications of fileno()."""
        self._look_for_new()

    def read_through(self) -> None:
        """Scan the directory completely now, so that rest() is correct from the start."""
        self._look_for_new()
        while self._scanning is not None:
            self._scan_on()

    def wake(self) -> None:
        """End a wait(). Any thread; safe in a signal handler."""
        self._wakeup.wake()

    def rescan(self) -> None:
        """Scan again at the next call of next(). Any thread; safe in a signal handler."""
        self._again = True

    def close(self) -> None:
        """Close everything. Claims that are still held can no longer be ended. Safe to call twice."""
        if self._directory >= 0:
            self._watcher.close()
            self._wakeup.close()
            os.close(self._directory)
            self._directory = -1

    def _look_for_new(self) -> None:
        """Process the notifications since the last call, and begin a scan if one is due."""
        self._tried = CLAIMS_BETWEEN
        while self._ended:
            path, refusal = self._ended.popleft()
            if refusal is None:
                self._candidates.done(path)
            else:
                self._candidates.refuse(path, refusal)
        self._watch_attributes()
        for _ in range(MOST_READS):
            changes = self._watcher.read()
            self._take_in(changes)
            if changes is NO_CHANGES or self._candidates:
                break
        if self._scanning is None and (self._again or self._clock.monotonic() >= self._next_scan):
            self._begin_scan()

    def _watch_attributes(self) -> None:
        """Request notifications of changed attributes while there are refused files, whose times may be
        changed."""
        rests = self._candidates.have_refused
        if self._watcher.watch_attributes(rests) and rests:
            self._candidates.touch_all()  # they may have changed before that

    def _take_in(self, changes: Changes) -> None:
        for path in changes.written:
            self._candidates.offer(path)
        for path in changes.touched:
            self._candidates.touch(path)
        for folder in changes.folders:
            with suppress(OSError):  # it was just removed
                self._candidates.seen(self._in_order(folder))
        self._again = self._again or changes.rescan

    def _begin_scan(self) -> None:
        self._again = False
        self._next_scan = self._clock.monotonic() + self._frequency()
        self._follow()
        self._watcher.watch()
        self._candidates.begin_scan()
        self._scanned_to = ""
        self._scanning = self._in_order("") if self._ordered else scan(self.path)

    def _in_order(self, folder: str) -> Iterator[FoundFile]:
        now = self._clock.now() if self._times_of_priorities else math.inf
        return scan_in_order(self.path, now, self._watcher.watch, folder)

    def _follow(self) -> None:
        """If the path leads to another directory now, use that."""
        try:
            there = os.stat(self.path)
            if not os.path.samestat(there, os.fstat(self._directory)):
                other = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                os.dup2(other, self._directory, inheritable=False)
                os.close(other)
        except OSError:
            return  # it does not exist at the moment; the scan logs that

    def _is_to_scan(self) -> bool:
        """Return whether to continue the scan: nothing is ready, or what it may find comes first."""
        return not self._candidates or not self._candidates.precede(self._scanned_to)

    def _scan_on(self) -> None:
        assert self._scanning is not None
        try:
            entries = list(islice(self._scanning, STEP))
        except OSError as error:
            logger.warning("the spool directory %s cannot be read: %s", self.path, error.strerror)
            self._scanning = None
            return
        self._candidates.seen(entries)
        if len(entries) < STEP:
            self._scanning = None
            self._candidates.end_scan()
        else:
            self._scanned_to = entries[-1].path
        self._tried = 0

    def _end(self, path: str, refusal: Refusal | None) -> None:
        """Record that a claim has ended. Any thread."""
        self._ended.append((path, refusal))
        if self._asleep:
            self._wakeup.wake()
