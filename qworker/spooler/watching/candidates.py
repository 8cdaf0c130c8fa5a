"""Candidates: the files to try next, and when.

Comes from:  scans, notifications, and the outcome of earlier tries.
Goes to:     ``directory``, one path at a time.
Thread:      the SpoolDirectory's.

A refused file is remembered with the reason. A file that is not due waits in a heap. A file whose lock is
held elsewhere is tried again after it has changed, with a growing delay, because the change may come from
another process that tries it.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple, Protocol
from zlib import crc32

from qworker.clock import Clock
from qworker.spooler.files.claiming import Reason, Refusal
from qworker.spooler.files.packet import path_key

FIRST_DELAY = 0.01
LONGEST_DELAY = 1.0
"""Maximum seconds after a failed try in which a locked file is not tried again, even if it changes."""
LONGEST_LEFT = 5.0
"""The same for a file that was not run for an unknown reason: it is tried again even without a change."""
MOST_TRIES = 10
"""Maximum number of counted tries."""


class Share(NamedTuple):
    """This process is number *number*, from 0, of *of* processes that share a directory. Each tries its own
    share of the files first, so that they do not all try the same locks, and then any."""

    number: int
    of: int


WHOLE = Share(0, 1)


class _Vain(NamedTuple):
    """Failed tries of a file whose lock is held elsewhere: their number, and when the next one may be, epoch
    seconds."""

    tries: int
    not_before: float


class _Ready(Protocol):
    """Files that are ready to be tried, in order."""

    def __len__(self) -> int: ...

    def push(self, path: str) -> None: ...

    def pop(self) -> str:
        """Remove and return the first; there must be one."""

    def precedes(self, scanned_to: str) -> bool:
        """Return whether the first comes before everything that a scan, now at the path *scanned_to*, may
        still find."""


class _Arrival:
    """In order of arrival, those of our share first. Not a heap: there may be many."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._ours: deque[str] = deque()
        self._others: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._ours) + len(self._others)

    def push(self, path: str) -> None:
        share = self._share
        is_ours = share.of == 1 or crc32(os.fsencode(path)) % share.of == share.number
        (self._ours if is_ours else self._others).append(path)

    def pop(self) -> str:
        return (self._ours or self._others).popleft()

    def precedes(self, scanned_to: str) -> bool:
        return bool(self._ours)


class _Natural:
    """In natural order of the paths."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[bytes, ...], str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, path: str) -> None:
        heappush(self._heap, (path_key(path), path))

    def pop(self) -> str:
        return heappop(self._heap)[1]

    def precedes(self, scanned_to: str) -> bool:
        return self._heap[0][0] <= path_key(scanned_to)


class Candidates:
    """ordered: natural order of the paths; otherwise the order of arrival, with those of our share first."""

    def __init__(self, clock: Clock, *, ordered: bool = False, share: Share = WHOLE) -> None:
        self._clock = clock
        self._ready: _Ready = _Natural() if ordered else _Arrival(share)
        self._waiting: set[str] = set()  # the content of _ready
        self._refused: dict[str, Refusal] = {}
        self._vain: dict[str, _Vain] = {}
        self._later: list[tuple[float, str]] = []
        self._held: set[str] = set()
        self._unseen: set[str] = set()

    def __len__(self) -> int:
        """Return how many files are ready to be tried."""
        return len(self._ready)

    @property
    def have_refused(self) -> bool:
        """Return whether a refused file is remembered."""
        return bool(self._refused)

    def touch_all(self) -> None:
        """Offer all refused files again: any of them may have changed."""
        for path in self._refused:
            self.offer(path)

    def refused(self, path: str) -> Refusal | None:
        """Return why this file was refused at its last try; None if it was not."""
        return self._refused.get(path)

    def offer(self, path: str) -> None:
        """Add a file that is new or was written to; it is tried, unless it has just been tried."""
        vain = self._vain.get(path) if self._vain else None
        if vain is None or vain.not_before <= self._clock.now():
            self._make_ready(path)
        else:
            heappush(self._later, (vain.not_before, path))

    def touch(self, path: str) -> None:
        """Offer a file again whose attributes have changed, if it was refused."""
        if path in self._refused:
            self.offer(path)

    def seen(self, entries: Iterable[tuple[str, float]]) -> None:
        """Process files found by a scan, each with its due time."""
        now = self._clock.now()
        for path, due in entries:
            self._unseen.discard(path)
            if due <= now:
                self.offer(path)
                continue
            known = self._refused.get(path)
            if known is None or known.until != due:
                self.refuse(path, Refusal(Reason.NOT_DUE, due))

    def begin_scan(self) -> None:
        """Begin a scan, which calls seen() for all files."""
        self._unseen = set(self._refused)

    def end_scan(self) -> None:
        """End a scan: forget refused files that it has not found."""
        for path in self._unseen:
            self._forget(path)
        self._unseen.clear()

    def take(self) -> str | None:
        """Return the next file to try; None if there is none. It counts as held until refuse(), leave() or
        done()."""
        if self._later:
            self._take_up(self._clock.now())
        if not self._ready:
            return None
        path = self._ready.pop()
        self._waiting.discard(path)
        self._held.add(path)
        return path

    def _take_up(self, now: float) -> None:
        """Make the files ready whose waiting time is over *now*."""
        while self._later and self._later[0][0] <= now:
            at, path = heappop(self._later)
            refusal, vain = self._refused.get(path), self._vain.get(path)
            # A file that was refused again since then has another entry, or waits for a change.
            if (refusal and refusal.until == at) or (vain and vain.not_before == at):
                self._make_ready(path)

    def refuse(self, path: str, refusal: Refusal) -> None:
        """Record that the file was refused, or given back."""
        if refusal.reason is Reason.GONE:
            self.done(path)
            return
        self._held.discard(path)
        self._unseen.discard(path)
        self._refused[path] = refusal
        if refusal.reason is Reason.LOCKED:
            tries = self._vain[path].tries if path in self._vain else 0
            delay = min(FIRST_DELAY * 2**tries, LONGEST_DELAY)
            self._vain[path] = _Vain(min(tries + 1, MOST_TRIES), self._clock.now() + delay)
        else:
            self._vain.pop(path, None)
        if refusal.until < math.inf:
            heappush(self._later, (refusal.until, path))

    def leave(self, path: str) -> None:
        """Record that the file was not run, for an unknown reason: it is tried again after a growing
        delay."""
        self._held.discard(path)
        tries = self._vain[path].tries if path in self._vain else 0
        again = self._clock.now() + min(FIRST_DELAY * 2**tries, LONGEST_LEFT)
        self._vain[path] = _Vain(min(tries + 1, MOST_TRIES), again)
        self._refused[path] = Refusal(Reason.LOCKED, again)
        heappush(self._later, (again, path))

    def done(self, path: str) -> None:
        """Record that the file no longer exists."""
        self._held.discard(path)
        self._forget(path)

    def next_time(self) -> float:
        """Return when the next waiting file is to be tried, epoch seconds; infinity if there is none."""
        return self._later[0][0] if self._later else math.inf

    def precede(self, scanned_to: str) -> bool:
        """Return whether the next file of take(), which must exist, comes before everything that a scan at
        *scanned_to* may still find."""
        return self._ready.precedes(scanned_to)

    def _make_ready(self, path: str) -> None:
        if path not in self._waiting and path not in self._held:
            self._waiting.add(path)
            self._ready.push(path)

    def _forget(self, path: str) -> None:
        if self._refused:
            self._refused.pop(path, None)
            self._vain.pop(path, None)
